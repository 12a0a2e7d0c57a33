//! What the tests' worlds begin with: an app and an agent's settings, of which each test changes what it is about.

use marram_session::agent::AgentConfig;
use marram_shard::api::{App, CheckpointHolder, Protect, WitnessMode};
use marram_wire::id::ImageHash;

/// An app without a server, quotas and limits. Its image is named by the first letter of its name.
pub(crate) fn app(name: &str) -> App {
    App {
        name: name.into(),
        image: ImageHash([name.as_bytes()[0]; 32]),
        protect: Protect::Endpoints,
        server: None,
        keep: CheckpointHolder::Client,
        recovery_target_ns: 1,
        linger_ms: 1_000,
        messages_per_s: 0,
        log_bytes_per_s: 0,
        sessions_max: 0,
        shared: false,
        tenant: "t".into(),
        priority: 0,
        cache: None,
        witness: WitnessMode::None,
        epoch: None,
        slots: 0,
    }
}

/// An agent without servers which dials at once, and for which no time is over.
/// Makes the machines of this process check their invariants after each step, and panic on a bug.
pub(crate) fn be_strict() {
    marram_session::bug::panic_on_bugs();
    marram_session::invariant::check_each_step();
}

pub(crate) fn agent_config(edges: u16) -> AgentConfig {
    AgentConfig {
        servers: Vec::new(),
        edges,
        addresses: Vec::new(),
        learn: true,
        spread: true,
        heartbeat_interval_ns: 1 << 40,
        heartbeat_timeout_ns: 1 << 50,
        edge_wait_ns: 1 << 50,
        backoff_min_ns: 1,
        backoff_max_ns: 1,
        linger_ns: 1 << 50,
        connect_timeout_ns: 1 << 50,
        failback_delay_ns: 1 << 50,
        checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
        memory_max: 1 << 40,
    }
}
