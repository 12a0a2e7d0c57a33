//! The `fd_*` functions.

use super::memory::{buffers, put};
use super::{Errno, Hosts, OK, WASI_MODULE, errno, split};
use crate::files::{Descriptor, ROOT_DESCRIPTOR, Stat, Whence};
use crate::host::{PrintLevel, range};
use crate::limits::{IO_BUFFERS_MAX, IO_BYTES_MAX, PRINT_BYTES_MAX, PRINTS_PER_HANDLER_MAX};
use wasmtime::{Caller, Linker, Result};

/// File types as WASI numbers them.
const TYPE_CHARACTERS: u8 = 2;
const TYPE_DIRECTORY: u8 = 3;
const TYPE_FILE: u8 = 4;
/// The `append` bit of descriptor flags.
const FLAG_APPEND: u16 = 1;
/// All rights: WASI dropped rights, and libc only checks for them.
const ALL_RIGHTS: u64 = (1 << 30) - 1;

type Guest<'a> = Caller<'a, Hosts>;

pub(super) fn link(linker: &mut Linker<Hosts>) -> Result<()> {
    let m = WASI_MODULE;
    linker.func_wrap(m, "fd_advise", |c: Guest<'_>, fd: u32, _: u64, _: u64, _: u32| exists(&c, fd))?;
    linker.func_wrap(m, "fd_allocate", |_: u32, _: u64, _: u64| Errno::NotSupported as u32)?;
    linker.func_wrap(m, "fd_close", |mut c: Guest<'_>, fd: u32| {
        errno(c.data_mut().running().files.close(fd))
    })?;
    linker.func_wrap(m, "fd_datasync", |c: Guest<'_>, fd: u32| exists(&c, fd))?;
    linker.func_wrap(m, "fd_sync", |c: Guest<'_>, fd: u32| exists(&c, fd))?;
    linker.func_wrap(m, "fd_fdstat_get", fd_fdstat_get)?;
    linker.func_wrap(m, "fd_fdstat_set_flags", fd_fdstat_set_flags)?;
    linker.func_wrap(m, "fd_fdstat_set_rights", |c: Guest<'_>, fd: u32, _: u64, _: u64| exists(&c, fd))?;
    linker.func_wrap(m, "fd_filestat_get", fd_filestat_get)?;
    linker.func_wrap(m, "fd_filestat_set_size", |mut c: Guest<'_>, fd: u32, len: u64| {
        errno(c.data_mut().running().files.truncate(fd, len))
    })?;
    // Times are always 0, so setting them changes nothing.
    linker.func_wrap(m, "fd_filestat_set_times", |c: Guest<'_>, fd: u32, _: u64, _: u64, _: u32| {
        exists(&c, fd)
    })?;
    linker.func_wrap(m, "fd_read", |c: Guest<'_>, fd: u32, iovs: u32, count: u32, out: u32| {
        read(c, fd, None, (iovs, count), out, "fd_read")
    })?;
    linker.func_wrap(m, "fd_pread", |c: Guest<'_>, fd: u32, iovs: u32, count: u32, at: u64, out: u32| {
        read(c, fd, Some(at), (iovs, count), out, "fd_pread")
    })?;
    linker.func_wrap(m, "fd_write", |c: Guest<'_>, fd: u32, iovs: u32, count: u32, out: u32| {
        write(c, fd, None, (iovs, count), out, "fd_write")
    })?;
    linker.func_wrap(m, "fd_pwrite", |c: Guest<'_>, fd: u32, iovs: u32, count: u32, at: u64, out: u32| {
        write(c, fd, Some(at), (iovs, count), out, "fd_pwrite")
    })?;
    linker.func_wrap(m, "fd_prestat_get", fd_prestat_get)?;
    linker.func_wrap(m, "fd_prestat_dir_name", fd_prestat_dir_name)?;
    linker.func_wrap(m, "fd_readdir", fd_readdir)?;
    linker.func_wrap(m, "fd_renumber", |mut c: Guest<'_>, from: u32, to: u32| {
        errno(c.data_mut().running().files.renumber(from, to))
    })?;
    linker.func_wrap(m, "fd_seek", fd_seek)?;
    linker.func_wrap(m, "fd_tell", |c: Guest<'_>, fd: u32, out: u32| fd_seek(c, fd, 0, 1, out))?;
    Ok(())
}

fn exists(caller: &Guest<'_>, fd: u32) -> u32 {
    errno(caller.data().runs().files.descriptor(fd))
}

fn fd_fdstat_get(mut caller: Guest<'_>, fd: u32, out: u32) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let (kind, append) = match host.files.descriptor(fd) {
        Err(error) => return Ok(error as u32),
        Ok(Descriptor::Open(open)) => match host.files.stat(open.inode) {
            Err(error) => return Ok(error as u32),
            Ok(stat) => (type_of(stat), open.append),
        },
        Ok(_) => (TYPE_CHARACTERS, false),
    };
    let mut bytes = [0; 24];
    bytes[0] = kind;
    bytes[2..4].copy_from_slice(&(u16::from(append) * FLAG_APPEND).to_le_bytes());
    bytes[8..16].copy_from_slice(&ALL_RIGHTS.to_le_bytes());
    bytes[16..24].copy_from_slice(&ALL_RIGHTS.to_le_bytes());
    put(memory, out, &bytes, "fd_fdstat_get")?;
    Ok(OK)
}

fn fd_fdstat_set_flags(mut caller: Guest<'_>, fd: u32, flags: u32) -> u32 {
    let host = caller.data_mut().running();
    match host.files.descriptor(fd) {
        Err(error) => error as u32,
        Ok(Descriptor::Open(_)) => errno(host.files.set_append(fd, flags & u32::from(FLAG_APPEND) != 0)),
        Ok(_) => OK,
    }
}

pub(super) fn type_of(stat: Stat) -> u8 {
    if stat.directory { TYPE_DIRECTORY } else { TYPE_FILE }
}

/// WASI's filestat: device 0, one link, all times 0.
pub(super) fn filestat(stat: Stat) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[8..16].copy_from_slice(&stat.inode.to_le_bytes());
    bytes[16] = type_of(stat);
    bytes[24..32].copy_from_slice(&1_u64.to_le_bytes());
    bytes[32..40].copy_from_slice(&stat.len.to_le_bytes());
    bytes
}

fn fd_filestat_get(mut caller: Guest<'_>, fd: u32, out: u32) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let bytes = match host.files.descriptor(fd) {
        Err(error) => return Ok(error as u32),
        Ok(Descriptor::Open(open)) => match host.files.stat(open.inode) {
            Err(error) => return Ok(error as u32),
            Ok(stat) => filestat(stat),
        },
        Ok(_) => {
            let mut bytes = [0; 64];
            bytes[16] = TYPE_CHARACTERS;
            bytes
        }
    };
    put(memory, out, &bytes, "fd_filestat_get")?;
    Ok(OK)
}

fn read(
    mut caller: Guest<'_>,
    fd: u32,
    at: Option<u64>,
    (iovs, count): (u32, u32),
    out: u32,
    call: &str,
) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    if count > IO_BUFFERS_MAX {
        return Ok(Errno::Invalid as u32);
    }
    let mut total = 0;
    match host.files.descriptor(fd) {
        Ok(Descriptor::Input) if at.is_none() => {}
        Ok(Descriptor::Input) => return Ok(Errno::NoSeek as u32),
        _ => {
            // Buffers may overlap; each is filled in turn, as if by separate calls.
            for range in buffers(memory, iovs, count, IO_BYTES_MAX, call)? {
                let wanted = range.len();
                match host.files.read(fd, at.map(|at| at.saturating_add(total)), &mut memory[range]) {
                    Ok(read) => {
                        total += read as u64;
                        if read < wanted {
                            break;
                        }
                    }
                    Err(error) => return Ok(error as u32),
                }
            }
        }
    }
    put_count(memory, out, total, call)
}

fn put_count(memory: &mut [u8], out: u32, total: u64, call: &str) -> Result<u32> {
    let total = u32::try_from(total).unwrap_or(u32::MAX);
    put(memory, out, &total.to_le_bytes(), call)?;
    Ok(OK)
}

fn write(
    mut caller: Guest<'_>,
    fd: u32,
    at: Option<u64>,
    (iovs, count): (u32, u32),
    out: u32,
    call: &str,
) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    if count > IO_BUFFERS_MAX {
        return Ok(Errno::Invalid as u32);
    }
    let level = match host.files.descriptor(fd) {
        Err(error) => return Ok(error as u32),
        Ok(Descriptor::Output) => Some(PrintLevel::Information),
        Ok(Descriptor::Errors) => Some(PrintLevel::Error),
        Ok(_) => None,
    };
    let ranges = buffers(memory, iovs, count, IO_BYTES_MAX, call)?;
    let mut total = 0;
    if let Some(level) = level {
        if at.is_some() {
            return Ok(Errno::NoSeek as u32);
        }
        let mut text = Vec::new();
        for range in ranges {
            total += range.len() as u64;
            // Bytes beyond the print limits are not collected.
            let room = (PRINT_BYTES_MAX * PRINTS_PER_HANDLER_MAX).saturating_sub(text.len());
            text.extend_from_slice(&memory[range.start..range.start + range.len().min(room)]);
        }
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            host.print(level, line);
        }
    } else {
        for range in ranges {
            match host.files.write(fd, at.map(|at| at.saturating_add(total)), &memory[range]) {
                Ok(written) => total += written as u64,
                // Bytes written before the disk was full count.
                Err(_) if total > 0 => break,
                Err(error) => return Ok(error as u32),
            }
        }
    }
    put_count(memory, out, total, call)
}

fn fd_prestat_get(mut caller: Guest<'_>, fd: u32, out: u32) -> Result<u32> {
    let (memory, _) = split(&mut caller)?;
    if fd != ROOT_DESCRIPTOR {
        return Ok(Errno::BadDescriptor as u32);
    }
    // A directory whose name has one byte.
    put(memory, out, &[0, 0, 0, 0, 1, 0, 0, 0], "fd_prestat_get")?;
    Ok(OK)
}

fn fd_prestat_dir_name(mut caller: Guest<'_>, fd: u32, out: u32, len: u32) -> Result<u32> {
    let (memory, _) = split(&mut caller)?;
    if fd != ROOT_DESCRIPTOR {
        return Ok(Errno::BadDescriptor as u32);
    }
    if len < 1 {
        return Ok(Errno::NameTooLong as u32);
    }
    put(memory, out, b"/", "fd_prestat_dir_name")?;
    Ok(OK)
}

fn fd_seek(mut caller: Guest<'_>, fd: u32, offset: i64, whence: u32, out: u32) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let whence = match whence {
        0 => Whence::Start,
        1 => Whence::Current,
        2 => Whence::End,
        _ => return Ok(Errno::Invalid as u32),
    };
    match host.files.seek(fd, offset, whence) {
        Err(error) => Ok(error as u32),
        Ok(position) => {
            put(memory, out, &position.to_le_bytes(), "fd_seek")?;
            Ok(OK)
        }
    }
}

/// Fills the buffer with entries; the last may be truncated, so that the guest asks again with a larger buffer.
fn fd_readdir(mut caller: Guest<'_>, fd: u32, ptr: u32, len: u32, cookie: u64, out: u32) -> Result<u32> {
    let (memory, host) = split(&mut caller)?;
    let buffer = range(memory, ptr, len, "fd_readdir")?;
    let entries = match host.files.list(fd, cookie, buffer.len() / 24 + 1) {
        Ok(entries) => entries,
        Err(error) => return Ok(error as u32),
    };
    let mut bytes = Vec::new();
    for (n, (name, stat)) in (1..).zip(entries) {
        let next: u64 = cookie.saturating_add(n);
        bytes.extend_from_slice(&next.to_le_bytes());
        bytes.extend_from_slice(&stat.inode.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(&[type_of(stat), 0, 0, 0]);
        bytes.extend_from_slice(name.as_bytes());
        if bytes.len() >= buffer.len() {
            break;
        }
    }
    bytes.truncate(buffer.len());
    let total = bytes.len() as u64;
    memory[buffer.start..buffer.start + bytes.len()].copy_from_slice(&bytes);
    put_count(memory, out, total, "fd_readdir")
}
