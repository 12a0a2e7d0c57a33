//! Debian's Rust compiler with its Wasm targets, fetched through a private APT root and unpacked below `target/`:
//! nothing is installed, and root is not needed. That compiler needs a newer C library than the machine may have, so it is
//! started with its own loader.
//!
//! ```text
//! target/toolchain/
//!   apt/      configuration, lists and cache of the private APT; removed at the end
//!   root/     the unpacked packages: usr/bin/rustc, its libraries, the targets
//!   rustc     a script: loader --library-path ... root/usr/bin/rustc --sysroot root/usr "$@"
//!   stamp     written last: a folder without it is made again
//! ```
//! Packages are verified by APT with the keys of the machine's own sources.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use super::sources::{Archive, in_deb822, in_list};
use crate::shell::{capture, installed, run, say};

/// The first suite with a new enough compiler for this project.
const SUITE: &str = "forky";

/// The packages to install; the libraries that they need are found by their dependencies.
const WANTED: [&str; 2] = ["rustc", "libstd-rust-dev-wasm32"];

/// Change this when the steps below change, so that the toolchain is built again.
const STAMP: &str = "marram wasm toolchain 1\n";

/// More packages than this mean that the dependencies have changed.
const PACKAGES_MAX: usize = 40;

/// The compiler's wrapper script; fetches and unpacks it the first time.
pub(crate) fn ensure(folder: &Path) -> Result<PathBuf> {
    let (rustc, stamp) = (folder.join("rustc"), folder.join("stamp"));
    if fs::read_to_string(&stamp).is_ok_and(|text| text == STAMP) {
        return Ok(rustc);
    }
    let archive = machine_archive()?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove the old {}", folder.display()))?;
    }
    let apt = Apt::new(&folder.join("apt"), &archive)?;
    let packages = apt.closure()?;
    say_what_follows(&apt, &packages, folder)?;
    let sysroot = folder.join("root");
    apt.unpack(&packages, &sysroot)?;
    write_wrapper(&rustc, &sysroot, &apt.architecture)?;
    let version = capture(Command::new(&rustc).arg("-V")).context("the unpacked compiler does not start")?;
    fs::remove_dir_all(folder.join("apt")).context("cannot remove the downloads")?;
    fs::write(&stamp, STAMP).with_context(|| format!("cannot write {}", stamp.display()))?;
    say(format!("unpacked {}", version.trim_end()));
    Ok(rustc)
}

/// The archive of the Debian release of this machine, from its own sources.
///
/// # Errors
/// If this is not Debian, a program is missing, or no source carries the release.
fn machine_archive() -> Result<Archive> {
    let release = fs::read_to_string("/etc/os-release").context("cannot determine which system this is")?;
    let field = |name: &str| {
        let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    if field("ID").as_deref() != Some("debian") {
        bail!("this is not Debian, so its package sources do not carry Debian's suite {SUITE}");
    }
    for program in ["apt-get", "apt-cache", "dpkg"] {
        if !installed(program) {
            bail!("{program} is missing");
        }
    }
    let codename = field("VERSION_CODENAME").context("/etc/os-release names no release")?;
    let mut lists = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        lists.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    lists.sort();
    let archive = lists.iter().find_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        match path.extension()?.to_str()? {
            "list" => in_list(&text, &codename),
            "sources" => in_deb822(&text, &codename),
            _ => None,
        }
    });
    archive.with_context(|| format!("no source below /etc/apt carries `main` of Debian {codename}"))
}

/// Announces the download, before it begins.
fn say_what_follows(apt: &Apt, packages: &BTreeSet<String>, folder: &Path) -> Result<()> {
    let mebibytes = apt.download_size(packages)?.div_ceil(1 << 20);
    say(format!(
        "downloading {} packages of Debian {SUITE} ({mebibytes} MiB) with apt-get and unpacking them into {} \
         (about 800 MiB); nothing is installed: {}",
        packages.len(),
        folder.display(),
        packages.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
    ));
    Ok(())
}

/// APT with its lists, state and cache in a separate folder.
struct Apt {
    /// Its absolute path is in the configuration.
    folder: PathBuf,
    /// As dpkg names it; the loader's name follows from it.
    architecture: String,
}

impl Apt {
    /// Writes the configuration and fetches the suite's index.
    fn new(folder: &Path, archive: &Archive) -> Result<Self> {
        for part in ["lists/partial", "cache/archives/partial", "packages"] {
            fs::create_dir_all(folder.join(part)).with_context(|| format!("cannot create {part}"))?;
        }
        let architecture = capture(Command::new("dpkg").arg("--print-architecture"))?.trim_end().to_owned();
        let shown = folder.display();
        let configuration = format!(
            "Dir::Etc::sourcelist \"{shown}/archive.sources\";\n\
             Dir::Etc::sourceparts \"/dev/null\";\n\
             Dir::State::lists \"{shown}/lists\";\n\
             Dir::State::status \"{shown}/status\";\n\
             Dir::Cache \"{shown}/cache\";\n\
             APT::Architectures {{ \"{architecture}\"; }};\n\
             APT::Sandbox::User \"\";\n\
             Acquire::Languages \"none\";\n"
        );
        // The status file is empty, so APT does not believe that anything is installed.
        let files = [
            ("archive.sources", archive.stanza(SUITE)),
            ("status", String::new()),
            ("apt.conf", configuration),
        ];
        for (name, text) in files {
            fs::write(folder.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        let apt = Self { folder: folder.to_path_buf(), architecture };
        say(format!("reading the package index of Debian {SUITE} from {}", archive.uris));
        capture(apt.command("apt-get").args(["-q", "update"]))?;
        Ok(apt)
    }

    /// A program of APT with the private configuration; it never sees the machine's.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.folder.join("apt.conf")).env("LC_ALL", "C");
        command.current_dir(self.folder.join("packages"));
        command
    }

    /// The wanted packages and their run-time libraries, without the C compiler that the packages also depend on.
    ///
    /// `apt-get install --simulate` would ask for the C compiler as well, which is not needed to
    /// build for Wasm.
    fn closure(&self) -> Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let mut queue: Vec<String> = WANTED.map(str::to_owned).to_vec();
        while let Some(package) = queue.pop() {
            if found.contains(&package) {
                continue;
            }
            let answer = capture(self.command("apt-cache").args(["depends", "--important", &package]))?;
            queue.extend(answer.lines().filter_map(library_of_line));
            found.insert(package);
            if found.len() > PACKAGES_MAX {
                bail!("Debian {SUITE}'s rustc needs more than {PACKAGES_MAX} packages, more than expected");
            }
        }
        Ok(found)
    }

    /// In bytes, from the third column of the list of URIs.
    fn download_size(&self, packages: &BTreeSet<String>) -> Result<u64> {
        let answer = capture(self.command("apt-get").args(["--print-uris", "download"]).args(packages))?;
        let size = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
        Ok(answer.lines().filter_map(size).sum())
    }

    /// `dpkg -x` copies files only: no script of a package runs.
    fn unpack(&self, packages: &BTreeSet<String>, sysroot: &Path) -> Result<()> {
        run(self.command("apt-get").args(["-q", "download"]).args(packages))?;
        let folder = self.folder.join("packages");
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
            run(Command::new("dpkg").arg("-x").arg(entry?.path()).arg(sysroot))?;
        }
        Ok(())
    }
}

/// The package in a line of `apt-cache depends`, if it is a library that the compiler needs to run.
fn library_of_line(line: &str) -> Option<String> {
    let package = line.trim().strip_prefix("Depends: ")?;
    let is_runtime =
        package.starts_with("lib") && (!package.ends_with("-dev") || package == "libstd-rust-dev");
    is_runtime.then(|| package.to_owned())
}

/// A script that starts the compiler with its own loader and libraries.
fn write_wrapper(script: &Path, sysroot: &Path, architecture: &str) -> Result<()> {
    let (triplet, loader) = match architecture {
        "amd64" => ("x86_64-linux-gnu", "ld-linux-x86-64.so.2"),
        "arm64" => ("aarch64-linux-gnu", "ld-linux-aarch64.so.1"),
        other => bail!("Debian's architecture {other} is not supported"),
    };
    let (usr, libraries) = (sysroot.join("usr"), sysroot.join("usr/lib").join(triplet));
    let text = format!(
        "#!/bin/sh\nexec '{libraries}/{loader}' --library-path '{libraries}' '{usr}/bin/rustc' --sysroot '{usr}' \"$@\"\n",
        libraries = libraries.display(),
        usr = usr.display(),
    );
    fs::write(script, text).with_context(|| format!("cannot write {}", script.display()))?;
    fs::set_permissions(script, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", script.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_for_running_are_followed() {
        let cases = [
            ("  Depends: libllvm22", Some("libllvm22")),
            ("  Depends: libstd-rust-dev", Some("libstd-rust-dev")),
            ("  Depends: libc6-dev", None),
            ("  Depends: gcc", None),
            ("  Depends: <libc-dev>", None),
            ("  Conflicts: libold", None),
            ("rustc", None),
        ];
        for (line, expected) in cases {
            assert_eq!(library_of_line(line).as_deref(), expected, "{line}");
        }
    }
}
