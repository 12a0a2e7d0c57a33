//! Recordings of sessions: requested by operators, or made because a handler was stopped.

use super::Shard;
use crate::api::{FromShard, NoteLevel, Now, Record, Recorded, ShardOutput};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::RecordRequest;
use marram_wire::id::SessionId;

/// Operators' recordings in progress on one shard: the replicas at the ends can be large.
pub const RECORDINGS_MAX: usize = 4;

/// Recordings of stopped handlers that are remembered as reported.
pub(super) const STOPS_TOLD: usize = 64;

impl Shard {
    /// An operator requests a recording of a session.
    pub(super) fn record(&mut self, now: Now, record: &Record, out: &mut Vec<ShardOutput>) {
        let Record { tag, session, redact } = *record;
        if !self.sessions.contains_key(&session) {
            let recorded = Recorded { tag, found: false, file: None, why: String::new() };
            return out.push(ShardOutput::Control(FromShard::Recorded(recorded)));
        }
        if self.sessions.values().filter(|session| session.owner.is_recording()).count() >= RECORDINGS_MAX {
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
            // A handler is tried twice, and both tries make the same file.
            (None, Some(file)) if self.stops_told.contains(&file) => {}
            (None, Some(file)) => {
                let text =
                    alloc::format!("a handler was stopped; run its recording with `marram replay {file}`");
                self.note(NoteLevel::Info, Some(session), text, out);
                if self.stops_told.len() >= STOPS_TOLD {
                    self.stops_told.pop_front();
                }
                self.stops_told.push_back(file);
            }
            (None, None) => {
                let text = alloc::format!("a handler was stopped, and could not be recorded: {why}");
                self.note(NoteLevel::Warning, Some(session), text, out);
            }
        }
    }
}
