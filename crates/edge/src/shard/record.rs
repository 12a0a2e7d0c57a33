//! Recordings of sessions: asked for by operators, or made because a handler was stopped.

use super::Shard;
use crate::api::{FromShard, Now, Record, Recorded, ShardOutput};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::RecordRequest;
use marram_wire::id::SessionId;

/// Recordings that operators can have made at a time on one shard: what ends show of a session can be large.
pub const RECORDINGS_MAX: usize = 4;

/// Records of stopped handlers that are remembered as told.
const STOPS_TOLD: usize = 64;

impl Shard {
    /// An operator wants a session recorded.
    pub(super) fn record(&mut self, now: Now, record: &Record, out: &mut Vec<ShardOutput>) {
        let Record { tag, session, redact } = *record;
        if !self.sessions.contains_key(&session) {
            let recorded = Recorded { tag, found: false, file: None, why: String::new() };
            return out.push(ShardOutput::Control(FromShard::Recorded(recorded)));
        }
        if self.sessions.values().filter(|session| session.owner.is_recording()).count() >= RECORDINGS_MAX {
            let why =
                "as many other sessions are being recorded as may be at a time; try again when one is done";
            return self.recorded(session, Some(tag), Err(why.to_string()), out);
        }
        self.with_owner(now, session, out, |owner, effects| {
            owner.record(now, RecordRequest { tag: Some(tag), redact }, effects);
        });
    }

    /// A recording was made, or came to nothing.
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
            // A handler is tried twice, and its file is the same.
            (None, Some(file)) if self.stops_told.contains(&file) => {}
            (None, Some(file)) => {
                let text = alloc::format!("a handler was stopped, and left a record: `marram replay {file}`");
                self.note(2, Some(session), text, out);
                if self.stops_told.len() >= STOPS_TOLD {
                    self.stops_told.pop_front();
                }
                self.stops_told.push_back(file);
            }
            (None, None) => {
                let text = alloc::format!("a handler was stopped, and there is no record of it: {why}");
                self.note(1, Some(session), text, out);
            }
        }
    }
}
