//! An edge's state directory belongs to one edge: two would remove each other's apps and recordings. The kernel releases the lock
//! when the process ends, for any reason.

use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// The lock file. It is never removed; its content names the process that has the lock.
const NAME: &str = "lock";

/// A directory that no other edge uses while this value exists. Child processes do not inherit the lock.
#[derive(Debug)]
pub struct StateDirLock(#[expect(dead_code, reason = "it is locked while it is open")] File);

/// Why a state directory is not this edge's. The operator fixes the directory, or names another as `state`.
#[derive(Debug)]
pub enum LockError {
    /// It cannot be made, or the lock file in it not written.
    Unusable(PathBuf, io::Error),
    /// Another process has the lock; with what the lock file says of it.
    InUse(PathBuf, String),
    /// The file system cannot lock.
    Unlockable(PathBuf, io::Error),
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unusable(directory, error) => {
                let fix = match error.kind() {
                    io::ErrorKind::StorageFull => "free space there",
                    io::ErrorKind::PermissionDenied => {
                        "make it writable for the user that the edge runs as, or name another `state`"
                    }
                    _ => "name another `state`",
                };
                write!(f, "{} cannot be written to: {error}; {fix}", directory.display())
            }
            Self::InUse(directory, holder) => write!(
                f,
                "{} is in use by {holder}: give each edge its own `state`, or stop that process",
                directory.display()
            ),
            Self::Unlockable(directory, error) => {
                write!(f, "{} cannot be locked: {error}", directory.display())
            }
        }
    }
}

impl std::error::Error for LockError {}

/// Locks the directory, which is made when missing.
///
/// # Errors
/// If another edge has locked it, or it is not writable.
///
/// The caller keeps the value for as long as the edge runs. The kernel's lock and no file that
/// exists or not: after a crash there is nothing to clean up.
pub fn lock(directory: &Path) -> Result<StateDirLock, LockError> {
    let open = || -> io::Result<File> {
        fs::create_dir_all(directory)?;
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(directory.join(NAME))
    };
    let mut file = open().map_err(|error| LockError::Unusable(directory.to_owned(), error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The file is empty for a moment after the other edge has started.
            let _ = file.read_to_string(&mut holder);
            let holder = if holder.is_empty() { "another process" } else { holder.trim() };
            return Err(LockError::InUse(directory.to_owned(), holder.to_owned()));
        }
        Err(TryLockError::Error(error)) => {
            return Err(LockError::Unlockable(directory.to_owned(), error));
        }
    }
    // Only for people to read, so a full disk does not matter.
    let _ = file.set_len(0).and_then(|()| writeln!(file, "process {}", std::process::id()));
    Ok(StateDirLock(file))
}

#[cfg(test)]
mod tests {
    use super::lock;

    #[test]
    fn a_directory_is_one_edges_until_it_is_gone() {
        let directory = std::env::temp_dir().join(format!("marram-state-{}", std::process::id()));
        let first = lock(&directory).expect("it is free");
        let refused = lock(&directory).expect_err("it is taken").to_string();
        assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
        drop(first);
        lock(&directory).expect("it is free again");
        std::fs::remove_dir_all(&directory).expect("ours");
    }
}
