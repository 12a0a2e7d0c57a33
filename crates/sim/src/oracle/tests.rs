//! Tests of the oracle: a session that keeps every rule passes, and each violation is detected.

use super::*;
use crate::plan::{Plan, Visit};
use marram_chain_algo::{Chain, Event, Host};
use marram_session::agent::ConnectionId;
use marram_shard::coordinator::Changes;

/// A host that passes records to two programs.
#[derive(Default)]
struct Host2 {
    sent: [Vec<Record>; 2],
    random: u8,
}

impl Host for Host2 {
    fn now(&mut self) -> i64 {
        17
    }
    fn random(&mut self, buffer: &mut [u8]) {
        self.random += 1;
        buffer.fill(self.random);
    }
    fn send(&mut self, to: Peer, payload: &[u8]) {
        self.sent[to as usize].push(Record::from_bytes(payload.try_into().expect("one record at a time")));
    }
    fn close(&mut self, _: Peer) {}
    fn set_timer(&mut self, _: i64, _: u64) {}
    fn cancel_timer(&mut self, _: u64) {}
    fn spawn(&mut self, _: u64) {}
    fn lock(&mut self, _: u64, _: u64) {}
    fn unlock(&mut self, _: u64) {}
}

/// A seed with one ordinary session and nothing that excuses a reset.
fn plan() -> Plan {
    let ordinary = |plan: &Plan| {
        let paired = |visit: &Visit| visit.service == Service::Paired;
        plan.visits.len() == 1
            && plan.visits.iter().all(paired)
            && plan.poison.is_none()
            && !plan.visits[0].script.resets
    };
    (0..).map(Plan::of).find(ordinary).unwrap()
}

/// Both programs of a session in which `inputs` were consumed in this order.
fn session(inputs: &[(Peer, &[u8])]) -> [Program; 2] {
    let (plan, name) = (plan(), ConnectionId(0));
    let mut programs = [Program::client(&plan, 0, 0, name), Program::server(&plan, 0, 1, 0, name)];
    let (mut chain, mut host) = (Chain::default(), Host2::default());
    let mut events = vec![Event::Open(Peer::Client), Event::Open(Peer::Server)];
    events.extend(inputs.iter().map(|(peer, bytes)| Event::Message(*peer, bytes)));
    events.extend([Event::Close(Peer::Client), Event::Close(Peer::Server)]);
    events.iter().for_each(|event| chain.input(*event, &mut host));
    for (program, records) in programs.iter_mut().zip(&host.sent) {
        let own = inputs.iter().filter(|(peer, _)| *peer == program.peer);
        program.written = own.flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        program.received = records.iter().flat_map(Record::to_bytes).collect();
        program.end_taken = true;
        program.end_received = true;
        program.closed = Some(false);
    }
    programs
}

const INPUTS: [(Peer, &[u8]); 8] = [
    (Peer::Client, b"one"),
    (Peer::Server, b"two"),
    (Peer::Client, b"three"),
    (Peer::Client, b"four"),
    (Peer::Server, b"five"),
    (Peer::Server, b"six"),
    (Peer::Client, b"seven"),
    (Peer::Server, b"eight"),
];

fn verdict(programs: &[Program]) -> String {
    let mut violations = Vec::new();
    judge(programs, HallsLost::No, &mut violations);
    violations.join("; ")
}

fn check(damage: impl FnOnce(&mut [Program; 2]), expect: &str) {
    let mut programs = session(&INPUTS);
    damage(&mut programs);
    let verdict = verdict(&programs);
    assert!(verdict.contains(expect), "expected `{expect}`, got `{verdict}`");
}

#[test]
fn a_session_that_kept_every_rule_passes() {
    assert_eq!(verdict(&session(&INPUTS)), "");
}

#[test]
fn what_is_lost_repeated_or_torn_is_seen() {
    let size = Record::SIZE;
    check(|programs| drop(programs[0].received.drain(..size)), "received by no peer");
    check(
        |programs| {
            let last = programs[1].received[..size].to_vec();
            programs[1].received.extend(last);
        },
        "program 1 received record",
    );
    check(|programs| programs[0].received.truncate(size + 7), "7 B of a record");
}

#[test]
fn inputs_that_are_lost_altered_or_repeated_are_seen() {
    check(|programs| programs[0].written[0] ^= 1, "wrote something else");
    check(|programs| programs[1].written.extend(b"more"), "were consumed");
    check(
        |programs| {
            let again = [INPUTS[0], INPUTS[0], INPUTS[1]];
            programs[0].received = session(&again)[0].received.clone();
        },
        "wrote something else",
    );
}

#[test]
fn two_histories_of_one_session_contradict_each_other() {
    let mut other = INPUTS;
    other.swap(0, 1);
    let [_, server] = session(&other);
    check(|programs| programs[1].received = server.received, "record");
}

#[test]
fn a_session_may_not_be_cut_short_without_a_reason() {
    check(|programs| programs[0].closed = Some(true), "ended by a reset");
    check(|programs| programs[1].end_received = false, "told of the end false");
}

#[test]
fn a_store_that_starts_again_without_a_key_refuses_older_watches() {
    let mut judge = StoreJudge::default();
    assert!(judge.told("/a/", judge.place(6), &Changes::Forgotten).is_err(), "it has forgotten nothing");
    judge.restarted(0);
    assert_eq!(judge.told("/a/", judge.place(6), &Changes::Forgotten), Ok(0));
}
