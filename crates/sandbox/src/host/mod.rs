//! The host's side of one stage: what its imports read and write. Everything that a guest can observe comes from here.
//!
//! This module does not know sessions: inputs are plain values, and outputs are collected and returned. `hosts` passes
//! messages between the stages of a cell.

mod cache;
mod hosts;
mod imports;
mod marram;
mod ports;
mod wasi;

pub(crate) use cache::Window;
pub use cache::reads_cache;
pub(crate) use hosts::{Blamed, Hosts, Next, Order};
pub(crate) use imports::linker;
pub(crate) use ports::Ports;

use crate::files::Files;
use crate::generator::Generator;
use crate::keys::Signer;
use crate::limits::{PRINT_BYTES_MAX, PRINTS_PER_HANDLER_MAX};
use crate::plain::plain_cut;
use crate::quotas::Quotas;
use marram_session::cell::{CellStop, Seed};
use std::fmt;
use std::sync::Arc;
use wasmtime::{Caller, Extern, Memory};

/// The import module of the cell ABI.
pub(crate) const ABI_MODULE: &str = "marram_v1";
/// The import module of WASI preview 1.
pub(crate) const WASI_MODULE: &str = "wasi_snapshot_preview1";
pub(crate) use marram::FUNCTIONS as ABI_FUNCTIONS;
pub(crate) use wasi::FUNCTIONS as WASI_FUNCTIONS;

/// How urgent a printed text is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PrintLevel {
    /// The guest could not do its task.
    Error,
    /// Something is wrong, and the guest continues.
    Warning,
    /// Useful in normal operation.
    Information,
    /// Useful when looking for a fault.
    Debug,
}

/// A text that a guest printed. It has no effect on the cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Print {
    /// The stage that printed it; 0 if there is only one.
    pub stage: u8,
    /// How urgent it is.
    pub level: PrintLevel,
    /// The text, on one line: invalid UTF-8 is replaced, characters that a terminal would interpret are escaped, and text that
    /// is too long is cut.
    pub text: String,
}

/// What the guest may do now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// At deployment: everything that differs between sessions is refused.
    Initialising,
    /// In a handler.
    Running,
}

/// The host's side of one stage.
pub(crate) struct Host {
    /// The guest's memory, once it is instantiated.
    pub(crate) memory: Option<Memory>,
    pub(crate) phase: Phase,
    /// Its index in its chain, counted from the client.
    pub(crate) stage: u8,
    /// The result of `now` throughout the present handler.
    pub(crate) now_ns: i64,
    /// Whether the present handler observed `now_ns`.
    pub(crate) clock_read: bool,
    /// Messages and closes that the present handler has sent; then their bytes.
    pub(crate) sent: usize,
    pub(crate) sent_bytes: usize,
    /// Changes to timers by the present handler.
    pub(crate) timer_changes: usize,
    /// Changes to tasks and locks by the present handler.
    pub(crate) task_changes: usize,
    /// The task whose handler runs, if it is a task's handler.
    pub(crate) task: Option<u64>,
    /// Signatures made for the present handler.
    pub(crate) signatures: usize,
    pub(crate) prints: Vec<Print>,
    pub(crate) ports: Ports,
    pub(crate) generator: Generator,
    pub(crate) files: Files,
    /// The keys that the host signs with for the cell, by the cell's own numbers.
    pub(crate) keys: Arc<[Arc<dyn Signer>]>,
    /// The names of the servers to which the cell may connect.
    pub(crate) servers: Arc<[String]>,
    /// Bytes that linear memory may grow to, independent of the machine's memory.
    pub(crate) memory_max: u64,
    /// Nanoseconds that the stage may run for one input.
    pub(crate) handler_time_ns: u64,
    /// Nanoseconds that the stage has run for the present input.
    pub(crate) spent_ns: u64,
    /// Handlers run so far in this instance.
    pub(crate) handled: u64,
}

impl Host {
    pub(crate) fn new(phase: Phase, seed: Seed, files: Files, quotas: &Quotas) -> Self {
        Self {
            memory: None,
            phase,
            stage: 0,
            now_ns: 0,
            clock_read: false,
            sent: 0,
            sent_bytes: 0,
            timer_changes: 0,
            task_changes: 0,
            task: None,
            signatures: 0,
            prints: Vec::new(),
            ports: Ports::default(),
            generator: Generator::new(seed),
            files,
            keys: Arc::from([]),
            servers: Arc::from([]),
            memory_max: quotas.memory_max,
            handler_time_ns: quotas.handler_time_ns,
            spent_ns: 0,
            handled: 0,
        }
    }

    /// Resets the state of the last handler, and sets the clock of the next.
    pub(crate) fn begin(&mut self, now_ns: i64) {
        self.now_ns = now_ns;
        self.clock_read = false;
        self.sent = 0;
        self.sent_bytes = 0;
        self.timer_changes = 0;
        self.task_changes = 0;
        self.task = None;
        self.signatures = 0;
        self.handled += 1;
    }

    /// Why the cell ends, if the stage has used up its time.
    pub(crate) fn too_long(&self) -> Option<CellStop> {
        let ms = self.handler_time_ns / 1_000_000;
        (self.spent_ns > self.handler_time_ns)
            .then(|| CellStop::Kill(format!("a handler ran longer than handler_time, {ms} ms")))
    }

    /// Session time as this handler observes it.
    pub(crate) fn now(&mut self) -> i64 {
        self.clock_read = true;
        self.now_ns
    }

    /// Stores a text for the operator.
    pub(crate) fn print(&mut self, level: PrintLevel, bytes: &[u8]) {
        if self.prints.len() < PRINTS_PER_HANDLER_MAX {
            let cut = &bytes[..bytes.len().min(PRINT_BYTES_MAX)];
            let text = plain_cut(&String::from_utf8_lossy(cut), PRINT_BYTES_MAX);
            self.prints.push(Print { stage: self.stage, level, text });
        }
    }

    /// Refuses `call` during initialisation, because every session would share its result or effect.
    pub(crate) fn only_when_running(&self, call: &'static str) -> wasmtime::Result<()> {
        match self.phase {
            Phase::Running => Ok(()),
            Phase::Initialising => Err(Refusal::AtInitialisation(call).into()),
        }
    }
}

/// Why an import ended the handler.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The guest made an invalid request: the text says which.
    Guest(String),
    /// The guest ended itself.
    Exit(String),
    /// The call would make every session share what it returned.
    AtInitialisation(&'static str),
    /// The machine could not give memory that the quota grants.
    MachineMemory(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guest(text) | Self::Exit(text) => f.write_str(text),
            Self::AtInitialisation(call) => write!(
                f,
                "initialisation called `{call}`, and every session would share its effect; call it in a handler"
            ),
            Self::MachineMemory(text) => {
                write!(f, "the machine has no memory left for a growth within the quota: {text}")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Builds the error for an invalid call of an import.
pub(crate) fn guest_error(text: impl Into<String>) -> wasmtime::Error {
    Refusal::Guest(text.into()).into()
}

/// The guest's memory and the host's side of its stage, borrowed together.
pub(crate) fn split<'a>(caller: &'a mut Caller<'_, Hosts>) -> wasmtime::Result<(&'a mut [u8], &'a mut Host)> {
    let (memory, hosts) = split_cell(caller)?;
    Ok((memory, hosts.running()))
}

/// The guest's memory and the host's side of its cell.
pub(crate) fn split_cell<'a>(
    caller: &'a mut Caller<'_, Hosts>,
) -> wasmtime::Result<(&'a mut [u8], &'a mut Hosts)> {
    let memory = match caller.data().runs().memory {
        Some(memory) => memory,
        // Only a start function runs before the instance is known.
        None => match caller.get_export("memory") {
            Some(Extern::Memory(memory)) => memory,
            _ => return Err(guest_error("the module exports no memory")),
        },
    };
    Ok(memory.data_and_store_mut(caller))
}

/// `ptr .. ptr + len` within memory, or a trap that says what was wrong.
pub(crate) fn range(
    memory: &[u8],
    ptr: u32,
    len: u32,
    call: &str,
) -> wasmtime::Result<std::ops::Range<usize>> {
    let end = u64::from(ptr) + u64::from(len);
    if end > memory.len() as u64 {
        return Err(guest_error(format!(
            "{call}: the range {ptr} + {len} is outside memory, which has {} bytes",
            memory.len()
        )));
    }
    // Both fit: they are at most the length of a slice.
    Ok(ptr as usize..ptr as usize + len as usize)
}
