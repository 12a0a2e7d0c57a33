//! Which clients of a shared cell wait for what, so that none is looked for among all.

use super::{client_port::PortPhase, end_state::EndState};
use alloc::collections::BTreeSet;
use marram_wire::id::Port;

/// What one client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Queued {
    /// A message of it is here.
    message: bool,
    /// The log is to say something of it; whether it may wait for what is to be said of those that were expelled.
    event: Option<bool>,
    /// Its end is away, and since when; not that of a server.
    away: Option<Option<u64>>,
    /// The log has said that its end promised, which the backup is to confirm.
    confirming: bool,
    pub(super) held_bytes: u64,
}

impl Queued {
    pub(super) fn of(side: &EndState) -> Self {
        let (message, held_bytes) = (!side.inputs.is_empty(), side.held_bytes());
        let Some(client) = &side.client else { return Self { message, held_bytes, ..Self::default() } };
        let is_away = client.phase == PortPhase::Away && !client.leaves() && client.connection.is_none();
        Self {
            message,
            event: client.pending.is_some().then_some(!client.expelled),
            away: is_away.then_some(client.away_since_ns),
            confirming: matches!(client.phase, PortPhase::Confirming(..)),
            held_bytes,
        }
    }
}

/// By what they wait for, the ports of the clients.
#[derive(PartialEq, Eq, Default, Debug)]
pub(super) struct Queues {
    pub(super) messages: BTreeSet<Port>,
    /// Those that were expelled are first.
    pub(super) events: BTreeSet<(bool, Port)>,
    /// Those of which nothing has seen yet that they are away are first, then those that are away for longest.
    pub(super) away: BTreeSet<(Option<u64>, Port)>,
    pub(super) confirming: BTreeSet<Port>,
    /// Of all together.
    pub(super) held_bytes: u64,
}

impl Queues {
    pub(super) fn change(&mut self, port: Port, then: Queued, now: Queued) {
        self.held_bytes = self.held_bytes + now.held_bytes - then.held_bytes;
        change(&mut self.messages, then.message.then_some(port), now.message.then_some(port));
        let event = |queued: Queued| queued.event.map(|waits| (waits, port));
        change(&mut self.events, event(then), event(now));
        let away = |queued: Queued| queued.away.map(|since_ns| (since_ns, port));
        change(&mut self.away, away(then), away(now));
        change(&mut self.confirming, then.confirming.then_some(port), now.confirming.then_some(port));
    }
}

fn change<T: Ord>(queue: &mut BTreeSet<T>, then: Option<T>, now: Option<T>) {
    if then == now {
        return;
    }
    then.iter().for_each(|then| {
        queue.remove(then);
    });
    queue.extend(now);
}
