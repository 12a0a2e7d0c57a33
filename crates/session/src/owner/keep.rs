//! What the owner of a shared cell keeps for itself, so that it can rebuild the cell when a client's input has stopped it: a full
//! checkpoint, and the log and the messages since.
//!
//! The checkpoint is one apart: those of the backup go on as if it had not been taken. One that the backup begins with is kept as well.

use super::{OwnerEffect, end_state::Message, log::Log, tape::Tape, uncovered::REPLAY_SHARE_NS_PER_BYTE};
use crate::{
    cell::{CellImage, SealedCheckpoint, Seed},
    replay::OwnKept,
};
use alloc::vec::Vec;
use bytes::Bytes;
use marram_wire::{
    frame::CheckpointMeta,
    id::Port,
    limits::{COVER_LOG, PART_SIZE, RETAINED_MAX},
};

/// A checkpoint is due after so many bytes of log and messages at the latest.
const HELD_MAX: u64 = RETAINED_MAX / 2;
/// And after so many of log.
const LOG_MAX: u64 = 4 * COVER_LOG;
/// The cell waits for a checkpoint that is under way when so many bytes of messages are kept.
const FULL: u64 = RETAINED_MAX / 2 * 3;
/// After a checkpoint that failed, so much more is logged before another one is tried.
const RETRY_LOG: u64 = COVER_LOG;

/// From where the cell can be rebuilt.
#[derive(Debug, Default)]
enum Base {
    /// It cannot.
    #[default]
    Nothing,
    /// The log is here from its start on.
    Start,
    /// A full checkpoint, sealed.
    Checkpoint(CheckpointMeta, Bytes),
}

/// A full checkpoint that is copied and not sealed.
#[derive(Clone, Copy, Debug)]
struct Copied {
    number: u32,
    /// The end of the log at the copy.
    offset: u64,
    spent_ns: u64,
}

/// What an owner keeps of its cell for itself.
#[derive(Debug, Default)]
pub(super) struct OwnKeep {
    base: Base,
    /// Consumed since the base, or since the copy that is to be the first one.
    tape: Tape,
    copied: Option<Copied>,
    /// How long handlers have run since the base, in nanoseconds.
    spent_ns: u64,
    /// Without a base: no checkpoint is taken before the log has this end.
    tries_at: u64,
}

impl OwnKeep {
    /// The cell begins: the log has all of it.
    pub(super) fn begin(&mut self) {
        *self = Self { base: Base::Start, ..Self::default() };
    }

    /// Whether a checkpoint is to be taken, for an app that allows a replay of so long. One costs about as much as what it makes
    /// unnecessary to keep and to replay.
    pub(super) fn is_due(&self, recovery_target_ns: u64, log: &Log) -> bool {
        let size = match &self.base {
            Base::Nothing => return log.end() > self.tries_at,
            Base::Start => 0,
            Base::Checkpoint(meta, _) => meta.size,
        };
        let logged = log.end() - self.base_offset();
        let held = logged + self.tape.held_bytes();
        self.spent_ns > recovery_target_ns.max(size.saturating_mul(REPLAY_SHARE_NS_PER_BYTE))
            || held >= size.clamp(COVER_LOG, HELD_MAX)
            || logged >= LOG_MAX
    }

    fn base_offset(&self) -> u64 {
        match &self.base {
            Base::Nothing | Base::Start => 0,
            Base::Checkpoint(meta, _) => meta.log_offset,
        }
    }

    /// The log from here on is needed; none if there is nothing that it would follow.
    pub(super) fn log_floor(&self) -> Option<u64> {
        match &self.base {
            Base::Nothing => self.copied.map(|copied| copied.offset),
            Base::Start | Base::Checkpoint(..) => Some(self.base_offset()),
        }
    }

    /// Whether the cell waits until the checkpoint that is under way is sealed.
    pub(super) fn is_full(&self) -> bool {
        self.tape.held_bytes() > FULL
    }

    /// Whether there is something to rebuild the cell from.
    pub(super) fn has_base(&self) -> bool {
        !matches!(self.base, Base::Nothing)
    }

    /// An entry at this offset has consumed this message.
    pub(super) fn consumed(&mut self, offset: u64, port: Port, message: &Message) {
        let is_kept = self.log_floor().is_some();
        if is_kept && !self.tape.push(offset, port, message.clone()) {
            // One message is far smaller than the room above the limit.
            self.give_up(offset);
        }
    }

    /// A handler took this long.
    pub(super) fn spent(&mut self, cost_ns: u64) {
        self.spent_ns = self.spent_ns.saturating_add(cost_ns);
    }

    /// A full checkpoint is copied at the end of the log.
    pub(super) fn copied(&mut self, number: u32, offset: u64) {
        self.copied = Some(Copied { number, offset, spent_ns: self.spent_ns });
    }

    /// A full checkpoint is sealed.
    pub(super) fn sealed(&mut self, meta: &CheckpointMeta, bytes: &Bytes) {
        let Some(copied) = self.copied.take_if(|copied| copied.number == meta.number) else { return };
        self.spent_ns = self.spent_ns.saturating_sub(copied.spent_ns);
        self.tape.skip_to(meta.log_offset);
        self.base = Base::Checkpoint(meta.clone(), bytes.clone());
    }

    /// Whether a full checkpoint is copied and not sealed.
    pub(super) fn is_copied(&self) -> bool {
        self.copied.is_some()
    }

    /// The copy that is not sealed is lost.
    pub(super) fn lose_copy(&mut self) {
        if self.copied.take().is_some() && !self.has_base() {
            self.tape = Tape::default();
        }
    }

    /// No checkpoint can be taken, and more than this edge may keep would wait for one: nothing is kept for a while. `log_end` is the
    /// end of the log.
    pub(super) fn give_up(&mut self, log_end: u64) {
        *self = Self { tries_at: log_end + RETRY_LOG, ..Self::default() };
    }

    /// Asks for the cell as at the base. What it has to replay follows from there on, with these messages.
    pub(super) fn restore(&self, image: CellImage, seed: Seed, out: &mut Vec<OwnerEffect>) -> Tape {
        if let Base::Checkpoint(meta, bytes) = &self.base {
            out.push(OwnerEffect::Restore(image, alloc::vec![meta.clone()]));
            let cuts = (0..bytes.len()).step_by(PART_SIZE);
            out.extend(cuts.map(|at| OwnerEffect::Part(bytes.slice(at..bytes.len().min(at + PART_SIZE)))));
        } else {
            out.push(OwnerEffect::Start(image, seed));
        }
        self.tape.clone()
    }

    /// What is kept, for a recording; none if there is no base.
    pub(super) fn show(&self) -> Option<OwnKept> {
        let checkpoint = match &self.base {
            Base::Nothing => return None,
            Base::Start => None,
            Base::Checkpoint(meta, bytes) => {
                Some(SealedCheckpoint { meta: meta.clone(), bytes: bytes.clone() })
            }
        };
        Some(OwnKept { checkpoint, messages: self.tape.messages().collect() })
    }

    /// The log since the base.
    pub(super) fn log_since<'a>(&self, log: &'a Log) -> &'a [u8] {
        log.since(self.base_offset())
    }

    /// Whether this is the offset of the base.
    pub(super) fn is_at(&self, offset: u64) -> bool {
        self.has_base() && self.base_offset() == offset
    }

    pub(super) fn held_bytes(&self) -> u64 {
        let base = match &self.base {
            Base::Checkpoint(_, bytes) => bytes.len() as u64,
            Base::Nothing | Base::Start => 0,
        };
        base + self.tape.held_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::{
        frame::CheckpointKind,
        id::{Generation, SessionId},
        seal::Digest,
    };

    const TARGET_NS: u64 = 1_000;

    fn log_to(end: u64) -> Log {
        let digest = Digest::start(SessionId([1; 16]));
        Log::at(super::super::log::Position { offset: end, digest, cursor: Default::default() })
    }

    fn meta(number: u32, log_offset: u64, size: u64) -> CheckpointMeta {
        let generation = Generation { count: 1, opener: 2 };
        CheckpointMeta { generation, number, kind: CheckpointKind::Full, log_offset, size }
    }

    fn message(size: usize) -> Message {
        Message { close: false, payload: alloc::vec![0; size].into() }
    }

    #[test]
    fn a_copy_is_due_for_work_for_messages_and_for_log() {
        let mut keep = OwnKeep::default();
        assert!(!keep.is_due(TARGET_NS, &log_to(0)), "the cell has not begun");
        assert!(keep.is_due(TARGET_NS, &log_to(1)), "it has nothing to begin with");
        keep.begin();
        assert!(
            !keep.is_due(TARGET_NS, &log_to(COVER_LOG - 1)) && keep.is_due(TARGET_NS, &log_to(COVER_LOG))
        );
        // A large one is due later in every way but one.
        let size = 2 << 20;
        keep.copied(1, 500);
        keep.sealed(&meta(1, 500, size), &Bytes::new());
        assert!(!keep.is_due(TARGET_NS, &log_to(500 + COVER_LOG)));
        assert!(keep.is_due(TARGET_NS, &log_to(500 + LOG_MAX)));
        keep.consumed(500, Port::CLIENT, &message(1 << 20));
        assert!(!keep.is_due(TARGET_NS, &log_to(501)));
        keep.consumed(501, Port::CLIENT, &message(1 << 20));
        assert!(keep.is_due(TARGET_NS, &log_to(502)));
        keep.copied(2, 501);
        keep.sealed(&meta(2, 501, size), &Bytes::new());
        assert!(!keep.is_due(TARGET_NS, &log_to(502)), "the first message is covered");
        keep.spent(size * REPLAY_SHARE_NS_PER_BYTE);
        assert!(!keep.is_due(TARGET_NS, &log_to(502)));
        keep.spent(1);
        assert!(keep.is_due(TARGET_NS, &log_to(502)));
    }

    #[test]
    fn what_comes_behind_a_copy_is_kept_before_it_is_sealed() {
        let mut keep = OwnKeep::default();
        keep.consumed(5, Port::CLIENT, &message(100));
        assert_eq!((keep.log_floor(), keep.held_bytes()), (None, 0), "it would follow nothing");
        keep.copied(1, 9);
        keep.consumed(9, Port::CLIENT, &message(100));
        assert_eq!((keep.log_floor(), keep.has_base()), (Some(9), false));
        keep.sealed(&meta(7, 9, 10), &Bytes::new());
        assert!(!keep.has_base(), "another one is sealed");
        keep.sealed(&meta(1, 9, 10), &Bytes::from_static(b"sealed"));
        assert!(keep.is_at(9) && keep.held_bytes() == 6 + 164);
        // A later copy that is lost changes nothing.
        keep.copied(2, 20);
        keep.lose_copy();
        assert!(keep.is_at(9) && keep.log_floor() == Some(9));
        while !keep.is_full() {
            keep.consumed(30, Port::CLIENT, &message(1 << 20));
        }
        assert!(keep.has_base(), "the cell waits before there is no room");
        keep.give_up(40);
        assert_eq!((keep.log_floor(), keep.held_bytes()), (None, 0));
        let next = 40 + RETRY_LOG;
        assert!(!keep.is_due(TARGET_NS, &log_to(next)) && keep.is_due(TARGET_NS, &log_to(next + 1)));
    }
}
