//! Stale frames: of older generations, or on channels that are over. The observed frames show which ones are stale; comparing the
//! receiving machine before and after shows that they change nothing. Knows none of the rules by which machines detect them.
//!
//! The comparison is of the whole state of the session as text (`Debug`), so a new field is compared
//! without a change here. Time passes for a machine with each step, hence the wake-up before: what
//! is due by then happens before the first look.

use super::{ShardPosition, World};
use crate::watch::Stale;
use marram_session::{agent, recorder};
use marram_shard::api;
use marram_wire::frame::Frame;
use std::fmt::{self, Debug};

/// A machine that keeps more bytes is not compared: it takes too long.
const LOOKED_AT_BYTES_MAX: u64 = 64 << 10;
/// In so many steps a machine has done what is due.
const STEPS_MAX: usize = 8;

/// The machine that a frame reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Receiver {
    Agent(usize),
    Shard(ShardPosition),
    Recorder,
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Agent(agent) => write!(f, "A{agent}"),
            Self::Shard(position) => write!(f, "{position}"),
            Self::Recorder => f.write_str("recorder"),
        }
    }
}

impl World {
    /// A frame reaches a machine; if it is `stale`, it must change nothing of that session.
    pub(crate) fn give_frame(&mut self, to: Receiver, stale: Option<Stale>, wire: usize, frame: Frame) {
        let Some(stale) = stale.filter(|stale| self.watch.looks_at(*stale, &frame)) else {
            return self.take_frame(to, wire, frame);
        };
        let before = self.do_what_is_due(to, stale);
        // A keeper that has forgotten the newer generation may accept an older one.
        let is_absent = before.as_deref() == Some("");
        let may_begin = is_absent && matches!(frame, Frame::Keep(_) | Frame::KeepOn(_));
        if !is_absent {
            self.watch.looked_at(stale, &frame);
        }
        let text = super::brief(&frame);
        self.take_frame(to, wire, frame);
        if before.is_some() && !may_begin && before != self.shows(to, stale) {
            let session = stale.session;
            self.violations.push(format!("{to} heeds a stale frame of {session}: {text}"));
        }
    }

    /// What a machine has to do in any case is not the frame's doing. Returns what it has of the session then.
    fn do_what_is_due(&mut self, who: Receiver, stale: Stale) -> Option<String> {
        // An agent or shard that is short of memory looks at few sessions in a step. One that slept has more to do than one step does.
        let least = if self.plan.is_short_of_memory() { STEPS_MAX } else { 1 };
        let mut before = self.shows(who, stale);
        for step in 1..=STEPS_MAX {
            self.wake(who);
            let after = self.shows(who, stale);
            let is_done = step >= least && after == before;
            before = after;
            if is_done {
                break;
            }
        }
        before
    }

    fn take_frame(&mut self, to: Receiver, wire: usize, frame: Frame) {
        match to {
            Receiver::Agent(agent) => {
                self.give_agent(agent, agent::AgentInput::Frame { wire: agent::WireId(wire as u64), frame });
            }
            Receiver::Shard(position) => {
                self.give_shard(
                    position,
                    api::ShardInput::Frame { wire: api::ShardWireId(wire as u64), frame },
                );
            }
            Receiver::Recorder => {
                self.give_recorder(recorder::RecorderInput::Frame {
                    wire: agent::WireId(wire as u64),
                    frame,
                });
            }
        }
    }

    fn wake(&mut self, who: Receiver) {
        match who {
            Receiver::Agent(agent) => self.give_agent(agent, agent::AgentInput::Wake),
            Receiver::Shard(position) => self.give_shard(position, api::ShardInput::Wake),
            Receiver::Recorder => self.give_recorder(recorder::RecorderInput::Wake),
        }
    }

    /// The whole state of a machine's session, to be compared: empty if it does not have it, `None` if it is too large.
    fn shows(&self, of: Receiver, Stale { session, server, .. }: Stale) -> Option<String> {
        let shown: Option<(u64, &dyn Debug)> = match of {
            Receiver::Agent(agent) => {
                let end = self.agents[agent].machine().and_then(|machine| machine.end(session, server));
                end.map(|end| (end.kept_bytes(), end as &dyn Debug))
            }
            Receiver::Shard(position) => {
                let owner = self.shard(position).machine().and_then(|machine| machine.owner(session));
                owner.map(|owner| (owner.held_bytes(), owner as &dyn Debug))
            }
            Receiver::Recorder => {
                let recorder = self.recorder.as_ref().and_then(super::RecorderNode::machine);
                recorder.and_then(|recorder| recorder.of_session(session))
            }
        };
        match shown {
            None => Some(String::new()),
            Some((bytes, state)) => {
                (bytes < LOOKED_AT_BYTES_MAX).then(|| without_share(&format!("{state:?}")))
            }
        }
    }
}

/// An owner without its share of the shard's memory, which follows from what other sessions keep.
fn without_share(state: &str) -> String {
    let share = state
        .split_once("share: OwnerShare {")
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?.1)));
    share.map_or_else(|| state.into(), |(before, after)| format!("{before}{after}"))
}
