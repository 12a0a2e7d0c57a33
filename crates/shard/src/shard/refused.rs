//! Sessions refused for a reason that an operator can fix: each is logged once, and counted as long as it retries. Decides
//! nothing.

use super::Shard;
use crate::api::{NoteLevel, Now, ShardOutput, ShardWireId};
use crate::suggest;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{
    frame::{Code, Hello},
    id::SessionId,
};

/// A session that has not retried for so long waits no longer, or is elsewhere: agents retry every half second.
const FORGET_NS: u64 = 10_000_000_000;
/// Sessions remembered at a time. Others are not counted, and may be logged again.
pub const REMEMBERED_MAX: usize = 1_024;
/// Log lines in a burst; then one per [`LINE_NS`].
const LINES: u64 = 10;
const LINE_NS: u64 = 1_000_000_000;
/// Servers that one log line names.
const NAMES_MAX: usize = 16;

/// Sessions that were refused recently.
#[derive(Debug)]
pub(super) struct Refused {
    /// The reason, and when it was last given.
    sessions: BTreeMap<SessionId, (Code, u64)>,
    lines: u64,
    filled_ns: u64,
    suppressed: u64,
}

impl Default for Refused {
    fn default() -> Self {
        Self { sessions: BTreeMap::new(), lines: LINES, filled_ns: 0, suppressed: 0 }
    }
}

impl Refused {
    /// A session was refused for this reason: whether to log it, and how many lines were suppressed before.
    fn tell(&mut self, now_ns: u64, session: SessionId, code: Code) -> Option<u64> {
        let before = self.sessions.get(&session).copied();
        if before.is_none() && self.sessions.len() >= REMEMBERED_MAX {
            self.sessions.retain(|_, (_, at_ns)| now_ns < *at_ns + FORGET_NS);
        }
        if before.is_some() || self.sessions.len() < REMEMBERED_MAX {
            self.sessions.insert(session, (code, now_ns));
        }
        if before.is_some_and(|(reported, at_ns)| reported == code && now_ns < at_ns + FORGET_NS) {
            return None;
        }
        let earned = now_ns.saturating_sub(self.filled_ns) / LINE_NS;
        self.lines = LINES.min(self.lines + earned);
        self.filled_ns += earned * LINE_NS;
        if self.lines == 0 {
            self.suppressed += 1;
            return None;
        }
        self.lines -= 1;
        Some(core::mem::take(&mut self.suppressed))
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns refused sessions.
    pub(super) fn invariants(&self) -> Result<(), BrokenInvariant> {
        holds!("I39", self.sessions.len() <= REMEMBERED_MAX && self.lines <= LINES);
        Ok(())
    }

    /// The session was admitted.
    pub(super) fn admitted(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    /// How many sessions still retry.
    pub(super) fn waiting(&self, now_ns: u64) -> usize {
        let waits = |(code, at_ns): &&(Code, u64)| code.is_retryable() && now_ns < *at_ns + FORGET_NS;
        self.sessions.values().filter(waits).count()
    }
}

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
            Code::UnknownImage if hello.image.is_some_and(|image| self.is_being_fetched(image)) => return,
            Code::UnknownImage | Code::UnknownApp | Code::Forbidden => String::new(),
            Code::NoServerAgent => self.others_reached(),
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
        self.note(NoteLevel::Warning, Some(hello.session), text, out);
    }

    fn reached(&self) -> BTreeSet<&String> {
        self.wires.values().flat_map(|wire| &wire.servers).collect()
    }

    /// For the agent of a session without an agent of its server. Clients may see it, so it names a server only if that name is
    /// almost the same.
    pub(super) fn reached_instead(&self, server: &str) -> String {
        let names = self.reached();
        match suggest::nearest(server, names.iter().map(|name| name.as_str())) {
            _ if names.is_empty() => {
                "; no agent of any server is connected: start `marram agent server`".to_string()
            }
            Some(name) => alloc::format!("; an agent that reaches `{name}` is connected"),
            None => "; connected agents reach other servers, which the edge's log names".to_string(),
        }
    }

    /// An agent has connected and serves servers that others serve too: logs which one is used.
    pub(super) fn tell_shared_servers(&self, id: ShardWireId, out: &mut Vec<ShardOutput>) {
        // An agent connects to every shard: only one of them logs.
        let Some(wire) = self.wires.get(&id).filter(|_| self.config.shard == 0) else { return };
        let others = |server: &&String| {
            self.wires.values().any(|other| other.host != wire.host && other.servers.contains(*server))
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
            self.note(NoteLevel::Info, None, text, out);
        }
    }

    /// The servers with an agent, in words; empty if there are none, because the reason says so.
    fn others_reached(&self) -> String {
        let names = self.reached();
        if names.is_empty() {
            return String::new();
        }
        let quoted: Vec<String> =
            names.iter().take(NAMES_MAX).map(|name| alloc::format!("`{name}`")).collect();
        let more = if names.len() > NAMES_MAX { " and others" } else { "" };
        alloc::format!("; connected agents reach {}{more}", quoted.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u64) -> SessionId {
        SessionId(u128::from(number).to_le_bytes())
    }

    #[test]
    fn each_session_is_logged_once_while_it_asks() {
        let mut refused = Refused::default();
        for second in 0..20 {
            let told = refused.tell(second * LINE_NS / 2, session(1), Code::UnknownImage);
            assert_eq!(told, (second == 0).then_some(0), "{second}");
        }
        assert_eq!(refused.tell(10 * LINE_NS, session(1), Code::NoServerAgent), Some(0), "another reason");
        assert_eq!(refused.waiting(10 * LINE_NS), 1);
        assert_eq!(refused.waiting(10 * LINE_NS + FORGET_NS), 0);
        refused.admitted(session(1));
        assert_eq!(refused.tell(11 * LINE_NS, session(1), Code::NoServerAgent), Some(0), "it came back");
    }

    #[test]
    fn a_flood_is_counted_and_not_remembered() {
        let mut refused = Refused::default();
        let told = (0..5_000).filter(|n| refused.tell(0, session(*n), Code::NoServerAgent).is_some()).count();
        assert_eq!((told as u64, refused.waiting(0)), (LINES, REMEMBERED_MAX));
        assert_eq!(refused.tell(LINE_NS, session(9_999), Code::NoServerAgent), Some(5_000 - LINES));
        assert_eq!(refused.tell(FORGET_NS, session(10_000), Code::NoServerAgent), Some(0));
        assert_eq!(refused.waiting(FORGET_NS), 1, "those that asked once are forgotten");
    }
}
