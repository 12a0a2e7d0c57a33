//! One end of one session: numbers messages, keeps them, and holds log and checkpoints.
//!
//! Self-contained: knows no wire, no socket and no clock. An agent, a gate or a browser drives it. An end promises ever newer
//! generations, refuses every older one, sends everything that it keeps when it promises, and receives outputs strictly in
//! order (docs/protocol.md, "Opening a generation" to "Truncation").

pub(crate) mod keep;
mod receive;
mod share;

pub use share::Share;

use crate::{
    bug,
    bug::Bug,
    credit::MessageCredit,
    end::keep::{Checkpoints, Log, Sent},
    invariant::{BrokenInvariant, holds},
    trace,
    trace::{TraceContext, TraceRole},
};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    codec::Last,
    frame::{
        Channel, CheckpointBegin, CheckpointPart, Code, Credit, Failure, Frame, Hello, Input, Keeps, Kept,
        KeptInput, Live, LogPart, Promise, Promised,
    },
    id::{Generation, HostId, ImageHash, SessionId},
    key::CellKey,
    limits::{
        ALLOWANCE_MIN, CHECKPOINT_AFTER_BYTES, DATAGRAMS_WAITING_MAX, OUTPUT_WINDOW, OUTPUT_WINDOW_MIN,
        PART_SIZE, RETAINED_MAX, RETAINED_MIN, STREAM_CUT, UNTAKEN_MAX, charge,
    },
    peer::Origin,
    seal,
};

/// An action for the caller to carry out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndEffect {
    /// Send this to the owner.
    Send(Frame),
    /// Give this to the program.
    Deliver(Bytes),
    /// Inform the program that no more output will follow.
    DeliverClose,
    /// Free this, a checkpoint that another one has replaced: it may be so large that this takes long.
    Free(Bytes),
}

/// Why an end refuses a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PromiseRefusal {
    /// The end has promised this generation, which is the same or a newer one.
    Superseded(Generation),
    /// The requester has not proved that it has the session's key.
    Unproven,
    /// The session runs another image.
    Image,
    /// The session's other end is at another agent.
    Ends,
    /// The end keeps nothing of the session, so that no second owner can recover it.
    Lost,
    /// The end keeps the session while it moves, and the requester lacks a part of the rest.
    Uncovered,
    /// The end keeps its messages alone, and the requester has consumed less than it has forgotten, or produced less than it has
    /// received.
    Behind,
}

/// Why a frame was refused: the owner violates the protocol. The session cannot continue with this owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation(pub &'static str);

/// The session's terms, set by the owner's request for a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The image of the cell.
    pub image: ImageHash,
    /// The key that is required to resume the session.
    pub key: [u8; 16],
    /// The agent of the other end.
    pub peer: Option<HostId>,
    /// What is kept.
    pub keeps: Keeps,
    /// How long to keep the record of a session that cannot be resumed, in milliseconds.
    pub linger_ms: u32,
}

/// How many outputs an end has received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndOutputs {
    /// The last generation in which an owner chose a log.
    pub chosen: Generation,
    /// Of that owner's history.
    pub received: u64,
    /// Given to the program: more, if that owner is behind the one before.
    pub delivered: u64,
    /// Those of the received ones that are in the histories of all owners which may have chosen their logs since elsewhere.
    pub agreed: u64,
}

/// The phase of the end's newest generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndPhase {
    /// The session has no owner, as far as this end knows.
    Detached,
    /// Promised; waits for the chosen log.
    Promised,
    /// Messages flow.
    Owned,
}

/// One end of one session.
#[derive(Debug)]
pub struct End {
    session: SessionId,
    server: bool,
    datagrams: bool,
    /// Where the client connected: set at the client's end, or received at the server's end.
    origin: Option<Box<Origin>>,
    app: String,
    /// Which of the app's shared cells the client is for, if the app has several.
    key: Option<CellKey>,
    terms: Option<Terms>,
    /// Whether it keeps the session while that moves, though its terms do not ask for it.
    protected: bool,
    /// Whether the owner that it promised last refused the session before a log was chosen: nothing is lost then.
    refused: bool,
    /// Of a client's end: whether no owner that it has promised can choose a log any more. All of them gave the session up since the agent
    /// of its server had no room, so its other end is not fixed.
    is_free: bool,
    /// Whether that was so before the last promise.
    was_free: bool,
    promised: Generation,
    /// The last generation in which an owner chose a log.
    chosen: Generation,
    /// Valid unless detached.
    channel: Channel,
    phase: EndPhase,
    /// Whether a log was ever chosen: before that the session can start again as a new one.
    begun: bool,
    log: Log,
    checkpoints: Checkpoints,
    sent: Sent,
    /// Bytes that may be sent to the owner.
    credit: MessageCredit,
    /// Outputs received since the session began, in the history of the owner that it follows.
    received: u64,
    /// Outputs that the program was given. More than `received` if that owner is behind the one before: it produces these again, and they
    /// are dropped by their numbers.
    delivered: u64,
    /// How many of the outputs that were received are in the history of the owner that was promised last.
    agreed: u64,
    /// The same, of those that were behind and have been promised since a log was chosen: the least.
    agreed_least: Option<u64>,
    /// Whether an owner that was behind has chosen its log.
    was_behind: bool,
    /// Whether its owner lets outputs leave before its backup has them, or has done so: the backup may be behind this end.
    runs_ahead: bool,
    /// Of these, not yet acknowledged on this channel.
    unacknowledged: u64,
    /// Charge of outputs that the program has not read.
    backlog: u64,
    /// Charge of outputs that the program has read since credit was last returned.
    taken: u64,
    /// For outputs on this channel, as the owner was granted it.
    outputs: MessageCredit,
    /// Bytes of checkpoint parts stored and not yet acknowledged.
    stored: u64,
    output_closed: bool,
    finishing: bool,
    failed: Option<Failure>,
    /// The standby edge and its shard, as the owner announced.
    standby: Option<(String, u8)>,
    /// How much it may keep of its own messages before it stops reading from the program.
    room: u64,
    /// How much of the outputs may be on its way, or not taken by the program.
    window: u64,
    /// How much the owner may leave uncovered, as it was told on this channel.
    allowance: u64,
    /// What the last owner told of session time.
    clock: Option<SessionClock>,
    /// The first bug that was found in this end's state: the session must end.
    bug: Option<Bug>,
}

/// A session time and when it was told. From there on it passes as this machine's monotonic clock does, so that the next owner can
/// continue it whatever the wall clocks of the edges say.
#[derive(Clone, Copy, Debug)]
struct SessionClock {
    session_ns: i64,
    told_ns: u64,
}

impl SessionClock {
    /// The session time now.
    fn session_ns(self, now_ns: u64) -> i64 {
        self.session_ns.saturating_add_unsigned(now_ns.saturating_sub(self.told_ns))
    }
}

/// Outputs are acknowledged after at most this many, or this much charge.
const ACK_COUNT: u64 = 64;
const ACK_CHARGE: u64 = OUTPUT_WINDOW / 16;

impl End {
    /// An end that has not promised any generation.
    #[must_use]
    pub fn new(session: SessionId, server: bool, app: String) -> Self {
        Self {
            session,
            server,
            datagrams: false,
            origin: None,
            app,
            key: None,
            terms: None,
            protected: false,
            refused: false,
            is_free: true,
            was_free: true,
            promised: Generation::NONE,
            chosen: Generation::NONE,
            channel: 0,
            phase: EndPhase::Detached,
            begun: false,
            log: Log::default(),
            checkpoints: Checkpoints::default(),
            sent: Sent::default(),
            credit: MessageCredit::default(),
            received: 0,
            delivered: 0,
            agreed: 0,
            agreed_least: None,
            was_behind: false,
            runs_ahead: false,
            unacknowledged: 0,
            backlog: 0,
            taken: 0,
            outputs: MessageCredit::default(),
            stored: 0,
            output_closed: false,
            finishing: false,
            failed: None,
            standby: None,
            room: RETAINED_MAX,
            window: OUTPUT_WINDOW,
            allowance: CHECKPOINT_AFTER_BYTES,
            clock: None,
            bug: None,
        }
    }

    /// Sets whether the program at this end uses datagrams, each of them one message, or a stream, split anywhere. Call it
    /// before the first promise.
    #[must_use]
    pub fn with_datagrams(self, datagrams: bool) -> Self {
        Self { datagrams, ..self }
    }

    /// Sets where the client connected. Call it before the first promise.
    #[must_use]
    pub fn with_origin(self, origin: Option<Box<Origin>>) -> Self {
        Self { origin, ..self }
    }

    /// Sets which of the app's shared cells the client is for. Call it before the first promise.
    #[must_use]
    pub fn with_key(self, key: Option<CellKey>) -> Self {
        Self { key, ..self }
    }

    /// Sets how many bytes of checkpoints this end keeps at most, [`marram_wire::limits::CHECKPOINTS_SIZE`] otherwise. Call it
    /// before the first promise.
    #[must_use]
    pub fn with_checkpoints_max(mut self, bytes: u64) -> Self {
        self.checkpoints.limit(bytes);
        self
    }

    /// Where the client connected, as far as this end knows.
    #[must_use]
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_deref()
    }

    /// Whether the program at this end uses datagrams.
    #[must_use]
    pub fn datagrams(&self) -> bool {
        self.datagrams
    }

    /// The session's id.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// The name of the session's app.
    #[must_use]
    pub fn app(&self) -> &str {
        &self.app
    }

    /// The newest generation that this end has promised.
    #[must_use]
    pub fn promised(&self) -> Generation {
        self.promised
    }

    /// The phase of that generation.
    #[must_use]
    pub fn phase(&self) -> EndPhase {
        self.phase
    }

    /// A bug that was found in this end's state. The caller must end the session.
    #[must_use]
    pub fn bug(&self) -> Option<Bug> {
        self.bug
    }

    /// What this end is in traces.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        let role = if self.server { TraceRole::ServerEnd } else { TraceRole::ClientEnd };
        TraceContext::of_session(role, self.session, self.promised)
    }

    fn found(&mut self, bug: Bug) {
        self.bug.get_or_insert(bug);
    }

    fn enter(&mut self, phase: EndPhase, why: &str) {
        if self.phase != phase {
            trace!(self.context(), "{:?} -> {phase:?}: {why}", self.phase);
        }
        self.phase = phase;
    }

    /// The session's terms; none before the first promise.
    #[must_use]
    pub fn terms(&self) -> Option<&Terms> {
        self.terms.as_ref()
    }

    /// Whether it keeps messages and log, so that another owner can recover the session: always, while the session moves, or while none
    /// has begun it.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.protected || self.refused || self.terms.as_ref().is_none_or(|terms| terms.keeps.anything())
    }

    /// Whether it keeps messages and log only because the session moves.
    #[must_use]
    pub fn keeps_for_now(&self) -> bool {
        self.protected
    }

    /// At its end: what takes long to free.
    pub(crate) fn slow_to_free(self) -> impl Iterator<Item = Bytes> {
        receive::slow_to_free(self.checkpoints.into_bytes())
    }

    /// Whether a log was ever chosen.
    #[must_use]
    pub fn begun(&self) -> bool {
        self.begun
    }

    /// Whether both directions are closed here: nothing is lost if the session is deleted.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.output_closed && self.sent.closed()
    }

    /// The standby edge of the session's owner and its shard, if there is one.
    #[must_use]
    pub fn standby(&self) -> Option<(&str, u8)> {
        self.standby.as_ref().map(|(edge, shard)| (&edge[..], *shard))
    }

    /// Whether the owner announced that all ends have received everything.
    #[must_use]
    pub fn finishing(&self) -> bool {
        self.finishing
    }

    /// Whether there is room for the program's messages: a full buffer stops reading, it never drops.
    #[must_use]
    pub fn readable(&self) -> bool {
        self.sent.charge() + charge(STREAM_CUT) <= self.room
    }

    /// Whether there is room for a datagram of this length. One without room is dropped before it is numbered. A session that
    /// has not begun keeps few, since any sender can cause a session. While an owner withholds credit there is no room: a
    /// datagram that waited would be delivered late.
    #[must_use]
    pub fn has_place(&self, len: usize) -> bool {
        let bound = if self.begun { self.room } else { DATAGRAMS_WAITING_MAX.min(self.room) };
        let is_wanted = self.phase != EndPhase::Owned || (self.sent.all_sent() && self.credit.is_left());
        !self.sent.closed() && self.sent.charge() + charge(len) <= bound && is_wanted
    }

    /// Bytes kept for the session: messages, log, checkpoints.
    #[must_use]
    pub fn kept_bytes(&self) -> u64 {
        self.sent.charge() + self.log.size() + self.checkpoints.size()
    }

    /// As [`Self::kept_bytes`], with the outputs that the program has not taken.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.kept_bytes() + self.backlog
    }

    /// How many outputs it has received, for inspection.
    #[must_use]
    pub fn outputs(&self) -> EndOutputs {
        let agreed = self.agreed_least.unwrap_or(u64::MAX).min(self.received);
        EndOutputs { chosen: self.chosen, received: self.received, delivered: self.delivered, agreed }
    }

    /// Charge of the end's own messages that it keeps.
    #[must_use]
    pub fn messages_bytes(&self) -> u64 {
        self.sent.charge()
    }

    /// Everything kept that came from an owner, as a hostile host of this end would see it.
    pub fn kept_sealed(&self) -> impl Iterator<Item = &[u8]> {
        self.log.segments().map(|(_, _, bytes)| &bytes[..]).chain(self.checkpoints.bytes())
    }

    /// Checks I6 to I10 of docs/protocol.md.
    ///
    /// # Errors
    /// If one does not hold.
    pub fn invariants(&self) -> Result<(), BrokenInvariant> {
        let has_owner = self.phase != EndPhase::Detached;
        holds!(
            "I6",
            !(self.begun || has_owner) || (self.terms.is_some() && self.promised > Generation::NONE)
        );
        holds!("I6", self.chosen <= self.promised && (self.begun || self.chosen == Generation::NONE));
        self.log.invariants(self.promised, self.phase == EndPhase::Owned)?;
        self.sent.invariants()?;
        self.checkpoints.invariants(self.log.end())?;
        holds!("I49", !self.protected || self.terms.as_ref().is_some_and(|terms| !terms.keeps.anything()));
        holds!("I6", !self.refused || (!self.begun && !has_owner));
        holds!("I5", !self.is_free || (!self.begun && !has_owner));
        holds!("I44", (RETAINED_MIN..=RETAINED_MAX).contains(&self.room));
        holds!("I44", (ALLOWANCE_MIN..=CHECKPOINT_AFTER_BYTES).contains(&self.allowance));
        holds!("I10", self.unacknowledged <= self.received);
        holds!("I10", self.received <= self.delivered && self.agreed <= self.received);
        holds!("I10", self.backlog < UNTAKEN_MAX);
        holds!("I10", self.outputs.left() == 0 || self.backlog + self.outputs.left() <= OUTPUT_WINDOW);
        holds!("I44", (OUTPUT_WINDOW_MIN..=OUTPUT_WINDOW).contains(&self.window));
        holds!("I10", !self.finishing || (self.output_closed && self.sent.closed()));
        Ok(())
    }

    /// Asks for a generation on a new channel. The end stays with its owner until an edge asks for its promise. Whether it is
    /// [`Hello::active`] is for its agent to say, which has a clock.
    #[must_use]
    pub fn hello(&self, channel: Channel, challenge: &[u8; 16]) -> Hello {
        let terms = self.terms.as_ref();
        Hello {
            channel,
            session: self.session,
            server: self.server,
            app: self.app.clone(),
            fresh: !self.server && (!self.begun || self.may_begin_again()),
            promised: self.promised,
            image: terms.map(|terms| terms.image),
            proof: terms.map(|terms| seal::proof(&terms.key, challenge, self.session)),
            peer: terms.filter(|_| !self.is_free).and_then(|terms| terms.peer),
            origin: self.said_origin(),
            active: false,
            key: Last(self.key.clone().map(Box::new)),
        }
    }

    /// Promises, and sends what is kept. From here on every older generation is refused **\[M\]**.
    ///
    /// # Errors
    /// If the promise is refused; the state is unchanged then.
    pub fn promise(
        &mut self,
        now_ns: u64,
        ask: &Promise,
        out: &mut Vec<EndEffect>,
    ) -> Result<(), PromiseRefusal> {
        self.may_promise(ask)?;
        let previous = core::mem::replace(&mut self.promised, ask.generation);
        self.channel = ask.channel;
        self.enter(EndPhase::Promised, "an edge asked for this generation");
        self.refused = false;
        self.was_free = core::mem::replace(&mut self.is_free, false);
        self.terms = Some(Terms {
            image: ask.image,
            key: ask.key,
            peer: ask.peer,
            keeps: ask.keeps,
            linger_ms: ask.linger_ms,
        });
        self.log.abandon();
        self.allowance = CHECKPOINT_AFTER_BYTES;
        self.finishing = false;
        self.unacknowledged = 0;
        self.taken = 0;
        self.outputs = MessageCredit::of_outputs(self.window, self.backlog);
        self.stored = 0;
        self.agree(ask);
        // A standby learns of a generation when its owner asks for promises. If the ends had promised another owner before, no
        // log was chosen in that generation, and the standby's state may contradict what the ends have received since.
        // While a session without protection of its own moves, there is nothing else to go back to: there one counts in whose place no
        // log was chosen yet, since every end must say so.
        let backed = self.keeps_messages_alone();
        let is_last = |live: &Live| {
            let is_chosen = live.generation == self.chosen;
            // One that follows from the last owner's history covers this end: [`Self::may_promise`].
            backed || is_chosen && (self.protected || live.generation == previous)
        };
        // An owner with a log that ends before the last checkpoint needs that checkpoint, and everything after it.
        let fits = |live: &&Live| is_last(live) && live.log_end >= self.log.start();
        let live = ask.live.as_ref().filter(fits);
        // An owner that goes on may have the rest of a checkpoint that arrives.
        if live.is_none() {
            self.checkpoints.abandon();
        }
        let (from, log_start) = match live {
            Some(live) => (
                live.took.clamp(self.sent.start(), self.sent.end()),
                live.log_end.clamp(self.log.start(), self.log.end()),
            ),
            None => (self.sent.start(), self.log.start()),
        };
        out.push(EndEffect::Send(Frame::Promised(Promised {
            channel: self.channel,
            previous,
            live: live.is_some(),
            log_start,
            log_end: self.log.end(),
            tag: self.log.tag(),
            received: self.agreed,
            window: self.outputs.left(),
            sent_start: from,
            sent_end: self.sent.end(),
            checkpoints: self.checkpoints.metas(),
            checkpoints_max: self.checkpoints.size_max(),
            partial: self.checkpoints.partial(),
            failed: self.failed.clone(),
            datagrams: self.datagrams,
            origin: self.said_origin(),
            session_ns: self.clock.map(|clock| clock.session_ns(now_ns)),
        })));
        if live.is_none() {
            self.hand_over_checkpoints(out);
        }
        self.hand_over_log(log_start, out);
        self.sent.rewind(from);
        while let Some(message) = self.sent.next(true) {
            self.send_input(message, out);
        }
        Ok(())
    }

    /// Changes nothing.
    fn may_promise(&self, ask: &Promise) -> Result<(), PromiseRefusal> {
        if ask.generation <= self.promised {
            return Err(PromiseRefusal::Superseded(self.promised));
        }
        if self.begun && !ask.proven {
            return Err(PromiseRefusal::Unproven);
        }
        if self.begun && self.terms.as_ref().is_some_and(|terms| terms.image != ask.image) {
            return Err(PromiseRefusal::Image);
        }
        if !self.keeps() {
            return Err(PromiseRefusal::Lost);
        }
        // What came before is only at the owner, and at the edge to which it sends the session.
        let covers = |live: &Live| {
            live.generation == self.chosen
                && live.took >= self.sent.start()
                && live.log_end >= self.log.start()
        };
        if self.protected && !ask.live.as_ref().is_some_and(covers) {
            return Err(PromiseRefusal::Uncovered);
        }
        if self.keeps_messages_alone() && !self.is_covered_by(ask.live.as_ref(), self.follows_claim(ask)) {
            return Err(PromiseRefusal::Behind);
        }
        // The first promise fixes the ends of a session: a delayed first hello can make another agent accept the session, and
        // two pairs of ends could then each choose a log.
        if !self.is_free && self.terms.as_ref().is_some_and(|terms| terms.peer != ask.peer) {
            return Err(PromiseRefusal::Ends);
        }
        Ok(())
    }

    /// Whether it keeps its messages and no log: what was consumed is at a backup.
    fn keeps_messages_alone(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.keeps == Keeps::Messages)
    }

    /// Whether any edge may begin the session, as far as this end knows: its owner has released nothing to it, and has consumed nothing
    /// that is forgotten here.
    fn may_begin_again(&self) -> bool {
        self.keeps_messages_alone() && self.is_covered_by(None, false)
    }

    /// How many of the outputs that were received are in this owner's history, which it may choose now.
    fn agree(&mut self, ask: &Promise) {
        self.agreed = self.received;
        if !self.keeps_messages_alone() {
            return;
        }
        let (produced, generation) =
            ask.live.as_ref().map_or((0, Generation::NONE), |live| (live.produced, live.generation));
        // An owner that goes on from a log which was chosen elsewhere has promised here before: then it may have been further behind.
        let before = self.agreed_least.filter(|_| generation > self.chosen);
        self.agreed = self.received.min(produced).min(before.unwrap_or(u64::MAX));
        if self.agreed < self.received {
            self.agreed_least = Some(self.agreed_least.unwrap_or(u64::MAX).min(self.agreed));
        }
    }

    /// Whether an owner may be behind what was received: outputs left before the backup had them, and that backup is the one that asks. It
    /// has claimed the session's group, so no other edge has more of its history.
    fn follows_claim(&self, ask: &Promise) -> bool {
        self.runs_ahead && ask.promoted.0 == Some(true)
    }

    /// Whether an owner could go on where this end stands: it has consumed all that is forgotten here, produced all that was received,
    /// and none was chosen here since that it does not follow from. To ask must not dislodge an owner which could. One that `may_be_behind`
    /// need not have produced what was received.
    fn is_covered_by(&self, live: Option<&Live>, may_be_behind: bool) -> bool {
        match live {
            // A backup of an earlier history may have claimed the group that the session was in then.
            Some(live) => {
                live.generation >= self.chosen
                    && live.took >= self.sent.start()
                    && (may_be_behind || live.produced >= self.received)
            }
            None => self.sent.start() == 0 && self.received == 0,
        }
    }

    /// The client end's information about its client, sent while the end has no log: later the log's first entry contains it.
    /// An owner may have failed after its promise and before that entry reached any end.
    fn said_origin(&self) -> Option<Box<Origin>> {
        self.origin.clone().filter(|_| self.log.end() == 0 && !self.server)
    }

    /// Sends again what an owner needs for a recording, after everything else: checkpoints, and the messages that were sent on
    /// this channel. The owner has the log.
    fn show(&mut self, out: &mut Vec<EndEffect>) {
        let (channel, start, sent) = (self.channel, self.sent.start(), self.sent.sent_end());
        if start > sent {
            return self.found(bug!("I8: no message is dropped before it was sent", start, sent));
        }
        let messages = self.sent.shown();
        out.push(EndEffect::Send(Frame::Kept(Kept {
            channel,
            sent_start: self.sent.start(),
            sent_end: self.sent.start() + messages.len() as u64,
            checkpoints: self.checkpoints.metas(),
        })));
        self.hand_over_checkpoints(out);
        for message in messages {
            let (close, payload) = (message.close, message.payload.clone());
            out.push(EndEffect::Send(KeptInput { channel, close, payload }.into()));
        }
    }

    fn hand_over_checkpoints(&self, out: &mut Vec<EndEffect>) {
        let channel = self.channel;
        for (meta, bytes) in self.checkpoints.all() {
            out.push(EndEffect::Send(CheckpointBegin { channel, meta: meta.clone() }.into()));
            for at in (0..bytes.len()).step_by(PART_SIZE) {
                let part = bytes.slice(at..bytes.len().min(at + PART_SIZE));
                out.push(EndEffect::Send(CheckpointPart { channel, bytes: part }.into()));
            }
        }
    }

    /// Sends the log from `from` on, so that the new owner can choose and replay.
    fn hand_over_log(&self, from: u64, out: &mut Vec<EndEffect>) {
        let channel = self.channel;
        for (generation, start, bytes) in self.log.segments() {
            let known = usize::try_from(from.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len());
            for at in (known..bytes.len()).step_by(PART_SIZE) {
                let part = Bytes::copy_from_slice(&bytes[at..bytes.len().min(at + PART_SIZE)]);
                let offset = start + at as u64;
                out.push(EndEffect::Send(LogPart { channel, generation, offset, bytes: part }.into()));
            }
        }
    }

    /// Sends the program's message: at most [`marram_wire::limits::MESSAGE_SIZE_MAX`] bytes.
    pub fn send(&mut self, payload: Bytes, out: &mut Vec<EndEffect>) {
        self.sent.push(false, payload);
        self.pump(out);
    }

    /// The program has closed its stream.
    pub fn close(&mut self, out: &mut Vec<EndEffect>) {
        if !self.sent.closed() {
            self.sent.push(true, Bytes::new());
            self.pump(out);
        }
    }

    /// The owner refuses the session. Before it has chosen a log it has released nothing (I12), and this end has forgotten nothing: even
    /// if the session has no protection, another attempt may begin it. If there was no room for it, that may have been at the agent of its
    /// server: another one may be asked, unless an owner that was promised before can still choose a log with that agent.
    pub fn refused(&mut self, code: Code) {
        self.refused = self.phase == EndPhase::Promised && !self.begun;
        self.is_free = self.refused && !self.server && self.was_free && code == Code::Busy;
    }

    /// The owner is gone; messages wait for the next owner.
    pub fn drift(&mut self) {
        self.enter(EndPhase::Detached, "the owner is gone");
    }

    /// The program has read outputs of this charge.
    pub fn taken(&mut self, charge: u64, out: &mut Vec<EndEffect>) {
        // A program may claim more than it was given.
        let charge = charge.min(self.backlog);
        self.backlog -= charge;
        self.taken += charge;
        if self.is_grant_due() {
            self.acknowledge(out);
        }
    }

    /// Whether so much credit can be returned that it is worth a frame. An owner without credit has sent as much as a window, so this
    /// comes at the latest when the program has taken it all.
    fn is_grant_due(&self) -> bool {
        self.outputs.missing(self.window, self.backlog) >= ACK_CHARGE.min(self.window / 4)
    }

    /// Whether an acknowledgement waits to be sent with a message.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.phase == EndPhase::Owned && (self.unacknowledged > 0 || self.taken > 0)
    }

    /// Acknowledges what was received and returns credit for what was read, without waiting for a message.
    pub fn acknowledge(&mut self, out: &mut Vec<EndEffect>) {
        if self.owes() {
            let received = core::mem::take(&mut self.unacknowledged);
            let bytes = self.outputs.missing(self.window, self.backlog);
            self.taken = 0;
            if received == 0 && bytes == 0 {
                // The window has become smaller than what the owner has credit for.
                return;
            }
            let is_counted = self.outputs.grant(bytes);
            debug_assert!(is_counted, "at most a window more than was used");
            out.push(EndEffect::Send(Credit { channel: self.channel, received, bytes }.into()));
        }
    }

    fn pump(&mut self, out: &mut Vec<EndEffect>) {
        if self.phase != EndPhase::Owned {
            return;
        }
        // The mark that ends the stream needs no credit: it takes no room, and otherwise a paused cell would not receive it.
        while let Some(message) = self.sent.next(self.credit.is_left()) {
            self.credit.spend(charge(message.payload.len()));
            self.send_input(message, out);
        }
        if !self.keeps() {
            self.sent.forget_sent();
        }
    }

    fn send_input(&mut self, message: keep::Message, out: &mut Vec<EndEffect>) {
        let ack = if self.phase == EndPhase::Owned { core::mem::take(&mut self.unacknowledged) } else { 0 };
        let input = Input { channel: self.channel, ack, close: message.close, payload: message.payload };
        out.push(EndEffect::Send(input.into()));
    }
}
