//! Elastic chords: when an edge joins, sessions whose policy says so move to it (docs/policies.md, "Elastic chords").
//!
//! A session belongs at its first edge on the ring of all connected edges, this one included, and its backup at the first of the others, unless
//! its policy names another one. Only what belongs at the edge that has joined moves: so no two edges send a session back and forth, and one that an operator has sent elsewhere stays there until its own edge joins
//! again. Shared cells stay. The moves are those of operators, and wait until none of these waits.

use super::{
    SHARD, Shard,
    report::note,
    state::{
        moves::{MOVES_MAX, Move, Moved},
        rebalance::{PassOver, PassTally},
        sessions::Session,
    },
};
use crate::api::{Destination, NoteLevel, Now, ReplicationPolicy, ShardOutput};
use alloc::{collections::BTreeSet, format, string::ToString, vec::Vec};
use marram_session::trace;
use marram_wire::id::SessionId;

const MS: u64 = 1_000_000;

impl Shard {
    /// When the pass began that moves sessions onto an edge which has joined, if one is under way, and the sessions that it moves now; for
    /// inspection.
    pub fn rebalancing(&self) -> Option<(u64, impl Iterator<Item = SessionId>)> {
        self.rebalance.moving()
    }

    /// Edges have come or gone.
    pub(super) fn joins_changed(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let names: BTreeSet<&str> = self.wires.standbys().map(|role| role.name.as_str()).collect();
        let has_sessions = self.sessions.iter().any(|(_, session)| !session.is_following());
        if let Some(over) = self.rebalance.connected(now.mono_ns, &names, has_sessions) {
            self.pass_over(&over, "its connection broke: once it is back and stays, the rest is moved", out);
        }
    }

    /// Begins passes, moves the next sessions of one, and ends it.
    pub(super) fn rebalance_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        if self.drain.has_begun() {
            if let Some(over) = self.rebalance.stop(now.mono_ns) {
                self.pass_over(&over, "this edge stops", out);
            }
            return;
        }
        loop {
            while let Some(edge) = self.rebalance.settled(now.mono_ns).map(ToString::to_string) {
                self.begin_pass(now, &edge, out);
            }
            while self.may_rebalance()
                && let Some(id) = self.rebalance.next(now.mono_ns)
            {
                self.rebalance_one(now, id, out);
            }
            let Some(over) = self.rebalance.finished(now.mono_ns) else { return };
            self.pass_over(&over, "", out);
        }
    }

    /// When something of it is due.
    pub(super) fn rebalance_due_ns(&self) -> Option<u64> {
        let is_idle = self.drain.has_begun() || !self.rebalances();
        if is_idle { None } else { self.rebalance.due_ns(self.may_rebalance()) }
    }

    /// Whether a policy in force moves sessions to edges that join.
    fn rebalances(&self) -> bool {
        self.policies.iter().any(|policy| policy.rebalance > 0)
    }

    /// Whether there is room for another move, and none that an operator asked for waits for it.
    fn may_rebalance(&self) -> bool {
        let (under_way, waiting) = self.moves.counts();
        waiting == 0 && under_way < MOVES_MAX
    }

    fn begin_pass(&mut self, now: Now, edge: &str, out: &mut Vec<ShardOutput>) {
        let ids = self.sessions.ids().into_iter();
        let belong: Vec<_> = ids.filter_map(|id| Some((id, self.belongs(id, edge)?.1))).collect();
        let backed = belong.iter().filter(|(_, what)| *what == Moved::Backup).count();
        let (all, count) = (belong.len(), belong.len() - backed);
        self.rebalance.begin_pass(now.mono_ns, edge, belong.into_iter().map(|(id, _)| id).collect());
        if !self.rebalances() {
            return;
        }
        self.counters.rebalance_passes += 1;
        let text = match all {
            0 => format!("the edge `{edge}` has joined: no session of this shard moves to it"),
            _ => format!(
                "the edge `{edge}` has joined: {count} sessions of this shard move to it, and the backups of {backed} others"
            ),
        };
        note(NoteLevel::Info, None, text, out);
    }

    fn pass_over(&mut self, over: &PassOver, why: &str, out: &mut Vec<ShardOutput>) {
        let PassOver { edge, ns, tally: PassTally { planned, moved, stayed, left } } = over;
        let ms = ns / MS;
        let mut text =
            format!("rebalanced onto `{edge}`: {moved} of {planned} sessions have moved in {ms} ms");
        if *left > 0 {
            text += &format!(", {left} have ended or went elsewhere");
        }
        if *stayed > 0 {
            text += &format!(", {stayed} could not be moved and stay");
        }
        if !why.is_empty() {
            text += &format!("; {why}");
        }
        let level = if *stayed > 0 { NoteLevel::Warning } else { NoteLevel::Info };
        note(level, None, text, out);
    }

    /// Moves the session of the pass that is next, or tries it again later.
    fn rebalance_one(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(edge) = self.rebalance.edge().map(ToString::to_string) else { return };
        let moves = self.sessions.get(id).is_some_and(|session| session.moving.is_some());
        let Some((per_s, what)) = self.belongs(id, &edge).filter(|_| !moves) else {
            return self.rebalance.skipped();
        };
        let to = Destination::edge(&edge);
        let able = match what {
            Moved::Session => self.can_move(id, &to),
            Moved::Backup => self.can_move_backup(id, &to),
        };
        if let Err(why) = able {
            trace!(SHARD, "session {id} is not rebalanced yet: {why}");
            return self.rebalance.failed(now.mono_ns);
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.moving = Some(Move::of(what, to, now.mono_ns).into());
            self.moves.wait(id);
            self.rebalance.began(now.mono_ns, per_s);
            self.moves_due(now, out);
        }
    }

    /// What of a session is to be at an edge that has joined, and how many a second may move there by its policy: the session, or its backup
    /// if the session stays here. None if neither is.
    fn belongs(&self, id: SessionId, edge: &str) -> Option<(u32, Moved)> {
        let session = self.sessions.get(id).filter(|session| !session.is_following())?;
        let per_s = self.rebalanced_by(session)?.rebalance;
        if self.keepers.first_of(id) == Some(edge) {
            return Some((per_s, Moved::Session));
        }
        self.backup_of(id).filter(|backup| *backup != edge)?;
        let kind = self.group_kind_of(session).filter(|kind| !kind.runs_ahead())?;
        let target = self.target_for((id, &kind), None, |_| true)?;
        (target.edge == edge).then_some((per_s, Moved::Backup))
    }

    /// The policy by which a session moves to edges that join.
    fn rebalanced_by(&self, session: &Session) -> Option<&ReplicationPolicy> {
        let app = self.apps.of_owner(&session.owner).filter(|app| app.epoch.is_some() && !app.shared)?;
        Some(self.policy_of(app, session)?.as_ref()).filter(|policy| policy.rebalance > 0)
    }
}
