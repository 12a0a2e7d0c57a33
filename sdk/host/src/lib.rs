//! Marram's end of a session inside a program: a client or a server that embeds what `marram agent` would do beside it, with the
//! same guarantees. What a cell has sent and this program has read never contradicts what the other end has read, whatever edges
//! died in between.
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
//! A server is told of sessions as a listener is of connections; the app's manifest names it (`server = "bank"`):
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
//! Where what is said has bounds, messages keep them; datagrams, of which one may be dropped before it has a number and none after,
//! do not wait. The same calls carry both:
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
//! A server may be several, each of its kind:
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
//! An end lives as long as its program: when the program's process dies its sessions are over, as a client's are whose machine
//! dies. Where they should outlive the program's *edge* only, this is what it takes; there is nothing to install or to start but
//! edges. Every start is one thread, which does what an agent's process does; connections are sockets that any runtime can wait for.
//!
//! This is CESSNA's Host API (section 6.1.2): establish a session, send, receive.

mod connection;
mod event;
mod messages;
mod running;

pub use connection::Connection;
pub use event::Event;
pub use marram_agent::{
    ConnectionKind, Timeouts,
    net::{Identity, Security},
};
pub use running::{Client, Incoming, Server};

use std::{fmt, sync::Arc};

/// Whoever is told of events.
type Observer = Arc<dyn Fn(Event<'_>) + Send + Sync>;

/// Where edges are, what they are shown and have to show, and how patient this end is.
#[derive(Clone)]
pub struct Settings {
    /// Edges as `host:port`, preferred first.
    pub edges: Vec<String>,
    /// How wires are protected. Between machines it takes a token or certificates.
    pub security: Security,
    /// How long it waits for what.
    pub timeouts: Timeouts,
    observer: Option<Observer>,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("edges", &self.edges)
            .field("security", &self.security)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// These edges, nothing to show, and the timeouts of an agent that was told of none.
    pub fn new<T: Into<String>>(edges: impl IntoIterator<Item = T>) -> Self {
        Self {
            edges: edges.into_iter().map(Into::into).collect(),
            security: Security::default(),
            timeouts: Timeouts::default(),
            observer: None,
        }
    }

    /// With the token of a credential that this program has at its edges: what the file holds that they call `token_file`, without white
    /// space around it.
    #[must_use]
    pub fn token(mut self, token: &str) -> Self {
        self.security.token = Some(token.trim().to_owned());
        self
    }

    /// With a file that keeps this end's key, and so its id, from one start to the next; it is made when missing. Without one both live
    /// as long as the client or server.
    #[must_use]
    pub fn identity_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
        self.security.identity_file = Some(path.into());
        self
    }

    /// With somebody who is told of what happens to edges and sessions, by the thread that does it all: it must not wait for
    /// anything.
    #[must_use]
    pub fn observer(mut self, observer: impl Fn(Event<'_>) + Send + Sync + 'static) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }
}
