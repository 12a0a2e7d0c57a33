//! A recorded session replays from every checkpoint to the same state in other processes: their own engines, slots and
//! pauses, on one core or on all, with images read from the disk.

use crate::support::{self, CELL, Dir, guest, message, mixer, start_in};
use marram_sandbox::{Cells, CellsConfig, Chain, Decoded, Images, Progress, Quotas, Reset, Tracking};
use marram_session::cell::{CellId, CheckpointBase, Run};
use marram_wire::id::ImageHash;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Folder in which a child finds the session, and what it must do.
const FOLDER: &str = "MARRAM_TEST_REPLAY_FOLDER";
const VARIANT: &str = "MARRAM_TEST_REPLAY_VARIANT";
const STEPS: usize = 12;
/// Variants that run on all cores; as many again run on one core.
const ALL_CORES: usize = 6;

fn input(n: usize) -> Vec<u8> {
    [&b"gfzx"[n % 4..=n % 4], format!(" message {n}").as_bytes()].concat()
}

/// One step of the session; between its slices another cell spins `pauses` times.
fn step(cells: &mut Cells, n: usize, pauses: usize) {
    let spinner = CellId(99);
    let mut progress = cells.run(Run {
        cell: CELL,
        input: message(&input(n)),
        now_ns: 1000 + i64::try_from(n).unwrap(),
        logged: None,
    });
    while matches!(progress, Progress::Pending) {
        for _ in 0..pauses {
            assert!(matches!(cells.poll(spinner), Progress::Pending));
        }
        progress = cells.poll(CELL);
    }
}

/// Binds this process, its compiler and its ticker to one core.
fn on_one_core() {
    let mut allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..rustix::thread::CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap();
    allowed.clear();
    allowed.set(first);
    rustix::thread::sched_setaffinity(None, &allowed).unwrap();
}

fn hex(hash: Option<[u8; 32]>) -> String {
    hash.unwrap().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn every_process_computes_the_same() {
    let dir = Dir::new();
    let session = Images::open(&dir.0).unwrap().deploy(&mixer(), &[], &Quotas::default()).unwrap().hash;
    replay_everywhere(&dir, session, 1);
}

#[test]
fn every_process_computes_the_same_with_chains() {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let pass = guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (call $send (i32.sub (i32.const 1) (local.get $port)) (local.get $ptr) (local.get $len)))"#,
    );
    let stage =
        |module: &[u8]| ("stage".to_owned(), images.deploy(module, &[], &Quotas::default()).unwrap().hash);
    let chain = Chain::new(true, vec![stage(&pass), stage(&mixer())]).unwrap();
    // 0, 5 and 10: both ways to track pages and to reset slots, each number of pauses, all cores and one.
    replay_everywhere(&dir, images.deploy_chain(&chain).unwrap(), 5);
}

/// In a process for each `every`th variant.
fn replay_everywhere(dir: &Dir, session: ImageHash, every: usize) {
    let images = Images::open(&dir.0).unwrap();
    let spin = guest(r#"(func (export "marram_recv") (param i32 i32 i32) (loop $l (br $l)))"#);
    let spinner = Quotas { handler_time_ns: u64::MAX, ..Quotas::default() };
    let spinner = images.deploy(&spin, &[], &spinner).unwrap().hash;
    std::fs::write(dir.0.join("images"), [session.0, spinner.0].concat()).unwrap();

    let mut cells = support::cells();
    start_in(&mut cells, CELL, &images.load(session).unwrap());
    for n in 0..STEPS {
        let base = if n == 0 { CheckpointBase::Image } else { CheckpointBase::Previous };
        std::fs::write(dir.0.join(format!("checkpoint{n}")), cells.snapshot(CELL, base).unwrap().encode())
            .unwrap();
        step(&mut cells, n, 0);
    }
    let expected = hex(cells.state_hash(CELL));
    for variant in (0..2 * ALL_CORES).step_by(every) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::replay_in_a_child", "--nocapture"])
            .env(FOLDER, &dir.0)
            .env(VARIANT, variant.to_string())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(text.matches(&expected).count(), STEPS, "variant {variant}: not {expected} but {text}");
    }
}

/// The work of a child process; run directly, it has no session to replay.
#[test]
fn replay_in_a_child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let variant: usize = std::env::var(VARIANT).unwrap().parse().unwrap();
    let images = Images::open(folder).unwrap();
    let hashes = std::fs::read(folder.join("images")).unwrap();
    let load = |at: usize| images.load(ImageHash(hashes[at..at + 32].try_into().unwrap())).unwrap();
    let (session, spinner) = (load(0), load(32));
    assert_eq!(session.rebuilt(), None);
    if variant >= ALL_CORES {
        on_one_core();
    }
    for from in 0..STEPS {
        let config = CellsConfig {
            slots: 4 + u32::try_from(variant).unwrap(),
            tracking: if variant.is_multiple_of(2) { Tracking::Auto } else { Tracking::Compare },
            reset: if variant % ALL_CORES < 3 { Reset::Rewrite } else { Reset::Discard },
            ..CellsConfig::default()
        };
        let mut cells = Cells::new(config).unwrap();
        start_in(&mut cells, CellId(99), &spinner);
        let spin = Run { cell: CellId(99), input: message(b""), now_ns: 0, logged: None };
        assert!(matches!(cells.run(spin), Progress::Pending));
        let chain: Vec<_> =
            (0..=from).map(|n| std::fs::read(folder.join(format!("checkpoint{n}"))).unwrap()).collect();
        cells.restore(CELL, &session, &Decoded::decode(&chain).unwrap()).unwrap();
        for n in from..STEPS {
            step(&mut cells, n, variant % 3);
        }
        println!("{}", hex(cells.state_hash(CELL)));
    }
}
