//! Clients of a shared cell that join, speak, go and come back, on a primary and on its backup.

use crate::owner::hall::Hall;
use marram_session::owner::{BackupForm, EpochRelease, Feed};
use marram_wire::{
    frame::{Code, Frame},
    id::Port,
};

#[test]
fn a_client_hears_nothing_before_the_backup_has_it() {
    let mut hall = Hall::new();
    hall.settles();
    let ann = hall.joins("hello");
    assert_eq!(hall.heard(ann), [""; 0]);
    assert!(!hall.clients[ann].end.begun(), "no log was chosen for its end");
    hall.settles();
    assert_eq!(hall.heard(ann), ["1 0 joins", "2 0: hello"]);
    let bob = hall.joins("hi");
    assert_eq!(hall.heard(ann).len(), 2, "it hears of the other one when the backup has that");
    hall.settles();
    assert_eq!(hall.heard(ann)[2..], ["3 2 joins", "4 2: hi"], "1 is never the port of a client");
    assert_eq!(hall.heard(bob), ["3 2 joins", "4 2: hi"]);
}

#[test]
fn what_is_confirmed_while_outputs_are_held_is_told_to_no_end() {
    let mut hall = Hall::new();
    hall.settles();
    let ann = hall.joins("hello");
    // An epoch ends for the next backup, which no claim names yet: the former one may go on without what is in it.
    hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Held, out));
    let number = hall.ends_epoch().expect("something is in it");
    hall.confirmed(number);
    assert!(!hall.clients[ann].end.begun(), "the former backup does not know this client");
    hall.step(|owner, now, out| owner.release_as(now, EpochRelease::Confirmed, out));
    hall.settles();
    assert_eq!(hall.heard(ann), ["1 0 joins", "2 0: hello"]);
}

#[test]
fn a_client_that_left_frees_its_number_when_the_backup_has_that() {
    let mut hall = Hall::new();
    hall.settles();
    let (ann, bob) = (hall.joins("a"), hall.joins("b"));
    hall.settles();
    hall.closes(ann);
    hall.settles();
    assert_eq!((hall.clients[ann].ended, hall.clients[ann].closed), (Some(Code::Finished), true));
    assert_eq!(hall.port(ann), None);
    assert_eq!(hall.heard(bob)[2..], ["5 0 closes", "6 0 is gone"]);
    let cat = hall.joins("c");
    hall.settles();
    assert_eq!(hall.heard(cat), ["7 0 joins", "8 0: c"]);
}

#[test]
fn a_client_that_comes_back_goes_on_and_one_that_does_not_leaves() {
    let mut hall = Hall::new();
    hall.settles();
    let (ann, bob) = (hall.joins("a"), hall.joins("b"));
    hall.settles();
    hall.breaks(ann);
    hall.says(bob, "is it there?");
    hall.settles();
    hall.says(ann, "yes");
    hall.asks_owner(ann);
    hall.settles();
    let all = ["1 0 joins", "2 0: a", "3 2 joins", "4 2: b", "5 2: is it there?", "6 0: yes"];
    assert_eq!(hall.heard(ann), all);
    assert_eq!(hall.heard(bob), &all[2..]);
    hall.breaks(ann);
    hall.step(|owner, now, out| owner.tick(now, out));
    hall.now.mono_ns += 2_000_000_000;
    hall.step(|owner, now, out| owner.tick(now, out));
    hall.settles();
    assert_eq!(hall.port(ann), None);
    assert_eq!(hall.heard(bob).last().map(String::as_str), Some("8 0 is gone"));
}

type Step = Box<dyn Fn(&mut Hall)>;

/// A hall, a client that stays, and one that is done: its end has said so, which has not arrived.
fn about_to_finish() -> (Hall, usize, usize) {
    let mut hall = Hall::new();
    let (two, one) = (hall.joins("b"), hall.joins("a"));
    hall.settles();
    hall.slow = Some(one);
    hall.closes(one);
    while !hall.is_finished_next() {
        hall.settles();
        assert!(hall.one_arrives() || hall.is_finished_next(), "its end is asked whether it has everything");
    }
    (hall, two, one)
}

#[test]
fn a_client_that_is_done_leaves_when_its_end_has_said_so() {
    let (mut hall, two, one) = about_to_finish();
    // The answer is lost. The cell keeps the client, so that it hears what became of it.
    hall.breaks(one);
    hall.settles();
    assert!(hall.port(one).is_some());
    hall.slow = None;
    hall.asks_owner(one);
    hall.settles();
    assert_eq!((hall.clients[one].ended, hall.port(one)), (Some(Code::Finished), None));
    assert_eq!(hall.clients[two].ended, None);
}

/// What the cell has told of these words.
fn told(hall: &Hall, number: usize, words: &[&str]) -> Vec<String> {
    let is_it = |line: &&String| words.iter().any(|word| line.ends_with(&format!(": {word}")));
    hall.clients[number].heard.iter().filter(is_it).map(|line| line[line.len() - 1..].to_string()).collect()
}

#[test]
fn nothing_of_a_client_is_consumed_while_its_end_promises() {
    let mut hall = Hall::new();
    let (two, one) = (hall.joins("b"), hall.joins("a"));
    hall.settles();
    // Consumed and not confirmed: its end keeps it, and sends it again.
    hall.says(one, "c");
    hall.breaks(one);
    for word in ["d", "e", "f"] {
        hall.says(one, word);
    }
    hall.slow = Some(one);
    hall.asks_owner(one);
    // The cell has something else to do between any two frames.
    while hall.one_arrives() {
        hall.says(two, "g");
    }
    hall.slow = None;
    hall.settles();
    assert_eq!(told(&hall, two, &["a", "c", "d", "e", "f"]), ["a", "c", "d", "e", "f"]);
}

/// What a test does with a hall, step by step.
fn script() -> Vec<Step> {
    vec![
        Box::new(|hall| {
            hall.joins("a");
        }),
        Box::new(|hall| {
            hall.joins("b");
        }),
        Box::new(|hall| hall.says(0, "one")),
        Box::new(|hall| hall.breaks(1)),
        Box::new(|hall| hall.says(0, "two")),
        Box::new(|hall| hall.asks_owner(1)),
        Box::new(|hall| {
            hall.joins("c");
        }),
        Box::new(|hall| hall.closes(0)),
        Box::new(|hall| hall.says(1, "three")),
        Box::new(|hall| {
            hall.joins("d");
        }),
        Box::new(|hall| hall.says(2, "four")),
    ]
}

/// Checks that what clients heard are parts of one history, in which everything was said once. Returns that history.
pub(crate) fn check(hall: &Hall, what: &str) -> Vec<Option<String>> {
    let mut history: Vec<Option<String>> = Vec::new();
    for (number, client) in hall.clients.iter().enumerate() {
        let mut last = None;
        for line in &client.heard {
            let index: usize = line.split(' ').next().and_then(|count| count.parse().ok()).expect("a number");
            assert!(
                last.is_none_or(|last| last + 1 == index),
                "{what}: client {number} heard {:?}",
                client.heard
            );
            last = Some(index);
            history.resize(history.len().max(index + 1), None);
            let before = history[index].get_or_insert_with(|| line.clone());
            assert_eq!(before, line, "{what}: client {number}");
        }
    }
    for said in ["a", "b", "c", "d", "one", "two", "three", "four", "the end"] {
        let is_it = |line: &&String| line.split_once(": ").is_some_and(|(_, text)| text == said);
        let count = history.iter().flatten().filter(is_it).count();
        assert!(count <= 1, "{what}: {said} {count} times: {history:?}");
    }
    history
}

/// The primary is lost behind `lost` steps. Its backup has confirmed what was there behind `kept` of them; with `late` also an epoch that
/// ended behind the next one, and this is known behind them all. It has so many frames of what it was fed, or as few as it may; returns
/// whether there are more.
fn lose((kept, lost, late): (usize, usize, bool), fed: Option<usize>) -> Option<usize> {
    let steps = script();
    let mut hall = Hall::new();
    hall.settles();
    for step in &steps[..kept] {
        step(&mut hall);
        hall.settles();
    }
    let mut rest = steps[kept..lost].iter();
    let mut ended = None;
    if let Some(next) = rest.next().filter(|_| late) {
        next(&mut hall);
        ended = hall.ends_epoch();
    } else {
        rest = steps[kept..lost].iter();
    }
    let least = hall.edge.feed.len();
    rest.for_each(|step| step(&mut hall));
    ended.into_iter().for_each(|number| hall.confirmed(number));
    let all = hall.edge.feed.len();
    let now = fed.unwrap_or(least);
    let what = format!("{kept} of {lost} steps confirmed, late {late}, {now} of {all} frames fed");
    check(&hall, &what);
    hall.promotes(now);
    hall.asks_all();
    for number in 0..hall.clients.len() {
        let client = &hall.clients[number];
        // A client that the new owner does not know asks by itself, as one that was told of no owner.
        if hall.port(number).is_none() && client.ended.is_none() {
            assert!(!client.end.begun(), "{what}: client {number} is forgotten");
            hall.asks_owner(number);
        }
    }
    for step in &steps[lost..] {
        step(&mut hall);
        check(&hall, &what);
    }
    hall.says(1, "the end");
    let history = check(&hall, &what);
    for said in ["b", "c", "d", "three", "four", "the end"] {
        let has = |line: &String| line.ends_with(&format!(": {said}"));
        assert!(history.iter().flatten().any(has), "{what}: {said} is lost: {history:?}");
    }
    for number in 1..4 {
        let last = hall.heard(number).last();
        assert!(
            last.is_some_and(|line| line.ends_with(": the end")),
            "{what}: client {number} heard {:?}",
            hall.heard(number)
        );
    }
    (now < all).then_some(now + 1)
}

#[test]
fn the_backup_goes_on_wherever_the_primary_is_lost() {
    for lost in 0..=script().len() {
        for (kept, late) in (0..=lost).flat_map(|kept| [(kept, false), (kept, true)]) {
            let mut next = lose((kept, lost, late), None);
            while let Some(fed) = next {
                next = lose((kept, lost, late), Some(fed));
            }
        }
    }
}

#[test]
fn what_clients_had_received_does_not_count_against_them_when_the_backup_goes_on() {
    let mut hall = Hall::new();
    let (one, two) = (hall.joins("a"), hall.joins("b"));
    // In total more than may wait for a client that reads too slowly.
    let long = "x".repeat(256 << 10);
    for _ in 0..20 {
        hall.says(one, &long);
        hall.settles();
    }
    let fed = hall.edge.feed.len();
    hall.promotes(fed);
    // The first client comes back while the other one is away.
    hall.asks_owner(one);
    hall.says(one, "on");
    hall.settles();
    hall.asks_owner(two);
    hall.settles();
    for client in [one, two] {
        assert_eq!(hall.clients[client].ended, None);
        assert!(hall.heard(client).last().is_some_and(|line| line.ends_with(": on")));
    }
}

/// A backup gets a copy behind so many steps, and what follows in this form. The primary is lost behind `lost` steps.
fn copied((form, feed): (BackupForm, Feed), before: usize, lost: usize) {
    let steps = script();
    let mut hall = Hall::alone(form);
    steps[..before].iter().for_each(|step| step(&mut hall));
    hall.gets_backup(feed);
    for step in &steps[before..lost] {
        step(&mut hall);
        hall.settles();
    }
    let what = format!("{form:?}, {feed:?}: a copy behind {before} of {lost} steps");
    let all = hall.edge.feed.len();
    let copies = hall.edge.feed.iter().filter(|frame| matches!(frame, Frame::Base(_))).count();
    // The break of a connection changes nothing.
    assert!(form != BackupForm::Pages || copies >= lost - before, "{what}: {copies} copies");
    hall.promotes(all);
    hall.asks_all();
    for number in 0..hall.clients.len() {
        assert!(hall.port(number).is_some() || hall.clients[number].ended.is_some(), "{what}: {number}");
    }
    steps[lost..].iter().for_each(|step| step(&mut hall));
    hall.says(1, "the end");
    let history = check(&hall, &what);
    for said in ["a", "b", "c", "d", "one", "two", "three", "four", "the end"] {
        let has = |line: &String| line.ends_with(&format!(": {said}"));
        assert!(history.iter().flatten().any(has), "{what}: {said} is lost: {history:?}");
    }
}

#[test]
fn a_backup_that_comes_later_knows_the_clients_from_its_copy() {
    let hot = (BackupForm::Log, Feed::Backup);
    let (warm, pages) = ((BackupForm::Auto, Feed::WarmBackup), (BackupForm::Pages, Feed::WarmBackup));
    for kind in [hot, warm, pages] {
        for lost in 0..=script().len() {
            (0..=lost).for_each(|before| copied(kind, before, lost));
        }
    }
}

/// In nanoseconds.
const HOUR: u64 = 3_600_000_000_000;

#[test]
fn the_time_does_not_run_ahead_at_an_edge_whose_clock_does() {
    let mut hall = Hall::new();
    let ann = hall.joins("a");
    hall.settles();
    let told_ns = hall.clients[ann].told_ns;
    let fed = hall.edge.feed.len();
    hall.now.unix_ns += 24 * HOUR.cast_signed();
    hall.promotes(fed);
    hall.asks_all();
    assert_eq!(hall.clients[ann].told_ns, told_ns, "it goes on from what was logged");
}

#[test]
fn the_time_goes_on_at_a_backup_that_came_late() {
    let mut hall = Hall::alone(BackupForm::Log);
    let ann = hall.joins("a");
    let told_ns = hall.clients[ann].told_ns;
    hall.now.mono_ns += HOUR;
    hall.gets_backup(Feed::Backup);
    hall.says(ann, "b");
    hall.settles();
    let fed = hall.edge.feed.len();
    hall.promotes(fed);
    hall.asks_all();
    assert_eq!(hall.clients[ann].told_ns, told_ns + HOUR.cast_signed());
}

#[test]
fn a_client_that_comes_back_while_it_joins_joins_once() {
    for leaves in [false, true] {
        let mut hall = Hall::new();
        let bob = hall.joins("b");
        hall.settles();
        hall.edge.holds_runs = true;
        let ann = hall.joins("a");
        hall.breaks(ann);
        if !leaves {
            hall.asks_owner(ann);
        }
        hall.answers();
        hall.settles();
        if leaves {
            hall.clients[ann].ended = Some(Code::Lost);
            hall.passes(2_000_000_000);
            hall.settles();
            assert_eq!(hall.port(ann), None, "it joined, and did not come back");
            continue;
        }
        assert_eq!(hall.heard(ann), ["3 2 joins", "4 2: a"]);
        assert_eq!(hall.heard(bob)[2..], ["3 2 joins", "4 2: a"]);
    }
}

#[test]
fn a_client_that_was_done_is_not_lost_if_it_asks_again_before_it_left() {
    let (mut hall, two, one) = about_to_finish();
    hall.slow = None;
    // A handler runs, so the log does not say yet that it left; and its end does not hear that it is done.
    hall.edge.holds_runs = true;
    hall.says(two, "busy");
    hall.clients[one].is_deaf = true;
    assert!(hall.one_arrives());
    hall.clients[one].is_deaf = false;
    hall.asks_owner(one);
    hall.answers();
    hall.settles();
    assert_eq!((hall.clients[one].ended, hall.port(one)), (Some(Code::Finished), None));
}

#[test]
fn an_epoch_of_a_former_client_is_none_of_the_next_one_with_its_number() {
    let mut hall = Hall::alone(BackupForm::Pages);
    hall.gets_backup(Feed::WarmBackup);
    let (_, two) = (hall.joins("a"), hall.joins("b"));
    let gone = 0;
    for word in ["c", "d", "e", "f", "g", "h"] {
        hall.says(two, word);
    }
    hall.settles();
    hall.says(two, "i");
    let number = hall.ends_epoch().expect("something is new");
    hall.closes(gone);
    hall.settles_but(number);
    assert_eq!(hall.port(gone), None);
    let next = hall.joins("j");
    hall.settles_but(number);
    assert_eq!(hall.port(next), Some(Port(0)), "the number is free");
    hall.confirmed(number);
    hall.settles();
    assert!(hall.heard(next).last().is_some_and(|line| line.ends_with(": j")));
}
