//! The channels between owners and their keepers: what each is for, and for which side it is over. Follows frames alone, and knows
//! none of the rules by which machines detect a frame that is too late.
//!
//! ```text
//! owner's shard                                             keeper (a recorder, or an edge that stands by)
//!   Keep g1, Fed, Base ...  -------->                       the feed is over for the keeper when it refuses it, accepts another
//!                                                           one of the session, opens a generation itself, or `Ended` arrives
//!         over for the owner when it      <--------  Credit, Stored, Replayed, Reject, Superseded
//!         sends `Ended`, or the keeper's last frame arrives
//!   Recall  ----------------------->
//!         over for the shard when it      <--------  Recalled, LogPart, KeptInput, CheckpointBegin, CheckpointPart
//!         has another source, or when the                      or Ended
//!         recorder's last frame arrives
//! ```
//! Each side learns at its own time that a channel is over. What the other one sends until then is stale.

use crate::position::ShardPosition;
use marram_wire::{
    frame::{Frame, Keep, KeepOn, Promise, Sender},
    id::{Generation, SessionId},
};
use std::collections::BTreeMap;

/// A wire, and a channel on it.
type At = (usize, u32);

/// The machine that dialled a keeper's wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Keeper {
    Recorder,
    Standby(ShardPosition),
}

/// A channel that the shard of an owner has opened.
#[derive(Debug)]
struct Channel {
    session: SessionId,
    /// The shard that opened it.
    position: ShardPosition,
    /// Of the feed, as far as the keeper has received it; `None` for a recall.
    generation: Option<Generation>,
    /// Whether the feed is that of a warm standby, or of a recorder.
    holds: bool,
    over_for_owner: bool,
    over_for_keeper: bool,
}

/// What a keeper has of a session.
#[derive(Clone, Copy, Debug)]
enum Has {
    /// The feed that it accepted last.
    Feed(At),
    /// It has opened this generation itself.
    Generation(Generation),
}

/// All channels to keepers that were seen in one seed.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    channels: BTreeMap<At, Channel>,
    has: BTreeMap<(Keeper, SessionId), Has>,
}

impl Feeds {
    /// The shard of an owner sends a frame to a keeper.
    pub(super) fn sent_by_owner(&mut self, wire: usize, position: ShardPosition, frame: &Frame) {
        match frame {
            Frame::Keep(keep) | Frame::KeepOn(KeepOn { keep }) => {
                let generation = Some(keep.generation);
                self.open((wire, keep.channel), keep.session, position, generation);
                if let Some(channel) = self.channels.get_mut(&(wire, keep.channel)) {
                    channel.holds = !keep.hot && keep.group.is_none();
                }
            }
            Frame::Recall(recall) => {
                // A shard recalls only what it does not have: it needs no earlier answer, and no feed.
                self.end_recalls(position, recall.session);
                self.has.remove(&(Keeper::Standby(position), recall.session));
                self.open((wire, recall.channel), recall.session, position, None);
            }
            Frame::Ended(ended) => {
                if let Some(channel) = self.channels.get_mut(&(wire, ended.channel)) {
                    channel.over_for_owner = true;
                }
            }
            _ => {}
        }
    }

    /// The session for which the shard of an owner has opened this channel.
    pub(super) fn session_of(&self, wire: usize, channel: u32) -> Option<SessionId> {
        self.channels.get(&(wire, channel)).map(|channel| channel.session)
    }

    /// Whether this channel feeds a warm standby.
    pub(super) fn is_of_warm(&self, wire: usize, channel: u32) -> bool {
        self.channels.get(&(wire, channel)).is_some_and(|channel| channel.holds)
    }

    fn open(&mut self, at: At, session: SessionId, position: ShardPosition, generation: Option<Generation>) {
        let (holds, over_for_owner, over_for_keeper) = (false, false, false);
        let channel = Channel { session, position, generation, holds, over_for_owner, over_for_keeper };
        self.channels.insert(at, channel);
    }

    /// A keeper sends a frame: of some it is the last word on their channel.
    pub(super) fn sent_by_keeper(&mut self, wire: usize, frame: &Frame) {
        if is_last(frame)
            && let Some(channel) = of(&mut self.channels, wire, frame, Sender::End)
        {
            channel.over_for_keeper = true;
        }
    }

    /// A shard asks an end for its promise: it is no standby any more.
    pub(super) fn promise(&mut self, position: ShardPosition, promise: &Promise) {
        let session = promise.session;
        self.has.insert((Keeper::Standby(position), session), Has::Generation(promise.generation));
        if promise.live.is_none() {
            // It asks the ends for everything: nothing that a recorder gives is used.
            self.end_recalls(position, session);
        }
    }

    /// A shard has rebuilt a session's cell, or has another source for it.
    pub(super) fn end_recalls(&mut self, position: ShardPosition, session: SessionId) {
        for channel in self.channels.values_mut() {
            let is_recall = channel.generation.is_none();
            channel.over_for_owner |= is_recall && channel.position == position && channel.session == session;
        }
    }

    /// The session of a frame that is too late for the keeper which it reaches. `is_open` tells which wires the keeper still has.
    pub(super) fn stale_for_keeper(
        &self,
        keeper: Keeper,
        wire: usize,
        frame: &Frame,
        is_open: impl Fn(usize) -> bool,
    ) -> Option<SessionId> {
        if let Frame::Keep(keep) | Frame::KeepOn(KeepOn { keep }) = frame {
            return self.has_newer(keeper, keep, is_open).then_some(keep.session);
        }
        let at = (wire, frame.channel(Sender::Edge)?);
        let channel = self.channels.get(&at)?;
        channel.generation?;
        let is_present =
            matches!(self.has.get(&(keeper, channel.session)), Some(Has::Feed(fed)) if *fed == at);
        (channel.over_for_keeper || !is_present).then_some(channel.session)
    }

    /// Whether a keeper is fed with a newer generation than the one that it is asked to keep, or has opened a newer one.
    ///
    /// A keeper that has lost its feed may have deleted the session since.
    fn has_newer(&self, keeper: Keeper, keep: &Keep, is_open: impl Fn(usize) -> bool) -> bool {
        match self.has.get(&(keeper, keep.session)) {
            Some(Has::Feed(at)) => self.channels.get(at).is_some_and(|feed| {
                is_open(at.0) && !feed.over_for_keeper && feed.generation > Some(keep.generation)
            }),
            Some(Has::Generation(generation)) => *generation > keep.generation,
            None => false,
        }
    }

    /// The session of a frame from a keeper that is too late for the shard which it reaches, and whether it answers a recall.
    pub(super) fn stale_for_owner(&self, wire: usize, frame: &Frame) -> Option<(SessionId, bool)> {
        let channel = self.channels.get(&(wire, frame.channel(Sender::End)?))?;
        channel.over_for_owner.then_some((channel.session, channel.generation.is_none()))
    }

    /// A frame has reached a keeper, which has answered it by now if it does at once.
    pub(super) fn reached_keeper(&mut self, keeper: Keeper, wire: usize, frame: &Frame) {
        let Some(channel) = of(&mut self.channels, wire, frame, Sender::Edge) else { return };
        let session = channel.session;
        match frame {
            Frame::Keep(keep) | Frame::KeepOn(KeepOn { keep }) if !channel.over_for_keeper => {
                self.has.insert((keeper, session), Has::Feed((wire, keep.channel)));
                if let Keeper::Standby(position) = keeper {
                    self.end_recalls(position, session);
                }
            }
            Frame::Renewed(renewed) => channel.generation = Some(renewed.generation),
            Frame::Ended(_) => channel.over_for_keeper = true,
            _ => {}
        }
    }

    /// A frame of a keeper has reached the shard.
    pub(super) fn reached_owner(&mut self, wire: usize, frame: &Frame) {
        if is_last(frame)
            && let Some(channel) = of(&mut self.channels, wire, frame, Sender::End)
        {
            channel.over_for_owner = true;
        }
    }
}

/// Whether a keeper sends nothing more on the channel of this frame.
fn is_last(frame: &Frame) -> bool {
    matches!(frame, Frame::Reject(_) | Frame::Superseded(_) | Frame::Ended(_))
}

/// The channel of a frame, if it is known.
fn of<'a>(
    channels: &'a mut BTreeMap<At, Channel>,
    wire: usize,
    frame: &Frame,
    sender: Sender,
) -> Option<&'a mut Channel> {
    let channel = match frame {
        Frame::Keep(keep) | Frame::KeepOn(KeepOn { keep }) => keep.channel,
        other => other.channel(sender)?,
    };
    channels.get_mut(&(wire, channel))
}
