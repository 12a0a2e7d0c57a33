//! Live moves: an operator sends a session to another edge (docs/protocol.md, "Moves").
//!
//! The other edge stands by for the session, as an edge does that the app asks for. Once it has what it needs, it is told to take
//! over, which it does as if this edge had died. The session runs here until its ends promise the other edge: so no message waits
//! for longer than that takes, and if anything goes wrong before, the session stays.

use super::{Shard, report::note, roles, state::moves::Move};
use crate::api::{FromShard, MoveAnswer, MoveOver, MoveSession, NoteLevel, Now, ShardOutput, Tagged};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::{Feed, KeeperId, OwnerPhase, Witnessing};
use marram_wire::{
    frame::{Code, Keep, Reject},
    id::{HostId, Port, SessionId},
};

impl Shard {
    /// An operator asks to move a session.
    pub(super) fn move_session(&mut self, now: Now, asked: MoveSession, out: &mut Vec<ShardOutput>) {
        let MoveSession { tag, session: id, to, replace } = asked;
        let found = self.sessions.get(id).is_some_and(|session| !session.is_following());
        let asked = if !found {
            Ok(())
        } else if replace {
            self.move_instead(now, id, to, out)
        } else {
            self.wait_to_move(now, id, to)
        };
        let why = asked.err().unwrap_or_default();
        out.push(ShardOutput::Control(FromShard::MoveAnswer(MoveAnswer { tag, found, why })));
    }

    fn wait_to_move(&mut self, now: Now, id: SessionId, to: String) -> Result<(), String> {
        self.may_move(id, &to)?;
        self.moves.wait(id);
        if let Some(session) = self.sessions.get_mut(id) {
            session.moving = Some(Move::new(to, now.mono_ns).into());
        }
        Ok(())
    }

    /// Moves a session, also if it is being moved to another edge: that move ends, unless the session is handed over. One to the same
    /// edge goes on.
    fn move_instead(
        &mut self,
        now: Now,
        id: SessionId,
        to: String,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), String> {
        let Some(moving) = self.sessions.get(id).and_then(|session| session.moving.as_deref()) else {
            return self.wait_to_move(now, id, to);
        };
        if moving.to == to {
            return Ok(());
        }
        if moving.is_handed_over() {
            return Err(format!("the session is handed over to `{}` already", moving.to));
        }
        self.can_move(id, &to)?;
        let next = moving.replaced_by(to, self.drain.hands_over(), now.mono_ns);
        self.replace_move(now, id, next, out);
        Ok(())
    }

    /// The session stays protected: it goes on moving. The edge to which it moved so far forgets what it has.
    fn replace_move(&mut self, now: Now, id: SessionId, next: Move, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let to = next.to.clone();
        let Some(replaced) = session.moving.replace(next.into()) else { return };
        self.counters.moves_replaced += 1;
        let text = format!("not moved to `{}`: a move to `{to}` replaces that", replaced.to);
        note(NoteLevel::Info, Some(id), text, out);
        self.moves.over(id, None);
        self.moves.wait(id);
        self.sessions.rearm(now.mono_ns, id);
        if let Some(keeper) = replaced.keeper() {
            self.remove_replica(now, id, keeper, out);
            self.place(now, id, out);
        }
    }

    /// Why a session cannot be moved to an edge, if it cannot.
    pub(super) fn may_move(&self, id: SessionId, to: &str) -> Result<(), String> {
        match self.sessions.get(id).and_then(|session| session.moving.as_deref()) {
            Some(moving) => Err(format!(
                "the session is being moved to `{}` already: cancel that move first, or replace it (`marram move --replace`)",
                moving.to
            )),
            None => self.can_move(id, to),
        }
    }

    /// Why a session cannot be moved to an edge, whether or not it is being moved.
    fn can_move(&self, id: SessionId, to: &str) -> Result<(), String> {
        let Some(session) = self.sessions.get(id) else { return Err("the session is not here".into()) };
        let owner = &session.owner;
        if to == self.config.edge {
            return Err(format!("the session is on `{to}` already"));
        }
        if owner.policy().shared {
            return Err("the app has cell = \"shared\": a shared cell cannot be moved yet".into());
        }
        if owner.policy().witness == Some(Witnessing::Strict) {
            // The attempt would wait for the coordinator, and the session would have no owner meanwhile.
            return Err("the app has keep.witness = \"strict\": such a session cannot be moved yet".into());
        }
        if owner.is_recording() {
            return Err("the session is being recorded: try again when that is done".into());
        }
        if owner.phase() != OwnerPhase::Running {
            return Err(format!("the session is not running ({}): try again", owner.phase().name()));
        }
        if self.wires.of_standby(to, id).is_none() {
            let mut edges: Vec<String> = self.wires.standbys().map(|name| format!("`{name}`")).collect();
            edges.sort_unstable();
            edges.dedup();
            let connected = if edges.is_empty() { "none".to_string() } else { edges.join(", ") };
            return Err(format!(
                "the edge `{to}` is not connected to this edge (connected: {connected}): its configuration must name this edge in `standby.edges`"
            ));
        }
        Ok(())
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
                    if let Some(moving) = self.sessions.get_mut(id).and_then(|it| it.moving.as_deref_mut()) {
                        moving.begin(now.mono_ns, keeper);
                    }
                    self.sessions.rearm(now.mono_ns, id);
                    self.move_on(now, id, out);
                }
                Err(why) => self.move_over(now, id, Some(&why), out),
            }
        }
    }

    /// Has the other edge stand by for the session. One that replays it already needs no other copy.
    fn begin_move(
        &mut self,
        now: Now,
        id: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Result<KeeperId, String> {
        let gone = || "the session ended".to_string();
        let session = self.sessions.get_mut(id).ok_or_else(gone)?;
        let to = session.moving.as_deref().map(|moving| moving.to.clone()).ok_or_else(gone)?;
        let (wire, role) = self
            .wires
            .of_standby(&to, id)
            .ok_or_else(|| format!("the edge `{to}` is not connected to this edge any more"))?;
        if let Some(keeper) = session.placing.at_edge(&to).map(|placed| placed.id) {
            if session.placing.moves_to(keeper) {
                return Ok(keeper);
            }
            self.remove_replica(now, id, keeper, out);
        }
        let placed = self.place_at(now, id, (wire, role, Feed::Moved), out);
        self.with_owner(now, id, out, |owner, effects| owner.begin_protection(now, effects));
        placed.ok_or_else(|| format!("the connection to the edge `{to}` broke"))
    }

    /// Hands a session over, if it moves and the other edge has all that it needs.
    pub(super) fn move_on(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(moving) = session.moving.as_deref_mut() else { return };
        let Some(keeper) = moving.fed() else { return };
        let mut effects = Vec::new();
        if session.owner.hand_over(now, keeper, &mut effects) {
            moving.hand_over(now.mono_ns);
        }
        // What asks the ends, or tells the other edge. This is called again by what comes of it.
        if !effects.is_empty() {
            self.perform(now, id, effects, out);
        }
    }

    /// The replica at the edge to which a session moves is gone: the session stays.
    pub(super) fn move_lost(
        &mut self,
        now: Now,
        id: SessionId,
        keeper: KeeperId,
        why: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        if moving.is_some_and(|moving| moving.keeper() == Some(keeper)) {
            self.move_over(now, id, Some(why), out);
        }
    }

    /// Ends a move that is not over, from this side: the other edge forgets what it has, and the session stays.
    pub(super) fn give_up_move(&mut self, now: Now, id: SessionId, why: &str, out: &mut Vec<ShardOutput>) {
        let moving = self.sessions.get(id).and_then(|session| session.moving.as_deref());
        let Some(keeper) = moving.map(Move::keeper) else { return };
        self.move_over(now, id, Some(why), out);
        if let Some(keeper) = keeper {
            self.remove_replica(now, id, keeper, out);
            // It may be the edge that should stand by.
            self.place(now, id, out);
        }
    }

    /// A move is over: the session has left, or stays because of `why`.
    fn move_over(&mut self, now: Now, id: SessionId, why: Option<&str>, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(moving) = session.moving.take() else { return };
        if !why.is_some_and(|why| self.moves_elsewhere(now, id, &moving, why, out)) {
            self.report_move(now, id, &moving, why, out);
            self.with_owner(now, id, out, |owner, effects| owner.end_protection(effects));
        }
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
        let handed_over = moving.is_handed_over() && code == Code::Superseded;
        let why = format!("the session left meanwhile: {reason}");
        self.report_move(now, id, moving, (!handed_over).then_some(&why), out);
    }

    fn report_move(
        &mut self,
        now: Now,
        id: SessionId,
        moving: &Move,
        why: Option<&str>,
        out: &mut Vec<ShardOutput>,
    ) {
        self.moves.over(id, moving.took_ns(now.mono_ns));
        let (to, ms) = (moving.to.clone(), now.mono_ns.saturating_sub(moving.asked_ns) / 1_000_000);
        let (level, text) = match why {
            None => {
                self.counters.moves += 1;
                (NoteLevel::Info, format!("moved to `{to}` in {ms} ms"))
            }
            Some(why) => {
                self.counters.moves_failed += 1;
                (NoteLevel::Warning, format!("not moved to `{to}`: {why}"))
            }
        };
        note(level, Some(id), text, out);
        let why = why.unwrap_or_default().to_string();
        out.push(ShardOutput::Control(FromShard::MoveOver(MoveOver { session: id, to, ms, why })));
    }

    /// Whether this shard can take a session over that another edge wants to hand to it: a move must fail before anything is
    /// copied, if it must.
    pub(super) fn can_be_moved_here(&self, keep: &Keep, server: Option<&str>) -> Result<(), String> {
        let away = self.away(keep.hosts.iter().copied(), server);
        away.map_or(Ok(()), |port| Err(self.end_is_away(port)))
    }

    fn end_is_away(&self, port: Port) -> String {
        let end = if port == Port::CLIENT { "client" } else { "server" };
        format!("the agent of the session's {end} is not connected to the edge `{}`", self.config.edge)
    }

    /// The owner of a session that this shard stands by for has handed it over, and all of it is replayed.
    pub(super) fn take_handed_over(&mut self, now: Now, id: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(id).filter(|session| session.is_following()) else { return };
        let refusal = if self.drain.has_begun() {
            Some((Code::Busy, "the edge is shutting down".to_string()))
        } else {
            let owner = &session.owner;
            let hosts = [Port::CLIENT, Port::SERVER].into_iter().filter_map(|port| owner.host(port));
            self.away(hosts, owner.policy().server.as_deref())
                .map(|port| (Code::Waiting, self.end_is_away(port)))
        };
        let Some((code, reason)) = refusal else { return self.take_over(now, id, out) };
        if let Some((wire, channel)) = session.feeder {
            out.push(ShardOutput::Send { wire, frame: Reject { channel, code, reason }.into() });
        }
        self.drop_standby(now, id, out);
    }

    /// The port of an end that cannot be asked from here. `hosts` are the agents of the ends, client first.
    fn away(&self, hosts: impl Iterator<Item = HostId>, server: Option<&str>) -> Option<Port> {
        let mut ends = hosts.zip([Port::CLIENT, Port::SERVER]);
        let away = ends.find(|(host, port)| roles::wire_to(&self.wires, *host, *port, server).is_none());
        away.map(|(_, port)| port)
    }
}
