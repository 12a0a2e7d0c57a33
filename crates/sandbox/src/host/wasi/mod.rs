//! WASI preview 1, deterministic: time and randomness come from the cell, files are its state, all else is not available.

mod fd;
mod memory;
mod path;

use super::{Hosts, Refusal, WASI_MODULE, range, split};
use crate::files::Errno;
use crate::limits::RANDOM_BYTES_MAX;
use memory::put;
use wasmtime::{Caller, Linker, Result};

/// Every function of WASI preview 1.
pub(crate) const FUNCTIONS: &[&str] = &[
    "args_get",
    "args_sizes_get",
    "clock_res_get",
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "fd_advise",
    "fd_allocate",
    "fd_close",
    "fd_datasync",
    "fd_fdstat_get",
    "fd_fdstat_set_flags",
    "fd_fdstat_set_rights",
    "fd_filestat_get",
    "fd_filestat_set_size",
    "fd_filestat_set_times",
    "fd_pread",
    "fd_prestat_dir_name",
    "fd_prestat_get",
    "fd_pwrite",
    "fd_read",
    "fd_readdir",
    "fd_renumber",
    "fd_seek",
    "fd_sync",
    "fd_tell",
    "fd_write",
    "path_create_directory",
    "path_filestat_get",
    "path_filestat_set_times",
    "path_link",
    "path_open",
    "path_readlink",
    "path_remove_directory",
    "path_rename",
    "path_symlink",
    "path_unlink_file",
    "poll_oneoff",
    "proc_exit",
    "proc_raise",
    "random_get",
    "sched_yield",
    "sock_accept",
    "sock_recv",
    "sock_send",
    "sock_shutdown",
];

/// Success, as WASI numbers it.
const OK: u32 = 0;
const NOT_SUPPORTED: u32 = Errno::NotSupported as u32;

/// The errno for the result of a file operation.
fn errno<T>(result: std::result::Result<T, Errno>) -> u32 {
    match result {
        Ok(_) => OK,
        Err(errno) => errno as u32,
    }
}

/// Adds all functions.
pub(super) fn link(linker: &mut Linker<Hosts>) -> Result<()> {
    linker.func_wrap(WASI_MODULE, "args_get", |_: u32, _: u32| OK)?;
    linker.func_wrap(WASI_MODULE, "args_sizes_get", no_strings)?;
    linker.func_wrap(WASI_MODULE, "environ_get", |_: u32, _: u32| OK)?;
    linker.func_wrap(WASI_MODULE, "environ_sizes_get", no_strings)?;
    linker.func_wrap(WASI_MODULE, "clock_res_get", clock_res_get)?;
    linker.func_wrap(WASI_MODULE, "clock_time_get", clock_time_get)?;
    linker.func_wrap(WASI_MODULE, "random_get", random_get)?;
    linker.func_wrap(WASI_MODULE, "sched_yield", || OK)?;
    linker.func_wrap(WASI_MODULE, "proc_exit", |code: u32| -> Result<()> {
        Err(Refusal::Exit(format!("the guest called proc_exit({code}); a handler returns instead")).into())
    })?;
    linker.func_wrap(WASI_MODULE, "proc_raise", |signal: u32| -> Result<u32> {
        Err(Refusal::Exit(format!("the guest raised signal {signal}")).into())
    })?;
    linker.func_wrap(WASI_MODULE, "poll_oneoff", |_: u32, _: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(WASI_MODULE, "sock_accept", |_: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(WASI_MODULE, "sock_recv", |_: u32, _: u32, _: u32, _: u32, _: u32, _: u32| {
        NOT_SUPPORTED
    })?;
    linker.func_wrap(WASI_MODULE, "sock_send", |_: u32, _: u32, _: u32, _: u32, _: u32| NOT_SUPPORTED)?;
    linker.func_wrap(WASI_MODULE, "sock_shutdown", |_: u32, _: u32| NOT_SUPPORTED)?;
    fd::link(linker)?;
    path::link(linker)
}

/// Arguments and environment are empty: no strings, in no bytes.
fn no_strings(mut caller: Caller<'_, Hosts>, count: u32, bytes: u32) -> Result<u32> {
    let (memory, _) = split(&mut caller)?;
    put(memory, count, &[0; 4], "args_sizes_get")?;
    put(memory, bytes, &[0; 4], "args_sizes_get")?;
    Ok(OK)
}

/// Whether a clock reads session time. The other clocks would reveal the speed of this machine.
fn is_session_clock(clock: u32) -> bool {
    clock < 2
}

fn clock_res_get(mut caller: Caller<'_, Hosts>, clock: u32, out: u32) -> Result<u32> {
    if !is_session_clock(clock) {
        return Ok(Errno::Invalid as u32);
    }
    let (memory, _) = split(&mut caller)?;
    put(memory, out, &1_u64.to_le_bytes(), "clock_res_get")?;
    Ok(OK)
}

fn clock_time_get(mut caller: Caller<'_, Hosts>, clock: u32, _precision: u64, out: u32) -> Result<u32> {
    if !is_session_clock(clock) {
        return Ok(Errno::Invalid as u32);
    }
    let (memory, host) = split(&mut caller)?;
    host.only_when_running("clock_time_get")?;
    put(memory, out, &host.now().to_le_bytes(), "clock_time_get")?;
    Ok(OK)
}

fn random_get(mut caller: Caller<'_, Hosts>, ptr: u32, len: u32) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    host.only_when_running("random_get")?;
    if len as usize > RANDOM_BYTES_MAX {
        return Ok(Errno::Invalid as u32);
    }
    let range = range(memory, ptr, len, "random_get")?;
    host.generator.fill(&mut memory[range]);
    Ok(OK)
}
