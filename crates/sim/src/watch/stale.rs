//! Frames that arrive too late: their receiver knows a newer generation, or their channel is over. What they must not change is checked by
//! `world::stale`.

use super::{Bound, Keeper, PeerSide, Rare, Watch};
use crate::position::ShardPosition;
use marram_wire::{
    frame::{Frame, Sender},
    id::SessionId,
};

/// What a frame must not change: it is of an older generation, or of a channel that is over for its receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stale {
    pub(crate) session: SessionId,
    /// If an end receives it: whether it is the server's.
    pub(crate) server: bool,
    /// Which machine receives it.
    rare: Rare,
}

impl Watch {
    /// Whether the receiver of an arriving frame knows a newer generation than the frame's.
    ///
    /// The frame is then given to the machine between two looks at it (`world::stale`): I3 and I4.
    /// `wire` names the connection, `agent` the process at its end, `side` the receiver.
    pub(crate) fn stale(
        &mut self,
        (wire, agent): (usize, usize),
        side: PeerSide,
        position: ShardPosition,
        frame: &Frame,
    ) -> Option<Stale> {
        let sender = if side == PeerSide::Edge { Sender::End } else { Sender::Edge };
        if matches!(frame, Frame::Hello(_) | Frame::Promise(_)) {
            return None;
        }
        let Bound { session, server, generation, .. } =
            *self.channels.get(&(wire, frame.channel(sender)?))?;
        let generation = generation?;
        let newest = match side {
            PeerSide::Agent => *self.promised_by.get(&(agent, session, server))?,
            PeerSide::Edge => *self.opened.get(&(position, session))?,
        };
        // A shard that has abandoned a session may open a lower generation than before, when it is asked again.
        if generation == newest || (side == PeerSide::Agent && generation > newest) {
            return None;
        }
        let rare = if side == PeerSide::Agent { Rare::StaleAtEnd } else { Rare::StaleAtOwner };
        Some(self.count_stale(rare, session, server))
    }

    /// As [`Self::stale`], for a frame of an owner that reaches a keeper. `is_open` tells which wires the keeper still has.
    pub(crate) fn stale_for_keeper(
        &mut self,
        keeper: Keeper,
        wire: usize,
        frame: &Frame,
        is_open: impl Fn(usize) -> bool,
    ) -> Option<Stale> {
        let session = self.feeds.stale_for_keeper(keeper, wire, frame, is_open)?;
        let rare = if keeper == Keeper::Recorder { Rare::StaleAtRecorder } else { Rare::StaleAtStandby };
        Some(self.count_stale(rare, session, false))
    }

    /// As [`Self::stale`], for a frame of a keeper that reaches the shard which asked it.
    pub(crate) fn stale_for_owner(&mut self, wire: usize, frame: &Frame) -> Option<Stale> {
        let (session, is_recall) = self.feeds.stale_for_owner(wire, frame)?;
        let rare = if is_recall { Rare::StaleRecall } else { Rare::StaleFromKeeper };
        Some(self.count_stale(rare, session, false))
    }

    /// Counts a stale frame.
    fn count_stale(&mut self, rare: Rare, session: SessionId, server: bool) -> Stale {
        self.counts.add(rare, 1);
        Stale { session, server, rare }
    }

    /// Whether the effect of one more stale frame of this kind is checked in this seed: each check takes long.
    pub(crate) fn looks_at(&self, stale: Stale, frame: &Frame) -> bool {
        const LOOKS_MAX: usize = 3;
        let kind = (stale.rare, std::mem::discriminant(frame));
        self.looked_at.iter().filter(|looked| **looked == kind).count() < LOOKS_MAX
    }

    /// The effect of a stale frame of this kind is checked.
    pub(crate) fn looked_at(&mut self, stale: Stale, frame: &Frame) {
        self.looked_at.push((stale.rare, std::mem::discriminant(frame)));
    }
}
