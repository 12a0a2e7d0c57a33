//! A server: what a program starts to accept connections.

use crate::{Connection, Settings, running::Running};
use marram_agent::{Backlog, ConnectionKind};
use std::{
    collections::BTreeSet,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

/// A server: accepts a connection for each session of an app that names it. Several threads may accept.
#[derive(Debug)]
pub struct Server {
    running: Arc<Running>,
    accepted: Arc<Backlog>,
}

impl Server {
    /// Starts one under the name that manifests use. Its connections are streams.
    ///
    /// # Errors
    /// If the settings are invalid, with what to change, or if the process has no file descriptor or thread left.
    pub fn start(settings: Settings, name: &str) -> io::Result<Self> {
        Self::start_as(settings, &[(name, ConnectionKind::Stream)])
    }

    /// Starts several servers in one, by the names that manifests use, each with its own kind: each connection has a kind
    /// ([`Connection::kind`]) and a server name ([`Connection::server`]). Their clients may use other kinds.
    ///
    /// # Errors
    /// As [`Self::start`]; if there is no name, or one name has two kinds.
    pub fn start_as(settings: Settings, servers: &[(&str, ConnectionKind)]) -> io::Result<Self> {
        let wrong = |words: String| Err(io::Error::new(io::ErrorKind::InvalidInput, words));
        if servers.is_empty() || servers.iter().any(|(name, _)| name.is_empty()) {
            return wrong("a server needs a name: the manifest's `server`".to_owned());
        }
        let mut names = BTreeSet::new();
        if let Some((name, _)) = servers.iter().find(|(name, _)| !names.insert(name)) {
            return wrong(format!("`{name}` is named twice: a server has one kind"));
        }
        let (running, accepted) = Running::start(settings, servers)?;
        Ok(Self { running, accepted })
    }

    /// As [`crate::Client::datagrams_dropped`].
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.running.routing.datagrams_dropped()
    }

    /// Waits for the next session's connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] after [`Self::stop`], or if the agent failed because of the operating system.
    pub fn accept(&self) -> io::Result<Connection> {
        Ok(Connection::new(self.accepted.take(None)?, &self.running))
    }

    /// Waits at most this long; `None` if no session came.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn accept_timeout(&self, time: Duration) -> io::Result<Option<Connection>> {
        match self.accepted.take(Some(Instant::now() + time)) {
            Ok(half) => Ok(Some(Connection::new(half, &self.running))),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// One connection after the other, until the agent has stopped.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming(self)
    }

    /// Waits until an edge answers.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if none does in this time.
    pub fn wait_ready(&self, time: Duration) -> io::Result<()> {
        self.running.wait_ready(time)
    }

    /// Refuses new sessions from now on; existing ones continue. A blocked [`Self::accept`] in another thread fails once they are
    /// over, or [`crate::Timeouts::drain`] has passed.
    pub fn stop(&self) {
        self.running.stop();
    }

    /// As [`crate::Client::close`].
    ///
    /// # Errors
    /// As [`crate::Client::close`].
    pub fn close(self) -> io::Result<()> {
        self.running.close()
    }
}

/// The iterator of [`Server::incoming`].
#[derive(Debug)]
pub struct Incoming<'a>(&'a Server);

impl Iterator for Incoming<'_> {
    type Item = Connection;
    fn next(&mut self) -> Option<Connection> {
        self.0.accept().ok()
    }
}
