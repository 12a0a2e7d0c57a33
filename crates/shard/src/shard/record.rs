//! Recordings of sessions: requested by operators, or made because a handler was stopped.

use super::{Shard, report::note};
use crate::api::{FromShard, NoteLevel, Now, Record, Recorded, ShardOutput};
use alloc::{
    collections::VecDeque,
    string::{String, ToString},
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant, owner::RecordRequest};
use marram_wire::id::SessionId;

/// Operators' recordings in progress on one shard: the replicas at the ends can be large.
pub const RECORDINGS_MAX: usize = 4;

/// Recordings of stopped handlers that are remembered as reported.
const STOPS_TOLD: usize = 64;

/// Recordings of stopped handlers that were reported, the newest last. A handler is tried twice, and both tries make
/// the same file: it is reported once.
#[derive(Debug, Default)]
pub(super) struct ReportedStops {
    files: VecDeque<String>,
}

impl ReportedStops {
    /// Whether a file was not reported yet; from now on it was.
    fn is_new(&mut self, file: &str) -> bool {
        if self.files.iter().any(|known| known == file) {
            return false;
        }
        if self.files.len() >= STOPS_TOLD {
            self.files.pop_front();
        }
        self.files.push_back(file.to_string());
        true
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns reported stops.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I39", self.files.len() <= STOPS_TOLD);
        Ok(())
    }
}

impl Shard {
    /// An operator requests a recording of a session.
    pub(super) fn record(&mut self, now: Now, record: &Record, out: &mut Vec<ShardOutput>) {
        let Record { tag, session, redact } = *record;
        if !self.sessions.has(session) {
            let recorded = Recorded { tag, found: false, file: None, why: String::new() };
            return out.push(ShardOutput::Control(FromShard::Recorded(recorded)));
        }
        let recording = self.sessions.iter().filter(|(_, session)| session.owner.is_recording());
        if recording.count() >= RECORDINGS_MAX {
            let why = "the maximum number of sessions is being recorded; try again when one is done";
            return self.recorded(session, Some(tag), Err(why.to_string()), out);
        }
        self.with_owner(now, session, out, |owner, effects| {
            owner.record(now, RecordRequest { tag: Some(tag), redact }, effects);
        });
    }

    /// A recording was made, or failed.
    pub(super) fn recorded(
        &mut self,
        session: SessionId,
        tag: Option<u64>,
        result: Result<String, String>,
        out: &mut Vec<ShardOutput>,
    ) {
        let (file, why) = match result {
            Ok(file) => {
                self.counters.recordings += 1;
                (Some(file), String::new())
            }
            Err(why) => {
                self.counters.recordings_failed += 1;
                (None, why)
            }
        };
        match (tag, file) {
            (Some(tag), file) => {
                out.push(ShardOutput::Control(FromShard::Recorded(Recorded { tag, found: true, file, why })));
            }
            (None, Some(file)) if !self.stops.is_new(&file) => {}
            (None, Some(file)) => {
                let text =
                    alloc::format!("a handler was stopped; run its recording with `marram replay {file}`");
                note(NoteLevel::Info, Some(session), text, out);
            }
            (None, None) => {
                let text = alloc::format!("a handler was stopped, and could not be recorded: {why}");
                note(NoteLevel::Warning, Some(session), text, out);
            }
        }
    }
}
