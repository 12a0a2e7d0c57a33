//! Formats steps, states and recordings for people.
//!
//! ```text
//!      3  session time 0.012000000 s  client sends 5 B "hello"
//!           -> client 5 B "HELLO"
//!           sets timer 7 of stage 0 in 1.000000000 s
//! ```
//!
//! All text that comes from a recording is escaped: it may be a peer's, and a terminal must not
//! obey it.

use super::Change;
use marram_sandbox::{ReplayStep, StageState};
use marram_session::{
    cell::{CellInput, CellOutput, TaskChange, TimerChange},
    replay::StepResult,
};
use marram_wire::{
    header::{Lock, Task},
    id::Port,
    log::{Client, Cursor, Event, PortEvent},
    peer::Peer,
    recording::{RecordedMessage, Recording},
};
use std::fmt::Write;

/// Most bytes of a message that are shown.
const SHOWN: usize = 48;
/// Most changes of one stage's memory that are shown.
const CHANGES_MAX: usize = 64;
/// Most bytes of a change that are shown.
const CHANGE_SHOWN: usize = 16;

/// Text from the file, escaped, on one line.
#[must_use]
pub fn plain(text: &str) -> String {
    text.escape_debug().to_string()
}

/// A peer's name.
#[must_use]
pub fn port(port: Port) -> String {
    match port {
        Port::CLIENT => "client".into(),
        Port::SERVER => "server".into(),
        Port(number) => format!("port {number}"),
    }
}

/// The first bytes, on one line.
///
/// Text is readable, all else is escaped as in a byte string of Rust.
#[must_use]
pub fn bytes(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(SHOWN)];
    let more = if bytes.len() > SHOWN { ".." } else { "" };
    format!("{} B \"{}\"{more}", bytes.len(), shown.escape_ascii())
}

/// A time in seconds.
fn seconds(ns: i64) -> String {
    let ns_abs = ns.unsigned_abs();
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}.{:09} s", ns_abs / 1_000_000_000, ns_abs % 1_000_000_000)
}

/// What is known about a client, to append to other text.
fn client(peer: Option<&Peer>) -> String {
    let Some(peer) = peer else { return String::new() };
    let address = peer.address.map(|address| format!(", client {address}"));
    let listener = Some(&peer.listener).filter(|name| !name.is_empty());
    let listener = listener.map(|name| format!(", listener {}", plain(name)));
    let identity = peer.identity.as_ref().map(|name| format!(", agent {}", plain(name)));
    [address, listener, identity].into_iter().flatten().collect()
}

/// The input of a handler.
#[must_use]
pub fn input(input: &CellInput) -> String {
    match input {
        CellInput::Open { port: at, kind, peer } => {
            format!("{} opens as {kind:?}{}", port(*at), client(peer.as_deref()))
        }
        CellInput::Message { port: at, payload } => format!("{} sends {}", port(*at), bytes(payload)),
        CellInput::Close { port: at } => format!("{} closes", port(*at)),
        CellInput::Gone { port: at } => format!("{} is disconnected", port(*at)),
        CellInput::Timer { stage, token } => format!("timer {token} of stage {stage} fires"),
        CellInput::Task { stage, token } => format!("task {token} of stage {stage} runs"),
    }
}

/// A handler and its result.
#[must_use]
pub fn step(step: &ReplayStep) -> String {
    let mut out =
        format!("{:>6}  session time {}  {}\n", step.entry, seconds(step.now_ns), input(&step.input));
    for print in &step.prints {
        let text = plain(&print.text);
        writeln!(out, "          prints {:?}: {text}", print.level).expect("a string takes it");
    }
    for output in &step.outputs {
        let text = match output {
            CellOutput::Message { port: to, payload } => format!("-> {} {}", port(*to), bytes(payload)),
            CellOutput::Close { port: to } => format!("-> {} closed", port(*to)),
            CellOutput::Connect { port: to, name } => format!("connects {} to {name}", port(*to)),
            CellOutput::Pause { stage, port: at } => format!("stage {stage} pauses {}", port(*at)),
            CellOutput::Resume { stage, port: at } => format!("stage {stage} resumes {}", port(*at)),
        };
        writeln!(out, "          {text}").expect("a string takes it");
    }
    for change in &step.timers {
        let text = match change {
            TimerChange::Set { stage, token, delay_ns } => {
                format!("sets timer {token} of stage {stage} in {}", seconds(*delay_ns))
            }
            TimerChange::Cancel { stage, token } => format!("cancels timer {token} of stage {stage}"),
        };
        writeln!(out, "          {text}").expect("a string takes it");
    }
    for change in &step.tasks {
        let text = match change {
            TaskChange::Spawn { stage, token } => format!("spawns task {token} of stage {stage}"),
            TaskChange::Lock { stage, id, token } => {
                format!("requests lock {id} of stage {stage} for task {token}")
            }
            TaskChange::Unlock { stage, id, .. } => format!("releases lock {id} of stage {stage}"),
        };
        writeln!(out, "          {text}").expect("a string takes it");
    }
    if let StepResult::Stopped(reason) = &step.result {
        writeln!(out, "          is stopped: {}", plain(reason)).expect("a string takes it");
    }
    out
}

/// A summary of a recording, without running it.
///
/// Entries and messages are matched by order: the log says whose message was consumed, and each
/// peer's messages are in the file in their order. It stops at the first entry that cannot be read.
#[must_use]
pub fn listing(recording: &Recording) -> String {
    let mut out = String::new();
    let mut said: Vec<_> =
        recording.inputs.iter().map(|inputs| (inputs.port, inputs.messages.0.iter())).collect();
    // Times in the log are differences to the one before; the checkpoint's header has the last one.
    let mut cursor = Cursor { last_ns: recording.header.as_ref().map_or(0, |header| header.last_ns) };
    let mut entry = 0;
    let stop = recording.stop.as_ref().map(|stop| stop.entry.clone());
    for mut rest in [Some(recording.log.clone()), stop].into_iter().flatten() {
        while let Some(read) = (!rest.is_empty()).then(|| cursor.take(&mut rest)).and_then(Result::ok) {
            let what = match read.event {
                Event::Message(at) => {
                    let said =
                        said.iter_mut().find(|(port, _)| *port == at).and_then(|(_, said)| said.next());
                    format!("{} {}", port(at), said.map_or_else(String::new, message))
                }
                Event::Timer => "a timer fires".into(),
                Event::Task => "a task runs".into(),
                Event::Start { peers, .. } => {
                    format!("the session starts{}", client(peers.client.as_deref()))
                }
                Event::Port(event) => port_event(&event),
            };
            let at =
                read.now_ns.map_or_else(String::new, |now_ns| format!("session time {}  ", seconds(now_ns)));
            let reads = match read.reads.list.len() {
                0 => String::new(),
                reads => format!(", {reads} reads from the cache"),
            };
            writeln!(out, "{entry:>6}  {at}{what}{reads}").expect("a string takes it");
            entry += 1;
        }
    }
    if let Some(stop) = &recording.stop {
        writeln!(out, "          is stopped: {}", plain(&stop.reason)).expect("a string takes it");
    }
    out
}

/// What happens to a port of a shared cell.
fn port_event(event: &PortEvent) -> String {
    let at = match event.port() {
        Port::CLIENT => "port 0".into(),
        at => port(at),
    };
    match event {
        PortEvent::Joined(joined) => {
            let Client { session, generation, .. } = &joined.client;
            let how = if joined.datagrams { " by datagrams" } else { "" };
            let known = client(joined.peer.as_deref());
            format!("{at}: session {session} joins{how} in generation {generation}{known}")
        }
        PortEvent::Resumed { generation, .. } => format!("{at} resumes in generation {generation}"),
        PortEvent::Expelled { .. } => format!("{at} is expelled: a handler of its input was stopped"),
        PortEvent::Left { quietly: false, .. } => format!("{at} leaves"),
        PortEvent::Left { quietly: true, .. } => format!("{at} leaves without a close"),
    }
}

fn message(said: &RecordedMessage) -> String {
    match said {
        RecordedMessage::Payload(payload) => format!("sends {}", bytes(payload)),
        RecordedMessage::Close => "closes".into(),
        RecordedMessage::Redacted { size, digest } => format!("sends {size} B of digest {}", hex(digest)),
    }
}

/// Two hexadecimal digits for each byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut out, byte| {
        write!(out, "{byte:02x}").expect("a string takes it");
        out
    })
}

/// A cell's state in a few lines for each stage.
#[must_use]
pub fn state(
    names: &[&str],
    stages: &[StageState],
    timers: &[(u8, u64, i64)],
    (tasks, locks): &(Vec<Task>, Vec<Lock>),
) -> String {
    let mut out = "a summary; `--dump AT+LENGTH` shows memory, such as --dump 0x1000+256\n".to_owned();
    for (index, stage) in stages.iter().enumerate() {
        let name = names.get(index).filter(|name| !name.is_empty());
        let name = name.map_or_else(String::new, |name| format!(" {name}"));
        let pages = stage.memory.chunks(4_096).filter(|page| page.iter().any(|byte| *byte != 0)).count();
        let len = stage.memory.len();
        writeln!(out, "stage {index}{name}: hash {}", hex(&stage.hash)).expect("a string takes it");
        writeln!(out, "  memory {len} B, {pages} of {} pages not zero", len / 4_096)
            .expect("a string takes it");
        for (number, (kind, bits)) in stage.globals.iter().enumerate() {
            writeln!(out, "  global {number} {kind} {bits:#x}").expect("a string takes it");
        }
        for (at, open) in &stage.ports {
            let how = if *open { "open" } else { "closed to it" };
            writeln!(out, "  {} {how}", port(*at)).expect("a string takes it");
        }
        writeln!(out, "  {} random bytes drawn", stage.drawn).expect("a string takes it");
    }
    for (stage, token, due_ns) in timers {
        writeln!(out, "timer {token} of stage {stage} due at session time {}", seconds(*due_ns))
            .expect("a string takes it");
    }
    for Task { stage, token } in tasks {
        writeln!(out, "task {token} of stage {stage} waits for its turn").expect("a string takes it");
    }
    for Lock { stage, id, holder, waiting } in locks {
        write!(out, "lock {id} of stage {stage} is held by task {holder}").expect("a string takes it");
        for (index, token) in waiting.0.iter().enumerate() {
            let word = if index == 0 { "; waiting: task" } else { "," };
            write!(out, "{word} {token}").expect("a string takes it");
        }
        out.push('\n');
    }
    out
}

/// Memory, sixteen bytes on each line.
///
/// `at` is the address of the first byte. The layout is that of `hexdump -C`, without the bars.
#[must_use]
pub fn dump(at: usize, memory: &[u8]) -> String {
    let mut out = String::new();
    for (index, line) in memory.chunks(16).enumerate() {
        let digits: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let text: String = line
            .iter()
            .map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' })
            .collect();
        writeln!(out, "{:08x}  {:<47}  {text}", at + 16 * index, digits.join(" "))
            .expect("a string takes it");
    }
    out
}

/// The differences between two states of a stage.
#[must_use]
pub fn difference(index: usize, before: &StageState, after: &StageState, changes: &[Change]) -> String {
    let mut out = String::new();
    if before.memory.len() != after.memory.len() {
        writeln!(out, "stage {index}: memory {} B -> {} B", before.memory.len(), after.memory.len())
            .expect("a string takes it");
    }
    for (number, (was, is)) in before.globals.iter().zip(&after.globals).enumerate() {
        if was != is {
            writeln!(out, "stage {index}: global {number} {:#x} -> {:#x}", was.1, is.1)
                .expect("a string takes it");
        }
    }
    if before.ports != after.ports || before.drawn != after.drawn {
        writeln!(
            out,
            "stage {index}: ports {:?} -> {:?}, drawn {} -> {}",
            before.ports, after.ports, before.drawn, after.drawn
        )
        .expect("a string takes it");
    }
    for change in changes.iter().take(CHANGES_MAX) {
        let shown = |bytes: &[u8]| {
            let more = if bytes.len() > CHANGE_SHOWN { ".." } else { "" };
            hex(&bytes[..bytes.len().min(CHANGE_SHOWN)]) + more
        };
        let (was, is) = (shown(&change.before), shown(&change.after));
        writeln!(out, "stage {index}: {:#x}+{} {was} -> {is}", change.at, change.after.len())
            .expect("a string takes it");
    }
    if changes.len() > CHANGES_MAX {
        writeln!(out, "stage {index}: and {} more", changes.len() - CHANGES_MAX).expect("a string takes it");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::{
        header::Many,
        id::{Generation, HostId, ImageHash, SessionId},
        log::{Entry, Joined, Reads},
        recording::{About, Inputs},
    };

    fn recording(events: Vec<Event>) -> Recording {
        let (mut cursor, mut log) = (Cursor::default(), bytes::BytesMut::new());
        for event in events {
            cursor.put(&Entry { event, now_ns: None, reads: Reads::default() }, &mut log);
        }
        let said = |port, text: &'static str| {
            let messages = Many(vec![RecordedMessage::Payload(text.as_bytes().into())]);
            Inputs { port: Port(port), first: 0, messages }
        };
        Recording {
            about: About {
                session: SessionId([1; 16]),
                image: ImageHash([2; 32]),
                app: "hall".into(),
                edge: "edge-a".into(),
                generation: Generation { count: 1, opener: 2 },
                unix_ns: 0,
                log_offset: 0,
                state: None,
                redacted: false,
                shared: false,
            },
            header: None,
            checkpoints: Vec::new(),
            log: log.freeze(),
            inputs: vec![said(0, "one"), said(3, "two")],
            stop: None,
            apps: Vec::new(),
        }
    }

    #[test]
    fn a_listing_says_what_happens_to_ports() {
        let generation = Generation { count: 4, opener: 0xab };
        let client = Client { session: SessionId([0xc1; 16]), host: HostId([9; 16]), generation };
        let joined = |port, datagrams, name| {
            let peer = Peer::new(None, name).map(Into::into);
            PortEvent::Joined(Box::new(Joined { port: Port(port), client: client.clone(), datagrams, peer }))
        };
        let port = Port(3);
        let events = [
            joined(0, false, None),
            joined(3, true, Some("web-1")),
            PortEvent::Resumed { port, generation },
            PortEvent::Expelled { port },
            PortEvent::Left { port, quietly: true },
            PortEvent::Left { port: Port::CLIENT, quietly: false },
        ];
        let messages = [Port(3), Port(4), Port::CLIENT].map(Event::Message);
        let listed = listing(&recording(events.map(Event::Port).into_iter().chain(messages).collect()));
        let session = "c1".repeat(16);
        let expected = [
            format!("port 0: session {session} joins in generation 4.00000000000000ab"),
            format!(
                "port 3: session {session} joins by datagrams in generation 4.00000000000000ab, agent web-1"
            ),
            "port 3 resumes in generation 4.00000000000000ab".into(),
            "port 3 is expelled: a handler of its input was stopped".into(),
            "port 3 leaves without a close".into(),
            "port 0 leaves".into(),
            "port 3 sends 3 B \"two\"".into(),
            "port 4 ".into(),
            "client sends 3 B \"one\"".into(),
        ];
        let lines = (0..).zip(expected).map(|(entry, what)| format!("{entry:>6}  {what}\n"));
        assert_eq!(listed, lines.collect::<String>());
    }
}
