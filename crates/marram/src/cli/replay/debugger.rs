//! Waits for a debugger: gdb and lldb learn from the engine where the cell's code is.
//!
//! The engine registers the code with the debugger (the GDB JIT interface) when it compiles, so
//! breakpoints in the cell's source can be set only after that.

use crate::cli::{Failure, emit};
use anyhow::{Context, anyhow};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often to check for a debugger. The kernel does not notify a process that a debugger has attached.
const LOOK: Duration = Duration::from_millis(50);

/// Returns when a debugger is attached to this process. If a debugger started it, the process is stopped here first, as by a
/// breakpoint: only now does the code exist in which to set others.
///
/// Blocks without a limit: the user decides when to attach.
pub(super) fn wait(entries: u64) -> Result<(), Failure> {
    if is_attached()? {
        emit(&format!("stopping for the debugger after {entries} entries: set breakpoints, then continue\n"));
        let stopped = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TRAP);
        return stopped.context("this process cannot be stopped for the debugger").map_err(Failure::Other);
    }
    let pid = std::process::id();
    emit(&format!(
        "process {pid} waits for a debugger after {entries} entries: attach gdb -p {pid} or lldb -p {pid}, set breakpoints, then \
         continue\nwhere that is not permitted, start it under one: gdb --args marram replay ..\n"
    ));
    while !is_attached()? {
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn is_attached() -> Result<bool, Failure> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status cannot be read")?;
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    Ok(tracer.is_some_and(|pid| pid.trim() != "0"))
}

/// The modules with the debug information to use.
///
/// # Errors
/// If a file cannot be read, or is larger than a module can be.
pub(super) fn symbols(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, Failure> {
    files.iter().map(|path| module(path)).collect()
}

fn module(path: &Path) -> Result<Vec<u8>, Failure> {
    let name = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("the module {name} cannot be read"))?.len();
    let size_max = marram_sandbox::limits::MODULE_BYTES_MAX as u64;
    if size > size_max {
        return Err(Failure::Usage(anyhow!("{name} has {size} bytes; a module has at most {size_max}")));
    }
    Ok(std::fs::read(path).with_context(|| format!("the module {name} cannot be read"))?)
}
