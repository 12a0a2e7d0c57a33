//! How long a session waits without an owner, and how its program's connection ends then.

use super::{
    super::AgentConfig,
    Stage, chosen, promise,
    stage::{EDGE_WAIT, MS, SERVED, SESSION_LINGER, config, only},
};
use alloc::{format, string::ToString};
use marram_wire::frame::{Code, Ended, Finish, Promise};

const NO_EDGE: &str =
    "s1 over, NoEdge: no edge could be reached in time; is one running, and configured here? (lingered)";

#[test]
fn a_connection_without_an_edge_is_given_up_with_a_clear_reason() {
    let mut stage = Stage::new(config(1, &[]), 1);
    stage.accept(1);
    assert_eq!(stage.wait(60_000), ["10000 p1 is reset", &format!("10000 {NO_EDGE}")]);
    assert_eq!(stage.agent.session_count(), 0);
}

#[test]
fn a_connection_with_a_silent_edge_is_given_up_likewise() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    let expected = ["5000 w1 hello c4 s1 fresh", "10000 p1 is reset", &format!("10000 {NO_EDGE}")];
    assert_eq!(stage.wait(60_000), expected);
}

#[test]
fn patience_may_be_shorter_than_that_with_one_edge() {
    let mut stage = Stage::new(AgentConfig { edge_wait_ns: 3_000 * MS, ..config(1, &[]) }, 1);
    stage.edge(1, 0);
    stage.accept(1);
    assert_eq!(stage.wait(60_000), ["3000 p1 is reset", &format!("3000 {NO_EDGE}")]);
}

#[test]
fn what_an_edge_said_before_another_took_the_session_is_no_reason_later() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.reject(1, 2, Code::Busy);
    stage.own(2, 2, 1);
    stage.wire_down(1);
    stage.wire_down(2);
    assert_eq!(only(stage.wait(60_000), "over"), [format!("30000 {NO_EDGE}")]);
}

#[test]
fn a_connection_that_no_edge_accepts_ends_with_the_last_refusal() {
    let mut stage = Stage::client(2);
    stage.accept(1);
    stage.reject(1, 2, Code::NoServerAgent);
    let reason = "no edge accepted the session in time; the last refusal: no";
    let over = format!("10000 s1 over, NoServerAgent: {reason} (lingered)");
    assert_eq!(only(stage.wait(60_000), "over"), [over]);
}

#[test]
fn a_session_that_began_is_remembered_for_its_linger_time() {
    let mut stage = Stage::owned(1);
    assert_eq!(stage.wire_down(1), ["s1 orphaned: it broke"]);
    assert_eq!(stage.wait(60_000), ["30000 p1 is reset", &format!("30000 {NO_EDGE}")]);
}

#[test]
fn a_servers_session_is_remembered_for_its_linger_time_though_it_never_began() {
    let mut stage = Stage::server(1);
    stage.frame(1, Promise { server: "db".to_string(), ..promise(SERVED, 1, 1) });
    stage.wire_down(1);
    assert_eq!(stage.wait(60_000), [format!("{SESSION_LINGER} {NO_EDGE}")]);
}

#[test]
fn a_session_with_both_ends_done_is_no_failure() {
    let finished =
        "s1 over, Finished: everything was received; the owner's last frame did not arrive (lingered)";
    for finish in [false, true] {
        let mut stage = Stage::owned(1);
        stage.end_of_input(1);
        stage.output_close(1, 2);
        if finish {
            assert_eq!(stage.frame(1, Finish { channel: 2 }), ["w1 finished c2"]);
        }
        stage.wire_down(1);
        assert_eq!(stage.wait(60_000), ["30000 p1 is closed", &format!("30000 {finished}")]);
    }
}

#[test]
fn the_time_runs_from_the_loss_of_the_owner_through_all_attempts() {
    let mut stage = Stage::owned(1);
    stage.wire_down(1);
    stage.wait(10_000);
    stage.edge(1, 0);
    stage.wait(10_000);
    let lines = stage.wait(60_000);
    assert_eq!(only(lines, "over"), [format!("10000 {NO_EDGE}")]);
}

#[test]
fn an_edge_that_has_the_promise_is_waited_for() {
    let mut stage = Stage::client(1);
    stage.accept(1);
    stage.wait(1_000);
    stage.frame(1, promise(stage.session(1), 2, 1));
    assert_eq!(stage.wait(2 * EDGE_WAIT), [""; 0], "it may have much to replay");
    assert_eq!(stage.wire_down(1), ["p1 is reset", NO_EDGE]);
}

#[test]
fn a_new_owner_stops_the_clock() {
    let mut stage = Stage::owned(2);
    stage.wire_down(1);
    stage.wait(1_000);
    stage.own(2, 2, 2);
    assert_eq!(stage.wait(2 * SESSION_LINGER), [""; 0]);
    stage.wire_down(2);
    assert_eq!(stage.wait(2 * SESSION_LINGER)[0], "30000 p1 is reset", "and it begins again");
}

#[test]
fn the_other_end_may_have_forgotten_what_is_done_here() {
    let forgotten = || Ended { channel: 2, code: Code::Forgotten, reason: "no such session".to_string() };
    let mut stage = Stage::owned(1);
    let lines = stage.frame(1, forgotten());
    assert_eq!(lines, ["p1 is reset", "s1 over, Forgotten: no such session"]);
    let mut stage = Stage::owned(1);
    stage.end_of_input(1);
    stage.output_close(1, 2);
    assert_eq!(stage.frame(1, forgotten()), ["p1 is closed", "s1 over, Finished: no such session"]);
    let mut stage = Stage::owned(1);
    stage.end_of_input(1);
    stage.output_close(1, 2);
    let lines = stage.frame(1, Ended { code: Code::Killed, ..forgotten() });
    assert_eq!(lines, ["p1 is closed", "s1 over, Killed: no such session"]);
}

#[test]
fn a_promise_contains_the_linger_time() {
    let mut stage = Stage::server(1);
    let ask = Promise { server: "db".to_string(), linger_ms: 7, ..promise(SERVED, 1, 1) };
    stage.frame(1, ask);
    stage.frame(1, chosen(1));
    stage.wire_down(1);
    assert_eq!(stage.wait(1_000)[0], "7 q1 is reset");
}
