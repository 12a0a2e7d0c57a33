//! `cargo xtask soak`: longer runs than CI has time for. Hours, all of them together. The results are in `docs/soak.md`.
//!
//! CI has minutes and looks for what a change broke. A soak has hours and looks for what is rare:
//! histories that were never simulated, faults by the hundred, a machine that is busy with
//! something else. It is run before a release, and its results are part of the repository.

mod results;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail};

use results::{Run, Subject};

use crate::{
    cells, fuzz, programs, project, setup,
    shell::{run, say, step},
    suite::CHECK_INVARIANTS,
};

/// One of them.
#[derive(Debug)]
struct Soak {
    name: &'static str,
    /// What it runs, and what CI runs of the same.
    amount: &'static str,
    in_ci: &'static str,
    run: fn() -> Result<()>,
}

impl Soak {
    const fn subject(&self) -> Subject<'static> {
        Subject { name: self.name, amount: self.amount, in_ci: self.in_ci }
    }
}

const SOAKS: [Soak; 13] = [
    Soak {
        name: "sim",
        amount: "2,000,000 histories that were never simulated before",
        in_ci: "10,000, the same each time",
        run: sim,
    },
    Soak {
        name: "halls",
        amount: "100,000 histories of shared cells that were never simulated before",
        in_ci: "some 600 of those 10,000",
        run: halls,
    },
    Soak {
        name: "mutants",
        amount: "every named mutation of the protocol, slow ones too",
        in_ci: "each with the seed that caught it before; others only if that one misses it",
        run: mutants,
    },
    Soak {
        name: "faults",
        amount: "200 kills and stops of processes, and 200 over cells with state",
        in_ci: "40 and 40",
        run: faults,
    },
    Soak {
        name: "many",
        amount: "10 GB through one session, and 7,000 sessions that lose one edge at once",
        in_ci: "1 GB, and 1,000 sessions",
        run: many,
    },
    Soak {
        name: "busy",
        amount: "an hour of 2,000 busy sessions of all services, with kills and stops every few seconds and full budgets",
        in_ci: "8 seconds of 45",
        run: busy,
    },
    Soak {
        name: "moves",
        amount: "10,000 moves of 500 live sessions of all kinds, with the death of an edge in every fiftieth",
        in_ci: "100 of 28",
        run: moves,
    },
    Soak {
        name: "crowd",
        amount: "1,000 clients in one hall, and 200 kills and stops of its edge and backup, with moves in between",
        in_ci: "40 clients, and 10",
        run: crowd,
    },
    Soak {
        name: "gates",
        amount: "200 kills of the edge or the backup of sessions between curl and nginx, at gates of other edges",
        in_ci: "20",
        run: gates,
    },
    Soak {
        name: "table",
        amount: "the table of docs/faults.md, each cell three times",
        in_ci: "nothing",
        run: table,
    },
    Soak {
        name: "standby",
        amount: "the tests of takeovers, 20 times, a busy loop on every core",
        in_ci: "once, without a busy loop",
        run: standby,
    },
    Soak {
        name: "suite",
        amount: "all tests of the workspace, five times, a busy loop on one core",
        in_ci: "once, without a busy loop",
        run: suite,
    },
    Soak {
        name: "fuzz",
        amount: "every fuzz target for six minutes: an hour on two cores",
        in_ci: "2 s for each target that does not link the engine",
        run: || fuzz::run_all(360),
    },
];

/// The tests of random faults, of many and of busy sessions, of moves, of many in one cell, of gates, and of taking over: modules of `crates/marram/tests/e2e`. A
/// filter that matches nothing passes without running a test: a module that is renamed must be
/// renamed here.
const REAL_FAULTS: &str = "recovery::real_faults::";
const MANY: &str = "recovery::many::";
const BUSY: &str = "recovery::busy::";
const MOVES: &str = "moves::live::";
const CROWD: &str = "epochs::crowd_of_a_hall::";
const GATES: &str = "epochs::gates::";
const STANDBY: &str = "keepers::standby::";

/// `cargo xtask soak [NAME ...]`: the named ones, or all. Stops at the first that fails.
pub(crate) fn command(names: &[String]) -> Result<()> {
    let chosen = choose(names)?;
    setup::for_tests()?;
    cells::build()?;
    for Soak { name, amount, in_ci, run } in chosen {
        let started = Instant::now();
        let result = step(&format!("soak {name}: {amount}"), run);
        let subject = Subject { name, amount, in_ci };
        let run = Run { subject, time: started.elapsed(), passed: result.is_ok() };
        results::record(&run, &SOAKS.map(|soak| soak.subject()))?;
        result?;
    }
    Ok(())
}

/// In the order of the list, whatever the order of the names.
fn choose(names: &[String]) -> Result<Vec<Soak>> {
    if let Some(name) = names.iter().find(|name| SOAKS.iter().all(|soak| *name != soak.name)) {
        let known: Vec<String> =
            SOAKS.iter().map(|soak| format!("  {:<10}{}", soak.name, soak.amount)).collect();
        bail!("there is no soak `{name}`; there are:\n{}", known.join("\n"));
    }
    let wanted = |soak: &Soak| names.is_empty() || names.iter().any(|it| it == soak.name);
    Ok(SOAKS.into_iter().filter(wanted).collect())
}

fn sim() -> Result<()> {
    programs::sim(&new_seeds("2000000")?)
}

/// The same, of the one kind of history that most others are not.
fn halls() -> Result<()> {
    let mut arguments = new_seeds("100000")?;
    arguments.push("--halls".into());
    programs::sim(&arguments)
}

/// Other seeds each time; the simulator prints them.
fn new_seeds(count: &str) -> Result<Vec<String>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let from = (now.as_secs() * 1_000_000).to_string();
    say(format!("from seed {from} on"));
    Ok(vec!["--from".into(), from, "--count".into(), count.into()])
}

/// Searches again for seeds that catch the list of CI, and those that take too long there, and puts them on record for CI.
fn mutants() -> Result<()> {
    programs::sim(&["mutants".into(), "--slow".into(), "--write".into()])
}

/// Real processes with `kill -9` and `SIGSTOP`, without a state and with one.
fn faults() -> Result<()> {
    let mut tests = e2e(REAL_FAULTS);
    run(tests.env("MARRAM_FAULTS", "200").env("MARRAM_FAULTS_WITH_STATE", "200"))
}

/// More than any window or buffer holds.
fn many() -> Result<()> {
    let mut tests = e2e(MANY);
    run(tests.env("MARRAM_MEGABYTES", "10000").env("MARRAM_SESSIONS", "7000"))
}

/// With the optimised program, as [`busy`].
fn moves() -> Result<()> {
    let mut tests = optimised(MOVES)?;
    let amounts = [("MARRAM_MOVES", "10000"), ("MARRAM_MOVE_SESSIONS", "500")];
    run(tests.envs(amounts).args(["--", "--nocapture"]))
}

/// With the optimised program: the other one sends a thousand clients each record too slowly.
fn crowd() -> Result<()> {
    let mut tests = optimised(CROWD)?;
    let amounts = [("MARRAM_CROWD_GUESTS", "1000"), ("MARRAM_CROWD_ROUNDS", "200")];
    run(tests.envs(amounts).args(["--", "--nocapture"]))
}

/// Each byte that curl gets is compared.
fn gates() -> Result<()> {
    run(e2e(GATES).env("MARRAM_EPOCH_KILLS", "200"))
}

/// Budgets of 128 MiB are full. With half of that, the checkpoints of the sessions that run take all of it, and new ones wait for
/// minutes.
///
/// With the optimised program: the sessions leave the other one no time, and recoveries that take seconds do not end before the
/// next edge dies.
fn busy() -> Result<()> {
    let mut tests = optimised(BUSY)?;
    let amounts =
        [("MARRAM_BUSY_SESSIONS", "2000"), ("MARRAM_BUSY_SECONDS", "3600"), ("MARRAM_BUSY_MIB", "128")];
    run(tests.envs(amounts).args(["--", "--nocapture"]))
}

/// Writes the table of docs/faults.md.
fn table() -> Result<()> {
    programs::bench(&["faults".into(), "--write".into()])
}

/// Takeovers are a matter of milliseconds: on busy cores they meet other orders of events.
fn standby() -> Result<()> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    repeat(20, cores, || run(&mut e2e(STANDBY)))
}

/// One busy core is enough to expose a test that relies on a time.
fn suite() -> Result<()> {
    repeat(5, 1, || run(tests(&["--no-fail-fast"]).env(CHECK_INVARIANTS, "1")))
}

/// One module of the tests with real processes.
fn e2e(module: &str) -> std::process::Command {
    tests(&["--test", "e2e", module])
}

/// As [`e2e`], with processes of the optimised program.
fn optimised(module: &str) -> Result<std::process::Command> {
    run(project::cargo("build").args(["--release", "--locked", "--package", "marram"]))?;
    let mut tests = e2e(module);
    tests.env("MARRAM_PROGRAM", project::target().join("release/marram"));
    Ok(tests)
}

/// The tests as `suite` runs them, except that a flaky one fails. Always of the whole workspace: a package alone has other
/// features, and the engine would be compiled again.
fn tests(what: &[&str]) -> std::process::Command {
    let mut command = project::cargo("test");
    command.args(project::WORKSPACE_FLAGS).args(what).env(project::TEST_THREADS, project::test_threads());
    command
}

/// Repeats an action while `loops` cores are kept busy.
fn repeat(times: u32, loops: usize, action: impl Fn() -> Result<()>) -> Result<()> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let all = (1..=times).try_for_each(|time| step(&format!("{time} of {times}"), &action));
        over.store(true, Ordering::Relaxed);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::{BUSY, CROWD, GATES, MANY, MOVES, REAL_FAULTS, SOAKS, STANDBY, choose, results};
    use crate::project;

    #[test]
    fn the_page_has_a_row_for_each() {
        results::check(&SOAKS.map(|soak| soak.subject()));
    }

    #[test]
    fn the_modules_that_are_run_alone_are_there() {
        // Cargo succeeds if a filter matches no test.
        for module in [REAL_FAULTS, MANY, STANDBY, BUSY, MOVES, CROWD, GATES] {
            let file = module.strip_suffix("::").unwrap().replace("::", "/") + ".rs";
            let text = project::read(format!("crates/marram/tests/e2e/{file}").as_ref()).unwrap();
            assert!(text.contains("#[test]"), "{file}");
        }
    }

    #[test]
    fn some_all_or_a_list_of_what_there_is() {
        let names = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(choose(&[]).unwrap().len(), SOAKS.len());
        let chosen = choose(&names(&["fuzz", "sim"])).unwrap();
        assert_eq!(chosen.iter().map(|soak| soak.name).collect::<Vec<_>>(), ["sim", "fuzz"]);
        let refused = choose(&names(&["moon"])).unwrap_err().to_string();
        assert!(refused.contains("`moon`") && refused.contains("standby"), "{refused}");
    }
}
