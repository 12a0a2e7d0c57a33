//! Shared by the tests: guests in the text format, a directory for images, and a running cell.
#![allow(
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test uses some of it, and no other code"
)]

pub mod files;
pub mod wasi;

use bytes::Bytes;
use marram_sandbox::{
    Cells, CellsConfig, Chain, DeployError, Image, ImageFile, Images, KeyId, Keyring, Progress, Quotas,
    Signer,
};
use marram_session::cell::{CellId, CellInput, CellOutput, CellStop, PortKind, Ran, Run, RunOutcome, Seed};
use marram_wire::id::Port;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory that is deleted when the test ends.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("marram-sandbox-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The imports of the ABI, a page of memory, and a buffer at 1 MiB that every message is put into.
const PRELUDE: &str = r#"
  (import "marram_v1" "send" (func $send (param i32 i32 i32)))
  (import "marram_v1" "close" (func $close (param i32)))
  (import "marram_v1" "now" (func $now (result i64)))
  (import "marram_v1" "random" (func $random (param i32 i32)))
  (import "marram_v1" "timer" (func $timer (param i64 i64)))
  (import "marram_v1" "timer_cancel" (func $timer_cancel (param i64)))
  (import "marram_v1" "spawn" (func $spawn (param i64)))
  (import "marram_v1" "lock" (func $lock (param i64 i64)))
  (import "marram_v1" "unlock" (func $unlock (param i64)))
  (import "marram_v1" "print" (func $print (param i32 i32 i32)))
  (memory (export "memory") 40)
  (func (export "marram_alloc") (param i32) (result i32) (i32.const 0x100000))
"#;

/// What a guest that pauses its ports imports in addition. It is separate since an import changes the module, and so the image's
/// hash, which recorded histories contain.
const PAUSES: &str = r#"
  (import "marram_v1" "pause" (func $pause (param i32)))
  (import "marram_v1" "resume" (func $resume (param i32)))
"#;

/// A module that begins with the prelude.
pub fn guest(body: &str) -> Vec<u8> {
    let pauses = if body.contains("(call $pause") || body.contains("(call $resume") { PAUSES } else { "" };
    wat::parse_str(format!("(module {pauses} {PRELUDE} {body})")).expect("the test's guest is valid text")
}

/// A module of this text alone.
pub fn module(text: &str) -> Vec<u8> {
    wat::parse_str(text).expect("the test's module is valid text")
}

/// A guest that answers each message to where it came from.
pub fn echo() -> Vec<u8> {
    guest(
        r#"(func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
             (call $send (local.get $port) (local.get $ptr) (local.get $len)))"#,
    )
}

/// Deploys with default quotas, or returns why not.
pub fn try_deploy(module: &[u8], quotas: &Quotas) -> Result<Arc<Image>, DeployError> {
    let dir = Dir::new();
    let images = Images::open(&dir.0)?.with_initialise_ms_max(200);
    let info = images.deploy(module, &[], quotas)?;
    Ok(images.load(info.hash).expect("what was deployed can be loaded"))
}

pub fn deploy(module: &[u8]) -> Arc<Image> {
    deploy_with(module, &Quotas::default(), &[])
}

pub fn deploy_with(module: &[u8], quotas: &Quotas, files: &[ImageFile]) -> Arc<Image> {
    let dir = Dir::new();
    let images = Images::open(&dir.0).expect("the temporary directory can be used");
    let info = images.deploy(module, files, quotas).unwrap_or_else(|error| panic!("{error}"));
    images.load(info.hash).expect("what was deployed can be loaded")
}

/// A fake key: its signature is the message's digest, so that tests see what was signed.
pub struct Stamp(pub u8);

impl Signer for Stamp {
    fn sign(&self, message: &[u8]) -> Vec<u8> {
        [&[self.0][..], &message[98..]].concat()
    }
}

/// The names of two keys.
pub const KEYS: [KeyId; 2] = [KeyId([1; 32]), KeyId([2; 32])];

/// Deploys a guest that may sign with both keys.
pub fn deploy_signing(module: &[u8]) -> Arc<Image> {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let info = images.deploy_with_keys(module, &[], &KEYS, &Quotas::default());
    images.load(info.unwrap_or_else(|error| panic!("{error}")).hash).unwrap()
}

/// As [`cells`], with both keys.
pub fn signing_cells() -> Cells {
    let mut keyring = Keyring::default();
    (1..).zip(KEYS).for_each(|(number, key)| keyring.add(key, Arc::new(Stamp(number))));
    cells().with_keys(keyring)
}

/// What a TLS 1.3 server signs, with a digest of `digest` bytes.
pub fn certificate_verify(digest: usize) -> Vec<u8> {
    let mut message = vec![b' '; 64];
    message.extend_from_slice(b"TLS 1.3, server CertificateVerify\0");
    message.extend((0..digest).map(|n| n.to_le_bytes()[0]));
    message
}

/// Deploys a chain for sessions with a server, its stages named by their letters.
pub fn deploy_chain(stages: &[(&str, Vec<u8>)]) -> Arc<Image> {
    chain_with(true, &Quotas::default(), stages)
}

pub fn chain_with(server: bool, quotas: &Quotas, stages: &[(&str, Vec<u8>)]) -> Arc<Image> {
    let dir = Dir::new();
    let images = Images::open(&dir.0).unwrap();
    let stages = stages
        .iter()
        .map(|(name, module)| ((*name).to_owned(), images.deploy(module, &[], quotas).unwrap().hash))
        .collect();
    let hash = images.deploy_chain(&Chain::new(server, stages).unwrap()).unwrap();
    images.load(hash).unwrap()
}

pub fn cells() -> Cells {
    Cells::new(CellsConfig { slots: 16, ..CellsConfig::default() }).expect("sixteen slots can be had")
}

pub const CELL: CellId = CellId(1);
pub const SEED: Seed = Seed([42; 32]);

/// A started cell with both ports open.
pub fn start(image: &Arc<Image>) -> Cells {
    let mut cells = cells();
    start_in(&mut cells, CELL, image);
    cells
}

pub fn start_in(cells: &mut Cells, cell: CellId, image: &Arc<Image>) {
    cells.start(cell, image, SEED).unwrap_or_else(|error| panic!("{error}"));
    for (port, kind) in [(Port::CLIENT, PortKind::Client), (Port::SERVER, PortKind::Server)] {
        let ran = run(cells, cell, CellInput::Open { port, kind, peer: None }, 0);
        assert_eq!(ran.outcome, RunOutcome::Idle);
    }
    if SEASONED.get() {
        season(cells, cell);
    }
}

/// More handlers than a cell runs before a driver delivers its messages.
const SEASON: usize = 40;

thread_local! {
    static SEASONED: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Tests new cells, and then long-lived ones: in the second run the cells of [`start_in`] have a driver.
pub fn twice(test: impl Fn()) {
    for seasoned in [false, true] {
        SEASONED.set(seasoned);
        test();
    }
    SEASONED.set(false);
}

/// Makes a cell long-lived without changing its stages: reports a port that they never had as gone, again and again.
pub fn season(cells: &mut Cells, cell: CellId) {
    for _ in 0..SEASON {
        let ran = run(cells, cell, CellInput::Gone { port: Port(60_000) }, 0);
        assert_eq!((ran.outcome, ran.outputs.len()), (RunOutcome::Idle, 0));
    }
}

/// Runs a handler to its end, however many slices that takes.
pub fn run(cells: &mut Cells, cell: CellId, input: CellInput, now_ns: i64) -> Ran {
    let mut progress = cells.run(Run { cell, input, now_ns, logged: None });
    loop {
        match progress {
            Progress::Done(ran) => {
                if let RunOutcome::Stopped(CellStop::Kill(reason)) = &ran.outcome {
                    assert!(!reason.contains("bug"), "{reason}");
                }
                return ran;
            }
            Progress::Pending => progress = cells.poll(cell),
        }
    }
}

pub fn message(payload: &[u8]) -> CellInput {
    CellInput::Message { port: Port::CLIENT, payload: Bytes::copy_from_slice(payload) }
}

/// Sends one message from the client and returns all messages that the cell sent.
pub fn ask(cells: &mut Cells, payload: &[u8]) -> Vec<Vec<u8>> {
    ask_at(cells, CELL, payload, 0)
}

pub fn ask_at(cells: &mut Cells, cell: CellId, payload: &[u8], now_ns: i64) -> Vec<Vec<u8>> {
    let ran = run(cells, cell, message(payload), now_ns);
    assert_eq!(ran.outcome, RunOutcome::Idle);
    payloads(&ran)
}

pub fn payloads(ran: &Ran) -> Vec<Vec<u8>> {
    ran.outputs
        .iter()
        .filter_map(|output| match output {
            CellOutput::Message { payload, .. } => Some(payload.to_vec()),
            CellOutput::Close { .. }
            | CellOutput::Connect { .. }
            | CellOutput::Pause { .. }
            | CellOutput::Resume { .. } => None,
        })
        .collect()
}

/// The reason why a cell stopped at this input.
pub fn stop(cells: &mut Cells, input: CellInput) -> CellStop {
    match run(cells, CELL, input, 0).outcome {
        RunOutcome::Stopped(stop) => stop,
        RunOutcome::Idle => panic!("the handler came to its end"),
    }
}

/// A guest that mixes every message, the time and random bytes into a number, and the number into its memory: its
/// answers depend on everything that happened before. A message that begins with `g` also grows its memory, one
/// with `z` clears a page, one with `f` computes with floats for a while.
pub fn mixer() -> Vec<u8> {
    guest(
        r#"
        (global $x (mut i64) (i64.const 7))
        (global $f (mut f64) (f64.const 0.5))
        (func $stir (param $b i64)
          (global.set $x (i64.add (i64.mul (i64.rotl (global.get $x) (i64.const 13)) (i64.const 0x9E3779B97F4A7C15)) (local.get $b)))
          (i64.store
            (i32.add (i32.mul (i32.wrap_i64 (i64.rem_u (global.get $x) (i64.const 200))) (i32.const 4096))
                     (i32.and (i32.wrap_i64 (i64.shr_u (global.get $x) (i64.const 40))) (i32.const 0xff8)))
            (global.get $x)))
        (func (export "marram_recv") (param $port i32) (param $ptr i32) (param $len i32)
          (local $i i32) (local $first i32)
          (local.set $first (i32.load8_u (local.get $ptr)))
          (block $done (loop $next
            (br_if $done (i32.ge_u (local.get $i) (local.get $len)))
            (call $stir (i64.load8_u (i32.add (local.get $ptr) (local.get $i))))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br $next)))
          (call $stir (call $now))
          (call $random (i32.const 0x120000) (i32.const 16))
          (call $stir (i64.load (i32.const 0x120000)))
          (if (i32.eq (local.get $first) (i32.const 103)) (then
            (if (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0)) (then
              (i64.store (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 8)) (global.get $x))))))
          (if (i32.eq (local.get $first) (i32.const 122)) (then
            (memory.fill (i32.and (i32.wrap_i64 (global.get $x)) (i32.const 0x7f000)) (i32.const 0) (i32.const 4096))))
          (if (i32.eq (local.get $first) (i32.const 102)) (then
            (local.set $i (i32.const 3000000))
            (loop $spin
              (global.set $f (f64.sqrt (f64.add (f64.mul (global.get $f) (f64.const 1.7)) (f64.const 0.3))))
              (br_if $spin (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
            (call $stir (i64.reinterpret_f64 (global.get $f)))))
          (call $timer (i64.const 5) (global.get $x))
          (i64.store (i32.const 0x120000) (global.get $x))
          (call $send (local.get $port) (i32.const 0x120000) (i32.const 8)))
        (func (export "marram_timer") (param $token i64)
          (call $stir (local.get $token))
          (i64.store (i32.const 0x120000) (global.get $x))
          (call $send (i32.const 1) (i32.const 0x120000) (i32.const 8)))
        "#,
    )
}

/// The outputs of the chain as text: `c` to the client, `s` to the server.
pub(crate) fn words(ran: &Ran) -> Vec<String> {
    assert_eq!(ran.outcome, RunOutcome::Idle);
    let side = |port: Port| if port == Port::CLIENT { 'c' } else { 's' };
    let word = |output: &CellOutput| match output {
        CellOutput::Message { port, payload } => format!("{}:{}", side(*port), payload.escape_ascii()),
        CellOutput::Close { port } => format!("{} ends", side(*port)),
        CellOutput::Pause { stage, port } => format!("stage {stage} pauses {}", side(*port)),
        CellOutput::Connect { port, name } => format!("connects {} to {name}", port.0),
        CellOutput::Resume { stage, port } => format!("stage {stage} resumes {}", side(*port)),
    };
    ran.outputs.iter().map(word).collect()
}
