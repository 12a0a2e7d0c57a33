//! What happens to the ports of a shared cell while it runs, as entries of its log. Each client of such a cell has a port, from the
//! entry that it joins with to the one that it leaves with.
//!
//! ```text
//! event := 0 joined   | port | client | flags: by datagrams (bit 0), is known (bit 1)  [| peer]
//!        | 1 resumed  | port | generation
//!        | 2 expelled | port
//!        | 3 left     | port | quietly (1)
//! client := session (16) | host (16) | generation
//! ```
//!
//! No port is the server's of a session with two ends. The servers to which a shared cell connects have ports from
//! [`Port::FIRST_CONNECTED`] on: the event `joined` of such a port says that an agent has taken the connection. That the cell asked for it, and the server's name, follow from the handler that did.

use crate::{
    codec::{Error, Field},
    id::{Generation, HostId, Port, SessionId},
    peer::Peer,
    record,
};
use alloc::{boxed::Box, sync::Arc};
use bytes::{Bytes, BytesMut};

const JOINED: u8 = 0;
const RESUMED: u8 = 1;
const EXPELLED: u8 = 2;
const LEFT: u8 = 3;

const DATAGRAMS: u8 = 1;
const KNOWN: u8 = 2;

record! {
    /// The client at a port, or the server, as its end and its edge know it.
    Client {
        /// The session that the client's end has, which is not the cell's.
        session: SessionId,
        /// The agent of its end.
        host: HostId,
        /// The generation that its end has promised to the owner.
        generation: Generation,
    }
}

/// A client that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The port that it gets.
    pub port: Port,
    /// The client.
    pub client: Client,
    /// Whether it uses datagrams: each is one message, never cut and never merged.
    pub datagrams: bool,
    /// What is known of it.
    pub peer: Option<Arc<Peer>>,
}

/// What happens to a port of a shared cell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// A client joins, or a server to which the cell connects is reached: its port opens.
    Joined(Box<Joined>),
    /// The client's end has promised a newer generation. No handler runs.
    Resumed {
        /// The client's port.
        port: Port,
        /// The generation.
        generation: Generation,
    },
    /// A handler of this client's input was stopped: its messages are not handled any more. No handler runs.
    Expelled {
        /// The client's port.
        port: Port,
    },
    /// The client leaves: its port closes, unless it is closed already, and is gone.
    Left {
        /// The client's port.
        port: Port,
        /// Whether the cell is not told that the port closes, only that it is gone.
        quietly: bool,
    },
}

impl PortEvent {
    /// Whether it says that an end has promised.
    #[must_use]
    pub fn is_of_promise(&self) -> bool {
        matches!(self, Self::Joined(_) | Self::Resumed { .. })
    }

    /// The port that it happens to.
    #[must_use]
    pub fn port(&self) -> Port {
        match self {
            Self::Joined(joined) => joined.port,
            Self::Resumed { port, .. } | Self::Expelled { port } | Self::Left { port, .. } => *port,
        }
    }
}

impl Field for Joined {
    fn put(&self, out: &mut BytesMut) {
        self.port.put(out);
        self.client.put(out);
        let datagrams = if self.datagrams { DATAGRAMS } else { 0 };
        let known = if self.peer.is_some() { KNOWN } else { 0 };
        (datagrams | known).put(out);
        if let Some(peer) = &self.peer {
            peer.put(out);
        }
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let (port, client) = (taken_port(from)?, Client::take(from)?);
        let flags = u8::take(from)?;
        if flags & !(DATAGRAMS | KNOWN) != 0 {
            return Err(Error::Unknown);
        }
        let peer = (flags & KNOWN != 0).then(|| Peer::take(from).map(Arc::new)).transpose()?;
        Ok(Self { port, client, datagrams: flags & DATAGRAMS != 0, peer })
    }
}

impl Field for PortEvent {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Joined(joined) => {
                JOINED.put(out);
                joined.put(out);
            }
            Self::Resumed { port, generation } => {
                RESUMED.put(out);
                port.put(out);
                generation.put(out);
            }
            Self::Expelled { port } => {
                EXPELLED.put(out);
                port.put(out);
            }
            Self::Left { port, quietly } => {
                LEFT.put(out);
                port.put(out);
                quietly.put(out);
            }
        }
    }
    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Ok(match u8::take(from)? {
            JOINED => Self::Joined(Field::take(from)?),
            RESUMED => Self::Resumed { port: taken_port(from)?, generation: Field::take(from)? },
            EXPELLED => Self::Expelled { port: taken_port(from)? },
            LEFT => Self::Left { port: taken_port(from)?, quietly: Field::take(from)? },
            _ => return Err(Error::Unknown),
        })
    }
}

/// A port of a client.
fn taken_port(from: &mut Bytes) -> Result<Port, Error> {
    Port::take(from).and_then(|port| if port == Port::SERVER { Err(Error::Unknown) } else { Ok(port) })
}
