//! Fuzzes every decoder with libFuzzer on the stable compiler. Coverage comes from flags that stable accepts, and only
//! our own crates are instrumented: this program wraps the compiler, to add the flags.
//!
//! ```text
//! fuzz/targets/<name>.rs   a decoder each          fuzz/seeds/NAME/   committed inputs
//! target/fuzz/corpus/NAME/     inputs that reached new code, kept for the next run
//! target/fuzz/artifacts/NAME/  inputs that failed
//! ```
//! `cargo fuzz` needs a nightly compiler for `-Zsanitizer`. Coverage alone does not: the LLVM pass
//! can be named on stable, and libFuzzer is a library like any other. Without the address
//! sanitizer, memory errors are not found; the decoders have no unsafe code.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    options::Options,
    project, setup,
    shell::{run, say},
    wrapper,
};

/// Default seconds per target.
pub(crate) const SECONDS_DEFAULT: u64 = 10;

/// Sources of the targets that link the Wasm engine.
const ENGINE_TARGETS: &str = "fuzz/targets/engine";

/// For our own crates: the coverage that libFuzzer needs. Dependencies are not instrumented: their code would draw the fuzzer away
/// from ours.
const COVERAGE: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "--cfg=fuzzing",
    "-Dwarnings",
];

/// Longest input: longer inputs find nothing more, and are slower.
const INPUT_BYTES_MAX: usize = 8_192;

/// An input that takes this long counts as a failure.
const INPUT_SECONDS_MAX: u64 = 5;

/// Of a target, in MiB: an input that makes a decoder allocate more is a failure.
const MEMORY_MEBIBYTES_MAX: u64 = 2_048;

/// `cargo xtask fuzz [TARGET] [--seconds N]`.
pub(crate) fn command(arguments: &[String]) -> Result<()> {
    let mut options = Options::new(arguments);
    let seconds = options.number("--seconds")?.unwrap_or(SECONDS_DEFAULT);
    let target = options.word();
    options.finish()?;
    match target {
        Some(target) => run_some(vec![target], seconds),
        None => run_all(seconds),
    }
}

/// Runs every target, as many at a time as there are cores.
pub(crate) fn run_all(seconds: u64) -> Result<()> {
    run_some(targets(|_| true)?, seconds)
}

/// The same without the targets that link the Wasm engine, which takes minutes to build with their flags.
pub(crate) fn run_light(seconds: u64) -> Result<()> {
    run_some(targets(|path| !path.starts_with(ENGINE_TARGETS))?, seconds)
}

/// In batches of as many as there are cores, so that each has one for its time.
fn run_some(targets: Vec<String>, seconds: u64) -> Result<()> {
    build(&targets)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut failed = Vec::new();
    for batch in targets.chunks(cores) {
        let running =
            batch.iter().map(|name| Ok((name, start(name, seconds)?))).collect::<Result<Vec<_>>>()?;
        for (name, mut child) in running {
            let status = child.wait().with_context(|| format!("waiting for {name}"))?;
            let runs = runs(name).unwrap_or_else(|| "?".to_owned());
            say(format!(
                "fuzz {name}: {runs} inputs in {seconds} s, {}",
                if status.success() { "ok" } else { "FAILED" }
            ));
            if !status.success() {
                failed.push(format!("{name}: see {}", log(name).display()));
            }
        }
    }
    if !failed.is_empty() {
        bail!("the fuzzer found {} inputs:\n  {}", failed.len(), failed.join("\n  "));
    }
    Ok(())
}

/// The engine's targets are behind a feature, since they make every build minutes longer.
fn build(targets: &[String]) -> Result<()> {
    setup::ensure(setup::FUZZ)?;
    let mut command = project::cargo("build");
    // Not `--locked`: this lockfile follows the crates of the main workspace, whose own is.
    command.args(["--release", "--manifest-path", project::FUZZ_MANIFEST]);
    command.arg("--target-dir").arg(folder().join("build"));
    let engine = self::targets(|path| path.starts_with(ENGINE_TARGETS))?;
    if targets.iter().any(|name| engine.contains(name)) {
        command.args(["--features", "engine"]);
    }
    targets.iter().for_each(|name| _ = command.args(["--bin", name]));
    wrapper::add(&mut command, project::root(), &COVERAGE)?;
    run(&mut command)
}

/// Fuzzes one target in the background; its output goes to a file.
///
/// It reads the committed seeds and writes only below `target/`.
///
/// # Errors
/// If the target has no committed inputs: a fuzzer that starts from nothing finds little in
/// seconds.
fn start(name: &str, seconds: u64) -> Result<Child> {
    let (found, artifacts) = (folder().join("corpus").join(name), folder().join("artifacts").join(name));
    for folder in [&found, &artifacts] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let seeds = project::root().join("fuzz/seeds").join(name);
    if !seeds.is_dir() {
        bail!("commit a few inputs in {}, so that no run starts from nothing", seeds.display());
    }
    let log = fs::File::create(log(name)).context("cannot write the fuzzer's log")?;
    let mut command = Command::new(folder().join("build/release").join(name));
    command.args([&found, &seeds]);
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.args([
        format!("-max_total_time={seconds}"),
        format!("-max_len={INPUT_BYTES_MAX}"),
        format!("-timeout={INPUT_SECONDS_MAX}"),
        format!("-rss_limit_mb={MEMORY_MEBIBYTES_MAX}"),
        "-print_final_stats=1".to_owned(),
    ]);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("cannot start the fuzz target {name}"))
}

/// The number of inputs that a finished target reports. `None` if it crashed before its statistics.
fn runs(name: &str) -> Option<String> {
    let text = fs::read(log(name)).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines()
        .find_map(|line| Some(line.strip_prefix("stat::number_of_executed_units:")?.trim().to_owned()))
}

/// The targets that are chosen by their file: each has one below `fuzz/targets`.
fn targets(keep: impl Fn(&Path) -> bool) -> Result<Vec<String>> {
    let sources = project::files(|path| path.starts_with("fuzz/targets") && keep(path))?;
    let names = sources.iter().map(|path| path.file_stem()?.to_str().map(str::to_owned));
    names.collect::<Option<_>>().context("a fuzz target's name is not UTF-8")
}

fn folder() -> PathBuf {
    project::target().join("fuzz")
}

fn log(name: &str) -> PathBuf {
    folder().join(format!("{name}.log"))
}
