//! The shared library that programs load. The binary contains it, and the loader needs a file: in a directory where only this
//! user writes.
//!
//! A file that another user could replace would run that user's code in the program, so each
//! directory above it is checked. Its name has a digest of its contents: versions of `marram` do
//! not disturb each other, and a program that runs keeps its file.

use anyhow::{Context, bail};
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The library, compiled by `build.rs`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/marram_preload.so"));

/// Returns the path of the library's file, and writes the file if it is missing.
pub(super) fn place() -> anyhow::Result<PathBuf> {
    let mut refusals = Vec::new();
    for directory in candidates() {
        match place_in(&directory) {
            Ok(path) => return Ok(path),
            Err(error) => refusals.push(format!("{}: {error:#}", directory.display())),
        }
    }
    bail!(
        "no directory is suitable for the library that the program loads ({}): set XDG_RUNTIME_DIR to your own \
         directory on a file system that allows execution",
        refusals.join("; ")
    )
}

/// Preferred first: a directory that goes away with the user's session, then a permanent one.
fn candidates() -> Vec<PathBuf> {
    let below = |variable, rest: &str| std::env::var_os(variable).map(|base| Path::new(&base).join(rest));
    let own = format!("marram-{}", rustix::process::geteuid().as_raw());
    [below("XDG_RUNTIME_DIR", "marram"), below("HOME", ".cache/marram"), Some(std::env::temp_dir().join(own))]
        .into_iter()
        .flatten()
        .filter(|directory| directory.is_absolute())
        .collect()
}

///
/// # Errors
/// Why this directory is not suitable; the next one is tried.
fn place_in(directory: &Path) -> anyhow::Result<PathBuf> {
    // The loader's list has no escape for these characters.
    if directory.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':' | b'\t' | b'\n')) {
        bail!("there is a space or a colon in its name");
    }
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let meta = fs::symlink_metadata(directory)?;
    if !meta.is_dir() || meta.uid() != rustix::process::geteuid().as_raw() || meta.mode() & 0o022 != 0 {
        bail!("it is not a directory that only this user writes to");
    }
    if !is_out_of_reach(&fs::canonicalize(directory)?) {
        bail!("another user may change a directory above it");
    }
    if statvfs(directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        bail!("its file system does not allow execution (noexec)");
    }
    let name = format!("preload-{}.so", &blake3::hash(OBJECT).to_hex()[..16]);
    let path = directory.join(&name);
    // Compared as a whole: a file that was cut off by a full disk is written again.
    if fs::read(&path).is_ok_and(|bytes| bytes == OBJECT) {
        return Ok(path);
    }
    let mut mark = [0; 8];
    rustix::rand::getrandom(&mut mark, rustix::rand::GetRandomFlags::empty())?;
    let aside = directory.join(format!(".{name}.{:016x}", u64::from_ne_bytes(mark)));
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
        file.write_all(OBJECT)?;
        fs::rename(&aside, &path)
    };
    write()
        .inspect_err(|_| {
            // The error of the write is reported; that this file also remains does not matter.
            let _ = fs::remove_file(&aside);
        })
        .context("it cannot be written")?;
    Ok(path)
}

/// Whether no other user can replace it: each directory above it belongs to this user or root, and other users cannot write
/// there, or cannot move files of others (sticky bit).
fn is_out_of_reach(directory: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    directory.ancestors().skip(1).all(|above| {
        above.metadata().is_ok_and(|meta| {
            [0, own].contains(&meta.uid()) && (meta.mode() & 0o022 == 0 || meta.mode() & 0o1000 != 0)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_object_stands_in_front_of_two_functions_and_no_more() {
        let has = |name: &[u8]| OBJECT.windows(name.len()).any(|window| window == name);
        assert!(has(b"\0connect\0") && has(b"\0getpeername\0"));
        assert!(!has(b"rust_eh_personality"), "every Rust library of a program would take it for its own");
    }

    #[test]
    fn the_object_is_written_once_and_mended_if_it_was_changed() {
        let base = std::env::temp_dir().join(format!("marram-object-{}", std::process::id()));
        let directory = base.join("deep/marram");
        let path = place_in(&directory).unwrap();
        let first = fs::metadata(&path).unwrap().ino();
        assert_eq!(place_in(&directory).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first, "it stayed");
        fs::write(&path, b"half").unwrap();
        place_in(&directory).unwrap();
        assert_eq!(fs::read(&path).unwrap(), OBJECT);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);

        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(place_in(&directory).unwrap_err().to_string().contains("only this user"));
        assert!(place_in(&base.join("a b")).is_err());
        fs::set_permissions(base.join("deep"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(place_in(&directory).unwrap_err().to_string().contains("above it"));
        fs::remove_dir_all(base).unwrap();
    }
}
