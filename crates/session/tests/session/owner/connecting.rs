//! A shared cell that connects to servers, on a primary and on its backup.

use crate::owner::{
    cell_recording::{play, record},
    hall::Hall,
    ports::check,
    traps::{BEHIND, Behind, hall},
};
use marram_session::owner::{BackupForm, CellServerState, EpochRelease, Feed, OwnerPhase};
use marram_wire::{
    frame::{Code, Frame},
    id::{HostId, Port},
    limits::{CONNECT_ANSWER_NS, CONNECT_NS},
};

const FIRST: u32 = Port::FIRST_CONNECTED.0;

/// A cell with a client, whose server is reached; both are told.
fn connected() -> (Hall, usize, usize) {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.settles();
    hall.says(ann, "connect");
    hall.settles();
    hall.asks_all();
    hall.settles();
    (hall, ann, 1)
}

#[test]
fn nothing_is_asked_of_a_server_before_the_backup_knows_of_it() {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.settles();
    hall.says(ann, "connect");
    assert_eq!(hall.edge.asks.len(), 0);
    let number = hall.ends_epoch().expect("something is new");
    hall.passes(CONNECT_NS);
    assert_eq!(hall.edge.asks.len(), 0, "the epoch is not confirmed");
    hall.confirmed(number);
    assert_eq!(hall.edge.asks.len(), 1);
    hall.asks_all();
    let store = 1;
    assert!(!hall.clients[store].end.begun(), "no agent connects before the backup knows which one it is");
    assert_eq!(hall.edge.owner.server_at(Port(FIRST)).map(|server| server.name), Some("store"));
    hall.settles();
    assert!(hall.clients[store].end.begun());
    assert_eq!(hall.heard(store), [format!("4 {FIRST} joins")]);
    assert_eq!(hall.heard(ann)[2..], ["3 0: connect".to_owned(), format!("4 {FIRST} joins")]);
    hall.says(store, "welcome");
    hall.settles();
    let last = Some(format!("5 {FIRST}: welcome"));
    assert_eq!((hall.heard(ann).last(), hall.heard(store).last()), (last.as_ref(), last.as_ref()));
    assert_eq!(hall.edge.owner.client_count(), 1, "it is no client");
}

#[test]
fn a_cell_that_runs_alone_connects_at_once() {
    let mut hall = Hall::alone(BackupForm::Log);
    let ann = hall.joins("a");
    hall.says(ann, "connect");
    hall.asks_all();
    hall.says(1, "welcome");
    assert!(hall.heard(ann).last().is_some_and(|line| line.ends_with(": welcome")));
}

#[test]
fn a_server_that_no_agent_reaches_is_given_up() {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.says(ann, "connect");
    hall.settles();
    for _ in 0..50 {
        hall.passes(CONNECT_NS / 40);
    }
    assert!((10..50).contains(&hall.edge.asks.len()), "it asks now and then: {}", hall.edge.asks.len());
    hall.settles();
    let lines = [format!("4 {FIRST} closes"), format!("5 {FIRST} is gone")];
    assert_eq!(hall.heard(ann)[3..], lines);
    assert_eq!(
        hall.over,
        ["store: it was not reached in 10 s: no agent that reaches it is connected to this edge"]
    );
    assert_eq!(hall.edge.owner.connection_count(), 0);
    // The next one has another number.
    hall.edge.asks.clear();
    hall.says(ann, "connect");
    hall.settles();
    hall.asks_all();
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("7 {} joins", FIRST + 1)));
}

const ASKED_EVERY_NS: u64 = CONNECT_NS / 20;

/// A client has the cell connect, and the entry is kept.
fn connects() -> (Hall, usize) {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.says(ann, "connect");
    hall.settles();
    (hall, ann)
}

/// The agent that has not taken the connection.
fn refused_by(hall: &Hall) -> Option<HostId> {
    hall.edge.owner.server_at(Port(FIRST)).and_then(|server| server.refused_by)
}

#[test]
fn an_agent_that_does_not_answer_is_passed_over_and_not_waited_for_long() {
    let (mut hall, ann) = connects();
    hall.asks_silent(1);
    assert_eq!(refused_by(&hall), None);
    for _ in 0..CONNECT_ANSWER_NS / ASKED_EVERY_NS {
        assert_eq!(hall.edge.asks.len(), 0, "it is waited for");
        hall.passes(ASKED_EVERY_NS);
    }
    assert_eq!((hall.edge.asks.len(), refused_by(&hall)), (1, Some(HostId([1; 16]))));
    let is_rejected = |frame: &Frame| matches!(frame, Frame::Reject(reject) if reject.code == Code::Waiting);
    assert!(hall.unheard.iter().any(is_rejected), "it is told: {:?}", hall.unheard);
    hall.asks_silent(2);
    for _ in 0..(CONNECT_NS - CONNECT_ANSWER_NS) / ASKED_EVERY_NS {
        assert_eq!(hall.over, [""; 0]);
        hall.passes(ASKED_EVERY_NS);
        hall.asks_silent(3);
    }
    hall.settles();
    assert_eq!(hall.over, ["store: it was not reached in 10 s: its agent did not answer in 2 s"]);
    assert_eq!(hall.heard(ann).last(), Some(&format!("5 {FIRST} is gone")));
}

#[test]
fn behind_an_agent_that_does_not_answer_another_one_is_asked() {
    let (mut hall, ann) = connects();
    hall.asks_silent(1);
    for _ in 0..CONNECT_ANSWER_NS / ASKED_EVERY_NS {
        hall.passes(ASKED_EVERY_NS);
    }
    hall.asks_all();
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("4 {FIRST} joins")));
    let server = hall.edge.owner.server_at(Port(FIRST)).expect("it is there");
    assert_eq!((server.agent, server.refused_by), (Some(HostId([9; 16])), None));
}

#[test]
fn time_in_which_none_may_be_asked_does_not_count() {
    for asked in [false, true] {
        let (mut hall, ann) = connects();
        if asked {
            hall.asks_silent(1);
        }
        hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Held, out));
        for _ in 0..60 {
            hall.passes(ASKED_EVERY_NS);
        }
        assert_eq!((hall.over.len(), hall.edge.owner.connection_count()), (0, 1));
        hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Confirmed, out));
        for _ in 0..=CONNECT_ANSWER_NS / ASKED_EVERY_NS {
            hall.passes(ASKED_EVERY_NS);
        }
        hall.asks_all();
        hall.settles();
        assert_eq!(hall.heard(ann).last(), Some(&format!("4 {FIRST} joins")));
    }
}

#[test]
fn a_server_that_was_reached_leaves_if_its_agent_never_answers() {
    let (mut hall, ann, store) = connected();
    hall.breaks(store);
    let mut passed = 0;
    while hall.over.is_empty() {
        assert!(passed < 10, "its agent is not waited for without a limit");
        hall.passes(ASKED_EVERY_NS);
        hall.asks_silent(9);
        passed += 1;
    }
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("6 {FIRST} is gone")));
}

#[test]
fn the_linger_time_of_a_server_passes_only_while_its_agent_may_be_asked() {
    const MS: u64 = 1_000_000;
    let (mut hall, ann, store) = connected();
    hall.breaks(store);
    hall.passes(300 * MS);
    for _ in 0..2 {
        hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Held, out));
        hall.passes(600 * MS);
        hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Confirmed, out));
        hall.passes(300 * MS);
        assert_eq!((hall.over.len(), hall.edge.owner.connection_count()), (0, 1));
    }
    hall.passes(200 * MS);
    hall.settles();
    assert_eq!(hall.over, ["store: its agent did not come back within the app's linger time"]);
    assert_eq!(hall.heard(ann).last(), Some(&format!("6 {FIRST} is gone")));
}

#[test]
fn an_agent_that_was_passed_over_and_has_forgotten_it_is_only_passed_over_again() {
    let (mut hall, ann) = connects();
    hall.asks_silent(1);
    for _ in 0..CONNECT_ANSWER_NS / ASKED_EVERY_NS {
        hall.passes(ASKED_EVERY_NS);
    }
    // Its end waited for its owner as long as it may.
    hall.refuses_servers = Some(Code::Forgotten);
    hall.asks_all();
    hall.settles();
    assert_eq!((hall.over.len(), refused_by(&hall)), (0, Some(HostId([9; 16]))));
    assert_eq!(hall.edge.asks.len(), 1, "the next one is asked at once");
    hall.refuses_servers = None;
    hall.asks_all();
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("4 {FIRST} joins")));
}

#[test]
fn an_end_that_comes_back_is_waited_for_as_long_as_it_sends() {
    let (mut hall, ann, store) = connected();
    hall.breaks(store);
    ["one", "two", "three", "four"].into_iter().for_each(|said| hall.says(store, said));
    hall.slow = Some(store);
    hall.passes(0);
    hall.asks_all();
    // The promise, and then its messages: longer than its app's linger time and any wait for an agent.
    assert!(hall.one_arrives());
    for _ in 0..4 {
        for _ in 0..3 {
            assert_eq!((hall.edge.asks.len(), hall.over.len()), (0, 0));
            hall.passes(CONNECT_ANSWER_NS / 4);
        }
        assert!(hall.one_arrives());
    }
    hall.slow = None;
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("8 {FIRST}: four")));
}

#[test]
fn a_port_that_the_cell_closes_before_it_is_open_goes() {
    for (asked, alone) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut hall = if alone { Hall::alone(BackupForm::Log) } else { Hall::new() };
        let ann = hall.joins("a");
        hall.says(ann, "connect");
        hall.settles();
        if asked {
            hall.asks_silent(1);
        }
        hall.says(ann, "cancel");
        if !alone {
            assert_eq!(
                hall.edge.owner.connection_count(),
                1,
                "it is not known elsewhere that it has closed it"
            );
            assert_eq!(hall.unheard.len(), usize::from(asked), "its agent hears nothing before");
        }
        hall.settles();
        assert_eq!(hall.edge.owner.connection_count(), 0);
        let is_over = |frame: &Frame| matches!(frame, Frame::Ended(ended) if ended.code == Code::Finished);
        assert_eq!(hall.unheard.iter().filter(|frame| is_over(frame)).count(), usize::from(asked));
        let lines = [format!("5 {FIRST} closes"), format!("6 {FIRST} is gone")];
        assert_eq!(hall.heard(ann)[hall.heard(ann).len() - 2..], lines);
        assert_eq!(hall.finished, ["store: the cell has closed it before it was open"]);
        hall.passes(CONNECT_NS);
        assert_eq!(hall.edge.asks.len(), usize::from(!asked), "none is asked any more");
    }
}

#[test]
fn an_agent_that_takes_a_connection_which_the_cell_has_closed_does_not_make_it() {
    let (mut hall, ann) = connects();
    hall.says(ann, "cancel");
    // It is not known elsewhere yet.
    hall.asks_all();
    hall.settles();
    assert!(!hall.clients[1].end.begun());
    assert_eq!(hall.clients[1].ended, Some(Code::Finished));
    assert_eq!(hall.edge.owner.connection_count(), 0);
    assert_eq!(hall.heard(ann).last(), Some(&format!("6 {FIRST} is gone")));
}

#[test]
fn what_a_handler_connects_to_and_closes_is_asked_of_no_agent() {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.says(ann, "connect and cancel");
    hall.settles();
    assert_eq!((hall.edge.asks.len(), hall.edge.owner.connection_count()), (0, 0));
    assert_eq!(hall.heard(ann).last(), Some(&format!("5 {FIRST} is gone")));
}

#[test]
fn a_backup_cancels_what_the_cell_has_closed() {
    for copied in [false, true] {
        let mut hall = if copied { Hall::alone(BackupForm::Pages) } else { Hall::new() };
        let ann = hall.joins("a");
        hall.says(ann, "connect");
        hall.settles();
        hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Held, out));
        hall.says(ann, "cancel");
        if copied {
            hall.begins_backup(Feed::WarmBackup);
        }
        assert_eq!(hall.edge.owner.connection_count(), 1);
        let fed = hall.edge.feed.len();
        hall.promotes(fed);
        hall.edge.asks.clear();
        hall.passes(CONNECT_NS);
        assert_eq!((hall.edge.asks.len(), hall.edge.owner.connection_count()), (0, 0));
    }
}

#[test]
fn an_agent_that_refuses_a_connection_ends_it() {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.says(ann, "connect");
    hall.settles();
    hall.refuses_servers = Some(Code::Forbidden);
    hall.asks_all();
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("5 {FIRST} is gone")));
    assert_eq!(hall.over, ["store: its program is gone"]);
}

#[test]
fn a_server_that_is_away_comes_back_or_is_gone() {
    let (mut hall, ann, store) = connected();
    hall.breaks(store);
    hall.says(ann, "are you there?");
    hall.settles();
    hall.passes(0);
    hall.says(store, "yes");
    hall.asks_all();
    hall.settles();
    let lines = ["5 0: are you there?".to_owned(), format!("6 {FIRST}: yes")];
    assert_eq!(hall.heard(store)[1..], lines);
    hall.breaks(store);
    (0..3).for_each(|_| hall.passes(ASKED_EVERY_NS));
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("8 {FIRST} is gone")));
    assert_eq!(hall.over.len(), 1);
}

#[test]
fn a_connection_is_over_when_both_sides_are_done() {
    let (mut hall, ann, store) = connected();
    hall.closes(store);
    hall.settles();
    assert_eq!((hall.clients[store].closed, hall.clients[store].ended), (true, Some(Code::Finished)));
    let lines = [format!("5 {FIRST} closes"), format!("6 {FIRST} is gone")];
    assert_eq!(hall.heard(ann)[4..], lines);
    assert_eq!(
        (&hall.over[..], &hall.finished[..]),
        (&[][..], &["store: both sides are done".to_owned()][..])
    );
    assert_eq!(hall.clients[ann].ended, None);
}

#[test]
fn operators_are_told_once_when_a_connection_ends() {
    let (mut hall, ann, _) = connected();
    hall.step(|owner, now, out| owner.end_client(now, Port(FIRST), (Code::Killed, "no more"), out));
    hall.settles();
    assert_eq!(hall.heard(ann).last(), Some(&format!("6 {FIRST} is gone")));
    assert_eq!((&hall.over[..], hall.finished.len()), (&["store: no more".to_owned()][..], 0));
}

#[test]
fn a_connection_is_listed_with_its_state() {
    let (mut hall, ann) = connects();
    let state = |hall: &Hall| {
        let server = hall.edge.owner.server_at(Port(FIRST))?;
        Some((server.name.to_owned(), server.state, server.waiting_bytes > 0))
    };
    let stands = |state, waits| Some(("store".to_owned(), state, waits));
    assert_eq!(state(&hall), stands(CellServerState::Connecting, false));
    hall.asks_all();
    hall.settles();
    assert_eq!(state(&hall), stands(CellServerState::Connected, false));
    hall.breaks(1);
    hall.says(ann, "are you there?");
    assert_eq!(state(&hall), stands(CellServerState::Away, true));
    hall.says(ann, "on");
    hall.step(|owner, now, out| owner.end_client(now, Port(FIRST), (Code::Killed, "no more"), out));
    hall.settles();
    assert_eq!(state(&hall), None);
}

#[test]
fn a_server_that_stops_the_cell_costs_its_connection_alone() {
    for behind in BEHIND {
        for at_open in [false, true] {
            let mut hall = hall(behind);
            let ann = hall.joins("a");
            hall.settles();
            if at_open {
                hall.says(ann, "let the third fall");
            }
            hall.says(ann, "connect");
            hall.settles();
            hall.asks_all();
            hall.settles();
            if !at_open {
                hall.says(1, "fall");
                hall.settles();
            }
            assert_eq!(hall.clients[1].ended, Some(Code::Guest), "{behind:?}");
            hall.says(ann, "on");
            hall.settles();
            let lines: Vec<&str> = hall.heard(ann).iter().map(|line| &line[2..]).collect();
            let (closes, gone) = (format!("{FIRST} closes"), format!("{FIRST} is gone"));
            assert_eq!(lines[lines.len() - 3..], [&closes[..], &gone[..], "0: on"], "{behind:?}");
            assert_eq!(hall.clients[ann].ended, None);
            assert_eq!(hall.edge.owner.phase(), OwnerPhase::Running);
        }
    }
}

#[test]
fn what_a_stopped_handler_connected_to_is_not_there() {
    for behind in BEHIND {
        let mut hall = hall(behind);
        let (ann, bob) = (hall.joins("a"), hall.joins("b"));
        hall.says(ann, "connect");
        hall.settles();
        hall.asks_all();
        hall.says(bob, "connect and say too much");
        hall.settles();
        assert_eq!(hall.clients[bob].ended, Some(Code::Guest));
        assert_eq!(hall.edge.owner.connection_count(), 1);
        hall.says(ann, "connect");
        hall.settles();
        hall.asks_all();
        hall.settles();
        let last = hall.heard(ann).last().expect("it heard something");
        assert!(last.ends_with(&format!(" {} joins", FIRST + 1)), "{behind:?}: {last}");
    }
}

#[test]
fn a_client_whose_message_connects_too_often_is_expelled() {
    let (mut hall, ann, _) = connected();
    let bob = hall.joins("b");
    hall.settles();
    hall.says(bob, "connect often");
    hall.settles();
    assert_eq!((hall.clients[bob].ended, hall.clients[ann].ended), (Some(Code::Guest), None));
    assert_eq!(hall.edge.owner.connection_count(), 1);
}

type Step = fn(&mut Hall);

/// A client has the cell connect, and talks with the server, which comes second.
const STEPS: [Step; 10] = [
    |hall| _ = hall.joins("a"),
    |hall| hall.says(0, "connect"),
    Hall::asks_all,
    |hall| hall.says(0, "one"),
    |hall| server_says(hall, "two"),
    |hall| hall.breaks(hall.clients.len() - 1),
    |hall| hall.says(0, "three"),
    |hall| {
        hall.passes(600_000_000);
        hall.asks_all();
    },
    |hall| server_says(hall, "four"),
    |hall| hall.says(0, "c"),
];

/// The server says something, if it is there.
fn server_says(hall: &mut Hall, text: &str) {
    if hall.clients.len() > 1 {
        hall.says(1, text);
    }
}

/// What was told of the server: each line once.
fn check_server(hall: &mut Hall, what: &str) {
    for _ in 0..3 {
        hall.passes(600_000_000);
        hall.asks_all();
        hall.settles();
    }
    server_says(hall, "d");
    hall.says(0, "the end");
    hall.settles();
    let history = check(hall, what);
    let lines: Vec<&String> = history.iter().flatten().collect();
    for said in ["a", "connect", "one", "two", "three", "four", "c", "d", "the end"] {
        let count = lines.iter().filter(|line| line.ends_with(&format!(": {said}"))).count();
        assert_eq!(count, 1, "{what}: {said}: {lines:?}");
    }
    let joined = lines.iter().filter(|line| line.ends_with(&format!("{FIRST} joins"))).count();
    assert_eq!((joined, hall.clients.len()), (1, 2), "{what}: {lines:?}");
    for number in [0, 1] {
        assert!(
            hall.heard(number).last().is_some_and(|line| line.ends_with(": the end")),
            "{what}: {number}"
        );
    }
}

/// The primary is lost behind `lost` steps, `kept` of which are confirmed, and so many frames are fed.
fn lose((kept, lost): (usize, usize), fed: Option<usize>) -> Option<usize> {
    let mut hall = Hall::new();
    hall.settles();
    for step in &STEPS[..kept] {
        step(&mut hall);
        hall.settles();
    }
    let least = hall.edge.feed.len();
    STEPS[kept..lost].iter().for_each(|step| step(&mut hall));
    let all = hall.edge.feed.len();
    let now = fed.unwrap_or(least);
    let what = format!("{kept} of {lost} steps confirmed, {now} of {all} frames fed");
    hall.promotes(now);
    hall.asks_all();
    if hall.clients.first().is_some_and(|_| hall.port(0).is_none()) {
        hall.asks_owner(0);
    }
    // What the server's end has not heard of this owner, it hears when it is asked again.
    hall.asks_all();
    for step in &STEPS[lost..] {
        step(&mut hall);
        hall.asks_all();
        check(&hall, &what);
    }
    // Words that were said while there was no server.
    for said in ["two", "four"] {
        let is_said = hall.clients.iter().any(|client| client.heard.iter().any(|line| line.ends_with(said)));
        if !is_said {
            hall.asks_all();
            server_says(&mut hall, said);
        }
    }
    check_server(&mut hall, &what);
    (now < all).then_some(now + 1)
}

#[test]
fn the_backup_goes_on_with_the_server_wherever_the_primary_is_lost() {
    for lost in 0..=STEPS.len() {
        for kept in 0..=lost {
            let mut next = lose((kept, lost), None);
            while let Some(fed) = next {
                next = lose((kept, lost), Some(fed));
            }
        }
    }
}

#[test]
fn a_backup_that_comes_later_knows_the_servers_from_its_copy() {
    let kinds = [
        (BackupForm::Log, Feed::Backup),
        (BackupForm::Auto, Feed::WarmBackup),
        (BackupForm::Pages, Feed::WarmBackup),
    ];
    for (form, feed) in kinds {
        for before in 0..=STEPS.len() {
            let mut hall = Hall::alone(form);
            STEPS[..before].iter().for_each(|step| step(&mut hall));
            hall.gets_backup(feed);
            for step in &STEPS[before..] {
                step(&mut hall);
                hall.settles();
            }
            let fed = hall.edge.feed.len();
            assert!(
                form != BackupForm::Pages || hall.edge.feed.iter().any(|it| matches!(it, Frame::Base(_)))
            );
            hall.promotes(fed);
            hall.asks_all();
            check_server(&mut hall, &format!("{form:?}, {feed:?}: a copy behind {before} steps"));
        }
    }
}

#[test]
fn a_cell_with_servers_is_recorded_and_played() {
    for behind in [Behind::Nothing, Behind::FromTheStart, BEHIND[4]] {
        let mut hall = hall(behind);
        for (number, step) in STEPS.into_iter().enumerate() {
            step(&mut hall);
            hall.settles();
            if number == 4 {
                hall.says(0, "work");
                hall.settles();
            }
            let what = format!("{behind:?}, step {number}");
            let recording = record(&mut hall).unwrap_or_else(|why| panic!("{what}: {why}"));
            assert_eq!(play(&recording, hall.cell_of(&recording)), (hall.cell().clone(), None), "{what}");
        }
    }
}
