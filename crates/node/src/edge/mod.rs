//! An edge's processes: a supervisor that accepts wires and answers operators, and one shard process for each core that runs
//! cells. `marram_shard` decides what happens to sessions; this module has the sockets, processes and clocks.
//!
//! ```text
//!            TCP                                       socket pairs (messages, descriptors)
//! agent ───────────▶ supervisor.rs ── pending.rs ─────────────────────────▶ shard.rs ── executor.rs
//!        preamble     │ Control::step                       ▲               │ Shard::step   cells
//!        answer       │ processes.rs: start, watch, restart ┘               │ WireTable     caches.rs, origin.rs
//! client ──▶ gate.rs ─┘ (sockets for this edge's own shards)                └ worker.rs: worker, sealer
//! operators, images, witnesses: admin_channel.rs, fetcher.rs, witness.rs ──▶ supervisor.rs (Waker)
//! ```
//!
//! After the preamble a connection belongs to its shard: the supervisor passes the descriptor on
//! and never sees a frame. If the supervisor dies, the kernel kills the shards; if a shard dies,
//! only its sessions look for another owner.

mod admin_channel;
mod caches;
mod checkpoints;
mod drain;
mod error;
mod executor;
mod fetcher;
mod gate;
mod origin;
mod pending;
mod pressure;
mod processes;
mod recordings;
mod setup;
mod shard;
mod standing;
mod startup;
mod state;
mod supervisor;
mod witness;
mod worker;

pub use admin_channel::{AdminChannel, AdminClient, AskError, admin_channel};
pub use error::{ShardError, SupervisorError};
pub use fetcher::{Fetch, PeersError};
pub use origin::LOOKUPS_MAX;
pub use recordings::{Stops, take as take_recording, write_private};
pub use state::{LockError, StateDirLock, lock};
pub use supervisor::shards;
pub use witness::{Answered, Coordinating};

use crate::keys::Key;
use marram_agent::{Routing, ServerSettings, Timeouts};
use marram_shard::api::{Grant, ReplicationPolicy};
use marram_transport::{Security, StopSignal};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// The configuration of an edge, resolved.
#[derive(Clone, Debug)]
pub struct EdgeOptions {
    /// Its name, for people; at most 64 bytes.
    pub name: String,
    /// Where agents connect.
    pub listen: Vec<SocketAddr>,
    /// Where agents and other edges reach it, `host:port` each, the best first. Empty if nothing is known; then no agent learns of
    /// this edge.
    pub addresses: Vec<String>,
    /// How wires are protected.
    pub security: Security,
    /// Key material that the edges of one domain share and agents never see: it decrypts every session's state. At least 16
    /// bytes.
    pub secret: Vec<u8>,
    /// Private keys that cells may have it sign with.
    pub keys: Vec<Key>,
    /// Shard processes; 0 for one for each core.
    pub shards: u8,
    /// Directory of the image cache, made when missing.
    pub images: PathBuf,
    /// Where recordings that an operator asked for are until they are fetched; created, and emptied, at start.
    pub recordings: PathBuf,
    /// Where the recordings of stopped handlers are kept, if they are made.
    pub stops: Option<Stops>,
    /// The gates, where peers without an agent connect, and the app of each.
    pub routing: Routing,
    /// Servers that this edge connects to itself.
    pub servers: Vec<ServerSettings>,
    /// Where sessions of the gates and of those servers run, `host:port` each; on this edge if empty.
    pub gate_edges: Vec<String>,
    /// Whether the gates also use edges of the domain that those edges tell them of.
    pub gates_learn: bool,
    /// The token that the gates show to those edges, if it is not [`Security::token`].
    pub gate_token: Option<String>,
    /// Bytes that the sessions of the gates' own agent may keep.
    pub gate_memory: u64,
    /// Timeouts of the gates' own agent.
    pub timeouts: Timeouts,
    /// Edges that this edge is a standby of, `host:port` each.
    pub standby: Vec<String>,
    /// Whether it is also a standby of edges that it learns of.
    pub standby_learns: bool,
    /// The token that it shows to them, if it is not [`Security::token`].
    pub standby_token: Option<String>,
    /// Its limits.
    pub limits: EdgeLimits,
    /// How sessions under `epoch` are replicated for which another interval or backup is wanted than their app's.
    pub policies: Vec<ReplicationPolicy>,
    /// Flip one bit of the n-th output of a shard, counting from 1; 0 for never. For `marram demo --sabotage`.
    pub sabotage: u64,
    /// Copy all sessions of a group at one moment where the backup of an app gets pages. For the baseline of benchmarks.
    pub whole: bool,
}

impl EdgeOptions {
    /// Whether it listens for agents on other than loopback addresses, without any way to authenticate itself.
    ///
    /// Agents elsewhere then refuse it, unless they allow unencrypted wires. It is a warning at the
    /// start and no error, since agents on this machine can use such an edge.
    #[must_use]
    pub fn lacks_authentication(&self) -> bool {
        let Security { token, identity, insecure_plain, credentials, .. } = &self.security;
        let elsewhere = self.listen.iter().any(|address| !address.ip().is_loopback());
        let tokens = token.is_some() || credentials.iter().any(|credential| credential.token.is_some());
        elsewhere && !tokens && identity.is_none() && !insecure_plain
    }

    /// The roles of an agent for which no [[credential]] is written: for the log.
    ///
    /// True with the text if it deserves a warning: an operator may not have meant it.
    pub(super) fn open_roles(&self) -> Option<(bool, &'static str)> {
        let Security { token, ca_pem, insecure_plain, credentials, .. } = &self.security;
        let elsewhere = self.listen.iter().any(|address| !address.ip().is_loopback());
        if token.is_some() {
            return Some((
                true,
                "the token of `security.token_file` grants every role: an agent that has it can be any client, \
                 server, recorder or edge; if not all agents are trusted that far, give each kind its own \
                 [[credential]]",
            ));
        }
        if !credentials.is_empty() {
            return None;
        }
        Some(match ca_pem {
            Some(_) => (
                true,
                "there is no [[credential]]: any certificate that `security.ca` signed makes a client and nothing \
                 else; write a [[credential]] with a `certificate` for each server's agent, recorder and other edge",
            ),
            None if elsewhere && *insecure_plain => (
                true,
                "there is no credential, and `security.insecure_plain` accepts agents from anywhere: every program \
                 that reaches this edge can be any client, server, recorder or edge",
            ),
            None => (
                false,
                "there is no credential: every program on this machine can be any client, server, recorder or edge",
            ),
        })
    }
}

/// Limits of an edge. 0 means no limit only where the field says so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EdgeLimits {
    /// Sessions at a time on one shard; 0 for no limit.
    pub sessions_max: u32,
    /// Recoveries at a time on one shard; 0 for no limit.
    pub recoveries_max: u32,
    /// How long the replays of all sessions of one shard may take, beyond each session's own share; zero for no limit.
    pub replay: Duration,
    /// Bytes that all shards together may keep for sessions, without their cells.
    pub memory: u64,
    /// Connections with an unfinished handshake; further ones are closed.
    pub half_open_max: usize,
    /// How long the handshake may take.
    pub handshake: Duration,
    /// How long shards may continue after the edge was asked to stop.
    pub drain: Duration,
    /// Bytes in a second that moves may copy to other edges, from all shards together; 0 for no limit.
    pub move_bytes_per_s: u64,
    /// Cells that can live at a time on one shard.
    pub cells_max: u32,
    /// Bytes of checkpoints of one session that this edge takes, or has an end keep, at most.
    pub checkpoints_max: u64,
    /// What tenants are granted.
    pub grants: Vec<Grant>,
}

impl Default for EdgeLimits {
    fn default() -> Self {
        Self {
            sessions_max: 0,
            recoveries_max: 64,
            replay: Duration::from_millis(5),
            memory: marram_session::budget::MEMORY,
            half_open_max: 1024,
            handshake: Duration::from_secs(5),
            drain: Duration::from_secs(30),
            move_bytes_per_s: 128 << 20,
            cells_max: 4096,
            checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
            grants: Vec::new(),
        }
    }
}

/// Runs an edge until SIGTERM or SIGINT. Then it asks agents to move their sessions, and returns when no session is left or the
/// drain time is over. Operators ask through `admin`; `fetch` gets images from peers, and `coordinating` asks the coordinator, if
/// there are any.
///
/// # Errors
/// If it cannot start, with what to change in its configuration; afterwards only if a system call fails.
pub fn run_supervisor(
    options: &EdgeOptions,
    admin: AdminChannel,
    fetch: Option<Fetch>,
    coordinating: Option<Coordinating>,
) -> Result<(), SupervisorError> {
    supervisor::Supervisor::new(options, admin, (fetch, coordinating), StopSignal::on_signals()?)?.run()
}

/// Runs a shard process, for the hidden command `marram shard`: the supervisor starts it with a socket as its standard
/// input, and sends everything else over that.
///
/// # Errors
/// If it cannot start, or a system call fails; the supervisor then starts another.
pub fn run_shard() -> Result<(), ShardError> {
    shard::run()
}
