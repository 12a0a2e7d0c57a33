//! Invariants between the parts of an agent after every step: nothing is kept of a session that has ended, and everything that
//! waits for a time has requested a wake-up.

use super::super::{Agent, EndId, WireId};
use alloc::collections::{BTreeMap, BTreeSet};
use marram_wire::frame::Channel;

/// Panics if a part of the agent refers to what another part has removed.
pub(super) fn check(agent: &Agent) {
    let sessions = &agent.sessions;
    let timers = sessions.iter().filter_map(|(id, session)| Some((session.timer_ns?, id)));
    assert_eq!(*agent.sessions.timers(), timers.collect(), "timers are those of sessions");
    let connections = sessions.iter().filter_map(|(id, session)| Some((session.local.id?, id)));
    assert_eq!(
        *agent.connections.all(),
        connections.collect::<BTreeMap<_, _>>(),
        "connections are those of sessions"
    );
    assert_eq!(agent.tombstones.invariants(), Ok(()), "what is buried is on the list");
    let away = sessions.iter().filter_map(|(id, session)| Some((session.home?, id)));
    assert_eq!(agent.affinity.all(), away.collect(), "who is away is a session, and knows it");
    assert!(agent.affinity.all().iter().all(|(_, id)| !id.server), "a server's end leads nowhere");
    channels(agent);
}

/// Bound channels have sessions, and the channels of sessions are bound.
fn channels(agent: &Agent) {
    let bound: BTreeSet<(WireId, Channel, EndId)> = agent
        .wires
        .iter()
        .flat_map(|(wire, state)| {
            state.channels().map(move |(channel, bound)| (wire, channel, bound.session))
        })
        .collect();
    let of = |at: Option<(WireId, Channel)>, id: EndId| at.map(|(wire, channel)| (wire, channel, id));
    let (mut spoken, mut stale) = (BTreeSet::new(), BTreeSet::new());
    for (id, session) in agent.sessions.iter() {
        spoken.extend([session.attached, session.asking].into_iter().filter_map(|at| of(at, id)));
        stale.extend(session.stale.iter().copied().chain(session.silent).filter_map(|at| of(Some(at), id)));
    }
    assert!(spoken.is_subset(&bound), "{spoken:?} are not all bound: {bound:?}");
    let known: BTreeSet<_> = spoken.union(&stale).copied().collect();
    assert!(bound.is_subset(&known), "{bound:?} are bound, and known are only {known:?}");
}
