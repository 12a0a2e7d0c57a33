//! Replication groups of which this shard is the backup (docs/protocol-epochs.md): what it may claim, and which ends have asked.

use super::{asked::AskedClaim, sessions::At};
use crate::{api::ShardWireId, coordinator::contents::Claimed};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{
    frame::GroupId,
    id::{Generation, SessionId},
};

const MS: u64 = 1_000_000;
/// An end that asked within this time waits for the session.
const ASKED_NS: u64 = 2_000 * MS;
/// A shared cell goes on without its primary after this time even if no end asks: its timers run, and its state is nowhere else.
const UNASKED_NS: u64 = 2_000 * MS;
/// A primary that has ended a cell begins the next one under the same claim within this time, or this edge resigns from it.
const FED_AGAIN_NS: u64 = 10_000 * MS;
/// Claims on slots' groups that are remembered, of each kind: as many as a shard has slots.
const RESIGNED_MAX: usize = super::slots::SLOTS_MAX;
/// Groups that this edge has won are remembered, while the wire to their former primary is up.
const WON_MAX: usize = RESIGNED_MAX;
/// A primary is asked so often to hand one session over.
const HAND_OVER_AGAIN_NS: u64 = 200 * MS;

/// The connection to a group's primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Feeder {
    Connected(ShardWireId),
    /// It has been silent for too long.
    Suspected(ShardWireId),
    Lost,
}

/// One group.
#[derive(Debug)]
pub(crate) struct BackedGroup {
    pub(crate) primary: String,
    feeder: Feeder,
    /// Whether this edge has not gone on with a copy as its primary has asked: that has lost this backup, and claims the group. While it lives,
    /// this edge does not.
    is_refused: bool,
    /// It was told so over this wire, at this time. What it sends until that has arrived is for the backup that it had: no feed under a newer
    /// claim.
    told_refused: Option<(ShardWireId, u64)>,
    /// The claim of the primary that names this edge; none if it has announced none.
    pub(crate) record: Option<Claimed>,
    /// What the store has instead of that claim: none, if it has lost it and an operator has accepted that, or an older one of the primary,
    /// whose claim has not arrived. Then the first to claim from that has the group.
    instead: Option<Option<Claimed>>,
    sessions: BTreeSet<SessionId>,
    /// Those of them that its primary has not fed since it began to feed this edge again.
    former: BTreeSet<SessionId>,
    /// Whether it is a slot's: then it is claimed even if no end asks.
    pub(crate) is_slot: bool,
    /// Since when the primary is lost or suspected, or is refused, or a claim came too early.
    gone_since_ns: Option<u64>,
    /// Whether the primary has handed it over: it begins nothing more until a claim is decided.
    handed_over: bool,
    /// Whether the backup that the record names is another edge, which stays the backup: it was handed over to this one beside that.
    is_heir: bool,
    /// Sessions that the primary, which has claimed it from the one that fed them, is to go on with here under the claim that is `record`.
    awaited: BTreeSet<SessionId>,
    /// When an end asked last.
    asked_by_end_ns: Option<u64>,
    asked: Option<AskedClaim<Claimed>>,
}

impl BackedGroup {
    /// Whether an end waits for one of its sessions, and the primary cannot be asked.
    fn must_claim(&self, now_ns: u64) -> bool {
        let is_asked = self.asked_by_end_ns.is_some_and(|asked_ns| now_ns < asked_ns + ASKED_NS);
        // An edge that has just claimed it says so soon, if it lives.
        let is_wanted = is_asked && self.awaited.is_empty();
        let is_late = self.unasked_ns().is_some_and(|unasked_ns| unasked_ns <= now_ns);
        let is_lost = (is_wanted || is_late) && !matches!(self.feeder, Feeder::Connected(_));
        (is_lost || self.handed_over) && self.record.is_some()
    }

    /// When it is wanted without any end that asks.
    fn unasked_ns(&self) -> Option<u64> {
        self.gone_since_ns.filter(|_| self.is_slot).map(|since_ns| since_ns + UNASKED_NS)
    }

    /// Whether its primary has handed it over.
    pub(crate) fn was_handed_over(&self) -> bool {
        self.handed_over
    }

    /// Whether its primary feeds it over this wire.
    pub(crate) fn is_fed_by(&self, wire: ShardWireId) -> bool {
        self.feeder == Feeder::Connected(wire) && !self.is_refused
    }

    /// A claim is announced over this wire. If it is that of the next primary, of which only the store has told, that one lives, and is
    /// connected from now on. A claim of this edge that is asked for stays so: it may be written already.
    fn hears_heir(&mut self, wire: ShardWireId, record: &Claimed) {
        let is_awaited = self.feeder == Feeder::Lost && !self.is_refused && !self.awaited.is_empty();
        if is_awaited && self.record.as_ref() == Some(record) {
            (self.feeder, self.gone_since_ns) = (Feeder::Connected(wire), None);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.sessions.iter().copied().collect()
    }
}

/// A claim on a slot's group that names this edge, as its primary has announced it.
#[derive(Debug)]
struct Told {
    claim: Generation,
    wire: ShardWireId,
    /// Since when an answer of the coordinator has found no copy here.
    lacks_since_ns: Option<u64>,
}

/// All groups of which this shard is the backup.
#[derive(Debug, Default)]
pub(crate) struct Backups {
    by_name: BTreeMap<GroupId, BackedGroup>,
    of_session: BTreeMap<SessionId, GroupId>,
    /// When the primary was last asked for a session.
    handing_ns: BTreeMap<SessionId, u64>,
    /// The last claims on slots' groups that were announced to this shard, on wires that are up.
    told: BTreeMap<GroupId, Told>,
    /// Wires that are silent, and feed some of the groups.
    suspected: BTreeSet<ShardWireId>,
    /// Claims on slots' groups from which it has resigned.
    resigned: BTreeMap<GroupId, Generation>,
    /// Groups of which this edge has won the claim, by what was their primary then.
    won: BTreeMap<GroupId, FormerPrimary>,
}

/// The primary of a group that this edge has claimed from it. It may not know that, whether or not the group is still here: what it ends
/// under its former claim is not confirmed.
#[derive(Debug)]
struct FormerPrimary {
    wire: ShardWireId,
    /// When it was told that this edge is no backup of the group. What it sends behind that is of a later claim.
    told_ns: Option<u64>,
}

/// What an end that asks for a session may be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum AskedFor {
    /// Its primary is to be asked, over this wire: now, or it was just before.
    Primary { wire: ShardWireId, now: bool },
    /// The group must be claimed first.
    Claim,
    /// No claim ever named this edge: what it has is what any edge would begin with.
    Unclaimed,
}

impl Backups {
    pub(crate) fn get(&self, name: GroupId) -> Option<&BackedGroup> {
        self.by_name.get(&name)
    }

    /// Whether the group of a session is being claimed.
    pub(crate) fn is_claiming(&self, session: SessionId) -> bool {
        let group = self.of_session.get(&session).and_then(|name| self.by_name.get(name));
        group.is_some_and(|group| group.asked.is_some())
    }

    /// The primary of a session's group hands it over: it is claimed.
    pub(crate) fn hand_over(&mut self, session: SessionId) {
        let group = self.of_session.get(&session).and_then(|name| self.by_name.get_mut(name));
        let may_hand =
            |group: &&mut BackedGroup| matches!(group.feeder, Feeder::Connected(_)) && !group.is_refused;
        if let Some(group) = group.filter(may_hand) {
            group.handed_over = true;
        }
    }

    /// The primary of a group, which has this claim, hands it over to this edge beside its backup: it is claimed, and that one stays its backup.
    pub(crate) fn handed(&mut self, name: GroupId, wire: ShardWireId, record: Claimed) {
        let group = self.by_name.get_mut(&name).filter(|group| group.is_fed_by(wire));
        if let Some(group) = group.filter(|group| group.is_slot && group.record.is_none()) {
            (group.record, group.handed_over, group.is_heir) = (Some(record), true, true);
        }
    }

    /// Whether this edge is to go on with a group beside its backup: only from the claim of which it was told.
    pub(crate) fn is_heir(&self, name: GroupId) -> bool {
        self.by_name.get(&name).is_some_and(|group| group.is_heir)
    }

    /// Another edge has claimed the group from its primary, and names this one, whose copies are those of that claim: it is the primary from
    /// now on, connected over this wire, or lost until it says so. Returns the sessions that the former one fed here. None if it is not so.
    ///
    /// Everything that has left is here **\[M\]**: the former primary has released nothing since it has handed the group over, and the next one
    /// releases only what this edge confirms. It announces this claim when it is written. The claim itself says that it follows the record that
    /// this edge knows: what it knows may have been announced and never written, and then another claim of the same count may have been.
    pub(crate) fn has_heir(
        &mut self,
        now_ns: u64,
        name: GroupId,
        (claim, wire): (&Claimed, Option<ShardWireId>),
    ) -> Option<Vec<SessionId>> {
        let group = self.by_name.get_mut(&name)?;
        let record = group.record.as_ref().filter(|_| !group.is_heir)?;
        // Any other claim was written while this edge was not the backup, or without the word of its primary.
        if claim.primary == group.primary || *claim != record.handed_to(&claim.primary) {
            return None;
        }
        if group.sessions.is_empty() {
            // All have ended here while this edge claimed the group.
            self.by_name.remove(&name);
            return Some(Vec::new());
        }
        (group.primary, group.record, group.instead) = (claim.primary.clone(), Some(claim.clone()), None);
        (group.feeder, group.gone_since_ns) = match wire {
            Some(wire) => (Feeder::Connected(wire), None),
            None => (Feeder::Lost, Some(now_ns)),
        };
        // A claim of this edge that is not answered is lost to that one.
        (group.asked, group.asked_by_end_ns, group.awaited) = (None, None, group.sessions.clone());
        (group.handed_over, group.is_refused, group.told_refused) = (false, false, None);
        Some(group.sessions())
    }

    /// Whether the primary at the other end of this wire may go on with what the one before has fed of a session. It has said that the group
    /// is its own, and this edge does not claim it: what it confirms it would have to go on with, and its own claim may be written.
    pub(crate) fn may_continue(&self, name: GroupId, wire: ShardWireId, session: SessionId) -> bool {
        let group = self.by_name.get(&name).filter(|group| group.is_fed_by(wire));
        group.is_some_and(|group| group.asked.is_none() && group.awaited.contains(&session))
    }

    /// The primary goes on with this session here.
    pub(crate) fn continued(&mut self, name: GroupId, session: SessionId) {
        if let Some(group) = self.by_name.get_mut(&name) {
            group.awaited.remove(&session);
        }
    }

    /// The primary was to go on with a session here, and cannot: it has lost this backup. The copies stay until the store says that it has
    /// claimed the group since, or it is lost.
    pub(crate) fn not_continued(&mut self, now_ns: u64, name: GroupId, wire: ShardWireId) {
        if let Some(group) = self.by_name.get_mut(&name).filter(|group| group.is_fed_by(wire)) {
            (group.is_refused, group.told_refused) = (true, Some((wire, now_ns)));
            group.gone_since_ns = Some(now_ns);
        }
    }

    /// Whether the primary at the other end of this wire may not know yet that it has lost this backup of the group.
    pub(crate) fn is_refused(&self, name: GroupId, wire: ShardWireId) -> bool {
        let group = self.by_name.get(&name);
        group.is_some_and(|group| group.told_refused.is_some_and(|(at, _)| at == wire))
    }

    /// Whether this record of the store says that the copies of a group are of the past: its primary, which was refused, has claimed it since,
    /// without this backup.
    pub(crate) fn is_past(&self, name: GroupId, holder: &Claimed) -> bool {
        let group = self.by_name.get(&name).filter(|group| group.is_refused && group.asked.is_none());
        let record = group.and_then(|group| group.record.as_ref());
        record.is_some_and(|record| {
            holder.generation.count > record.generation.count && holder.backup != record.backup
        })
    }

    /// The primary of a group feeds it no more, since another edge has claimed it: which one, the store knows.
    pub(crate) fn primary_left(&mut self, now_ns: u64, name: GroupId) {
        if let Some(group) = self.by_name.get_mut(&name) {
            group.feeder = Feeder::Lost;
            group.gone_since_ns.get_or_insert(now_ns);
        }
    }

    /// Whether the next primary of a group is to go on with this session here, and has not said so yet.
    pub(crate) fn is_awaited(&self, session: SessionId) -> bool {
        let group = self.of_session.get(&session).and_then(|name| self.by_name.get(name));
        group.is_some_and(|group| group.awaited.contains(&session))
    }

    /// Whether the primary has handed over the group of a session, which is being claimed.
    pub(crate) fn was_handed_over(&self, session: SessionId) -> bool {
        let group = self.of_session.get(&session).and_then(|name| self.by_name.get(name));
        group.is_some_and(BackedGroup::was_handed_over)
    }

    /// Whether this edge may claim the group of a session: the primary has announced that its claim names it.
    pub(crate) fn may_claim(&self, session: SessionId) -> bool {
        let group = self.of_session.get(&session).and_then(|name| self.by_name.get(name));
        group.is_some_and(|group| group.record.is_some())
    }

    /// The group of a session that is fed here.
    pub(crate) fn of_session(&self, session: SessionId) -> Option<GroupId> {
        self.of_session.get(&session).copied()
    }

    /// The group is a slot's.
    pub(crate) fn is_slot(&mut self, name: GroupId) {
        if let Some(group) = self.by_name.get_mut(&name) {
            group.is_slot = true;
        }
    }

    /// Slots' groups that have lost their primary, which has announced no claim that names this edge, and those whose primary was refused: the
    /// store knows whether there is one. Returns a session of each; each is returned every [`UNASKED_NS`].
    pub(crate) fn unclaimed_slots(&mut self, now_ns: u64) -> Vec<SessionId> {
        let mut found = Vec::new();
        let is_refused = |group: &BackedGroup| {
            group.is_refused && group.asked.is_none() && matches!(group.feeder, Feeder::Connected(_))
        };
        let of_store = |group: &&mut BackedGroup| group.record.is_none() || is_refused(group);
        for group in self.by_name.values_mut().filter(of_store) {
            if group.unasked_ns().is_some_and(|unasked_ns| unasked_ns <= now_ns) {
                group.gone_since_ns = Some(now_ns);
                found.extend(group.sessions.first());
            }
        }
        found
    }

    /// The store has a claim on this group that names this edge, which its primary had no time to announce. It names this edge for what it
    /// has fed since it was not its backup: returns the other sessions, which have ended there meanwhile.
    pub(crate) fn found(&mut self, name: GroupId, record: &Claimed) -> Vec<SessionId> {
        if let Some(group) = self.by_name.get_mut(&name)
            && !matches!(group.feeder, Feeder::Connected(_))
            && group.record.is_none()
        {
            group.record = Some(record.clone());
            return group.former.iter().copied().collect();
        }
        Vec::new()
    }

    /// A session of a group is fed here from now on.
    pub(crate) fn join(&mut self, name: GroupId, (wire, primary): (ShardWireId, &str), session: SessionId) {
        self.leave(session);
        let group = self.by_name.entry(name).or_insert_with(|| BackedGroup {
            primary: primary.into(),
            feeder: Feeder::Connected(wire),
            is_refused: false,
            told_refused: None,
            record: None,
            instead: None,
            sessions: BTreeSet::new(),
            former: BTreeSet::new(),
            is_slot: false,
            gone_since_ns: None,
            handed_over: false,
            is_heir: false,
            awaited: BTreeSet::new(),
            asked_by_end_ns: None,
            asked: None,
        });
        if !group.is_fed_by(wire) || group.handed_over {
            // What was announced before was for what it had then. Its primary has claimed the group since: a claim of this edge that is not
            // answered yet is lost.
            (group.feeder, group.record, group.asked) = (Feeder::Connected(wire), None, None);
            (group.primary, group.instead) = (primary.into(), None);
            (group.is_refused, group.told_refused) = (false, None);
            (group.gone_since_ns, group.handed_over, group.is_heir) = (None, false, false);
            group.former.clone_from(&group.sessions);
            group.awaited.clear();
        }
        group.awaited.remove(&session);
        group.sessions.insert(session);
        self.of_session.insert(session, name);
    }

    /// A session is not kept here any more.
    pub(crate) fn leave(&mut self, session: SessionId) {
        self.handing_ns.remove(&session);
        let Some(name) = self.of_session.remove(&session) else { return };
        if let Some(group) = self.by_name.get_mut(&name) {
            group.sessions.remove(&session);
            group.former.remove(&session);
            group.awaited.remove(&session);
            if group.is_heir && group.asked.is_none() {
                // It is to go on with all or none: its primary is told that one is lost, and has all.
                (group.record, group.handed_over, group.is_heir) = (None, false, false);
            }
            if group.sessions.is_empty() && group.asked.is_none() {
                self.by_name.remove(&name);
            }
        }
    }

    /// The group is this edge's own: it has won the claim. Returns the sessions that were fed here.
    pub(crate) fn won(&mut self, name: GroupId) -> Vec<SessionId> {
        let group = self.by_name.get(&name);
        let former = group.and_then(|group| match group.feeder {
            Feeder::Connected(wire) | Feeder::Suspected(wire) => {
                let told_ns = group.told_refused.map(|(_, told_ns)| told_ns);
                let knows = group.is_refused && told_ns.is_none();
                (!knows).then_some(FormerPrimary { wire, told_ns })
            }
            Feeder::Lost => None,
        });
        self.won.extend(former.map(|former| (name, former)));
        if self.won.len() > WON_MAX {
            self.won.pop_first();
        }
        self.end(name)
    }

    /// Whether this wire leads to a former primary of the group, which may not know that.
    pub(crate) fn is_former(&self, name: GroupId, wire: ShardWireId) -> bool {
        self.won.get(&name).is_some_and(|former| former.wire == wire)
    }

    /// A former primary of the group is told so, if it may not know that. Returns the sessions that it feeds, which are to be refused.
    pub(crate) fn tells_former(&mut self, now_ns: u64, name: GroupId) -> Vec<SessionId> {
        let Some(former) = self.won.get_mut(&name) else { return Vec::new() };
        let group = self.by_name.get(&name).filter(|group| group.is_fed_by(former.wire));
        let sessions = group.map(BackedGroup::sessions).unwrap_or_default();
        if !sessions.is_empty() {
            former.told_ns.get_or_insert(now_ns);
        }
        sessions
    }

    /// What left this edge on a wire up to here has arrived.
    pub(crate) fn arrived(&mut self, wire: ShardWireId, sent_ns: u64) {
        let knows = |former: &FormerPrimary| former.told_ns.is_some_and(|told_ns| told_ns < sent_ns);
        self.won.retain(|_, former| former.wire != wire || !knows(former));
        for group in self.by_name.values_mut() {
            group.told_refused.take_if(|(at, told_ns)| *at == wire && *told_ns < sent_ns);
        }
    }

    /// A later claim than this edge's has been written: its primary knows of this edge's.
    pub(crate) fn was_claimed_since(&mut self, name: GroupId) {
        self.won.remove(&name);
    }

    /// The group is this edge's own, or another one's. Returns the sessions that were fed here.
    pub(crate) fn end(&mut self, name: GroupId) -> Vec<SessionId> {
        let Some(group) = self.by_name.remove(&name) else { return Vec::new() };
        for session in &group.sessions {
            self.of_session.remove(session);
            self.handing_ns.remove(session);
        }
        group.sessions()
    }

    /// Its primary announces a claim that names this edge. Returns the sessions that are to be refused: those of a claim from which this
    /// edge has resigned, since what it was fed under that was still on its way. It could not go on with them.
    pub(crate) fn announced(&mut self, name: GroupId, wire: ShardWireId, record: Claimed) -> Vec<SessionId> {
        let Some(group) = self.by_name.get_mut(&name) else { return Vec::new() };
        group.hears_heir(wire, &record);
        if !group.is_fed_by(wire) {
            return Vec::new();
        }
        if self.resigned.get(&name) == Some(&record.generation) {
            return group.sessions();
        }
        self.resigned.remove(&name);
        if group.is_slot {
            let told = Told { claim: record.generation, wire, lacks_since_ns: None };
            self.told.insert(name, told);
        }
        if group.record.as_ref().is_some_and(|known| known.generation != record.generation) {
            // What its primary has not gone on with under its first claim, it does not have.
            group.awaited.clear();
        }
        // The store may have had none because its primary's claim was on the way.
        (group.record, group.instead) = (Some(record), None);
        if self.told.len() > RESIGNED_MAX {
            // To resign from such a claim is of no use, and does no harm.
            self.told.pop_first();
        }
        Vec::new()
    }

    /// The store's claim on a slot's group names this edge. True if it has no copy and gets none under that claim, as far as it knows: then
    /// it resigns, and the claim is remembered. A connected primary that has announced the claim here may begin another cell under it: that
    /// is waited for.
    pub(crate) fn resigns(&mut self, now_ns: u64, name: GroupId, claim: Generation) -> bool {
        let told = self.told.get_mut(&name).filter(|told| told.claim == claim);
        let is_awaited = told.is_some_and(|told| {
            let since_ns = *told.lacks_since_ns.get_or_insert(now_ns);
            now_ns < since_ns.saturating_add(FED_AGAIN_NS)
        });
        let is_known = self.by_name.contains_key(&name) || is_awaited;
        let has_room = self.resigned.len() < RESIGNED_MAX || self.resigned.contains_key(&name);
        let resigns = !is_known && has_room;
        if resigns {
            self.resigned.insert(name, claim);
        }
        resigns
    }

    /// Whether an epoch of this group that ended on this wire may be confirmed: it is not being claimed, so that its primary will not
    /// release more than this edge goes on with.
    pub(crate) fn may_confirm(&self, name: GroupId, wire: ShardWireId) -> bool {
        let group = self.by_name.get(&name);
        !self.is_former(name, wire)
            && group.is_none_or(|group| group.asked.is_none() && group.is_fed_by(wire))
    }

    /// A frame has come on this wire: its primary is alive.
    pub(crate) fn heard(&mut self, wire: ShardWireId) {
        // Most frames come on wires that were not silent.
        if !self.suspected.remove(&wire) {
            return;
        }
        for group in self.by_name.values_mut().filter(|group| group.feeder == Feeder::Suspected(wire)) {
            // The store is asked again about one that was refused.
            group.gone_since_ns.take_if(|_| !group.is_refused);
            group.feeder = Feeder::Connected(wire);
        }
    }

    /// This wire is silent.
    pub(crate) fn suspect(&mut self, now_ns: u64, wire: ShardWireId) {
        for group in self.by_name.values_mut().filter(|group| group.feeder == Feeder::Connected(wire)) {
            group.feeder = Feeder::Suspected(wire);
            group.gone_since_ns = Some(now_ns);
            self.suspected.insert(wire);
        }
    }

    /// This wire is gone.
    pub(crate) fn lost(&mut self, now_ns: u64, wire: ShardWireId) {
        self.told.retain(|_, told| told.wire != wire);
        // Its primary has lost this backup, too.
        self.won.retain(|_, former| former.wire != wire);
        self.suspected.remove(&wire);
        let over = |feeder| match feeder {
            Feeder::Connected(at) | Feeder::Suspected(at) => at == wire,
            Feeder::Lost => false,
        };
        for group in self.by_name.values_mut().filter(|group| over(group.feeder)) {
            // If it was refused, it has lived until now.
            group.gone_since_ns.take_if(|_| matches!(group.feeder, Feeder::Connected(_)));
            group.gone_since_ns.get_or_insert(now_ns);
            (group.feeder, group.told_refused) = (Feeder::Lost, None);
        }
    }

    /// Whether this shard backs a session.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.of_session.contains_key(&session)
    }

    /// An end asks for a session.
    pub(crate) fn asked(&mut self, now_ns: u64, session: SessionId) -> Option<AskedFor> {
        let group = self.by_name.get_mut(self.of_session.get(&session)?)?;
        group.asked_by_end_ns = Some(now_ns);
        Some(match group.feeder {
            Feeder::Connected(wire) if !group.handed_over => {
                let last_ns = self.handing_ns.get(&session).copied();
                let now = last_ns.is_none_or(|last_ns| now_ns >= last_ns + HAND_OVER_AGAIN_NS);
                if now {
                    self.handing_ns.insert(session, now_ns);
                }
                AskedFor::Primary { wire, now }
            }
            _ if group.record.is_none() => AskedFor::Unclaimed,
            _ => AskedFor::Claim,
        })
    }

    /// Claims to ask for now: the group, and what it is claimed from and to. `tag` gives tags.
    pub(crate) fn claims(
        &mut self,
        now_ns: u64,
        edge: &str,
        mut tag: impl FnMut() -> (u64, u64),
    ) -> Vec<(GroupId, u64, Option<Claimed>, Claimed)> {
        let mut claims = Vec::new();
        for (name, group) in &mut self.by_name {
            let must_claim = group.must_claim(now_ns);
            let Some(from) = &group.record else { continue };
            let (asked, tag) = match &mut group.asked {
                Some(asked) if asked.is_due(now_ns) => {
                    let (tag, _) = tag();
                    asked.ask_again(tag);
                    (asked, tag)
                }
                asked @ None if must_claim => {
                    let (tag, opener) = tag();
                    let generation = Generation { count: from.generation.count.saturating_add(1), opener };
                    let alone = Claimed { generation, primary: edge.into(), backup: None };
                    let to = if group.is_heir { from.handed_to(edge) } else { alone };
                    (asked.insert(AskedClaim::new(tag, to)), tag)
                }
                _ => continue,
            };
            let from = group.instead.clone().unwrap_or_else(|| Some(from.clone()));
            claims.push((*name, tag, from, asked.to.clone()));
        }
        claims
    }

    /// The group that waits for the answer with this tag, and what it claimed.
    pub(crate) fn of_tag(&self, tag: u64) -> Option<(GroupId, Claimed)> {
        let asked = |group: &BackedGroup| group.asked.clone().filter(|asked| asked.has_tag(tag));
        self.by_name.iter().find_map(|(name, group)| asked(group).map(|asked| (*name, asked.to)))
    }

    /// The store has no record of a group.
    pub(crate) fn forgotten(&mut self, name: GroupId) {
        if let Some(group) = self.by_name.get_mut(&name) {
            (group.instead, group.asked) = (Some(None), None);
            if group.sessions.is_empty() {
                self.by_name.remove(&name);
            }
        }
    }

    /// The store has another record than the one that was claimed from. True if this edge may still claim: the primary's claim which it has
    /// announced has not arrived, or has arrived just now.
    ///
    /// While the store has an older record of the primary that names no other backup, everything that has left is here: the primary announces
    /// this edge when that is so, and releases nothing that is not confirmed here until it knows that its claim is decided. Of its claim
    /// and that of this edge, both from the older record, one is lost.
    ///
    /// The same holds for the record that follows, if it names the same two edges: the primary has claimed again what it had, and this edge
    /// has not heard of that. No other claim was between them, so the primary never ran alone or with another backup.
    pub(crate) fn may_claim_from(&mut self, now_ns: u64, name: GroupId, holder: &Claimed) -> bool {
        let Some(group) = self.by_name.get_mut(&name) else { return false };
        let Some(record) = group.record.as_ref().filter(|_| !group.is_heir) else { return false };
        let is_older = holder.generation.count < record.generation.count;
        let has_arrived = holder == record;
        // Also if the primary claims again what it has, before its backup is handed the group.
        let names_no_other = holder.backup.is_none() || holder.backup == record.backup;
        let is_primarys = holder.primary == group.primary && names_no_other;
        let follows = record.generation.count.checked_add(1) == Some(holder.generation.count);
        let is_renewed = follows && is_primarys && holder.backup.is_some();
        // The primary was to change its backup, and the former one has resigned from the record before.
        let is_as_high = holder.generation.count == record.generation.count && holder != record;
        let has_resigned = is_as_high && is_primarys && holder.backup.is_none();
        if !is_older && !has_arrived && !is_renewed && !has_resigned {
            return false;
        }
        group.asked = None;
        if has_arrived {
            group.instead = None;
        } else if is_primarys {
            group.instead = Some(Some(holder.clone()));
        } else {
            // It was put back. The next question comes later.
            (group.asked_by_end_ns, group.handed_over) = (None, false);
            group.gone_since_ns.iter_mut().for_each(|since_ns| *since_ns = now_ns);
        }
        if group.sessions.is_empty() {
            self.by_name.remove(&name);
        }
        true
    }

    /// It is not known whether that claim was written.
    pub(crate) fn unanswered(&mut self, now_ns: u64, name: GroupId) {
        if let Some(asked) = self.by_name.get_mut(&name).and_then(|group| group.asked.as_mut()) {
            asked.unanswered(now_ns);
        }
    }

    /// When something is due.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let again = self.by_name.values().filter_map(|group| group.asked.as_ref()?.again_ns());
        let unasked = self.by_name.values().filter(|group| group.asked.is_none());
        again.chain(unasked.filter_map(BackedGroup::unasked_ns)).min()
    }

    /// Checks I51 of docs/protocol.md, as far as it concerns backups.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (session, name) in &self.of_session {
            holds!("I51", self.by_name.get(name).is_some_and(|group| group.sessions.contains(session)));
        }
        for group in self.by_name.values() {
            holds!("I51", !group.sessions.is_empty() || group.asked.is_some());
            holds!("I51", group.asked.is_none() || group.record.is_some());
            holds!("I51", group.former.is_subset(&group.sessions));
            let is_fed = matches!(group.feeder, Feeder::Connected(_)) && !group.is_refused;
            holds!("I51", group.gone_since_ns.is_some() != is_fed);
            holds!("I51", group.told_refused.is_none() || group.is_refused);
        }
        Ok(())
    }
}

/// Of a feed: its wire.
pub(crate) fn wire_of(at: Option<At>) -> Option<ShardWireId> {
    at.map(|(wire, _)| wire)
}

#[cfg(test)]
mod tests;
