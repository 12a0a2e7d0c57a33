//! Every test there is, cheapest first: what `cargo xtask test` runs, and what CI ends in.

use std::process::Command;

use anyhow::Result;

use crate::{
    cells, fuzz,
    options::Options,
    programs, project, setup,
    shell::{run, step},
};

/// `cargo xtask test [--fuzz-seconds N]`: 0 leaves the fuzz targets out.
pub(crate) fn test(arguments: &[String]) -> Result<()> {
    let mut options = Options::new(arguments);
    let fuzz_seconds = options.number("--fuzz-seconds")?.unwrap_or(fuzz::SECONDS_DEFAULT);
    options.finish()?;
    step("set-up", || {
        setup::ensure(setup::BUILD)?;
        setup::ensure(setup::TEST)?;
        setup::wish(setup::DEMO);
        setup::wish(setup::COMPARE);
        setup::wish(setup::CLIENTS);
        setup::wish(setup::BROWSER);
        setup::wish(setup::C_CELLS);
        Ok(())
    })?;
    step("cells", cells::build)?;
    for manifest in project::SIDE_MANIFESTS {
        step(&format!("tests of {manifest}"), || run(&mut side_tests(manifest)))?;
    }
    step("tests of the workspace", || {
        // All of them, also behind one that fails: a run takes long, and says what it can.
        let flags =
            ["--release", "--locked", "--workspace", "--no-fail-fast", "--features", "marram-sim/wasm"];
        run(project::cargo("test").args(flags))
    })?;
    step("simulation", || programs::sim(&[]))?;
    step("named mutations of the protocol", || programs::sim(&["mutants".into()]))?;
    if fuzz_seconds > 0 {
        step("fuzz", || fuzz::run_all(fuzz_seconds))?;
    }
    Ok(())
}

/// Natively, against the SDK's double; without the link-time optimisation that only the modules need.
fn side_tests(manifest: &str) -> Command {
    let mut command = project::side_cargo("test", manifest);
    command.args(["--release", "--workspace"]).env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command
}
