//! The witness of sessions without a server: passes questions and reports between owners and control.

use super::{
    Shard,
    report::{Counters, note},
};
use crate::api::{
    FromShard, NoteLevel, Now, ShardOutput, WitnessAnswer, WitnessMode, WitnessQuery, WitnessReport,
};
use crate::coordinator::contents::Witnessed;
use alloc::{string::ToString, vec::Vec};
use marram_session::owner::{ClientProgress, WitnessReply, Witnessing};
use marram_wire::id::{Generation, SessionId};

/// What the app's setting means for its sessions.
pub(super) fn witnessing(app: WitnessMode) -> Option<Witnessing> {
    match app {
        WitnessMode::None => None,
        WitnessMode::Lenient => Some(Witnessing::Lenient),
        WitnessMode::Strict => Some(Witnessing::Strict),
    }
}

/// An owner needs to know what the session's client was seen to have.
pub(super) fn ask(
    counters: &mut Counters,
    session: SessionId,
    generation: Generation,
    out: &mut Vec<ShardOutput>,
) {
    counters.witness_asked += 1;
    out.push(ShardOutput::Control(FromShard::WitnessQuery(WitnessQuery { session, generation })));
}

/// An owner has seen what its client has.
pub(super) fn report(
    counters: &mut Counters,
    session: SessionId,
    seen: ClientProgress,
    out: &mut Vec<ShardOutput>,
) {
    counters.witness_reports += 1;
    let ClientProgress { generation, log_end, tag } = seen;
    let seen = Witnessed { generation, log_end, tag };
    out.push(ShardOutput::Control(FromShard::WitnessReport(WitnessReport { session, seen })));
}

/// A session of an app with a lenient witness goes on without its answer.
pub(super) fn missing(counters: &mut Counters, session: SessionId, out: &mut Vec<ShardOutput>) {
    counters.witness_missing += 1;
    let text = "continues without a check that its client did not go back to an older state: the witness is \
        unreachable";
    note(NoteLevel::Warning, Some(session), text.to_string(), out);
}

impl Shard {
    /// The answer to a question.
    pub(super) fn testified(&mut self, now: Now, testified: WitnessAnswer, out: &mut Vec<ShardOutput>) {
        let WitnessAnswer { session, generation, seen, away } = testified;
        // An attempt of an older generation has gone by: the owner compares, and ignores the answer.
        let testimony = match away {
            Some(why) => WitnessReply::Away(why),
            None => WitnessReply::Seen(seen.map(|seen| {
                let Witnessed { generation, log_end, tag } = seen;
                ClientProgress { generation, log_end, tag }
            })),
        };
        self.with_owner(now, session, out, |owner, effects| {
            owner.witnessed(now, generation, testimony, effects);
        });
    }
}
