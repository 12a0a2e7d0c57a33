//! How the loop of an agent or a recorder opens connections: wires to edges, sockets to servers. Another thread resolves their
//! names.
//!
//! ```text
//! target or server ─▶ address in numbers? ─ yes ─▶ socket, connecting
//!                                          └ no ──▶ resolver's thread ─▶ Waker ─▶ next_dialed ─▶ socket, connecting
//! ```
//!
//! No function here waits. Connecting, TLS and the handshake go on in the loop.

use super::{
    ServerSettings, datagrams,
    edges::EdgeAddress,
    program::{Handing, StreamHalf},
    resolver::{Resolved, Resolver},
};
use anyhow::{Context, anyhow};
use bytes::Bytes;
use marram_session::agent::{
    ConnectionId, Target,
    proxy::{self, ProxyAddresses},
};
use marram_transport::{Socket, Wire, WireConnector};
use marram_wire::{id::HostId, peer::Origin};
use mio::{
    Waker,
    net::{TcpStream, UdpSocket, UnixStream},
};
use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

/// How an agent reaches its edges.
///
/// The state machine dials (edge, shard) in both cases.
pub enum EdgeTransport {
    /// Over the network.
    Edges {
        /// The agent's key, credentials and TLS settings.
        connector: WireConnector,
        /// The addresses of the edges.
        edges: Vec<EdgeAddress>,
    },
    /// Within the process: the agent of an edge's own gates gets a socket to one of its shards.
    /// Wires over it are trusted: no other process can have the other end.
    Own(Box<dyn Fn(u8) -> io::Result<UnixStream> + Send>),
}

/// The protocol of a server.
enum ServerProtocol {
    /// Datagrams.
    Datagrams,
    /// A stream, with this header first, if any.
    Stream(Option<Bytes>),
}

impl ServerProtocol {
    /// The header is made before the name is resolved, while the session's client is at hand.
    /// Without known addresses the header says so (`LOCAL` of the PROXY protocol), since the server
    /// expects one.
    fn of(server: &ServerSettings, origin: Option<&Origin>) -> Self {
        if server.datagrams {
            return Self::Datagrams;
        }
        let ends = origin
            .and_then(|origin| Some(ProxyAddresses { source: origin.client?, destination: origin.local? }));
        Self::Stream(server.proxy_protocol.then(|| proxy::write(ends).into()))
    }
}

/// A connection that was started.
pub enum ServerLink {
    /// A stream, and the header that is sent first.
    Stream(Socket, Option<Bytes>),
    /// To the program that the agent is embedded in.
    Program(StreamHalf),
    /// A datagram socket.
    Datagrams(UdpSocket),
}

/// The purpose of a name resolution.
enum ResolvePurpose {
    Wire(Target),
    /// A server, with its protocol.
    Server(ConnectionId, ServerProtocol),
}

/// A connection that was started after its name was resolved.
pub enum Dialing {
    /// A wire.
    Wire(Target, anyhow::Result<Box<Wire>>),
    /// A connection to a server.
    Server(ConnectionId, anyhow::Result<ServerLink>),
}

/// Starts connections.
pub struct EndpointDialer {
    transport: EdgeTransport,
    servers: BTreeMap<String, ServerSettings>,
    /// Servers that are the embedding program.
    own: BTreeMap<String, Handing>,
    resolver: Resolver<ResolvePurpose>,
}

impl EdgeTransport {
    /// The id by which edges know the agent, if it connects to them over the network.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        match self {
            Self::Edges { connector, .. } => Some(connector.host()),
            Self::Own(_) => None,
        }
    }
}

impl EndpointDialer {
    /// The resolver calls `waker` when a name is resolved.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(transport: EdgeTransport, servers: &[ServerSettings], waker: Arc<Waker>) -> io::Result<Self> {
        let servers = servers.iter().map(|server| (server.name.clone(), server.clone())).collect();
        Ok(Self { transport, servers, own: BTreeMap::new(), resolver: Resolver::start(waker)? })
    }

    /// Adds servers that are the embedding program.
    pub(super) fn add(&mut self, own: BTreeMap<String, Handing>) {
        self.own = own;
    }

    /// The configured edges.
    pub fn edges(&self) -> &[EdgeAddress] {
        match &self.transport {
            EdgeTransport::Edges { edges, .. } => edges,
            EdgeTransport::Own(_) => &[],
        }
    }

    /// Starts a wire; `None` while its edge's name is being resolved.
    ///
    /// # Errors
    /// If the dial fails at once, for example because no descriptor is left. The caller reports it
    /// as a failed dial, and the state machine retries.
    pub fn wire(&self, target: Target) -> anyhow::Result<Option<Wire>> {
        match &self.transport {
            EdgeTransport::Own(shard) => Ok(Some(Wire::trusted(Socket::Unix(shard(target.shard)?), None))),
            EdgeTransport::Edges { connector, edges } => {
                let edge = edges.get(usize::from(target.edge)).context("no such edge is configured")?;
                if let Ok(address) = edge.name.parse() {
                    return connector.dial(address, edge.host(), target.shard).map(Some);
                }
                let asked = self.resolver.ask(ResolvePurpose::Wire(target), &edge.name);
                asked.map(|()| None).map_err(|_| anyhow!("too many names wait to be resolved"))
            }
        }
    }

    /// Starts a connection to a server; `None` while its name is being resolved.
    pub(super) fn server(
        &self,
        connection: ConnectionId,
        server: &str,
        origin: Option<&Origin>,
    ) -> anyhow::Result<Option<ServerLink>> {
        if let Some(own) = self.own.get(server) {
            return own.hand().map(ServerLink::Program).map(Some);
        }
        let server =
            self.servers.get(server).with_context(|| format!("this agent has no server called {server}"))?;
        let manner = ServerProtocol::of(server, origin);
        if let Ok(address) = server.address.parse() {
            return connect(address, manner).map(Some);
        }
        let asked = self.resolver.ask(ResolvePurpose::Server(connection, manner), &server.address);
        asked.map(|()| None).map_err(|_| anyhow!("too many names wait to be resolved"))
    }

    /// The next connection that waited for a name.
    ///
    /// Call it after the waker has woken the loop, until it returns `None`: one wake-up may stand
    /// for several.
    pub fn next_dialed(&self) -> Option<Dialing> {
        let (wanted, addresses): Resolved<ResolvePurpose> = self.resolver.take()?;
        Some(match wanted {
            ResolvePurpose::Wire(target) => {
                Dialing::Wire(target, self.resolved_wire(target, addresses).map(Box::new))
            }
            ResolvePurpose::Server(connection, manner) => {
                let address = addresses.context("cannot resolve the server's name");
                let first =
                    address.and_then(|all| all.first().copied().context("the server's name has no address"));
                Dialing::Server(connection, first.and_then(|address| connect(address, manner)))
            }
        })
    }

    fn resolved_wire(&self, target: Target, addresses: io::Result<Vec<SocketAddr>>) -> anyhow::Result<Wire> {
        let EdgeTransport::Edges { connector, edges } = &self.transport else {
            return Err(anyhow!("it needs no name"));
        };
        let edge = edges.get(usize::from(target.edge)).context("no such edge is configured")?;
        let addresses = addresses.context("cannot resolve the edge's name")?;
        let address = edge.choose(&addresses).context("the edge's name has no address")?;
        connector.dial(address, edge.host(), target.shard)
    }
}

fn connect(address: SocketAddr, manner: ServerProtocol) -> anyhow::Result<ServerLink> {
    Ok(match manner {
        ServerProtocol::Datagrams => ServerLink::Datagrams(datagrams::connect(address)?),
        ServerProtocol::Stream(head) => ServerLink::Stream(Socket::tcp(TcpStream::connect(address)?)?, head),
    })
}
