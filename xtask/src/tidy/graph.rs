//! Which crate may depend on which. A dependency that is not listed here needs a design decision first.
//!
//! The table is the architecture as far as a machine can check it: pure crates know nothing of the
//! machine, only the sandbox knows the engine, and programs are above all. A crate that is missing
//! in the table is an error too, so a new one cannot slip in.

use crate::metadata::Metadata;

/// Most packages in the whole tree, with all features.
const PACKAGES_MAX: usize = 300;

/// Each crate of the workspace, and the own crates that it may use.
const ARROWS: &[(&str, &[&str])] = &[
    // Pure.
    ("marram-wire", &[]),
    ("marram-session", &["marram-wire"]),
    ("marram-shard", &["marram-session", "marram-wire"]),
    (
        "marram-sim",
        &[
            "marram-chain-algo",
            "marram-hall-algo",
            "marram-sandbox",
            "marram-session",
            "marram-shard",
            "marram-wire",
        ],
    ),
    // Around the pure machines.
    ("marram-sandbox", &["marram-session", "marram-wire"]),
    ("marram-transport", &["marram-wire"]),
    ("marram-agent", &["marram-session", "marram-transport", "marram-wire"]),
    ("marram-http", &["marram-wire", "marram-transport"]),
    (
        "marram-node",
        &[
            "marram-agent",
            "marram-http",
            "marram-sandbox",
            "marram-session",
            "marram-shard",
            "marram-transport",
            "marram-wire",
        ],
    ),
    (
        "marram-config",
        &[
            "marram-agent",
            "marram-http",
            "marram-node",
            "marram-preload",
            "marram-sandbox",
            "marram-session",
            "marram-shard",
            "marram-transport",
            "marram-wire",
        ],
    ),
    (
        "marram-admin",
        &[
            "marram-agent",
            "marram-config",
            "marram-http",
            "marram-node",
            "marram-sandbox",
            "marram-session",
            "marram-shard",
            "marram-transport",
            "marram-wire",
        ],
    ),
    ("marram-host", &["marram-agent", "marram-session", "marram-transport", "marram-wire"]),
    ("marram-preload", &[]),
    // Programs, and what only tests, benchmarks and `marram dev` use. Dependencies of tests are not listed.
    ("marram-cluster", &["marram-admin", "marram-config"]),
    ("marram-testbed", &["marram-cluster"]),
    (
        "marram-bench",
        &[
            "marram-admin",
            "marram-cluster",
            "marram-node",
            "marram-sandbox",
            "marram-scrabble",
            "marram-session",
            "marram-testbed",
            "marram-transport",
            "marram-wire",
        ],
    ),
    (
        "marram",
        &[
            "marram-admin",
            "marram-agent",
            "marram-cluster",
            "marram-codec",
            "marram-config",
            "marram-host",
            "marram-node",
            "marram-preload",
            "marram-sandbox",
            "marram-scrabble",
            "marram-session",
            "marram-shard",
            "marram-transport",
            "marram-wire",
        ],
    ),
    ("xtask", &[]),
];

/// Only this crate may name the engine.
const SANDBOX: &str = "marram-sandbox";

/// Prefixes of the engine's crates.
const ENGINE: [&str; 2] = ["wasmtime", "cranelift"];

/// Dependencies that are not allowed.
///
/// Uses by tests alone do not count.
pub(super) fn check(metadata: &Metadata) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in metadata.members() {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name) else {
            wrong.push(format!(
                "crate {}: list in xtask/src/tidy/graph.rs which crates of the workspace it may use",
                package.name
            ));
            continue;
        };
        for used in &package.uses {
            if metadata.is_ours(used) && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{} must not use {used}", package.name));
            }
            if package.name != SANDBOX && ENGINE.iter().any(|engine| used.starts_with(engine)) {
                wrong.push(format!("{} must not use {used}: only {SANDBOX} knows the engine", package.name));
            }
        }
    }
    wrong
}

/// Whether the lockfile is within its budget.
pub(super) fn check_lockfile(text: &str) -> Option<String> {
    let count = text.lines().filter(|line| *line == "[[package]]").count();
    (count > PACKAGES_MAX).then(|| format!("Cargo.lock has {count} packages; {PACKAGES_MAX} are the maximum"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    fn package(name: &str, uses: &[&str]) -> Package {
        let uses = uses.iter().map(|used| (*used).to_owned()).collect();
        Package { name: name.to_owned(), ours: true, member: true, uses, ..Package::default() }
    }

    #[test]
    fn forbidden_arrows_are_found() {
        let cases: [(&str, &[&str], usize); 7] = [
            ("marram-wire", &["bytes"], 0),
            ("marram-session", &["marram-wire"], 0),
            ("marram-session", &["marram-sandbox"], 1),
            ("marram-shard", &["marram-sandbox", "marram-session"], 1),
            ("marram", &["wasmtime"], 1),
            ("marram-sandbox", &["wasmtime", "wasmtime-wizer"], 0),
            ("marram-util", &[], 1),
        ];
        for (name, uses, expected) in cases {
            let others = ["marram-wire", "marram-sandbox"].map(|name| package(name, &[]));
            let packages = std::iter::once(package(name, uses)).chain(others).collect();
            let wrong = check(&Metadata { packages });
            assert_eq!(wrong.len(), expected, "{name}: {wrong:?}");
        }
    }

    #[test]
    fn the_lockfile_has_a_budget() {
        let lockfile = |count: usize| "[[package]]\nname = \"a\"\n".repeat(count);
        assert_eq!(check_lockfile(&lockfile(PACKAGES_MAX)), None);
        assert!(check_lockfile(&lockfile(PACKAGES_MAX + 1)).is_some());
    }
}
