//! How an agent's loop, or a recorder's, gets connections that it does not have: wires to edges, sockets to servers. Names are resolved on
//! the way, by another thread.

use super::{
    Server, datagrams,
    edges::Edge,
    program::{Half, Handing},
    resolver::{Resolved, Resolver},
};
use crate::net::{AgentDoor, Socket, Wire};
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
pub enum Reach {
    /// Over the network.
    Edges {
        /// What it shows and wants to see.
        door: AgentDoor,
        /// Where they are.
        edges: Vec<Edge>,
    },
    /// Within the process: the agent of an edge's own gates asks for a socket to one of its shards.
    Own(Box<dyn Fn(u8) -> io::Result<UnixStream> + Send>),
}

/// How a server is spoken to.
enum Manner {
    /// In datagrams.
    Datagrams,
    /// In a stream that begins with this, if with anything.
    Stream(Option<Bytes>),
}

impl Manner {
    fn of(server: &Server, origin: Option<&Origin>) -> Self {
        if server.datagrams {
            return Self::Datagrams;
        }
        let ends = origin
            .and_then(|origin| Some(ProxyAddresses { source: origin.client?, destination: origin.local? }));
        Self::Stream(server.proxy_protocol.then(|| proxy::write(ends).into()))
    }
}

/// A connection that was begun.
pub enum Begin {
    /// In a stream, and what the server is told before all else.
    Stream(Socket, Option<Bytes>),
    /// To the program that the agent runs in.
    Program(Half),
    /// In datagrams.
    Datagrams(UdpSocket),
}

/// What a name is resolved for.
enum Wanted {
    Wire(Target),
    /// And how the server is spoken to.
    Server(ConnectionId, Manner),
}

/// What was begun once a name was resolved.
pub enum Begun {
    /// A wire.
    Wire(Target, anyhow::Result<Box<Wire>>),
    /// A connection to a server.
    Server(ConnectionId, anyhow::Result<Begin>),
}

/// Begins connections.
pub struct Reacher {
    reach: Reach,
    servers: BTreeMap<String, Server>,
    /// Those that the program is that the agent runs in.
    own: BTreeMap<String, Handing>,
    resolver: Resolver<Wanted>,
}

impl Reach {
    /// The id by which edges know the agent, if it reaches them over the network.
    #[must_use]
    pub fn host(&self) -> Option<HostId> {
        match self {
            Self::Edges { door, .. } => Some(door.host()),
            Self::Own(_) => None,
        }
    }
}

impl Reacher {
    /// `waker` is told when a name is resolved.
    pub fn new(reach: Reach, servers: &[Server], waker: Arc<Waker>) -> io::Result<Self> {
        let servers = servers.iter().map(|server| (server.name.clone(), server.clone())).collect();
        Ok(Self { reach, servers, own: BTreeMap::new(), resolver: Resolver::start(waker)? })
    }

    /// Has further servers, which are the program that the agent runs in.
    pub(super) fn add(&mut self, own: BTreeMap<String, Handing>) {
        self.own = own;
    }

    /// The edges that it was given.
    pub fn edges(&self) -> &[Edge] {
        match &self.reach {
            Reach::Edges { edges, .. } => edges,
            Reach::Own(_) => &[],
        }
    }

    /// Begins a wire; `None` while its edge's name is being resolved.
    pub fn wire(&self, target: Target) -> anyhow::Result<Option<Wire>> {
        match &self.reach {
            Reach::Own(shard) => Ok(Some(Wire::trusted(Socket::Unix(shard(target.shard)?), None))),
            Reach::Edges { door, edges } => {
                let edge = edges.get(usize::from(target.edge)).context("no such edge is configured")?;
                if let Ok(address) = edge.name.parse() {
                    return door.dial(address, edge.host(), target.shard).map(Some);
                }
                let asked = self.resolver.ask(Wanted::Wire(target), &edge.name);
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
    ) -> anyhow::Result<Option<Begin>> {
        if let Some(own) = self.own.get(server) {
            return own.hand().map(Begin::Program).map(Some);
        }
        let server =
            self.servers.get(server).with_context(|| format!("this agent has no server called {server}"))?;
        let manner = Manner::of(server, origin);
        if let Ok(address) = server.address.parse() {
            return connect(address, manner).map(Some);
        }
        let asked = self.resolver.ask(Wanted::Server(connection, manner), &server.address);
        asked.map(|()| None).map_err(|_| anyhow!("too many names wait to be resolved"))
    }

    /// Takes the next connection that waited for a name.
    pub fn next_begun(&self) -> Option<Begun> {
        let (wanted, addresses): Resolved<Wanted> = self.resolver.take()?;
        Some(match wanted {
            Wanted::Wire(target) => Begun::Wire(target, self.resolved_wire(target, addresses).map(Box::new)),
            Wanted::Server(connection, manner) => {
                let address = addresses.context("cannot resolve the server's name");
                let first =
                    address.and_then(|all| all.first().copied().context("the server's name has no address"));
                Begun::Server(connection, first.and_then(|address| connect(address, manner)))
            }
        })
    }

    fn resolved_wire(&self, target: Target, addresses: io::Result<Vec<SocketAddr>>) -> anyhow::Result<Wire> {
        let Reach::Edges { door, edges } = &self.reach else { return Err(anyhow!("it needs no name")) };
        let edge = edges.get(usize::from(target.edge)).context("no such edge is configured")?;
        let addresses = addresses.context("cannot resolve the edge's name")?;
        let address = edge.choose(&addresses).context("the edge's name has no address")?;
        door.dial(address, edge.host(), target.shard)
    }
}

fn connect(address: SocketAddr, manner: Manner) -> anyhow::Result<Begin> {
    Ok(match manner {
        Manner::Datagrams => Begin::Datagrams(datagrams::connect(address)?),
        Manner::Stream(head) => Begin::Stream(Socket::tcp(TcpStream::connect(address)?)?, head),
    })
}
