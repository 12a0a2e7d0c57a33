//! Marram's end of a session inside a program: a client or a server that embeds `marram agent`, with the same guarantees. What
//! this program has read from a cell never contradicts what the other end has read, whatever edges died in between.
//!
//! ```no_run
//! use marram_host::{Client, Settings};
//! use std::io::{Read, Write};
//!
//! # fn main() -> std::io::Result<()> {
//! let settings = Settings::new(["edge-a.example:7400", "edge-b.example:7400"]).token("a secret of the domain's");
//! let client = Client::start(settings)?;
//! let mut connection = client.connect("counter")?; // a cell of its own
//! connection.write_all(b"add 1\n")?;
//! let mut answer = [0; 64];
//! let length = connection.read(&mut answer)?; // waits while an edge dies and another takes over
//! println!("{}", String::from_utf8_lossy(&answer[..length]));
//! drop(connection);
//! client.close() // all that was written is delivered
//! # }
//! ```
//!
//! A server accepts sessions as a listener accepts connections; the app's manifest names it (`server = "bank"`):
//!
//! ```no_run
//! use marram_host::{Server, Settings};
//!
//! # fn main() -> std::io::Result<()> {
//! let server = Server::start(Settings::new(["edge-a.example:7400"]), "bank")?;
//! for connection in server.incoming() {
//!     std::thread::spawn(move || std::io::copy(&mut &connection, &mut &connection));
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Messages keep message boundaries. Datagrams do too, and do not block: one may be dropped before it has a number, and none
//! after. The same calls carry both:
//!
//! ```no_run
//! use marram_host::{Client, ConnectionKind, Settings};
//!
//! # fn main() -> std::io::Result<()> {
//! # let settings = Settings::new(["edge-a.example:7400"]);
//! let client = Client::start(settings)?;
//! let game = client.connect_as("pong", ConnectionKind::Datagrams)?;
//! game.send(b"up")?; // does not wait for an edge
//! while let Some(message) = game.recv()? {
//!     println!("{} bytes", message.len());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! One server object may be several servers, each with its own kind:
//!
//! ```no_run
//! use marram_host::{ConnectionKind, Server, Settings};
//!
//! # fn main() -> std::io::Result<()> {
//! # let settings = Settings::new(["edge-a.example:7400"]);
//! let server = Server::start_as(settings, &[("bank", ConnectionKind::Stream), ("dns", ConnectionKind::Datagrams)])?;
//! for connection in server.incoming() {
//!     match connection.kind() {
//!         ConnectionKind::Stream => drop(std::thread::spawn(move || std::io::copy(&mut &connection, &mut &connection))),
//!         ConnectionKind::Messages | ConnectionKind::Datagrams => drop(std::thread::spawn(move || {
//!             while let Some(question) = connection.recv()? {
//!                 connection.send(&question)?;
//!             }
//!             std::io::Result::Ok(())
//!         })),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! An end lives as long as its program: when the program's process dies, its sessions end, as those of a client do when its
//! machine dies. If sessions only have to survive the death of an *edge*, this is sufficient; nothing but edges has to be
//! installed or started. Every start creates one thread, which does the work of an agent's process; connections are sockets that
//! any runtime can wait for.
//!
//! This is CESSNA's Host API (section 6.1.2): establish a session, send, receive.

mod client;
mod connection;
mod event;
mod messages;
mod running;
mod server;

pub use client::Client;
pub use connection::Connection;
pub use event::Event;
pub use marram_agent::{ConnectionKind, Timeouts};
pub use marram_transport::{Identity, Security};
pub use server::{Incoming, Server};

use std::{fmt, sync::Arc};

/// The callback for events.
type Observer = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// The addresses of edges, the credentials of both sides, and the timeouts.
#[derive(Clone)]
pub struct Settings {
    /// Edges as `host:port`, preferred first.
    pub edges: Vec<String>,
    /// How wires are protected. Between machines, a token or certificates are required.
    pub security: Security,
    /// The timeouts of the agent.
    pub timeouts: Timeouts,
    /// Bytes that the sessions of this program may keep together: messages, log, checkpoints. 1 GiB if nothing is set. As it
    /// fills, sessions are slowed and new ones wait; none is ended.
    pub memory: u64,
    observer: Option<Observer>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("edges", &self.edges)
            .field("security", &self.security)
            .field("timeouts", &self.timeouts)
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// These edges, no credentials, and an agent's default timeouts.
    pub fn new<T: Into<String>>(edges: impl IntoIterator<Item = T>) -> Self {
        Self {
            edges: edges.into_iter().map(Into::into).collect(),
            security: Security::default(),
            timeouts: Timeouts::default(),
            memory: marram_agent::MEMORY,
            observer: None,
        }
    }

    /// Sets the token of this program's credential at its edges: the content of the edges' `token_file`, without white space
    /// around it.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.security.token = Some(token.trim().to_owned());
        self
    }

    /// Sets the file that keeps this end's key, and so its id, between starts; it is created if missing. Without it, both are
    /// lost when the client or server ends.
    #[must_use]
    pub fn identity_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.security.identity_file = Some(path.into());
        self
    }

    /// Sets a callback for events of edges and sessions. The agent's thread calls it, so it must not block.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}
