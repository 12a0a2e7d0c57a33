//! The smallest server for a single client: a static program that opens a listening socket and ends.
//!
//! ```text
//! ELF header 64 | program header 56 | code            one segment, mapped at 0x400000, read and execute
//! ```
//! A program that is linked against nothing shows the kernel's part of fork and exec; any real
//! server needs more.

use marram_cluster::TempDir;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Where the program's only segment is mapped.
const BASE: u64 = 0x40_0000;
/// Bytes of the ELF header and of the one program header.
const HEADERS: u64 = 64 + 56;

/// `exit(listen(socket(AF_INET, SOCK_STREAM, 0), 1) == 0 ? 0 : 1)`, in x86-64 machine code.
const CODE: &[u8] = &[
    0xb8, 41, 0, 0, 0, // mov eax, SYS_socket
    0xbf, 2, 0, 0, 0, // mov edi, AF_INET
    0xbe, 1, 0, 0, 0, // mov esi, SOCK_STREAM
    0x31, 0xd2, // xor edx, edx
    0x0f, 0x05, // syscall
    0x89, 0xc7, // mov edi, eax
    0xb8, 50, 0, 0, 0, // mov eax, SYS_listen
    0xbe, 1, 0, 0, 0, // mov esi, 1
    0x0f, 0x05, // syscall
    0x31, 0xff, // xor edi, edi
    0x85, 0xc0, // test eax, eax
    0x40, 0x0f, 0x95, 0xc7, // setne dil
    0xb8, 60, 0, 0, 0, // mov eax, SYS_exit
    0x0f, 0x05, // syscall
];

/// Writes the program; returns `None` on machines that cannot run it.
pub(super) fn write(place: &TempDir) -> anyhow::Result<Option<PathBuf>> {
    if cfg!(not(all(target_arch = "x86_64", target_os = "linux"))) {
        return Ok(None);
    }
    let path = place.write("server", program())?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700))?;
    Ok(Some(path))
}

/// An ELF file of one segment.
fn program() -> Vec<u8> {
    let size = HEADERS + CODE.len() as u64;
    let mut elf = Vec::new();
    // Identification: 64 bits, little-endian, version 1.
    elf.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let half = |elf: &mut Vec<u8>, number: u16| elf.extend_from_slice(&number.to_le_bytes());
    let word = |elf: &mut Vec<u8>, number: u32| elf.extend_from_slice(&number.to_le_bytes());
    let long = |elf: &mut Vec<u8>, number: u64| elf.extend_from_slice(&number.to_le_bytes());
    // An executable, for x86-64.
    half(&mut elf, 2);
    half(&mut elf, 62);
    word(&mut elf, 1);
    // Entry point; offset of the program headers; no sections.
    long(&mut elf, BASE + HEADERS);
    long(&mut elf, 64);
    long(&mut elf, 0);
    word(&mut elf, 0);
    for number in [64, 56, 1, 0, 0, 0] {
        half(&mut elf, number);
    }
    // The segment: loaded, readable and executable, the whole file.
    word(&mut elf, 1);
    word(&mut elf, 5);
    for number in [0, BASE, BASE, size, size, 4096] {
        long(&mut elf, number);
    }
    elf.extend_from_slice(CODE);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimal_server_runs() {
        let place = TempDir::new("tiny").unwrap();
        if let Some(path) = write(&place).unwrap() {
            assert!(std::process::Command::new(path).status().unwrap().success());
        }
    }
}
