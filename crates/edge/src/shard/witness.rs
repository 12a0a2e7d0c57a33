//! The witness of sessions without a server: questions and reports on their way between owners and control.

use super::Shard;
use crate::api::{FromShard, Now, Out, Saw, Seek, Testified, Witness};
use crate::coordinator::contents::Witnessed;
use alloc::{string::ToString, vec::Vec};
use marram_session::owner::{Seen, Testimony, Witnessing};
use marram_wire::id::{Generation, SessionId};

/// What the app's word means for its sessions.
pub(super) fn witnessing(app: Witness) -> Option<Witnessing> {
    match app {
        Witness::None => None,
        Witness::Lenient => Some(Witnessing::Lenient),
        Witness::Strict => Some(Witnessing::Strict),
    }
}

impl Shard {
    pub(super) fn ask_witness(&mut self, session: SessionId, generation: Generation, out: &mut Vec<Out>) {
        self.counters.witness_asked += 1;
        out.push(Out::Control(FromShard::Seek(Seek { session, generation })));
    }

    pub(super) fn report(&mut self, session: SessionId, seen: Seen, out: &mut Vec<Out>) {
        self.counters.witness_reports += 1;
        let Seen { generation, log_end, tag } = seen;
        let seen = Witnessed { generation, log_end, tag };
        out.push(Out::Control(FromShard::Saw(Saw { session, seen })));
    }

    pub(super) fn witness_missing(&mut self, session: SessionId, out: &mut Vec<Out>) {
        self.counters.witness_missing += 1;
        let text = "goes on although nobody can say whether its client went back to an older state";
        self.note(1, Some(session), text.to_string(), out);
    }

    /// The answer to a question.
    pub(super) fn testified(&mut self, now: Now, testified: Testified, out: &mut Vec<Out>) {
        let Testified { session, generation, seen, away } = testified;
        let testimony = match away {
            Some(why) => Testimony::Away(why),
            None => Testimony::Seen(seen.map(|seen| {
                let Witnessed { generation, log_end, tag } = seen;
                Seen { generation, log_end, tag }
            })),
        };
        self.with_owner(now, session, out, |owner, effects| {
            owner.witnessed(now, generation, testimony, effects);
        });
    }
}
