//! Frames of older generations. The observed promises show which frames are old; comparing the receiving machine before and after
//! shows that they change nothing. Knows none of the rules by which machines detect them.
//!
//! The comparison is of the whole state as text (`Debug`), so a new field is compared without a
//! change here. Time passes for a machine with each step, hence the wake-up before: what is due by
//! then happens before the first look.

use super::{ShardPosition, World};
use crate::watch::Stale;
use marram_session::agent;
use marram_shard::api;
use marram_wire::frame::Frame;

/// A machine that keeps more bytes is not compared: it takes too long.
const LOOKED_AT_BYTES_MAX: u64 = 64 << 10;

impl World {
    /// A frame reaches an agent's end that has promised a newer owner.
    pub(crate) fn give_stale_agent(&mut self, agent: usize, stale: Stale, wire: agent::WireId, frame: Frame) {
        // First do what is due anyway.
        self.give_agent(agent, agent::AgentInput::Wake);
        let before = self.agents[agent].shows(stale);
        let text = super::brief(&frame);
        self.give_agent(agent, agent::AgentInput::Frame { wire, frame });
        if before.is_some() && before != self.agents[agent].shows(stale) {
            let session = stale.session;
            self.violations.push(format!("A{agent}'s end of {session} heeds an older owner's frame: {text}"));
        }
    }

    /// A frame reaches a shard whose owner has opened a newer generation.
    pub(crate) fn give_stale_shard(
        &mut self,
        position: ShardPosition,
        stale: Stale,
        wire: api::ShardWireId,
        frame: Frame,
    ) {
        self.give_shard(position, api::ShardInput::Wake);
        let before = self.shard(position).shows(stale);
        let text = super::brief(&frame);
        self.give_shard(position, api::ShardInput::Frame { wire, frame });
        if before.is_some() && before != self.shard(position).shows(stale) {
            let session = stale.session;
            self.violations.push(format!(
                "{position}'s owner of {session} heeds a frame of an older generation: {text}"
            ));
        }
    }
}

impl super::AgentNode {
    /// The whole state of an end, to be compared.
    fn shows(&self, stale: Stale) -> Option<String> {
        let end = self.machine()?.end(stale.session, stale.server)?;
        (end.kept_bytes() < LOOKED_AT_BYTES_MAX).then(|| format!("{end:?}"))
    }
}

impl super::edges::ShardNode {
    /// The whole state of an owner, to be compared.
    fn shows(&self, stale: Stale) -> Option<String> {
        let owner = self.machine()?.owner(stale.session)?;
        (owner.held_bytes() < LOOKED_AT_BYTES_MAX).then(|| format!("{owner:?}"))
    }
}
