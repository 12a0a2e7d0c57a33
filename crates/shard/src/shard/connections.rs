//! Servers to which shared cells connect (docs/protocol-epochs.md, "Servers of a shared cell"): which agent is asked, and the answer to the
//! end of such a server that asks by itself.

use super::{
    Shard,
    clients::ClientHello,
    hello::{Refusal, refuse},
    keys::Wanted,
    roles, shared,
    state::groups::Group,
};
use crate::api::{App, FromShard, Note, NoteLevel, Now, ShardOutput, ShardWireId};
use alloc::{format, string::ToString, vec::Vec};
use marram_session::owner::{CellServer, OwnerPhase};
use marram_wire::{
    frame::{Code, Hello},
    id::{HostId, Port, SessionId},
};

impl Shard {
    /// The agent that is to be asked for the end of a server, with its wire. Before the log says which agent has the end, any that serves
    /// the server is asked, one after the other: those with the fewest ends of servers are first.
    pub(super) fn agent_for(&self, server: &CellServer<'_>) -> Option<(ShardWireId, HostId)> {
        if let Some(host) = server.agent {
            return roles::wire_to(&self.wires, host, Port::SERVER, Some(server.name))
                .map(|wire| (wire, host));
        }
        let mut hosts = self.wires.agents_in_turn(server.name);
        // What is connected through this edge's own gate ends with this edge: any other agent is better.
        hosts.sort_by_key(|host| self.config.gate == Some(*host));
        let mut hosts = hosts.into_iter();
        let host = match server.refused_by {
            None => hosts.next(),
            Some(refused) => hosts.skip_while(|host| *host != refused).nth(1),
        }?;
        roles::wire_to(&self.wires, host, Port::SERVER, Some(server.name)).map(|wire| (wire, host))
    }

    /// An agent for servers has connected: cells may wait for it.
    pub(super) fn ask_servers_again(&mut self, now: Now, out: &mut Vec<ShardOutput>) {
        for cell in self.sessions.cell_clients().cells_with_servers() {
            self.with_owner(now, cell, out, |owner, effects| owner.ask_servers_again(now, effects));
        }
    }

    /// The end of a server asks for the cell that has connected to it. `proven` is the result of [`Shard::proven`].
    ///
    /// # Errors
    /// What it is told, unless it is asked for its promise.
    pub(super) fn server_hello(
        &mut self,
        now: Now,
        wire: ShardWireId,
        hello: &Hello,
        (proven, app): (bool, &App),
        out: &mut Vec<ShardOutput>,
    ) -> Result<(), Refusal> {
        let session = hello.session;
        let Some((cell, port)) = self.cell_of_client(session).filter(|(_, port)| port.is_from_connect())
        else {
            return Err(self.unknown_server(now, hello, app, out));
        };
        let Some(at) = self.wires.get(wire) else { return refuse(Code::Waiting, "the wire is gone") };
        let Some(it) = self.sessions.get(cell).filter(|it| it.owner.phase() == OwnerPhase::Running) else {
            return refuse(Code::Waiting, "the cell does not run here");
        };
        let Some(server) = it.owner.server_at(port) else {
            return refuse(Code::Waiting, "the cell is not connected to the server");
        };
        if let Some(group) = self.groups.of_session(cell)
            && (self.groups.get(group).is_some_and(Group::is_in_doubt)
                || self.handed_over_to(group).is_some())
        {
            // To ask would take the end from the edge that goes on.
            return refuse(Code::Waiting, "the cell may go on at another edge");
        }
        roles::may_hold_end(at, hello, Some(server.name), &self.config.edge)?;
        let host = at.host.unwrap_or_default();
        let (asked, linked) = (it.owner.generation_of(port).unwrap_or_default(), it.link(port));
        if hello.promised < asked && linked.is_some_and(|(at, _)| at == wire) {
            // The hello crossed with the question to the same end, over this same wire.
            return Ok(());
        }
        if server.agent != Some(host) {
            // The owner asks an agent by itself until the log says which one has the end.
            return refuse(Code::Waiting, "the cell has not connected to the server through this agent");
        }
        let (channel, promised) = (Some(hello.channel), hello.promised.count);
        let asked = ClientHello { client: session, wire, channel, host, promised, fresh: false, proven };
        self.ask_client(now, cell, &asked, out);
        Ok(())
    }

    /// No cell here has this connection. It is over if the app's cell runs here; which one of several it was is not known.
    fn unknown_server(&mut self, now: Now, hello: &Hello, app: &App, out: &mut Vec<ShardOutput>) -> Refusal {
        let waits =
            || Refusal::Rejected(Code::Waiting, "no cell here has connected to the server".to_string());
        let Ok(wanted) = Wanted::by(hello, app) else { return waits() };
        if let Some(home) = shared::elsewhere(app, wanted.number(), &self.config) {
            return Refusal::Led((self.config.edge.clone(), home), None);
        }
        let runs = |cell: &SessionId| {
            self.sessions.get(*cell).is_some_and(|it| it.owner.phase() == OwnerPhase::Running)
        };
        let cell = self.cell_here(wanted).filter(runs);
        match cell.and_then(|cell| self.groups.of_session(cell)) {
            Some(group) => self.unknown_client(now, group, hello.session, out),
            None => waits(),
        }
    }

    /// A shared cell without clients is about to end, although something is on its way to servers.
    pub(super) fn tell_of_full_servers(&self, cell: SessionId, out: &mut Vec<ShardOutput>) {
        let Some(session) = self.sessions.get(cell) else { return };
        let reason =
            "its agent takes nothing of what the cell has sent, which has no client any more and ends";
        session
            .owner
            .servers_owed()
            .for_each(|name| self.connection_over(cell, name, (Code::Lost, reason), out));
    }

    /// A shared cell's connection to a server is over, or there was none. One that both sides have ended is no news.
    pub(super) fn connection_over(
        &self,
        cell: SessionId,
        name: &str,
        (code, reason): (Code, &str),
        out: &mut Vec<ShardOutput>,
    ) {
        let text = format!("the shared cell is not connected to the server `{name}`: {reason}");
        let level = if code == Code::Finished { NoteLevel::Debug } else { NoteLevel::Warning };
        let note = Note { level, session: Some(cell), guest: true, text };
        out.push(ShardOutput::Control(FromShard::Note(note)));
    }
}
