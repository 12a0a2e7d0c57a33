//! A shared cell with its clients, on a primary and its backup: real owners and real ends, and a cell that tells everyone what happens.
//!
//! Nothing moves by itself. A test says what the backup is fed, what it confirms, and when the primary is lost.

use crate::owner::{
    bench::{IMAGE, SEED, SESSION, keys, policy},
    teller::Teller,
};
use bytes::Bytes;
use marram_session::{
    bug,
    cell::{CellId, Ran},
    end::{End, EndEffect},
    owner::{
        Attempt, BackupForm, EpochRelease, Feed, KeeperId, Now, Owner, OwnerEffect, OwnerPhase, OwnerPolicy,
        PortAttempt,
    },
    replay::Gathered,
};
use marram_wire::{
    frame::{Code, Credit, Ended, Frame, Keeps, Promise, Stored},
    header::{self, Header},
    id::{Generation, HostId, Port, SessionId},
    limits::charge,
    recording::Recording,
};
use std::collections::{BTreeMap, VecDeque};

const BACKUP: KeeperId = KeeperId(7);
const LINGER_MS: u32 = 1_000;

fn shared(form: BackupForm) -> OwnerPolicy {
    let keeps = Keeps::Messages;
    OwnerPolicy {
        form,
        server: None,
        keeps,
        shared: true,
        linger_ms: LINGER_MS,
        record_stops: true,
        ..policy()
    }
}

/// A client with its end.
pub(crate) struct ClientEnd {
    pub(crate) end: End,
    session: SessionId,
    /// Its channel, at the edge with which it is linked.
    channel: Option<u32>,
    /// What its program received.
    pub(crate) heard: Vec<String>,
    pub(crate) closed: bool,
    pub(crate) ended: Option<Code>,
    /// Whether it does not hear that its session is over.
    pub(crate) is_deaf: bool,
    /// The session time that it was told last.
    pub(crate) told_ns: i64,
}

/// One edge's owner of the cell.
pub(crate) struct Edge {
    pub(crate) owner: Owner,
    cell: Teller,
    cells: u64,
    /// Frames for the backup, in order.
    pub(crate) feed: VecDeque<Frame>,
    /// How many of them the backup has acknowledged.
    taken: usize,
    /// Clients whose ends are to be asked again.
    pub(crate) asks: Vec<SessionId>,
    epoch: u64,
    /// The cell as it was copied last.
    copied: Teller,
    /// The number of the checkpoint that the backup is sent, and what it will say that it has stored.
    sends: u32,
    stored: VecDeque<Stored>,
    takes_over: bool,
    /// Whether the answers of the executor wait that say that a checkpoint is sealed, or a cell restored; and those that do.
    pub(crate) holds_seals: bool,
    pub(crate) holds_restores: bool,
    /// Whether a handler runs until then, too.
    pub(crate) holds_runs: bool,
    pub(crate) held: VecDeque<Answer>,
    /// Why the cell is over, if a test allows that.
    pub(crate) over: Option<(Code, String)>,
    pub(crate) may_end: bool,
}

/// An answer of the executor.
pub(crate) enum Answer {
    Sealed(CellId, u32),
    Restored(CellId, Box<Header>),
    Ran(Ran),
}

impl Edge {
    fn new(owner: Owner) -> Self {
        let (cell, copied) = (Teller::default(), Teller::default());
        let (feed, taken, stored) = (VecDeque::new(), 0, VecDeque::new());
        let (asks, takes_over) = (Vec::new(), false);
        Self {
            owner,
            cell,
            cells: 0,
            feed,
            taken,
            asks,
            epoch: 0,
            copied,
            sends: 0,
            stored,
            takes_over,
            holds_seals: false,
            holds_restores: false,
            holds_runs: false,
            held: VecDeque::new(),
            over: None,
            may_end: false,
        }
    }
}

/// All of it.
pub(crate) struct Hall {
    /// The client whose frames arrive when the test says so, and these frames.
    pub(crate) slow: Option<usize>,
    late: VecDeque<(Port, Frame)>,
    pub(crate) edge: Edge,
    pub(crate) clients: Vec<ClientEnd>,
    pub(crate) now: Now,
    /// Whether the seals of the next owner wait.
    pub(crate) holds_after_promotion: bool,
    /// How many ends the backup looked at when it was fed the last entry.
    pub(crate) visits_of_last_entry: u64,
    generations: u64,
    channels: u32,
    /// Checkpoints by their number, as an executor decrypts them.
    checkpoints: BTreeMap<u32, (Header, Teller)>,
    /// Why agents refuse connections to servers, if they do.
    pub(crate) refuses_servers: Option<Code>,
    /// Connections to servers that are over, and why.
    pub(crate) over: Vec<String>,
    /// The same of those that both sides, or the cell, wanted to end.
    pub(crate) finished: Vec<String>,
    /// Frames for ends that are not there.
    pub(crate) unheard: Vec<Frame>,
    /// Recordings that were made, and the refusals, in order.
    pub(crate) recorded: VecDeque<Result<Recording, String>>,
}

impl Hall {
    /// A cell that runs, whose outputs wait for a backup that has it from its start on.
    pub(crate) fn new() -> Self {
        let mut hall = Self::unopened(BackupForm::Log);
        hall.step(|owner, now, out| owner.join_group(now, [5; 16], EpochRelease::Confirmed, out));
        hall.step(|owner, _, out| owner.add_replica(BACKUP, 3, Feed::Backup, out));
        hall.open(true);
        hall
    }

    /// A cell that runs without a backup.
    pub(crate) fn alone(form: BackupForm) -> Self {
        let mut hall = Self::unopened(form);
        hall.step(|owner, now, out| owner.join_group(now, [5; 16], EpochRelease::Alone, out));
        hall.open(true);
        hall
    }

    /// It gets a backup, which is sent a copy of it.
    pub(crate) fn gets_backup(&mut self, feed: Feed) {
        self.begins_backup(feed);
        assert!(!self.edge.stored.is_empty(), "the cell is copied");
        self.has_backup();
    }

    /// A backup is about to be sent a copy.
    pub(crate) fn begins_backup(&mut self, feed: Feed) {
        self.step(|owner, _, out| owner.add_replica(BACKUP, 3, feed, out));
    }

    /// It has that copy.
    pub(crate) fn has_backup(&mut self) {
        self.stores();
        self.step(|owner, now, out| owner.release_as(now, EpochRelease::Confirmed, out));
        self.settles();
    }

    fn unopened(form: BackupForm) -> Self {
        bug::panic_on_bugs();
        let owner = Owner::new(SESSION, IMAGE, keys(), shared(form), &[], SEED);
        Self {
            edge: Edge::new(owner),
            slow: None,
            late: VecDeque::new(),
            clients: Vec::new(),
            holds_after_promotion: false,
            now: Now { mono_ns: 5_000, unix_ns: 1_000_000 },
            visits_of_last_entry: 0,
            generations: 0,
            channels: 0,
            checkpoints: BTreeMap::new(),
            refuses_servers: None,
            over: Vec::new(),
            unheard: Vec::new(),
            finished: Vec::new(),
            recorded: VecDeque::new(),
        }
    }

    fn generation(&mut self) -> Generation {
        self.generations += 1;
        Generation { count: self.generations, opener: 40 }
    }

    fn open(&mut self, fresh: bool) {
        let generation = self.generation();
        self.step(|owner, now, out| {
            let attempt = Attempt {
                generation,
                channels: &[],
                hosts: &[],
                fresh,
                proven: true,
                assigned: false,
                client_identity: None,
            };
            owner.open(now, &attempt, out);
        });
    }

    /// Calls the owner, and plays the executor and the ends until nothing is left to do.
    pub(crate) fn step(&mut self, does: impl FnOnce(&mut Owner, Now, &mut Vec<OwnerEffect>)) {
        let (mut out, now) = (Vec::new(), self.now);
        does(&mut self.edge.owner, now, &mut out);
        let mut todo = VecDeque::from(out);
        while let Some(effect) = todo.pop_front() {
            let mut out = Vec::new();
            self.effect(effect, &mut out);
            assert_eq!(self.edge.owner.invariants(), Ok(()));
            todo.extend(out);
        }
    }

    fn effect(&mut self, effect: OwnerEffect, out: &mut Vec<OwnerEffect>) {
        let now = self.now;
        match effect {
            OwnerEffect::Start(..) => {
                self.edge.cells += 1;
                let cell = CellId(self.edge.cells);
                self.edge.cell = Teller::default();
                self.edge.owner.name_cell(cell);
                self.edge.owner.started(now, cell, Ok(()), out);
            }
            OwnerEffect::Run(run) => {
                let ran = self.edge.cell.run(&run);
                if self.edge.holds_runs {
                    self.edge.held.push_back(Answer::Ran(ran));
                } else {
                    self.edge.owner.ran(now, ran, out);
                }
            }
            OwnerEffect::Prepare(cell, _) => self.edge.owner.prepared(cell, out),
            OwnerEffect::Copy(..) => self.edge.copied = self.edge.cell.clone(),
            OwnerEffect::Checkpoint(cell, header, _) => {
                let number = header.number;
                self.checkpoints.insert(number, (*header, self.edge.copied.clone()));
                let sealed = Answer::Sealed(cell, number);
                if self.edge.holds_seals {
                    self.edge.held.push_back(sealed);
                } else {
                    self.answer(sealed, out);
                }
            }
            OwnerEffect::Restore(..) => {
                self.edge.cells += 1;
                self.edge.owner.name_cell(CellId(self.edge.cells));
            }
            OwnerEffect::Part(bytes) => {
                let number = u32::from_le_bytes(bytes[..].try_into().expect("a checkpoint is one part"));
                let (header, cell) = self.checkpoints[&number].clone();
                self.edge.cell = cell;
                let restored = Answer::Restored(CellId(self.edge.cells), Box::new(header));
                if self.edge.holds_restores {
                    self.edge.held.push_back(restored);
                } else {
                    self.answer(restored, out);
                }
            }
            OwnerEffect::TakeOver => self.edge.takes_over = true,
            OwnerEffect::ToKeeper(BACKUP, frame) => {
                match &frame {
                    Frame::Base(base) => self.edge.sends = base.meta.number,
                    Frame::CheckpointPart(part) => {
                        // Each is one part.
                        let (bytes, complete) = (part.bytes.len() as u64, Some(self.edge.sends));
                        self.edge.stored.push_back(Stored { channel: 3, bytes, complete });
                    }
                    _ => {}
                }
                self.edge.feed.push_back(frame);
            }
            OwnerEffect::AskPort(session, _) => self.edge.asks.push(session),
            OwnerEffect::ConnectionOver(name, code, reason) => {
                let text = format!("{name}: {reason}");
                if code == Code::Finished { &mut self.finished } else { &mut self.over }.push(text);
            }
            OwnerEffect::Recorded(_, result) => {
                let made = result.and_then(|gathered| self.assembles(*gathered));
                self.recorded.push_back(made);
            }
            OwnerEffect::Send(port, frame) => self.reaches_end(port, frame, out),
            OwnerEffect::Done(code, reason) if self.edge.may_end => self.edge.over = Some((code, reason)),
            OwnerEffect::Done(code, reason) => panic!("the cell is over: {code:?}: {reason}"),
            _ => {}
        }
    }

    fn answer(&mut self, answer: Answer, out: &mut Vec<OwnerEffect>) {
        match answer {
            Answer::Sealed(cell, number) => {
                let bytes = Bytes::copy_from_slice(&number.to_le_bytes());
                self.edge.owner.checkpointed(self.now, cell, number, Ok(bytes), out);
            }
            Answer::Ran(ran) => self.edge.owner.ran(self.now, ran, out),
            Answer::Restored(cell, header) => self.edge.owner.restored(self.now, cell, Ok(header), out),
        }
    }

    /// The executor makes a file; its checkpoints are sealed only now, with their number as the state.
    fn assembles(&self, mut gathered: Gathered) -> Result<Recording, String> {
        let kept = gathered.own.as_mut().and_then(|own| own.checkpoint.as_mut());
        if let Some(checkpoint) = kept {
            let number = checkpoint.meta.number;
            let plain = header::join(&self.checkpoints[&number].0, &number.to_le_bytes());
            let seal = keys().seal(checkpoint.meta.generation);
            checkpoint.bytes = seal.seal_checkpoint(number, plain).into();
        }
        gathered.assemble("edge-a".into(), 5, None).map_err(|error| error.to_string())
    }

    /// The cell at the beginning of a recording.
    pub(crate) fn cell_of(&self, recording: &Recording) -> Teller {
        let Some(state) = recording.checkpoints.first() else { return Teller::default() };
        let number = u32::from_le_bytes(state[..].try_into().expect("its number"));
        self.checkpoints[&number].1.clone()
    }

    /// The cell as it is.
    pub(crate) fn cell(&self) -> &Teller {
        &self.edge.cell
    }

    /// The executor gives the answers that waited.
    pub(crate) fn answers(&mut self) {
        (self.edge.holds_seals, self.edge.holds_restores, self.edge.holds_runs) = (false, false, false);
        while let Some(answer) = self.edge.held.pop_front() {
            let mut out = Vec::new();
            self.answer(answer, &mut out);
            self.step(|_, _, all| all.append(&mut out));
        }
    }

    /// The checkpoint that waits for its seal fails.
    pub(crate) fn no_seal(&mut self) {
        let Some(Answer::Sealed(cell, number)) = self.edge.held.pop_front() else { panic!("a seal is due") };
        self.edge.holds_seals = false;
        self.step(|owner, now, out| {
            owner.checkpointed(now, cell, number, Err("no memory".into()), out);
        });
    }

    /// Time passes, and what is due happens.
    pub(crate) fn passes(&mut self, ns: u64) {
        self.step(|owner, now, out| owner.tick(now, out));
        self.now.mono_ns += ns;
        self.step(|owner, now, out| owner.tick(now, out));
        // What the last tick has made due is done by the next one. Else a shard would do nothing but ticks.
        self.step(|owner, now, out| owner.tick(now, out));
        let (due_ns, now_ns) = (self.edge.owner.due_ns(), self.now.mono_ns);
        assert!(due_ns.is_none_or(|due_ns| due_ns > now_ns), "what was due is done: {due_ns:?} at {now_ns}");
    }

    /// A frame reaches the end of a client, whose answers reach the owner.
    fn reaches_end(&mut self, port: Port, frame: Frame, out: &mut Vec<OwnerEffect>) {
        let channel = channel_of(&frame);
        let Some(number) = self.clients.iter().position(|client| client.channel == Some(channel)) else {
            return self.unheard.push(frame);
        };
        let (slow, refuses) = (self.slow == Some(number), self.refuses_servers);
        let client = &mut self.clients[number];
        let mut effects = Vec::new();
        if let Frame::Chosen(chosen) = &frame {
            client.told_ns = chosen.session_ns;
        }
        let is_refused = |ask: &Promise| refuses.filter(|_| !ask.server.is_empty());
        match frame {
            Frame::Promise(ask) if client.ended.is_some() || is_refused(&ask).is_some() => {
                let code = is_refused(&ask).unwrap_or(Code::Forgotten);
                let reason = "its program is gone".into();
                let gone = Ended { channel, code, reason };
                return self.edge.owner.receive(self.now, port, gone.into(), out);
            }
            Frame::Ended(_) if client.is_deaf => client.channel = None,
            Frame::Promise(ask) => {
                client.end.promise(self.now.mono_ns, &ask, &mut effects).expect("it promises")
            }
            Frame::Ended(ended) => {
                (client.ended, client.channel) = (Some(ended.code), None);
            }
            frame => client
                .end
                .receive(self.now.mono_ns, frame, &mut effects)
                .expect("the owner keeps to the protocol"),
        }
        let mut frames = Vec::new();
        for effect in effects {
            match effect {
                EndEffect::Send(frame) => frames.push(frame),
                EndEffect::Deliver(bytes) => {
                    client.heard.push(String::from_utf8_lossy(&bytes).into_owned());
                    let mut more = Vec::new();
                    client.end.taken(charge(bytes.len()), &mut more);
                    client.end.acknowledge(&mut more);
                    frames.extend(more.into_iter().filter_map(|effect| match effect {
                        EndEffect::Send(frame) => Some(frame),
                        _ => None,
                    }));
                }
                EndEffect::DeliverClose => client.closed = true,
                EndEffect::Free(_) => {}
            }
        }
        assert_eq!(client.end.invariants(), Ok(()));
        for frame in frames {
            if slow {
                self.late.push_back((port, frame));
            } else {
                self.edge.owner.receive(self.now, port, frame, out);
            }
        }
    }

    /// Whether the next frame of the slow client says that its end has everything.
    pub(crate) fn is_finished_next(&self) -> bool {
        matches!(self.late.front(), Some((_, Frame::Finished(_))))
    }

    /// The next frame of the slow client arrives. False if there is none.
    pub(crate) fn one_arrives(&mut self) -> bool {
        let Some((port, frame)) = self.late.pop_front() else { return false };
        self.step(|owner, now, out| owner.receive(now, port, frame, out));
        true
    }

    /// A client comes, with its first message.
    pub(crate) fn joins(&mut self, text: &str) -> usize {
        let session = SessionId([100 + u8::try_from(self.clients.len()).expect("few clients"); 16]);
        let mut end = End::new(session, false, "app".into());
        end.send(Bytes::from(text.to_owned()), &mut Vec::new());
        let number = self.comes(end);
        self.asks_owner(number);
        number
    }

    fn comes(&mut self, end: End) -> usize {
        self.clients.push(ClientEnd {
            session: end.session(),
            end,
            channel: None,
            heard: Vec::new(),
            closed: false,
            ended: None,
            is_deaf: false,
            told_ns: 0,
        });
        self.clients.len() - 1
    }

    /// A client's end asks for the cell, as after its connection broke.
    pub(crate) fn asks_owner(&mut self, number: usize) {
        self.channels += 1;
        let (channel, generation) = (self.channels, self.generation());
        let client = &mut self.clients[number];
        client.end.drift();
        client.channel = Some(channel);
        let (session, fresh) = (client.session, !client.end.begun());
        self.step(|owner, _, out| {
            owner.ask_port(&PortAttempt { fresh, ..attempt(session, channel, generation) }, out);
        });
    }

    pub(crate) fn port(&self, number: usize) -> Option<Port> {
        self.edge.owner.port_of(self.clients[number].session)
    }

    /// A client's program says something.
    pub(crate) fn says(&mut self, number: usize, text: &str) {
        self.program_does(number, |end, out| end.send(Bytes::from(text.to_owned()), out));
    }

    /// A client's program closes its stream.
    pub(crate) fn closes(&mut self, number: usize) {
        self.program_does(number, End::close);
    }

    fn program_does(&mut self, number: usize, does: impl FnOnce(&mut End, &mut Vec<EndEffect>)) {
        let mut effects = Vec::new();
        does(&mut self.clients[number].end, &mut effects);
        let Some(port) = self.port(number) else { return };
        for effect in effects {
            if let EndEffect::Send(frame) = effect {
                self.step(|owner, now, out| owner.receive(now, port, frame, out));
            }
        }
    }

    /// The connection to a client breaks.
    pub(crate) fn breaks(&mut self, number: usize) {
        self.clients[number].channel = None;
        self.clients[number].end.drift();
        self.late.clear();
        if let Some(port) = self.port(number) {
            self.step(|owner, _, out| owner.unlinked(port, out));
        }
    }

    /// An epoch ends. Returns its number, if the cell has something in it.
    pub(crate) fn ends_epoch(&mut self) -> Option<u64> {
        self.edge.epoch += 1;
        let (number, mut has_some) = (self.edge.epoch, false);
        self.step(|owner, _, out| has_some = owner.end_epoch(number, out));
        has_some.then_some(number)
    }

    /// The backup has all that it was sent before this epoch ended.
    pub(crate) fn confirmed(&mut self, number: u64) {
        self.step(|owner, now, out| owner.epoch_confirmed(now, number, out));
    }

    /// The backup says what it has stored of checkpoints.
    fn stores(&mut self) {
        while let Some(stored) = self.edge.stored.pop_front() {
            self.step(|owner, now, out| owner.from_keeper(now, BACKUP, stored.into(), out));
        }
    }

    /// The backup acknowledges what it was fed since it did so last.
    pub(crate) fn takes_feed(&mut self) {
        let more = self.edge.feed.iter().skip(core::mem::replace(&mut self.edge.taken, self.edge.feed.len()));
        let costs = more.filter_map(|frame| match frame {
            Frame::Fed(fed) => Some(charge(fed.payload.len()) + fed.entry.len() as u64),
            _ => None,
        });
        let (received, bytes) = costs.fold((0, 0), |(count, sum), cost| (count + 1, sum + cost));
        let credit = Credit { channel: 3, received, bytes };
        self.step(|owner, now, out| owner.from_keeper(now, BACKUP, credit.into(), out));
    }

    /// An epoch ends, and is confirmed at once.
    fn confirms(&mut self) {
        self.stores();
        if let Some(number) = self.ends_epoch() {
            self.confirmed(number);
        }
    }

    /// Confirms until nothing is new, but never this epoch.
    pub(crate) fn settles_but(&mut self, late: u64) {
        for _ in 0..5 {
            self.stores();
            if let Some(number) = self.ends_epoch() {
                assert!(number > late);
            }
        }
    }

    /// Confirms until nothing is new.
    pub(crate) fn settles(&mut self) {
        for _ in 0..5 {
            self.confirms();
        }
    }

    /// The primary is lost. Its backup has the first `fed` frames, its edge has claimed the group, and it goes on alone.
    pub(crate) fn promotes(&mut self, fed: usize) {
        let mut frames = core::mem::take(&mut self.edge.feed);
        frames.truncate(fed);
        let Some(Frame::Keep(keep)) = frames.pop_front() else { panic!("a feed begins with its position") };
        let policy = self.edge.owner.policy().clone();
        let owner = Owner::standby(keys(), policy, &keep, SEED).expect("it can stand by");
        self.edge = Edge::new(owner);
        self.edge.holds_seals = self.holds_after_promotion;
        for client in &mut self.clients {
            client.channel = None;
            client.end.drift();
        }
        for frame in frames {
            let (before, is_entry) = (self.edge.owner.ends_visited(), matches!(frame, Frame::Fed(_)));
            self.step(|owner, now, out| owner.fed(now, frame, out));
            if is_entry {
                self.visits_of_last_entry = self.edge.owner.ends_visited() - before;
            }
        }
        self.step(|owner, _, out| owner.feed_lost(out));
        self.step(|owner, now, out| owner.join_group(now, [6; 16], EpochRelease::Alone, out));
        self.step(|owner, now, out| owner.promote(now, out));
        assert!(self.edge.takes_over, "it has replayed all");
        self.open(false);
        assert_eq!(self.edge.owner.phase(), OwnerPhase::Running);
    }

    /// The clients and servers which the owner wants to ask are asked. An agent takes each connection to a server.
    pub(crate) fn asks_all(&mut self) {
        for session in core::mem::take(&mut self.edge.asks) {
            let number = self.clients.iter().position(|client| client.session == session);
            let number = number.unwrap_or_else(|| {
                let port = self.edge.owner.port_of(session).expect("it asks for those that there are");
                assert!(port.is_from_connect(), "it asks for clients that there are");
                self.comes(End::new(session, true, "app".into()))
            });
            self.asks_owner(number);
        }
    }

    /// The agents which the owner wants to ask are asked, this one, which does not answer.
    pub(crate) fn asks_silent(&mut self, agent: u8) {
        for session in core::mem::take(&mut self.edge.asks) {
            self.channels += 1;
            let (channel, generation) = (self.channels, self.generation());
            self.step(|owner, _, out| {
                let (host, fresh) = (HostId([agent; 16]), true);
                let attempt = PortAttempt { host, fresh, ..attempt(session, channel, generation) };
                owner.ask_port(&attempt, out);
            });
        }
    }

    /// What a client heard, each line once and in order.
    pub(crate) fn heard(&self, number: usize) -> &[String] {
        &self.clients[number].heard
    }
}

fn attempt(client: SessionId, channel: u32, generation: Generation) -> PortAttempt<'static> {
    PortAttempt {
        client,
        key: [3; 16],
        generation,
        channel,
        host: HostId([9; 16]),
        fresh: false,
        proven: true,
        identity: None,
    }
}

fn channel_of(frame: &Frame) -> u32 {
    match frame {
        Frame::Promise(it) => it.channel,
        Frame::Chosen(it) => it.channel,
        Frame::Output(it) => it.channel,
        Frame::Credit(it) => it.channel,
        Frame::Truncate(it) => it.channel,
        Frame::Ended(it) => it.channel,
        Frame::Finish(it) => it.channel,
        Frame::Reject(it) => it.channel,
        Frame::Standby(it) => it.channel,
        other => panic!("no end of a shared cell gets {}", other.name()),
    }
}
