//! A directory for one run, and unused addresses.

use super::interrupt;
use anyhow::Context;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Other users may read a run's directory, since some servers run as another user; only its owner changes it.
const MODE: u32 = 0o755;

/// A separate directory below the system's temporary one, removed with its contents on drop.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn new(purpose: &str) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("marram-{purpose}-{}-{count}", std::process::id()));
            // A directory of that name that another user made would be under that user's control.
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

    /// Writes a new file that no other user can read.
    ///
    /// # Errors
    /// If it exists already, or cannot be written.
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

impl Drop for TempDir {
    fn drop(&mut self) {
        // What cannot be removed remains in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.path);
        interrupt::removed(&self.path);
    }
}

/// Addresses that were handed out, each held by a socket that is bound to it and does not listen. The system gives such a port to
/// no outgoing connection and to no other bind to port 0, while the process that was given the address may listen on it, also
/// after a restart.
static GIVEN: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// A loopback address for TCP that is kept free for one listener as long as this process lives. A process that must listen on the
/// same address after it was killed cannot use port 0.
///
/// # Errors
/// If there is none.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let reserve = || -> io::Result<(OwnedFd, SocketAddr)> {
        let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        net::bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        // Servers' listeners set this option too, and both sockets must.
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        let address = SocketAddr::try_from(net::getsockname(&socket)?)?;
        Ok((socket, address))
    };
    let (socket, address) = reserve().context("no free port on loopback")?;
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::free_address;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_free_address_is_its_owners_before_and_after_its_death() {
        let address = free_address().unwrap();
        TcpStream::connect(address).expect_err("nothing listens");
        for _ in 0..2 {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(address).unwrap();
            assert_eq!(listener.accept().unwrap().1, client.local_addr().unwrap());
        }
    }
}
