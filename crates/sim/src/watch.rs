//! Observes from outside: which rare states a seed reached, which moments faults wait for, and whether the bounds that two
//! machines agreed on are kept. Does not check the protocol: it sees frames and requests, never a machine's internal state.
//!
//! ```text
//!             sent()                         arrived()
//! machine A --------> wire: delays, loss --------> machine B
//!    '- counts as sent: what A knows             '- counts as arrived: what B may rely on
//! ```
//! Bounds are kept from the sender's view: a credit counts when it has reached the sender, bytes
//! count when they leave it.
//!
//! The watch follows the attempts of each session through the frames alone (Promise, Promised,
//! Chosen), so it notices an attempt that no machine thinks it has made. It finds violations of I1,
//! I2, I13 and I33, and the bounds of `watch/bounds.rs`. Channels to keepers are in `watch/feeds.rs`.

mod abandoned;
mod bounds;
mod channels;
mod clocks;
mod feeds;
mod halls;
mod lists;
mod pairs;
mod rare;
mod stale;

pub(crate) use feeds::Keeper;
pub use rare::{Counts, Rare};
pub(crate) use stale::Stale;

use crate::{
    executor::{Copied, Seen},
    plan::{Moment, Service},
    position::ShardPosition,
};
use abandoned::Abandoned;
use bounds::Bounds;
use clocks::Clocks;
use feeds::Feeds;
use halls::Halls;
use lists::Lists;
use marram_session::cell::{CellId, CheckpointBase, Ran, RunOutcome};
use marram_shard::api::WitnessMode;
use marram_wire::{
    frame::{Chosen, Code, Frame, Hello, Keeps, Live, Promise, Promised},
    header::Header,
    id::{Generation, HostId, SessionId},
};
use pairs::Pairs;
use std::collections::BTreeMap;

/// The kind of machine that sends or receives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PeerSide {
    Agent,
    Edge,
}

/// A moment that faults may wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) moment: Moment,
    /// The shard where it was seen, if it was at an edge or on a wire to one.
    pub(crate) position: Option<ShardPosition>,
    /// The agent at the other side of that wire.
    pub(crate) agent: Option<usize>,
}

/// What a channel belongs to: the session, the end, and, since its promise, the generation.
/// A channel serves one attempt of one end.
#[derive(Clone, Copy, Debug)]
struct Bound {
    session: SessionId,
    server: bool,
    generation: Option<Generation>,
    /// The generation whose live cell the owner offers to keep.
    live: Option<Generation>,
    /// What the end keeps.
    keeps: Keeps,
    /// The agent of the other end.
    peer: Option<HostId>,
}

/// One attempt to own a session, as seen in its frames. Flags and offsets in pairs: index 0 is the
/// client's end, 1 the server's.
#[derive(Debug, Default)]
struct Attempt {
    position: Option<ShardPosition>,
    /// Ends that this session has: 1 without a server.
    ends: usize,
    /// Ends whose promise has reached the edge.
    promised: [bool; 2],
    /// `None` until the end's promise arrived, and if it was for a live cell, which needs no log.
    log_ends: [Option<u64>; 2],
    truncated: bool,
    /// Set when the executor restored a cell, and when it ran a handler again, before the log was
    /// chosen.
    restoring: bool,
    replaying: bool,
    /// Ends that the chosen log has reached. All of them: the attempt is complete, and its opener
    /// is the owner (I11, I12).
    chosen: [bool; 2],
    /// Whether an end was sent the chosen log.
    is_sent: bool,
    /// Its shard died: it cannot go on.
    dead: bool,
    /// Whether an end was asked for a promise to an owner that an operator has chosen.
    assigned: bool,
    /// Whether its app has a witness, and it is not the first attempt of the session.
    witnessed: bool,
    /// Set if the opener was a standby for another owner's cell: how much of the log it had received.
    stood: Option<u64>,
    /// Set likewise: the generation of that cell. A strict witness was asked under it, if the session was handed over.
    stood_for: Option<Generation>,
}

impl Attempt {
    fn count(flags: [bool; 2]) -> usize {
        flags.into_iter().filter(|flag| *flag).count()
    }

    /// Whether all ends have the chosen log.
    fn is_complete(&self) -> bool {
        Self::count(self.chosen) >= self.ends
    }
}

/// One session: its attempts by generation, so in order.
#[derive(Debug, Default)]
struct Track {
    attempts: BTreeMap<Generation, Attempt>,
    /// Which ends have asked for a generation since the last one was complete.
    asked: [bool; 2],
    /// Which ends have sent that nothing more follows, by the frames of any attempt.
    closed: [bool; 2],
}

/// Everything that was observed in one seed.
#[derive(Debug, Default)]
pub struct Watch {
    /// How often each rare state was reached.
    pub counts: Counts,
    /// Moments since the last look of [`super::world`], which takes them after each event.
    pub(crate) sights: Vec<Observation>,
    /// By wire and channel, since the last hello or promise on it.
    channels: BTreeMap<(usize, u32), Bound>,
    sessions: BTreeMap<SessionId, Track>,
    /// Known for cells that were restored; see [`Self::ran`].
    cells: BTreeMap<(ShardPosition, CellId), SessionId>,
    owner: Option<ShardPosition>,
    /// Index of the edge that an owner last named as its standby.
    standby: Option<usize>,
    /// The edge to which a session was last moved.
    moved_to: Option<usize>,
    /// What the witness's reply means, if there is a witness.
    witness: Option<WitnessMode>,
    /// The witness's replies to owners: `None` if it was away, else how much log a client was seen to have. By the generation under
    /// which the shard asked.
    testimonies: BTreeMap<(SessionId, Generation, ShardPosition), Option<Option<u64>>>,
    /// The last generation that a shard opened.
    opened: BTreeMap<(ShardPosition, SessionId), Generation>,
    /// The last generation that an agent's end promised.
    promised_by: BTreeMap<(usize, SessionId, bool), Generation>,
    /// The last generation whose chosen log reached an end that had promised no newer one.
    chosen_at: BTreeMap<(SessionId, bool), Generation>,
    /// The end that the frame which arrived last chose a log for, and what it had accepted before.
    chosen_last: Option<((SessionId, bool), Option<Generation>)>,
    /// Stale frames whose effect was checked.
    looked_at: Vec<(Rare, std::mem::Discriminant<Frame>)>,
    feeds: Feeds,
    bounds: Bounds,
    clocks: Clocks,
    halls: Halls,
    lists: Lists,
    pairs: Pairs,
    pub(crate) abandoned: Abandoned,
}

impl Watch {
    /// A state that is reached counts once for each time that it is observed, not once per seed.
    pub(crate) fn count_if(&mut self, rare: Rare, reached: bool) {
        self.counts.add(rare, u64::from(reached));
    }

    /// A cell was copied for a checkpoint on this base.
    pub(crate) fn copied(&mut self, base: CheckpointBase) {
        self.count_if(Rare::DeltasMerged, base == CheckpointBase::Full);
        self.count_if(Rare::CopiedApart, base == CheckpointBase::Apart);
    }

    pub(crate) fn see(&mut self, moment: Moment, position: Option<ShardPosition>) {
        self.sights.push(Observation { moment, position, agent: None });
    }

    /// The shard of the newest attempt that was seen.
    pub(crate) fn owner(&self) -> Option<ShardPosition> {
        self.owner
    }

    /// Another hall may begin, with a time of its own.
    pub(crate) fn hall_begins(&mut self) {
        self.clocks.begin_again();
    }

    /// The edge that an owner last named to its ends as its standby.
    pub(crate) fn standby(&self) -> Option<usize> {
        self.standby
    }

    /// The edge to which a session was last moved.
    pub(crate) fn moved_to(&self) -> Option<usize> {
        self.moved_to
    }

    /// An operator moves a session to this edge.
    pub(crate) fn move_to(&mut self, edge: usize) {
        self.moved_to = Some(edge);
    }

    /// The shard of a session's newest owner that all ends accepted, unless it died.
    pub(crate) fn owner_of(&self, session: SessionId) -> Option<ShardPosition> {
        let attempts = &self.sessions.get(&session)?.attempts;
        let last = attempts.values().rev().find(|attempt| attempt.is_complete())?;
        last.position.filter(|_| !last.dead)
    }

    /// Whether a shard, which opened the newest attempt to own a session, told its ends that an operator has chosen it.
    pub(crate) fn is_assigned(&self, session: SessionId, to: ShardPosition) -> Option<bool> {
        let newest = self.sessions.get(&session)?.attempts.values().next_back()?;
        (newest.position == Some(to)).then_some(newest.assigned)
    }

    /// A shard's process died.
    pub(crate) fn died(&mut self, position: ShardPosition) {
        for attempt in self.sessions.values_mut().flat_map(|track| track.attempts.values_mut()) {
            attempt.dead |= attempt.position == Some(position);
        }
    }

    /// An agent's process died, with what its ends had promised. Another process of it is another agent.
    pub(crate) fn agent_died(&mut self, agent: usize) {
        self.promised_by.retain(|(of, ..), _| *of != agent);
        self.lists.agent_died(agent);
        self.pairs.agent_died(agent);
    }

    /// What an edge may let an end have in flight, and an end its edge.
    pub(crate) fn bound_windows(&mut self, [inputs, outputs]: [u64; 2]) {
        (self.bounds.window, self.bounds.output_window) = (Some(inputs), Some(outputs));
    }

    /// An agent that lies is at one side of this wire: it agrees on nothing.
    pub(crate) fn ignore_bounds(&mut self, wire: usize) {
        self.bounds.ignored.insert(wire);
    }

    /// A machine sends a frame.
    pub(crate) fn sent(
        &mut self,
        now_ns: u64,
        (wire, agent): (usize, usize),
        side: PeerSide,
        position: ShardPosition,
        frame: &Frame,
    ) {
        let before = self.sights.len();
        if side == PeerSide::Agent {
            self.keeps_checkpoints((wire, agent), frame);
        } else {
            self.owner_told(wire, frame);
        }
        match (side, frame) {
            (PeerSide::Agent, Frame::Hello(hello)) => {
                self.see(Moment::Hello, Some(position));
                self.hello(wire, hello);
            }
            (PeerSide::Edge, Frame::Promise(promise)) => {
                self.see(Moment::Promise, Some(position));
                self.halls.asked(position, promise, &mut self.counts);
                self.promise(wire, position, promise);
            }
            (PeerSide::Edge, Frame::Lead(lead)) => {
                if let Some(bound) = self.channels.get(&(wire, lead.channel)) {
                    self.halls.led(bound.session, &mut self.counts);
                }
            }
            (PeerSide::Agent, Frame::Promised(promised)) => {
                self.see(Moment::Promised, Some(position));
                self.promised_by(wire, agent, promised);
                self.counts.add(Rare::LiveOwnerKept, u64::from(promised.live));
                let partial = promised.partial.as_ref().is_some_and(|partial| partial.bytes > 0);
                self.counts.add(Rare::CheckpointPartial, u64::from(partial));
            }
            (PeerSide::Edge, Frame::Chosen(chosen)) => {
                self.see(Moment::Chosen, Some(position));
                self.chosen_told(now_ns, wire, position, chosen);
            }
            (PeerSide::Agent, Frame::Stored(stored)) if stored.complete.is_some() => {
                self.see(Moment::Stored, Some(position))
            }
            (PeerSide::Edge, Frame::Output(output)) => self.message(wire, output.channel, position),
            (PeerSide::Edge, Frame::Standby(standby)) => {
                self.standby = standby.edge.strip_prefix("edge-").and_then(|index| index.parse().ok());
            }
            (PeerSide::Edge, Frame::Truncate(truncate)) => {
                self.see(Moment::Truncate, Some(position));
                let bound = self.channels.get(&(wire, truncate.channel));
                let is_bare = bound.is_some_and(|bound| bound.keeps == Keeps::Nothing);
                self.counts.add(Rare::BareForgotten, u64::from(is_bare));
            }
            (PeerSide::Edge, Frame::Unprotect(_)) => self.counts.add(Rare::Unprotected, 1),
            (PeerSide::Edge, Frame::Finish(_)) => self.see(Moment::Finish, Some(position)),
            (PeerSide::Agent, Frame::Finished(_)) => self.see(Moment::Finished, Some(position)),
            (PeerSide::Agent, Frame::Ended(ended)) if ended.reason.contains("than the end has forgotten") => {
                self.counts.add(Rare::AskerBehind, 1);
            }
            (PeerSide::Agent, Frame::Ended(ended)) if ended.code == Code::Waiting => {
                let bound =
                    self.channels.get(&(wire, ended.channel)).filter(|bound| bound.keeps == Keeps::Nothing);
                if let Some(Bound { session, server, .. }) = bound {
                    self.abandoned.refused(agent, *session, *server);
                }
            }
            (PeerSide::Agent, Frame::Superseded(_)) => self.counts.add(Rare::GenerationRefused, 1),
            (PeerSide::Edge, Frame::Failed(_)) => self.counts.add(Rare::HandlerStopped, 1),
            (PeerSide::Agent, Frame::Input(input)) => {
                self.message(wire, input.channel, position);
                self.input(wire, input.channel, input.close);
            }
            _ => {}
        }
        self.sights[before..].iter_mut().for_each(|sight| sight.agent = Some(agent));
        self.bounds.sent(wire, side, frame);
        self.counts.add(Rare::WindowFull, std::mem::take(&mut self.bounds.full));
        self.counts.add(Rare::CheckpointEarly, std::mem::take(&mut self.bounds.early));
    }

    /// An end says what it keeps. One that lies may say anything.
    fn keeps_checkpoints(&mut self, (wire, agent): (usize, usize), frame: &Frame) {
        let channel = match frame {
            Frame::Promised(promised) => promised.channel,
            Frame::Stored(stored) => stored.channel,
            _ => return,
        };
        let bound = self.channels.get(&(wire, channel)).filter(|_| self.bounds.ignored.is_empty());
        if let Some(Bound { session, server, .. }) = bound {
            let wrong = self.lists.sent(wire, (agent, *session, *server), frame);
            self.bounds.broken = wrong.or(self.bounds.broken.take());
        }
    }

    /// An edge tells an end that it goes on.
    fn chosen_told(&mut self, now_ns: u64, wire: usize, position: ShardPosition, chosen: &Chosen) {
        self.choose(wire, chosen.channel);
        if let Some(bound) = self.channels.get(&(wire, chosen.channel)) {
            self.feeds.end_recalls(position, bound.session);
            self.halls.chosen(bound.session, &mut self.counts);
            let attempt = (bound.session, bound.generation.unwrap_or(Generation::NONE));
            let told = self.clocks.sent(now_ns, (wire, chosen.channel), attempt, chosen.session_ns);
            // An agent that lies may say any time.
            self.bounds.broken =
                told.err().filter(|_| self.bounds.ignored.is_empty()).or(self.bounds.broken.take());
        }
        self.judge_witness(wire, chosen.channel, chosen.log_offset + chosen.log.len() as u64);
    }

    /// An end accepts the generation of a channel. Each must be later than the one before. The end may accept its owner's cell as
    /// the live one only if that owner's generation is the one that the end accepted last.
    ///
    /// Checks I1 (ever newer promises) and the end's part of I13.
    fn promised_by(&mut self, wire: usize, agent: usize, promised: &Promised) {
        let Some(Bound { session, server, generation: Some(generation), live, keeps, peer }) =
            self.channels.get(&(wire, promised.channel))
        else {
            return;
        };
        let before = self.promised_by.insert((agent, *session, *server), *generation);
        if self.bounds.ignored.contains(&wire) {
            return;
        }
        if let Some(before) = before.filter(|before| before >= generation) {
            let what = format!("an end of {session:?} that promised {before} promises {generation} later");
            self.bounds.broken = Some(what);
        }
        if self.bounds.ignored.is_empty() {
            let wrong = self.pairs.promised((agent, *session, *server), *generation, *peer);
            self.bounds.broken = wrong.or(self.bounds.broken.take());
        }
        // The end of a session that is protected only while it moves goes back to the last generation with a log.
        let last =
            if *keeps == Keeps::Nothing { self.chosen_at.get(&(*session, *server)).copied() } else { before };
        // One that keeps messages alone takes a later one, too: what the backup has follows from what was chosen here.
        let follows = *keeps == Keeps::Messages && live >= &self.chosen_at.get(&(*session, *server)).copied();
        if promised.live && *live != last && !follows {
            let what = format!("an end of {session:?} takes a cell of {live:?} for the one of {last:?}");
            self.bounds.broken = Some(what);
        }
    }

    /// The shard of an owner sends a frame to a keeper.
    pub(crate) fn sent_to_keeper(&mut self, wire: usize, position: ShardPosition, frame: &Frame) {
        let moment = match frame {
            Frame::Keep(keep) if keep.moves => Some(Moment::MoveFed),
            // The next edge has claimed the group.
            Frame::KeepOn(_) => Some(Moment::KeptOn),
            Frame::HandGroup(_) | Frame::HandOver(_) => Some(Moment::HandedOver),
            Frame::JoinGroup(_) => Some(Moment::NextGroup),
            // Of a group's claims the first one names a backup, and the next one none.
            Frame::Backup(backup) if backup.generation.count > 2 => Some(Moment::NextBackup),
            _ => None,
        };
        if let Frame::HandOver(hand_over) = frame {
            self.count_if(Rare::HandedOver, true);
            self.count_if(Rare::HandedToWarm, self.feeds.is_of_warm(wire, hand_over.channel));
        }
        moment.into_iter().for_each(|moment| self.see(moment, Some(position)));
        self.feeds.sent_by_owner(wire, position, frame);
    }

    /// A keeper sends a frame to the shard that asked it.
    pub(crate) fn sent_by_keeper(&mut self, wire: usize, frame: &Frame) {
        self.feeds.sent_by_keeper(wire, frame);
    }

    /// A keeper has taken a frame.
    pub(crate) fn reached_keeper(&mut self, keeper: Keeper, wire: usize, frame: &Frame) {
        self.feeds.reached_keeper(keeper, wire, frame);
    }

    /// The shard of an owner has taken a frame of a keeper.
    pub(crate) fn reached_owner(&mut self, wire: usize, frame: &Frame) {
        self.feeds.reached_owner(wire, frame);
    }

    /// Sets that there is a witness.
    pub(crate) fn witness(&mut self, how: WitnessMode) {
        self.witness = Some(how);
    }

    /// An owner got the witness's reply.
    pub(crate) fn testified(
        &mut self,
        (session, generation, position): (SessionId, Generation, ShardPosition),
        said: Option<Option<u64>>,
    ) {
        self.testimonies.insert((session, generation, position), said);
    }

    /// Whether the newest attempt to own a session needs the word of a strict witness.
    pub(crate) fn is_strict(&self, session: SessionId) -> bool {
        let last = self.sessions.get(&session).and_then(|track| track.attempts.values().next_back());
        self.witness == Some(WitnessMode::Strict) && last.is_some_and(|last| last.witnessed)
    }

    /// The chosen log must not end before what the witness reported, nor be chosen without its reply where that is required.
    ///
    /// I33. Only attempts after the first: there is nothing to witness before.
    fn judge_witness(&mut self, wire: usize, channel: u32, log_end: u64) {
        let Some(how) = self.witness else { return };
        let Some(session) = self.channels.get(&(wire, channel)).map(|bound| bound.session) else { return };
        let Some((track, generation, _)) = self.attempt(wire, channel) else { return };
        let Some(attempt) = track.attempts.get(&generation).filter(|attempt| attempt.witnessed) else {
            return;
        };
        let (position, first) = (attempt.position, attempt.stood_for);
        let word = |generation| {
            let position = position?;
            self.testimonies.get(&(session, generation, position)).copied()
        };
        let said = word(generation).or_else(|| first.and_then(word)).flatten();
        if how == WitnessMode::Strict && said.is_none() {
            self.bounds.broken =
                Some(format!("{session} goes on as {generation} without the word of its witness"));
        }
        if let Some(Some(seen)) = said.filter(|seen| seen.is_some_and(|seen| seen > log_end)) {
            let text = format!(
                "{session} goes on with {log_end} B of log, and its client was seen to have {seen} B"
            );
            self.bounds.broken = Some(text);
        }
    }

    /// A message is sent on a channel. Counted as a moment only in a session that runs, so that the
    /// first fault does not hit an opening.
    fn message(&mut self, wire: usize, channel: u32, position: ShardPosition) {
        let attempt = self.attempt(wire, channel);
        let runs = attempt.and_then(|(track, generation, _)| track.attempts.get(&generation));
        if runs.is_some_and(Attempt::is_complete) {
            self.see(Moment::Message, Some(position));
        }
    }

    /// A frame reached its receiver.
    pub(crate) fn arrived(
        &mut self,
        wire: usize,
        side: PeerSide,
        frame: &Frame,
        violations: &mut Vec<String>,
    ) {
        self.chosen_last = None;
        if side == PeerSide::Agent {
            self.lists.arrived(wire, frame);
        }
        match (side, frame) {
            (PeerSide::Edge, Frame::Promised(promised)) => self.promised(wire, promised),
            (PeerSide::Agent, Frame::Chosen(chosen)) => self.chosen(wire, chosen.channel),
            (PeerSide::Agent, Frame::Promise(promise)) => {
                violations.extend(self.abandoned.asked(wire, promise).err());
            }
            _ => {}
        }
        self.bounds.arrived(wire, side, frame, violations);
    }

    /// An end asks for an owner; with `fresh` for the first time, which is no recovery.
    fn hello(&mut self, wire: usize, hello: &Hello) {
        let (session, server) = (hello.session, hello.server);
        self.channels.insert(
            (wire, hello.channel),
            Bound { session, server, generation: None, live: None, keeps: Keeps::All, peer: None },
        );
        if hello.fresh {
            return;
        }
        self.counts.add(Rare::ServerLed, u64::from(server));
        let track = self.sessions.entry(session).or_default();
        track.asked[usize::from(server)] = true;
        self.counts.add(Rare::BothLed, u64::from(track.asked == [true; 2]));
    }

    ///
    /// A second promise frame of a known attempt goes to the other end, or again to the same one.
    /// It must come from the same live shard (I2): a shard that lost its memory cannot know what it
    /// has encrypted under that generation's keys.
    fn promise(&mut self, wire: usize, position: ShardPosition, promise: &Promise) {
        let server = !promise.server.is_empty();
        let (session, generation) = (promise.session, promise.generation);
        let live = promise.live.as_ref().map(|live| live.generation);
        let (keeps, peer) = (promise.keeps, promise.peer);
        let bound = Bound { session, server, generation: Some(generation), live, keeps, peer };
        self.channels.insert((wire, promise.channel), bound);
        self.opened.insert((position, session), generation);
        self.feeds.promise(position, promise);
        if promise.shared && promise.fresh && promise.live.is_none() {
            self.clocks.begins((wire, promise.channel));
        }
        let track = self.sessions.entry(session).or_default();
        let ends = if promise.peer.is_some() { 2 } else { 1 };
        if let Some(attempt) = track.attempts.get_mut(&generation) {
            if attempt.dead || attempt.position != Some(position) {
                // Both would encrypt different plaintexts with one key.
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
        let other = |live: &Live| {
            track.attempts.get(&live.generation).is_some_and(|it| it.position != Some(position))
        };
        let unchosen = |live: &Live| {
            track.attempts.get(&live.generation).is_some_and(|it| Attempt::count(it.chosen) == 0)
        };
        let fed = live.filter(|live| other(live));
        let (stood, stood_for) = (fed.map(|live| live.log_end), fed.map(|live| live.generation));
        let in_vain = live.is_some_and(|live| other(live) && unchosen(live));
        self.counts.add(Rare::StandbyRenewedInVain, u64::from(in_vain));
        self.counts.add(Rare::StandbyAsked, u64::from(stood.is_some()));
        self.counts.add(Rare::StandbyLed, u64::from(stood.is_some() && track.asked == [false; 2]));
        let witnessed = promise.app == Service::Alone.name() && !promise.fresh;
        let assigned = promise.assigned;
        let attempt = Attempt {
            position: Some(position),
            ends,
            stood,
            stood_for,
            witnessed,
            assigned,
            ..Attempt::default()
        };
        track.attempts.insert(generation, attempt);
        self.owner = Some(position);
    }

    /// The session, the generation and the side (whether the server's) that a channel stands for;
    /// `None` before its promise.
    fn attempt(&mut self, wire: usize, channel: u32) -> Option<(&mut Track, Generation, bool)> {
        let bound = *self.channels.get(&(wire, channel))?;
        let track = self.sessions.get_mut(&bound.session)?;
        Some((track, bound.generation?, bound.server))
    }

    /// An end's promise reached the edge.
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

    /// The owner has chosen the longest log: counts whose it was, once per attempt.
    fn choose(&mut self, wire: usize, channel: u32) {
        let Some((track, generation, _)) = self.attempt(wire, channel) else { return };
        let Some(attempt) = track.attempts.get_mut(&generation) else { return };
        let (log_ends, truncated) = (std::mem::take(&mut attempt.log_ends), attempt.truncated);
        (attempt.truncated, attempt.is_sent) = (false, true);
        self.counts.add(Rare::TruncatedLogUsed, u64::from(truncated));
        if let [Some(client), Some(server)] = log_ends {
            self.counts.add(Rare::ClientLogChosen, u64::from(client > server));
            self.counts.add(Rare::ServerLogChosen, u64::from(server > client));
        }
    }

    /// Whether an end was sent the log that was chosen in this generation.
    pub(crate) fn was_chosen(&self, session: SessionId, generation: Generation) -> bool {
        let attempts = self.sessions.get(&session).map(|track| &track.attempts);
        attempts.and_then(|attempts| attempts.get(&generation)).is_some_and(|attempt| attempt.is_sent)
    }

    /// The chosen log reached an end.
    fn chosen(&mut self, wire: usize, channel: u32) {
        if let Some(Bound { session, server, generation: Some(generation), .. }) =
            self.channels.get(&(wire, channel))
        {
            let end = (*session, *server);
            let promised =
                self.promised_by.iter().filter(|((_, session, server), _)| (*session, *server) == end);
            if promised.map(|(_, promised)| promised).max() == Some(generation) {
                self.chosen_last = Some((end, self.chosen_at.insert(end, *generation)));
                self.clocks.accepted((wire, channel), end.0);
            }
        }
        let Some((track, generation, server)) = self.attempt(wire, channel) else { return };
        let Some(attempt) = track.attempts.get_mut(&generation) else { return };
        attempt.chosen[usize::from(server)] = true;
        if attempt.is_complete() {
            track.asked = [false; 2];
            let stood = attempt.stood.take().is_some();
            self.counts.add(Rare::StandbyTookOver, u64::from(stood));
        }
    }

    /// An agent refused a frame of an owner that its end has left. The log that arrived with it is not the end's.
    pub(crate) fn zombie_refused(&mut self, refused: SessionId) {
        self.counts.add(Rare::ZombieRefused, 1);
        let last = self.chosen_last.take().filter(|((session, _), _)| *session == refused);
        if last.is_some() {
            self.clocks.refused();
        }
        match last {
            Some((end, Some(before))) => _ = self.chosen_at.insert(end, before),
            Some((end, None)) => _ = self.chosen_at.remove(&end),
            None => {}
        }
    }

    /// An end sent a message or its close.
    fn input(&mut self, wire: usize, channel: u32, close: bool) {
        let Some((track, _, server)) = self.attempt(wire, channel) else { return };
        let half = track.closed[usize::from(!server)] && !close;
        track.closed[usize::from(server)] |= close;
        self.counts.add(Rare::SpokeAfterHalfClose, u64::from(half));
    }

    /// An executor restored a cell.
    pub(crate) fn restored(
        &mut self,
        position: ShardPosition,
        cell: CellId,
        session: SessionId,
        checkpoints: usize,
    ) {
        self.see(Moment::Restore, Some(position));
        self.counts.add(Rare::CheckpointRestored, 1);
        self.counts.add(Rare::DeltaRestored, u64::from(checkpoints > 1));
        self.cells.insert((position, cell), session);
        if let Some(attempt) = self.newest_at(position, session) {
            attempt.restoring = true;
        }
    }

    /// An executor sealed a checkpoint.
    pub(crate) fn sealed(
        &mut self,
        position: ShardPosition,
        header: &Header,
        copied: Option<(SessionId, Copied)>,
    ) {
        self.see(Moment::Checkpoint, Some(position));
        if let Some((session, copied)) = copied
            && let Some(generation) = self.opened.get(&(position, session))
        {
            self.lists.sealed((session, *generation, header.number), copied);
        }
        let awaited = header.locks.0.iter().any(|lock| !lock.waiting.0.is_empty());
        self.counts.add(Rare::TaskPendingAtCheckpoint, u64::from(!header.tasks.0.is_empty()));
        self.counts.add(Rare::LockAwaitedAtCheckpoint, u64::from(awaited));
    }

    /// An executor ran a handler.
    pub(crate) fn ran(&mut self, position: ShardPosition, cell: CellId, ran: &Ran, seen: Seen) {
        self.counts.add(Rare::HandlerStopped, u64::from(ran.outcome != RunOutcome::Idle));
        self.counts.add(Rare::TrapRebuilt, u64::from(seen.rebuilt));
        if !seen.replayed {
            return;
        }
        self.see(Moment::Replay, Some(position));
        self.counts.add(Rare::TimerReplayed, u64::from(seen.timer.is_some()));
        self.counts.add(Rare::StageTimerReplayed, u64::from(seen.timer.is_some_and(|stage| stage > 0)));
        self.counts.add(Rare::TaskReplayed, u64::from(seen.task));
        self.counts.add(Rare::RandomReplayed, u64::from(seen.random));
        self.counts.add(Rare::ReadReplayed, u64::from(seen.read));
        self.counts.add(Rare::DatagramReplayed, u64::from(seen.datagram));
        self.counts.add(Rare::DatagramThroughStagesReplayed, u64::from(seen.datagram && seen.chain));
        // A started cell is known only when it is named; then it belongs to the one session that this shard rebuilds.
        let named = self.cells.get(&(position, cell)).copied();
        let session = named.or_else(|| self.only_rebuilt_at(position));
        if let Some(attempt) = session.and_then(|session| self.newest_at(position, session)) {
            attempt.replaying |= Attempt::count(attempt.chosen) == 0;
        }
    }

    /// The newest attempt of a shard at a session, if that process lives.
    fn newest_at(&mut self, position: ShardPosition, session: SessionId) -> Option<&mut Attempt> {
        let attempts = &mut self.sessions.get_mut(&session)?.attempts;
        attempts.values_mut().rev().find(|attempt| attempt.position == Some(position) && !attempt.dead)
    }

    /// The one session that a shard is rebuilding, if there is exactly one.
    fn only_rebuilt_at(&self, position: ShardPosition) -> Option<SessionId> {
        let rebuilt = |track: &Track| {
            track.attempts.values().any(|attempt| {
                attempt.position == Some(position)
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
