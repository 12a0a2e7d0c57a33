//! Sessions of an agent: their owners, the choice of an owner, and the recovery without one.

use super::{
    AGENT, Agent, AgentConfig, AgentOutput, AgentReport, EndId, Target, WireId,
    leads::Leads,
    local::{Local, reset},
    wire_table::{At, Bound},
};
use crate::{
    bug,
    end::{End, EndPhase, PromiseRefusal},
    trace,
    trace::{TraceContext, TraceRole},
};
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Channel, Code, Ended, Frame, Hello, Keeps, Promise, Sender, Superseded},
    id::Generation,
};

/// How long an edge may take to ask for a promise after a hello, before another edge is asked.
const HELLO_PATIENCE_NS: u64 = 5_000_000_000;
/// A session counts as active for so long after its program has sent or received something. The silence before an owner counts as
/// lost comes on top.
const ACTIVE_NS: u64 = 1_000_000_000;
/// A session that has been without an owner for so long counts as active too. On edges that die soon one after the other it would
/// else be behind all others each time.
const WAITED_NS: u64 = 2_000_000_000;
/// First backoff after a rejection; doubles up to [`RETRY_MAX_NS`].
const RETRY_MIN_NS: u64 = 10_000_000;
pub(super) const RETRY_MAX_NS: u64 = 500_000_000;

/// One session as its agent sees it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) end: End,
    pub(super) local: Local,
    /// The server's name; empty at the client's end.
    pub(super) server: String,
    /// The channel of the generation that has the end's promise.
    pub(super) attached: Option<At>,
    /// The channel on which a generation was asked for.
    pub(super) asking: Option<At>,
    /// The channel of an owner that fell silent: it may still run, and must learn of its successor.
    pub(super) silent: Option<At>,
    /// Channels of older generations. Their owners know of the newer one and may still send.
    pub(super) stale: Vec<At>,
    /// Whether it ever had an owner.
    had_owner: bool,
    /// The domain of the edge that got its last promise: only edges of this domain can recover it.
    pub(super) domain: Option<[u8; 8]>,
    /// Since when it has no owner.
    orphaned_ns: Option<u64>,
    /// When its program last sent or received something.
    pub(super) active_ns: u64,
    /// Its home shard, if it is away from home.
    pub(super) home: Option<Target>,
    /// Whether an operator has moved it to the shard that has its last promise.
    pub(super) assigned: bool,
    /// When to ask for a generation (again).
    pub(super) lead_ns: Option<u64>,
    /// Whether its last owner left because the other end has promised a newer one, which is about to ask here too.
    is_followed: bool,
    pub(super) retry_ns: u64,
    /// Targets that rejected it recently, and the codes.
    pub(super) rejected: Vec<(Target, Code)>,
    /// Where its cell is, as edges say.
    pub(super) leads: Leads,
    /// Shards that cannot go on with it since it lost its owner: it is kept only because it was moving, and they have not all of it.
    pub(super) unable: BTreeSet<Target>,
    /// The last rejection, until an edge accepts it.
    pub(super) refusal: Option<(Code, String)>,
    /// Reported refusals since it last had an owner: one reason for each edge.
    pub(super) reported_reasons: BTreeMap<u16, String>,
    pub(super) connect_by_ns: Option<u64>,
    pub(super) acknowledging: bool,
    pub(super) timer_ns: Option<u64>,
    pub(super) lingered: bool,
    /// What it counts for in the agent's memory.
    pub(super) counted: u64,
}

impl Session {
    pub(super) fn new(end: End, now_ns: u64) -> Self {
        Self {
            local: Local::new(end.datagrams()),
            end,
            server: String::new(),
            attached: None,
            asking: None,
            silent: None,
            stale: Vec::new(),
            had_owner: false,
            domain: None,
            orphaned_ns: Some(now_ns),
            active_ns: now_ns,
            home: None,
            assigned: false,
            lead_ns: None,
            is_followed: false,
            retry_ns: RETRY_MIN_NS,
            rejected: Vec::new(),
            leads: Leads::default(),
            unable: BTreeSet::new(),
            refusal: None,
            reported_reasons: BTreeMap::new(),
            connect_by_ns: None,
            acknowledging: false,
            timer_ns: None,
            lingered: false,
            counted: 0,
        }
    }

    fn is_server(&self) -> bool {
        !self.server.is_empty()
    }

    /// Whether it waits before it asks, since an edge that the other end has asked probably asks first.
    fn waits_to_be_asked(&self) -> bool {
        self.lead_ns.is_some() && (self.is_server() || self.is_followed)
    }

    /// Since when it has no owner.
    pub(super) fn orphaned_ns(&self) -> Option<u64> {
        self.orphaned_ns
    }

    /// Whether it has no owner.
    pub(super) fn is_orphaned(&self) -> bool {
        self.orphaned_ns.is_some()
    }

    /// Whether its program probably waits: it sent or received something shortly before the session lost its owner, or since. Or
    /// whether the session itself has waited for long.
    fn is_active(&self, now_ns: u64, config: &AgentConfig) -> bool {
        let (active_ns, lost_ns) =
            (ACTIVE_NS.saturating_add(config.heartbeat_timeout_ns), self.orphaned_ns.unwrap_or(now_ns));
        self.active_ns.saturating_add(active_ns) >= lost_ns || lost_ns.saturating_add(WAITED_NS) <= now_ns
    }

    /// How long the session may be without an owner: before it begins, as long as a connection waits; later, as long as
    /// its record is kept.
    pub(super) fn deadline_ns(&self, config: &AgentConfig) -> Option<u64> {
        let since_ns = self.orphaned_ns?;
        let linger_ns = self.end.terms().map_or(config.linger_ns, |t| u64::from(t.linger_ms) * 1_000_000);
        let begun = self.end.begun() || self.is_server();
        Some(since_ns + if begun { linger_ns } else { config.edge_wait_ns })
    }

    /// Whether a channel is one of its own, of any generation.
    pub(super) fn uses(&self, channel: At) -> bool {
        [self.attached, self.asking, self.silent].contains(&Some(channel)) || self.stale.contains(&channel)
    }
}

impl Agent {
    /// Asks the best edge for a generation of this session.
    pub(super) fn lead(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        let (candidates, settled) = (self.candidates(now_ns, id), self.is_settled(id));
        if self.is_abandoned(id, &candidates) {
            return self.abandon(now_ns, id, out);
        }
        let Some(session) = self.sessions.known_mut(id) else { return };
        session.lead_ns = None;
        let asked = session.asking.take();
        if let Some(wire) = asked.and_then(|(wire, _)| self.wires.get(wire)) {
            // The target did not answer in time, which counts as a rejection with this code.
            session.rejected.push((wire.target, Code::Waiting));
            session.leads.refused(wire.place());
            self.spread.refused(now_ns, session.end.app(), wire.target.edge);
        }
        asked.into_iter().for_each(|asked| self.wires.unbind(asked));
        if settled {
            // The home shard did not answer.
            session.rejected.clear();
            if let Some(home) = session.home {
                self.affinity.refused(now_ns, home);
            }
            return;
        }
        let open = |wire: &&WireId| {
            self.wires
                .get(**wire)
                .is_some_and(|wire| !session.rejected.iter().any(|(at, _)| *at == wire.target))
        };
        let open = candidates.iter().find(open).copied();
        if open.is_none() {
            // All were asked recently: start again with the nearest.
            session.rejected.clear();
        }
        let Some(wire_id) = open.or(candidates.first().copied()) else {
            // The next wire that becomes usable starts this again.
            trace!(session.end.context(), "waits: no edge can be asked for a generation");
            return self.sessions.arm_deadline(now_ns, id, &self.config);
        };
        self.ask(now_ns, id, wire_id, out);
    }

    /// Asks this edge for a generation.
    pub(super) fn ask(&mut self, now_ns: u64, id: EndId, wire_id: WireId, out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        let Some(wire) = self.wires.known(wire_id) else { return };
        let (target, welcome) = (wire.target, wire.welcome.as_ref());
        let Some(welcome) = welcome else {
            bug!("a session is asked for only on a wire that was welcomed", wire_id);
            return;
        };
        let challenge = welcome.challenge;
        let Some(channel) = self.wires.open(wire_id, id) else { return };
        session.asking = Some((wire_id, channel));
        session.lead_ns = Some(now_ns + HELLO_PATIENCE_NS);
        trace!(session.end.context(), "asks {target:?} for a generation, on wire {}", wire_id.0);
        if session.end.terms().is_none() {
            self.wires.asked(wire_id);
        }
        let hello = Hello {
            active: session.is_active(now_ns, &self.config),
            ..session.end.hello(channel, &challenge)
        };
        out.push(AgentOutput::Send { wire: wire_id, frame: hello.into() });
        self.sessions.arm(id, now_ns + HELLO_PATIENCE_NS);
        self.sessions.arm_deadline(now_ns, id, &self.config);
    }

    /// An edge can be asked (again): every session without an owner asks it.
    pub(super) fn wire_usable(&mut self, now_ns: u64, out: &mut Vec<AgentOutput>) {
        let without_owner: Vec<(EndId, bool)> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.orphaned_ns.is_some() && session.asking.is_none())
            .filter(|(_, session)| session.attached.is_none() && !session.waits_to_be_asked())
            .map(|(id, session)| (id, session.is_server()))
            .collect();
        for (id, server) in without_owner {
            if server {
                self.sessions.lead_at(id, now_ns + self.config.heartbeat_timeout_ns);
            } else {
                self.lead(now_ns, id, out);
            }
        }
    }

    /// An edge asks for a promise.
    pub(super) fn promise(
        &mut self,
        now_ns: u64,
        wire_id: WireId,
        ask: &Promise,
        out: &mut Vec<AgentOutput>,
    ) {
        let id = EndId { session: ask.session, server: !ask.server.is_empty() };
        let new = self.sessions.get(id).is_none() && !self.tombstones.has(id.session);
        let server = self.config.servers.iter().find(|server| server.name == ask.server);
        let server = server.filter(|_| new && ask.fresh);
        if server.is_some()
            && let Some(reason) = self.refuses_new()
        {
            // The edge asks another agent of that server, or the client's agent asks again, until its connection has waited for too long.
            let ended = Ended { channel: ask.channel, code: Code::Busy, reason };
            return out.push(AgentOutput::Send { wire: wire_id, frame: ended.into() });
        }
        if let Some(server) = server {
            let end = End::new(id.session, true, ask.app.clone());
            let end = end.with_datagrams(server.datagrams).with_origin(ask.origin.clone());
            let end = end.with_checkpoints_max(self.config.checkpoints_max);
            let mut session = Session::new(end, now_ns);
            session.local.messages |= server.messages;
            session.server.clone_from(&ask.server);
            self.begin_session(id, session);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            let context = TraceContext::of_session(TraceRole::Agent, id.session, ask.generation);
            trace!(context, "refuses a promise: it does not have this end of the session");
            let reason = "this end does not know the session, or no longer knows it".to_string();
            let ended = Ended { channel: ask.channel, code: Code::Forgotten, reason };
            return out.push(AgentOutput::Send { wire: wire_id, frame: ended.into() });
        };
        let mut effects = core::mem::take(&mut self.effects);
        // The promise grants credit.
        session.end.limit(self.budget.share(), self.budget.window());
        if let Err(refusal) = session.end.promise(now_ns, ask, &mut effects) {
            trace!(session.end.context(), "refuses a promise to {}: {refusal:?}", ask.generation);
            let frame = refuse(ask.channel, &refusal);
            out.push(AgentOutput::Send { wire: wire_id, frame });
            if refusal == PromiseRefusal::Uncovered {
                self.cannot_go_on(now_ns, id, wire_id, out);
            }
            return;
        }
        // If this end asked on another channel, this promise answers that one as well. A former owner's channel stays
        // bound to its older generation until the owner sends a frame.
        let asking = session.asking.take().filter(|asking| *asking != (wire_id, ask.channel));
        asking.into_iter().for_each(|asking| self.wires.unbind(asking));
        let former = session.attached.replace((wire_id, ask.channel)).or(session.silent.take());
        if let Some((wire, channel)) = former.filter(|former| self.wires.bound(*former).is_some()) {
            // A running owner learns of it at once; a stopped one is refused when it continues.
            let superseded = Superseded { channel, promised: ask.generation };
            out.push(AgentOutput::Send { wire, frame: superseded.into() });
            session.stale.push((wire, channel));
        }
        session.orphaned_ns.get_or_insert(now_ns);
        session.lead_ns = None;
        session.leads = Leads::default();
        session.assigned = ask.assigned;
        if !id.server {
            self.spread.learned(&ask.app, ask.shared);
        }
        if let Some(wire) = self.wires.get(wire_id) {
            session.domain = wire.welcome.as_ref().map(|welcome| welcome.domain);
            let bound = Bound { session: id, generation: ask.generation };
            self.wires.bind((wire_id, ask.channel), bound);
        }
        let broken = session.local.broken.clone();
        // Whether it is away from home is known when it has an owner again.
        self.forget_home(id);
        self.perform(now_ns, id, effects, out);
        if let Some((code, reason)) = broken {
            self.give_up(now_ns, id, code, reason, out);
        }
    }

    /// A frame on a channel.
    pub(super) fn session_frame(
        &mut self,
        now_ns: u64,
        wire_id: WireId,
        frame: Frame,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(channel) = frame.channel(Sender::Edge) else {
            return trace!(AGENT, "ignores {} on wire {}: no edge sends it", frame.name(), wire_id.0);
        };
        let Some(wire) = self.wires.known(wire_id) else { return };
        let known =
            wire.bound(channel).and_then(|bound| Some((bound, self.sessions.get_mut(bound.session)?)));
        let Some((bound, session)) = known else {
            // An owner sends to an end that does not exist any more: it must not wait for the end.
            let name = frame.name();
            trace!(AGENT, "ignores {name} on wire {}: channel {channel} is not bound", wire_id.0);
            let last =
                matches!(frame, Frame::Ended(_) | Frame::Reject(_) | Frame::Lead(_) | Frame::Failed(_));
            if !last {
                let promised = Generation::NONE;
                out.push(AgentOutput::Send { wire: wire_id, frame: Superseded { channel, promised }.into() });
            }
            return;
        };
        let id = bound.session;
        if session.asking == Some((wire_id, channel)) {
            return match frame {
                Frame::Reject(reject) => self.rejected(now_ns, id, wire_id, &reject, out),
                Frame::Lead(lead) => self.led(now_ns, id, wire_id, lead, out),
                Frame::Ended(ended) => self.ended_by_another(now_ns, id, ended, out),
                other => {
                    trace!(session.end.context(), "ignores {}: its edge has no promise yet", other.name());
                }
            };
        }
        let promised = session.end.promised();
        if bound.generation < promised || session.attached != Some((wire_id, channel)) {
            let (name, of) = (frame.name(), bound.generation);
            let why = if of < promised { "it has promised a newer one" } else { "it has left this owner" };
            trace!(session.end.context(), "refuses {name} of generation {of}: {why}");
            self.wires.unbind((wire_id, channel));
            out.push(AgentOutput::Send { wire: wire_id, frame: Superseded { channel, promised }.into() });
            let generation = bound.generation;
            return out
                .push(AgentOutput::Report(AgentReport::ZombieRefused { session: id.session, generation }));
        }
        if matches!(frame, Frame::Reject(_) | Frame::Failed(_)) {
            // The last frame on this channel.
            self.wires.unbind((wire_id, channel));
        }
        match frame {
            Frame::Ended(ended) => self.end_session(now_ns, id, ended.code, ended.reason, out),
            Frame::Reject(reject) => {
                session.refusal = Some((reject.code, reject.reason.clone()));
                session.end.refused(reject.code);
                self.orphan(now_ns, id, (reject.code, &reject.reason), out);
            }
            other => self.owner_frame(now_ns, id, wire_id, channel, other, out),
        }
    }

    fn owner_frame(
        &mut self,
        now_ns: u64,
        id: EndId,
        wire: WireId,
        channel: Channel,
        frame: Frame,
        out: &mut Vec<AgentOutput>,
    ) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        let before = session.end.phase();
        let mut effects = core::mem::take(&mut self.effects);
        if let Err(violation) = session.end.receive(now_ns, frame, &mut effects) {
            trace!(session.end.context(), "the owner broke the protocol: {}", violation.0);
            let reason = violation.0.to_string();
            let ended = Ended { channel, code: Code::Protocol, reason: reason.clone() };
            out.push(AgentOutput::Send { wire, frame: ended.into() });
            return self.end_session(now_ns, id, Code::Protocol, reason, out);
        }
        let phase = session.end.phase();
        let connect = phase == EndPhase::Owned && session.is_server() && session.local.id.is_none();
        let connect = connect
            && session.local.broken.is_none()
            && before == EndPhase::Promised
            && !session.end.complete();
        if before != EndPhase::Owned && phase == EndPhase::Owned {
            self.owned(now_ns, id, wire, out);
        }
        self.perform(now_ns, id, effects, out);
        if connect {
            self.connect(now_ns, id, out);
        }
        if phase == EndPhase::Detached {
            self.orphan(now_ns, id, (Code::Guest, "a handler was stopped"), out);
        }
    }

    fn owned(&mut self, now_ns: u64, id: EndId, wire: WireId, out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        let Some(target) = self.wires.known(wire).map(|wire| wire.target) else { return };
        let generation = session.end.promised();
        let since_ns = session.orphaned_ns.take().filter(|_| session.had_owner);
        let gap_ns = since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        session.had_owner = true;
        session.retry_ns = RETRY_MIN_NS;
        session.rejected.clear();
        session.unable.clear();
        session.refusal = None;
        session.reported_reasons.clear();
        let app = session.end.app().to_string();
        out.push(AgentOutput::Report(AgentReport::Owned {
            session: id.session,
            app,
            generation,
            target,
            gap_ns,
        }));
        self.note_home(now_ns, id, wire);
    }

    /// A wire broke or fell silent. Sessions that had or asked for an owner there ask another edge.
    pub(super) fn lost_wire(
        &mut self,
        now_ns: u64,
        id: EndId,
        wire: WireId,
        reason: &str,
        out: &mut Vec<AgentOutput>,
    ) {
        // An earlier channel of the same wire may have ended it.
        let Some(session) = self.sessions.get_mut(id) else { return };
        if session.asking.is_some_and(|(at, _)| at == wire) {
            self.sessions.lead_at(id, now_ns);
        }
        let Some(session) = self.sessions.known_mut(id) else { return };
        if session.attached.is_some_and(|(at, _)| at == wire) {
            self.orphan(now_ns, id, (Code::Lost, reason), out);
        }
    }

    /// The session has no owner, for this reason. The client's end asks at once. The server's end first waits for a heartbeat timeout, and
    /// so do both if the owner has left because the other end promised a newer one: that one is about to ask here.
    fn orphan(&mut self, now_ns: u64, id: EndId, (code, reason): (Code, &str), out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        if session.end.phase() == EndPhase::Promised {
            // The owner failed after the promise: avoid a tight retry loop.
            session.retry_ns = (session.retry_ns * 2).min(RETRY_MAX_NS);
            // Only the backup can go on with it: others are asked before the one that failed.
            let backed = session.end.terms().is_some_and(|terms| terms.keeps == Keeps::Messages);
            let failed = session.attached.filter(|_| backed).and_then(|(wire, _)| self.wires.get(wire));
            session.rejected.extend(failed.map(|wire| (wire.target, code)));
        }
        let former = session.attached.take().filter(|former| self.wires.bound(*former).is_some());
        session.unable.clear();
        session.end.drift();
        if session.orphaned_ns.is_none() {
            session.orphaned_ns = Some(now_ns);
            out.push(AgentOutput::Report(AgentReport::Orphaned {
                session: id.session,
                reason: reason.to_string(),
            }));
        }
        if self.sessions.is_lost_with_its_owner(id) {
            if let Some((wire, channel)) = former {
                // The silent owner may still run: it must end the session for the other end as well.
                let ended = Ended { channel, code: Code::Lost, reason: reason.to_string() };
                out.push(AgentOutput::Send { wire, frame: ended.into() });
            }
            former.into_iter().for_each(|former| self.wires.unbind(former));
            return self.end_session(now_ns, id, Code::Lost, reason.to_string(), out);
        }
        let Some(session) = self.sessions.known_mut(id) else { return };
        session.silent = former;
        if session.asking.is_none() {
            session.is_followed = code == Code::Superseded;
            let is_asked = session.is_server() || session.is_followed;
            let backoff_ns = session.retry_ns - RETRY_MIN_NS;
            let wait_ns = if is_asked { self.config.heartbeat_timeout_ns } else { backoff_ns };
            self.sessions.lead_at(id, now_ns + wait_ns);
        }
        self.sessions.arm_deadline(now_ns, id, &self.config);
    }

    /// An edge asked for the promise of a session that is kept only because it was moving, and has not all of it.
    fn cannot_go_on(&mut self, now_ns: u64, id: EndId, wire: WireId, out: &mut Vec<AgentOutput>) {
        let Some(target) = self.wires.known(wire).map(|wire| wire.target) else { return };
        let Some(session) = self.sessions.known_mut(id) else { return };
        // An edge that has not all of it while its owner lives may be sent the rest.
        if session.attached.is_none() && session.unable.insert(target) {
            let candidates = self.candidates(now_ns, id);
            if self.is_abandoned(id, &candidates) {
                self.abandon(now_ns, id, out);
            }
        }
    }

    /// Whether no edge can go on with a session that is kept only because it was moving: each one that can be asked has not all of it,
    /// and none can be expected that was not asked. Its owner's machine is dead then, or not connected any more: outside of a move
    /// that ends an unprotected session, too.
    fn is_abandoned(&self, id: EndId, candidates: &[WireId]) -> bool {
        let Some(session) = self.sessions.get(id) else { return false };
        let is_unable =
            |wire: &WireId| self.wires.get(*wire).is_some_and(|wire| session.unable.contains(&wire.target));
        session.end.keeps_for_now()
            && session.attached.is_none()
            && !candidates.is_empty()
            && candidates.iter().all(is_unable)
            && !self.wires.expects_an_edge()
    }

    fn abandon(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        let reason = "the session lost its edge while it moved, and no other edge has all of it".to_string();
        self.end_session(now_ns, id, Code::Lost, reason, out);
    }

    /// The edge drains: ask another edge, if there is one, and stay until that one answers.
    pub(super) fn move_away(&mut self, now_ns: u64, id: EndId, wire: WireId, out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known(id) else { return };
        let keeps = session.end.terms().is_none_or(|terms| terms.keeps.anything());
        let here = keeps && session.attached.is_some_and(|(at, _)| at == wire);
        if here && !session.is_server() && session.asking.is_none() && !self.candidates(now_ns, id).is_empty()
        {
            self.lead(now_ns, id, out);
        }
    }

    /// Handles what is due for the session.
    pub(super) fn session_due(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        if session.acknowledging {
            session.acknowledging = false;
            let mut effects = core::mem::take(&mut self.effects);
            session.end.acknowledge(&mut effects);
            self.perform(now_ns, id, effects, out);
        }
        let Some(session) = self.sessions.known_mut(id) else { return };
        if session.connect_by_ns.is_some_and(|by_ns| by_ns <= now_ns) {
            session.connect_by_ns = None;
            let reason = "the server did not answer in time".to_string();
            if let Some(connection) = session.local.id {
                self.connections.remove(connection);
                out.push(reset(connection, Some(id.session), Code::ServerDown, &reason));
            }
            return self.give_up(now_ns, id, Code::ServerDown, reason, out);
        }
        let Some(session) = self.sessions.known(id) else { return };
        let expired = session.deadline_ns(&self.config).is_some_and(|deadline_ns| deadline_ns <= now_ns);
        if expired && session.attached.is_none() {
            return self.expire(now_ns, id, out);
        }
        if session.lead_ns.is_some_and(|lead_ns| lead_ns <= now_ns) {
            self.lead(now_ns, id, out);
        }
        if self.sessions.get(id).is_some() {
            self.sessions.rearm(id, &self.config);
        }
    }

    /// The session was without an owner for too long.
    fn expire(&mut self, now_ns: u64, id: EndId, out: &mut Vec<AgentOutput>) {
        let Some(session) = self.sessions.known_mut(id) else { return };
        session.lingered = true;
        let last = session.refusal.take();
        let (code, reason) = if session.end.complete() {
            (Code::Finished, "everything was received; the owner's last frame did not arrive".to_string())
        } else if let Some((code, reason)) = last {
            (code, alloc::format!("no edge accepted the session in time; the last refusal: {reason}"))
        } else {
            (
                Code::NoEdge,
                "no edge could be reached in time; is one running, and configured here?".to_string(),
            )
        };
        self.end_session(now_ns, id, code, reason, out);
    }
}

fn refuse(channel: Channel, refusal: &PromiseRefusal) -> Frame {
    match refusal {
        PromiseRefusal::Superseded(promised) => Superseded { channel, promised: *promised }.into(),
        PromiseRefusal::Unproven => {
            let reason = "the session is known here, and its key was not proved".to_string();
            Ended { channel, code: Code::Superseded, reason }.into()
        }
        PromiseRefusal::Lost => {
            let reason = "the session began at another owner, and the app keeps nothing".to_string();
            Ended { channel, code: Code::Lost, reason }.into()
        }
        PromiseRefusal::Uncovered => {
            // The edge to which it moves may be asked next.
            let reason = "the session moves, and this edge has not all of it".to_string();
            Ended { channel, code: Code::Waiting, reason }.into()
        }
        PromiseRefusal::Behind => {
            let reason = "this edge has consumed less than the end has forgotten, or produced less than it has received".to_string();
            Ended { channel, code: Code::Waiting, reason }.into()
        }
        PromiseRefusal::Ends => {
            let reason = "the session's other end is at another agent".to_string();
            Ended { channel, code: Code::Superseded, reason }.into()
        }
        PromiseRefusal::Image => {
            let reason = "the session runs another image".to_string();
            Ended { channel, code: Code::Protocol, reason }.into()
        }
    }
}
