//! What an agent may do here: every wire is limited to the rights of its credential, and a refusal says what to configure. The
//! shell has verified the credential.

use super::{Shard, hello::Refusal, wires::Wire};
use crate::api::{NoteLevel, ShardOutput, ShardWireId};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::Hello,
    id::{HostId, Port},
};

impl Wire {
    /// Whether this wire's agent may hold the session's end at this port. `server` is the server of the session's app.
    fn may_hold(&self, port: Port, server: Option<&str>) -> bool {
        let rights = &self.verified.rights;
        match server {
            _ if self.role.is_some() => false,
            _ if port == Port::CLIENT => rights.client,
            Some(server) => rights.serves(server) && self.servers.iter().any(|name| name == server),
            None => false,
        }
    }

    /// For the log: the agent, its credential and its address.
    fn described(&self) -> String {
        let Self { verified, address, .. } = self;
        let address = address.as_deref().unwrap_or("this edge itself");
        alloc::format!("agent {} at {address}, {}", verified.host, credential(&verified.credential))
    }
}

fn credential(name: &str) -> String {
    match name {
        "" => "without a credential".to_string(),
        name => alloc::format!("with the credential `{name}`"),
    }
}

impl Shard {
    /// The wire to ask this agent for the end at this port; none if the agent is not connected, or may not hold it.
    pub(super) fn wire_to(&self, host: HostId, port: Port, server: Option<&str>) -> Option<ShardWireId> {
        let admits = |wire: &Wire| wire.host == Some(host) && wire.may_hold(port, server);
        let newest = *self.hosts.get(&host)?;
        if self.wires.get(&newest).is_some_and(admits) {
            return Some(newest);
        }
        // Several wires of one agent can have come with different credentials.
        self.wires.iter().find(|(_, wire)| admits(wire)).map(|(id, _)| *id)
    }

    /// Whether the agent may hold the end that its hello asks for, with any server.
    pub(super) fn may_say_hello(&self, wire: ShardWireId, hello: &Hello) -> Result<(), Refusal> {
        let Some(wire) = self.wires.get(&wire) else { return Ok(()) };
        let rights = &wire.verified.rights;
        if hello.server && !rights.any_server && rights.servers.is_empty() {
            return Err(Refusal::forbidden(self.lacks(
                wire,
                "hold servers' ends of sessions",
                "servers = [\"...\"]",
            )));
        }
        if !hello.server && !rights.client {
            return Err(Refusal::forbidden(self.lacks(wire, "open sessions", "roles = [\"client\"]")));
        }
        Ok(())
    }

    /// Whether the agent may hold the end of a session with this server.
    pub(super) fn may_hold_end(
        &self,
        wire: ShardWireId,
        hello: &Hello,
        server: Option<&str>,
    ) -> Result<(), Refusal> {
        let port = if hello.server { Port::SERVER } else { Port::CLIENT };
        let Some(wire) = self.wires.get(&wire).filter(|wire| !wire.may_hold(port, server)) else {
            return Ok(());
        };
        let Some(server) = server else {
            return Err(Refusal::forbidden("the session's app has no server".to_string()));
        };
        let what = alloc::format!("be the agent of the server {server:?}, or did not announce it");
        Err(Refusal::forbidden(self.lacks(wire, &what, &alloc::format!("servers = [{server:?}]"))))
    }

    /// The refusal of an agent with insufficient rights: what it may not do, and what to configure.
    fn lacks(&self, wire: &Wire, what: &str, field: &str) -> String {
        alloc::format!(
            "this agent, {}, may not {what}: present a credential for it to edge `{}` (a [[credential]] of the edge \
             with {field})",
            credential(&wire.verified.credential),
            self.config.edge
        )
    }

    /// An agent announces a server that it may not serve.
    pub(super) fn refuse_server(&mut self, id: ShardWireId, server: &str, out: &mut Vec<ShardOutput>) {
        let what = alloc::format!("be the agent of the server {server:?}");
        self.refuse_role(id, &what, &alloc::format!("servers = [{server:?}]"), out);
    }

    /// An agent takes a role that it has no right to: refuses it and logs this.
    pub(super) fn refuse_role(
        &mut self,
        id: ShardWireId,
        what: &str,
        field: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(wire) = self.wires.get(&id) else { return };
        let text = alloc::format!(
            "refused: {} may not {what}; if it should, give it the token or certificate of a [[credential]] with {field}",
            wire.described()
        );
        let reason = self.lacks(wire, what, field);
        self.note(NoteLevel::Warning, None, text, out);
        self.goodbye(id, &reason, out);
    }
}
