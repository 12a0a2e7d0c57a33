//! Live moves: an operator sends a session to another edge, or to another shard of this one (docs/protocol.md, "Moves").
//!
//! The other side stands by for the session, as an edge does that the app asks for. Once it has what it needs, it is told to take
//! over, which it does as if this edge had died. The session runs here until its ends promise the other edge: so no message waits
//! for longer than that takes, and if anything goes wrong before, the session stays.

use super::{
    Shard,
    report::note,
    roles,
    state::{
        moves::{HANDED_OVER_NS, Move},
        placing::Placed,
    },
};
use crate::api::{
    Configure, Destination, FromShard, MoveAnswer, MoveOver, MoveSession, MoveWish, NoteLevel, Now, Protect,
    ShardOutput, Tagged,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::{Feed, KeeperId, OwnerPhase};
use marram_wire::{
    frame::{Code, Keep, Reject},
    id::{HostId, Port, SessionId},
    limits::PART_SIZE,
};

impl Shard {
    /// An operator asks to move a session.
    pub(super) fn move_session(&mut self, now: Now, asked: MoveSession, out: &mut Vec<ShardOutput>) {
        let MoveSession { tag, session: id, wish } = asked;
        let found = self.sessions.get(id).is_some_and(|session| !session.is_following());
        let why = if found { self.check_move(id, &wish).err() } else { None };
        if found && why.is_none() {
            self.wait_to_move(now, id, wish, out);
        }
        let why = why.unwrap_or_default();
        out.push(ShardOutput::Control(FromShard::MoveAnswer(MoveAnswer { tag, found, why })));
    }

    /// Moves a session. A move of it to another edge ends, and one to the same edge goes on.
    fn wait_to_move(&mut self, now: Now, id: SessionId, wish: MoveWish, out: &mut Vec<ShardOutput>) {
        self.leave_slot_to_operator(now, id, out);
        let Some(session) = self.sessions.get_mut(id) else { return };
        match session.moving.as_deref() {
            None => {
                session.moving = Some(Move::wished(wish, now.mono_ns).into());
                self.moves.wait(id);
            }
            Some(moving) if moving.is_as(&wish) => {}
            Some(moving) => {
                let next = moving.replaced_by(wish, self.drain.hands_over(), now.mono_ns);
                self.replace_move(now, id, next, out);
            }
        }
    }

    /// The session stays protected: it goes on moving. The edge to which it moved so far forgets what it has.
    fn replace_move(&mut self, now: Now, id: SessionId, next: Move, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let to = next.to.clone();
        let Some(replaced) = session.moving.replace(next.into()) else { return };
        self.counters.moves_replaced += 1;
        self.rebalance.left_to_others(id);
        let text = format!("not moved to `{}`: a move to `{to}` replaces that", replaced.to);
        note(NoteLevel::Info, Some(id), text, out);
        self.left_moves(id, None);
        self.moves.wait(id);
        self.sessions.rearm(now.mono_ns, id);
        let (keeper, told) = (replaced.keeper(), replaced.is_handed_over());
        self.change_over(now, id, keeper, out);
        self.moves_no_more(now, id, (keeper, told), out);
    }

    /// Why a session cannot be moved as an operator wishes, if this shard knows. A move that is under way is replaced only if
    /// it is not handed over; one to the same edge goes on.
    pub(super) fn check_move(&self, id: SessionId, wish: &MoveWish) -> Result<(), String> {
        let to = &wish.to;
        match self.sessions.get(id).and_then(|session| session.moving.as_deref()) {
            // One that no operator asked for gives way, and one of the backup to one of the session.
            Some(moving)
                if !wish.replace && !self.rebalance.moves(id) && (!moving.is_of_backup() || wish.backup) =>
            {
                return Err(moves_already(moving));
            }
            Some(moving) if moving.is_as(wish) => return Ok(()),
            Some(moving) if moving.is_handed_over() => {
                return Err(format!(
                    "the session is handed over to `{}` already: try again when that is over",
                    moving.to
                ));
            }
            _ => {}
        }
        if wish.backup {
            return self.can_move_backup(id, to);
        }
        self.can_move(id, to)?;
        if wish.force { Ok(()) } else { self.keeps_its_standby(id, to) }
    }

    /// Whether a session that leaves with this edge can move to another one.
    pub(super) fn may_move(&self, id: SessionId, to: &Destination) -> Result<(), String> {
        match self.sessions.get(id).and_then(|session| session.moving.as_deref()) {
            Some(moving) => Err(moves_already(moving)),
            None => self.can_move(id, to),
        }
    }

    /// Why a session would lack the standby that its app asks for once it has moved to this edge, as far as this shard knows.
    fn keeps_its_standby(&self, id: SessionId, to: &Destination) -> Result<(), String> {
        let Some(session) = self.sessions.get(id) else { return Ok(()) };
        let asks = matches!(self.apps.protect(&session.owner), Protect::Warm | Protect::Hot);
        let asks = asks && !session.owner.has_backup();
        let third = || self.keepers.edges_for(id, &self.config.edge).any(|edge| edge != to.edge);
        let connected = || self.peers.as_ref().is_some_and(|peers| peers.is_connected(&to.edge));
        // A shard never stands by for another one of its edge.
        let itself = || to.edge != self.config.edge && connected();
        if !asks || third() || itself() {
            return Ok(());
        }
        Err(format!(
            "the app asks for a standby, and no edge is known that could stand by for the session at `{to}`: no third edge is connected, \
             and this one does not list `{to}` in `standby.edges`; change that, or move it with `--force`"
        ))
    }

    /// Why a session cannot be moved to an edge, whether or not it is being moved.
    pub(super) fn can_move(&self, id: SessionId, to: &Destination) -> Result<(), String> {
        let Some(session) = self.sessions.get(id) else { return Err("the session is not here".into()) };
        let owner = &session.owner;
        self.is_elsewhere(to)?;
        if owner.policy().shared {
            self.can_move_cell(id, to)?;
        }
        if owner.has_backup() && self.backup_of(id).is_none() {
            return Err(
                "the app has protect = \"epoch\", and the session has no backup now: try again".into()
            );
        }
        if owner.is_recording() {
            return Err("the session is being recorded: try again when that is done".into());
        }
        if owner.phase() != OwnerPhase::Running {
            return Err(format!("the session is not running ({}): try again", owner.phase().name()));
        }
        match self.wires.of_standby(&to.edge, to.shard, id) {
            Some(_) => Ok(()),
            None => Err(self.is_not_connected(to)),
        }
    }

    /// Whether a destination is another one than this shard.
    fn is_elsewhere(&self, to: &Destination) -> Result<(), String> {
        let (shard, shards) = (self.config.shard, self.config.shards);
        if to.edge != self.config.edge {
            return Ok(());
        }
        match to.shard {
            None if shards > 1 => Err(format!(
                "the session is on `{to}` already, on shard {shard} of {shards}: to move it to another shard, name that one too (`{to}/{}`)",
                (shard + 1) % shards
            )),
            Some(named) if named >= shards => {
                Err(format!("`{}` has no shard {named}: its shards are 0 to {}", to.edge, shards - 1))
            }
            Some(named) if named != shard => Ok(()),
            _ => Err(format!("the session is on `{to}` already")),
        }
    }

    pub(super) fn is_not_connected(&self, to: &Destination) -> String {
        if to.edge == self.config.edge {
            return format!("the shard `{to}` is not connected to this one yet: try again");
        }
        if let (Some(named), Some(shards)) = (to.shard, self.wires.shards_of(&to.edge)) {
            return format!(
                "shard {named} of `{}` is not connected to this edge: it has {shards}, numbered from 0",
                to.edge
            );
        }
        let mut edges: Vec<String> = self.wires.standbys().map(|role| format!("`{}`", role.name)).collect();
        edges.sort_unstable();
        edges.dedup();
        let connected = if edges.is_empty() { "none".to_string() } else { edges.join(", ") };
        format!(
            "the edge `{to}` is not connected to this edge (connected: {connected}): its configuration must name this edge in `standby.edges`"
        )
    }

    /// An operator stops a move.
    pub(super) fn cancel_move(&mut self, now: Now, asked: &Tagged, out: &mut Vec<ShardOutput>) {
        let Tagged { tag, session: id } = *asked;
        let found = self.sessions.get(id).is_some_and(|session| !session.is_following());
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        let why = match moving {
            Some(moving) if moving.is_handed_over() => "the session is handed over already",
            Some(_) => "",
            None => "the session is not being moved",
        };
        if why.is_empty() {
            if let Some(moving) = self.sessions.get_mut(id).and_then(|it| it.moving.as_deref_mut()) {
                moving.others.clear();
            }
            self.rebalance.left_to_others(id);
            self.give_up_move(now, id, "an operator cancelled it", out);
        }
        let answer = MoveAnswer { tag, found, why: if found { why.to_string() } else { String::new() } };
        out.push(ShardOutput::Control(FromShard::MoveAnswer(answer)));
    }

    /// Begins moves that wait, as far as there is room and it is time.
    pub(super) fn moves_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        while let Some(id) = self.moves.next(now.mono_ns, self.drain.due_ns()) {
            let begun = self.begin_move(now, id, out);
            match begun {
                Ok(keeper) => {
                    if let Some(session) = self.sessions.get_mut(id)
                        && let Some(moving) = session.moving.as_deref_mut()
                    {
                        match session.placing.moves_to_warm(keeper) {
                            true => moving.begin_from_standby(now.mono_ns, keeper),
                            false => moving.begin(now.mono_ns, keeper),
                        }
                    }
                    self.sessions.rearm(now.mono_ns, id);
                    self.move_on(now, id, out);
                }
                Err(why) => self.move_over(now, id, Some(&why), out),
            }
        }
    }

    /// Has the other edge stand by for the session. One that does already needs no other copy.
    fn begin_move(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Result<KeeperId, String> {
        if self.is_shared_cell(id) {
            return self.begin_cell_move(now, id, out);
        }
        let gone = || "the session ended".to_string();
        let session = self.sessions.get_mut(id).ok_or_else(gone)?;
        if session.moving.as_deref().is_some_and(Move::is_of_backup) {
            return self.begin_change(now, id, out);
        }
        let to = session.moving.as_deref().map(|moving| moving.to.clone()).ok_or_else(gone)?;
        let (wire, role) = self
            .wires
            .of_standby(&to.edge, to.shard, id)
            .ok_or_else(|| format!("`{to}` is not connected to this shard any more"))?;
        let placed = session.placing.at_destination(&to);
        let is_backup = placed.is_some_and(|placed| placed.feed.is_backup());
        if let Some(keeper) = placed.map(|placed| placed.id) {
            if is_backup || session.placing.moves_to(keeper, &session.owner) {
                return Ok(keeper);
            }
            self.remove_replica(now, id, keeper, out);
        }
        let placed = self.place_at(now, id, (wire, role, Feed::Moved), out);
        self.with_owner(now, id, out, |owner, effects| owner.begin_protection(now, effects));
        placed.ok_or_else(|| format!("the connection to `{to}` broke"))
    }

    /// A session was to go on from what its warm standby has, and that takes too long: it is copied there, as to any other edge. False if it
    /// was not.
    pub(super) fn copies_to_standby(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let standby = session.moving.as_deref().and_then(Move::standby);
        let placed = standby.and_then(|standby| session.placing.replica(standby));
        let Some(Placed { id: standby, at, role, .. }) = placed.cloned() else { return false };
        let Some((keeper, channel)) = self.add_placed(id, (at.0, role, Feed::Moved), false) else {
            return false;
        };
        if let Some(moving) = self.sessions.get_mut(id).and_then(|session| session.moving.as_deref_mut()) {
            moving.begin(now.mono_ns, keeper);
        }
        self.with_owner(now, id, out, |owner, effects| {
            owner.add_replica(keeper, channel, Feed::Moved, effects);
        });
        self.remove_replica(now, id, standby, out);
        true
    }

    /// Bytes in a second that moves may copy; 0 for no limit. While the edge stops there is none: what has not moved in time is copied
    /// from its ends, and its clients wait for that.
    pub(super) fn move_limit(&self) -> u64 {
        if self.drain.has_begun() { 0 } else { self.config.move_bytes_per_s }
    }

    /// Sessions that move and whose copy waits for bandwidth, for inspection.
    #[must_use]
    pub fn copies_waiting(&self) -> usize {
        self.moves.copies.count()
    }

    /// If the other edge could be sent more of a session that moves, that waits for its turn.
    pub(super) fn copy_waits(&mut self, now: Now, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let keeper = session.copied_to();
        let copy = keeper.and_then(|keeper| session.owner.copy_progress(keeper));
        if !copy.is_some_and(|copy| copy.waits) {
            return;
        }
        let is_own = session.moved_by().is_some();
        let begins = match session.moving.as_deref_mut().filter(|_| is_own) {
            Some(moving) => moving.limit_begins(now.mono_ns),
            None => session.placing.limit_begins(),
        };
        if begins {
            self.moves.copies.wait(id);
        }
    }

    /// Sends parts of sessions that move, as far as the bandwidth of moves allows.
    pub(super) fn copies_due(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let limit = self.move_limit();
        while let Some(id) = self.moves.copies.next(now.mono_ns, limit) {
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.placing.limit_ends();
            if let Some(moving) = session.moving.as_deref_mut() {
                self.counters.moves_limited_us += moving.limit_ends(now.mono_ns) / 1_000;
            }
            let Some(keeper) = session.copied_to() else { continue };
            let allowed = if limit == 0 { u64::MAX } else { PART_SIZE as u64 };
            let mut sent = 0;
            self.with_owner(now, id, out, |owner, effects| {
                sent = owner.allow_copy(now, keeper, allowed, effects)
            });
            self.moves.copies.sent(now.mono_ns, sent, limit);
        }
    }

    /// Hands a session over, if it moves and the other edge has all that it needs.
    pub(super) fn move_on(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let (is_cell, confirm_ns) = (self.is_shared_cell(id), self.confirm_ns());
        if is_cell && (self.moves_backup_first(now, id, out) || !self.may_hand_over_cell(id)) {
            return;
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(moving) = session.moving.as_deref_mut() else { return };
        let Some(keeper) = moving.fed() else { return };
        if moving.is_of_backup() {
            return self.change_on(now, id, out);
        }
        let mut effects = Vec::new();
        if session.owner.hand_over(now, keeper, &mut effects) {
            moving.hand_over(now.mono_ns, if is_cell { confirm_ns } else { HANDED_OVER_NS });
            if is_cell {
                self.handed_over(id);
            }
        }
        // What asks the ends, or tells the other edge. This is called again by what comes of it.
        if !effects.is_empty() {
            self.perform(now, id, effects, out);
        }
    }

    /// The replica at the edge to which a session moves is gone: the session stays, unless that was its backup and may have taken it over.
    pub(super) fn move_lost(
        &mut self,
        now: Now,
        id: SessionId,
        (keeper, may_be_taken, why): (KeeperId, bool, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.placing.next().is_none() && session.placing.limit_ends() {
            self.moves.copies.forget(id);
        }
        let moving = session.moving.as_deref().filter(|moving| moving.keeper() == Some(keeper));
        // Whether a shared cell was taken over, the next claim says.
        let is_open = |moving: &&Move| session.owner.is_shared_cell() && moving.is_handed_over();
        if let Some(moving) = moving.filter(|moving| !is_open(moving)) {
            let is_taken = may_be_taken && moving.is_handed_over() && !moving.is_of_backup();
            self.move_over(now, id, (!is_taken).then_some(why), out);
        }
        self.next_backup_lost(now, id, why, out);
    }

    /// Whether a move whose time is over goes on until what has arrived is read. What comes of a shared cell, a claim decides.
    pub(super) fn reads_before_giving_up(&mut self, now: Now, id: SessionId) -> bool {
        let session = self.sessions.get_mut(id).filter(|session| !session.owner.is_shared_cell());
        session
            .and_then(|session| session.moving.as_deref_mut())
            .is_some_and(|it| it.reads_first(now.mono_ns))
    }

    /// Ends a move that is not over, from this side: the other edge forgets what it has, and the session stays.
    pub(super) fn give_up_move(&mut self, now: Now, id: SessionId, why: &str, out: &mut Vec<ShardOutput>) {
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        let Some((keeper, told)) = moving.map(|it| (it.keeper(), it.is_handed_over())) else { return };
        self.move_over(now, id, Some(why), out);
        self.moves_no_more(now, id, (keeper, told), out);
    }

    /// The edge of this replica forgets a session that does not move there any more. It stays if it is the session's backup, or its standby
    /// that was not told to take it over.
    fn moves_no_more(
        &mut self,
        now: Now,
        id: SessionId,
        (keeper, told): (Option<KeeperId>, bool),
        out: &mut Vec<ShardOutput>,
    ) {
        let Some((session, keeper)) = self.sessions.get_mut(id).zip(keeper) else { return };
        if session.placing.backup().is_some_and(|placed| placed.id == keeper) {
            return;
        }
        let stands_by = session.placing.moves_no_more_to(keeper);
        if told || !stands_by {
            self.remove_replica(now, id, keeper, out);
        }
        // It may be the edge that should stand by, or one that the app does without since.
        self.place(now, id, out);
    }

    /// A move is over: the session has left, or stays because of `why`.
    pub(super) fn move_over(
        &mut self,
        now: Now,
        id: SessionId,
        why: Option<&str>,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(moving) = session.moving.take() else { return };
        self.change_over(now, id, moving.keeper(), out);
        if why.is_none() {
            self.regroup_changed(now, id, &moving);
        }
        if !why.is_some_and(|why| self.moves_elsewhere(now, id, &moving, why, out)) {
            self.report_move(now, id, &moving, why, out);
            self.with_owner(now, id, out, |owner, effects| {
                owner.end_protection(effects);
                if owner.is_shared_cell() {
                    owner.keep_on(now, effects);
                }
            });
        }
    }

    /// This edge has taken a session, which leaves this shard. If it was to move there, it has: a shared cell perhaps with another one of
    /// its slot, that was handed over first.
    pub(super) fn taken_by(&mut self, id: SessionId, edge: &str) {
        let moving = self.sessions.get_mut(id).and_then(|session| session.moving.as_deref_mut());
        moving.into_iter().for_each(|moving| moving.taken_by(edge));
    }

    /// A session with this move has left this shard, for this reason.
    pub(super) fn moved(
        &mut self,
        now: Now,
        id: SessionId,
        moving: &Move,
        (code, reason): (Code, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        let has_moved = moving.may_have_arrived() && code == Code::Superseded;
        let why = format!("the session left meanwhile: {reason}");
        self.report_move(now, id, moving, (!has_moved).then_some(&why), out);
    }

    /// A move of this session is over, which took this long.
    pub(super) fn left_moves(&mut self, id: SessionId, took_ns: Option<u64>) {
        self.moves.over(id, took_ns);
        // Its copy may be that of a slot which changes its backup with another cell.
        if self.sessions.get(id).is_some_and(|session| session.placing.is_limited()) {
            self.moves.copies.wait(id);
        }
    }

    fn report_move(
        &mut self,
        now: Now,
        id: SessionId,
        moving: &Move,
        why: Option<&str>,
        out: &mut Vec<ShardOutput>,
    ) {
        self.left_moves(id, moving.took_ns(now.mono_ns));
        let why = why.map(|why| moving.failure(why, now.mono_ns));
        let (to, ms) = (moving.to.clone(), now.mono_ns.saturating_sub(moving.asked_ns) / 1_000_000);
        let (backup, what) =
            (moving.is_of_backup(), if moving.is_of_backup() { "its backup is " } else { "" });
        let rebalances = self.rebalance.moves(id);
        let (level, text) = match &why {
            None => {
                let count = if backup { &mut self.counters.backups_moved } else { &mut self.counters.moves };
                *count += 1;
                self.counters.rebalanced += u64::from(rebalances && !backup);
                // Of a pass, only its beginning and its end are worth a line.
                let level = if rebalances { NoteLevel::Debug } else { NoteLevel::Info };
                (level, format!("{what}moved to `{to}` in {ms} ms"))
            }
            Some(why) => {
                let why = why.as_str();
                self.counters.moves_failed += 1;
                // It is tried again.
                let level = if rebalances { NoteLevel::Debug } else { NoteLevel::Warning };
                (level, format!("{what}not moved to `{to}`: {why}"))
            }
        };
        self.rebalance.over(now.mono_ns, id, why.is_none());
        note(level, Some(id), text, out);
        let why = why.unwrap_or_default();
        let over = MoveOver { session: id, to, backup, ms, why };
        out.push(ShardOutput::Control(FromShard::MoveOver(over)));
    }

    /// Whether this shard can take a session over that another edge wants to hand to it: a move must fail before anything is
    /// copied, if it must.
    pub(super) fn can_be_moved_here(&self, keep: &Keep, server: Option<&str>) -> Result<(), String> {
        let hosts = [Port::CLIENT, Port::SERVER].into_iter().zip(keep.hosts.iter().copied());
        self.away(hosts, server).map_or(Ok(()), |port| Err(self.end_is_away(port)))
    }

    fn end_is_away(&self, port: Port) -> String {
        let end = if port == Port::CLIENT { "client" } else { "server" };
        let Configure { edge, shard, shards, .. } = &self.config;
        let place = if *shards > 1 { format!(" (shard {shard})") } else { String::new() };
        format!("the agent of the session's {end} is not connected to the edge `{edge}`{place}")
    }

    /// The owner of a session that this shard stands by for has handed it over, all of it is replayed, and a strict witness has
    /// answered. If the session is not taken over at once, its owner is told: the witness's answer does not count later.
    pub(super) fn take_handed_over(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        if self.is_shared_cell(id) && self.groups.of_session(id).is_none() {
            // Its group is being claimed.
            return;
        }
        self.take_as_own(now, id, out);
        let Some(session) = self.sessions.get(id).filter(|session| session.is_following()) else { return };
        // A shared cell whose group is claimed here is nowhere else.
        let is_claimed = session.owner.is_shared_cell();
        let refusal = if self.drain.has_begun() && !is_claimed {
            Some((Code::Busy, "the edge is shutting down".to_string()))
        } else {
            let owner = &session.owner;
            self.away(owner.hosts(), owner.policy().server.as_deref())
                .map(|port| (Code::Waiting, self.end_is_away(port)))
        };
        let feeder = session.feeder;
        if refusal.is_none() {
            self.take_over(now, id, out);
        }
        if !self.sessions.is_following(id) || self.groups.of_session(id).is_some() {
            // A session of a group that is claimed here waits for its ends.
            return;
        }
        let (code, reason) =
            refusal.unwrap_or_else(|| (Code::Waiting, "the session cannot be taken over now".to_string()));
        if let Some((wire, channel)) = feeder {
            out.push(ShardOutput::Send { wire, frame: Reject { channel, code, reason }.into() });
        }
        if let Some(session) = self.sessions.get_mut(id) {
            session.feeder = None;
        }
        self.drop_standby(now, id, out);
    }

    /// The port of an end that cannot be asked from here. `hosts` are the agents of the ends.
    fn away(&self, mut hosts: impl Iterator<Item = (Port, HostId)>, server: Option<&str>) -> Option<Port> {
        let away = hosts.find(|(port, host)| roles::wire_to(&self.wires, *host, *port, server).is_none());
        away.map(|(port, _)| port)
    }
}

fn moves_already(moving: &Move) -> String {
    format!(
        "the session is being moved to `{}` already: cancel that move first, or replace it (`marram move --replace`)",
        moving.to
    )
}
