//! Sessions refused for a reason that an operator can fix: what the log and the agents are told.

use super::{
    Shard,
    report::note,
    state::wires::{Wire, Wires},
};
use crate::api::{AppVersion, NoteLevel, Now, ShardOutput, ShardWireId};
use crate::suggest;
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::frame::{Code, Hello};

/// Servers that one log line names.
const NAMES_MAX: usize = 16;

impl Shard {
    /// A hello was refused. Reasons that pass by themselves are not logged.
    pub(super) fn tell_refusal(
        &mut self,
        now: Now,
        hello: &Hello,
        code: Code,
        reason: &str,
        out: &mut Vec<ShardOutput>,
    ) {
        // Unless the reason is final, the end asks every shard of the edge in turn: only one of them logs.
        let speaks = hello.session.0[0] % self.config.shards.max(1) == self.config.shard;
        if code.is_retryable() && !speaks {
            return;
        }
        let hint = match code {
            // A hello without any proof is from no session of this domain.
            Code::WrongKey if hello.proof.is_some() => String::new(),
            Code::UnknownImage
                if hello.image.is_some_and(|image| {
                    self.apps.is_being_fetched(&AppVersion { app: hello.app.clone(), image })
                }) =>
            {
                return;
            }
            Code::UnknownImage | Code::UnknownApp | Code::Forbidden => String::new(),
            Code::NoServerAgent => others_reached(&self.wires),
            _ => return,
        };
        let Some(suppressed) = self.refused.tell(now.mono_ns, hello.session, code) else { return };
        let happens = match code {
            Code::WrongKey | Code::Forbidden => "it is refused permanently",
            Code::UnknownApp if hello.fresh => {
                "it is refused, and ends unless its agent knows an edge with that app, or waits for one"
            }
            _ if hello.fresh => {
                "it waits and retries until the agent's `timeouts.edge_wait` is over or another edge accepts it"
            }
            _ => "it waits and retries until its app's `keep.linger` is over or another edge accepts it",
        };
        let others = match suppressed {
            0 => String::new(),
            count => alloc::format!(" (and {count} other refused sessions)"),
        };
        let text = alloc::format!("{happens}: {reason}{hint}{others}");
        note(NoteLevel::Warning, Some(hello.session), text, out);
    }

    /// An agent has connected and serves servers that others serve too: logs which one is used.
    pub(super) fn tell_shared_servers(&self, id: ShardWireId, out: &mut Vec<ShardOutput>) {
        // An agent connects to every shard: only one of them logs.
        let Some(wire) = self.wires.get(id).filter(|_| self.config.shard == 0) else { return };
        let others = |server: &&String| {
            let serves = |(_, other): (_, &Wire)| other.host != wire.host && other.servers.contains(*server);
            self.wires.iter().any(serves)
        };
        let shared: Vec<String> = wire
            .servers
            .iter()
            .filter(others)
            .take(NAMES_MAX)
            .map(|name| alloc::format!("`{name}`"))
            .collect();
        if !shared.is_empty() {
            let text = alloc::format!(
                "another agent already reaches {}: new sessions go to the agent that has been connected for longest",
                shared.join(", ")
            );
            note(NoteLevel::Info, None, text, out);
        }
    }
}

/// For the agent of a session without an agent of its server. Clients may see it, so it names a server only if that
/// name is almost the same.
pub(super) fn reached_instead(wires: &Wires, server: &str) -> String {
    let names = wires.servers();
    match suggest::nearest(server, names.iter().map(|name| name.as_str())) {
        _ if names.is_empty() => {
            "; no agent of any server is connected: start `marram agent server`".to_string()
        }
        Some(name) => alloc::format!("; an agent that reaches `{name}` is connected"),
        None => "; connected agents reach other servers, which the edge's log names".to_string(),
    }
}

/// The servers with an agent, in words; empty if there are none, because the reason says so.
fn others_reached(wires: &Wires) -> String {
    let names = wires.servers();
    if names.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = names.iter().take(NAMES_MAX).map(|name| alloc::format!("`{name}`")).collect();
    let more = if names.len() > NAMES_MAX { " and others" } else { "" };
    alloc::format!("; connected agents reach {}{more}", quoted.join(", "))
}
