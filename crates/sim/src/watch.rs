//! Watches from outside: which rare states a seed reached, which moments faults wait for, and whether the bounds that two
//! machines agreed on are kept. Judges no protocol: what it sees are frames and requests, never a machine's inside.

mod bounds;
mod rare;

pub use rare::{Counts, Rare};

use crate::{executor::Seen, plan::Moment, world::Seat};
use bounds::Bounds;
use marram_session::cell::{CellId, Outcome, Ran};
use marram_wire::{
    frame::{Frame, Hello, Live, Promise, Promised},
    header::Header,
    id::{Generation, SessionId},
};
use std::collections::BTreeMap;

/// Who sends or receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Agent,
    Edge,
}

/// A moment that faults may wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) moment: Moment,
    /// Where it was seen, if it was at an edge or on a wire to one.
    pub(crate) edge: Option<usize>,
}

/// What a channel belongs to: the session, which end, and since its promise the generation.
#[derive(Clone, Copy, Debug)]
struct Bound {
    session: SessionId,
    server: bool,
    generation: Option<Generation>,
}

/// One attempt to own a session, as frames tell of it.
#[derive(Debug, Default)]
struct Attempt {
    seat: Option<Seat>,
    ends: usize,
    promised: [bool; 2],
    log_ends: [Option<u64>; 2],
    truncated: bool,
    restoring: bool,
    replaying: bool,
    chosen: [bool; 2],
    dead: bool,
    /// Set if whoever opened it stood by for another's cell: how far it was fed.
    stood: Option<u64>,
}

impl Attempt {
    fn count(flags: [bool; 2]) -> usize {
        flags.into_iter().filter(|flag| *flag).count()
    }

    fn is_complete(&self) -> bool {
        Self::count(self.chosen) >= self.ends
    }
}

#[derive(Debug, Default)]
struct Track {
    attempts: BTreeMap<Generation, Attempt>,
    /// Which ends asked for a generation since the last one was complete.
    asked: [bool; 2],
    closed: [bool; 2],
}

/// Everything that was seen of one seed.
#[derive(Debug, Default)]
pub struct Watch {
    /// How often each rare state was reached.
    pub counts: Counts,
    pub(crate) sights: Vec<Sight>,
    channels: BTreeMap<(usize, u32), Bound>,
    sessions: BTreeMap<SessionId, Track>,
    cells: BTreeMap<(Seat, CellId), SessionId>,
    owner: Option<usize>,
    bounds: Bounds,
}

impl Watch {
    pub(crate) fn count_if(&mut self, rare: Rare, reached: bool) {
        self.counts.add(rare, u64::from(reached));
    }

    pub(crate) fn see(&mut self, moment: Moment, edge: Option<usize>) {
        self.sights.push(Sight { moment, edge });
    }

    /// The edge of the newest attempt that was heard of.
    pub(crate) fn owner(&self) -> Option<usize> {
        self.owner
    }

    /// A shard's process died.
    pub(crate) fn died(&mut self, seat: Seat) {
        for attempt in self.sessions.values_mut().flat_map(|track| track.attempts.values_mut()) {
            attempt.dead |= attempt.seat == Some(seat);
        }
    }

    /// A machine sends a frame.
    pub(crate) fn sent(&mut self, wire: usize, side: Side, seat: Seat, frame: &Frame) {
        let edge = Some(seat.edge);
        match (side, frame) {
            (Side::Agent, Frame::Hello(hello)) => {
                self.see(Moment::Hello, edge);
                self.hello(wire, hello);
            }
            (Side::Edge, Frame::Promise(promise)) => {
                self.see(Moment::Promise, edge);
                self.promise(wire, seat, promise);
            }
            (Side::Agent, Frame::Promised(promised)) => {
                self.see(Moment::Promised, edge);
                self.counts.add(Rare::LiveOwnerKept, u64::from(promised.live));
            }
            (Side::Edge, Frame::Chosen(chosen)) => {
                self.see(Moment::Chosen, edge);
                self.choose(wire, chosen.channel);
            }
            (Side::Agent, Frame::Stored(stored)) if stored.complete.is_some() => {
                self.see(Moment::Stored, edge)
            }
            (Side::Edge, Frame::Truncate(_)) => self.see(Moment::Truncate, edge),
            (Side::Edge, Frame::Finish(_)) => self.see(Moment::Finish, edge),
            (Side::Agent, Frame::Finished(_)) => self.see(Moment::Finished, edge),
            (Side::Agent, Frame::Superseded(_)) => self.counts.add(Rare::GenerationRefused, 1),
            (Side::Edge, Frame::Failed(_)) => self.counts.add(Rare::HandlerStopped, 1),
            (Side::Agent, Frame::Input(input)) => self.input(wire, input.channel, input.close),
            _ => {}
        }
        self.bounds.sent(wire, side, frame);
        self.counts.add(Rare::WindowFull, std::mem::take(&mut self.bounds.full));
    }

    /// A frame reached a machine.
    pub(crate) fn arrived(&mut self, wire: usize, side: Side, frame: &Frame, violations: &mut Vec<String>) {
        match (side, frame) {
            (Side::Edge, Frame::Promised(promised)) => self.promised(wire, promised),
            (Side::Agent, Frame::Chosen(chosen)) => self.chosen(wire, chosen.channel),
            _ => {}
        }
        self.bounds.arrived(wire, side, frame, violations);
    }

    fn hello(&mut self, wire: usize, hello: &Hello) {
        let (session, server) = (hello.session, hello.server);
        self.channels.insert((wire, hello.channel), Bound { session, server, generation: None });
        if hello.fresh {
            return;
        }
        self.counts.add(Rare::ServerLed, u64::from(server));
        let track = self.sessions.entry(session).or_default();
        track.asked[usize::from(server)] = true;
        self.counts.add(Rare::BothLed, u64::from(track.asked == [true; 2]));
    }

    fn promise(&mut self, wire: usize, seat: Seat, promise: &Promise) {
        let server = !promise.server.is_empty();
        let (session, generation) = (promise.session, promise.generation);
        let bound = Bound { session, server, generation: Some(generation) };
        self.channels.insert((wire, promise.channel), bound);
        let track = self.sessions.entry(session).or_default();
        let ends = if promise.peer.is_some() { 2 } else { 1 };
        if let Some(attempt) = track.attempts.get_mut(&generation) {
            if attempt.dead || attempt.seat != Some(seat) {
                // Both would seal other texts under one key.
                self.bounds.broken = Some(format!("generation {generation} was opened twice"));
            }
            attempt.ends = attempt.ends.max(ends);
            return;
        }
        if let Some((_, last)) = track.attempts.last_key_value()
            && !last.is_complete()
        {
            let rare = if Attempt::count(last.promised) < last.ends {
                Rare::RecoveryDuringPromise
            } else if last.replaying {
                Rare::RecoveryDuringReplay
            } else if last.restoring {
                Rare::RecoveryDuringRestore
            } else {
                Rare::RecoveryDuringChoice
            };
            self.counts.add(rare, 1);
        }
        self.counts.add(Rare::ThirdGeneration, u64::from(generation.count >= 3));
        let live = promise.live.as_ref();
        let other =
            |live: &Live| track.attempts.get(&live.generation).is_some_and(|it| it.seat != Some(seat));
        let stood = live.filter(|live| other(live)).map(|live| live.log_end);
        self.counts.add(Rare::StandbyAsked, u64::from(stood.is_some()));
        self.counts.add(Rare::StandbyLed, u64::from(stood.is_some() && track.asked == [false; 2]));
        let attempt = Attempt { seat: Some(seat), ends, stood, ..Attempt::default() };
        track.attempts.insert(generation, attempt);
        self.owner = Some(seat.edge);
    }

    fn attempt(&mut self, wire: usize, channel: u32) -> Option<(&mut Track, Generation, bool)> {
        let bound = *self.channels.get(&(wire, channel))?;
        let track = self.sessions.get_mut(&bound.session)?;
        Some((track, bound.generation?, bound.server))
    }

    fn promised(&mut self, wire: usize, promised: &Promised) {
        let Some((track, generation, server)) = self.attempt(wire, promised.channel) else { return };
        let Some(attempt) = track.attempts.get_mut(&generation) else { return };
        attempt.promised[usize::from(server)] = true;
        if !promised.live {
            attempt.log_ends[usize::from(server)] = Some(promised.log_end);
            attempt.truncated |= promised.log_start > 0;
        }
        if let Some(fed) = attempt.stood {
            let live = promised.live;
            self.counts.add(Rare::StandbyBehind, u64::from(live && promised.log_end > fed));
            self.counts.add(Rare::StandbyAhead, u64::from(live && promised.log_end < fed));
            self.counts.add(Rare::StandbyOvertaken, u64::from(!live));
        }
    }

    fn choose(&mut self, wire: usize, channel: u32) {
        let Some((track, generation, _)) = self.attempt(wire, channel) else { return };
        let Some(attempt) = track.attempts.get_mut(&generation) else { return };
        let (log_ends, truncated) = (std::mem::take(&mut attempt.log_ends), attempt.truncated);
        attempt.truncated = false;
        self.counts.add(Rare::TruncatedLogUsed, u64::from(truncated));
        if let [Some(client), Some(server)] = log_ends {
            self.counts.add(Rare::ClientLogChosen, u64::from(client > server));
            self.counts.add(Rare::ServerLogChosen, u64::from(server > client));
        }
    }

    fn chosen(&mut self, wire: usize, channel: u32) {
        let Some((track, generation, server)) = self.attempt(wire, channel) else { return };
        let Some(attempt) = track.attempts.get_mut(&generation) else { return };
        attempt.chosen[usize::from(server)] = true;
        if attempt.is_complete() {
            track.asked = [false; 2];
            let stood = attempt.stood.take().is_some();
            self.counts.add(Rare::StandbyTookOver, u64::from(stood));
        }
    }

    fn input(&mut self, wire: usize, channel: u32, close: bool) {
        let Some((track, _, server)) = self.attempt(wire, channel) else { return };
        let half = track.closed[usize::from(!server)] && !close;
        track.closed[usize::from(server)] |= close;
        self.counts.add(Rare::SpokeAfterHalfClose, u64::from(half));
    }

    /// An executor restored a cell.
    pub(crate) fn restored(&mut self, seat: Seat, cell: CellId, session: SessionId, checkpoints: usize) {
        self.see(Moment::Restore, Some(seat.edge));
        self.counts.add(Rare::CheckpointRestored, 1);
        self.counts.add(Rare::DeltaRestored, u64::from(checkpoints > 1));
        self.cells.insert((seat, cell), session);
        if let Some(attempt) = self.newest_at(seat, session) {
            attempt.restoring = true;
        }
    }

    /// An executor sealed a checkpoint.
    pub(crate) fn sealed(&mut self, seat: Seat, header: &Header) {
        self.see(Moment::Checkpoint, Some(seat.edge));
        let awaited = header.locks.0.iter().any(|lock| !lock.waiting.0.is_empty());
        self.counts.add(Rare::TaskPendingAtCheckpoint, u64::from(!header.tasks.0.is_empty()));
        self.counts.add(Rare::LockAwaitedAtCheckpoint, u64::from(awaited));
    }

    /// An executor ran a handler.
    pub(crate) fn ran(&mut self, seat: Seat, cell: CellId, ran: &Ran, seen: Seen) {
        self.counts.add(Rare::HandlerStopped, u64::from(ran.outcome != Outcome::Idle));
        if !seen.replayed {
            return;
        }
        self.see(Moment::Replay, Some(seat.edge));
        self.counts.add(Rare::TimerReplayed, u64::from(seen.timer.is_some()));
        self.counts.add(Rare::StageTimerReplayed, u64::from(seen.timer.is_some_and(|stage| stage > 0)));
        self.counts.add(Rare::TaskReplayed, u64::from(seen.task));
        self.counts.add(Rare::RandomReplayed, u64::from(seen.random));
        self.counts.add(Rare::ReadReplayed, u64::from(seen.read));
        self.counts.add(Rare::DatagramReplayed, u64::from(seen.datagram));
        // A cell that was started is known only once it is named; then it is the one session that this shard rebuilds.
        let named = self.cells.get(&(seat, cell)).copied();
        let session = named.or_else(|| self.only_rebuilt_at(seat));
        if let Some(attempt) = session.and_then(|session| self.newest_at(seat, session)) {
            attempt.replaying |= Attempt::count(attempt.chosen) == 0;
        }
    }

    fn newest_at(&mut self, seat: Seat, session: SessionId) -> Option<&mut Attempt> {
        let attempts = &mut self.sessions.get_mut(&session)?.attempts;
        attempts.values_mut().rev().find(|attempt| attempt.seat == Some(seat) && !attempt.dead)
    }

    fn only_rebuilt_at(&self, seat: Seat) -> Option<SessionId> {
        let rebuilt = |track: &Track| {
            track.attempts.values().any(|attempt| {
                attempt.seat == Some(seat)
                    && !attempt.dead
                    && Attempt::count(attempt.promised) >= attempt.ends
                    && Attempt::count(attempt.chosen) == 0
            })
        };
        let mut all = self.sessions.iter().filter(|(_, track)| rebuilt(track)).map(|(session, _)| *session);
        let first = all.next();
        first.filter(|_| all.next().is_none())
    }
}
