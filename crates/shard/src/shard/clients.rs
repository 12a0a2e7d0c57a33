//! Clients of shared cells that have a backup (docs/protocol-epochs.md, "Shared cells"): each of them is a port of the cell, and its
//! end promises for itself, while the cell runs.

use super::{
    Shard,
    hello::{Refusal, refuse},
    keys::Wanted,
    roles, shared,
    state::wires::Bound,
};
use crate::api::{App, FromShard, Note, NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{format, string::ToString, vec::Vec};
use marram_session::owner::{EpochRelease, PortAttempt};
use marram_wire::{
    frame::{Channel, Code, GroupId, Hello},
    id::{Generation, HostId, Port, SessionId},
    seal::SessionKeys,
};

/// The end of a client, or of a server, that is to be asked for its promise.
pub(super) struct ClientHello {
    pub(super) client: SessionId,
    /// Its wire, and the channel if it has opened one.
    pub(super) wire: ShardWireId,
    pub(super) channel: Option<Channel>,
    pub(super) host: HostId,
    /// The count of the newest generation that it is known to have promised.
    pub(super) promised: u64,
    pub(super) fresh: bool,
    pub(super) proven: bool,
}

impl Shard {
    /// The app of this hello, if its clients share cells that have a backup.
    pub(super) fn app_of_cells(&self, hello: &Hello) -> Option<&App> {
        let image = hello.image.or_else(|| self.apps.image(&hello.app))?;
        self.apps.of_image(&hello.app, image).filter(|app| app.shares_protected_cells())
    }

    /// A client asks for a shared cell of this app. `proven` is the result of [`Shard::proven`].
    ///
    /// # Errors
    /// What it is told, unless it is asked for its promise.
    pub(super) fn client_hello(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        (proven, app): (bool, &App),
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), Refusal> {
        if hello.server {
            return self.server_hello(now, wire, hello, (proven, app), out);
        }
        let Some(at) = self.wires.get(wire) else { return refuse(Code::Waiting, "the wire is gone") };
        roles::may_hold_end(at, hello, None, &self.config.edge)?;
        let host = at.host.unwrap_or_default();
        let wanted = Wanted::by(hello, app)?;
        if let Some(home) = shared::elsewhere(app, wanted.number(), &self.config) {
            return Err(Refusal::Led((self.config.edge.clone(), home), None));
        }
        let cell = self.cell_that_runs(now, wanted, hello, out)?;
        let Some(session) = self.sessions.get(cell) else {
            return refuse(Code::Waiting, "the cell is gone");
        };
        let client = hello.session;
        match session.owner.port_of(client) {
            Some(port) => {
                let known = session.owner.client_of(port);
                if known.is_some_and(|(_, known)| known != host) {
                    return refuse(Code::Superseded, "the session's end is at another agent");
                }
                let (asked, linked) =
                    (session.owner.generation_of(port).unwrap_or_default(), session.link(port));
                if hello.promised < asked && linked.is_some_and(|(at, _)| at == wire) {
                    // The hello crossed with the question to the same end, over this same wire.
                    return Ok(());
                }
            }
            None if !hello.fresh => {
                let group = self.groups.of_session(cell);
                return Err(self.unknown_client(now, group.unwrap_or_default(), client, out));
            }
            None => self.has_room_for_client(app)?,
        }
        self.unknown.is_known(client);
        let (channel, promised) = (Some(hello.channel), hello.promised.count);
        let client = ClientHello { client, wire, channel, host, promised, fresh: hello.fresh, proven };
        self.ask_client(now, cell, &client, out);
        Ok(())
    }

    /// A client says that it has been in a cell of this group, which does not know it, or is not here. It has left, if the group is this edge's.
    /// An edge that was replaced may not know that, so the backup is asked first: nothing ends a session of the next one.
    pub(super) fn unknown_client(
        &mut self,
        now: Now,
        name: GroupId,
        client: SessionId,
        out: &mut Vec<ShardOutput>,
    ) -> Refusal {
        let waits = |reason: &str| Refusal::Rejected(Code::Waiting, reason.to_string());
        let Some(group) = self.groups.get(name) else { return waits("the cell is gone") };
        let has_left = match group.release(now.mono_ns) {
            EpochRelease::Alone => true,
            EpochRelease::Confirmed | EpochRelease::Ahead => {
                self.unknown.asks(now.mono_ns, client, group.confirmed_ns)
            }
            EpochRelease::Held => false,
        };
        if has_left {
            // If its end has everything, that was the end of it.
            let reason = "the client has left the cell: it was done, or away for too long";
            return Refusal::Rejected(Code::Forgotten, reason.to_string());
        }
        self.end_epoch(now, name, true, out);
        waits("the cell does not know the client: the backup is asked whether the cell is here")
    }

    /// A cell's owner wants the end of one of its clients, or servers, to be asked, which has promised this count, or less.
    pub(super) fn ask_known_client(
        &mut self,
        now: Now,
        cell: SessionId,
        (client, promised): (SessionId, u64),
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(owner) = self.sessions.get(cell).map(|session| &session.owner) else { return };
        let Some(port) = owner.port_of(client) else { return };
        if let Some(server) = owner.server_at(port) {
            let Some((wire, host)) = self.agent_for(&server) else { return };
            let fresh = server.agent.is_none();
            let asked = ClientHello { client, wire, channel: None, host, promised, fresh, proven: true };
            return self.ask_client(now, cell, &asked, out);
        }
        let Some((_, host)) = owner.client_of(port) else { return };
        // One that is not connected comes by itself.
        let Some(wire) = roles::wire_to(&self.wires, host, Port::CLIENT, None) else { return };
        let known = ClientHello { client, wire, channel: None, host, promised, fresh: false, proven: true };
        self.ask_client(now, cell, &known, out);
    }

    pub(super) fn ask_client(
        &mut self,
        now: Now,
        cell: SessionId,
        asked: &ClientHello,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(session) = self.sessions.get(cell) else { return };
        let port = session.owner.port_for(asked.client);
        let last = session.owner.generation_of(port).map_or(0, |generation| generation.count);
        let count = asked.promised.max(last).saturating_add(1);
        let generation = Generation { count, opener: self.random.number() };
        // From now on frames of the former generation find no channel (I4).
        self.unlink(cell, port);
        let Some(channel) =
            self.wires.bind(asked.wire, asked.channel, Bound { session: cell, port, generation })
        else {
            return;
        };
        if let Some(session) = self.sessions.get_mut(cell) {
            session.relink(port, Some((asked.wire, channel)));
        }
        self.counters.attempts += 1;
        let key = SessionKeys::derive(&self.secret, asked.client).resume();
        let identity = self.wires.get(asked.wire).and_then(|wire| wire.verified.certificate.clone());
        self.with_owner(now, cell, out, |owner, effects| {
            let attempt = PortAttempt {
                client: asked.client,
                key,
                generation,
                channel,
                host: asked.host,
                fresh: asked.fresh,
                proven: asked.proven,
                identity: identity.as_deref(),
            };
            owner.ask_port(&attempt, effects);
        });
    }

    pub(super) fn is_shared_cell(&self, id: SessionId) -> bool {
        self.sessions.is_shared_cell(id)
    }

    /// Whether a copy stays here without a feed: a shared cell may be nowhere else, however long the coordinator takes.
    pub(super) fn must_keep(&self, id: SessionId) -> bool {
        let is_claimed = || self.backups.may_claim(id) || self.groups.of_session(id).is_some();
        self.is_shared_cell(id) && is_claimed()
    }

    /// The cell of which a session is a client, with its port.
    pub(super) fn cell_of_client(&self, client: SessionId) -> Option<(SessionId, Port)> {
        self.sessions.cell_clients().cells_of(client).find(|(cell, _)| !self.sessions.is_following(*cell))
    }

    /// Ends the session of one client of a shared cell; the others go on. False if there is no such client.
    pub(super) fn end_client(
        &mut self,
        now: Now,
        client: SessionId,
        (code, reason): (Code, &str),
        out: &mut Vec<ShardOutput>,
    ) -> bool {
        let Some((cell, port)) = self.cell_of_client(client) else { return false };
        self.with_owner(now, cell, out, |owner, effects| {
            owner.end_client(now, port, (code, reason), effects);
        });
        true
    }

    /// A client has stopped its cell, and is expelled. The cell is rebuilt, which costs all clients time.
    pub(super) fn client_expelled(&mut self, client: SessionId, reason: &str, out: &mut Vec<ShardOutput>) {
        self.counters.clients_expelled += 1;
        let text =
            format!("the client has stopped its shared cell, and is expelled; the others go on: {reason}");
        let (level, session) = (NoteLevel::Warning, Some(client));
        out.push(ShardOutput::Control(FromShard::Note(Note { level, session, guest: true, text })));
    }

    /// Clients of a cell came or went: each counts as a session of its app.
    pub(super) fn count_clients(&mut self, now: Now, cell: SessionId) {
        // Most shards have none: this is called for each call of an owner.
        if !self.is_shared_cell(cell) {
            return;
        }
        // Those that wait for it may join.
        self.cell_changed(cell);
        let Some(session) = self.sessions.get_mut(cell) else { return };
        let clients = if session.is_following() { 0 } else { session.owner.client_count() };
        session.had_clients |= clients > 0 || session.is_following();
        let (before, place) = (core::mem::replace(&mut session.counts, clients), session.place);
        let app = session.app().to_string();
        if clients == 0 {
            self.groups_idle.extend(self.groups.of_session(cell));
        }
        self.note_unused(now, cell);
        (before..clients).for_each(|_| self.tenants.came(place, &app));
        (clients..before).for_each(|_| self.tenants.went(place, &app));
    }

    /// A cell has changed, or is over: a client that waits for it may be answered now.
    pub(super) fn cell_changed(&mut self, cell: SessionId) {
        if self.held.is_empty() {
            return;
        }
        let key = self.sessions.get(cell).and_then(|session| session.owner.key().cloned());
        if let Some(slot) = self.slot_of(cell) {
            self.held.cell_changed(slot, key);
        }
    }
}
