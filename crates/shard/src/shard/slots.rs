//! Slots: which edge runs the shared cells of an app (docs/protocol-epochs.md, "Slots").
//!
//! A slot's record names a group, and that group's claim names the edge. A cell runs nowhere before its slot is won; its group is claimed
//! before that, so that a slot never names a group without a record.

use super::{
    Shard,
    hello::{Refusal, refuse},
    keys::Wanted,
    report::note,
    shared,
    state::{
        backups::AskedFor,
        groups::Group,
        sessions::Session,
        slots::{Look, Promoted, SLOTS_MAX, SlotNews},
    },
};
use crate::{
    api::{FromShard, GroupClaim, NoteLevel, Now, ShardOutput, ShardWireId, SlotAnswer, SlotQuery},
    coordinator::{SlotHeld, SlotName, SlotRecord, contents::Claimed},
};
use alloc::{format, string::ToString, vec::Vec};
use marram_session::owner::OwnerPhase;
use marram_wire::{
    frame::{Code, GroupId, Hello},
    id::SessionId,
};

/// Why a client waits at the backup of its cell.
const CLAIMS: &str = "this edge is the cell's backup, and claims its group at the coordinator";

/// Asks the coordinator.
fn ask(queries: impl IntoIterator<Item = SlotQuery>, out: &mut Vec<ShardOutput>) {
    out.extend(queries.into_iter().map(|query| ShardOutput::Control(FromShard::Slot(query))));
}

impl Shard {
    /// The shared cell that a client's hello is for, if it runs here.
    ///
    /// # Errors
    /// Where the client is led, or why it waits.
    pub(super) fn cell_that_runs(
        &mut self,
        now: Now,
        wanted: Wanted<'_>,
        hello: &Hello,
        out: &mut Vec<ShardOutput>,
    ) -> Result<SessionId, Refusal> {
        let slot = wanted.slot();
        let is_of_use = |cell: &SessionId| !self.is_of_past(slot, *cell) && self.is_in_group(*cell);
        if let Some(cell) = self.cell_here(wanted).filter(is_of_use) {
            let cell = self.may_join(now, wanted, cell, out)?;
            // A cell for all clients goes on without any.
            if !hello.fresh || wanted.key.is_none() || !self.sessions.is_over(now.mono_ns, cell) {
                return Ok(cell);
            }
            return match self.groups.of_session(cell) {
                Some(group) => self.begin_in_group(now, wanted, (group, Some(cell)), out),
                None => refuse(Code::Waiting, "the cell is gone"),
            };
        }
        let look = self.slots.look(now.mono_ns, slot);
        if let Look::Own(group) = look
            && let Some(to) = self.handed_over_to(group)
        {
            return Err(self.leads_to(wanted, to, None));
        }
        match look {
            Look::Known(held, query) => {
                ask(query, out);
                match held.holder {
                    Some(holder) if holder.primary != self.config.edge => {
                        Err(self.leads_to(wanted, &holder.primary, holder.backup.as_deref()))
                    }
                    holder => self.take_lost(now, wanted, (slot, held.record, holder), out),
                }
            }
            Look::Ask(query) => {
                ask([query], out);
                Err(Refusal::Held)
            }
            Look::Waits => Err(Refusal::Held),
            Look::Full => refuse(
                Code::Busy,
                format!(
                    "this shard knows {SLOTS_MAX} slots, which is the maximum; deploy apps with fewer `slots`, or give the edge more shards"
                ),
            ),
            Look::Free | Look::Own(_) if self.drain.has_begun() => {
                refuse(Code::Busy, "the edge is shutting down")
            }
            Look::Own(group) if !hello.fresh && wanted.key.is_some() => {
                Err(self.unknown_client(now, group, hello.session, out))
            }
            Look::Free | Look::Own(_) if !hello.fresh => {
                refuse(Code::Waiting, "no edge has the app's cell in which the session was")
            }
            Look::Free => self.begin_cell(now, wanted, (slot, None), out),
            Look::Own(group) => {
                // The last one has ended, or it is the first one of its key.
                self.begin_in_group(now, wanted, (group, None), out)
            }
        }
    }

    /// Whether a cell is fed here in another group than the one with which this edge has the slot: its primary did not get the slot.
    fn is_of_past(&self, slot: SlotName, cell: SessionId) -> bool {
        let own = self.slots.own(slot);
        own.is_some() && self.backups.of_session(cell).is_some_and(|group| own != Some(group))
    }

    /// Whether this edge runs a cell, or backs it. One that is fed here beside its backup is asked for at its owner.
    pub(super) fn is_in_group(&self, cell: SessionId) -> bool {
        self.groups.of_session(cell).is_some() || self.backups.has(cell)
    }

    /// Begins a cell in a group that has its slot, in the place of the former one of its key if there is one. The backup is fed the next
    /// one before it is told that the former has ended, so that it has a cell of the group at each moment.
    fn begin_in_group(
        &mut self,
        now: Now,
        wanted: Wanted<'_>,
        (group, former): (GroupId, Option<SessionId>),
        out: &mut Vec<ShardOutput>,
    ) -> Result<SessionId, Refusal> {
        let cell = SessionId(self.random.bytes());
        self.insert_cell(now, wanted, (cell, group), out)?;
        if let Some(former) = former {
            self.end_unused(now, former, out);
        }
        self.open_cell(now, cell, out);
        Err(Refusal::Held)
    }

    /// Where a client is led, if these edges have its cell.
    fn leads_to(&self, wanted: Wanted<'_>, primary: &str, backup: Option<&str>) -> Refusal {
        let shard = |edge: &str| {
            // Edges of one domain mostly have as many shards.
            let shards = self.wires.shards_of(edge).unwrap_or(self.config.shards);
            let shard = shared::home(&wanted.app.name, wanted.number(), shards);
            (edge.to_string(), shard)
        };
        Refusal::Led(shard(primary), backup.map(shard))
    }

    /// A shared cell is here: whether clients may join it.
    fn may_join(
        &mut self,
        now: Now,
        wanted: Wanted<'_>,
        cell: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Result<SessionId, Refusal> {
        let own = self.groups.of_session(cell).and_then(|name| self.groups.get(name));
        let Some(session) = self.sessions.get(cell) else { return refuse(Code::Waiting, "the cell is gone") };
        let phase = session.owner.phase();
        if let Some(to) = self.groups.of_session(cell).and_then(|name| self.handed_over_to(name)) {
            return Err(self.leads_to(wanted, to, None));
        }
        match own {
            // Nothing leaves until it is known which edge is the backup: that is soon.
            Some(own) if own.is_going_over() => Err(Refusal::Held),
            Some(own) if own.is_in_doubt() => refuse(
                Code::Waiting,
                "whose the cell is, is being decided: its edge has lost its backup, and claims its group",
            ),
            Some(_) if phase == OwnerPhase::Running => Ok(cell),
            Some(_) => Err(Refusal::Held),
            None => match self.backups.asked(now.mono_ns, cell) {
                Some(AskedFor::Primary { wire, .. }) => {
                    let primary = self.peers.as_ref().and_then(|peers| peers.get(wire));
                    let primary = primary.map(|peer| peer.name().to_string()).unwrap_or_default();
                    Err(self.leads_to(wanted, &primary, None))
                }
                Some(AskedFor::Claim) if self.backups.was_handed_over(cell) => Err(Refusal::Held),
                Some(AskedFor::Claim) => refuse(Code::Waiting, CLAIMS),
                Some(AskedFor::Unclaimed) => {
                    self.ask_whose(now, cell, out);
                    refuse(Code::Waiting, "the coordinator is asked whether this edge is the cell's backup")
                }
                None => refuse(Code::Waiting, "the cell's copy here is of no use any more"),
            },
        }
    }

    /// This shard is fed a cell, its primary is lost, and has announced no claim that names this edge: perhaps it had no time to.
    fn ask_whose(&mut self, now: Now, cell: SessionId, out: &mut Vec<ShardOutput>) {
        let (Some(slot), Some(group)) = (self.slot_of(cell), self.backups.of_session(cell)) else { return };
        match self.slots.look(now.mono_ns, slot) {
            Look::Ask(query) => ask([query], out),
            Look::Known(held, query) if held.record.group == group => {
                ask(query, out);
                let is_named = |holder: &&Claimed| holder.backup.as_ref() == Some(&self.config.edge);
                if let Some(holder) = held.holder.as_ref().filter(is_named) {
                    for ended in self.backups.found(group, holder) {
                        self.drop_standby(now, ended, out);
                    }
                }
            }
            _ => {}
        }
    }

    /// The slot's cell was this edge's, and is not here, or its group has no record. If its claim names no backup, a former life of this edge
    /// had the only copy, or an operator has given it to this edge as lost: a new cell takes the slot over. The claim of its group comes
    /// first, by compare: if another edge has claimed that meanwhile, nothing is taken.
    fn take_lost(
        &mut self,
        now: Now,
        wanted: Wanted<'_>,
        (slot, record, holder): (SlotName, SlotRecord, Option<Claimed>),
        out: &mut Vec<ShardOutput>,
    ) -> Result<SessionId, Refusal> {
        if self.backups.get(record.group).is_some() {
            // It has won the claim, and no answer has said so.
            return refuse(Code::Waiting, CLAIMS);
        }
        let has_backup = holder.as_ref().is_some_and(|holder| holder.backup.is_some());
        if has_backup || self.groups.get(record.group).is_some() {
            return refuse(
                Code::Waiting,
                "this edge had the app's cell before it was started again: it is lost, unless its backup takes it",
            );
        }
        if self.drain.has_begun() {
            return refuse(Code::Busy, "the edge is shutting down");
        }
        self.begin_cell(now, wanted, (slot, Some((record, holder))), out)
    }

    /// No edge has the slot: puts a cell into a new group, which is claimed, and then takes the slot. It is opened when that is won. A cell
    /// that replaces a `lost` one comes into the group of that one, which has this claim.
    fn begin_cell(
        &mut self,
        now: Now,
        wanted: Wanted<'_>,
        (slot, lost): (SlotName, Option<(SlotRecord, Option<Claimed>)>),
        out: &mut Vec<ShardOutput>,
    ) -> Result<SessionId, Refusal> {
        let Some(kind) = self.group_kind(wanted.app, None) else {
            return refuse(Code::Waiting, "the app has no settings for epochs");
        };
        self.has_room(wanted.app)?;
        let (from, claim) = lost.unzip();
        let incarnation = self.random.bytes();
        let group = from.as_ref().map_or_else(|| self.random.bytes(), |from| from.group);
        let record = SlotRecord { incarnation, group };
        let target =
            self.target_for((SessionId(group), &kind), Some((&wanted.app.name, wanted.number())), |_| true);
        let version = wanted.app.version();
        self.groups.begin_slot(group, (kind, target, version), claim.flatten(), now.mono_ns);
        self.insert_cell(now, wanted, (record.cell(wanted.key), group), out)?;
        self.slots.begin_taking(slot, record, from);
        Err(Refusal::Held)
    }

    /// A cell that has not begun, in this group.
    fn insert_cell(
        &mut self,
        now: Now,
        wanted: Wanted<'_>,
        (cell, group): (SessionId, GroupId),
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), Refusal> {
        self.has_room(wanted.app)?;
        self.has_room_in_slot(group)?;
        let mut owner = self.new_owner(cell, wanted.app, &[]);
        owner.has_key(wanted.key.cloned());
        let mut session = Session::new(now, owner, self.tenants.place(wanted.app));
        session.fresh = true;
        self.sessions.insert(cell, session);
        self.groups.join(group, cell, now.mono_ns);
        // A slot's group stays while it is empty: policies may have changed since.
        self.follow_policies(group);
        self.tell_group(now, cell, group, out);
        self.place(now, cell, out);
        Ok(())
    }

    fn open_cell(&mut self, now: Now, cell: SessionId, out: &mut Vec<ShardOutput>) {
        self.sessions.recount(cell);
        self.attempt(now, cell, 0, &[], out);
    }

    /// This edge has claimed the group of cells that it backed. They go on, or begin if none of them has run, when the slot is known to name
    /// that group: another edge may have taken it, if they had not begun or the store has lost decisions. Those that were handed over had the
    /// slot, and go on at once.
    pub(super) fn slot_promoted(
        &mut self,
        now: Now,
        (group, was_handed_over): (GroupId, bool),
        out: &mut Vec<ShardOutput>,
    ) {
        let members = self.members_of(group);
        let Some(slot) = members.first().and_then(|cell| self.slot_of(*cell)) else { return };
        let has_run = members.iter().any(|cell| self.has_run(*cell));
        let record = SlotRecord { incarnation: self.random.bytes(), group };
        match self.slots.take_promoted(slot, record, has_run) {
            Promoted::Ask(query) => {
                ask([query], out);
                if was_handed_over && has_run {
                    self.slot_kept(now, group, out);
                }
            }
            Promoted::Waits => {}
            Promoted::Lost => self.slot_lost(now, (group, has_run), out),
        }
    }

    pub(super) fn members_of(&self, group: GroupId) -> Vec<SessionId> {
        self.groups.get(group).into_iter().flat_map(Group::members).collect()
    }

    /// Whether a cell that is here or was fed here has begun.
    pub(super) fn has_run(&self, cell: SessionId) -> bool {
        self.sessions.get(cell).is_some_and(|session| session.owner.log_bytes().0 > 0)
    }

    /// A claim on one of this shard's groups is won: then its slot may be taken, or given back if no backup can go on.
    pub(super) fn group_claimed(&mut self, group: GroupId, out: &mut Vec<ShardOutput>) {
        let may_go_on = self.groups.get(group).is_some_and(Group::names_backup);
        if may_go_on && self.slots.is_leaving(group) {
            return;
        }
        let query = self.slots.group_claimed(group);
        ask(query, out);
    }

    /// The coordinator's answer about a slot.
    pub(super) fn slot_answered(&mut self, now: Now, answer: SlotAnswer, out: &mut Vec<ShardOutput>) {
        self.held.slot_changed(answer.slot);
        if let Some(held) = &answer.held {
            self.resign_if_lost(now, held, out);
            self.drop_past(now, held, out);
        }
        let news = self.slots.answered(now.mono_ns, answer);
        self.slot_news(now, news, out);
    }

    /// A slot's claim names this edge as the backup, and its home shard, which asks, has no copy: a former life had it. The primary alone
    /// may go on; if that was started again as well, it learns from this that the cell is lost.
    fn resign_if_lost(&mut self, now: Now, held: &SlotHeld, out: &mut Vec<ShardOutput>) {
        let (group, Some(claim)) = (held.record.group, &held.holder) else { return };
        let is_named = claim.backup.as_ref() == Some(&self.config.edge) && claim.primary != self.config.edge;
        let is_own = self.groups.get(group).is_some();
        if !is_named || is_own || !self.backups.resigns(now.mono_ns, group, claim.generation) {
            return;
        }
        let text = format!(
            "this edge had the copy of a shared cell of `{}` before it was started again: it tells the coordinator that it has none",
            claim.primary
        );
        note(NoteLevel::Info, None, text, out);
        let (tag, from, to) = (self.groups.tag(), Some(claim.clone()), Some(claim.resigned()));
        out.push(ShardOutput::Control(FromShard::Claim(GroupClaim { tag, group, of_slot: true, from, to })));
    }

    /// The primary of a slot's group was refused here, and has lost this backup: if it has claimed the group since, what is here is of the past.
    fn drop_past(&mut self, now: Now, held: &SlotHeld, out: &mut Vec<ShardOutput>) {
        let group = held.record.group;
        if held.holder.as_ref().is_some_and(|holder| self.backups.is_past(group, holder)) {
            for id in self.backups.end(group) {
                self.drop_standby(now, id, out);
            }
        }
    }

    fn slot_news(&mut self, now: Now, news: Vec<SlotNews>, out: &mut Vec<ShardOutput>) {
        for news in news {
            if let SlotNews::Won { record, .. } = &news {
                self.groups_idle.insert(record.group);
            }
            match news {
                SlotNews::Won { record, has_run: true, .. } => self.slot_kept(now, record.group, out),
                SlotNews::Won { record, was_lost, .. } => {
                    if was_lost {
                        self.lost_one_replaced(record.group, out);
                    }
                    self.slot_won(now, &record, out);
                }
                SlotNews::Lost { group, has_run, .. } => self.slot_lost(now, (group, has_run), out),
                SlotNews::Unanswered { slot, why } => {
                    let text = format!(
                        "clients of a shared cell wait: the coordinator does not say where it is: {why}"
                    );
                    note(NoteLevel::Warning, None, text, out);
                    let held = self.held.take_slot(slot);
                    self.reject_held(now, held, &why, out);
                }
            }
        }
    }

    /// Another group has the slot: the cell of this one is dropped. If it has run, the coordinator's store had lost the slot, and another
    /// edge took it before this one was back. The clients begin again there.
    fn slot_lost(&mut self, now: Now, (group, has_run): (GroupId, bool), out: &mut Vec<ShardOutput>) {
        for cell in self.members_of(group) {
            if !has_run || !self.has_run(cell) {
                let reason = "another edge has taken the app's slot".to_string();
                self.with_owner(now, cell, out, |owner, effects| {
                    owner.step_down(Code::Superseded, reason, effects);
                });
                continue;
            }
            let reason = "the coordinator's store had lost where the app's cell was, and another edge has begun a new one: this one ends";
            self.cell_lost(cell, reason, out);
            let is_copy = self.sessions.is_following(cell);
            self.with_owner(now, cell, out, |owner, effects| match is_copy {
                true => owner.step_down(Code::Lost, reason.to_string(), effects),
                false => owner.terminate(Code::Lost, reason.to_string(), effects),
            });
        }
    }

    /// Another edge has claimed this group, and its record was removed since: what is here is older than what clients may have received. The
    /// group is this edge's again, and empty, so it is removed as others are.
    pub(super) fn replaced_meanwhile(&mut self, now: Now, group: GroupId, out: &mut Vec<ShardOutput>) {
        self.slot_gone(now, group);
        for cell in self.members_of(group) {
            let reason = "while its edge was away, another one went on with it, and that one's copy is gone: clients begin again";
            self.cell_lost(cell, reason, out);
            self.with_owner(now, cell, out, |owner, effects| {
                owner.terminate(Code::Lost, reason.to_string(), effects);
            });
        }
    }

    /// A cell that was lost is replaced by one in this group.
    fn lost_one_replaced(&mut self, group: GroupId, out: &mut Vec<ShardOutput>) {
        let member = self.groups.get(group).and_then(|group| group.members().next());
        let reason = "its edge had no backup and was started again, or an operator has given it up: a new cell begins here";
        if let Some(cell) = member {
            self.cell_lost(cell, reason, out);
        }
    }

    /// Operators are told that the state of an app's cell is lost.
    fn cell_lost(&mut self, cell: SessionId, why: &str, out: &mut Vec<ShardOutput>) {
        self.counters.cells_lost += 1;
        let app = self.sessions.get(cell).map(|session| session.app().to_string()).unwrap_or_default();
        note(NoteLevel::Warning, None, format!("the shared cell of app `{app}` is lost: {why}"), out);
    }

    /// The slot is still this edge's: its cells go on. Those that were fed here are promoted now. One that has not begun is dropped: its
    /// primary has released nothing of it, so its clients begin it.
    fn slot_kept(&mut self, now: Now, group: GroupId, out: &mut Vec<ShardOutput>) {
        for cell in self.members_of(group) {
            if !self.sessions.is_following(cell) {
                continue;
            }
            let has_run = self.has_run(cell);
            self.with_owner(now, cell, out, |owner, effects| {
                if has_run {
                    owner.promote(now, effects);
                } else {
                    owner.step_down(Code::Superseded, "the cell begins here".to_string(), effects);
                }
            });
        }
    }

    /// The slot is this edge's: its cells begin.
    fn slot_won(&mut self, now: Now, record: &SlotRecord, out: &mut Vec<ShardOutput>) {
        for member in self.members_of(record.group) {
            let Some(session) = self.sessions.get(member) else { continue };
            let key = session.owner.key().cloned();
            let cell = record.cell(key.as_ref());
            if session.is_following() || member != cell {
                // What was fed here has not begun.
                let app = self.apps.of_image_of(&session.owner).cloned();
                self.with_owner(now, member, out, |owner, effects| {
                    owner.step_down(Code::Superseded, "the cell begins here".to_string(), effects);
                });
                let Some(app) = app else { continue };
                let wanted = Wanted { app: &app, key: key.as_ref() };
                if self.insert_cell(now, wanted, (cell, record.group), out).is_err() {
                    continue;
                }
            }
            self.open_cell(now, cell, out);
        }
    }

    /// Clients that wait for a cell ask elsewhere.
    pub(super) fn reject_held(
        &mut self,
        now: Now,
        held: Vec<(ShardWireId, Hello)>,
        why: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        for (wire, hello) in held {
            let reason = format!("the coordinator does not say where the app's cell is: {why}");
            self.answer_hello(now, wire, &hello, refuse(Code::Waiting, reason), out);
        }
    }

    /// A group is gone: its slot is not this edge's any more, as far as is known.
    pub(super) fn slot_gone(&mut self, now: Now, group: GroupId) {
        let slot = self.slots.group_gone(now.mono_ns, group);
        slot.into_iter().for_each(|slot| self.held.slot_changed(slot));
    }

    /// Clients that wait for a cell look again, if something of it has changed.
    pub(super) fn held_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for (wire, hello) in self.held.take_changed() {
            let tried = self.try_hello(now, wire, &hello, true, out);
            self.answer_hello(now, wire, &hello, tried, out);
        }
    }

    /// The cells of a version that no new client gets end when their last client has left, and their slot is given back: else the store
    /// would keep it for ever.
    fn retire_cells(&mut self, now: Now, group: GroupId, out: &mut Vec<ShardOutput>) {
        let version = self.groups.get(group).and_then(|group| group.version.as_ref());
        let is_former = version.is_some_and(|it| self.apps.image(&it.app) != Some(it.image));
        let Some(slot) = self.slots.own_of(group).filter(|_| is_former) else { return };
        let cells = self.members_of(group);
        let is_needed = |cell: &SessionId| {
            self.sessions.get(*cell).is_none_or(|session| {
                let owner = &session.owner;
                let owes = owner.owed_to_servers().is_some() && !self.sessions.is_over(now.mono_ns, *cell);
                owner.phase() != OwnerPhase::Running || owner.client_count() > 0 || owes
            })
        };
        if cells.iter().any(is_needed) {
            return;
        }
        for cell in cells {
            self.tell_of_full_servers(cell, out);
            self.with_owner(now, cell, out, |owner, effects| {
                let reason = "another version of the app is deployed, or none, and the last client has left";
                owner.terminate(Code::Finished, reason.to_string(), effects);
            });
        }
        self.slots.remove(slot);
        if let Some(group) = self.groups.get_mut(group) {
            group.lose_target(now.mono_ns);
            group.renew();
        }
    }

    /// Everything that is due of slots.
    pub(super) fn slots_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        // A client that waits for its cell is none of the cell's yet.
        self.cells_over(now);
        if self.held.is_empty() {
            for group in core::mem::take(&mut self.groups_idle) {
                self.retire_cells(now, group, out);
            }
        }
        ask(self.slots.due(now.mono_ns), out);
        for cell in self.backups.unclaimed_slots(now.mono_ns) {
            self.ask_whose(now, cell, out);
        }
    }
}
