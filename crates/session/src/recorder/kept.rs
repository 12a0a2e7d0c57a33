//! What a recorder keeps of one session: messages, log and checkpoints as they were fed, in bounds. Knows no wire and trusts no
//! peer.

use crate::end::keep::{Checkpoints, Log, Sent};
use alloc::{vec, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{
        Base, Channel, CheckpointBegin, CheckpointKind, CheckpointMeta, CheckpointPart, Code, Credit, Fed,
        Frame, Keep, KeptInput, LogPart, Recalled, Stored, Truncate,
    },
    id::Generation,
    limits::{
        CHECKPOINT_WINDOW, FEED_WINDOW, LOG_SIZE_MAX, MESSAGE_SIZE_MAX, PART_SIZE, RETAINED_MAX, charge,
    },
    seal::LOG_OFFSET_MAX,
};

/// Entries are acknowledged after this many bytes.
const ACK_EVERY: u64 = FEED_WINDOW / 16;
/// As above, for parts of a checkpoint.
const STORED_EVERY: u64 = CHECKPOINT_WINDOW / 4;
/// Messages below this size are copied, so that they do not keep the whole read buffer alive.
const COPIED: usize = 16 << 10;
/// Charge of a session without its data, in bytes.
pub(super) const SESSION_CHARGE: u64 = 2 << 10;

/// Why a frame was refused. The session is not kept any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refused(pub(super) Code, pub(super) &'static str);

fn check(holds: bool, otherwise: &'static str) -> Result<(), Refused> {
    if holds { Ok(()) } else { Err(Refused(Code::Protocol, otherwise)) }
}

/// The result of a frame.
#[derive(Default, Debug)]
pub(super) struct Taken {
    /// The answer to its sender.
    pub(super) answer: Option<Frame>,
    /// Whether a full checkpoint or a merged delta is now complete: earlier deltas and log are not needed any more.
    pub(super) rewrite: bool,
}

/// One session.
#[derive(Debug)]
pub(super) struct Kept {
    keep: Keep,
    generation: Generation,
    log: Log,
    /// The ends have deleted the log before this offset.
    truncated: u64,
    /// Messages, by port.
    inputs: Vec<Sent>,
    checkpoints: Checkpoints,
    /// The log offset of the last complete checkpoint; none if there is none.
    covered: Option<u64>,
    /// Messages consumed up to the checkpoint that is arriving.
    took: Vec<u64>,
    /// Entries and bytes taken and not acknowledged.
    unacknowledged: (u64, u64),
    stored: u64,
}

impl Kept {
    /// An empty record, which begins at the position in `keep`.
    pub(super) fn new(keep: Keep) -> Result<Self, Refused> {
        let ports = keep.hosts.len();
        check((1..=2).contains(&ports) && keep.took.len() == ports, "a session has one end or two")?;
        check(keep.log_offset < LOG_OFFSET_MAX, "a feed begins at an invalid log offset")?;
        // Each message that was consumed has an entry of at least a byte.
        let consumed = keep.took.iter().all(|took| *took <= keep.log_offset);
        check(consumed, "a feed begins behind more messages than its log can have consumed")?;
        check(!keep.hot && !keep.moves, "a recorder does not replay what it keeps")?;
        let mut tag = [0; 8];
        tag.copy_from_slice(&keep.head[..8]);
        Ok(Self {
            generation: keep.generation,
            log: Log::starting(keep.log_offset, tag),
            truncated: keep.log_offset,
            inputs: keep.took.iter().map(|took| Sent::starting(*took)).collect(),
            checkpoints: Checkpoints::default(),
            covered: None,
            took: Vec::new(),
            unacknowledged: (0, 0),
            stored: 0,
            keep,
        })
    }

    /// The frame that announced the session.
    pub(super) fn keep(&self) -> &Keep {
        &self.keep
    }

    /// The generation of its present owner.
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether a recovery could use it.
    pub(super) fn is_ready(&self) -> bool {
        self.covered.is_some() || self.keep.log_offset == 0
    }

    /// Bytes of messages, log and checkpoints.
    pub(super) fn sizes(&self) -> (u64, u64, u64) {
        (self.inputs.iter().map(Sent::charge).sum(), self.log.size(), self.checkpoints.size())
    }

    /// Charge of all of it, in bytes.
    pub(super) fn cost(&self) -> u64 {
        let (messages, log, checkpoints) = self.sizes();
        SESSION_CHARGE + messages + log + checkpoints
    }

    /// Takes a frame from the owner that feeds the session.
    pub(super) fn take(&mut self, frame: Frame) -> Result<Taken, Refused> {
        match frame {
            Frame::Fed(fed) => self.fed(fed),
            Frame::Base(base) => self.base(base),
            Frame::CheckpointPart(part) => self.part(part.channel, &part.bytes),
            Frame::Truncate(truncate) => self.truncate(&truncate),
            Frame::Renewed(renewed) => {
                check(
                    renewed.generation > self.generation,
                    "an owner renewed its generation with one that is not newer",
                )?;
                self.generation = renewed.generation;
                Ok(Taken::default())
            }
            // Only standbys use this.
            Frame::Acknowledged(_) => Ok(Taken::default()),
            _ => Err(Refused(Code::Protocol, "a frame is not allowed in a feed")),
        }
    }

    fn fed(&mut self, fed: Fed) -> Result<Taken, Refused> {
        let (channel, size) = (fed.channel, fed.entry.len() as u64);
        check(
            size > 0 && self.log.end() + size < LOG_OFFSET_MAX,
            "an entry is empty, or exceeds the maximum log \
            offset",
        )?;
        let port = usize::try_from(fed.from).unwrap_or(usize::MAX);
        if port == 2 {
            check(!fed.close && fed.payload.is_empty(), "a message has no sender")?;
        } else {
            let ends = self.inputs.get(port).filter(|inputs| !inputs.closed());
            check(ends.is_some(), "a message is from an end that does not exist, or has closed")?;
            let fits = fed.payload.len() <= MESSAGE_SIZE_MAX && (!fed.close || fed.payload.is_empty());
            check(fits, "a message is larger than the maximum")?;
        }
        let busy = Refused(Code::Busy, "log or messages exceed the limit without a checkpoint");
        let cost = charge(fed.payload.len());
        let room = self.inputs.get(port).is_none_or(|inputs| inputs.charge() + cost <= 2 * RETAINED_MAX);
        if self.log.size() + size > LOG_SIZE_MAX || !room {
            return Err(busy);
        }
        self.log.append(self.generation, &fed.entry, fed.tag);
        if let Some(inputs) = self.inputs.get_mut(port) {
            inputs.push(fed.close, own(fed.payload));
        }
        self.unacknowledged.0 += 1;
        self.unacknowledged.1 += cost + size;
        let mut taken = Taken::default();
        if self.unacknowledged.1 >= ACK_EVERY {
            let (received, bytes) = core::mem::take(&mut self.unacknowledged);
            taken.answer = Some(Credit { channel, received, bytes }.into());
        }
        Ok(taken)
    }

    fn base(&mut self, Base { meta, took, .. }: Base) -> Result<Taken, Refused> {
        check(self.checkpoints.arriving().is_none(), "a checkpoint began before the last one was complete")?;
        check(
            meta.size > 0 && meta.generation <= self.generation,
            "a checkpoint is empty, or of a later generation",
        )?;
        let place = self.covered.unwrap_or(self.keep.log_offset)..=self.log.end();
        check(place.contains(&meta.log_offset), "a checkpoint's log offset is outside the log")?;
        let counts = self.inputs.iter().zip(&took);
        let fits = took.len() == self.inputs.len()
            && counts.clone().all(|(inputs, took)| (inputs.start()..=inputs.end()).contains(took));
        check(fits, "a checkpoint consumed messages that were not fed")?;
        check(self.checkpoints.begin(meta), "a checkpoint does not follow what is kept")?;
        self.took = took;
        Ok(Taken::default())
    }

    fn part(&mut self, channel: Channel, bytes: &[u8]) -> Result<Taken, Refused> {
        let whole = self.checkpoints.part(bytes);
        let whole = whole.ok_or(Refused(Code::Protocol, "a part does not belong to a checkpoint"))?;
        let mut taken = Taken::default();
        let mut complete = None;
        if whole && let Some(meta) = self.checkpoints.arriving().cloned() {
            self.checkpoints.complete().for_each(drop);
            (complete, taken.rewrite) = (Some(meta.number), meta.kind != CheckpointKind::Delta);
            self.covered = Some(meta.log_offset);
            for (inputs, took) in self.inputs.iter_mut().zip(&self.took) {
                inputs.truncate(*took);
            }
            self.cut();
        }
        self.stored += bytes.len() as u64;
        if whole || self.stored >= STORED_EVERY {
            let bytes = core::mem::take(&mut self.stored);
            taken.answer = Some(Stored { channel, bytes, complete }.into());
        }
        Ok(taken)
    }

    fn truncate(&mut self, truncate: &Truncate) -> Result<Taken, Refused> {
        check(truncate.log_offset <= self.log.end(), "ends deleted log that was not fed")?;
        self.truncated = self.truncated.max(truncate.log_offset);
        self.cut();
        Ok(Taken::default())
    }

    /// Drops log that is needed neither after the last checkpoint here nor after the ends' last one.
    fn cut(&mut self) {
        let offset = self.truncated.min(self.covered.unwrap_or(self.keep.log_offset));
        if offset > self.log.start() {
            let tag = self.log.tag();
            self.log.truncate(offset, tag);
        }
    }

    /// The feed is lost: an incomplete checkpoint is useless.
    pub(super) fn feed_lost(&mut self) {
        self.checkpoints.abandon();
        self.unacknowledged = (0, 0);
        self.stored = 0;
    }

    /// Sends everything that is kept, as the answer to a recall.
    pub(super) fn show(&self, channel: Channel, out: &mut impl FnMut(Frame)) {
        out(Recalled {
            channel,
            generation: self.generation,
            log_start: self.log.start(),
            log_end: self.log.end(),
            tag: self.log.tag(),
            sent_start: self.inputs.iter().map(Sent::start).collect(),
            sent_end: self.inputs.iter().map(Sent::end).collect(),
            checkpoints: self.checkpoints.metas(),
        }
        .into());
        for (generation, start, bytes) in self.log.segments() {
            for (index, piece) in bytes.chunks(PART_SIZE).enumerate() {
                let offset = start + (index * PART_SIZE) as u64;
                let bytes = Bytes::copy_from_slice(piece);
                out(LogPart { channel, generation, offset, bytes }.into());
            }
        }
        for message in self.inputs.iter().flat_map(Sent::messages) {
            let (close, payload) = (message.close, message.payload.clone());
            out(KeptInput { channel, close, payload }.into());
        }
        for (meta, bytes) in self.checkpoints.all() {
            out(CheckpointBegin { channel, meta: meta.clone() }.into());
            for at in (0..bytes.len()).step_by(PART_SIZE) {
                let bytes = bytes.slice(at..bytes.len().min(at + PART_SIZE));
                out(CheckpointPart { channel, bytes }.into());
            }
        }
    }

    /// Frames that restore the same state: the announcement, and everything that is kept.
    pub(super) fn script(&self) -> Vec<Frame> {
        let mut script = vec![self.keep.clone().into()];
        self.show(0, &mut |frame| script.push(frame));
        script
    }
}

/// A small payload is copied, so that it does not keep the whole read buffer alive.
fn own(payload: Bytes) -> Bytes {
    if payload.len() < COPIED { Bytes::copy_from_slice(&payload) } else { payload }
}

/// Restores a session from the frames of [`Kept::script`] and those that were fed afterwards.
#[derive(Debug)]
pub(super) struct Restoring {
    kept: Kept,
    /// What was announced, until all of it is here.
    missing: Option<Recalled>,
}

impl Restoring {
    /// Begins with the frame that announced the session.
    pub(super) fn begin(frame: Frame) -> Result<Self, Refused> {
        let Frame::Keep(keep) = frame else {
            return Err(Refused(Code::Protocol, "it does not begin with the session's announcement"));
        };
        Ok(Self { kept: Kept::new(keep)?, missing: None })
    }

    /// The next frame.
    pub(super) fn take(&mut self, frame: Frame) -> Result<(), Refused> {
        match frame {
            Frame::Recalled(recalled) => self.recalled(recalled),
            Frame::LogPart(part) => self.log_part(&part),
            Frame::KeptInput(input) => self.kept_input(input),
            Frame::CheckpointBegin(begin) => self.checkpoint(begin.meta),
            Frame::CheckpointPart(part) if self.missing.is_some() => {
                self.kept.part(0, &part.bytes)?;
                self.settle();
                Ok(())
            }
            other => {
                check(self.missing.is_none(), "it continues before the announced data is complete")?;
                self.kept.take(other).map(drop)
            }
        }
    }

    fn recalled(&mut self, recalled: Recalled) -> Result<(), Refused> {
        let kept = &mut self.kept;
        let ports = kept.inputs.len();
        let base = recalled.checkpoints.last().map_or(0, |meta| meta.log_offset);
        let sound = kept.log.size() == 0
            && kept.covered.is_none()
            && recalled.generation >= kept.generation
            && (recalled.log_start..=recalled.log_end).contains(&base)
            && recalled.log_end - recalled.log_start <= LOG_SIZE_MAX
            && recalled.log_end < LOG_OFFSET_MAX
            && recalled.sent_start.len() == ports
            && recalled.sent_end.len() == ports
            && recalled.sent_start.iter().zip(&recalled.sent_end).all(|(start, end)| start <= end);
        check(sound, "its announcement is inconsistent")?;
        kept.generation = recalled.generation;
        kept.keep.log_offset = recalled.log_start;
        kept.truncated = recalled.log_start;
        kept.log = Log::starting(recalled.log_start, recalled.tag);
        kept.inputs = recalled.sent_start.iter().map(|start| Sent::starting(*start)).collect();
        self.missing = Some(recalled);
        self.settle();
        Ok(())
    }

    fn log_part(&mut self, part: &LogPart) -> Result<(), Refused> {
        let announced = self.missing.as_ref().filter(|missing| {
            part.offset == self.kept.log.end() && part.offset + part.bytes.len() as u64 <= missing.log_end
        });
        let Some(tag) = announced.map(|missing| missing.tag) else {
            return Err(Refused(Code::Protocol, "its log has a gap"));
        };
        self.kept.log.append(part.generation, &part.bytes, tag);
        self.settle();
        Ok(())
    }

    fn kept_input(&mut self, input: KeptInput) -> Result<(), Refused> {
        let ends = self.missing.as_ref().map_or(&[][..], |missing| &missing.sent_end);
        let open = self.kept.inputs.iter_mut().zip(ends).find(|(inputs, end)| inputs.end() < **end);
        let Some((inputs, _)) = open.filter(|(inputs, _)| !inputs.closed()) else {
            return Err(Refused(Code::Protocol, "it contains more messages than it announced"));
        };
        inputs.push(input.close, own(input.payload));
        check(
            inputs.charge() <= 2 * RETAINED_MAX,
            "it contains more messages than the limit without a checkpoint",
        )?;
        self.settle();
        Ok(())
    }

    fn checkpoint(&mut self, meta: CheckpointMeta) -> Result<(), Refused> {
        let nth = self.kept.checkpoints.all().count();
        let announced = self.missing.as_ref().and_then(|missing| missing.checkpoints.get(nth));
        let fits = announced == Some(&meta) && self.kept.checkpoints.arriving().is_none() && meta.size > 0;
        check(
            fits && self.kept.checkpoints.begin(meta),
            "it contains a checkpoint that it did not announce",
        )?;
        // Its messages were dropped before the file was written.
        self.kept.took = self.kept.inputs.iter().map(Sent::start).collect();
        Ok(())
    }

    /// Checks whether everything that was announced is here.
    fn settle(&mut self) {
        let kept = &self.kept;
        let whole = self.missing.as_ref().is_some_and(|missing| {
            let messages = kept.inputs.iter().zip(&missing.sent_end);
            kept.log.end() == missing.log_end
                && messages.into_iter().all(|(inputs, end)| inputs.end() == *end)
                && kept.checkpoints.all().count() == missing.checkpoints.len()
        });
        if whole {
            self.missing = None;
        }
    }

    /// The restored session, if a recovery could use it.
    pub(super) fn finish(mut self) -> Option<Kept> {
        self.kept.feed_lost();
        (self.missing.is_none() && self.kept.is_ready()).then_some(self.kept)
    }
}
