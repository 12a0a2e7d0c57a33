//! What an agent keeps for all its sessions stays within its memory: sessions are slowed, and none is ended.

use super::{
    super::{AgentConfig, AgentInput, ConnectionId, MEMORY_MIN},
    Stage, chosen, promise,
    stage::{MS, SERVED, config, cut, only},
};
use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::{
    frame::{Chosen, Promise, Truncate},
    limits::{RETAINED_MIN, STREAM_CUT, charge},
};

/// A client's agent with this memory, and sessions 1 to `count` with owners, on channels 2, 4, ...
fn stage(memory_max: u64, count: u64) -> Stage {
    let mut stage = Stage::new(AgentConfig { memory_max, ..config(1, &[]) }, 1);
    stage.edge(1, 0);
    for number in 1..=count {
        begin(&mut stage, number);
    }
    stage
}

fn begin(stage: &mut Stage, number: u64) {
    stage.accept(number);
    let (channel, place) = (channel(number), usize::try_from(number).expect("a few"));
    stage.frame(1, promise(stage.session(place), channel, 1));
    stage.frame(1, Chosen { credit: 1 << 40, ..chosen(channel) });
}

fn channel(number: u64) -> u32 {
    u32::try_from(2 * number).expect("a few")
}

/// The program sends as much as is read at once.
fn say(stage: &mut Stage, number: u64) -> Vec<String> {
    let connection = ConnectionId(number);
    if !stage.agent.may_read(connection) {
        return stage.step(AgentInput::Waits { connection });
    }
    stage.step(AgentInput::Received { connection, bytes: cut() })
}

/// A checkpoint covers the first messages of a session.
fn cover(stage: &mut Stage, number: u64, sent: u64) -> Vec<String> {
    stage.frame(1, Truncate { channel: channel(number), log_offset: 0, tag: [0; 8], sent })
}

/// All programs send until none is read. Returns how many messages each sent.
fn fill(stage: &mut Stage, count: u64) -> Vec<u64> {
    let mut read: BTreeSet<u64> = (1..=count).collect();
    let mut sent = alloc::vec![0; usize::try_from(count).expect("a few") + 1];
    while !read.is_empty() {
        for number in read.clone() {
            let may_read = stage.agent.may_read(ConnectionId(number));
            sent[usize::try_from(number).expect("a few")] += u64::from(may_read);
            if say(stage, number).contains(&format!("p{number} is not read")) {
                read.remove(&number);
            }
        }
    }
    sent
}

#[test]
fn many_sessions_together_keep_what_the_agent_may_and_equal_parts_of_it() {
    let mut stage = stage(MEMORY_MIN, 100);
    let sent = fill(&mut stage, 100);
    assert!(stage.agent.memory().kept <= MEMORY_MIN, "{:?}", stage.agent.memory());
    assert_eq!(stage.agent.memory().slowed, 100);
    let (least, most) = (sent[1..].iter().min(), sent[1..].iter().max());
    assert!(least >= Some(&2) && most <= Some(&4), "about an even part each: {least:?} to {most:?}");
    // Each of the owners has learned that a checkpoint of what is here is due; one that covers it makes room.
    let mut lines = Vec::new();
    for number in 1..=100 {
        lines.extend(cover(&mut stage, number, sent[usize::try_from(number).expect("a few")]));
    }
    assert_eq!(only(lines, "is read").len(), 100);
    assert_eq!(stage.agent.memory().slowed, 0);
}

#[test]
fn an_owner_learns_how_little_may_be_uncovered_when_its_end_keeps_as_much() {
    let mut stage = stage(MEMORY_MIN, 8);
    let mut first = None;
    for _ in 0..1_000 {
        let lines = (2..=8).flat_map(|number| say(&mut stage, number)).collect::<Vec<_>>();
        first = first.or_else(|| only(lines, "allowance").pop());
        if stage.agent.memory().slowed == 7 {
            break;
        }
    }
    assert!(first.is_some_and(|line| line.starts_with("w1 allowance c")));
    // The first session keeps nothing. When it does, its owner learns it too.
    let lines = (0..4).flat_map(|_| say(&mut stage, 1)).collect();
    assert_eq!(only(lines, "allowance").len(), 1);
}

#[test]
fn sessions_that_are_idle_give_up_memory_when_others_need_it() {
    let mut stage = stage(MEMORY_MIN, 30);
    // Alone, it keeps much and is not slowed.
    for _ in 0..16 {
        assert_eq!(only(say(&mut stage, 1), "is not read"), [""; 0]);
    }
    let mut lines = Vec::new();
    for number in 2..=30 {
        while stage.agent.may_read(ConnectionId(number)) {
            lines.extend(say(&mut stage, number));
        }
    }
    lines.extend(stage.wait(10));
    assert!(!only(lines, "allowance c2 ").is_empty(), "the owner of the idle one is told");
}

#[test]
fn a_session_that_was_slowed_reads_again_when_another_one_ends() {
    let mut stage = stage(MEMORY_MIN, 40);
    fill(&mut stage, 40);
    let slowed = stage.agent.memory().slowed;
    assert!(slowed > 30);
    for number in 1..=20 {
        stage.broken(number);
    }
    stage.wait(100);
    assert!(stage.agent.memory().slowed < slowed - 20, "{:?}", stage.agent.memory());
    assert_eq!(stage.agent.session_count(), 20);
}

#[test]
fn a_session_may_always_keep_one_message() {
    let mut stage = stage(0, 1);
    assert!(say(&mut stage, 1).contains(&"p1 is not read".to_string()));
    assert!(stage.agent.memory().kept <= RETAINED_MIN + charge(STREAM_CUT));
    assert_eq!(only(cover(&mut stage, 1, 1), "is read"), ["p1 is read"]);
    assert!(say(&mut stage, 1).contains(&"p1 is not read".to_string()), "the next one");
}

#[test]
fn new_sessions_are_refused_with_the_reason_and_taken_when_there_is_room() {
    let mut stage = stage(0, 1);
    assert!(!stage.agent.has_room());
    let lines = stage.accept(2);
    assert_eq!(only(lines, "p2"), ["p2 is reset"]);
    stage.broken(1);
    assert!(stage.agent.has_room());
    assert_eq!(only(stage.accept(3), "p3"), [""; 0]);
    // A server's end likewise.
    let mut stage = Stage::new(AgentConfig { memory_max: 0, ..config(1, &["db"]) }, 1);
    stage.edge(1, 0);
    let ask = |id: u8, channel| Promise {
        server: "db".to_string(),
        ..promise(marram_wire::id::SessionId([id; 16]), channel, 1)
    };
    assert_eq!(only(stage.frame(1, ask(SERVED.0[0], 1)), "promised").len(), 1);
    let lines = stage.frame(1, ask(9, 3));
    assert!(lines[0].starts_with("w1 ended c3 Busy: the agent keeps"), "{lines:?}");
    assert!(lines[0].contains("limits.memory"), "{lines:?}");
}

#[test]
fn full_memory_is_reported_once_and_so_is_that_there_is_room_again() {
    let mut stage = stage(MEMORY_MIN, 20);
    let mut lines = Vec::new();
    for _ in 0..1_000 {
        lines.extend((1..=20).flat_map(|number| say(&mut stage, number)));
        if stage.agent.memory().slowed == 20 {
            break;
        }
    }
    assert_eq!(only(lines, "memory"), ["memory is full, 20 sessions"]);
    let mut lines: Vec<String> = (1..=20).flat_map(|number| stage.broken(number)).collect();
    lines.extend(stage.wait(100));
    let lines = only(lines, "memory is free");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(stage.now_ns > MS);
}
