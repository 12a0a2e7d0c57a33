//! The sessions of a shard, with the tables that must agree with them: timers, cells, the number of recoveries and the
//! replay budget (I36 and I43 of docs/protocol.md). What relates sessions to wires, keepers or tenants is the shard's own business.

use super::{
    clients::CellClients,
    links::Links,
    moves::Move,
    placing::Placing,
    replay::{ReplayBudget, ReplayCount},
    unneeded::UnneededCopy,
};
use crate::{
    api::{Now, SchedulingParams, ShardWireId},
    traffic::TrafficMeter,
};
use alloc::{
    boxed::Box,
    collections::{BTreeMap, BTreeSet},
    vec::Vec,
};
use core::ops::Bound::{Excluded, Unbounded};
use marram_session::{
    agent::Target,
    budget::{Budget, BudgetChange, Memory},
    cell::CellId,
    holds,
    invariant::BrokenInvariant,
    owner::{OwedToServers, Owner, OwnerPhase, OwnerShare},
};
use marram_wire::{
    frame::{Channel, ForgetCopy},
    id::{ImageHash, Port, SessionId},
    key::CellKey,
};

/// A channel on a wire.
pub(crate) type At = (ShardWireId, Channel);

/// How long a session is kept after its owner's wire came back, until its feed restarts.
const FED_AGAIN_NS: u64 = 2_000_000_000;

/// Former channels of a session's ends that are remembered.
pub(crate) const FORMER_MAX: usize = 8;

/// One session of this shard. The private fields belong to [`Sessions`].
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) owner: Owner,
    /// The wire and channel of each end, by port.
    links: Links,
    /// The previous channels of ends that have not answered the current attempt. If the attempt fails, these ends must
    /// learn that the owner on the old channel is gone.
    /// At most [`FORMER_MAX`], the newest: an end that stays silent while the other one forces attempts adds one for each.
    /// An end learns of the rest when it next sends on such a channel.
    pub(crate) former: Vec<(Port, ShardWireId, Channel)>,
    /// The cells that were named for its owner and not removed: at most two, since a standby keeps its former cell
    /// until the cell of the next checkpoint stands. Whatever ends the session, all of them are removed with it.
    cells: Vec<CellId>,
    /// As the asking end said last: whether the session begins, and whether the end has proved the session's key.
    pub(crate) fresh: bool,
    pub(crate) proven: bool,
    /// Whether it is among [`Sessions::recoveries`].
    recovering: bool,
    /// In [`Sessions::replay`].
    replay: ReplayCount,
    /// In [`Sessions::memory`]: what it counts for, in bytes.
    memory: u64,
    /// Attempts in a row that conflicted with another attempt.
    pub(crate) again: u32,
    /// In [`Sessions::timers`].
    timer_ns: Option<u64>,
    /// When promises were requested, until the log is chosen.
    pub(crate) asked_ns: Option<u64>,
    /// Since when an end is missing.
    end_missing_since_ns: Option<u64>,
    pub(crate) since_ms: u64,
    pub(crate) place: SchedulingParams,
    /// What it counts for its tenant's limit: 1, or as many as a shared cell has clients. Sessions that this shard only stands by for count
    /// for nothing.
    pub(crate) counts: usize,
    /// Its replicas other than its ends.
    pub(crate) placing: Placing,
    /// The wire and channel of its owner's feed, while this shard stands by for it.
    pub(crate) feeder: Option<At>,
    /// Whether an operator has moved it to this shard, so that it does not fail back to its home.
    pub(crate) assigned: bool,
    /// The shard that handed it over to this one as its backup, until the copy there is not needed.
    pub(crate) former_owner: Option<Target>,
    /// Since when it has no feed.
    pub(crate) feed_lost_ns: Option<u64>,
    /// The move that an operator asked for.
    pub(crate) moving: Option<Box<Move>>,
    /// Whether this attempt continues from the standby's state.
    pub(crate) stood: bool,
    /// Of a shared cell that has no client, and is one of several or has something on its way to a server: from when on it is over.
    over_ns: Option<u64>,
    /// Of a shared cell: whether it has had a client, or may have had one elsewhere.
    pub(crate) had_clients: bool,
    /// Of a shared cell that has no client: what is on its way to servers.
    pub(crate) owed: Option<OwedToServers>,
    /// What policies ask for is measured by this; none if they ask for nothing.
    pub(crate) traffic: Option<Box<TrafficMeter>>,
}

impl Session {
    /// A session with this owner, which is scheduled like this and has no end yet.
    pub(crate) fn new(now: Now, owner: Owner, place: SchedulingParams) -> Self {
        Self {
            owner,
            links: Links::default(),
            former: Vec::new(),
            cells: Vec::new(),
            fresh: false,
            proven: true,
            recovering: false,
            replay: ReplayCount::default(),
            memory: 0,
            again: 0,
            timer_ns: None,
            asked_ns: None,
            end_missing_since_ns: None,
            since_ms: u64::try_from(now.unix_ns / 1_000_000).unwrap_or(0),
            place,
            counts: 0,
            placing: Placing::default(),
            feeder: None,
            assigned: false,
            former_owner: None,
            feed_lost_ns: None,
            moving: None,
            stood: false,
            over_ns: None,
            had_clients: false,
            owed: None,
            traffic: None,
        }
    }

    /// The channel of its end at this port, if the end is linked.
    pub(crate) fn link(&self, port: Port) -> Option<At> {
        self.links.get(port)
    }

    /// Remembers the channel that an end had before the present attempt.
    pub(crate) fn add_former(&mut self, former: Option<(Port, ShardWireId, Channel)>) {
        self.former.extend(former);
        let excess = self.former.len().saturating_sub(FORMER_MAX);
        self.former.drain(..excess);
    }

    /// Replaces the channel of an end, and returns the former one.
    pub(crate) fn relink(&mut self, port: Port, at: Option<At>) -> Option<At> {
        self.links.replace(port, at)
    }

    /// The channels of its ends that are linked, client first.
    pub(crate) fn links(&self) -> impl Iterator<Item = (Port, At)> {
        self.links.iter()
    }

    /// Whether this shard only stands by for it.
    pub(crate) fn is_following(&self) -> bool {
        self.owner.phase() == OwnerPhase::Following
    }

    pub(crate) fn app(&self) -> &str {
        &self.owner.policy().app
    }

    /// Its cells that were not removed yet.
    pub(crate) fn into_cells(self) -> Vec<CellId> {
        self.cells
    }

    /// The copy at the shard that handed it over, if there is one: it is not needed from now on.
    pub(crate) fn take_unneeded_copy(&mut self, now_ns: u64) -> Option<UnneededCopy> {
        let at = self.former_owner.take()?;
        let frame = ForgetCopy { session: self.owner.session(), generation: self.owner.generation() };
        Some(UnneededCopy { at, frame, until_ns: now_ns.saturating_add(self.linger_ns()) })
    }

    /// The app's linger time: how long a missing end, or a standby's feed, is waited for.
    pub(crate) fn linger_ns(&self) -> u64 {
        u64::from(self.owner.policy().linger_ms) * 1_000_000
    }

    /// What it has above its share for the replay budget, and its app's recovery target, in nanoseconds.
    fn replay_above_share(&self) -> [u64; 2] {
        [self.owner.replay_above_share_ns(), self.owner.policy().recovery_target_ns]
    }

    /// How long a missing end is waited for.
    pub(crate) fn end_awaited_until_ns(&self) -> Option<u64> {
        self.end_missing_since_ns.map(|since_ns| since_ns + self.linger_ns())
    }

    /// How long this shard keeps it without a feed, if it stands by for it.
    pub(crate) fn feed_lost_until_ns(&self) -> Option<u64> {
        self.feed_lost_ns.map(|since_ns| since_ns + self.linger_ns().max(FED_AGAIN_NS))
    }

    /// When its move is given up.
    pub(crate) fn move_until_ns(&self) -> Option<u64> {
        self.moving.as_ref()?.until_ns()
    }

    /// When it is due next; records since when an end is missing.
    fn due_ns(&mut self, now_ns: u64) -> Option<u64> {
        let since_ns = self.end_missing_since_ns.unwrap_or(now_ns);
        self.end_missing_since_ns = self.owner.incomplete().then_some(since_ns);
        let feed_lost_until_ns = self.feed_lost_until_ns().filter(|_| self.is_following());
        let has_keepers = self.owner.may_copy();
        let again_ns = self.placing.again_ns.filter(|_| has_keepers);
        let due_ns = [
            self.owner.due_ns(),
            self.end_awaited_until_ns(),
            again_ns,
            feed_lost_until_ns,
            self.move_until_ns(),
        ];
        due_ns.into_iter().flatten().min()
    }

    /// An attempt opens a generation with all ends, and no feed any more.
    pub(crate) fn attempted(&mut self, now_ns: u64) {
        self.asked_ns = Some(now_ns);
        // Keepers may have returned before the ends did: search for them when a log is chosen.
        self.placing.looked = false;
        let stands = self.feeder.is_some() || self.feed_lost_ns.is_some();
        self.stood = stands && self.owner.standing_by().is_some_and(|(_, able)| able);
        (self.feeder, self.feed_lost_ns) = (None, None);
    }

    /// If the attempt has just led to a release: when it was begun, and whether it continued from a standby's state.
    /// None if the session begins with it.
    pub(crate) fn recovered(&mut self) -> Option<(u64, bool)> {
        if self.owner.recovering() {
            return None;
        }
        let asked_ns = self.asked_ns.take()?;
        (!self.fresh).then(|| (asked_ns, core::mem::take(&mut self.stood)))
    }

    /// What it says of itself, and what the sessions' tables say of it.
    fn invariants(&self, id: SessionId, sessions: &Sessions) -> Result<(), BrokenInvariant> {
        self.owner.invariants()?;
        holds!("I36", self.timer_ns.is_none_or(|due_ns| sessions.timers.contains(&(due_ns, id))));
        holds!("I36", self.cells.iter().all(|cell| sessions.cells.get(cell) == Some(&id)));
        holds!("I36", self.owner.cell().is_none_or(|cell| self.cells.contains(&cell)));
        holds!("I36", self.recovering == (!self.fresh && self.owner.recovering()));
        holds!("I39", self.former.len() <= FORMER_MAX);
        // Only a standby has two cells, for as long as a whole checkpoint arrives.
        holds!("I39", self.cells.len() <= 1 + usize::from(self.owner.standing_by().is_some()));
        holds!("I39", self.end_missing_since_ns.is_some() == self.owner.incomplete());
        holds!("I39", self.feeder.is_none() || (self.is_following() && self.feed_lost_ns.is_none()));
        Ok(())
    }
}

/// All sessions of a shard.
#[derive(Debug)]
pub(crate) struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    /// The session of each cell that was named and not removed, except for shared cells.
    cells: BTreeMap<CellId, SessionId>,
    /// Counts the cells that were named, shared ones too: no id is used twice.
    cells_made: u64,
    /// Sessions that are being recovered.
    recoveries: usize,
    replay: ReplayBudget,
    memory: Budget<SessionId>,
    timers: BTreeSet<(u64, SessionId)>,
    /// The shared cells that have a backup, also those that this shard only stands by for.
    shared: BTreeSet<SessionId>,
    /// The same, by image and key.
    by_key: BTreeSet<(ImageHash, Option<CellKey>, SessionId)>,
    /// The clients and servers of these.
    clients: CellClients,
    /// Of these, cells that have no client and are over, by the time from when on they are. Each is taken from here once.
    unused: BTreeSet<(u64, SessionId)>,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            by_id: BTreeMap::new(),
            cells: BTreeMap::new(),
            cells_made: 0,
            recoveries: 0,
            replay: ReplayBudget::default(),
            memory: Budget::new(u64::MAX),
            timers: BTreeSet::new(),
            shared: BTreeSet::new(),
            by_key: BTreeSet::new(),
            clients: CellClients::default(),
            unused: BTreeSet::new(),
        }
    }
}

impl Sessions {
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn has(&self, id: SessionId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether the shard has this many sessions; 0 is no limit.
    pub(crate) fn are_at(&self, limit: u32) -> bool {
        limit > 0 && self.by_id.len() >= limit as usize
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.by_id.iter().map(|(id, session)| (*id, session))
    }

    /// The ids of all sessions, for calls that may end some of them.
    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.by_id.keys().copied().collect()
    }

    /// A new session. The caller makes sure that there is none with this id.
    pub(crate) fn insert(&mut self, id: SessionId, mut session: Session) {
        session.memory = self.memory.add();
        self.memory.count(&mut session.memory, session.owner.held_bytes());
        if session.owner.is_shared_cell() {
            self.shared.insert(id);
            self.by_key.insert((session.owner.image(), session.owner.key().cloned(), id));
        }
        self.by_id.insert(id, session);
    }

    /// Forgets a session that is over. Its cells stay in the table until [`Sessions::remove_cell`].
    pub(crate) fn remove(&mut self, id: SessionId) -> Option<Session> {
        let mut session = self.by_id.remove(&id)?;
        if let Some(over_ns) = session.over_ns {
            self.unused.remove(&(over_ns, id));
        }
        if self.shared.remove(&id) {
            self.by_key.remove(&(session.owner.image(), session.owner.key().cloned(), id));
            self.clients.forget(id);
        }
        self.replay.recount(id, &mut session.replay, 0, 0);
        self.memory.remove(id, session.memory);
        self.recoveries -= usize::from(session.recovering);
        if let Some(timer_ns) = session.timer_ns {
            self.timers.remove(&(timer_ns, id));
        }
        Some(session)
    }

    /// Whether this shard only stands by for a session.
    pub(crate) fn is_following(&self, id: SessionId) -> bool {
        self.by_id.get(&id).is_some_and(Session::is_following)
    }

    /// Whether a session's feed comes over this channel.
    pub(crate) fn is_fed(&self, id: SessionId, at: At) -> bool {
        self.by_id.get(&id).is_some_and(|session| session.feeder == Some(at))
    }

    /// Whether the recorder has sent all of the session's log and messages.
    pub(crate) fn is_recalled(&self, id: SessionId) -> bool {
        self.by_id.get(&id).is_some_and(|session| session.owner.recalled_whole())
    }

    /// The clients and servers of the shared cells.
    pub(crate) fn cell_clients(&self) -> &CellClients {
        &self.clients
    }

    /// The shared cells of this image and key that have a backup, also those that this shard only stands by for.
    pub(crate) fn cells_of(
        &self,
        image: ImageHash,
        key: Option<&CellKey>,
    ) -> impl Iterator<Item = SessionId> {
        let [first, last] = [0, u8::MAX].map(|byte| (image, key.cloned(), SessionId([byte; 16])));
        self.by_key.range(first..=last).map(|(.., id)| *id)
    }

    /// A cell has no client, and is over at this time if none comes; or it has some.
    pub(crate) fn note_unused(&mut self, cell: SessionId, over_ns: Option<u64>) {
        let Some(session) = self.by_id.get_mut(&cell) else { return };
        match (session.over_ns, over_ns) {
            (None, Some(over_ns)) => self.unused.insert((over_ns, cell)),
            (Some(before_ns), None) => self.unused.remove(&(before_ns, cell)),
            _ => return,
        };
        session.over_ns = over_ns;
    }

    /// Whether the last client of a cell has left, or none has come for too long.
    pub(crate) fn is_over(&self, now_ns: u64, cell: SessionId) -> bool {
        self.by_id.get(&cell).and_then(|session| session.over_ns).is_some_and(|over_ns| over_ns <= now_ns)
    }

    /// The next cell that is over since it was looked last.
    pub(crate) fn next_over(&mut self, now_ns: u64) -> Option<SessionId> {
        let (over_ns, cell) = *self.unused.first()?;
        (over_ns <= now_ns).then(|| {
            self.unused.pop_first();
            cell
        })
    }

    /// When the next one is.
    pub(crate) fn over_due_ns(&self) -> Option<u64> {
        self.unused.first().map(|(over_ns, _)| *over_ns)
    }

    /// Whether it is a shared cell that has a backup.
    pub(crate) fn is_shared_cell(&self, id: SessionId) -> bool {
        self.shared.contains(&id)
    }

    /// Sessions that are being recovered.
    pub(crate) fn recoveries(&self) -> usize {
        self.recoveries
    }

    /// The session that must take a checkpoint next for the shard's replay budget. It counts as covered as soon as its
    /// owner knows.
    pub(crate) fn over_replay_budget(&self) -> Option<SessionId> {
        self.replay.next_over()
    }

    /// Sets the replay budget, in nanoseconds; 0 for none.
    pub(crate) fn set_replay_budget(&mut self, budget_ns: u64) {
        if self.replay.set(budget_ns) {
            for (id, session) in &mut self.by_id {
                let [above_ns, target_ns] = session.replay_above_share();
                self.replay.recount(*id, &mut session.replay, above_ns, target_ns);
            }
        }
    }

    /// Sets how much the shard may keep for its sessions, in bytes; 0 for no limit.
    pub(crate) fn set_memory_max(&mut self, max: u64) {
        self.memory.set_max(if max == 0 { u64::MAX } else { max });
    }

    /// What the shard keeps for its sessions.
    pub(crate) fn memory(&self) -> Memory {
        self.memory.figures()
    }

    /// Whether there is memory for one more session.
    pub(crate) fn has_memory(&self) -> bool {
        self.memory.has_room()
    }

    /// Sessions to look at, some at a time, since the memory left has become less: those that are idle may keep most.
    pub(crate) fn over_memory(&mut self, now_ns: u64) -> Vec<SessionId> {
        let mut found = Vec::new();
        for _ in 0..self.memory.looks(now_ns) {
            let Some(last) = self.memory.announces() else { break };
            let from = last.map_or(Unbounded, Excluded);
            let next = self.by_id.range((from, Unbounded)).next();
            self.memory.announced_to(next.map(|(id, _)| *id));
            let allowance = self.memory.share().allowance();
            let is_over = |(_, session): &(_, &Session)| session.owner.log_bytes().1 >= allowance;
            found.extend(next.filter(is_over).map(|(id, _)| *id));
        }
        found
    }

    /// What to report of the memory, after every step.
    pub(crate) fn settle_memory(&mut self, now_ns: u64) -> Option<BudgetChange> {
        self.memory.settle(now_ns)
    }

    /// Updates the count of recoveries, of the replay budget and of the memory: called after every call of a session's owner, and after
    /// every decision on its next state.
    pub(crate) fn recount(&mut self, id: SessionId) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        for change in session.owner.take_client_changes() {
            self.clients.change(id, change);
        }
        let recovering = !session.fresh && session.owner.recovering();
        self.recoveries += usize::from(recovering);
        self.recoveries -= usize::from(core::mem::replace(&mut session.recovering, recovering));
        let [above_ns, target_ns] = session.replay_above_share();
        self.replay.recount(id, &mut session.replay, above_ns, target_ns);
        self.memory.count(&mut session.memory, session.owner.held_bytes());
        session.owner.share(OwnerShare::of(self.memory.share(), self.memory.window()));
    }

    /// An id for a cell that no session has alone.
    pub(crate) fn new_cell(&mut self) -> CellId {
        self.cells_made += 1;
        CellId(self.cells_made)
    }

    /// Names the cell that a session's owner asked for.
    pub(crate) fn name_cell(&mut self, id: SessionId) -> CellId {
        let cell = self.new_cell();
        self.cells.insert(cell, id);
        if let Some(session) = self.by_id.get_mut(&id) {
            session.owner.name_cell(cell);
            session.cells.push(cell);
        }
        cell
    }

    /// The session that has a cell.
    pub(crate) fn of_cell(&self, cell: CellId) -> Option<SessionId> {
        self.cells.get(&cell).copied()
    }

    /// A cell is removed, before its session or after it.
    pub(crate) fn remove_cell(&mut self, cell: CellId) {
        let session = self.cells.remove(&cell).and_then(|id| self.by_id.get_mut(&id));
        if let Some(session) = session {
            session.cells.retain(|other| *other != cell);
        }
    }

    /// Updates the timer of a session, after anything that may change when it is due.
    pub(crate) fn rearm(&mut self, now_ns: u64, id: SessionId) {
        let Some(session) = self.by_id.get_mut(&id) else { return };
        let due_ns = session.due_ns(now_ns);
        if due_ns != session.timer_ns {
            if let Some(timer_ns) = session.timer_ns {
                self.timers.remove(&(timer_ns, id));
            }
            session.timer_ns = due_ns;
            self.timers.extend(due_ns.map(|due_ns| (due_ns, id)));
        }
    }

    /// The next session that is due. Its timer is not armed any more.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<SessionId> {
        let (_, id) = *self.timers.first().filter(|(due_ns, _)| *due_ns <= now_ns)?;
        self.timers.pop_first();
        if let Some(session) = self.by_id.get_mut(&id) {
            session.timer_ns = None;
        }
        Some(id)
    }

    /// When the next session is due, or when to look at what sessions keep.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        let timer_ns = self.timers.first().map(|(due_ns, _)| *due_ns);
        [timer_ns, self.memory.wake_ns()].into_iter().flatten().min()
    }

    /// Checks I36, I39, I43 and I46 of docs/protocol.md, as far as they relate sessions, timers, cells and the budgets, and the invariants of all owners.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (id, session) in &self.by_id {
            session.invariants(*id, self)?;
        }
        for (due_ns, id) in &self.timers {
            let session = self.by_id.get(id);
            holds!("I36", session.is_some_and(|session| session.timer_ns == Some(*due_ns)));
        }
        for (cell, id) in &self.cells {
            holds!("I39", cell.0 <= self.cells_made);
            holds!("I36", self.by_id.get(id).is_some_and(|session| session.cells.contains(cell)));
        }
        let shared =
            self.by_id.iter().filter(|(_, session)| session.owner.is_shared_cell()).map(|(id, _)| id);
        holds!("I36", self.shared.iter().eq(shared));
        let mut by_key: Vec<SessionId> = self.by_key.iter().map(|(.., id)| *id).collect();
        by_key.sort_unstable();
        holds!("I36", self.shared.iter().eq(&by_key));
        let owner = |id: &SessionId| Some((*id, &self.by_id.get(id)?.owner));
        self.clients.invariants(self.shared.iter().filter_map(owner))?;
        for (over_ns, id) in &self.unused {
            holds!("I36", self.by_id.get(id).is_some_and(|session| session.over_ns == Some(*over_ns)));
        }
        let recovering = self.by_id.values().filter(|session| session.recovering).count();
        holds!("I36", self.recoveries == recovering);
        let kept =
            |session: &Session| session.memory == Budget::<SessionId>::counts(session.owner.held_bytes());
        holds!("I46", self.by_id.values().all(kept));
        let sum: u64 = self.by_id.values().map(|session| session.memory).sum();
        holds!("I46", self.memory.figures().kept == sum);
        let counted = |(id, session): (&_, &Session)| (*id, session.replay, session.replay_above_share());
        self.replay.invariants(self.by_id.iter().map(counted))
    }
}
