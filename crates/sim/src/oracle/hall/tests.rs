//! A hall that keeps every rule passes, and each violation is detected.

use super::*;
use crate::plan::{Plan, Service};
use marram_hall_algo::{Hall, HallEvent, HallHost};
use marram_session::agent::ConnectionId;

/// What happens in a hall, by the numbers of clients.
#[derive(Clone, Copy)]
enum Step {
    /// At this port.
    Join(usize, u32),
    Say(usize, &'static [u8]),
    /// In order.
    Leave(usize),
    /// It is reset by a fault: nothing reaches it any more, and later the hall is told.
    Vanish(usize),
    Wait,
}
use Step::{Join, Leave, Say, Vanish, Wait};

/// Passes records to the clients that have the ports.
struct Clients {
    programs: Vec<Program>,
    ports: BTreeMap<u32, usize>,
    random: u8,
}

impl HallHost for Clients {
    fn now(&mut self) -> i64 {
        17
    }
    fn random(&mut self, buffer: &mut [u8]) {
        self.random += 1;
        buffer.fill(self.random);
    }
    fn send(&mut self, to: u32, payload: &[u8]) {
        if let Some(client) = self.ports.get(&to) {
            self.programs[*client].received.extend(payload);
        }
    }
    fn close(&mut self, to: u32) {
        if let Some(client) = self.ports.remove(&to) {
            self.programs[client].end_received = true;
        }
    }
    fn set_timer(&mut self, _: i64, _: u64) {}
    fn cancel_timer(&mut self, _: u64) {}
}

fn client(number: usize) -> Program {
    let mut program = Program::client(&Plan::of(0), 0, 0, ConnectionId(number as u64));
    (program.service, program.closed) = (Some(Service::Hall), Some(false));
    program
}

/// The clients of a hall in which this happens; `random` decides what the hall draws.
fn hall(steps: &[Step], random: u8) -> Vec<Program> {
    let (mut hall, mut ports) = (Hall::default(), [0; 8]);
    let programs = (0..8).map(client).collect();
    let mut clients = Clients { programs, ports: BTreeMap::new(), random };
    for step in steps {
        let event = match *step {
            Join(client, port) => {
                ports[client] = port;
                clients.ports.insert(port, client);
                HallEvent::Open(port)
            }
            Say(client, bytes) => {
                clients.programs[client].written.extend(bytes);
                HallEvent::Message(ports[client], bytes)
            }
            Leave(client) => {
                clients.programs[client].end_taken = true;
                HallEvent::Close(ports[client])
            }
            Vanish(client) => {
                clients.ports.remove(&ports[client]);
                let program = &mut clients.programs[client];
                (program.closed, program.excused) = (Some(true), true);
                HallEvent::Close(ports[client])
            }
            Wait => HallEvent::Timer(1),
        };
        hall.input(event, &mut clients);
    }
    clients.programs.retain(|program| !program.received.is_empty());
    clients.programs
}

const STEPS: [Step; 16] = [
    Join(0, 0),
    Say(0, b"one"),
    Join(1, 2),
    Say(1, b"two"),
    Say(0, b"three"),
    Join(2, 3),
    Wait,
    Say(2, b"four"),
    Leave(1),
    Say(2, b"five"),
    // At the number of the one that has left.
    Join(3, 2),
    Say(3, b"six"),
    Vanish(2),
    Say(0, b"seven"),
    Leave(0),
    Leave(3),
];

fn verdict(programs: &[Program]) -> String {
    let mut violations = Vec::new();
    let clients: Vec<_> = programs.iter().enumerate().collect();
    judge_each(&clients, HallsLost::No, &mut violations);
    violations.join("; ")
}

fn check(damage: impl FnOnce(&mut [Program]), expect: &str) {
    let mut programs = hall(&STEPS, 0);
    damage(&mut programs);
    let verdict = verdict(&programs);
    assert!(verdict.contains(expect), "expected `{expect}`, got `{verdict}`");
}

/// Changes the record at this place of what a client received.
fn change(program: &mut Program, place: usize, change: impl FnOnce(&mut HallRecord)) {
    let (records, _) = program.received.as_chunks_mut::<{ HallRecord::SIZE }>();
    let mut record = HallRecord::from_bytes(&records[place]).unwrap();
    change(&mut record);
    records[place] = record.to_bytes();
}

#[test]
fn a_hall_that_kept_every_rule_passes() {
    let programs = hall(&STEPS, 0);
    assert_eq!(programs.len(), 4);
    assert_eq!(verdict(&programs), "");
    assert_eq!(verdict(&[]), "");
    // Whatever part of it a client that was reset has received.
    for size in (0..=programs[2].received.len()).step_by(HallRecord::SIZE) {
        let mut programs = hall(&STEPS, 0);
        programs[2].received.truncate(size);
        assert_eq!(verdict(&programs), "", "{size}");
    }
}

/// The clients of two halls, in the second of which nothing is received before this time. Each has the key of its hall.
fn two_halls(keys: [u8; 2], second_ns: u64) -> Vec<Program> {
    let halls = keys.into_iter().zip([(0, 0, 99), (1, second_ns, second_ns + 99)]);
    let clients = halls.flat_map(|(key, (random, first_ns, last_ns))| {
        let mut clients = hall(&STEPS, 50 * random);
        for client in &mut clients {
            (client.key, client.received_ns) = (Some(key), Some((first_ns, last_ns)));
        }
        clients
    });
    clients.collect()
}

#[test]
fn each_key_has_a_hall_of_its_own() {
    assert_eq!(verdict(&two_halls([1, 2], 0)), "");
    let mut programs = two_halls([1, 2], 0);
    programs[3].key = Some(2);
    assert!(verdict(&programs).contains("of the keys Some(1) and Some(2)"), "{}", verdict(&programs));
}

#[test]
fn halls_of_one_key_are_there_one_after_the_other() {
    let halls = two_halls([1, 1], 100);
    assert_eq!((verdict(&halls), halls_in_turn(halls.iter())), (String::new(), 1));
    assert!(verdict(&two_halls([1, 1], 99)).contains("of the same key from 99 ns on"));
}

#[test]
fn a_hall_may_be_empty_for_a_while() {
    let programs = hall(&[Join(0, 0), Say(0, b"a"), Leave(0), Wait, Join(1, 0), Say(1, b"b"), Leave(1)], 0);
    assert_eq!(verdict(&programs), "");
}

#[test]
fn what_is_lost_repeated_or_torn_is_seen() {
    let size = HallRecord::SIZE;
    check(|programs| drop(programs[0].received.drain(..size)), "received record 1 first");
    check(|programs| drop(programs[0].received.drain(2 * size..3 * size)), "record 3 of hall");
    check(
        |programs| {
            let last = programs[1].received[size..2 * size].to_vec();
            programs[1].received.splice(size..size, last);
        },
        "client 1 of the hall received record",
    );
    check(|programs| programs[0].received.truncate(size + 7), "7 B of a record");
    check(|programs| programs[0].received[44] = 9, "what is no record");
}

#[test]
fn two_clients_that_saw_another_history_are_seen() {
    let mut other = STEPS;
    other.swap(3, 4);
    let others = hall(&other, 0);
    check(|programs| programs[1].received.clone_from(&others[1].received), "another record");
    check(|programs| change(&mut programs[1], 2, |record| record.hash ^= 1), "another record");
    let again = hall(&STEPS, 99);
    check(|programs| programs[1].received.clone_from(&again[1].received), "there were 2 halls");
}

/// One history goes on where no client of the other one sees it.
#[test]
fn a_record_that_does_not_follow_is_seen() {
    let steps = [Join(0, 0), Say(0, b"a"), Leave(0), Join(1, 0), Say(1, b"b"), Leave(1)];
    let mut programs = hall(&steps, 0);
    assert_eq!(verdict(&programs), "");
    change(&mut programs[0], 2, |record| record.hash ^= 1);
    assert!(verdict(&programs).contains("does not follow"), "{}", verdict(&programs));
    let mut programs = hall(&steps, 0);
    (0..3).for_each(|place| change(&mut programs[1], place, |record| record.events += 1));
    assert_ne!(verdict(&programs), "");
}

#[test]
fn inputs_that_are_lost_altered_or_repeated_are_seen() {
    check(|programs| programs[0].written[0] ^= 1, "wrote something else");
    check(|programs| programs[2].written.truncate(5), "wrote something else");
    check(|programs| programs[1].written.extend(b"more"), "but of 7 B");
    let twice = hall(&[Join(0, 0), Say(0, b"ab"), Say(0, b"ab"), Leave(0)], 0);
    let mut programs = hall(&[Join(0, 0), Say(0, b"ab"), Leave(0)], 0);
    programs[0].received.clone_from(&twice[0].received);
    assert!(verdict(&programs).contains("wrote something else"), "{}", verdict(&programs));
}

/// What the new client at a number says is not what the former one said.
#[test]
fn clients_that_had_one_number_are_not_taken_for_each_other() {
    check(
        |programs| {
            let former = programs[1].written.clone();
            programs[3].written = former;
        },
        "client Some(3) of the hall wrote something else",
    );
    check(|programs| programs[3].received.clone_from(&hall(&STEPS, 0)[1].received), "joined with record 2");
}

/// Nothing reached it, so that its port is not known: some client must have said what the record names.
#[test]
fn a_client_that_received_nothing_may_have_spoken() {
    let steps = [Join(0, 0), Join(1, 2), Say(1, b"x"), Vanish(1), Say(0, b"y"), Leave(0)];
    let silent = || {
        let mut programs = hall(&steps, 0);
        programs[1].received.clear();
        programs
    };
    assert_eq!(verdict(&silent()), "");
    let mut programs = silent();
    programs[1].written = b"z".to_vec();
    assert!(verdict(&programs).contains("client None of the hall wrote something else"));
    // Its agent lies: what it wrote says nothing.
    programs[1].lied_to = LiedTo::ByOwnAgent;
    assert_eq!(verdict(&programs), "");
}

#[test]
fn a_client_may_not_be_cut_short_without_a_reason() {
    let size = HallRecord::SIZE;
    check(|programs| programs[0].closed = Some(true), "client 0 of the hall was reset");
    check(|programs| programs[0].closed = None, "client 0 of the hall was reset");
    check(|programs| programs[1].end_received = false, "told of the end false");
    check(
        |programs| {
            let kept = programs[3].received.len() - size;
            programs[3].received.truncate(kept);
        },
        "client 3 of the hall ended in order",
    );
    check(|programs| programs[0].received.clear(), "client 0 of the hall ended in order");
}

#[test]
fn a_client_receives_nothing_after_its_end_and_shares_its_port_with_no_other() {
    let size = HallRecord::SIZE;
    check(
        |programs| {
            let next = programs[0].received[9 * size..10 * size].to_vec();
            programs[1].received.extend(next);
        },
        "client 1 of the hall left, and received record 9",
    );
    let steps = [Join(0, 0), Join(1, 2), Say(1, b"x"), Join(2, 2), Leave(0), Leave(2)];
    let mut programs = hall(&steps, 0);
    let rest = programs[0].received[3 * size..].to_vec();
    programs[1].received.extend(rest);
    assert!(verdict(&programs).contains("and so has who joined at 3"), "{}", verdict(&programs));
}
