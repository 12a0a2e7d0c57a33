//! Takeovers, one history at a time: what a standby was fed, what the ends have, and the result for the session. The cell
//! echoes.

mod half;
mod moves;
mod ports;
mod recall;
mod room;

use super::*;
use crate::{
    cell::{CellError, CellId, CellInput, CellOutput, Ran, RunOutcome},
    owner::{Attempt, BackupForm, Holder, OwnerPolicy, StandbyError},
};
use alloc::{boxed::Box, vec, vec::Vec};
use bytes::BytesMut;
use core::ops::Range;
use marram_wire::{
    frame::{
        Acknowledged, Base, CheckpointKind, CheckpointMeta, CheckpointPart, Chosen, Fed, Frame, Keep, Keeps,
        LogPart, Promised, Received, Truncate,
    },
    header::{Header, Many, PortState},
    id::{Generation, HostId, ImageHash, Port, SessionId},
    limits::{INPUT_WINDOW, REPLAYED_EVERY},
    log::{Entry, Event, Peers, Reads},
    seal::{DomainSecret, LOG_OFFSET_MAX, SessionKeys},
};

const SESSION: SessionId = SessionId([5; 16]);
const IMAGE: ImageHash = ImageHash([6; 32]);
const HOSTS: [HostId; 2] = [HostId([1; 16]), HostId([2; 16])];
/// The generation of the owner that fed the standby.
const OLD: Generation = Generation { count: 3, opener: 7 };
/// The generation that the standby opens.
const NEW: Generation = Generation { count: 4, opener: 8 };
const CELL: CellId = CellId(1);
const NOW: Now = Now { mono_ns: 1_000, unix_ns: 2_000 };
const SAID: [&str; 5] = ["one", "two", "three", "four", "five"];

fn keys() -> SessionKeys {
    SessionKeys::derive(&DomainSecret::from_material(b"a secret for tests"), SESSION)
}

fn policy() -> OwnerPolicy {
    OwnerPolicy {
        app: "echo".into(),
        server: Some("nothing".into()),
        keeps: Keeps::All,
        form: BackupForm::Log,
        holder: Holder::Both,
        recovery_target_ns: u64::MAX,
        checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
        linger_ms: 1_000,
        messages_per_s: 0,
        log_bytes_per_s: 0,
        record_stops: false,
        shared: false,
        witness: None,
    }
}

/// The history of a session: its start, and then the client's messages, one entry each.
struct History {
    /// The client's messages.
    said: Vec<&'static str>,
    log: Bytes,
    /// The offset of each entry, and the end of the last one.
    offsets: Vec<usize>,
    /// The running digest at each of these offsets.
    digests: Vec<Digest>,
}

impl History {
    fn new(said: &[&'static str]) -> Self {
        Self::of(Port::CLIENT, said)
    }

    /// As above, with the messages of this port.
    fn of(port: Port, said: &[&'static str]) -> Self {
        let (mut log, mut cursor, mut digest) = (BytesMut::new(), Cursor::default(), Digest::start(SESSION));
        let (mut offsets, mut digests) = (vec![0], vec![digest]);
        let start = Event::Start { seed: [3; 32], peers: Peers { server: true, ..Peers::default() } };
        let messages = said.iter().map(|text| (Event::Message(port), Some(*text)));
        for (event, text) in core::iter::once((start, None)).chain(messages) {
            let now_ns = text.is_none().then_some(0);
            cursor.put(&Entry { event, now_ns, reads: Reads::default() }, &mut log);
            let entry = &log[offsets[offsets.len() - 1]..];
            digest.absorb(&keys(), entry, text.map(|text| (false, text.as_bytes())));
            offsets.push(log.len());
            digests.push(digest);
        }
        Self { said: said.to_vec(), log: log.freeze(), offsets, digests }
    }

    fn offset(&self, entry: usize) -> u64 {
        self.offsets[entry] as u64
    }

    /// These entries, sealed by one generation.
    fn sealed(&self, entries: Range<usize>) -> Bytes {
        let mut bytes = BytesMut::from(&self.log[self.offsets[entries.start]..self.offsets[entries.end]]);
        keys().seal(OLD).log(self.offset(entries.start), &mut bytes);
        bytes.freeze()
    }

    /// An entry, as it is fed to a standby.
    fn fed(&self, entry: usize) -> Frame {
        let payload = Bytes::from_static(entry.checked_sub(1).map_or("", |at| self.said[at]).as_bytes());
        let (from, tag) = (if entry == 0 { 2 } else { 0 }, self.digests[entry + 1].tag());
        Fed { channel: 9, entry: self.sealed(entry..entry + 1), tag, from, close: false, payload }.into()
    }

    /// The header of a checkpoint before an entry other than the first.
    fn header(&self, entry: usize) -> Header {
        let took = entry as u64 - 1;
        let port = |port, took| PortState {
            port,
            took,
            input_closed: false,
            produced: took,
            output_closed: false,
            outbox: Many::default(),
        };
        Header {
            session: SESSION,
            image: IMAGE,
            generation: OLD,
            number: 1,
            base_generation: Generation::NONE,
            base_number: 0,
            log_offset: self.offset(entry),
            head: self.digests[entry].0,
            last_ns: 0,
            timers_set: 0,
            timers: Many::default(),
            ports: vec![port(Port::CLIENT, took), port(Port::SERVER, 0)],
            tasks: Many::default(),
            locks: Many::default(),
            paused: Many::default(),
            clients: Many::default(),
            servers: Many::default(),
        }
    }

    fn meta(&self, entry: usize) -> CheckpointMeta {
        CheckpointMeta {
            generation: OLD,
            number: 1,
            kind: CheckpointKind::Full,
            log_offset: self.offset(entry),
            size: 8,
        }
    }
}

/// How the owner begins to feed a standby from an entry on.
fn keep(history: &History, first: usize, hot: bool) -> Keep {
    Keep {
        channel: 9,
        session: SESSION,
        generation: OLD,
        app: "echo".into(),
        image: IMAGE,
        hosts: HOSTS.to_vec(),
        hot,
        moves: false,
        log_offset: history.offset(first),
        head: history.digests[first].0,
        last_ns: 0,
        took: vec![first.saturating_sub(1) as u64, 0],
        group: None,
        origin: None,
        key: Default::default(),
    }
}

/// What an owner tells a standby of outputs that the ends have received, by port.
fn received(counts: &[(u32, u64)]) -> Many<Received> {
    Many(counts.iter().map(|(port, count)| Received { port: Port(*port), count: *count }).collect())
}

/// An end's answer to the request for its promise.
#[derive(Clone)]
struct Says {
    live: bool,
    /// The entries that the end has and the standby lacks.
    log: Range<usize>,
    /// It claims the digest at this entry: the end of its log, unless the digest is to be wrong.
    tag_of: usize,
    /// The messages that the end has and the standby lacks.
    sent: Range<usize>,
    received: u64,
    /// What it says of session time.
    session_ns: Option<i64>,
    /// What it keeps of checkpoints, and how many bytes of them at most.
    checkpoints: Vec<CheckpointMeta>,
    checkpoints_max: u64,
}

/// An end that has exactly the entries and messages that the standby has.
fn level(entries: usize, received: u64) -> Says {
    let messages = entries.saturating_sub(1);
    Says {
        live: true,
        log: entries..entries,
        tag_of: entries,
        sent: messages..messages,
        received,
        session_ns: None,
        checkpoints: Vec::new(),
        checkpoints_max: marram_wire::limits::CHECKPOINTS_SIZE,
    }
}

/// What the server's end says then: its program has sent nothing.
fn silent(entries: usize) -> Says {
    Says { sent: 0..0, ..level(entries, 0) }
}

/// A standby and its effects.
struct Standby {
    history: History,
    owner: Owner,
    out: Vec<OwnerEffect>,
    /// How many of the effects were carried out.
    done: usize,
    /// The entry before which the checkpoint in flight was taken.
    restoring: Option<usize>,
    /// The inputs that the cell was given.
    consumed: Vec<CellInput>,
    /// What it is still fed while the first handler runs.
    late: Option<Frame>,
}

impl Standby {
    /// A hot or warm standby, fed from an entry on.
    fn new(first: usize, hot: bool) -> Self {
        let history = History::new(&SAID);
        let keep = keep(&history, first, hot);
        let owner = Owner::standby(keys(), policy(), &keep, Seed([4; 32])).expect("it makes sense");
        let mut standby = Self {
            history,
            owner,
            out: Vec::new(),
            done: 0,
            restoring: None,
            consumed: Vec::new(),
            late: None,
        };
        if first > 0 {
            standby.base(first);
        }
        standby
    }

    /// Feeds these entries.
    fn fed(mut self, entries: Range<usize>) -> Self {
        for entry in entries {
            let frame = self.history.fed(entry);
            self.feed(frame);
        }
        self
    }

    fn feed(&mut self, frame: Frame) {
        self.owner.fed(NOW, frame, &mut self.out);
        self.settle();
    }

    /// A full checkpoint before an entry arrives.
    fn base(&mut self, entry: usize) {
        let meta = self.history.meta(entry);
        self.feed(Base { channel: 9, meta, took: Vec::new() }.into());
        self.feed(CheckpointPart { channel: 9, bytes: Bytes::from_static(&[0; 8]) }.into());
    }

    /// The ends' checkpoint before an entry covers the earlier entries.
    fn truncate(&mut self, entry: usize) {
        let (log_offset, tag) = (self.history.offset(entry), self.history.digests[entry].tag());
        self.feed(Truncate { channel: 9, log_offset, tag, sent: 0 }.into());
    }

    /// Carries out effects until none is left.
    fn settle(&mut self) {
        while let Some(effect) = self.out.get(self.done).cloned() {
            self.done += 1;
            match effect {
                OwnerEffect::Start(..) => {
                    self.owner.name_cell(CELL);
                    self.owner.started(NOW, CELL, Ok(()), &mut self.out);
                }
                OwnerEffect::Restore(_, chain) => {
                    self.owner.name_cell(CELL);
                    let stands = |entry: &usize| self.history.offset(*entry) == chain[0].log_offset;
                    self.restoring = (1..=SAID.len()).find(stands);
                }
                OwnerEffect::Part(_) => {
                    let header = self.history.header(self.restoring.expect("a checkpoint was announced"));
                    self.owner.restored(NOW, CELL, Ok(Box::new(header)), &mut self.out);
                }
                OwnerEffect::Run(run) => {
                    let outputs = match &run.input {
                        CellInput::Message { port, payload } => {
                            vec![CellOutput::Message { port: *port, payload: payload.clone() }]
                        }
                        _ => Vec::new(),
                    };
                    self.consumed.push(run.input);
                    if let Some(frame) = self.late.take() {
                        self.owner.fed(NOW, frame, &mut self.out);
                    }
                    let ran = Ran {
                        cell: run.cell,
                        outcome: RunOutcome::Idle,
                        clock_read: false,
                        outputs,
                        timers: Vec::new(),
                        tasks: Vec::new(),
                        reads: Vec::new(),
                        cost_ns: 0,
                    };
                    self.owner.ran(NOW, ran, &mut self.out);
                }
                _ => {}
            }
        }
    }

    /// The owner is gone: the standby asks the ends, which give these answers.
    fn opens(&mut self, client: &Says, server: &Says) {
        (self.out, self.done) = (Vec::new(), 0);
        let channels = [(Port::CLIENT, 1), (Port::SERVER, 2)];
        let hosts = [(Port::CLIENT, HOSTS[0]), (Port::SERVER, HOSTS[1])];
        let attempt = Attempt {
            generation: NEW,
            channels: &channels,
            hosts: &hosts,
            fresh: false,
            proven: true,
            assigned: false,
            client_identity: None,
        };
        self.owner.open(NOW, &attempt, &mut self.out);
        self.settle();
        for (port, says) in [(Port::CLIENT, client), (Port::SERVER, server)] {
            let channel = port.0 + 1;
            let (log_start, log_end) =
                (self.history.offset(says.log.start), self.history.offset(says.log.end));
            let promised = Promised {
                channel,
                previous: OLD,
                live: says.live,
                log_start,
                log_end,
                tag: self.history.digests[says.tag_of].tag(),
                received: says.received,
                window: INPUT_WINDOW,
                sent_start: says.sent.start as u64,
                sent_end: says.sent.end as u64,
                checkpoints: says.checkpoints.clone(),
                checkpoints_max: says.checkpoints_max,
                partial: None,
                failed: None,
                datagrams: false,
                origin: None,
                session_ns: says.session_ns,
            };
            self.say(port, promised);
            if log_start < log_end {
                let bytes = self.history.sealed(says.log.clone());
                self.say(port, LogPart { channel, generation: OLD, offset: log_start, bytes });
            }
            for text in SAID.get(says.sent.clone()).unwrap_or_default() {
                let payload = Bytes::from_static(text.as_bytes());
                self.say(port, marram_wire::frame::Input { channel, ack: 0, close: false, payload });
            }
        }
    }

    fn say(&mut self, port: Port, frame: impl Into<Frame>) {
        self.owner.receive(NOW, port, frame.into(), &mut self.out);
        self.settle();
    }

    /// The frames sent to an end since it was asked.
    fn sent(&self, to: Port) -> impl Iterator<Item = &Frame> {
        self.out.iter().filter_map(move |effect| match effect {
            OwnerEffect::Send(port, frame) if *port == to => Some(frame),
            _ => None,
        })
    }

    fn chosen(&self, port: Port) -> &Chosen {
        let chosen = self.sent(port).find_map(|frame| match frame {
            Frame::Chosen(chosen) => Some(chosen),
            _ => None,
        });
        chosen.expect("a log was chosen")
    }

    /// The echoes sent to the client.
    fn echoes(&self) -> Vec<&str> {
        let echoes = self.sent(Port::CLIENT).filter_map(|frame| match frame {
            Frame::Output(output) => Some(text(&output.payload)),
            _ => None,
        });
        echoes.collect()
    }

    /// The inputs that the cell has received.
    fn heard(&self) -> Vec<&str> {
        let heard = self.consumed.iter().filter_map(|input| match input {
            CellInput::Message { payload, .. } => Some(text(payload)),
            _ => None,
        });
        heard.collect()
    }

    /// Whether all fed data is discarded, and the ends are asked again for everything that they keep.
    fn starts_again(&self) -> bool {
        let again =
            self.out.iter().any(|effect| matches!(effect, OwnerEffect::Reopen(count) if *count == NEW.count));
        again && self.owner.standing_by().is_none() && self.owner.log_bytes() == (0, 0)
    }

    fn goes_on(&self) -> bool {
        self.owner.phase() == OwnerPhase::Running
    }
}

fn text(payload: &Bytes) -> &str {
    core::str::from_utf8(payload).expect("they are words")
}

#[test]
fn a_standby_that_was_fed_everything_continues_and_sends_what_the_client_lacks() {
    for hot in [false, true] {
        let mut standby = Standby::new(0, hot).fed(0..4);
        assert_eq!(standby.heard(), if hot { &SAID[..3] } else { &[] }, "only who is hot runs ahead");
        standby.opens(&level(4, 1), &silent(4));
        assert!(standby.goes_on(), "{:?}", standby.out);
        assert_eq!(standby.heard(), SAID[..3], "each once");
        let opens = standby.consumed.iter().filter(|input| matches!(input, CellInput::Open { .. }));
        assert_eq!(opens.count(), 2, "the session had begun");
        assert_eq!(standby.echoes(), SAID[1..3], "one had arrived");
        let chosen = standby.chosen(Port::CLIENT);
        assert_eq!((chosen.log_offset, &chosen.log[..]), (standby.history.offset(4), &[][..]));
        assert_eq!(chosen.tag, standby.history.digests[4].tag());
    }
}

#[test]
fn what_only_ends_have_is_taken_in_and_what_they_lack_is_given() {
    for hot in [false, true] {
        let mut standby = Standby::new(0, hot).fed(0..3);
        // The client has two more entries and their messages; the server has one less.
        let client = Says { log: 3..5, tag_of: 5, sent: 2..4, ..level(3, 4) };
        standby.opens(&client, &Says { log: 2..2, tag_of: 2, ..silent(2) });
        assert!(standby.goes_on(), "{:?}", standby.out);
        assert_eq!((standby.heard(), standby.echoes()), (SAID[..4].to_vec(), Vec::new()));
        assert_eq!(standby.chosen(Port::CLIENT).log, Bytes::new());
        let chosen = standby.chosen(Port::SERVER);
        let mut log = chosen.log.to_vec();
        keys().seal(NEW).log(chosen.log_offset, &mut log);
        let history = &standby.history;
        assert_eq!((chosen.log_offset, chosen.tag), (history.offset(2), history.digests[5].tag()));
        assert_eq!(log, history.log[history.offsets[2]..history.offsets[5]], "the same log, sealed again");
    }
}

#[test]
fn a_message_that_was_not_consumed_is_consumed_after_the_log() {
    let mut standby = Standby::new(0, false).fed(0..2);
    standby.opens(&Says { sent: 1..3, ..level(2, 1) }, &silent(2));
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!((standby.heard(), standby.echoes()), (SAID[..3].to_vec(), SAID[1..3].to_vec()));
}

#[test]
fn an_end_that_promised_another_owner_since_makes_it_start_again() {
    for other in [Port::CLIENT, Port::SERVER] {
        let mut standby = Standby::new(0, true).fed(0..3);
        let says = |port| Says { live: port != other, ..level(3, 2) };
        standby.opens(&says(Port::CLIENT), &says(Port::SERVER));
        assert!(standby.starts_again(), "{:?}", standby.out);
        assert_eq!(standby.echoes(), [""; 0]);
    }
}

#[test]
fn log_that_is_not_the_ends_own_makes_it_start_again() {
    let fed = || Standby::new(0, true).fed(0..3);
    let cases = [
        ("the digest of another log", Says { tag_of: 2, ..level(3, 2) }),
        ("what came behind is of another log", Says { log: 3..4, tag_of: 5, sent: 2..3, ..level(3, 2) }),
        ("a hole between both", Says { log: 4..5, tag_of: 5, sent: 2..4, ..level(3, 2) }),
        ("a message is missing", Says { log: 3..4, tag_of: 4, ..level(3, 2) }),
        ("messages that it was never fed are gone", Says { sent: 7..7, ..level(3, 2) }),
    ];
    for (what, says) in cases {
        let mut standby = fed();
        standby.opens(&says, &silent(3));
        assert!(standby.starts_again(), "{what}: {:?}", standby.out);
    }
}

/// A standby that was fed from a checkpoint on.
fn fed_from_the_middle() -> Standby {
    Standby::new(3, false).fed(3..5)
}

#[test]
fn a_standby_that_was_fed_from_a_checkpoint_continues_from_there() {
    let mut standby = fed_from_the_middle();
    standby.opens(&level(5, 3), &Says { log: 3..3, tag_of: 3, ..silent(5) });
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!((standby.heard(), standby.echoes()), (SAID[2..4].to_vec(), vec![SAID[3]]));
}

#[test]
fn an_end_that_lacks_log_from_before_that_checkpoint_makes_it_start_again() {
    let lacks = Says { log: 2..2, tag_of: 2, ..silent(5) };
    let mut standby = fed_from_the_middle();
    standby.opens(&level(5, 3), &lacks);
    assert!(standby.starts_again(), "the log between cannot be given to it: {:?}", standby.out);
    // This is allowed if an end holds a checkpoint that covers it.
    let mut standby = fed_from_the_middle();
    standby.truncate(3);
    standby.opens(&level(5, 3), &lacks);
    assert!(standby.goes_on(), "{:?}", standby.out);
    assert_eq!(standby.chosen(Port::SERVER).log_offset, standby.history.offset(3));
    let covered =
        |frame: &Frame| matches!(frame, Frame::Truncate(it) if it.log_offset == standby.history.offset(3));
    assert!(standby.sent(Port::SERVER).any(covered), "it may forget what lies before: {:?}", standby.out);
}

#[test]
fn a_standby_that_was_fed_nothing_asks_for_all_that_ends_keep() {
    let mut standby = Standby::new(0, true);
    standby.opens(&Says { live: false, ..level(0, 0) }, &Says { live: false, ..level(0, 0) });
    let promise = standby.sent(Port::CLIENT).find_map(|frame| match frame {
        Frame::Promise(promise) => Some(promise.live.is_some()),
        _ => None,
    });
    assert_eq!(promise, Some(false));
    assert!(standby.goes_on() && standby.owner.standing_by().is_none(), "{:?}", standby.out);
}

#[test]
fn one_that_replays_says_how_much_and_one_that_only_receives_does_not() {
    let entries = 3 * REPLAYED_EVERY;
    let said = vec!["again"; usize::try_from(entries).expect("a short history")];
    for (hot, expected) in [(true, vec![REPLAYED_EVERY; 3]), (false, Vec::new())] {
        let mut standby = Standby::new(0, hot);
        standby.history = History::new(&said);
        let standby = standby.fed(0..1 + said.len());
        let told = standby.out.iter().filter_map(|effect| match effect {
            OwnerEffect::ToFeeder(Frame::Replayed(replayed)) => Some(replayed.entries),
            _ => None,
        });
        assert_eq!(told.collect::<Vec<_>>(), expected, "hot: {hot}");
    }
}
