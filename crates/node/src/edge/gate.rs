//! The edge's own agent, for peers that have none: the same code as `marram agent`, in a thread. It reaches this edge's shards
//! over socket pairs; or, if so configured, other edges over the network as any agent does. In that case only the end is here,
//! and the session survives the loss of every edge but this one.
//!
//! ```text
//! own shards:    agent ── socketpair ──▶ the queue here ─▶ supervisor ── SCM_RIGHTS ──▶ shard   (no handshake)
//! other edges:   agent ── TCP, TLS, credential ──▶ edges of `[gates]`
//! ```
//!
//! The thread is latency-sensitive like a shard's: each message of a gate's client passes it.

use super::{EdgeOptions, error::SupervisorError};
use marram_agent::{self as agent, EdgeTransport};
use marram_sandbox::set_latency_sensitive;
use marram_transport::{Security, StopSignal, Stopper, random};
use marram_wire::id::HostId;
use mio::Waker;
use std::{
    io,
    os::unix::net::UnixStream,
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};
use tracing::error;

/// Most sockets that wait to be passed to a shard.
const WAITING_MAX: usize = 256;

/// The running agent of an edge's gates.
pub(super) struct Gate {
    /// The agent's id.
    pub(super) host: HostId,
    /// Sockets to pass on, each with the number of the shard.
    pub(super) sockets: Receiver<(u8, UnixStream)>,
    stopper: Stopper,
}

impl Gate {
    /// Binds the gates and starts the agent; `None` if the edge has no gate and no server of its own. `waker` wakes the
    /// supervisor, which passes the sockets on.
    pub(super) fn start(
        options: &EdgeOptions,
        waker: Arc<OnceLock<Waker>>,
    ) -> Result<Option<Self>, SupervisorError> {
        if options.routing.listeners().next().is_none() && options.servers.is_empty() {
            return Ok(None);
        }
        let (sender, sockets) = sync_channel(WAITING_MAX);
        // The agent's thread calls it for each wire. The far half waits in the queue until the
        // supervisor passes it on; a wire whose shard is gone then breaks, and the agent dials
        // again.
        let own = EdgeTransport::Own(Box::new(move |shard| {
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            sender
                .try_send((shard, theirs))
                .map_err(|_| io::Error::other("the supervisor is busy or has stopped"))?;
            if let Some(waker) = waker.get() {
                waker.wake()?;
            }
            Ok(mio::net::UnixStream::from_std(ours))
        }));
        let transport = match &options.gate_edges[..] {
            [] => own,
            edges => {
                let token = options.gate_token.clone().or_else(|| options.security.token.clone());
                let security = Security { token, ..options.security.clone() };
                agent::edge_transport(&security, edges).map_err(SupervisorError::GateEdges)?
            }
        };
        // Over the network the id is that of the agent's key. For own shards it is random and
        // trusted.
        let host = transport.host().map_or_else(|| random().map(HostId), Ok)?;
        let (stop, stopper) = StopSignal::pair()?;
        let mut agent = agent::prepare(
            &agent::AgentOptions {
                routing: options.routing.clone(),
                edges: Vec::new(),
                // Over socket pairs, no other edge can be reached.
                learn: !options.gate_edges.is_empty() && options.gates_learn,
                spread: true,
                servers: options.servers.clone(),
                security: options.security.clone(),
                timeouts: options.timeouts.clone(),
                limits: agent::AgentLimits {
                    memory_max: options.gate_memory,
                    checkpoints_max: options.limits.checkpoints_max,
                },
            },
            stop,
            transport,
        )?;
        thread::Builder::new().name("gate".into()).spawn(move || {
            set_latency_sensitive();
            if let Err(error) = agent.run() {
                error!(%error, "the gates have stopped");
            }
        })?;
        Ok(Some(Self { host, sockets, stopper }))
    }

    /// Whether connections are accepted from now on.
    pub(super) fn accept(&self, accepts: bool) {
        self.stopper.accept(accepts);
    }

    /// Stops accepting connections for good; sessions may end in order.
    ///
    /// Its thread is not joined: it ends with its last session, or with the process.
    pub(super) fn stop(&self) {
        self.stopper.stop();
    }
}
