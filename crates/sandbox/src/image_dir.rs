//! Writes the files of the image directory. Each is complete or absent, even after a crash and on a full disk.
//!
//! This module does not know what the files contain; `images` does.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Creates a file that is either complete under its name or absent: written to a temporary file, flushed to the disk, renamed.
/// The data reach the disk before the name does. After a crash a name without contents would be
/// refused by its digest, and an app that exists nowhere else would be lost.
///
/// `fill` writes the contents. The counter keeps two threads of one process apart, and the process
/// id two processes.
pub(crate) fn write_whole(
    dir: &Path,
    name: &str,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> Result<(), ImageWriteError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let aside = dir.join(format!(".{name}.{}.{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    let target = dir.join(name);
    let written = File::create_new(&aside)
        .and_then(|mut file| fill(&mut file).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&aside, &target));
    written.map_err(|error| {
        // The write already failed; that error is reported, not this one.
        let _ = fs::remove_file(&aside);
        ImageWriteError::new(&target, &error)
    })
}

/// Removes half-written files of processes that died. Files of live processes stay.
///
/// A temporary name ends in `.PID.COUNT`, so the writer is the part before the last dot. A process
/// that reuses the id keeps such a file until the next start; that costs only space.
pub(crate) fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let writer =
            name.to_str().filter(|name| name.starts_with('.')).and_then(|name| name.rsplit('.').nth(1));
        let dead = writer.is_some_and(|pid| {
            pid.bytes().all(|byte| byte.is_ascii_digit()) && !Path::new("/proc").join(pid).exists()
        });
        if dead {
            // Another process may have removed it first.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file of the image directory could not be written. No half-written file is left.
#[derive(Debug)]
pub struct ImageWriteError {
    path: PathBuf,
    full: bool,
    why: String,
}

impl ImageWriteError {
    pub(crate) fn new(path: &Path, error: &io::Error) -> Self {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        Self { path: path.into(), full, why: error.to_string() }
    }

    /// Whether the disk is full. If so, freeing space helps.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }
}

impl fmt::Display for ImageWriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the image directory cannot hold {}: {}", self.path.display(), self.why)?;
        if self.full {
            f.write_str("; free space there or name another directory, and deploy again")?;
        }
        Ok(())
    }
}

impl std::error::Error for ImageWriteError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_full_disk_leaves_nothing_behind_and_says_what_to_do() {
        let dir = std::env::temp_dir().join(format!("marram-images-full-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let error = write_whole(&dir, "x.image", |file| {
            file.write_all(b"half")?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        })
        .unwrap_err();
        assert!(error.is_full());
        assert!(error.to_string().contains("free space"), "{error}");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        write_whole(&dir, "x.image", |file| file.write_all(b"whole")).unwrap();
        assert_eq!(fs::read(dir.join("x.image")).unwrap(), b"whole");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_dead_processes_left_is_swept_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("marram-images-sweep-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let live = format!(".a.image.{}.0", std::process::id());
        // Process numbers end below 2^22.
        for name in [".a.image.4194999.0", &live, "a.image", ".hidden", "b.4194999.0"] {
            fs::write(dir.join(name), b"x").unwrap();
        }
        sweep(&dir);
        let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [&live, ".hidden", "a.image", "b.4194999.0"]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
