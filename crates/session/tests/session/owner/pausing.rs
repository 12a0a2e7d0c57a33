//! Ports that the cell pauses: their ends get no credit until the ports are resumed, even if the owner changes meanwhile.

use crate::owner::bench::{Bench, CLIENT, SERVER, charged, policy, set};
use marram_session::{
    cell::{CellOutput, TaskChange},
    owner::{Owner, OwnerPolicy},
};
use marram_wire::{
    id::Port,
    limits::{INPUT_WINDOW, MESSAGE_SIZE_MAX, charge},
};

/// This much is consumed before any of it is granted again.
const PIECE: u64 = INPUT_WINDOW - charge(MESSAGE_SIZE_MAX);

fn pause(port: Port) -> CellOutput {
    CellOutput::Pause { stage: 0, port }
}

fn resume(port: Port) -> CellOutput {
    CellOutput::Resume { stage: 0, port }
}

fn paused(bench: &Bench) -> Vec<Port> {
    bench.owner.paused().collect()
}

/// The lines that contain this word, in order.
fn with(lines: &[String], word: &str) -> Vec<String> {
    lines.iter().filter(|line| line.contains(word)).cloned().collect()
}

/// A session in which the first message paused the client's port.
fn pausing() -> Bench {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.outputs = vec![pause(CLIENT)]);
    bench.look();
    bench
}

#[test]
fn a_paused_port_is_granted_nothing_until_it_is_resumed() {
    let mut bench = pausing();
    assert_eq!(paused(&bench), [CLIENT]);
    bench.say(CLIENT, charged(PIECE));
    assert_eq!(bench.look().len(), 1, "what was sent within the credit is handled");
    bench.ran(&[]);
    assert_eq!(bench.look(), [""; 0], "and not granted again");
    bench.say(SERVER, charged(PIECE));
    bench.ran(&[]);
    assert_eq!(with(&bench.look(), "credit"), [format!("server: credit {PIECE}")]);
    bench.say(SERVER, "go on");
    bench.ran_with(|ran| ran.outputs = vec![resume(CLIENT)]);
    assert_eq!(bench.look().last(), Some(&format!("client: credit {}", charge(1) + PIECE)));
    assert_eq!(paused(&bench), []);
}

#[test]
fn calls_take_effect_in_their_order_and_one_is_enough() {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.outputs = vec![pause(CLIENT), pause(CLIENT), resume(CLIENT)]);
    assert_eq!(paused(&bench), []);
    bench.say(CLIENT, "b");
    bench.ran_with(|ran| ran.outputs = vec![resume(CLIENT), pause(CLIENT), resume(SERVER)]);
    assert_eq!(paused(&bench), [CLIENT]);
    assert_eq!(bench.owner.totals().produced, 0, "ends receive nothing of it");
}

#[test]
fn a_stage_pauses_its_whole_chain_on_that_side_until_it_resumes_it_itself() {
    let mut bench = Bench::begun(policy());
    let (pause, resume) =
        (|stage| CellOutput::Pause { stage, port: SERVER }, |stage, port| CellOutput::Resume { stage, port });
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| ran.outputs = vec![pause(0), pause(1)]);
    bench.say(CLIENT, "b");
    bench.ran_with(|ran| ran.outputs = vec![resume(0, SERVER), resume(1, CLIENT), resume(2, SERVER)]);
    assert_eq!(paused(&bench), [SERVER]);
    bench.say(CLIENT, "c");
    bench.ran_with(|ran| ran.outputs = vec![resume(1, SERVER)]);
    assert_eq!(paused(&bench), []);
}

#[test]
fn without_a_server_a_chain_s_inner_port_pauses_the_client() {
    let mut bench = Bench::begun(OwnerPolicy { server: None, ..policy() });
    bench.say(CLIENT, "a");
    bench.ran_with(|ran| {
        ran.outputs = vec![CellOutput::Pause { stage: 0, port: SERVER }];
        ran.timers = vec![set(1, 1)];
    });
    assert_eq!(paused(&bench), [CLIENT]);
}

/// After a failure: the paused port gets no credit with the chosen log, messages beyond its credit wait, and the withheld
/// credit is granted when the port is resumed.
fn still_paused(bench: &mut Bench, lines: &[String]) {
    assert!(
        lines.iter().any(|line| line.starts_with("client: chosen") && line.ends_with(" credit 0")),
        "{lines:?}"
    );
    let whole = format!(" credit {INPUT_WINDOW}");
    assert!(
        lines.iter().any(|line| line.starts_with("server: chosen") && line.ends_with(&whole)),
        "{lines:?}"
    );
    assert_eq!(with(lines, "run late"), [""; 0], "it was handed over beyond the credit");
    assert_eq!(paused(bench), [CLIENT]);
    bench.say(SERVER, "go on");
    assert_eq!(bench.look(), ["run go on of server"]);
    bench.ran_with(|ran| ran.outputs = vec![resume(CLIENT)]);
    let lines = bench.look();
    assert_eq!(with(&lines, "credit"), [format!("client: credit {INPUT_WINDOW}")]);
    assert_eq!(lines.last().map(String::as_str), Some("run late of client"));
}

#[test]
fn another_owner_that_replays_the_pause_grants_nothing() {
    let mut bench = pausing();
    bench.say(CLIENT, "b");
    bench.ran(&[(CLIENT, "B")]);
    bench.fail_over();
    bench.kept[0].sent.push(Some("late".into()));
    bench.ask();
    bench.started();
    bench.opened();
    bench.ran_with(|ran| ran.outputs = vec![pause(CLIENT)]);
    bench.ran(&[(CLIENT, "B")]);
    let lines = bench.look();
    still_paused(&mut bench, &lines);
}

#[test]
fn another_owner_that_restores_a_checkpoint_grants_nothing() {
    let mut bench = pausing();
    bench.cover(b"sealed");
    bench.fail_over();
    bench.kept[0].sent.push(Some("late".into()));
    bench.ask();
    bench.restored(bench.kept[0].checkpoints[0].meta.log_offset);
    let lines = bench.look();
    still_paused(&mut bench, &lines);
}

#[test]
fn the_same_owner_grants_nothing_on_its_next_channel() {
    let mut bench = pausing();
    bench.unlinked(CLIENT);
    bench.kept[0].sent.push(Some("late".into()));
    bench.open();
    let [client, server] = &mut bench.kept[..] else { panic!("two ends") };
    client.live_at(1);
    server.live_at(0);
    bench.look();
    bench.hand_over();
    let lines = bench.look();
    still_paused(&mut bench, &lines);
}

/// A session in which one handler pauses both ports, and does this as well.
fn pauses_all(also: impl FnOnce(&mut marram_session::cell::Ran)) -> Bench {
    let mut bench = Bench::begun(policy());
    bench.say(CLIENT, charged(PIECE));
    bench.look();
    bench.ran_with(|ran| {
        ran.outputs = vec![pause(CLIENT), pause(SERVER)];
        also(ran);
    });
    bench
}

#[test]
fn pauses_that_nothing_could_end_end_at_once() {
    let mut bench = pauses_all(|_| {});
    assert_eq!((paused(&bench), bench.owner.totals().pauses_ended), (vec![], 2));
    assert_eq!(bench.look(), [format!("client: credit {PIECE}")]);
    for port in [CLIENT, SERVER] {
        // The other port can run the cell, until it closes.
        let mut bench = Bench::begun(policy());
        bench.say(port, "a");
        bench.ran_with(|ran| ran.outputs = vec![pause(port)]);
        assert_eq!(paused(&bench), [port]);
        let other = if port == CLIENT { SERVER } else { CLIENT };
        bench.close(other);
        bench.ran(&[]);
        assert_eq!(paused(&bench), []);
    }
}

#[test]
fn pauses_that_a_timer_or_a_task_could_end_hold_until_it_has_run() {
    let mut bench = pauses_all(|ran| ran.timers = vec![set(1, 10)]);
    assert_eq!(paused(&bench), [CLIENT, SERVER]);
    bench.now.mono_ns += 10;
    bench.step(Owner::tick);
    assert_eq!(bench.look(), ["run timer 1"]);
    bench.ran(&[]);
    assert_eq!(paused(&bench), [], "it was the last that could");
    let mut bench = pauses_all(|ran| ran.tasks = vec![TaskChange::Spawn { stage: 0, token: 3 }]);
    assert_eq!(bench.look(), ["run task 3"]);
    assert_eq!(paused(&bench), [CLIENT, SERVER]);
    bench.ran_with(|ran| ran.outputs = vec![resume(SERVER)]);
    assert_eq!(paused(&bench), [CLIENT]);
}

#[test]
fn a_session_finishes_when_its_paused_port_closes() {
    let mut bench = pausing();
    bench.close(SERVER);
    bench.ran_with(|ran| ran.timers = vec![set(1, 10)]);
    bench.close(CLIENT);
    assert_eq!(bench.look(), ["run close server", "run close client"]);
    bench.ran(&[]);
    assert_eq!(paused(&bench), [CLIENT]);
    bench.now.mono_ns += 10;
    bench.step(Owner::tick);
    bench.ran(&[]);
    let lines = bench.look();
    assert!(with(&lines, "close").len() >= 2, "a cell that nothing can run says no more: {lines:?}");
    bench.credit(CLIENT, 1, 0);
    bench.credit(SERVER, 1, 0);
    assert_eq!(bench.look(), ["client: finish", "server: finish"]);
}
