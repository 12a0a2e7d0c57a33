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
    EdgeTransportError, ServerSettings, datagrams,
    edges::EdgeAddress,
    program::{Handing, HandingError, StreamHalf},
    resolver::{self, Resolver},
};
use bytes::Bytes;
use marram_session::agent::{
    ConnectionId, Target,
    proxy::{self, ProxyAddresses},
};
use marram_transport::{ConnectError, Security, Socket, Wire, WireConnector};
use marram_wire::{id::HostId, peer::Origin};
use mio::{
    Waker,
    net::{TcpStream, UdpSocket, UnixStream},
};
use std::{collections::BTreeMap, fmt, io, net::SocketAddr, sync::Arc};

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
pub(super) enum Resolved {
    /// A wire.
    Wire(Target, Box<Result<Wire, DialError>>),
    /// A connection to a server.
    Server(ConnectionId, Result<ServerLink, ServerError>),
}

/// Why a wire cannot be started. The agent dials again; where the configuration or the name service is wrong, the operator fixes
/// that.
#[derive(Debug)]
pub enum DialError {
    /// The machine asked for an edge that is not configured.
    NoSuchEdge,
    /// Too many names wait to be resolved; it passes.
    TooManyNames,
    /// The edge's name cannot be resolved.
    Unresolved(io::Error),
    /// The edge's name has no address.
    NoAddress,
    /// The wire cannot be connected.
    Connect(ConnectError),
}

impl From<ConnectError> for DialError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<io::Error> for DialError {
    fn from(error: io::Error) -> Self {
        Self::Connect(error.into())
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchEdge => f.write_str("no such edge is configured"),
            Self::TooManyNames => f.write_str("too many names wait to be resolved"),
            Self::Unresolved(error) => write!(f, "cannot resolve the edge's name: {error}"),
            Self::NoAddress => f.write_str("the edge's name has no address"),
            Self::Connect(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DialError {}

/// Why a connection to a server cannot be started. The operator of the server's agent fixes all but the second and the last,
/// which pass.
#[derive(Debug)]
pub enum ServerError {
    /// The agent has no server of this name.
    NoSuchServer(String),
    /// Too many names wait to be resolved.
    TooManyNames,
    /// The server's name cannot be resolved.
    Unresolved(io::Error),
    /// The server's name has no address.
    NoAddress,
    /// The operating system refused the connection.
    Io(io::Error),
    /// The program that is the server takes no more.
    Program(HandingError),
}

impl From<io::Error> for ServerError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchServer(name) => write!(f, "this agent has no server called {name}"),
            Self::TooManyNames => f.write_str("too many names wait to be resolved"),
            Self::Unresolved(error) => write!(f, "cannot resolve the server's name: {error}"),
            Self::NoAddress => f.write_str("the server's name has no address"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Program(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ServerError {}

/// Starts connections.
pub struct EndpointDialer {
    transport: EdgeTransport,
    /// By their places behind the configured ones.
    learned: BTreeMap<u16, EdgeAddress>,
    servers: BTreeMap<String, ServerSettings>,
    /// Servers that are the embedding program.
    own: BTreeMap<String, Handing>,
    resolver: Resolver<ResolvePurpose>,
}

impl EdgeTransport {
    /// Over the network, to edges that are only learned.
    ///
    /// # Errors
    /// If a file of the security settings cannot be used.
    pub fn learning(security: &Security) -> Result<Self, EdgeTransportError> {
        Ok(Self::Edges { connector: WireConnector::new(security)?, edges: Vec::new() })
    }

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
        let (learned, own) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { transport, learned, servers, own, resolver: Resolver::start(waker)? })
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

    /// A learned edge is dialled at this address, `host:port`, from now on.
    pub fn learn(&mut self, edge: u16, address: &str) {
        self.learned.insert(edge, EdgeAddress::learned(address));
    }

    /// A learned edge is not dialled any more.
    pub fn forget(&mut self, edge: u16) {
        self.learned.remove(&edge);
    }

    /// The address of an edge, learned or configured. A place that the machine has learned is not one of the configured ones, even if
    /// their names have more addresses than it dials.
    fn edge(&self, edge: u16) -> Result<&EdgeAddress, DialError> {
        let learned = self.learned.get(&edge);
        learned.or_else(|| self.edges().get(usize::from(edge))).ok_or(DialError::NoSuchEdge)
    }

    /// Starts a wire; `None` while its edge's name is being resolved.
    ///
    /// # Errors
    /// If the dial fails at once, for example because no descriptor is left. The caller reports it
    /// as a failed dial, and the state machine retries.
    pub(super) fn wire(&self, target: Target) -> Result<Option<Wire>, DialError> {
        match &self.transport {
            EdgeTransport::Own(shard) => Ok(Some(Wire::trusted(Socket::Unix(shard(target.shard)?), None))),
            EdgeTransport::Edges { connector, .. } => {
                let edge = self.edge(target.edge)?;
                if let Ok(address) = edge.name.parse() {
                    return Ok(Some(connector.dial(address, edge.host(), target.shard)?));
                }
                let asked = self.resolver.ask(ResolvePurpose::Wire(target), &edge.name);
                asked.map(|()| None).map_err(|_| DialError::TooManyNames)
            }
        }
    }

    /// Starts a connection to a server; `None` while its name is being resolved.
    pub(super) fn server(
        &self,
        connection: ConnectionId,
        server: &str,
        origin: Option<&Origin>,
    ) -> Result<Option<ServerLink>, ServerError> {
        if let Some(own) = self.own.get(server) {
            return own.hand().map(ServerLink::Program).map(Some).map_err(ServerError::Program);
        }
        let server = self.servers.get(server).ok_or_else(|| ServerError::NoSuchServer(server.to_owned()))?;
        let manner = ServerProtocol::of(server, origin);
        if let Ok(address) = server.address.parse() {
            return Ok(Some(connect(address, manner)?));
        }
        let asked = self.resolver.ask(ResolvePurpose::Server(connection, manner), &server.address);
        asked.map(|()| None).map_err(|_| ServerError::TooManyNames)
    }

    /// The next connection that waited for a name.
    ///
    /// Call it after the waker has woken the loop, until it returns `None`: one wake-up may stand
    /// for several.
    pub(super) fn next_resolved(&self) -> Option<Resolved> {
        let (wanted, addresses): resolver::Resolved<ResolvePurpose> = self.resolver.take()?;
        Some(match wanted {
            ResolvePurpose::Wire(target) => {
                Resolved::Wire(target, Box::new(self.resolved_wire(target, addresses)))
            }
            ResolvePurpose::Server(connection, manner) => {
                let all = addresses.map_err(ServerError::Unresolved);
                let first = all.and_then(|all| all.first().copied().ok_or(ServerError::NoAddress));
                Resolved::Server(connection, first.and_then(|address| Ok(connect(address, manner)?)))
            }
        })
    }

    fn resolved_wire(
        &self,
        target: Target,
        addresses: io::Result<Vec<SocketAddr>>,
    ) -> Result<Wire, DialError> {
        let EdgeTransport::Edges { connector, .. } = &self.transport else {
            return Err(DialError::NoSuchEdge);
        };
        let edge = self.edge(target.edge)?;
        let addresses = addresses.map_err(DialError::Unresolved)?;
        let address = edge.choose(&addresses).ok_or(DialError::NoAddress)?;
        Ok(connector.dial(address, edge.host(), target.shard)?)
    }
}

fn connect(address: SocketAddr, manner: ServerProtocol) -> io::Result<ServerLink> {
    Ok(match manner {
        ServerProtocol::Datagrams => ServerLink::Datagrams(datagrams::connect(address)?),
        ServerProtocol::Stream(head) => ServerLink::Stream(Socket::tcp(TcpStream::connect(address)?)?, head),
    })
}
