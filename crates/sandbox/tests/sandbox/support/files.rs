//! WASI's file calls made for a test, through the proxy guest.

use super::wasi::{DATA, DATA_BYTES, call};
use marram_sandbox::Cells;

pub const AT: u64 = DATA as u64;
pub const ROOT: u64 = 3;
pub const READ: u64 = 1 << 1;
pub const WRITE: u64 = 1 << 6;
pub const CREATE: u64 = 1;
pub const DIRECTORY: u64 = 2;
pub const EXCLUSIVE: u64 = 4;
pub const TRUNCATE: u64 = 8;

pub const OK: u32 = 0;
pub const BADF: u32 = 8;
pub const EXIST: u32 = 20;
pub const INVAL: u32 = 28;
pub const ISDIR: u32 = 31;
pub const NOENT: u32 = 44;
pub const NOSPC: u32 = 51;
pub const NOTDIR: u32 = 54;
pub const NOTEMPTY: u32 = 55;
pub const NOTSUP: u32 = 58;
pub const ROFS: u32 = 69;
pub const NOTCAPABLE: u32 = 76;

pub fn open(cells: &mut Cells, path: &str, flags: u64, rights: u64) -> Result<u64, u32> {
    open_with(cells, path, flags, rights, 0)
}

pub fn open_with(cells: &mut Cells, path: &str, flags: u64, rights: u64, fd_flags: u64) -> Result<u64, u32> {
    let arguments = [ROOT, 0, AT, path.len() as u64, flags, rights, 0, fd_flags, AT + 2048];
    match call(cells, "path_open", &arguments, path.as_bytes()) {
        (OK, data) => Ok(u64::from(u32::from_le_bytes(data[2048..2052].try_into().unwrap()))),
        (errno, _) => Err(errno),
    }
}

/// Data that begins with one buffer descriptor for the bytes that follow it.
pub fn buffer(contents: &[u8], len: usize) -> Vec<u8> {
    let mut data = (DATA + 16).to_le_bytes().to_vec();
    data.extend_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
    data.extend_from_slice(&[0; 8]);
    data.extend_from_slice(contents);
    data
}

pub fn write(cells: &mut Cells, fd: u64, contents: &[u8]) -> Result<u32, u32> {
    match call(cells, "fd_write", &[fd, AT, 1, AT + 8], &buffer(contents, contents.len())) {
        (OK, data) => Ok(u32::from_le_bytes(data[8..12].try_into().unwrap())),
        (errno, _) => Err(errno),
    }
}

pub fn read(cells: &mut Cells, fd: u64, len: usize) -> Result<Vec<u8>, u32> {
    match call(cells, "fd_read", &[fd, AT, 1, AT + 8], &buffer(&[], len)) {
        (OK, data) => {
            let count = u32::from_le_bytes(data[8..12].try_into().unwrap()) as usize;
            Ok(data[16..16 + count].to_vec())
        }
        (errno, _) => Err(errno),
    }
}

pub fn on_path(cells: &mut Cells, name: &str, path: &str) -> u32 {
    call(cells, name, &[ROOT, AT, path.len() as u64], path.as_bytes()).0
}

pub fn rename(cells: &mut Cells, from: &str, to: &str) -> u32 {
    let data = format!("{from}{to}");
    let to_at = AT + from.len() as u64;
    let arguments = [ROOT, AT, from.len() as u64, ROOT, to_at, to.len() as u64];
    call(cells, "path_rename", &arguments, data.as_bytes()).0
}

pub fn seek(cells: &mut Cells, fd: u64, offset: i64, whence: u64) -> Result<u64, u32> {
    match call(cells, "fd_seek", &[fd, offset.cast_unsigned(), whence, AT], &[]) {
        (OK, data) => Ok(u64::from_le_bytes(data[..8].try_into().unwrap())),
        (errno, _) => Err(errno),
    }
}

/// Kind and length of what is at a path.
pub fn stat(cells: &mut Cells, path: &str) -> Result<(u8, u64), u32> {
    match call(cells, "path_filestat_get", &[ROOT, 0, AT, path.len() as u64, AT + 2048], path.as_bytes()) {
        (OK, data) => {
            Ok((data[2048 + 16], u64::from_le_bytes(data[2048 + 32..2048 + 40].try_into().unwrap())))
        }
        (errno, _) => Err(errno),
    }
}

pub fn list(cells: &mut Cells, path: &str) -> Vec<String> {
    let fd = open(cells, path, DIRECTORY, READ).unwrap();
    let (errno, data) = call(cells, "fd_readdir", &[fd, AT + 8, DATA_BYTES as u64 - 8, 0, AT], &[]);
    assert_eq!(errno, OK);
    let used = u32::from_le_bytes(data[..4].try_into().unwrap()) as usize;
    let mut entries = &data[8..8 + used];
    let mut names = Vec::new();
    while entries.len() >= 24 {
        let len = u32::from_le_bytes(entries[16..20].try_into().unwrap()) as usize;
        names.push(String::from_utf8(entries[24..24 + len].to_vec()).unwrap());
        entries = &entries[24 + len..];
    }
    assert_eq!(call(cells, "fd_close", &[fd], &[]).0, OK);
    names
}
