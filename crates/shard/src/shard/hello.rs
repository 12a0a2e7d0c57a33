//! An end asks for a generation: checks its identity and rights, finds the other end, and starts the attempt.

use super::{Bound, Shard, index, policy};
use crate::api::{App, Now, Protect, ShardOutput, ShardWireId};
use crate::suggest;
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_session::{
    cell::Seed,
    owner::{Attempt, Owner},
};
use marram_wire::{
    frame::{Channel, Code, Hello, Reject},
    id::{Generation, HostId, Port, SessionId},
    seal::{self, SessionKeys},
};

/// Attempts in a row before an end must retry later.
const AGAIN_MAX: u32 = 4;

/// How an end is reached: the wire, the channel if the end has opened one, and the agent.
pub(super) type Reached = (ShardWireId, Option<Channel>, HostId);

/// Why a hello is rejected.
#[derive(Debug)]
pub(super) struct Refusal(Code, String);

impl Refusal {
    /// The agent has no right to do this, for any session.
    pub(super) fn forbidden(reason: String) -> Self {
        Self(Code::Forbidden, reason)
    }
}

fn refuse<T>(code: Code, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(code, reason.into()))
}

/// The answer to an end that leaves no generation to open. Its count is false: no machine lasts long enough to count so far.
const NO_GENERATION_LEFT: &str = "no generation can follow the one that an end claims to have promised";

impl Shard {
    pub(super) fn hello(&mut self, now: Now, wire: ShardWireId, hello: Hello, out: &mut Vec<ShardOutput>) {
        let known = self.sessions.contains_key(&hello.session);
        let limit = self.config.recoveries_max as usize;
        if !known && !hello.fresh && limit > 0 && self.recoveries >= limit {
            // Only a session's own ends may make it wait, or replace a hello that waits already.
            if let Err(refusal) = self.admissible(wire, &hello) {
                return self.answer_hello(now, wire, &hello, Err(refusal), out);
            }
            // Heartbeats continue: an end suspects a host, not a slow session.
            self.waiting.retain(|(_, other)| (other.session, other.server) != (hello.session, hello.server));
            self.counters.recoveries_queued += 1;
            return self.waiting.push_back((wire, hello));
        }
        let tried = self.try_hello(now, wire, &hello, true, out);
        self.answer_hello(now, wire, &hello, tried, out);
    }

    /// Whether the agent may send this hello, on a channel of its own, and has proved the session's key if it must.
    fn admissible(&self, wire: ShardWireId, hello: &Hello) -> Result<bool, Refusal> {
        let bound = self.wires.get(&wire).is_some_and(|wire| wire.channels.contains_key(&hello.channel));
        if bound || !hello.channel.is_multiple_of(2) {
            // Odd numbers are this shard's. The session that has the channel would lose its end without notice.
            return refuse(Code::Protocol, "the hello's channel is in use, or odd");
        }
        self.may_say_hello(wire, hello)?;
        self.proven(wire, hello, &SessionKeys::derive(&self.secret, hello.session))
    }

    /// Handles the hello again, with everything that the recorder returned.
    pub(super) fn hello_recalled(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: Hello,
        out: &mut Vec<ShardOutput>,
    ) {
        let tried = self.try_hello(now, wire, &hello, false, out);
        self.answer_hello(now, wire, &hello, tried, out);
    }

    fn answer_hello(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        tried: Result<(), Refusal>,
        out: &mut Vec<ShardOutput>,
    ) {
        let Err(Refusal(code, reason)) = tried else { return self.refused.admitted(hello.session) };
        self.counters.rejected += 1;
        self.tell_refusal(now, hello, code, &reason, out);
        out.push(ShardOutput::Send { wire, frame: Reject { channel: hello.channel, code, reason }.into() });
    }

    /// Updates the count of recoveries: called after every call of a session's owner, and after every decision on its next state.
    pub(super) fn recount(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        let recovering = !session.fresh && session.owner.recovering();
        self.recoveries += usize::from(recovering);
        self.recoveries -= usize::from(core::mem::replace(&mut session.recovering, recovering));
    }

    /// Starts waiting recoveries.
    pub(super) fn admit(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        let limit = self.config.recoveries_max as usize;
        // If one is rejected, the next one may start.
        while limit == 0 || self.recoveries < limit {
            let Some((wire, hello)) = self.waiting.pop_front() else { return };
            self.hello(now, wire, hello, out);
        }
    }

    fn try_hello(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        may_recall: bool,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), Refusal> {
        let proven = self.admissible(wire, hello)?;
        if self.draining {
            return refuse(Code::Busy, "the edge is shutting down");
        }
        if hello.promised.count == u64::MAX {
            return refuse(Code::Protocol, NO_GENERATION_LEFT);
        }
        let port = if hello.server { Port::SERVER } else { Port::CLIENT };
        if let Some(session) = self.sessions.get(&hello.session)
            && hello.promised < session.owner.generation()
            && session.links[index(port)].is_some_and(|(linked, _)| linked == wire)
        {
            // The hello crossed with the promise that this shard asked of the same end, over this same wire.
            return Ok(());
        }
        let (app, ends) = self.resolve(now, wire, hello, proven, out)?;
        let id = hello.session;
        if !self.sessions.contains_key(&id) {
            self.room_for(hello, &app)?;
            if !hello.fresh
                && app.protect != Protect::None
                && may_recall
                && self.recall(now, wire, hello, out)
            {
                return Ok(());
            }
            let hosts: Vec<HostId> = ends.iter().map(|(.., host)| *host).collect();
            let seed = Seed(self.random.bytes());
            let keys = SessionKeys::derive(&self.secret, id);
            let owner = Owner::new(id, app.image, keys, policy(&app, &self.config), &hosts, seed);
            let session = self.new_session(now, owner, &app);
            self.sessions.insert(id, session);
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            (session.fresh, session.proven, session.again) = (hello.fresh, proven, 0);
            session.origin = hello.origin.clone().filter(|_| hello.fresh);
        }
        if hello.fresh {
            self.place(now, id, out);
        }
        self.recount(id);
        self.attempt(now, id, hello.promised.count, &ends, out);
        Ok(())
    }

    /// The app that a hello asks for, and where the session's ends are, client first. `proven` is the result of
    /// [`Shard::proven`].
    pub(super) fn resolve(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        proven: bool,
        out: &mut Vec<ShardOutput>,
    ) -> Result<(App, Vec<Reached>), Refusal> {
        let port = if hello.server { Port::SERVER } else { Port::CLIENT };
        let app = self.app_of(now, hello, proven, out)?;
        self.may_hold_end(wire, hello, app.server.as_deref())?;
        if let Some(home) = self.is_elsewhere(&app) {
            let reason = alloc::format!("the shared cell of `{}` is on shard {home}", app.name);
            return refuse(Code::Elsewhere, reason);
        }
        let host = self.wires.get(&wire).and_then(|wire| wire.host).unwrap_or_default();
        let known = self.sessions.get(&hello.session).and_then(|session| session.owner.host(port));
        if known.is_some_and(|known| known != host) {
            return refuse(Code::Superseded, "the session's end is at another agent");
        }
        let other = self.other_end(hello, &app)?;
        let mut ends = alloc::vec![(wire, Some(hello.channel), host)];
        ends.extend(other.map(|(wire, host)| (wire, None, host)));
        if hello.server {
            ends.reverse();
        }
        self.gate_promises_enough(&app, &ends)?;
        Ok((app, ends))
    }

    /// Whether the sender of the hello proved the session's key, if it must.
    pub(super) fn proven(
        &self,
        wire: ShardWireId,
        hello: &Hello,
        keys: &SessionKeys,
    ) -> Result<bool, Refusal> {
        let challenge = self.wires.get(&wire).map(|wire| wire.challenge).unwrap_or_default();
        match &hello.proof {
            Some(proof) if seal::same(proof, &seal::proof(&keys.resume(), &challenge, hello.session)) => {
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

    fn app_of(
        &mut self,
        now: Now,
        hello: &Hello,
        proven: bool,
        out: &mut Vec<ShardOutput>,
    ) -> Result<App, Refusal> {
        let image = match hello.image {
            Some(image) => image,
            None => match self.apps.get(&hello.app) {
                Some(app) => app.image,
                None => {
                    let guess = suggest::did_you_mean(&hello.app, self.apps.keys().map(|name| name.as_str()));
                    let reason = alloc::format!(
                        "no app `{}` is deployed on this edge: `marram deploy` it{guess}",
                        hello.app
                    );
                    return refuse(Code::UnknownApp, reason);
                }
            },
        };
        // Two apps may run one image: the name decides between them if that app runs the image.
        match self.apps.get(&hello.app).filter(|app| app.image == image).or(self.images.get(&image)) {
            Some(app) => Ok(app.clone()),
            // Without a proof, no image is fetched from peers.
            None if !proven => refuse(
                Code::UnknownImage,
                "this edge does not have that image, and the session's key \
                was not proved",
            ),
            // The end retries, also at this edge if no other edge has the image.
            None => refuse(Code::UnknownImage, self.want(now, &hello.app, image, out)),
        }
    }

    /// Where the other end is; none if the app has no server.
    fn other_end(&self, hello: &Hello, app: &App) -> Result<Option<(ShardWireId, HostId)>, Refusal> {
        let Some(server) = &app.server else { return Ok(None) };
        let port = if hello.server { Port::CLIENT } else { Port::SERVER };
        let known = self.sessions.get(&hello.session).and_then(|session| session.owner.host(port));
        if let Some(peer) = hello.peer.or(known) {
            // An agent that may not hold that end is not asked, even if the hello names it.
            return match self.wire_to(peer, port, Some(server)) {
                Some(wire) => Ok(Some((wire, peer))),
                None => refuse(
                    Code::Waiting,
                    "the agent of the session's other end is not connected to this edge",
                ),
            };
        }
        let serves = |wire: &super::Wire| wire.host.filter(|_| wire.servers.contains(server));
        match self.wires.iter().find_map(|(id, wire)| serves(wire).map(|host| (*id, host))) {
            Some(found) => Ok(Some(found)),
            None => refuse(
                Code::NoServerAgent,
                alloc::format!(
                    "no agent that reaches the server `{server}` is connected to this edge{}",
                    self.reached_instead(server)
                ),
            ),
        }
    }

    /// An end in the edge's own gate dies with the edge, so `endpoints` would promise too much (docs/protocol.md, "Failure
    /// model").
    fn gate_promises_enough(&self, app: &App, ends: &[Reached]) -> Result<(), Refusal> {
        let in_gate = ends.iter().any(|(.., host)| self.config.gate == Some(*host));
        if app.protect != Protect::None && in_gate {
            return refuse(
                Code::Protocol,
                "the app is deployed with protect = \"endpoints\", but an end of this session runs in the edge's own \
                 gate and would be lost with it: use an agent on that host, or deploy the app with protect = \"none\"",
            );
        }
        Ok(())
    }

    fn room_for(&mut self, hello: &Hello, app: &App) -> Result<(), Refusal> {
        let limit = self.config.sessions_max as usize;
        if limit > 0 && self.sessions.len() >= limit {
            return refuse(
                Code::Busy,
                "the shard has reached its maximum number of sessions (limits.sessions)",
            );
        }
        if !hello.fresh {
            return Ok(());
        }
        self.tenants.have_room(app).map_err(|reason| Refusal(Code::Busy, reason))
    }

    /// Opens a generation that is newer than `count` and than the last one here.
    pub(super) fn attempt(
        &mut self,
        now: Now,
        id: SessionId,
        count: u64,
        ends: &[Reached],
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(last) = self.sessions.get(&id).map(|session| session.owner.generation().count) else {
            return;
        };
        let Some(count) = count.max(last).checked_add(1) else {
            return self.with_owner(now, id, out, |owner, effects| {
                owner.terminate(Code::Protocol, NO_GENERATION_LEFT.to_string(), effects);
            });
        };
        let generation = Generation { count, opener: self.random.number() };
        let mut channels = Vec::new();
        for ((wire_id, channel, _), port) in ends.iter().zip([Port::CLIENT, Port::SERVER]) {
            if let Some(session) = self.sessions.get_mut(&id)
                && let Some((wire, channel)) = session.links[index(port)]
            {
                session.former.push((port, wire, channel));
            }
            self.unlink(id, port);
            let Some(wire) = self.wires.get_mut(wire_id) else { continue };
            let channel = channel.unwrap_or_else(|| wire.channel());
            wire.channels.insert(channel, Bound { session: id, port, generation });
            if let Some(session) = self.sessions.get_mut(&id) {
                session.links[index(port)] = Some((*wire_id, channel));
            }
            channels.push(channel);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.asked_ns = Some(now.mono_ns);
        // Keepers may have returned before the ends did: search for them when a log is chosen.
        session.placing.looked = false;
        let stands = session.feeder.is_some() || session.feed_lost_ns.is_some();
        session.stood = stands && session.owner.standing_by().is_some_and(|(_, able)| able);
        (session.feeder, session.feed_lost_ns) = (None, None);
        if !core::mem::replace(&mut session.counted, true) {
            self.tenants.came(session.place, &session.owner.policy().app);
        }
        let (fresh, proven, origin) = (session.fresh, session.proven, session.origin.clone());
        let client = ends.first().and_then(|(wire, ..)| self.wires.get(wire));
        let identity = client.and_then(|wire| wire.verified.certificate.clone());
        self.counters.attempts += 1;
        let hosts: Vec<HostId> = ends.iter().map(|(.., host)| *host).collect();
        self.with_owner(now, id, out, |owner, effects| {
            let attempt = Attempt {
                generation,
                channels: &channels,
                hosts: &hosts,
                fresh,
                proven,
                origin: origin.as_deref(),
                client_identity: identity.as_deref(),
            };
            owner.open(&attempt, effects);
        });
    }

    /// The wires and channels of a known session's ends; none if one cannot be reached.
    pub(super) fn known_ends(&self, id: SessionId) -> Option<Vec<Reached>> {
        let session = self.sessions.get(&id)?;
        let ports = [Port::CLIENT, Port::SERVER];
        let server = session.owner.policy().server.as_deref();
        let hosts = ports.iter().filter_map(|port| session.owner.host(*port).map(|host| (*port, host)));
        hosts.map(|(port, host)| self.wire_to(host, port, server).map(|wire| (wire, None, host))).collect()
    }

    /// Another attempt conflicted, or the cell could not be kept: try again, over the same wires.
    pub(super) fn again(&mut self, now: Now, id: SessionId, count: u64, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.again += 1;
        let tired = session.again > AGAIN_MAX;
        match self.known_ends(id) {
            Some(ends) if !tired => self.attempt(now, id, count, &ends, out),
            _ => self.with_owner(now, id, out, |owner, effects| {
                owner.step_down(
                    Code::Superseded,
                    "too many other attempts to own the session interfered".to_string(),
                    effects,
                );
            }),
        }
    }
}
