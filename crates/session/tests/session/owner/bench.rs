//! A test bench for an owner: tests play ends, cells and clocks, and read the owner's effects as lines of text.
//!
//! The ends are only a record of what they were sent ([`Kept`]). Tests change it as needed before a next owner asks for it.

use crate::{
    own_process,
    owner::{kept::Kept, show},
};
use bytes::Bytes;
use marram_session::{
    bug,
    cell::{CellId, CellOutput, CheckpointBase, Ran, Run, RunOutcome, Seed, TimerChange},
    owner::{
        Attempt, BackupForm, ClientProgress, Holder, KeeperId, Now, Owner, OwnerEffect, OwnerPhase,
        OwnerPolicy, RecordRequest,
    },
    replay::Gathered,
};
use marram_wire::{
    frame::{Credit, Frame, Input, Keeps, Stored},
    header::Header,
    id::{Generation, HostId, ImageHash, Port, SessionId},
    limits::charge,
    seal::{DomainSecret, SessionKeys},
};

pub(crate) const SESSION: SessionId = SessionId([7; 16]);
pub(crate) const IMAGE: ImageHash = ImageHash([8; 32]);
pub(crate) const HOSTS: [HostId; 2] = [HostId([1; 16]), HostId([2; 16])];
pub(crate) const SEED: Seed = Seed([9; 32]);
pub(crate) const CLIENT: Port = Port::CLIENT;
pub(crate) const SERVER: Port = Port::SERVER;
/// Session time begins at the wall clock's time.
pub(crate) const START: Now = Now { mono_ns: 5_000, unix_ns: 1_000_000 };

/// The policy of most tests: the client keeps checkpoints, and none is due unless a handler reports a high cost.
pub(crate) fn policy() -> OwnerPolicy {
    OwnerPolicy {
        app: "app".into(),
        server: Some("database".into()),
        keeps: Keeps::All,
        form: BackupForm::Log,
        holder: Holder::Client,
        recovery_target_ns: 1_000,
        checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
        linger_ms: 77,
        messages_per_s: 0,
        log_bytes_per_s: 0,
        record_stops: false,
        shared: false,
        witness: None,
    }
}

/// The cost of a handler that makes a checkpoint due under [`policy`].
pub(crate) const EXPENSIVE_NS: u64 = 1_001;

/// The lines when what the ends keep does not fit together; then the cell is gone.
pub(crate) const TAMPERED: [&str; 4] =
    ["client: ended Tampered", "server: ended Tampered", "remove 1", "over Tampered"];

pub(crate) fn zeros(size: u64) -> Bytes {
    vec![0; usize::try_from(size).expect("it fits memory")].into()
}

/// A payload with this charge.
pub(crate) fn charged(bytes: u64) -> Bytes {
    zeros(bytes - charge(0))
}

pub(crate) fn message(port: Port, payload: impl Into<Bytes>) -> CellOutput {
    CellOutput::Message { port, payload: payload.into() }
}

pub(crate) fn set(token: u64, delay_ns: i64) -> TimerChange {
    TimerChange::Set { stage: 0, token, delay_ns }
}

pub(crate) fn keys() -> SessionKeys {
    SessionKeys::derive(&DomainSecret::from_material(b"bench"), SESSION)
}

/// One owner, and the state of its surroundings.
pub(crate) struct Bench {
    pub(crate) owner: Owner,
    /// The state of the ends, client first; it survives owners.
    pub(crate) kept: Vec<Kept>,
    pub(crate) now: Now,
    pub(crate) generation: Generation,
    /// The running handler.
    pub(crate) run: Option<Run>,
    /// The base of the last copy of the cell.
    pub(crate) copied: Option<CheckpointBase>,
    /// The parts of the checkpoints that the executor was given for the restore.
    pub(crate) parts: Vec<u8>,
    /// The header of the checkpoint that is to be sealed.
    pub(crate) taken: Option<Header>,
    /// Headers of the checkpoints, as an executor would decrypt them.
    pub(crate) headers: Vec<Header>,
    cells: u64,
    lines: Vec<String>,
    /// Whether ends that do not know the session may accept it as a new one.
    pub(crate) fresh: bool,
    /// The last report to the witness.
    pub(crate) seen: Option<ClientProgress>,
    /// The last recording.
    pub(crate) gathered: Option<Gathered>,
}

impl Bench {
    /// An owner that has not asked any end, with a client's and a server's end that know nothing. Bugs panic, except in a test
    /// that has a process of its own.
    pub(crate) fn new(policy: OwnerPolicy) -> Self {
        if !own_process::is_child() {
            bug::panic_on_bugs();
        }
        let is_shared_cell = policy.shared && policy.keeps == Keeps::Messages;
        let ends = if is_shared_cell { 0 } else { 1 + usize::from(policy.server.is_some()) };
        Self {
            owner: Self::owner(policy, ends),
            kept: (0..ends).map(|_| Kept::default()).collect(),
            now: START,
            generation: Generation::NONE,
            run: None,
            copied: None,
            parts: Vec::new(),
            taken: None,
            headers: Vec::new(),
            cells: 0,
            lines: Vec::new(),
            fresh: true,
            seen: None,
            gathered: None,
        }
    }

    fn owner(policy: OwnerPolicy, ends: usize) -> Owner {
        Owner::new(SESSION, IMAGE, keys(), policy, &HOSTS[..ends], SEED)
    }

    /// Opens a generation: the ends send what they keep, a cell starts, and the peers' ports open.
    pub(crate) fn begin(&mut self) {
        self.open();
        self.hand_over();
        self.started();
        self.opened();
    }

    /// A session that has begun: both peers' ports are open, and there were no messages.
    pub(crate) fn begun(policy: OwnerPolicy) -> Self {
        let mut bench = Self::new(policy);
        bench.begin();
        bench.look();
        bench
    }

    /// Moves the session to another edge, which knows nothing yet, with the same ends.
    pub(crate) fn fail_over(&mut self) {
        self.fail_over_to(self.owner.policy().clone());
    }

    /// The same, to an edge with another policy.
    pub(crate) fn fail_over_to(&mut self, policy: OwnerPolicy) {
        self.owner = Self::owner(policy, self.kept.len());
        (self.run, self.copied, self.taken, self.cells) = (None, None, None, 0);
        self.look();
    }

    /// The owner's effects since the last look.
    pub(crate) fn look(&mut self) -> Vec<String> {
        core::mem::take(&mut self.lines)
    }

    /// Calls the owner, checks its invariants, and processes its effects.
    pub(crate) fn step(&mut self, does: impl FnOnce(&mut Owner, Now, &mut Vec<OwnerEffect>)) {
        let mut effects = Vec::new();
        does(&mut self.owner, self.now, &mut effects);
        // Of an owner that is done nothing is used any more: it may have met its end with a step half done.
        if !effects.iter().any(|effect| matches!(effect, OwnerEffect::Done(..))) {
            assert_eq!(self.owner.invariants(), Ok(()));
        }
        for effect in effects {
            if let OwnerEffect::Part(bytes) = effect {
                self.parts.extend_from_slice(&bytes);
                continue;
            }
            let line = match &effect {
                OwnerEffect::Send(port, frame) => {
                    let kept = &mut self.kept[usize::from(*port == SERVER)];
                    format!("{}: {}", show::port(*port), kept.take_in(self.generation, frame))
                }
                other => show::effect(other),
            };
            self.lines.push(line);
            match effect {
                OwnerEffect::Start(..) | OwnerEffect::Restore(..) => {
                    self.cells += 1;
                    self.owner.name_cell(CellId(self.cells));
                }
                OwnerEffect::Run(run) => assert!(self.run.replace(run).is_none(), "one handler at a time"),
                OwnerEffect::Copy(_, base) => self.copied = Some(base),
                OwnerEffect::Checkpoint(_, header, _) => {
                    self.headers.push((*header).clone());
                    self.taken = Some(*header);
                }
                OwnerEffect::Recorded(_, Ok(gathered)) => self.gathered = Some(*gathered),
                OwnerEffect::Report(seen) => self.seen = Some(seen),
                OwnerEffect::Remove(_) => self.run = None,
                _ => {}
            }
        }
    }

    /// Asks all ends for a new generation, on channels 1 and 2.
    pub(crate) fn open(&mut self) {
        self.open_with(&[1, 2]);
    }

    pub(crate) fn open_with(&mut self, channels: &[u32]) {
        self.generation = Generation { count: self.generation.count + 1, opener: 40 };
        let generation = self.generation;
        // One for each end.
        let ports = || [CLIENT, SERVER].into_iter().take(self.kept.len());
        let channels: Vec<_> = ports().zip(channels.iter().copied()).collect();
        let hosts: Vec<_> = ports().zip(HOSTS).take(channels.len()).collect();
        let fresh = self.fresh;
        self.step(|owner, now, out| {
            owner.open(
                now,
                &Attempt {
                    generation,
                    channels: &channels,
                    hosts: &hosts,
                    fresh,
                    proven: true,
                    assigned: false,
                    client_identity: None,
                },
                out,
            );
        });
    }

    /// Asks all ends, which promise and send what they keep.
    pub(crate) fn ask(&mut self) {
        self.open();
        self.look();
        self.hand_over();
    }

    /// All ends promise, and send what they keep.
    pub(crate) fn hand_over(&mut self) {
        (0..self.kept.len()).for_each(|index| self.hand_over_of(index));
    }

    pub(crate) fn hand_over_of(&mut self, index: usize) {
        let channel = u32::from(index == 1) + 1;
        for frame in self.kept[index].handed_over(channel) {
            self.frame([CLIENT, SERVER][index], frame);
        }
    }

    /// An epoch ends, and the backup has all that was sent before.
    pub(crate) fn epoch(&mut self, number: u64) {
        self.step(|owner, _, out| assert!(owner.end_epoch(number, out), "something happened in it"));
        self.step(|owner, now, out| owner.epoch_confirmed(now, number, out));
    }

    /// Tells a keeper to take the session over, if it can be told.
    pub(crate) fn hands_over(&mut self, keeper: KeeperId) -> bool {
        let mut is_done = false;
        self.step(|owner, now, out| is_done = owner.hand_over(now, keeper, out));
        is_done
    }

    pub(crate) fn frame(&mut self, port: Port, frame: impl Into<Frame>) {
        self.step(|owner, now, out| owner.receive(now, port, frame.into(), out));
    }

    /// The end at a port sends a message of its program.
    pub(crate) fn say(&mut self, port: Port, payload: impl Into<Bytes>) {
        self.input(port, Some(payload.into()), 0);
    }

    /// The end at a port signals that its program has closed its stream.
    pub(crate) fn close(&mut self, port: Port) {
        self.input(port, None, 0);
    }

    pub(crate) fn input(&mut self, port: Port, payload: Option<Bytes>, ack: u64) {
        self.kept[usize::from(port == SERVER)].sent.push(payload.clone());
        let close = payload.is_none();
        let channel = port.0 + 1;
        self.frame(port, Input { channel, ack, close, payload: payload.unwrap_or_default() });
    }

    /// The end at a port has received outputs, and grants credit for more bytes.
    pub(crate) fn credit(&mut self, port: Port, received: u64, bytes: u64) {
        self.frame(port, Credit { channel: port.0 + 1, received, bytes });
    }

    pub(crate) fn stored(&mut self, port: Port, bytes: u64, complete: Option<u32>) {
        let kept = &mut self.kept[usize::from(port == SERVER)];
        kept.unstored = kept.unstored.saturating_sub(bytes);
        self.frame(port, Stored { channel: port.0 + 1, bytes, complete });
    }

    /// An operator requests a recording.
    pub(crate) fn record(&mut self, tag: u64) {
        self.step(|owner, now, out| owner.record(now, RecordRequest { tag: Some(tag), redact: false }, out));
    }

    /// The end at a port shows what it keeps.
    pub(crate) fn show(&mut self, port: Port) {
        for frame in self.kept[usize::from(port == SERVER)].shown(port.0 + 1) {
            self.frame(port, frame);
        }
    }

    pub(crate) fn unlinked(&mut self, port: Port) {
        self.step(|owner, _, out| owner.unlinked(port, out));
    }

    /// The executor has the cell.
    pub(crate) fn started(&mut self) {
        let cell = CellId(self.cells);
        self.step(|owner, now, out| owner.started(now, cell, Ok(()), out));
    }

    /// The executor has the cell, restored from the last of the chosen checkpoints.
    pub(crate) fn restored(&mut self, log_offset: u64) {
        let header = self.headers.iter().rfind(|header| header.log_offset == log_offset);
        let header = header.expect("such a checkpoint was taken").clone();
        self.restored_as(header);
    }

    pub(crate) fn restored_as(&mut self, header: Header) {
        let cell = CellId(self.cells);
        self.step(|owner, now, out| owner.restored(now, cell, Ok(Box::new(header)), out));
    }

    /// The running handler returns, after these outputs.
    pub(crate) fn ran(&mut self, outputs: &[(Port, &'static str)]) {
        self.ran_with(|ran| {
            ran.outputs = outputs.iter().map(|(port, text)| message(*port, *text)).collect();
        });
    }

    /// The running handler returns, with this result.
    pub(crate) fn ran_with(&mut self, does: impl FnOnce(&mut Ran)) {
        let run = self.run.take().expect("a handler runs");
        let mut ran = Ran {
            cell: run.cell,
            outcome: RunOutcome::Idle,
            clock_read: false,
            outputs: Vec::new(),
            timers: Vec::new(),
            tasks: Vec::new(),
            reads: Vec::new(),
            cost_ns: 0,
        };
        does(&mut ran);
        self.step(|owner, now, out| owner.ran(now, ran, out));
    }

    /// Every running handler returns at once, without outputs, until none runs.
    pub(crate) fn idle(&mut self) {
        while self.run.is_some() {
            self.ran(&[]);
        }
    }

    /// The handlers of the first entry return.
    pub(crate) fn opened(&mut self) {
        (0..self.kept.len()).for_each(|_| self.ran(&[]));
    }

    /// Sends messages until the log has at least this size. Their handlers read the clock, so that their entries are long.
    pub(crate) fn fill_log(&mut self, size: u64) {
        while self.log_end() < size {
            self.say(CLIENT, "");
            self.now.mono_ns += 1 << 40;
            self.ran_with(|ran| ran.clock_read = true);
        }
    }

    /// One message through the cell, which answers nothing but reports this cost.
    pub(crate) fn consume(&mut self, port: Port, payload: impl Into<Bytes>, cost_ns: u64) {
        self.say(port, payload);
        self.ran_with(|ran| ran.cost_ns = cost_ns);
    }

    /// The executor has encoded the requested checkpoint.
    pub(crate) fn checkpointed(&mut self, sealed: impl Into<Bytes>) -> Option<String> {
        let taken = self.taken.take().expect("a checkpoint was asked for");
        let (cell, number) = (self.owner.cell().expect("a cell"), taken.number);
        self.answer_checkpoint(cell, number, Ok(sealed.into()))
    }

    /// The executor answers for a checkpoint. Returns the reason why none is taken, if the owner gives one.
    pub(crate) fn answer_checkpoint(
        &mut self,
        cell: CellId,
        number: u32,
        result: Result<Bytes, String>,
    ) -> Option<String> {
        let mut reason = None;
        self.step(|owner, now, out| {
            owner.checkpointed(now, cell, number, result, out);
            reason = out.iter().find_map(|effect| match effect {
                OwnerEffect::NoCheckpoint(reason) => Some(reason.clone()),
                _ => None,
            });
        });
        reason
    }

    /// A message makes a checkpoint due, which is encoded, sent and stored at once by its holders.
    pub(crate) fn cover(&mut self, sealed: &'static [u8]) {
        self.consume(CLIENT, "dear", self.owner.policy().recovery_target_ns + 1);
        let number = self.taken.as_ref().expect("a checkpoint is due").number;
        assert_eq!(self.checkpointed(sealed), None);
        let held = [Holder::Client, Holder::Server].map(|one| {
            let holder = self.owner.policy().holder;
            holder == one || holder == Holder::Both
        });
        for (port, held) in [CLIENT, SERVER].into_iter().zip(held) {
            if held {
                self.stored(port, sealed.len() as u64, Some(number));
            }
        }
    }

    pub(crate) fn phase(&self) -> OwnerPhase {
        self.owner.phase()
    }

    /// The end of the log.
    pub(crate) fn log_end(&self) -> u64 {
        self.owner.log_bytes().0
    }
}
