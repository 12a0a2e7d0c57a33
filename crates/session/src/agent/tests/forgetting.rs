//! How long an agent knows that a session has ended, so that a delayed first hello does not reopen it.

use super::{
    super::{Agent, AgentInput, tombstones::TOMBSTONES_MAX},
    Stage, promise,
    stage::{LINGER, MS, SERVED, SESSION_LINGER, config},
};
use alloc::{string::ToString, vec::Vec};
use marram_wire::{
    frame::{Code, Ended, Promise},
    id::SessionId,
};

fn ask(count: u64, linger_ms: u64) -> Promise {
    let linger_ms = u32::try_from(linger_ms).unwrap();
    Promise { server: "db".to_string(), linger_ms, ..promise(SERVED, 1, count) }
}

#[test]
fn a_session_that_ended_at_its_server_is_not_taken_up_again_for_its_linger_time() {
    let forgotten = "w1 ended c1 Forgotten: this end does not know the session, or no longer knows it";
    // The longer of the session's linger time and the agent's.
    for (linger_ms, buried_ms) in [(SESSION_LINGER, SESSION_LINGER), (5, LINGER)] {
        let mut stage = Stage::server(1);
        stage.frame(1, ask(1, linger_ms));
        stage.frame(1, Ended { channel: 1, code: Code::Killed, reason: "so it is".to_string() });
        assert_eq!(stage.frame(1, ask(2, linger_ms)), [forgotten]);
        stage.wait(buried_ms - 1);
        assert_eq!(stage.frame(1, ask(3, linger_ms)), [forgotten]);
        stage.wait(1);
        stage.step(AgentInput::Wake);
        assert_eq!(stage.frame(1, ask(4, linger_ms)), ["w1 promised c1 after g0"]);
        assert_eq!(stage.agent.tombstones.all().len(), 0);
    }
}

#[test]
fn the_end_of_a_clients_session_says_nothing_of_servers_ends() {
    let mut stage = Stage::server(1);
    stage.accept(1);
    let session = stage.session(1);
    stage.broken(1);
    assert_eq!(stage.agent.session_count(), 0);
    let server = Promise { server: "db".to_string(), ..promise(session, 1, 1) };
    assert_eq!(stage.frame(1, server), ["w1 promised c1 after g0"]);
}

#[test]
fn what_ended_takes_bounded_memory() {
    let mut agent = Agent::new(config(1, &["db"]), [1; 32]);
    let session = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&(number as u64).to_le_bytes());
        SessionId(id)
    };
    for number in 0..TOMBSTONES_MAX {
        agent.tombstones.add(LINGER * MS, session(number));
    }
    agent.tombstones.expire(0);
    assert_eq!(agent.tombstones.all().len(), TOMBSTONES_MAX);
    agent.tombstones.add(LINGER * MS, session(7));
    assert_eq!(agent.tombstones.all().len(), TOMBSTONES_MAX, "it is known already");
    agent.tombstones.add(LINGER * MS, session(TOMBSTONES_MAX));
    agent.tombstones.expire(0);
    let oldest = agent.tombstones.all().front().map(|(_, session)| *session);
    assert_eq!(
        (agent.tombstones.all().len(), oldest),
        (TOMBSTONES_MAX, Some(session(1))),
        "the oldest goes first"
    );
    assert!(!agent.tombstones.has(session(0)));
    agent.step(LINGER * MS, AgentInput::Wake, &mut Vec::new());
    assert!(agent.tombstones.all().is_empty());
}
