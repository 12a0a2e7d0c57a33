//! What an agent may do here: every wire is limited to the rights of its credential, and a refusal says what to
//! configure. The shell has verified the credential.

use super::{
    Session, Shard,
    hello::{Reached, Refusal},
    report::note,
    state::wires::{Wire, Wires},
};
use crate::api::{NoteLevel, ShardOutput, ShardWireId};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::Hello,
    id::{HostId, Port},
};

/// Whether this wire's agent may hold the session's end at this port. `server` is the server of the session's app.
fn may_hold(wire: &Wire, port: Port, server: Option<&str>) -> bool {
    let rights = &wire.verified.rights;
    match server {
        // A keeper has other rights, and no end.
        _ if wire.role.is_some() => false,
        _ if port == Port::CLIENT => rights.client,
        Some(server) => rights.serves(server) && wire.servers.iter().any(|name| name == server),
        // The app has no server, so its sessions have one end.
        None => false,
    }
}

/// For the log: the agent, its credential and its address.
fn described(wire: &Wire) -> String {
    let Wire { verified, address, .. } = wire;
    let address = address.as_deref().unwrap_or("this edge itself");
    alloc::format!("agent {} at {address}, {}", verified.host, credential(&verified.credential))
}

fn credential(name: &str) -> String {
    match name {
        "" => "without a credential".to_string(),
        name => alloc::format!("with the credential `{name}`"),
    }
}

/// The wire to ask this agent for the end at this port; none if the agent is not connected, or may not hold it. Several
/// wires of one agent can have come with different credentials.
pub(super) fn wire_to(wires: &Wires, host: HostId, port: Port, server: Option<&str>) -> Option<ShardWireId> {
    wires.of_agent(host, |wire| may_hold(wire, port, server))
}

/// How each of a known session's ends is reached, client first; none if one cannot be.
pub(super) fn known_ends(wires: &Wires, session: &Session) -> Option<Vec<(Port, Reached)>> {
    let server = session.owner.policy().server.as_deref();
    let reached = |(port, host)| Some((port, (wire_to(wires, host, port, server)?, None, host)));
    session.owner.hosts().map(reached).collect()
}

/// Whether the agent may hold the end that its hello asks for, with any server.
pub(super) fn may_say_hello(wire: &Wire, hello: &Hello, edge: &str) -> Result<(), Refusal> {
    let rights = &wire.verified.rights;
    // Before the app is known: a hello that is refused here learns nothing of apps and sessions.
    if hello.server && !rights.any_server && rights.servers.is_empty() {
        let what = "hold servers' ends of sessions";
        return Err(Refusal::forbidden(lacks(wire, what, "servers = [\"...\"]", edge)));
    }
    if !hello.server && !rights.client {
        return Err(Refusal::forbidden(lacks(wire, "open sessions", "roles = [\"client\"]", edge)));
    }
    Ok(())
}

/// Whether the agent may hold the end of a session with this server.
pub(super) fn may_hold_end(
    wire: &Wire,
    hello: &Hello,
    server: Option<&str>,
    edge: &str,
) -> Result<(), Refusal> {
    let port = if hello.server { Port::SERVER } else { Port::CLIENT };
    if may_hold(wire, port, server) {
        return Ok(());
    }
    let Some(server) = server else {
        return Err(Refusal::forbidden("the session's app has no server".to_string()));
    };
    let what = alloc::format!("be the agent of the server {server:?}, or did not announce it");
    Err(Refusal::forbidden(lacks(wire, &what, &alloc::format!("servers = [{server:?}]"), edge)))
}

/// The refusal of an agent with insufficient rights: what it may not do, and what to configure.
fn lacks(wire: &Wire, what: &str, field: &str, edge: &str) -> String {
    alloc::format!(
        "this agent, {}, may not {what}: present a credential for it to edge `{edge}` (a [[credential]] of the edge \
         with {field})",
        credential(&wire.verified.credential)
    )
}

impl Shard {
    /// An agent takes a role that it has no right to: refuses it and logs this.
    pub(super) fn refuse_role(
        &mut self,
        id: ShardWireId,
        what: &str,
        field: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        let Some(wire) = self.wires.get(id) else { return };
        let text = alloc::format!(
            "refused: {} may not {what}; if it should, give it the token or certificate of a [[credential]] with {field}",
            described(wire)
        );
        // The agent's own text has no address: it may not be the operator's.
        let reason = lacks(wire, what, field, &self.config.edge);
        note(NoteLevel::Warning, None, text, out);
        self.goodbye(id, &reason, out);
    }
}
