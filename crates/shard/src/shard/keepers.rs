//! The keepers of this shard's sessions: recorders and standby edges. Which one keeps which session, and what is asked of them.
//!
//! Keepers dial, as agents do, and prove that they belong to this domain. One recorder keeps every protected session. The standby
//! of a session is found on a consistent hash ring over the connected edges (Pico's chords), so that the sessions of a dead edge
//! spread over all others. A chosen keeper stays as long as it is connected: no session moves because an edge joins.

use super::{Session, Shard, recalls::Recalls};
use crate::{
    api::{
        self, FromShard, KeeperKind, KeeperProgress, KeeperRow, NoteLevel, Now, Protect, ShardOutput,
        ShardWireId,
    },
    coordinator::contents::Stands,
    ring::Ring,
};
use alloc::{collections::BTreeMap, string::String, vec::Vec};
use marram_session::owner::{KeeperId, OwnerPhase};
use marram_wire::{
    frame::{Channel, Code, Frame, Keeper, Sender},
    id::{Generation, SessionId},
    limits::REPLAYED_EVERY,
    seal::{self, KeeperKey},
};

const MS: u64 = 1_000_000;
/// First wait before a session is placed again with a keeper that dropped it; doubles.
const AGAIN_MIN_NS: u64 = 100 * MS;
const AGAIN_MAX_NS: u64 = 30_000 * MS;
/// What the greeting on a wire said about its keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Role {
    pub(super) name: String,
    pub(super) recorder: bool,
    shard: u8,
    shards: u8,
}

/// One replica of a session at a keeper.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Placed {
    id: KeeperId,
    wire: ShardWireId,
    channel: Channel,
    role: Role,
    hot: bool,
}

impl Placed {
    /// Its channel, and the keeper's name in the owner.
    pub(super) fn at(&self) -> ((ShardWireId, Channel), KeeperId) {
        ((self.wire, self.channel), self.id)
    }

    /// The keeper, as its wire introduced it.
    pub(super) fn role(&self) -> &Role {
        &self.role
    }
}

/// A session's need for keepers.
#[derive(Debug, Default)]
pub(super) struct Placing {
    placed: Vec<Placed>,
    /// When to search again for missing keepers, and how long the last wait was.
    pub(super) again_ns: Option<u64>,
    backoff_ns: u64,
    /// Whether keepers were searched for since the last generation.
    pub(super) looked: bool,
    /// The standby that was reported to control, and its generation.
    listed: Option<(KeeperId, Generation)>,
}

impl Placing {
    /// The replicas that there are: at most one at a recorder and one at a standby.
    pub(super) fn placed(&self) -> &[Placed] {
        &self.placed
    }
}

/// The keepers that the shard knows.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    made: u64,
    ring: Ring,
    /// The session and keeper of each channel, by wire.
    pub(super) channels: BTreeMap<(ShardWireId, Channel), (SessionId, Option<KeeperId>)>,
    pub(super) recalls: Recalls,
}

impl Keepers {
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.recalls.due_ns()
    }
}

impl Shard {
    /// A wire declares that it leads to a keeper.
    pub(super) fn keeper(&mut self, now: Now, id: ShardWireId, keeper: Keeper, out: &mut Vec<ShardOutput>) {
        let key = KeeperKey::derive(&self.secret);
        let Some(wire) = self.wires.get(&id) else { return };
        let rights = &wire.verified.rights;
        match keeper.role {
            0 if !rights.recorder => {
                return self.refuse_role(id, "be a recorder", "roles = [\"recorder\"]", out);
            }
            1 if !rights.edge => {
                return self.refuse_role(id, "stand by as an edge", "roles = [\"edge\"]", out);
            }
            0 | 1 => {}
            _ => return self.goodbye(id, "this edge does not know the keeper's role: update the edge", out),
        }
        if !wire.channels.is_empty() || !wire.servers.is_empty() {
            return self.goodbye(id, "a wire that carries sessions cannot become a keeper's", out);
        }
        let Some(wire) = self.wires.get_mut(&id) else { return };
        let genuine = seal::same(&keeper.proof, &key.proof(&wire.challenge, &keeper.name));
        if !genuine {
            let reason = "the keeper's proof does not match this edge's domain secret: does it have the edges' `secret_file`?";
            return self.goodbye(id, reason, out);
        }
        if keeper.name == self.config.edge || wire.role.is_some() {
            return self.goodbye(id, "the keeper introduced itself twice, or has this edge's own name", out);
        }
        let Keeper { name, role, shard, shards, .. } = keeper;
        let text = if role == 0 {
            alloc::format!("the recorder `{name}` is connected")
        } else {
            alloc::format!("the edge `{name}` (shard {shard}) can stand by")
        };
        wire.role = Some(Role { name, recorder: role == 0, shard, shards: shards.max(1) });
        self.note(NoteLevel::Info, None, text, out);
        self.keepers_changed(now, out);
    }

    /// A keeper came or went, or what apps need has changed: every session checks its replicas.
    pub(super) fn keepers_changed(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let standing = self.wires.values().filter_map(|wire| wire.role.as_ref());
        let names = standing.filter(|role| !role.recorder).map(|role| role.name.clone());
        self.keepers.ring = Ring::new(names);
        let ids: Vec<SessionId> = self.sessions.keys().copied().collect();
        for id in ids {
            self.place(now, id, out);
        }
    }

    pub(super) fn keeper_down(&mut self, now: Now, wire: ShardWireId, out: &mut Vec<ShardOutput>) {
        let gone = self.keepers.channels.range((wire, 0)..=(wire, Channel::MAX));
        let gone: Vec<_> = gone.map(|(at, session)| (*at, *session)).collect();
        for (at, (session, keeper)) in gone {
            self.keepers.channels.remove(&at);
            match keeper {
                Some(keeper) => self.unplace(now, session, keeper, out),
                None => self.recall_over(now, session, out),
            }
        }
        self.keepers_changed(now, out);
    }

    fn unplace(&mut self, now: Now, id: SessionId, keeper: KeeperId, out: &mut Vec<ShardOutput>) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.placing.placed.retain(|placed| placed.id != keeper);
        }
        self.with_owner(now, id, out, |owner, effects| owner.remove_replica(keeper, effects));
    }

    /// The wire to the edge that should stand by for a session.
    fn standby_for(&self, id: SessionId) -> Option<(ShardWireId, Role)> {
        let name = self.keepers.ring.standby_of(id, &self.config.edge)?;
        let leads = |wire: &super::Wire| wire.role.clone().filter(|role| !role.recorder && role.name == name);
        self.wires
            .iter()
            .filter_map(|(wire, of)| leads(of).map(|role| (*wire, role)))
            // The shard that agents ask first.
            .find(|(_, role)| id.0[0] % role.shards == role.shard)
    }

    pub(super) fn recorder(&self) -> Option<(ShardWireId, Role)> {
        let recorders = self
            .wires
            .iter()
            .filter_map(|(wire, of)| of.role.clone().filter(|role| role.recorder).map(|role| (*wire, role)));
        recorders.min_by(|a, b| a.1.name.cmp(&b.1.name))
    }

    /// Adds the missing replicas of a session, and removes those that it does not need.
    pub(super) fn place(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let owner = &session.owner;
        let begins = session.fresh && matches!(owner.phase(), OwnerPhase::Promising | OwnerPhase::Detached);
        if !owner.policy().keep || !(owner.phase() == OwnerPhase::Running || begins) {
            return;
        }
        let app = self.apps.get(&owner.policy().app).or_else(|| self.images.get(&owner.image()));
        let protect = app.map_or(Protect::Endpoints, |app| app.protect);
        let hot = protect == Protect::Hot;
        let stands = matches!(protect, Protect::Warm | Protect::Hot);
        let unwanted = |placed: &Placed| !placed.role.recorder && (!stands || placed.hot != hot);
        let placed = &session.placing.placed;
        let leave: Vec<KeeperId> = placed.iter().filter(|it| unwanted(it)).map(|it| it.id).collect();
        for keeper in leave {
            // The owner is informed before the shard forgets it.
            self.with_owner(now, id, out, |owner, effects| owner.remove_replica(keeper, effects));
            self.unplace(now, id, keeper, out);
        }
        let Some(session) = self.sessions.get(&id) else { return };
        if session.placing.again_ns.is_some_and(|again_ns| again_ns > now.mono_ns) {
            return self.tell_standby(now, id, out);
        }
        let has = |recorder: bool| session.placing.placed.iter().any(|it| it.role.recorder == recorder);
        let recorder = if has(true) { None } else { self.recorder() };
        let standby = if !stands || has(false) { None } else { self.standby_for(id) };
        for ((wire, role), hot) in
            recorder.map(|it| (it, false)).into_iter().chain(standby.map(|it| (it, hot)))
        {
            self.place_at(now, id, wire, role, hot, out);
        }
        self.tell_standby(now, id, out);
    }

    /// A log has been chosen, or the session continues: add missing keepers.
    pub(super) fn place_if_chosen(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let running = session.owner.phase() == OwnerPhase::Running && session.owner.policy().keep;
        if running && !core::mem::replace(&mut session.placing.looked, true) {
            self.place(now, id, out);
        }
    }

    /// Reports to control which edge could take a session over, when that has changed.
    pub(super) fn list_standby(&mut self, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let Session { owner, placing, .. } = session;
        if placing.placed.is_empty() && placing.listed.is_none() {
            return;
        }
        let ready = |keeper: KeeperId| owner.keepers().any(|fill| fill.keeper == keeper && fill.ready);
        let standby = placing.placed.iter().find(|it| !it.role.recorder && ready(it.id));
        let now = match standby {
            Some(placed) if owner.phase() == OwnerPhase::Running => Some((placed.id, owner.generation())),
            // A generation that may still fail is not reported.
            Some(_) => placing.listed,
            None => None,
        };
        if now == placing.listed {
            return;
        }
        placing.listed = now;
        let stands = |(placed, (_, generation)): (&Placed, _)| Stands {
            generation,
            standby: placed.role.name.clone(),
            hot: placed.hot,
        };
        let at = standby.zip(now).map(stands);
        out.push(ShardOutput::Control(FromShard::Placed(api::Placed { session: id, at })));
    }

    /// A session that has left this shard is removed from the list.
    pub(super) fn unlist_standby(id: SessionId, session: &Session, out: &mut Vec<ShardOutput>) {
        if session.placing.listed.is_some() {
            out.push(ShardOutput::Control(FromShard::Placed(api::Placed { session: id, at: None })));
        }
    }

    fn place_at(
        &mut self,
        now: Now,
        id: SessionId,
        at: ShardWireId,
        role: Role,
        hot: bool,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(wire) = self.wires.get_mut(&at) else { return };
        let channel = wire.channel();
        self.keepers.made += 1;
        let keeper = KeeperId(self.keepers.made);
        self.keepers.channels.insert((at, channel), (id, Some(keeper)));
        if let Some(session) = self.sessions.get_mut(&id) {
            session.placing.placed.push(Placed { id: keeper, wire: at, channel, role, hot });
            session.placing.again_ns = None;
        }
        self.with_owner(now, id, out, |owner, effects| owner.add_replica(keeper, channel, hot, effects));
    }

    /// Tells the ends which edge stands by, once it could take over.
    pub(super) fn tell_standby(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(&id) else { return };
        let ready =
            |keeper: KeeperId| session.owner.keepers().any(|fill| fill.keeper == keeper && fill.ready);
        let standby = session.placing.placed.iter().find(|it| !it.role.recorder && ready(it.id));
        let standby = standby.map(|placed| (placed.role.name.clone(), placed.role.shard));
        self.with_owner(now, id, out, |owner, effects| {
            owner.tell_standby(standby.as_ref().map(|(name, shard)| (&name[..], *shard)), effects);
        });
    }

    /// Sends an owner's frame to one of its keepers.
    pub(super) fn send_keeper(
        &mut self,
        id: SessionId,
        keeper: KeeperId,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        let placed = self.sessions.get(&id).and_then(|session| {
            session.placing.placed.iter().find(|placed| placed.id == keeper).map(|it| (it.wire, it.channel))
        });
        let Some((wire, channel)) = placed else { return };
        if matches!(frame, Frame::Ended(_)) {
            self.keepers.channels.remove(&(wire, channel));
        }
        out.push(ShardOutput::Send { wire, frame });
    }

    fn forget_channel(&mut self, id: SessionId, keeper: KeeperId) {
        let placed = self.sessions.get(&id).map(|session| &session.placing.placed[..]).unwrap_or_default();
        if let Some(placed) = placed.iter().find(|placed| placed.id == keeper) {
            self.keepers.channels.remove(&(placed.wire, placed.channel));
        }
    }

    /// A keeper does not keep a session any more: it is asked again later, or another keeper is chosen.
    pub(super) fn keeper_lost(
        &mut self,
        now: Now,
        id: SessionId,
        (keeper, code, reason): (KeeperId, Code, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        self.forget_channel(id, keeper);
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let placing = &mut session.placing;
        let Some(at) = placing.placed.iter().position(|placed| placed.id == keeper) else { return };
        let placed = placing.placed.swap_remove(at);
        // If it only conflicted with a new generation, it is asked again at once, but not in an endless loop.
        let at_once = code == Code::Superseded;
        let longer_ns = (placing.backoff_ns * 2).clamp(AGAIN_MIN_NS, AGAIN_MAX_NS);
        let wait_ns = if at_once { placing.backoff_ns } else { longer_ns };
        placing.backoff_ns = longer_ns;
        placing.again_ns = Some(now.mono_ns + wait_ns);
        self.counters.keepers_lost += 1;
        if !at_once {
            let text = alloc::format!("`{}` no longer keeps the session: {reason}", placed.role.name);
            self.note(NoteLevel::Info, Some(id), text, out);
        }
    }

    /// A frame on a keeper's wire.
    pub(super) fn keeper_frame(
        &mut self,
        now: Now,
        wire: ShardWireId,
        frame: Frame,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(channel) = frame.channel(Sender::End) else {
            return self.goodbye(wire, "keepers must not send such frames", out);
        };
        let Some((id, keeper)) = self.keepers.channels.get(&(wire, channel)).copied() else {
            self.counters.stale_frames += 1;
            return;
        };
        match keeper {
            Some(keeper) => {
                let stored = matches!(&frame, Frame::Stored(stored) if stored.complete.is_some());
                self.with_owner(now, id, out, |owner, effects| owner.from_keeper(keeper, frame, effects));
                // One that was dropped for what it said is asked again later and later.
                let kept = self.keepers.channels.contains_key(&(wire, channel));
                if stored && kept {
                    if let Some(session) = self.sessions.get_mut(&id) {
                        session.placing.backoff_ns = 0;
                    }
                    self.tell_standby(now, id, out);
                }
            }
            None => self.recall_frame(now, id, wire, channel, frame, out),
        }
    }

    /// A session's replicas other than its ends, for listings.
    pub(super) fn keepers_of(&self, session: &Session) -> Vec<KeeperRow> {
        let placed = session.placing.placed.iter().map(|placed| {
            let fill = session.owner.keepers().find(|fill| fill.keeper == placed.id);
            let kind = match (placed.role.recorder, placed.hot) {
                (true, _) => KeeperKind::Recorder,
                (false, false) => KeeperKind::Warm,
                (false, true) => KeeperKind::Hot,
            };
            let progress = fill.map(|fill| KeeperProgress {
                ready: fill.ready,
                behind: fill.behind,
                unreplayed: fill.unreplayed.filter(|entries| *entries >= REPLAYED_EVERY),
            });
            KeeperRow { name: placed.role.name.clone(), kind, progress }
        });
        placed.collect()
    }
}
