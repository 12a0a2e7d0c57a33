//! What must hold before anything lands, cheapest first. Ends in the same tests that the README names.

use std::process::Command;

use anyhow::Result;

use crate::{
    cells, deny, project, purity, setup,
    shell::{run, step},
    suite, tidy,
};

/// Everything, stopping at the first step that fails.
pub(crate) fn all() -> Result<()> {
    step("set-up for building", || {
        setup::ensure(setup::BUILD)?;
        setup::ensure_components()
    })?;
    step("format", format)?;
    step("tidy", tidy::check)?;
    step("deny", deny::check)?;
    step("cells", cells::build)?;
    step("purity", purity::check)?;
    step("clippy", clippy)?;
    step("docs", docs)?;
    step("test", || suite::test(&[]))
}

/// Every workspace, as rustfmt.toml says.
fn format() -> Result<()> {
    let check = |manifest| run(project::cargo("fmt").args(["--manifest-path", manifest, "--all", "--check"]));
    project::manifests().into_iter().try_for_each(check)
}

fn clippy() -> Result<()> {
    const DENY: [&str; 3] = ["--", "-D", "warnings"];
    let flags = ["--release", "--locked", "--workspace", "--all-targets"];
    run(project::cargo("clippy").args(flags).args(DENY))?;
    let side = |manifest| {
        run(project::side_cargo("clippy", manifest)
            .args(["--release", "--workspace", "--all-targets"])
            .args(DENY))
    };
    project::SIDE_MANIFESTS.into_iter().try_for_each(side)
}

fn docs() -> Result<()> {
    let deny = |command: &mut Command| run(command.env("RUSTDOCFLAGS", "-D warnings"));
    deny(project::cargo("doc").args(["--release", "--locked", "--workspace", "--no-deps"]))?;
    let side =
        |manifest| deny(project::side_cargo("doc", manifest).args(["--release", "--workspace", "--no-deps"]));
    project::SIDE_MANIFESTS.into_iter().try_for_each(side)
}
