//! Resolves names to addresses on a separate thread, because the system's resolver blocks.
//!
//! One thread resolves one name after the other: a name server that does not answer delays all
//! names behind it by the system's timeout. Addresses in numbers never come here (`transport.rs`).
//! The thread ends when the [`Resolver`] is dropped, after its present name.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

/// Names that wait to be resolved; further ones fail at once.
const WAITING_MAX: usize = 1024;

/// The result of a query: its purpose, and the addresses.
pub(super) type Resolved<T> = (T, io::Result<Vec<SocketAddr>>);

/// Queries the system's resolver without blocking.
pub(super) struct Resolver<T> {
    questions: SyncSender<(T, String)>,
    answers: Receiver<Resolved<T>>,
}

impl<T: Send + 'static> Resolver<T> {
    /// Starts the thread; it calls `waker` after each answer.
    pub(super) fn start(waker: Arc<mio::Waker>) -> io::Result<Self> {
        let (questions, asked) = sync_channel::<(T, String)>(WAITING_MAX);
        // The thread waits if the loop does not take answers, and the questions fill up; neither
        // blocks the loop.
        let (answer, answers) = sync_channel(WAITING_MAX);
        thread::Builder::new().name("resolver".into()).spawn(move || {
            for (what, name) in asked {
                if answer.send((what, resolve(&name))).is_err() || waker.wake().is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { questions, answers })
    }

    /// Queries the addresses of `host:port`. Returns the purpose if too many queries wait.
    pub(super) fn ask(&self, what: T, name: &str) -> Result<(), T> {
        self.questions.try_send((what, name.to_string())).map_err(|error| match error {
            TrySendError::Full((what, _)) | TrySendError::Disconnected((what, _)) => what,
        })
    }

    /// Takes the next answer, if one is there.
    pub(super) fn take(&self) -> Option<Resolved<T>> {
        self.answers.try_recv().ok()
    }
}

/// The addresses of `host:port`, sorted. If there are IPv4 addresses, only those, so that a host that has both counts once.
///
/// # Errors
/// If the system knows no address. It may be asked again: nothing is cached here.
pub(super) fn resolve(name: &str) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<_> = name.to_socket_addrs()?.collect();
    if addresses.iter().any(SocketAddr::is_ipv4) {
        addresses.retain(SocketAddr::is_ipv4);
    }
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_version_of_an_address_is_enough() {
        assert_eq!(resolve("127.0.0.1:80").expect("literal"), ["127.0.0.1:80".parse().expect("literal")]);
        assert_eq!(resolve("[::1]:80").expect("literal"), ["[::1]:80".parse().expect("literal")]);
        assert_eq!(resolve("localhost:80").expect("in every hosts file").len(), 1);
        assert!(resolve("no port").is_err());
    }
}
