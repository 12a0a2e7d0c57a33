//! Clients of a protected cell that take nothing. Only what may leave counts against them, whatever else waits for the backup.

use crate::owner::hall::Hall;
use marram_session::owner::{BackupForm, EpochRelease};
use marram_wire::{
    frame::Code,
    limits::{OUTPUT_WINDOW, UNSENT_SHARED_MAX, charge},
};

/// More than the cost of a line with what [`long`] says, and of one that says that a client joins.
const LINE: u64 = 256 << 10;
/// So many lines fill the window of an end that takes nothing, and so many may wait behind them.
const SENT: u64 = OUTPUT_WINDOW.div_ceil(LINE);
const WAITING: u64 = UNSENT_SHARED_MAX / LINE;

fn long() -> String {
    "x".repeat(usize::try_from(LINE - charge(200)).expect("it is short"))
}

/// A hall with one that listens, and one that takes nothing from now on.
fn hall() -> (Hall, usize, usize) {
    let mut hall = Hall::new();
    let (ann, bob) = (hall.joins("a"), hall.joins("b"));
    hall.settles();
    hall.slow = Some(bob);
    (hall, ann, bob)
}

/// A client says a long line, which the backup is fed, and acknowledges.
fn speaks(hall: &mut Hall, number: usize) {
    hall.says(number, &long());
    hall.takes_feed();
}

/// Which clients were told that they have left, and why.
fn ended(hall: &Hall) -> Vec<(usize, Code)> {
    let clients = hall.clients.iter().enumerate();
    clients.filter_map(|(number, client)| Some((number, client.ended?))).collect()
}

fn none_has_left(hall: &Hall, why: &str) {
    assert!(ended(hall).is_empty(), "{why}: {:?}", ended(hall));
}

/// One has left, and the other one goes on.
fn has_left(mut hall: Hall, ann: usize, bob: usize) {
    assert_eq!(ended(&hall), [(bob, Code::Guest)]);
    hall.says(ann, "on");
    hall.settles();
    assert_eq!((hall.port(bob), ended(&hall).len()), (None, 1));
    let heard = hall.heard(ann);
    let said = |words: &str| heard.iter().any(|line| line.ends_with(words));
    assert!(said(" 2 closes") && said(" 2 is gone") && said(" 0: on"), "{:?}", heard.last());
}

#[test]
fn a_client_leaves_when_more_may_leave_than_may_wait_for_it() {
    let (mut hall, ann, bob) = hall();
    for _ in 0..SENT + WAITING {
        speaks(&mut hall, ann);
        hall.settles();
        none_has_left(&hall, "it is not too much");
    }
    speaks(&mut hall, ann);
    let number = hall.ends_epoch().expect("it is new");
    none_has_left(&hall, "this line waits for the backup");
    hall.confirmed(number);
    has_left(hall, ann, bob);
}

#[test]
fn a_client_leaves_also_if_something_waits_for_the_backup_all_the_time() {
    let (mut hall, ann, bob) = hall();
    speaks(&mut hall, ann);
    for _ in 0..SENT + WAITING {
        let number = hall.ends_epoch().expect("it is new");
        speaks(&mut hall, ann);
        hall.confirmed(number);
        none_has_left(&hall, "it is not too much");
    }
    let number = hall.ends_epoch().expect("it is new");
    speaks(&mut hall, ann);
    hall.confirmed(number);
    has_left(hall, ann, bob);
}

#[test]
fn a_client_leaves_also_if_there_is_no_backup() {
    let mut hall = Hall::alone(BackupForm::Log);
    let (ann, bob) = (hall.joins("a"), hall.joins("b"));
    hall.slow = Some(bob);
    for _ in 0..SENT + WAITING {
        hall.says(ann, &long());
        none_has_left(&hall, "it is not too much");
    }
    hall.says(ann, &long());
    has_left(hall, ann, bob);
}

#[test]
fn what_is_confirmed_at_once_is_sent_before_it_counts() {
    let (mut hall, ann, bob) = hall();
    // One that has heard much says nothing until its end has that, so others come.
    for _ in 0..SENT + WAITING {
        hall.joins(&long());
        hall.takes_feed();
    }
    none_has_left(&hall, "all of it waits for the backup");
    hall.settles();
    none_has_left(&hall, "no more waits for any of them than may");
    let is_long = |line: &&String| line.len() as u64 > LINE / 2;
    assert_eq!(hall.heard(ann).iter().filter(is_long).count() as u64, SENT + WAITING);
    speaks(&mut hall, ann);
    hall.settles();
    has_left(hall, ann, bob);
}

#[test]
fn what_got_credit_while_outputs_were_held_leaves_when_they_are_not() {
    let (mut hall, ann, bob) = hall();
    for _ in 0..SENT + 2 {
        speaks(&mut hall, ann);
        hall.settles();
    }
    let heard = hall.heard(bob).len();
    // No backup, for a moment. Meanwhile the client takes what it was sent.
    hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Held, out));
    while hall.one_arrives() {}
    assert_eq!(hall.heard(bob).len(), heard);
    hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Confirmed, out));
    assert!(hall.heard(bob).len() > heard, "the backup has had it for long");
}
