//! A client: what a program starts to open connections.

use crate::{Connection, Settings, running::Running};
use marram_agent::ConnectionKind;
use std::{io, sync::Arc, time::Duration};

/// A client: opens connections, each to a new cell.
///
/// Clones share one client. It runs, on its own thread, while there is a clone or a connection.
#[derive(Clone, Debug)]
pub struct Client(Arc<Running>);

impl Client {
    /// Starts a client. It dials its edges at once; [`Self::wait_ready`] waits until one answers.
    ///
    /// # Errors
    /// If the settings are invalid, with what to change, or if the process has no file descriptor or thread left.
    pub fn start(settings: Settings) -> io::Result<Self> {
        Running::start(settings, &[]).map(|(running, _)| Self(running))
    }

    /// A connection to a new cell of `app`, or to the cell that its clients share. Returns at once: written bytes wait until an
    /// edge has taken the session; if none does within [`crate::Timeouts::edge_wait`], reads return the reason.
    ///
    /// # Errors
    /// If the client was closed, if the agent's queue is full, or if the process has no file descriptor left.
    pub fn connect(&self, app: &str) -> io::Result<Connection> {
        self.connect_as(app, ConnectionKind::Stream)
    }

    /// As [`Self::connect`], with this kind of connection: messages or datagrams.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn connect_as(&self, app: &str, kind: ConnectionKind) -> io::Result<Connection> {
        Ok(Connection::new(self.0.connect_handle.connect(app, kind)?, &self.0))
    }

    /// Datagrams that were sent on its connections and dropped because there was no room. The counter is updated with a short
    /// delay.
    #[must_use]
    pub fn datagrams_dropped(&self) -> u64 {
        self.0.routing.datagrams_dropped()
    }

    /// Waits until an edge answers.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if none does in this time.
    pub fn wait_ready(&self, time: Duration) -> io::Result<()> {
        self.0.wait_ready(time)
    }

    /// Stops it: refuses new connections, and returns when all sessions are over. A program that ends without this call may lose
    /// its last writes.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if some were not over within [`crate::Timeouts::drain`]; otherwise if the agent failed because
    /// of the operating system.
    pub fn close(self) -> io::Result<()> {
        self.0.close()
    }
}
