//! What an end keeps, recorded from the frames that it is sent. Independent of `end`, so that each checks the other.

use crate::owner::{bench, show};
use bytes::Bytes;
use marram_session::cell::SealedCheckpoint;
use marram_wire::{
    frame::{
        CheckpointBegin, CheckpointKind, CheckpointMeta, CheckpointPart, Failure, Frame, Input,
        Kept as FrameKept, KeptInput, LogPart, PartialCheckpoint, Promised,
    },
    id::Generation,
    limits::{CHECKPOINTS_SIZE, LOG_SIZE_MAX, PART_SIZE},
};

/// The state of one end. The log is in plaintext: the bench has the keys.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) previous: Generation,
    pub(crate) live: bool,
    pub(crate) log_start: u64,
    pub(crate) log: Vec<u8>,
    pub(crate) tag: [u8; 8],
    pub(crate) received: u64,
    pub(crate) window: u64,
    pub(crate) sent_start: u64,
    /// Messages; none for the close.
    pub(crate) sent: Vec<Option<Bytes>>,
    pub(crate) checkpoints: Vec<SealedCheckpoint>,
    /// Bytes of checkpoints that it keeps at most; none for the default.
    pub(crate) checkpoints_max: Option<u64>,
    pub(crate) arriving: Option<(CheckpointMeta, Vec<u8>)>,
    /// Bytes of checkpoint parts that arrived and were not reported to the owner.
    pub(crate) unstored: u64,
    pub(crate) failed: Option<Failure>,
    pub(crate) datagrams: bool,
    pub(crate) session_ns: Option<i64>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            previous: Generation::NONE,
            live: false,
            log_start: 0,
            log: Vec::new(),
            tag: [0; 8],
            received: 0,
            window: 1 << 20,
            sent_start: 0,
            sent: Vec::new(),
            checkpoints: Vec::new(),
            checkpoints_max: None,
            arriving: None,
            unstored: 0,
            failed: None,
            datagrams: false,
            session_ns: None,
        }
    }
}

impl Kept {
    pub(crate) fn log_end(&self) -> u64 {
        self.log_start + self.log.len() as u64
    }

    /// From now on the end behaves as if its owner's cell were live: it sends only messages from `took` on.
    pub(crate) fn live_at(&mut self, took: u64) {
        self.live = true;
        let behind = usize::try_from(took - self.sent_start).expect("a short session");
        self.sent.drain(..behind);
        self.sent_start = took;
    }

    pub(crate) fn promised(&self, channel: u32) -> Promised {
        Promised {
            channel,
            previous: self.previous,
            live: self.live,
            log_start: if self.live { self.log_end() } else { self.log_start },
            log_end: self.log_end(),
            tag: self.tag,
            received: self.received,
            window: self.window,
            sent_start: self.sent_start,
            sent_end: self.sent_start + self.sent.len() as u64,
            checkpoints: self.checkpoints.iter().map(|checkpoint| checkpoint.meta.clone()).collect(),
            checkpoints_max: self.checkpoints_max.unwrap_or(CHECKPOINTS_SIZE),
            partial: self
                .arriving
                .as_ref()
                .filter(|_| self.live)
                .map(|(meta, bytes)| PartialCheckpoint { meta: meta.clone(), bytes: bytes.len() as u64 }),
            failed: self.failed.clone(),
            datagrams: self.datagrams,
            origin: None,
            session_ns: self.session_ns,
        }
    }

    /// The promise and what it announces. The log is sealed as if the previous generation had sent all of it.
    pub(crate) fn handed_over(&self, channel: u32) -> Vec<Frame> {
        let generation = self.previous;
        let mut frames = vec![Frame::Promised(self.promised(channel))];
        if !self.live {
            for SealedCheckpoint { meta, bytes } in &self.checkpoints {
                frames.push(CheckpointBegin { channel, meta: meta.clone() }.into());
                frames.push(CheckpointPart { channel, bytes: bytes.clone() }.into());
            }
            let mut offset = self.log_start;
            for part in self.log.chunks(PART_SIZE) {
                let mut bytes = part.to_vec();
                bench::keys().seal(generation).log(offset, &mut bytes);
                frames.push(LogPart { channel, generation, offset, bytes: bytes.into() }.into());
                offset += part.len() as u64;
            }
        }
        for message in &self.sent {
            let (close, payload) = (message.is_none(), message.clone().unwrap_or_default());
            frames.push(Input { channel, ack: 0, close, payload }.into());
        }
        frames
    }

    /// The answer to an owner that records, with everything that was sent to it.
    pub(crate) fn shown(&self, channel: u32) -> Vec<Frame> {
        let checkpoints = self.checkpoints.iter().map(|checkpoint| checkpoint.meta.clone()).collect();
        let (sent_start, sent_end) = (self.sent_start, self.sent_start + self.sent.len() as u64);
        let mut frames = vec![Frame::Kept(FrameKept { channel, sent_start, sent_end, checkpoints })];
        for SealedCheckpoint { meta, bytes } in &self.checkpoints {
            frames.push(CheckpointBegin { channel, meta: meta.clone() }.into());
            frames.push(CheckpointPart { channel, bytes: bytes.clone() }.into());
        }
        for message in &self.sent {
            let (close, payload) = (message.is_none(), message.clone().unwrap_or_default());
            frames.push(KeptInput { channel, close, payload }.into());
        }
        frames
    }

    /// Processes a frame from the owner of `generation`; returns its line for the test.
    pub(crate) fn take_in(&mut self, generation: Generation, frame: &Frame) -> String {
        match frame {
            Frame::Promise(_) => {}
            Frame::LogPart(part) => {
                let from = self.log_end();
                self.jump(part.offset);
                self.append(generation, &part.bytes, self.tag);
                return format!("log part {from}..{}", self.log_end());
            }
            Frame::Chosen(chosen) => {
                (self.previous, self.live) = (generation, false);
                let from = self.log_end();
                self.jump(chosen.log_offset);
                self.append(generation, &chosen.log, chosen.tag);
                return format!("chosen {from}..{} credit {}", self.log_end(), chosen.credit);
            }
            Frame::Output(output) => {
                let from = self.log_end();
                if let Some(increment) = &output.increment {
                    self.append(generation, &increment.entries, increment.tag);
                }
                self.received += 1;
                return show::output(output, from..self.log_end());
            }
            Frame::LogOnly(log) => {
                let from = self.log_end();
                self.append(generation, &log.entries, log.tag);
                return format!("log {from}..{}", self.log_end());
            }
            Frame::CheckpointBegin(begin) => self.arriving = Some((begin.meta.clone(), Vec::new())),
            Frame::CheckpointPart(part) => self.part(&part.bytes),
            Frame::Truncate(truncate) => {
                self.truncate(truncate.log_offset, truncate.tag);
                let gone = usize::try_from(truncate.sent.saturating_sub(self.sent_start)).expect("small");
                self.sent.drain(..gone);
                self.sent_start = self.sent_start.max(truncate.sent);
            }
            Frame::ProtectNow(protect) => {
                self.jump(protect.log_offset);
                self.tag = protect.tag;
            }
            Frame::Failed(failed) => self.failed = Some(failed.failure.clone()),
            _ => {}
        }
        show::frame(frame)
    }

    /// Continues with a log that begins after the end of this one: a checkpoint covers the gap.
    fn jump(&mut self, offset: u64) {
        if offset > self.log_end() {
            self.log.clear();
            self.log_start = offset;
        }
        assert_eq!(offset, self.log_end(), "no byte of log is sent twice");
    }

    fn append(&mut self, generation: Generation, sealed: &[u8], tag: [u8; 8]) {
        let mut bytes = sealed.to_vec();
        bench::keys().seal(generation).log(self.log_end(), &mut bytes);
        self.log.extend_from_slice(&bytes);
        assert!(self.log.len() as u64 <= LOG_SIZE_MAX, "an end keeps no more of the log");
        self.tag = tag;
    }

    fn truncate(&mut self, offset: u64, tag: [u8; 8]) {
        if offset >= self.log_end() {
            (self.log_start, self.tag) = (offset, tag);
            self.log.clear();
        } else if offset > self.log_start {
            self.log.drain(..usize::try_from(offset - self.log_start).expect("small"));
            self.log_start = offset;
        }
    }

    fn part(&mut self, bytes: &[u8]) {
        self.unstored += bytes.len() as u64;
        let (meta, mut whole) = self.arriving.take().expect("a part belongs to a checkpoint");
        whole.extend_from_slice(bytes);
        if (whole.len() as u64) < meta.size {
            self.arriving = Some((meta, whole));
            return;
        }
        if meta.kind == CheckpointKind::Merged {
            self.checkpoints.truncate(1);
        }
        if meta.is_full() {
            self.checkpoints.clear();
        }
        self.checkpoints.push(SealedCheckpoint { meta, bytes: whole.into() });
    }
}
