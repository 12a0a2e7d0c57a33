//! An end asks for a generation: checks its identity and rights, finds the other end, and starts the attempt.

use super::{
    Session, Shard, images,
    keys::Wanted,
    policy, refused, roles, shared,
    state::{
        apps::Apps,
        wires::{Bound, Wire},
    },
};
use crate::api::{App, AppVersion, Configure, Now, Protect, ShardOutput, ShardWireId};
use crate::suggest;
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_session::{
    cell::Seed,
    owner::{Attempt, Owner, OwnerPhase},
};
use marram_wire::{
    frame::{Channel, Code, Hello, Lead, Reject},
    id::{Generation, HostId, Port, SessionId},
    seal::{self, SessionKeys},
};

/// Attempts in a row before an end must retry later.
const AGAIN_MAX: u32 = 4;

/// How an end is reached: the wire, the channel if the end has opened one, and the agent.
pub(super) type Reached = (ShardWireId, Option<Channel>, HostId);

/// Why a hello is rejected.
#[derive(Debug)]
pub(super) enum Refusal {
    Rejected(Code, String),
    /// It waits for its shared cell: it is known soon whether that will be here.
    Held,
    /// Its shared cell is at the first of these shards, which have the names of their edges; the other one is the cell's backup.
    Led((String, u8), Option<(String, u8)>),
}

impl Refusal {
    /// The agent has no right to do this, for any session.
    pub(super) fn forbidden(reason: String) -> Self {
        Self::Rejected(Code::Forbidden, reason)
    }
}

pub(super) fn refuse<T>(code: Code, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Rejected(code, reason.into()))
}

/// The answer to an end, or to an owner that looks for a standby, if the shard is full.
pub(super) const SESSIONS_MAX_REACHED: &str =
    "the shard has reached its maximum number of sessions: raise `limits.sessions` of its edge";

/// The answer to an end that leaves no generation to open. Its count is false: no machine lasts long enough to count so
/// far.
const NO_GENERATION_LEFT: &str = "no generation can follow the one that an end claims to have promised";

/// The port of the end that says hello.
fn port_of(hello: &Hello) -> Port {
    if hello.server { Port::SERVER } else { Port::CLIENT }
}

impl Shard {
    pub(super) fn hello(&mut self, now: Now, wire: ShardWireId, hello: Hello, out: &mut Vec<ShardOutput>) {
        // A new session costs little, and one that is known here has its place already.
        let recovers =
            !self.sessions.has(hello.session) && !hello.fresh && self.app_of_cells(&hello).is_none();
        if recovers && !self.may_recover() {
            // Only a session's own ends may make it wait, or replace a hello that waits already.
            if let Err(refusal) = self.admissible(wire, &hello) {
                return self.answer_hello(now, wire, &hello, Err(refusal), out);
            }
            // Heartbeats continue: an end suspects a host, not a slow session.
            self.counters.recoveries_queued += 1;
            return self.waiting.push(wire, hello);
        }
        let tried = self.try_hello(now, wire, &hello, true, out);
        self.answer_hello(now, wire, &hello, tried, out);
    }

    /// Whether one more recovery may begin: each replays a log, and all of them share the executors.
    pub(super) fn may_recover(&self) -> bool {
        let limit = self.config.recoveries_max as usize;
        limit == 0 || self.sessions.recoveries() < limit
    }

    /// Whether the agent may send this hello, on a channel of its own, and has proved the session's key if it must.
    fn admissible(&self, id: ShardWireId, hello: &Hello) -> Result<bool, Refusal> {
        let Some(wire) = self.wires.get(id) else { return refuse(Code::Waiting, "the wire is gone") };
        if wire.bound(hello.channel).is_some() || !hello.channel.is_multiple_of(2) {
            // Odd numbers are this shard's. The session that has the channel would lose its end without notice.
            return refuse(Code::Protocol, "the hello's channel is in use, or odd");
        }
        roles::may_say_hello(wire, hello, &self.config.edge)?;
        self.proven(wire, hello)
    }

    /// Whether the sender of the hello proved the session's key, if it must.
    pub(super) fn proven(&self, wire: &Wire, hello: &Hello) -> Result<bool, Refusal> {
        let keys = SessionKeys::derive(&self.secret, hello.session);
        match &hello.proof {
            Some(proof)
                if seal::same(proof, &seal::proof(&keys.resume(), &wire.challenge, hello.session)) =>
            {
                Ok(true)
            }
            Some(_) => refuse(
                Code::WrongKey,
                alloc::format!(
                    "the proof does not match the session's key: it is of another session, or edge `{}` has another \
                     domain secret than the edge where the session began; give all edges the same `secret_file`",
                    self.config.edge
                ),
            ),
            None if hello.fresh && !hello.server => Ok(false),
            None => refuse(Code::WrongKey, "a session can be resumed only with its key"),
        }
    }

    /// Tells the end why its hello was refused, if it was.
    pub(super) fn answer_hello(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        tried: Result<(), Refusal>,
        out: &mut Vec<ShardOutput>,
    ) {
        let (code, reason) = match tried {
            Ok(()) => return self.refused.admitted(hello.session),
            Err(Refusal::Held) => {
                let app = self.app_of_cells(hello);
                let slot = app.and_then(|app| Wanted::by(hello, app).ok()).map(|wanted| wanted.slot());
                return slot.into_iter().for_each(|slot| self.held.push(wire, slot, hello.clone()));
            }
            Err(Refusal::Led((edge, shard), backup)) => {
                let channel = hello.channel;
                let (backup, backup_shard) = backup.unwrap_or_default();
                let lead = Lead { channel, edge, shard, backup, backup_shard };
                return out.push(ShardOutput::Send { wire, frame: lead.into() });
            }
            Err(Refusal::Rejected(code, reason)) => (code, reason),
        };
        self.counters.rejected += 1;
        // The log is for what an operator can fix; the end gets every reason.
        self.tell_refusal(now, hello, code, &reason, out);
        out.push(ShardOutput::Send { wire, frame: Reject { channel: hello.channel, code, reason }.into() });
    }

    /// Starts waiting recoveries.
    pub(super) fn admit(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        // If one is rejected, the next one may start.
        while self.may_recover() {
            let Some((wire, hello)) = self.waiting.pop() else { return };
            self.hello(now, wire, hello, out);
        }
    }

    /// Checks a hello (docs/protocol.md, "The shard's checks of a hello") and opens a generation. With `may_recall`, a
    /// recorder may be asked first; the hello is then handled again without it.
    pub(super) fn try_hello(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        may_recall: bool,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), Refusal> {
        let proven = self.admissible(wire, hello)?;
        // The order of these checks is that of docs/protocol.md, chapter 4: the first that fails is the answer.
        if self.drain.has_begun() && !self.may_ask_for_cell(hello) {
            return refuse(Code::Busy, "the edge is shutting down");
        }
        if hello.promised.count == u64::MAX {
            return refuse(Code::Protocol, NO_GENERATION_LEFT);
        }
        if let Some(app) = self.app_of_cells(hello).cloned() {
            return self.client_hello(now, wire, hello, (proven, &app), out);
        }
        let id = hello.session;
        if self.is_shared_cell(id) {
            return refuse(Code::Protocol, "the hello names no client's session");
        }
        if let Some(session) = self.sessions.get(id)
            && hello.promised < session.owner.generation()
            && session.link(port_of(hello)).is_some_and(|(linked, _)| linked == wire)
        {
            // The hello crossed with the promise that this shard asked of the same end, over this same wire.
            return Ok(());
        }
        self.may_open_backed(now, id, out)?;
        let (app, ends) = self.resolve(now, wire, hello, proven, out)?;
        Self::may_begin_without_key(hello, &app)?;
        if app.has_backup() {
            self.refuse_unbacked(id, hello.fresh)?;
        }
        if !self.sessions.has(id) {
            if hello.fresh {
                self.has_room(&app)?;
            } else if self.sessions.are_at(self.config.sessions_max) {
                return refuse(Code::Busy, SESSIONS_MAX_REACHED);
            }
            // Checked for room before the recorder is asked: its answer must not be in vain.
            let may_be_recorded = !hello.fresh && app.protect != Protect::None && !app.has_backup();
            if may_be_recorded && may_recall && self.recall(now, wire, hello, out) {
                return Ok(());
            }
            let owner = self.new_owner(id, &app, &ends);
            self.sessions.insert(id, Session::new(now, owner, self.tenants.place(&app)));
        }
        if let Some(session) = self.sessions.get_mut(id) {
            // An end that asks again is a new reason to try: earlier conflicts do not count against it.
            (session.fresh, session.proven, session.again) = (hello.fresh, proven, 0);
            // Used only if the session begins (docs/formats-frames.md, `Hello`).
            if hello.fresh {
                session.owner.came_from(hello.origin.clone());
            }
        }
        if hello.fresh {
            self.place(now, id, out);
        }
        self.take_back(now, id, out);
        self.sessions.recount(id);
        self.attempt(now, id, hello.promised.count, &ends, out);
        Ok(())
    }

    /// Whether there is room for one more session of an app.
    pub(super) fn has_room(&mut self, app: &App) -> Result<(), Refusal> {
        if self.sessions.are_at(self.config.sessions_max) {
            return refuse(Code::Busy, SESSIONS_MAX_REACHED);
        }
        self.has_room_for_client(app)
    }

    /// Whether there is room for one more client of an app.
    pub(super) fn has_room_for_client(&mut self, app: &App) -> Result<(), Refusal> {
        if !self.sessions.has_memory() {
            return refuse(Code::Busy, self.no_memory());
        }
        self.tenants.have_room(app).map_err(|reason| Refusal::Rejected(Code::Busy, reason))
    }

    /// An owner of a session with these ends that knows nothing of it yet.
    pub(super) fn new_owner(&mut self, id: SessionId, app: &App, ends: &[(Port, Reached)]) -> Owner {
        let hosts: Vec<HostId> = ends.iter().map(|(_, (.., host))| *host).collect();
        let (keys, seed) = (SessionKeys::derive(&self.secret, id), Seed(self.random.bytes()));
        Owner::new(id, app.image, keys, policy(app, &self.config), &hosts, seed)
    }

    /// The app that a hello asks for, and where the session's ends are, client first. `proven` is the result of
    /// [`Shard::proven`].
    pub(super) fn resolve(
        &mut self,
        now: Now,
        id: ShardWireId,
        hello: &Hello,
        proven: bool,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(App, Vec<(Port, Reached)>), Refusal> {
        let app = app_of((&mut self.apps, &self.config), now, hello, proven, out)?;
        let wire = self.wires.get(id);
        if let Some(wire) = wire {
            roles::may_hold_end(wire, hello, app.server.as_deref(), &self.config.edge)?;
        }
        if let Some(home) = shared::elsewhere(&app, 0, &self.config) {
            let reason = alloc::format!("the shared cell of `{}` is on shard {home}", app.name);
            return refuse(Code::Elsewhere, reason);
        }
        let host = wire.and_then(|wire| wire.host).unwrap_or_default();
        let session = self.sessions.get(hello.session);
        // The ends are fixed by the first promise (I5): another agent with the key is refused too.
        let known = session.and_then(|session| session.owner.host(port_of(hello)));
        if known.is_some_and(|known| known != host) {
            return refuse(Code::Superseded, "the session's end is at another agent");
        }
        let other = self.other_end(now, hello, &app)?;
        let mut ends = alloc::vec![(port_of(hello), (id, Some(hello.channel), host))];
        ends.extend(other);
        // The client first, whichever end asks.
        ends.sort_unstable_by_key(|(port, _)| *port);
        gate_promises_enough(&app, &ends, &self.config)?;
        Ok((app, ends))
    }

    /// How the other end is reached; none if the app has no server.
    fn other_end(&self, now: Now, hello: &Hello, app: &App) -> Result<Option<(Port, Reached)>, Refusal> {
        let Some(server) = &app.server else { return Ok(None) };
        let port = if hello.server { Port::CLIENT } else { Port::SERVER };
        let known = self.sessions.get(hello.session).and_then(|session| session.owner.host(port));
        if let Some(peer) = hello.peer.or(known) {
            // The hello of an end that began elsewhere names the other end; this shard may know neither.
            // An agent that may not hold that end is not asked, even if the hello names it.
            return match roles::wire_to(&self.wires, peer, port, Some(server)) {
                Some(wire) => Ok(Some((port, (wire, None, peer)))),
                None => refuse(
                    Code::Waiting,
                    "the agent of the session's other end is not connected to this edge",
                ),
            };
        }
        match self.agent_for_new(now, app, server) {
            Some((wire, host)) => Ok(Some((port, (wire, None, host)))),
            None => refuse(
                Code::NoServerAgent,
                alloc::format!(
                    "no agent that reaches the server `{server}` is connected to this edge{}",
                    refused::reached_instead(&self.wires, server)
                ),
            ),
        }
    }

    /// The agent of a server that is asked for a new session's end, with its wire: the one with the fewest ends, if it has room as far as is
    /// known. An end in this edge's own gate is lost with the edge: a protected session has it only where there is no other agent.
    fn agent_for_new(&self, now: Now, app: &App, server: &str) -> Option<(ShardWireId, HostId)> {
        let mut hosts = self.wires.agents_of(now.mono_ns, server);
        if app.protect != Protect::None {
            hosts.sort_by_key(|host| self.config.gate == Some(*host));
        }
        let wire = |host: HostId| roles::wire_to(&self.wires, host, Port::SERVER, Some(server));
        hosts.into_iter().find_map(|host| Some((wire(host)?, host)))
    }

    /// Opens a generation that is newer than `count` and than the last one here (I2 of docs/protocol.md).
    pub(super) fn attempt(
        &mut self,
        now: Now,
        id: SessionId,
        count: u64,
        ends: &[(Port, Reached)],
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(last) = self.sessions.get(id).map(|session| session.owner.generation().count) else {
            return;
        };
        // Newer than all that the asking end and this shard know of. What other shards have opened meanwhile shows as
        // `Superseded`.
        let Some(count) = count.max(last).checked_add(1) else {
            return self.with_owner(now, id, out, |owner, effects| {
                owner.terminate(Code::Protocol, NO_GENERATION_LEFT.to_string(), effects);
            });
        };
        // Two shards can choose one count: the opener makes the generations differ (I2).
        let generation = Generation { count, opener: self.random.number() };
        let mut channels = Vec::new();
        for &(port, (wire, channel, _)) in ends {
            // From now on frames of the former generation find no channel (I4).
            let former = self.unlink(id, port);
            let Some(session) = self.sessions.get_mut(id) else { return };
            session.add_former(former.map(|(wire, channel)| (port, wire, channel)));
            let bound = Bound { session: id, port, generation };
            let Some(channel) = self.wires.bind(wire, channel, bound) else { continue };
            session.relink(port, Some((wire, channel)));
            channels.push((port, channel));
        }
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.attempted(now.mono_ns);
        // A standby counts once it becomes the owner, and not before.
        if session.counts == 0 && !session.owner.is_shared_cell() {
            session.counts = 1;
            self.tenants.came(session.place, session.app());
        }
        let (fresh, proven, assigned) = (session.fresh, session.proven, session.assigned);
        let client = ends.iter().find(|(port, _)| *port == Port::CLIENT);
        let client = client.and_then(|(_, (wire, ..))| self.wires.get(*wire));
        let identity = client.and_then(|wire| wire.verified.certificate.clone());
        self.counters.attempts += 1;
        self.drop_recall(id);
        let hosts: Vec<_> = ends.iter().map(|(port, (.., host))| (*port, *host)).collect();
        self.with_owner(now, id, out, |owner, effects| {
            let attempt = Attempt {
                generation,
                channels: &channels,
                hosts: &hosts,
                fresh,
                proven,
                assigned,
                client_identity: identity.as_deref(),
            };
            owner.open(now, &attempt, effects);
        });
    }

    /// Another attempt conflicted, or the cell could not be kept: try again, over the same wires.
    pub(super) fn again(&mut self, now: Now, id: SessionId, count: u64, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        // Its owner asks by itself: it has the session, and no end has to prove that it may ask.
        let has_given_way = session.owner.has_backup() && session.owner.phase() == OwnerPhase::Detached;
        let is_running = session.owner.phase() == OwnerPhase::Running;
        let runs = is_running || has_given_way;
        if runs {
            (session.fresh, session.proven) = (false, true);
        }
        // Two owners that give way to each other in turn would do so for ever.
        if is_running {
            session.again = 0;
        }
        session.again += 1;
        let tired = session.again > AGAIN_MAX;
        match roles::known_ends(&self.wires, session) {
            Some(ends) if !tired => self.attempt(now, id, count, &ends, out),
            // The end that is away asks when it is back.
            None if runs => {}
            // The ends ask again after a random wait, so one of the shards that compete wins.
            _ => self.with_owner(now, id, out, |owner, effects| {
                let reason = "too many other attempts to own the session interfered";
                if owner.has_backup() {
                    // What is here may be nowhere else.
                    owner.abort_attempt(Code::Superseded, reason, effects);
                } else {
                    owner.step_down(Code::Superseded, reason.to_string(), effects);
                }
            }),
        }
    }
}

/// The app that a hello asks for: by image, or by name if the session begins.
fn app_of(
    (apps, config): (&mut Apps, &Configure),
    now: Now,
    hello: &Hello,
    proven: bool,
    out: &mut Vec<ShardOutput>,
) -> Result<App, Refusal> {
    let Some(image) = hello.image.or_else(|| apps.image(&hello.app)) else {
        let guess = suggest::did_you_mean(&hello.app, apps.names());
        let reason =
            alloc::format!("no app `{}` is deployed on this edge: `marram deploy` it{guess}", hello.app);
        return refuse(Code::UnknownApp, reason);
    };
    match apps.of_image(&hello.app, image) {
        Some(app) => Ok(app.clone()),
        // Without a proof, nothing is fetched from peers.
        None if !proven => refuse(
            Code::UnknownImage,
            "this edge does not have that image, and the session's key \
            was not proved",
        ),
        // The end retries, also at this edge if no other edge has the image.
        None => {
            let version = AppVersion { app: hello.app.clone(), image };
            refuse(Code::UnknownImage, images::want((apps, config), now, version, out))
        }
    }
}

/// An end in the edge's own gate dies with the edge, so every protection would promise too much (docs/protocol.md, "Failure
/// model").
fn gate_promises_enough(app: &App, ends: &[(Port, Reached)], config: &Configure) -> Result<(), Refusal> {
    let in_gate = ends.iter().any(|(_, (.., host))| config.gate == Some(*host));
    if app.protect != Protect::None && in_gate {
        return refuse(
            Code::Protocol,
            alloc::format!(
                "the app is deployed with protect = \"{}\", but an end of this session runs in the edge's own gate and \
                 would be lost with it: use an agent on that host, or the gate of an edge that does not run the \
                 session, or deploy the app with protect = \"none\"",
                app.protect.written()
            ),
        );
    }
    Ok(())
}
