//! Programs that the machine must have: names the missing ones, then installs them from the distribution's packages.
//!
//! Three strengths: what is needed for building must be there; what tests start must be there in
//! CI, and elsewhere a test without it is skipped and counted; what the demo uses is only wanted
//! for. A message names the missing program, its purpose and its package before anything is
//! installed, and the exact command where xtask may not run it.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{
    c, project,
    shell::{capture, installed, run, say},
    toolchain::Toolchain,
};

/// A program that this repository starts.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    /// As it is found in `folder` or on the path. Also a file of a Python package, or a word list.
    name: &'static str,
    /// In Debian; several, separated by a space, if it takes more than one.
    package: &'static str,
    /// For people, after the name.
    purpose: &'static str,
    /// Its folder if it is not on the path of ordinary users.
    folder: &'static str,
}

/// Needed for building.
pub(crate) const BUILD: &[Program] = &[Program {
    name: "cc",
    package: "gcc libc6-dev",
    purpose: "linking, and the C in dependencies",
    folder: "",
}];

/// Needed in addition for the fuzz targets.
pub(crate) const FUZZ: &[Program] =
    &[Program { name: "c++", package: "g++", purpose: "libFuzzer, which is C++", folder: "" }];

/// Started by the tests, besides our own programs.
pub(crate) const TEST: &[Program] = &[
    Program { name: "curl", package: "curl", purpose: "an unmodified client", folder: "" },
    Program { name: "openssl", package: "openssl", purpose: "an unmodified client of TLS", folder: "" },
    Program {
        name: "ip",
        package: "iproute2",
        purpose: "network namespaces of the tests",
        folder: "/usr/sbin",
    },
    Program { name: "gdb", package: "gdb", purpose: "a debugger attached to a replay", folder: "" },
    Program {
        name: "etcd",
        package: "etcd-server",
        purpose: "a coordinator; `systemctl disable --now etcd` stops the service that Debian makes of it",
        folder: "/usr/bin",
    },
];

/// Used by the demo, which also works without them and then reports it.
pub(crate) const DEMO: &[Program] = &[
    Program { name: "curl", package: "curl", purpose: "an unmodified client", folder: "" },
    Program {
        name: "nginx",
        package: "nginx",
        purpose: "an unmodified server; `systemctl disable --now nginx` stops the service that Debian makes of it",
        folder: "/usr/sbin",
    },
];

/// Compared with cells in their tests; without them these tests are skipped and counted.
pub(crate) const COMPARE: &[Program] = &[
    Program {
        name: "memcached",
        package: "memcached",
        purpose: "the cache that the cell `memcached` must agree with; `systemctl disable --now memcached` stops the service that Debian makes of it",
        folder: "/usr/bin",
    },
    Program {
        name: "memccapable",
        package: "libmemcached-tools",
        purpose: "libmemcached's own tests of a server, and its load generator",
        folder: "/usr/bin",
    },
    Program {
        name: "pymemcache/__init__.py",
        package: "python3-pymemcache",
        purpose: "a client of memcached in Python",
        folder: "/usr/lib/python3/dist-packages",
    },
];

const REDIS_PROGRAM: Program = Program {
    name: "redis-server",
    package: "redis-server",
    purpose: "a server and its client; `systemctl disable --now redis-server` stops the service that Debian makes of it",
    folder: "/usr/bin",
};

/// Compared with a shared cell by `bench many`.
pub(crate) const REDIS: &[Program] = &[REDIS_PROGRAM];

/// Clients of `marram exec`, and tools that redirect instead of it; tests of missing ones are skipped and counted.
pub(crate) const CLIENTS: &[Program] = &[
    Program { name: "python3", package: "python3", purpose: "an unmodified client", folder: "" },
    Program {
        name: "requests/__init__.py",
        package: "python3-requests",
        purpose: "a client of the Python that comes with it",
        folder: "/usr/lib/python3/dist-packages",
    },
    Program {
        name: "websockets/__init__.py",
        package: "python3-websockets",
        purpose: "a client that uses WebSocket",
        folder: "/usr/lib/python3/dist-packages",
    },
    REDIS_PROGRAM,
    Program {
        name: "psql",
        package: "postgresql",
        purpose: "a server and its client; `systemctl disable --now postgresql` stops the service that Debian makes of it",
        folder: "/usr/bin",
    },
    Program {
        name: "sshd",
        package: "openssh-server",
        purpose: "a server and its client; `systemctl disable --now ssh` stops the service that Debian makes of it",
        folder: "/usr/sbin",
    },
    Program { name: "ssh", package: "openssh-client", purpose: "an unmodified client", folder: "/usr/bin" },
    Program {
        name: "javac",
        package: "default-jdk-headless",
        purpose: "a client in Java",
        folder: "/usr/bin",
    },
    Program { name: "node", package: "nodejs", purpose: "a client in JavaScript", folder: "/usr/bin" },
    Program {
        name: "nft",
        package: "nftables",
        purpose: "redirection of connections in the kernel",
        folder: "/usr/sbin",
    },
    Program {
        name: "unshare",
        package: "util-linux",
        purpose: "a disk that fills up, and tests on one processor",
        folder: "/usr/bin",
    },
    Program { name: "nc", package: "netcat-openbsd", purpose: "an unmodified client", folder: "/usr/bin" },
    Program {
        name: "pgrep",
        package: "procps",
        purpose: "whether the programs of the tutorial have ended",
        folder: "/usr/bin",
    },
];

/// Opens the games' pages; without it their tests are skipped and counted.
pub(crate) const BROWSER: &[Program] = &[Program {
    name: "chromedriver",
    package: "chromium chromium-driver",
    purpose: "a real browser, without a window",
    folder: "",
}];

/// Compiles cells in C; without it their tests are skipped and counted.
pub(crate) const C_CELLS: &[Program] = &[
    Program {
        name: "wasm-ld",
        package: "clang lld wasi-libc libclang-rt-dev-wasm32",
        purpose: "cells in C",
        folder: "",
    },
    Program { name: "make", package: "make", purpose: "projects in C", folder: "/usr/bin" },
];

/// Installs zig, which no Debian package contains.
const ZIG: &[Program] = &[Program {
    name: "pip3",
    package: "python3-pip",
    purpose: "zig, another compiler of cells in C",
    folder: "/usr/bin",
}];

const HAPROXY_PROGRAM: Program = Program {
    name: "haproxy",
    package: "haproxy",
    purpose: "relays to compare with; `systemctl disable --now haproxy` stops the service that Debian makes of it",
    folder: "/usr/sbin",
};

/// Compared with cells by `bench forward` and `bench tls`.
pub(crate) const HAPROXY: &[Program] = &[HAPROXY_PROGRAM];

const NGINX_PROGRAM: Program = Program {
    name: "nginx",
    package: "nginx",
    purpose: "a server and a proxy that compresses; `systemctl disable --now nginx` stops the service that Debian makes of it",
    folder: "/usr/sbin",
};

/// The server of `bench crowd`, and what its agents and edges are compared with.
pub(crate) const CROWD: &[Program] = &[HAPROXY_PROGRAM, NGINX_PROGRAM];

/// Used by `bench faults` to create machines and faults.
pub(crate) const NAMESPACES: &[Program] = &[
    Program { name: "ip", package: "iproute2", purpose: "network namespaces", folder: "/usr/sbin" },
    Program { name: "tc", package: "iproute2", purpose: "slow links", folder: "/usr/sbin" },
    Program {
        name: "unshare",
        package: "util-linux",
        purpose: "clocks and disks of their own",
        folder: "/usr/bin",
    },
];

/// Used by `bench apps`, for comparison and as clients.
pub(crate) const APPS: &[Program] = &[
    NGINX_PROGRAM,
    Program {
        name: "words",
        package: "wamerican",
        purpose: "the words of scrabble",
        folder: "/usr/share/dict",
    },
];

/// Installs everything that any command needs.
///
/// For a machine on which everything shall work afterwards, without waiting for a command that
/// needs it.
pub(crate) fn everything() -> Result<()> {
    for_tests()?;
    ensure_components()?;
    Toolchain::ensure().map(drop)
}

/// Whether this machine runs continuous integration. There, a test that cannot run is a failure.
pub(crate) fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !matches!(value.as_str(), "" | "false" | "0"))
}

/// Installs the programs that tests and benchmarks start. In CI all of them must exist afterwards; elsewhere a test whose
/// program is missing is skipped and counted.
pub(crate) fn for_tests() -> Result<()> {
    let needed = [BUILD, FUZZ, TEST].concat();
    let optional = [DEMO, COMPARE, CLIENTS, BROWSER, C_CELLS, ZIG, HAPROXY, NAMESPACES, APPS];
    if is_ci() {
        ensure(&[needed, optional.concat()].concat())?;
        return c::ensure_zig();
    }
    ensure(&needed)?;
    // A package that is not available here must not block the others.
    if ensure(&optional.concat()).is_err() {
        optional.into_iter().for_each(want);
    }
    if let Err(error) = c::ensure_zig() {
        say(format!("continuing without: {error:#}"));
    }
    Ok(())
}

/// The components of the Rust toolchain that the checks need; some installations lack them.
pub(crate) fn ensure_components() -> Result<()> {
    let missing = |subcommand: &str| capture(project::cargo(subcommand).arg("--version")).is_err();
    let components = [("fmt", "rustfmt"), ("clippy", "clippy")].into_iter();
    let components: Vec<_> =
        components.filter(|(name, _)| missing(name)).map(|(_, component)| component).collect();
    if components.is_empty() {
        return Ok(());
    }
    let by_hand = format!("rustup component add {}", components.join(" "));
    if !installed("rustup") {
        bail!("the Rust toolchain has no {}; with rustup, run `{by_hand}`", components.join(" and no "));
    }
    say(format!("adding to the Rust toolchain: {by_hand}"));
    run(Command::new("rustup").args(["component", "add"]).args(components).current_dir(project::root()))
}

/// Installs what is missing, or tells exactly what to install by hand.
///
/// # Errors
/// If something is missing and cannot be installed here, with the command for a person who can; or
/// if it is still missing afterwards.
pub(crate) fn ensure(programs: &[Program]) -> Result<()> {
    let missing: Vec<_> = programs.iter().filter(|program| program.is_missing()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for Program { name, package, purpose, .. } in &missing {
        say(format!("`{name}` is missing ({purpose}); it is in Debian's {package}"));
    }
    let packages: Vec<_> = missing.iter().flat_map(|program| program.package.split(' ')).collect();
    let by_hand = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !installed("apt-get") {
        bail!("install what the lines above name by hand: there is no apt-get on this machine");
    }
    let Some(prefix) = privilege() else {
        bail!("installing needs root and there is no sudo; as root, run `{by_hand}`");
    };
    say(format!("installing packages: {}{by_hand}", prefix.join(" ")));
    run(apt_get(prefix).args(["-q", "update"]))?;
    run(apt_get(prefix).args(["-q", "-y", "install", "--no-install-recommends"]).args(&packages))?;
    match missing.iter().find(|program| program.is_missing()) {
        Some(program) => bail!("`{by_hand}` succeeded, but `{}` is still missing", program.name),
        None => Ok(()),
    }
}

/// Installs what is missing if possible; the caller has an alternative.
pub(crate) fn want(programs: &[Program]) {
    if let Err(error) = ensure(programs) {
        say(format!("continuing without: {error:#}"));
    }
}

impl Program {
    /// Servers are often in a folder that is only on root's path.
    fn is_missing(&self) -> bool {
        let outside = !self.folder.is_empty() && std::path::Path::new(self.folder).join(self.name).is_file();
        !installed(self.name) && !outside
    }
}

/// The prefix of a command that needs root; `None` if there is no way.
///
/// The words end in a space, so that they can be printed before a command.
fn privilege() -> Option<&'static [&'static str]> {
    let is_root = capture(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0");
    match (is_root, installed("sudo")) {
        (true, _) => Some(&[]),
        (false, true) => Some(&["sudo "]),
        (false, false) => None,
    }
}

/// Never asks a question: an installation in CI would wait for an answer for ever.
fn apt_get(prefix: &[&str]) -> Command {
    let mut command = match prefix.first() {
        Some(program) => Command::new(program.trim_end()),
        None => Command::new("env"),
    };
    command.args(prefix.first().map(|_| "env")).args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}
