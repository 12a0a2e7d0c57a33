//! The `path_*` functions.

use super::fd::filestat;
use super::memory::{path, put};
use super::{Errno, Hosts, OK, WASI_MODULE, errno, split};
use crate::files::{Files, OpenOptions};
use wasmtime::{Caller, Linker, Result};

/// Bits of `path_open`'s flags.
const CREATE: u32 = 1;
const DIRECTORY: u32 = 2;
const EXCLUSIVE: u32 = 4;
const TRUNCATE: u32 = 8;
/// The rights that distinguish reading from writing.
const RIGHT_READ: u64 = 1 << 1;
const RIGHT_WRITE: u64 = 1 << 6;
/// The `append` bit of descriptor flags.
const FLAG_APPEND: u32 = 1;

type Guest<'a> = Caller<'a, Hosts>;
type Done<T> = std::result::Result<T, Errno>;

pub(super) fn link(linker: &mut Linker<Hosts>) -> Result<()> {
    let m = WASI_MODULE;
    let not_supported = Errno::NotSupported as u32;
    linker.func_wrap(m, "path_create_directory", |c: Guest<'_>, fd: u32, p: u32, n: u32| {
        on_path(c, (p, n), "path_create_directory", |files, path| files.create_directory(fd, path))
    })?;
    linker.func_wrap(m, "path_remove_directory", |c: Guest<'_>, fd: u32, p: u32, n: u32| {
        on_path(c, (p, n), "path_remove_directory", |files, path| files.remove_directory(fd, path))
    })?;
    linker.func_wrap(m, "path_unlink_file", |c: Guest<'_>, fd: u32, p: u32, n: u32| {
        on_path(c, (p, n), "path_unlink_file", |files, path| files.unlink(fd, path))
    })?;
    linker.func_wrap(
        m,
        "path_filestat_set_times",
        |c: Guest<'_>, fd: u32, _: u32, p: u32, n: u32, _: u64, _: u64, _: u32| {
            // Times are always 0, so setting them changes nothing.
            on_path(c, (p, n), "path_filestat_set_times", |files, path| files.stat_path(fd, path).map(|_| ()))
        },
    )?;
    linker.func_wrap(m, "path_filestat_get", path_filestat_get)?;
    linker.func_wrap(m, "path_open", path_open)?;
    linker.func_wrap(m, "path_rename", path_rename)?;
    linker.func_wrap(m, "path_link", move |_: u32, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32| {
        not_supported
    })?;
    linker.func_wrap(m, "path_symlink", move |_: u32, _: u32, _: u32, _: u32, _: u32| not_supported)?;
    linker
        .func_wrap(m, "path_readlink", move |_: u32, _: u32, _: u32, _: u32, _: u32, _: u32| not_supported)?;
    Ok(())
}

/// Reads the path and calls a function with it.
fn on_path(
    mut caller: Guest<'_>,
    (ptr, len): (u32, u32),
    call: &str,
    what: impl FnOnce(&mut Files, &str) -> Done<()>,
) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    Ok(match path(memory, ptr, len, call)? {
        Some(path) => errno(what(&mut host.files, path)),
        None => Errno::IllegalBytes as u32,
    })
}

fn path_filestat_get(
    mut caller: Guest<'_>,
    fd: u32,
    _flags: u32,
    ptr: u32,
    len: u32,
    out: u32,
) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let Some(path) = path(memory, ptr, len, "path_filestat_get")? else {
        return Ok(Errno::IllegalBytes as u32);
    };
    match host.files.stat_path(fd, path) {
        Err(error) => Ok(error as u32),
        Ok(stat) => {
            put(memory, out, &filestat(stat), "path_filestat_get")?;
            Ok(OK)
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "WASI says so")]
fn path_open(
    mut caller: Guest<'_>,
    fd: u32,
    _lookup: u32,
    ptr: u32,
    len: u32,
    flags: u32,
    rights: u64,
    _inheriting: u64,
    fd_flags: u32,
    out: u32,
) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let Some(path) = path(memory, ptr, len, "path_open")? else { return Ok(Errno::IllegalBytes as u32) };
    // Checked first: if the guest could not get the descriptor, it would stay open.
    crate::host::range(memory, out, 4, "path_open")?;
    let options = OpenOptions {
        create: flags & CREATE != 0,
        directory: flags & DIRECTORY != 0,
        exclusive: flags & EXCLUSIVE != 0,
        truncate: flags & TRUNCATE != 0,
        append: fd_flags & FLAG_APPEND != 0,
        read: rights & RIGHT_READ != 0,
        write: rights & RIGHT_WRITE != 0,
    };
    match host.files.open(fd, path, options) {
        Err(error) => Ok(error as u32),
        Ok(opened) => {
            put(memory, out, &opened.to_le_bytes(), "path_open")?;
            Ok(OK)
        }
    }
}

fn path_rename(
    mut caller: Guest<'_>,
    from_fd: u32,
    from_ptr: u32,
    from_len: u32,
    to_fd: u32,
    to_ptr: u32,
    to_len: u32,
) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let from = path(memory, from_ptr, from_len, "path_rename")?;
    let to = path(memory, to_ptr, to_len, "path_rename")?;
    Ok(match (from, to) {
        (Some(from), Some(to)) => errno(host.files.rename((from_fd, from), (to_fd, to))),
        _ => Errno::IllegalBytes as u32,
    })
}
