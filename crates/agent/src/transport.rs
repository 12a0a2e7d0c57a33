//! How an agent's loop, or a recorder's, gets connections that it does not have: wires to edges, sockets to servers. Names are resolved on
//! the way, by another thread.

use super::{
    ServerSettings, datagrams,
    edges::EdgeAddress,
    program::{Handing, StreamHalf},
    resolver::{Resolved, Resolver},
};
use crate::net::{Socket, Wire, WireConnector};
use anyhow::{Context, anyhow};
use bytes::Bytes;
use marram_session::agent::{
    ConnectionId, Target,
    proxy::{self, ProxyAddresses},
};
use marram_wire::{id::HostId, peer::Origin};
use mio::{
    Waker,
    net::{TcpStream, UdpSocket, UnixStream},
};
use std::{collections::BTreeMap, io, net::SocketAddr, sync::Arc};

/// How an agent gets to its edges.
pub enum EdgeTransport {
    /// Over the network.
    Edges {
        /// What it shows and wants to see.
        connector: WireConnector,
        /// Where they are.
        edges: Vec<EdgeAddress>,
    },
    /// Within the process: the agent of an edge's own gates asks for a socket to one of its shards.
    Own(Box<dyn Fn(u8) -> io::Result<UnixStream> + Send>),
}

/// How a server is spoken to.
enum ServerProtocol {
    /// In datagrams.
    Datagrams,
    /// In a stream that begins with this, if with anything.
    Stream(Option<Bytes>),
}

impl ServerProtocol {
    fn of(server: &ServerSettings, origin: Option<&Origin>) -> Self {
        if server.datagrams {
            return Self::Datagrams;
        }
        let ends = origin
            .and_then(|origin| Some(ProxyAddresses { source: origin.client?, destination: origin.local? }));
        Self::Stream(server.proxy_protocol.then(|| proxy::write(ends).into()))
    }
}

/// A connection that was begun.
pub enum ServerLink {
    /// In a stream, and what the server is told before all else.
    Stream(Socket, Option<Bytes>),
    /// To the program that the agent runs in.
    Program(StreamHalf),
    /// In datagrams.
    Datagrams(UdpSocket),
}

/// What a name is resolved for.
enum ResolvePurpose {
    Wire(Target),
    /// And how the server is spoken to.
    Server(ConnectionId, ServerProtocol),
}

/// What was begun once a name was resolved.
pub enum Dialing {
    /// A wire.
    Wire(Target, anyhow::Result<Box<Wire>>),
    /// A connection to a server.
    Server(ConnectionId, anyhow::Result<ServerLink>),
}

/// Begins connections.
pub struct EndpointDialer {
    transport: EdgeTransport,
    servers: BTreeMap<String, ServerSettings>,
    /// Those that the program is that the agent runs in.
    own: BTreeMap<String, Handing>,
    resolver: Resolver<ResolvePurpose>,
}

impl EdgeTransport {
    /// The id by which edges know the agent, if it reaches them over the network.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        match self {
            Self::Edges { connector, .. } => Some(connector.host()),
            Self::Own(_) => None,
        }
    }
}

impl EndpointDialer {
    /// `waker` is told when a name is resolved.
    pub fn new(transport: EdgeTransport, servers: &[ServerSettings], waker: Arc<Waker>) -> io::Result<Self> {
        let servers = servers.iter().map(|server| (server.name.clone(), server.clone())).collect();
        Ok(Self { transport, servers, own: BTreeMap::new(), resolver: Resolver::start(waker)? })
    }

    /// Has further servers, which are the program that the agent runs in.
    pub(super) fn add(&mut self, own: BTreeMap<String, Handing>) {
        self.own = own;
    }

    /// The edges that it was given.
    pub fn edges(&self) -> &[EdgeAddress] {
        match &self.transport {
            EdgeTransport::Edges { edges, .. } => edges,
            EdgeTransport::Own(_) => &[],
        }
    }

    /// Begins a wire; `None` while its edge's name is being resolved.
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

    /// Begins a connection to a server; `None` while its name is being resolved.
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

    /// Takes the next connection that waited for a name.
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
