//! A recorder: keeps messages, log and checkpoints of many sessions in addition to their ends, for recoveries near by (CESSNA's
//! local recovery service).
//!
//! It dials every shard of its edges, and owners there feed it. It decides nothing: an edge that recovers a session asks it for
//! data, and trusts the data only if it leads to what the ends know. So a recorder that lags, loses data or lies only costs
//! time. It does not trust edges either: invalid data is refused, and everything is in bounds.
//!
//! Pure: sockets, files and clocks are requested and answered as values ([`RecorderInput`], [`RecorderOutput`]).

mod api;
mod kept;
#[cfg(test)]
mod tests;

pub use api::{
    FileOperation, RecorderConfig, RecorderCounts, RecorderInput, RecorderOutput, RecorderReport,
    RecorderRow, UnfitFrame,
};

use crate::{
    agent::{Target, WireId},
    bug,
    dialer::{self, Dialer, DialerAction},
    trace,
    trace::{TraceContext, TraceRole},
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use kept::{Kept, Refused, Restoring};
use marram_wire::{
    frame::{
        Channel, Code, Ended, Frame, Goodbye, Greet, Keep, Keeper, Ping, Pong, Reject, Sender, Superseded,
        Welcome,
    },
    id::{Generation, SessionId},
    limits::{WIRE_VERSION, WIRE_VERSION_OLDEST, charge},
    random::Random,
};

/// What a recorder is in traces that concern no session.
const RECORDER: TraceContext = TraceContext::of(TraceRole::Recorder);

/// How long a session is kept after its owner gave it up, since a recall may be in progress.
pub const GRACE_NS: u64 = 10_000_000_000;

/// A wire to one shard of one edge.
#[derive(Debug)]
struct Wire {
    target: Target,
    /// The edge's name, once it has answered.
    edge: Option<String>,
    channels: BTreeMap<Channel, SessionId>,
}

/// One session.
#[derive(Debug)]
struct Entry {
    kept: Kept,
    /// Older data of the same generation, until the data fed now is sufficient for a recovery.
    former: Option<Box<Kept>>,
    feed: Option<(WireId, Channel)>,
    heard_ns: u64,
    /// Its key in [`Recorder::silent`].
    silent_ns: u64,
    /// When it is deleted if it has no feed.
    deadline_ns: Option<u64>,
}

impl Entry {
    fn cost(&self) -> u64 {
        self.kept.cost() + self.former.as_ref().map_or(0, |former| former.cost())
    }

    /// The data for a recall.
    fn ready(&self) -> Option<&Kept> {
        if self.kept.is_ready() { Some(&self.kept) } else { self.former.as_deref() }
    }
}

/// A session that exists as long as what refers to it: a channel, or the list of silent sessions.
fn known(sessions: &mut BTreeMap<SessionId, Entry>, session: SessionId) -> Option<&mut Entry> {
    let entry = sessions.get_mut(&session);
    if entry.is_none() {
        bug!("a recorder acts only on sessions that it has", session);
    }
    entry
}

/// The recorder. Pass it each event and carry out its outputs.
#[derive(Debug)]
pub struct Recorder {
    config: RecorderConfig,
    dialer: Dialer,
    random: Random,
    wires: BTreeMap<WireId, Wire>,
    sessions: BTreeMap<SessionId, Entry>,
    /// Charge of all sessions, in bytes.
    cost: u64,
    /// All sessions, the longest silent one first. The times are corrected when a session is looked for.
    silent: BTreeSet<(u64, SessionId)>,
    /// Sessions without a feed.
    deadlines: BTreeSet<(u64, SessionId)>,
    /// When the dialer is due.
    dial_ns: u64,
    wake_ns: Option<u64>,
    stopped: bool,
    counts: RecorderCounts,
}

impl Recorder {
    /// `entropy` seeds jitter: 32 random bytes. The first event should be [`RecorderInput::Wake`].
    #[must_use]
    pub fn new(config: RecorderConfig, now_ns: u64, entropy: [u8; 32]) -> Self {
        Self {
            dialer: Dialer::new(config.dialer.clone(), now_ns),
            config,
            random: Random::new(entropy),
            wires: BTreeMap::new(),
            sessions: BTreeMap::new(),
            cost: 0,
            silent: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            dial_ns: now_ns,
            wake_ns: None,
            stopped: false,
            counts: RecorderCounts::default(),
        }
    }

    /// Restores a session from its file, before the first step: the frames of its last [`FileOperation::Begin`] and those
    /// appended since, or fewer. It is kept as if its wire had just broken. False if it is useless, or there is no room.
    ///
    /// # Errors
    /// If a frame does not continue those before it.
    pub fn restore(
        &mut self,
        now_ns: u64,
        session: SessionId,
        frames: impl IntoIterator<Item = Frame>,
    ) -> Result<bool, UnfitFrame> {
        let mut restoring = None;
        for (index, frame) in frames.into_iter().enumerate() {
            let taken = match &mut restoring {
                None if !matches!(&frame, Frame::Keep(keep) if keep.session == session) => {
                    Err(Refused(Code::Protocol, "it is of another session"))
                }
                None => Restoring::begin(frame).map(|begun| restoring = Some(begun)),
                Some(restoring) => restoring.take(frame),
            };
            taken.map_err(|Refused(_, reason)| UnfitFrame { index, reason })?;
        }
        let Some(kept) = restoring.and_then(Restoring::finish) else { return Ok(false) };
        if self.sessions.contains_key(&session) || !self.has_room() {
            return Ok(false);
        }
        self.insert(now_ns, session, kept, None);
        self.linger(now_ns, session, self.config.linger_ns);
        Ok(self.cost <= self.config.memory || {
            self.remove(session);
            false
        })
    }

    /// Takes one event at `now_ns` (monotonic) and appends the actions.
    pub fn step(&mut self, now_ns: u64, input: RecorderInput, out: &mut Vec<RecorderOutput>) {
        self.wake_ns = self.wake_ns.filter(|wake_ns| *wake_ns > now_ns);
        match input {
            RecorderInput::WireUp { wire, target } => self.wire_up(now_ns, wire, target, out),
            RecorderInput::DialFailed { target, reason } => {
                self.dialer.failed(now_ns, target, &mut self.random);
                self.dial_ns = now_ns;
                out.push(RecorderOutput::Report(RecorderReport::EdgeDown {
                    target,
                    reason,
                    suspected: false,
                }));
            }
            RecorderInput::WireDown { wire, reason } => self.wire_down(now_ns, wire, reason, out),
            RecorderInput::Frame { wire, frame } => self.frame(now_ns, wire, frame, out),
            RecorderInput::Wake => {}
            RecorderInput::Stop => self.stop(out),
        }
        self.due(now_ns, out);
    }

    /// The kept sessions, in the order of their ids.
    pub fn sessions(&self) -> impl Iterator<Item = RecorderRow> {
        self.sessions.iter().map(|(session, entry)| {
            let (messages, log, checkpoints) = entry.kept.sizes();
            RecorderRow {
                session: *session,
                app: entry.kept.keep().app.clone(),
                generation: entry.kept.generation(),
                target: entry.feed.and_then(|(wire, _)| self.wires.get(&wire)).map(|wire| wire.target),
                ready: entry.ready().is_some(),
                messages,
                log,
                checkpoints,
            }
        })
    }

    /// Bytes kept of one session, and its state, for inspection.
    #[must_use]
    pub fn of_session(&self, session: SessionId) -> Option<(u64, &dyn core::fmt::Debug)> {
        self.sessions.get(&session).map(|entry| (entry.cost(), entry as _))
    }

    /// Number of kept sessions.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// Number of sessions without a feed.
    #[must_use]
    pub fn without_feed_count(&self) -> usize {
        self.deadlines.len()
    }

    /// Charge of all sessions, in bytes.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.cost
    }

    /// Number of wires on which an edge has answered.
    #[must_use]
    pub fn wire_count(&self) -> usize {
        self.wires.values().filter(|wire| wire.edge.is_some()).count()
    }

    /// Counters since the start.
    #[must_use]
    pub fn counts(&self) -> RecorderCounts {
        self.counts
    }

    fn stop(&mut self, out: &mut Vec<RecorderOutput>) {
        self.stopped = true;
        let reason = "the recorder stops";
        for wire in core::mem::take(&mut self.wires).into_keys() {
            out.push(RecorderOutput::Send { wire, frame: Goodbye { reason: reason.to_string() }.into() });
            out.push(RecorderOutput::CloseWire { wire, reason: reason.to_string() });
        }
    }

    fn due(&mut self, now_ns: u64, out: &mut Vec<RecorderOutput>) {
        if self.stopped {
            return;
        }
        if self.dial_ns <= now_ns {
            self.dial(now_ns, out);
        }
        while let Some((_, session)) = self.deadlines.first().filter(|(due_ns, _)| *due_ns <= now_ns).copied()
        {
            self.forget(session, true, out);
        }
        let deadline_ns = self.deadlines.first().map_or(u64::MAX, |(due_ns, _)| *due_ns);
        let wake_ns = self.dial_ns.min(deadline_ns);
        if wake_ns < u64::MAX && self.wake_ns != Some(wake_ns) {
            self.wake_ns = Some(wake_ns);
            out.push(RecorderOutput::WakeAt { now_ns: wake_ns });
        }
    }

    // Wires.

    fn dial(&mut self, now_ns: u64, out: &mut Vec<RecorderOutput>) {
        let mut acts = Vec::new();
        self.dialer.due(now_ns, &mut acts);
        for act in acts {
            match act {
                DialerAction::Dial(target) => out.push(RecorderOutput::Dial { target }),
                DialerAction::Ping(wire) => {
                    out.push(RecorderOutput::Send {
                        wire: WireId(wire),
                        frame: Ping { stamp: now_ns }.into(),
                    });
                }
                DialerAction::Suspect { wire, silent_ns } => {
                    if let Some(target) = self.dialer.target(wire) {
                        let reason = dialer::silence(silent_ns);
                        out.push(RecorderOutput::Report(RecorderReport::EdgeDown {
                            target,
                            reason,
                            suspected: true,
                        }));
                    }
                }
                DialerAction::Close { wire, silent_ns } => {
                    let reason = dialer::silence(silent_ns);
                    out.push(RecorderOutput::CloseWire { wire: WireId(wire), reason: reason.clone() });
                    self.wire_down(now_ns, WireId(wire), reason, out);
                }
            }
        }
        self.dial_ns = self.dialer.wake_ns().unwrap_or(u64::MAX);
    }

    fn wire_up(&mut self, now_ns: u64, id: WireId, target: Target, out: &mut Vec<RecorderOutput>) {
        self.dialer.up(now_ns, id.0, target);
        self.dial_ns = now_ns;
        self.wires.insert(id, Wire { target, edge: None, channels: BTreeMap::new() });
        let greet =
            Greet { version_oldest: WIRE_VERSION_OLDEST, version_newest: WIRE_VERSION, servers: Vec::new() };
        out.push(RecorderOutput::Send { wire: id, frame: greet.into() });
    }

    fn wire_down(&mut self, now_ns: u64, id: WireId, reason: String, out: &mut Vec<RecorderOutput>) {
        self.dialer.down(now_ns, id.0, &mut self.random);
        self.dial_ns = now_ns;
        let Some(wire) = self.wires.remove(&id) else {
            return trace!(RECORDER, "ignores that wire {} broke, which it has closed: {reason}", id.0);
        };
        out.push(RecorderOutput::Report(RecorderReport::EdgeDown {
            target: wire.target,
            reason,
            suspected: false,
        }));
        for session in wire.channels.into_values() {
            self.lose_feed(now_ns, session, self.config.linger_ns, out);
        }
    }

    /// Closes a useless wire.
    fn close(&mut self, now_ns: u64, wire: WireId, reason: &str, out: &mut Vec<RecorderOutput>) {
        out.push(RecorderOutput::Send { wire, frame: Goodbye { reason: reason.to_string() }.into() });
        out.push(RecorderOutput::CloseWire { wire, reason: reason.to_string() });
        self.wire_down(now_ns, wire, reason.to_string(), out);
    }

    fn frame(&mut self, now_ns: u64, id: WireId, frame: Frame, out: &mut Vec<RecorderOutput>) {
        let Some(wire) = self.wires.get(&id) else {
            return trace!(RECORDER, "ignores {} on wire {}, which is closed", frame.name(), id.0);
        };
        if self.dialer.heard(now_ns, id.0, frame.answers()) {
            self.dial_ns = now_ns;
            if let Some(name) = wire.edge.clone() {
                out.push(RecorderOutput::Report(RecorderReport::EdgeUp { target: wire.target, name }));
            }
        }
        let welcomed = wire.edge.is_some();
        match frame {
            Frame::Ping(ping) => {
                out.push(RecorderOutput::Send { wire: id, frame: Pong { stamp: ping.stamp, load: 0 }.into() })
            }
            // The edge moves its sessions to other edges, which then feed the recorder. It dials the edges of its configuration only.
            Frame::Pong(_) | Frame::Drain(_) | Frame::Edges(_) => {}
            Frame::Goodbye(goodbye) => {
                out.push(RecorderOutput::CloseWire { wire: id, reason: goodbye.reason.clone() });
                self.wire_down(now_ns, id, goodbye.reason, out);
            }
            Frame::Welcome(welcome) if !welcomed => self.welcome(now_ns, id, welcome, out),
            Frame::Keep(keep) if welcomed => self.keep(now_ns, id, keep, out),
            Frame::Recall(recall) if welcomed => self.recall(id, recall.channel, recall.session, out),
            other => match other.channel(Sender::Edge) {
                Some(channel) if welcomed => self.fed(now_ns, id, channel, other, out),
                _ => self.close(now_ns, id, "the frame is not for a recorder", out),
            },
        }
    }

    fn welcome(&mut self, now_ns: u64, id: WireId, welcome: Welcome, out: &mut Vec<RecorderOutput>) {
        if !(WIRE_VERSION_OLDEST..=WIRE_VERSION).contains(&welcome.version) || welcome.shards == 0 {
            let reason = "the edge supports another version only; update the older of the two";
            return self.close(now_ns, id, reason, out);
        }
        self.dialer.welcomed(now_ns, id.0, welcome.shards);
        self.dial_ns = now_ns;
        let Some(wire) = self.wires.get_mut(&id) else {
            bug!("a recorder acts only on wires that it has", id);
            return;
        };
        wire.edge = Some(welcome.edge.clone());
        let keeper = Keeper {
            proof: self.config.key.proof(&welcome.challenge, &self.config.name),
            name: self.config.name.clone(),
            role: 0,
            shard: 0,
            shards: 1,
        };
        out.push(RecorderOutput::Send { wire: id, frame: keeper.into() });
        out.push(RecorderOutput::Report(RecorderReport::EdgeUp { target: wire.target, name: welcome.edge }));
    }

    // Feeds.

    fn has_room(&self) -> bool {
        self.sessions.len() < self.config.sessions && self.cost + kept::SESSION_CHARGE <= self.config.memory
    }

    fn keep(&mut self, now_ns: u64, wire: WireId, keep: Keep, out: &mut Vec<RecorderOutput>) {
        let (channel, session, generation) = (keep.channel, keep.session, keep.generation);
        let used = self.wires.get(&wire).is_none_or(|wire| wire.channels.contains_key(&channel));
        if used {
            return self.close(now_ns, wire, "a channel was opened twice", out);
        }
        let known = self.sessions.get(&session).map(|entry| entry.kept.generation());
        if known.is_some_and(|known| known > generation) {
            // The sender may not have learned of it yet, and asks again later.
            let newer = Refused(Code::Busy, "the recorder keeps a newer generation of the session");
            return self.reject(wire, channel, session, newer, out);
        }
        let kept = match Kept::new(keep) {
            Err(refused) => return self.reject(wire, channel, session, refused, out),
            Ok(_) if known.is_none() && !self.has_room() => {
                let full = Refused(Code::Busy, "the recorder is full: give it more memory, or add another");
                return self.reject(wire, channel, session, full, out);
            }
            Ok(kept) => kept,
        };
        let former = self.remove(session).and_then(|entry| {
            if let Some((wire, channel)) = entry.feed {
                self.unbind(wire, channel);
                let promised = generation;
                out.push(RecorderOutput::Send { wire, frame: Superseded { channel, promised }.into() });
            }
            let usable = if entry.kept.is_ready() { Some(Box::new(entry.kept)) } else { entry.former };
            // Data of an older generation is useless: the ends have promised another one since.
            usable.filter(|usable| usable.generation() == generation && !kept.is_ready())
        });
        let ready = kept.is_ready();
        self.insert(now_ns, session, kept, former);
        if let (Some(entry), Some(wires)) = (self.sessions.get_mut(&session), self.wires.get_mut(&wire)) {
            entry.feed = Some((wire, channel));
            wires.channels.insert(channel, session);
        }
        if ready {
            self.is_kept(session, out);
        }
        self.make_room(out);
    }

    fn is_kept(&mut self, session: SessionId, out: &mut Vec<RecorderOutput>) {
        let Some(entry) = known(&mut self.sessions, session) else { return };
        if let Some(former) = entry.former.take() {
            self.cost -= former.cost();
        }
        if let Some(target) = entry.feed.and_then(|(wire, _)| self.wires.get(&wire)).map(|wire| wire.target) {
            let (app, generation) = (entry.kept.keep().app.clone(), entry.kept.generation());
            out.push(RecorderOutput::Report(RecorderReport::Kept { session, app, generation, target }));
        }
        if self.config.store {
            let store = FileOperation::Begin(entry.kept.script());
            out.push(RecorderOutput::Store { session, store });
        }
    }

    fn fed(
        &mut self,
        now_ns: u64,
        wire: WireId,
        channel: Channel,
        frame: Frame,
        out: &mut Vec<RecorderOutput>,
    ) {
        // None for frames that were in flight when the channel was refused or superseded.
        let Some(session) = self.wires.get(&wire).and_then(|wire| wire.channels.get(&channel)).copied()
        else {
            let name = frame.name();
            return trace!(RECORDER, "ignores {name} on wire {}: channel {channel} is not bound", wire.0);
        };
        if let Frame::Ended(ended) = &frame {
            self.unbind(wire, channel);
            return match ended.code.is_retryable() {
                true => self.lose_feed(now_ns, session, GRACE_NS.min(self.config.linger_ns), out),
                false => self.forget(session, false, out),
            };
        }
        let Some(entry) = known(&mut self.sessions, session) else { return };
        entry.heard_ns = now_ns;
        let (cost, ready) = (entry.cost(), entry.kept.is_ready());
        let append = (self.config.store && ready).then(|| frame.clone());
        if let Frame::Fed(fed) = &frame {
            self.counts.fed += 1;
            self.counts.fed_bytes += charge(fed.payload.len()) + fed.entry.len() as u64;
        }
        let taken = entry.kept.take(frame);
        self.cost = self.cost - cost + entry.cost();
        match taken {
            Err(refused) => {
                self.unbind(wire, channel);
                self.reject(wire, channel, session, refused, out);
                self.forget(session, false, out);
            }
            Ok(taken) => {
                let whole = matches!(&taken.answer, Some(Frame::Stored(stored)) if stored.complete.is_some());
                self.counts.checkpoints += u64::from(whole);
                out.extend(taken.answer.map(|frame| RecorderOutput::Send { wire, frame }));
                if !ready && entry.kept.is_ready() {
                    self.is_kept(session, out);
                } else if let Some(frame) = append {
                    let store = if taken.rewrite {
                        FileOperation::Begin(entry.kept.script())
                    } else {
                        FileOperation::Append(frame)
                    };
                    out.push(RecorderOutput::Store { session, store });
                }
                self.make_room(out);
            }
        }
    }

    fn reject(
        &mut self,
        wire: WireId,
        channel: Channel,
        session: SessionId,
        why: Refused,
        out: &mut Vec<RecorderOutput>,
    ) {
        let Refused(code, reason) = why;
        self.counts.refused += 1;
        let context = TraceContext::of_session(TraceRole::Recorder, session, Generation::NONE);
        trace!(context, "refuses what it is fed: {code:?}: {reason}");
        let reason = reason.to_string();
        out.push(RecorderOutput::Report(RecorderReport::Refused { session, code, reason: reason.clone() }));
        out.push(RecorderOutput::Send { wire, frame: Reject { channel, code, reason }.into() });
    }

    /// Drops the longest silent sessions until the rest fits.
    fn make_room(&mut self, out: &mut Vec<RecorderOutput>) {
        while self.cost > self.config.memory {
            let Some((at_ns, session)) = self.silent.pop_first() else { return };
            let Some(entry) = known(&mut self.sessions, session) else { continue };
            if entry.heard_ns > at_ns {
                entry.silent_ns = entry.heard_ns;
                self.silent.insert((entry.heard_ns, session));
                continue;
            }
            let full =
                Refused(Code::Busy, "the recorder's memory is full, and this session was silent for longest");
            match entry.feed.take() {
                Some((wire, channel)) => {
                    self.unbind(wire, channel);
                    self.reject(wire, channel, session, full, out);
                }
                None => {
                    self.counts.refused += 1;
                    let (code, reason) = (full.0, full.1.to_string());
                    out.push(RecorderOutput::Report(RecorderReport::Refused { session, code, reason }));
                }
            }
            self.forget(session, false, out);
        }
    }

    fn unbind(&mut self, wire: WireId, channel: Channel) {
        if let Some(wire) = self.wires.get_mut(&wire) {
            wire.channels.remove(&channel);
        }
    }

    /// A session lost its feed; it is kept for a while if a recovery could use it.
    fn lose_feed(&mut self, now_ns: u64, session: SessionId, keep_ns: u64, out: &mut Vec<RecorderOutput>) {
        let Some(entry) = known(&mut self.sessions, session) else { return };
        let cost = entry.cost();
        entry.feed = None;
        entry.kept.feed_lost();
        if let Some(former) = entry.former.take().filter(|_| !entry.kept.is_ready()) {
            entry.kept = *former;
        }
        self.cost = self.cost - cost + entry.cost();
        if !entry.kept.is_ready() {
            return self.forget(session, false, out);
        }
        self.linger(now_ns, session, keep_ns);
    }

    fn linger(&mut self, now_ns: u64, session: SessionId, keep_ns: u64) {
        if let Some(entry) = self.sessions.get_mut(&session) {
            let due_ns = now_ns.saturating_add(keep_ns);
            if let Some(former_ns) = entry.deadline_ns.replace(due_ns) {
                self.deadlines.remove(&(former_ns, session));
            }
            self.deadlines.insert((due_ns, session));
        }
    }

    fn insert(&mut self, now_ns: u64, session: SessionId, kept: Kept, former: Option<Box<Kept>>) {
        let entry =
            Entry { kept, former, feed: None, heard_ns: now_ns, silent_ns: now_ns, deadline_ns: None };
        self.cost += entry.cost();
        self.silent.insert((now_ns, session));
        self.sessions.insert(session, entry);
    }

    fn remove(&mut self, session: SessionId) -> Option<Entry> {
        let entry = self.sessions.remove(&session)?;
        self.cost -= entry.cost();
        self.silent.remove(&(entry.silent_ns, session));
        if let Some(due_ns) = entry.deadline_ns {
            self.deadlines.remove(&(due_ns, session));
        }
        Some(entry)
    }

    fn forget(&mut self, session: SessionId, lingered: bool, out: &mut Vec<RecorderOutput>) {
        if let Some(entry) = self.remove(session) {
            if let Some((wire, channel)) = entry.feed {
                self.unbind(wire, channel);
            }
            out.push(RecorderOutput::Report(RecorderReport::Forgotten { session, lingered }));
            if self.config.store {
                out.push(RecorderOutput::Store { session, store: FileOperation::Remove });
            }
        }
    }

    // Recalls.

    fn recall(&mut self, wire: WireId, channel: Channel, session: SessionId, out: &mut Vec<RecorderOutput>) {
        let Some(target) = self.wires.get(&wire).map(|wire| wire.target) else { return };
        let Some(kept) = self.sessions.get(&session).and_then(Entry::ready) else {
            self.counts.unknown += 1;
            let reason = "the recorder keeps nothing of the session".to_string();
            out.push(RecorderOutput::Report(RecorderReport::Recalled { session, target, bytes: None }));
            return out.push(RecorderOutput::Send {
                wire,
                frame: Ended { channel, code: Code::Forgotten, reason }.into(),
            });
        };
        self.counts.recalled += 1;
        kept.show(channel, &mut |frame| out.push(RecorderOutput::Send { wire, frame }));
        let (messages, log, checkpoints) = kept.sizes();
        let bytes = Some(messages + log + checkpoints);
        out.push(RecorderOutput::Report(RecorderReport::Recalled { session, target, bytes }));
    }
}
