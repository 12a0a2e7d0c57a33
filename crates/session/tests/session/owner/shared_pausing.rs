//! Clients of a shared cell that the cell pauses: one of them, or all by a pause between stages. It holds at the next owner as well.

use crate::owner::hall::Hall;
use marram_session::owner::{BackupForm, Feed};
use marram_wire::limits::{INPUT_WINDOW, charge};

const SIZE: usize = 64 << 10;
/// What the first credit is for: the last message may exceed it.
const CREDITED: u64 = INPUT_WINDOW.div_ceil(charge(SIZE));
/// More than that. Three times as much fits into the window of the feed.
const COUNT: u64 = CREDITED + 3;

/// Messages of this text that a client heard of.
fn told(hall: &Hall, to: usize, text: &str) -> u64 {
    let end = format!(": {text}");
    hall.heard(to).iter().filter(|line| line.ends_with(&end)).count() as u64
}

/// A client sends more than its first credit is for. Returns how many messages another one has heard of, when nothing more happens.
fn floods(hall: &mut Hall, number: usize, text: &str, to: usize) -> u64 {
    let message = format!("{text}\n{}", " ".repeat(SIZE - text.len() - 1));
    for _ in 0..COUNT {
        hall.says(number, &message);
    }
    for _ in 0..COUNT {
        hall.settles();
    }
    told(hall, to, text)
}

/// A cell with two clients.
fn two(mut hall: Hall) -> (Hall, usize, usize) {
    hall.settles();
    let (ann, bob) = (hall.joins("a"), hall.joins("b"));
    hall.settles();
    (hall, ann, bob)
}

/// The primary is lost, and all clients are asked by its backup.
fn takes_over(hall: &mut Hall) {
    let all = hall.edge.feed.len();
    hall.promotes(all);
    hall.asks_all();
}

#[test]
fn a_client_that_is_paused_waits_alone() {
    let (mut hall, ann, bob) = two(Hall::new());
    hall.says(bob, "pause 0 0");
    assert_eq!(floods(&mut hall, bob, "bob's", ann), COUNT, "the other one gets credit");
    assert_eq!(hall.edge.owner.paused().collect::<Vec<_>>(), hall.port(ann).into_iter().collect::<Vec<_>>());
    assert_eq!(floods(&mut hall, ann, "ann's", bob), CREDITED, "what was sent within the credit is handled");
    let cat = hall.joins("c");
    assert_eq!(floods(&mut hall, cat, "cat's", bob), COUNT, "one that joins later is not paused");
    hall.says(bob, "resume 0 0");
    hall.settles();
    hall.settles();
    assert_eq!(told(&hall, bob, "ann's"), COUNT);
}

#[test]
fn a_client_that_comes_back_is_still_paused() {
    let (mut hall, ann, bob) = two(Hall::new());
    hall.says(bob, "pause 0 0");
    hall.settles();
    for number in [ann, bob] {
        hall.breaks(number);
        hall.asks_owner(number);
        hall.settles();
    }
    assert_eq!(floods(&mut hall, ann, "ann's", bob), 0);
    assert_eq!(floods(&mut hall, bob, "bob's", ann), COUNT);
}

#[test]
fn the_backup_goes_on_with_the_same_clients_paused() {
    let copied = |form, feed| {
        let mut hall = Hall::alone(form);
        hall.gets_backup(feed);
        hall
    };
    let cells = [
        ("fed from its start", Hall::new()),
        ("restored and fed", copied(BackupForm::Log, Feed::Backup)),
        ("restored", copied(BackupForm::Pages, Feed::WarmBackup)),
    ];
    for (what, hall) in cells {
        let (mut hall, ann, bob) = two(hall);
        hall.says(bob, "pause 0 0");
        hall.settles();
        let before = floods(&mut hall, ann, "ann's", bob);
        assert!(before < COUNT, "{what}");
        takes_over(&mut hall);
        assert_eq!(floods(&mut hall, bob, "bob's", ann), COUNT, "{what}");
        assert_eq!(told(&hall, bob, "ann's"), before, "{what}: beyond its credit");
        hall.says(bob, "resume 0 0");
        hall.settles();
        assert_eq!(told(&hall, bob, "ann's"), COUNT, "{what}");
    }
}

#[test]
fn a_pause_between_stages_stops_all_clients() {
    for inner in ["1 0", "1 1", "0 1"] {
        let (mut hall, ann, bob) = two(Hall::new());
        hall.says(bob, &format!("pause {inner}"));
        hall.settles();
        assert_eq!(hall.edge.owner.paused().count(), 2, "{inner}");
        assert!(floods(&mut hall, ann, "ann's", bob) <= CREDITED, "{inner}");
        takes_over(&mut hall);
        assert!(told(&hall, bob, "ann's") <= CREDITED, "{inner}");
        hall.joins("c");
        assert_eq!(told(&hall, ann, "c"), 0, "{inner}: it has no credit");
    }
}

#[test]
fn the_next_client_with_its_number_is_not_paused() {
    for moves in [false, true] {
        let (mut hall, ann, bob) = two(Hall::new());
        hall.says(bob, "pause 0 0");
        hall.closes(ann);
        hall.settles();
        if moves {
            takes_over(&mut hall);
        }
        let cat = hall.joins("c");
        hall.settles();
        assert_eq!(hall.port(cat).map(|port| port.0), Some(0));
        assert_eq!(hall.edge.owner.paused().count(), 0);
        assert_eq!(floods(&mut hall, cat, "cat's", bob), COUNT);
    }
}
