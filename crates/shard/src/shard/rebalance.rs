//! Elastic chords: when an edge joins, sessions whose policy says so move to it (docs/policies.md, "Elastic chords").
//!
//! A session belongs at its first edge on the ring of all connected edges, this one included, and its backup at the first of the others, unless
//! its policy names another one. A slot with shared cells belongs where a session with the name of its group would: its cells move together,
//! past their backup, which they keep.
//!
//! Only what belongs at the edge that has joined moves: so no two edges send a session back and forth, and one that an operator has sent
//! elsewhere stays there until its own edge joins again. The moves are those of operators, and wait until none of these waits.

use super::{
    SHARD, Shard,
    report::note,
    state::{
        groups::Group,
        moves::{MOVES_MAX, Move, Moved},
        rebalance::{PassItem, PassOver, PassTally},
        sessions::Session,
    },
};
use crate::api::{Destination, NoteLevel, Now, ReplicationPolicy, ShardOutput};
use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_session::trace;
use marram_wire::{frame::GroupId, id::SessionId};

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
                && let Some(item) = self.rebalance.next(now.mono_ns)
            {
                self.rebalance_one(now, item, out);
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
        let sessions = self.sessions.ids().into_iter().map(PassItem::Session);
        let all = sessions.chain(self.groups.of_slots().into_iter().map(PassItem::Slot));
        let belong: Vec<_> = all.filter_map(|item| Some((item, self.belongs(item, edge)?.1))).collect();
        let counted = counted(&belong);
        self.rebalance.begin_pass(now.mono_ns, edge, belong.into_iter().map(|(item, _)| item).collect());
        if !self.rebalances() {
            return;
        }
        self.counters.rebalance_passes += 1;
        let text = format!("the edge `{edge}` has joined: {counted} of this shard move to it");
        note(NoteLevel::Info, None, text, out);
    }

    fn pass_over(&mut self, over: &PassOver, why: &str, out: &mut Vec<ShardOutput>) {
        let PassOver { edge, ns, tally: PassTally { planned, moved, stayed, left } } = over;
        let ms = ns / MS;
        let mut text = format!("rebalanced onto `{edge}`: {moved} of {planned} have moved in {ms} ms");
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

    /// Moves what of the pass is next, or tries it again later.
    fn rebalance_one(&mut self, now: Now, item: PassItem, out: &mut Vec<ShardOutput>) {
        let Some(edge) = self.rebalance.edge().map(ToString::to_string) else { return };
        let moves = |id: SessionId| self.sessions.get(id).is_some_and(|session| session.moving.is_some());
        let moves = self.sessions_of(item).any(moves);
        let Some((per_s, what)) = self.belongs(item, &edge).filter(|_| !moves) else {
            return self.rebalance.skipped();
        };
        let to = Destination::edge(&edge);
        let id = match self.able_to_move(now, item, (what, &to)) {
            Ok(id) => id,
            Err(why) => {
                trace!(SHARD, "{item:?} is not rebalanced yet: {why}");
                return self.rebalance.failed(now.mono_ns);
            }
        };
        if let Some(session) = self.sessions.get_mut(id) {
            session.moving = Some(Move::of(what, to, now.mono_ns).into());
            self.moves.wait(id);
            self.rebalance.began(now.mono_ns, id, per_s);
            self.moves_due(now, out);
        }
    }

    /// The session, or all cells of the slot that are here.
    fn sessions_of(&self, item: PassItem) -> impl Iterator<Item = SessionId> {
        let (session, group) = match item {
            PassItem::Session(id) => (Some(id), None),
            PassItem::Slot(name) => (None, self.groups.get(name)),
        };
        session.into_iter().chain(group.into_iter().flat_map(Group::members))
    }

    /// The session that can have the move. Of a slot that is a cell which has clients, if there is one: another one may end soon, and the move
    /// with it.
    fn able_to_move(
        &self,
        now: Now,
        item: PassItem,
        (what, to): (Moved, &Destination),
    ) -> Result<SessionId, String> {
        let mut found = Err("there is none".to_string());
        for id in self.sessions_of(item) {
            let able = match what {
                Moved::Session => self.can_move(id, to),
                Moved::Backup => self.can_move_backup(id, to),
            };
            match able {
                Ok(()) if !self.sessions.is_over(now.mono_ns, id) => return Ok(id),
                Ok(()) => found = Ok(id),
                Err(why) => found = found.or(Err(why)),
            }
        }
        found
    }

    /// What is to be at an edge that has joined, and how many a second may move there by its policy: the session, or its backup if the session
    /// stays here; the same of a slot. None if neither is.
    fn belongs(&self, item: PassItem, edge: &str) -> Option<(u32, Moved)> {
        match item {
            PassItem::Session(id) => self.session_belongs(id, edge),
            PassItem::Slot(name) => self.slot_belongs(name, edge),
        }
    }

    fn session_belongs(&self, id: SessionId, edge: &str) -> Option<(u32, Moved)> {
        let session = self.sessions.get(id).filter(|session| !session.is_following())?;
        if self.is_shared_cell(id) {
            return None;
        }
        let per_s = self.rebalanced_by(session)?.rebalance;
        if self.keepers.first_of(id) == Some(edge) {
            return Some((per_s, Moved::Session));
        }
        self.backup_of(id).filter(|backup| *backup != edge)?;
        let kind = self.group_kind_of(session).filter(|kind| !kind.runs_ahead())?;
        let target = self.target_for((id, &kind), None, |_| true)?;
        (target.edge == edge).then_some((per_s, Moved::Backup))
    }

    /// The slot of this group never moves to its backup: it would have none until the next one has a copy. So it would be if that edge, or the
    /// backup, did not know how cells move past their backup.
    fn slot_belongs(&self, name: GroupId, edge: &str) -> Option<(u32, Moved)> {
        let group = self.groups.get(name).filter(|group| group.is_slot && !group.kind().pace.whole)?;
        let id = group.members().next()?;
        let session = self.sessions.get(id)?;
        let per_s = self.rebalanced_by(session)?.rebalance;
        let backup = group.claimed_backup();
        let keeps_backup = |edge| {
            let shard = self.shard_for_cell(id, edge);
            shard.is_some_and(|(wire, _)| self.wires.may_hand_group(wire))
        };
        let key = SessionId(name);
        if self.keepers.first_of(key) == Some(edge)
            && backup.is_none_or(|backup| backup != edge && keeps_backup(backup))
            && keeps_backup(edge)
        {
            return Some((per_s, Moved::Session));
        }
        backup.filter(|backup| *backup != edge)?;
        let kind = self.group_kind_of(session)?;
        let cell_of = Some((session.app(), self.slot_number(session)));
        let target = self.target_for((key, &kind), cell_of, |_| true)?;
        (target.edge == edge).then_some((per_s, Moved::Backup))
    }

    /// The policy by which a session moves to edges that join.
    fn rebalanced_by(&self, session: &Session) -> Option<&ReplicationPolicy> {
        let app = self.apps.of_owner(&session.owner).filter(|app| app.epoch.is_some())?;
        Some(self.policy_of(app, session)?.as_ref()).filter(|policy| policy.rebalance > 0)
    }
}

/// What moves, for operators.
fn counted(belong: &[(PassItem, Moved)]) -> String {
    let count = |is_slot: bool, moved: Moved| {
        let is_it = |(item, what): &&(PassItem, Moved)| {
            matches!(item, PassItem::Slot(_)) == is_slot && *what == moved
        };
        belong.iter().filter(is_it).count()
    };
    let mut parts = Vec::new();
    for (is_slot, moved, what) in [
        (false, Moved::Session, "sessions"),
        (true, Moved::Session, "slots with shared cells"),
        (false, Moved::Backup, "backups of sessions"),
        (true, Moved::Backup, "backups of slots"),
    ] {
        let count = count(is_slot, moved);
        parts.extend((count > 0).then(|| format!("{count} {what}")));
    }
    if parts.is_empty() { "no sessions".to_string() } else { parts.join(", ") }
}
