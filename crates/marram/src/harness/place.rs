//! A directory for one run, and addresses that nobody uses.

use super::interrupt;
use anyhow::Context;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Others may look into a run's directory, as servers do that run as somebody else; only its user changes it.
const MODE: u32 = 0o755;

/// A directory of its own below the system's temporary one, removed with everything in it at the end.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
}

impl Place {
    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(purpose: &str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("marram-{purpose}-{}-{count}", std::process::id()));
            // Somebody else's directory of that name would be theirs to change.
            match DirBuilder::new().mode(MODE).create(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made.with_context(|| format!("cannot make {}", path.display()))?;
                    interrupt::made(&path);
                    return Ok(Self { path });
                }
            }
        }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file, and the directories above it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        let parent = path.parent().unwrap_or(&self.path);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, contents))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// Writes a new file that nobody else can read.
    ///
    /// # Errors
    /// If it is there already, or cannot be written.
    pub fn write_private(&self, name: &str, contents: impl AsRef<[u8]>) -> anyhow::Result<PathBuf> {
        let path = self.path.join(name);
        let write = || -> std::io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(contents.as_ref())
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever empties the temporary directory.
        let _ = std::fs::remove_dir_all(&self.path);
        interrupt::removed(&self.path);
    }
}

/// An address on loopback that was free a moment ago. A process that must come back under the same address after it was
/// killed cannot use port 0.
///
/// # Errors
/// If there is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback")?;
    Ok(listener.local_addr()?)
}
