//! Every report of the agent as one structured line for programs: at debug level, named by its field `event`, and not
//! rate-limited. The lines of `reports` are for people.
//!
//! Programs wait for these lines, so a change of a name or a field is one of an interface. Times
//! are in the unit that the field's name ends with.

use marram_session::agent::AgentReport;
use tracing::debug;

/// Writes one report. `address` is the configured address of the edge that it is about; empty if it is about none.
pub(super) fn write(report: &AgentReport, address: &str) {
    match report {
        AgentReport::EdgeUp { target, name } => {
            debug!(event = "edge_up", edge = address, shard = target.shard, name, "report");
        }
        AgentReport::OtherDomain { target, name, other } => {
            debug!(event = "other_domain", edge = address, shard = target.shard, name, other, "report");
        }
        AgentReport::EdgeDown { target, reason, suspected } => {
            debug!(event = "edge_down", edge = address, shard = target.shard, reason, suspected, "report");
        }
        AgentReport::EdgeNotFound { target, reason } => {
            debug!(event = "learned_edge_not_found", edge = address, shard = target.shard, reason, "report");
        }
        AgentReport::EdgeNotAsTold { target, reason, known } => {
            let shard = target.shard;
            debug!(event = "learned_edge_not_as_told", edge = address, shard, reason, known, "report");
        }
        AgentReport::EdgeForgotten { target, reason } => {
            debug!(event = "learned_edge_forgotten", edge = address, shard = target.shard, reason, "report");
        }
        AgentReport::Owned { session, app, generation, target, gap_ns } => {
            let (shard, gap_us) = (target.shard, gap_ns / 1_000);
            debug!(event = "owned", %session, app, %generation, edge = address, shard, gap_us, "report");
        }
        AgentReport::Waiting { session, app, target, code, reason, left_ns } => {
            let (shard, left_ms) = (target.shard, left_ns / 1_000_000);
            debug!(event = "waiting", %session, app, edge = address, shard, ?code, reason, left_ms, "report");
        }
        AgentReport::FailingBack { session, target } => {
            debug!(event = "failing_back", %session, edge = address, shard = target.shard, "report");
        }
        AgentReport::Orphaned { session, reason } => debug!(event = "orphaned", %session, reason, "report"),
        AgentReport::ZombieRefused { session, generation } => {
            debug!(event = "zombie_refused", %session, %generation, "report");
        }
        AgentReport::MemoryFull { memory, sessions } => {
            let (kept, max, slowed) = (memory.kept, memory.max, memory.slowed);
            debug!(event = "memory_full", kept, max, sessions, slowed, "report");
        }
        AgentReport::MemoryFree { memory, sessions } => {
            let (kept, max, slowed_total) = (memory.kept, memory.max, memory.slowed_total);
            debug!(event = "memory_free", kept, max, sessions, slowed_total, "report");
        }
        AgentReport::Ended { session, code, reason, lingered } => {
            debug!(event = "ended", %session, ?code, reason, lingered, "report");
        }
    }
}
