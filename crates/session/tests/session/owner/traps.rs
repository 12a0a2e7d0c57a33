//! Clients that stop a shared cell: each costs itself alone.

use crate::owner::{hall::Hall, ports::check};
use marram_session::owner::{BackupForm, Feed, OwnerPhase};
use marram_wire::frame::{Code, Frame};

pub(crate) type Step = fn(&mut Hall);

/// How the third client stops the cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fall {
    Open,
    Message,
    Close,
    Leave,
    TooMuch,
}

pub(crate) const FALLS: [Fall; 5] = [Fall::Open, Fall::Message, Fall::Close, Fall::Leave, Fall::TooMuch];
const VILLAIN: usize = 2;

/// It joins, does it, and others go on.
pub(crate) fn script(fall: Fall) -> Vec<Step> {
    let mut steps: Vec<Step> =
        vec![|hall| _ = hall.joins("a"), |hall| _ = hall.joins("b"), |hall| hall.says(0, "wake"), |hall| {
            hall.says(1, "one")
        }];
    let falls: &[Step] = match fall {
        Fall::Open => &[
            |hall| hall.says(0, "let the third fall"),
            |hall| _ = hall.joins("v"),
            |hall| hall.says(0, "let them come"),
        ],
        Fall::Message => &[|hall| _ = hall.joins("v"), |hall| hall.says(VILLAIN, "fall")],
        Fall::Close => &[
            |hall| _ = hall.joins("v"),
            |hall| hall.says(VILLAIN, "fall when I close"),
            |hall| hall.closes(VILLAIN),
        ],
        Fall::Leave => &[
            |hall| _ = hall.joins("v"),
            |hall| hall.says(VILLAIN, "fall when I close"),
            |hall| {
                hall.breaks(VILLAIN);
                hall.clients[VILLAIN].ended = Some(Code::Lost);
                hall.passes(2_000_000_000);
            },
        ],
        Fall::TooMuch => &[|hall| _ = hall.joins("v"), |hall| hall.says(VILLAIN, "say too much")],
    };
    steps.extend(falls);
    steps.extend([
        (|hall| hall.says(1, "two")) as Step,
        |hall| _ = hall.joins("c"),
        |hall| hall.says(0, "three"),
    ]);
    steps
}

/// Everything that the others said was told, and nothing of what was undone.
fn check_all(hall: &mut Hall, fall: Fall, what: &str) {
    hall.passes(1_000);
    hall.says(1, "the end");
    let history = check(hall, what);
    for said in ["a", "b", "c", "one", "two", "three", "the end"] {
        let has = |line: &String| line.ends_with(&format!(": {said}"));
        assert!(history.iter().flatten().any(has), "{what}: {said} is lost: {history:?}");
    }
    for undone in [": fall", ": say too much"] {
        let has = |line: &String| line.ends_with(undone);
        assert!(!history.iter().flatten().any(has), "{what}: {undone} happened: {history:?}");
    }
    let woken = history.iter().flatten().filter(|line| line.ends_with(" it wakes")).count();
    assert_eq!(woken, 1, "{what}: its timer is as it was: {history:?}");
    for number in [0, 1, 3] {
        let client = &hall.clients[number];
        assert_eq!(client.ended, None, "{what}: client {number}");
        let last = client.heard.last();
        assert!(last.is_some_and(|line| line.ends_with(": the end")), "{what}: {number} heard {last:?}");
    }
    // Where the first client is heard later than the third, the cell does not fall.
    let has_joined = history.iter().flatten().any(|line| line.ends_with(": v"));
    if fall != Fall::Open || !has_joined {
        assert_eq!(hall.port(VILLAIN), None, "{what}: it has left");
        assert!(hall.clients[VILLAIN].ended.is_some(), "{what}: it was told");
    }
    assert_eq!(hall.edge.owner.phase(), OwnerPhase::Running, "{what}");
}

/// With which backup, and from when on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind {
    Nothing,
    FromTheStart,
    Later(BackupForm, Feed),
}

pub(crate) const BEHIND: [Behind; 5] = [
    Behind::Nothing,
    Behind::FromTheStart,
    Behind::Later(BackupForm::Log, Feed::Backup),
    Behind::Later(BackupForm::Auto, Feed::WarmBackup),
    Behind::Later(BackupForm::Pages, Feed::WarmBackup),
];

pub(crate) fn hall(behind: Behind) -> Hall {
    match behind {
        Behind::Nothing => Hall::alone(BackupForm::Log),
        Behind::FromTheStart => {
            let mut hall = Hall::new();
            hall.settles();
            hall
        }
        Behind::Later(form, feed) => {
            let mut hall = Hall::alone(form);
            hall.gets_backup(feed);
            hall
        }
    }
}

#[test]
fn a_client_that_stops_the_cell_leaves_and_the_others_go_on() {
    for fall in FALLS {
        for behind in BEHIND {
            let mut hall = hall(behind);
            for step in script(fall) {
                step(&mut hall);
                hall.settles();
            }
            hall.says(1, "the end");
            hall.settles();
            hall.passes(1_000);
            hall.settles();
            let what = format!("{fall:?} with {behind:?}");
            let ended = if fall == Fall::Leave { Code::Lost } else { Code::Guest };
            assert_eq!(hall.clients[VILLAIN].ended, Some(ended), "{what}");
            let history = check(&hall, &what);
            let joined = history.iter().flatten().filter(|line| line.ends_with(" joins")).count();
            assert_eq!(joined, if fall == Fall::Open { 3 } else { 4 }, "{what}: {history:?}");
            let gone = history.iter().flatten().filter(|line| line.ends_with(" is gone")).count();
            assert_eq!(gone, usize::from(fall != Fall::Open), "{what}: {history:?}");
        }
    }
}

/// The primary is lost behind `lost` steps, of which the backup has confirmed `kept`. It has so many frames; returns whether there are more.
fn lose(
    (fall, behind): (Fall, Behind),
    (kept, lost, deaf): (usize, usize, bool),
    fed: Option<usize>,
) -> Option<usize> {
    let steps = script(fall);
    let mut hall = hall(behind);
    let act = |hall: &mut Hall, step: &Step| {
        step(hall);
        // It does not hear of its end before the primary is lost.
        hall.clients.iter_mut().skip(VILLAIN).take(1).for_each(|villain| villain.is_deaf = deaf);
    };
    for step in &steps[..kept] {
        act(&mut hall, step);
        hall.settles();
    }
    let least = hall.edge.feed.len();
    steps[kept..lost].iter().for_each(|step| act(&mut hall, step));
    let all = hall.edge.feed.len();
    let now = fed.unwrap_or(least);
    let what = format!("{fall:?}, {behind:?}: {kept} of {lost}, deaf {deaf}, {now} of {all} frames");
    check(&hall, &what);
    hall.promotes(now);
    hall.clients.iter_mut().for_each(|client| client.is_deaf = false);
    hall.asks_all();
    for number in 0..hall.clients.len() {
        let client = &hall.clients[number];
        if hall.port(number).is_some() || client.ended.is_some() {
            continue;
        }
        if client.end.begun() {
            assert_eq!(number, VILLAIN, "{what}: a client is forgotten");
            hall.clients[number].ended = Some(Code::Lost);
        } else {
            hall.asks_owner(number);
        }
    }
    steps[lost..].iter().for_each(|step| step(&mut hall));
    check_all(&mut hall, fall, &what);
    (now < all).then_some(now + 1)
}

#[test]
fn the_backup_goes_on_wherever_the_primary_is_lost() {
    for fall in FALLS.into_iter().filter(|fall| *fall != Fall::TooMuch) {
        for behind in BEHIND.into_iter().skip(1) {
            let count = script(fall).len();
            for (kept, lost) in (0..=count).flat_map(|lost| (0..=lost).map(move |kept| (kept, lost))) {
                for deaf in [false, true] {
                    let mut next = lose((fall, behind), (kept, lost, deaf), None);
                    while let Some(fed) = next {
                        next = lose((fall, behind), (kept, lost, deaf), Some(fed));
                    }
                }
            }
        }
    }
}

/// Two clients that speak, and a third one that is about to stop the cell.
fn three(behind: Behind) -> Hall {
    let mut hall = hall(behind);
    for text in ["a", "b", "v"] {
        hall.joins(text);
        hall.settles();
    }
    hall
}

/// What both others heard is one history that ends with this line.
fn hear(hall: &Hall, last: &str, what: &str) {
    check(hall, what);
    for number in [0, 1] {
        let heard = hall.heard(number).last();
        assert!(heard.is_some_and(|line| line.ends_with(last)), "{what}: {number} heard {heard:?}");
    }
}

#[test]
fn all_else_goes_on_while_the_cell_is_rebuilt() {
    for behind in BEHIND {
        let what = format!("{behind:?}");
        let mut hall = three(behind);
        // It is rebuilt from a checkpoint.
        hall.says(0, "work");
        hall.settles();
        hall.edge.holds_restores = true;
        hall.says(VILLAIN, "fall");
        hall.settles();
        assert_eq!(hall.clients[VILLAIN].ended, Some(Code::Guest), "{what}");
        let before = hall.heard(1).len();
        hall.says(1, "meanwhile");
        hall.breaks(0);
        hall.asks_owner(0);
        let dan = hall.joins("d");
        hall.settles();
        assert_eq!(hall.heard(1).len(), before, "{what}: no handler runs");
        hall.answers();
        hall.settles();
        hear(&hall, ": meanwhile", &what);
        let after = hall.heard(1)[before..].iter().map(|line| line.split_once(' ').expect("a number").1);
        let after: Vec<_> = after.collect();
        assert_eq!(after[..2], ["3 closes", "3 is gone"], "{what}: it leaves first");
        assert!(after.contains(&"4: d") && hall.heard(dan).len() == 3, "{what}: {after:?}");
    }
}

#[test]
fn a_copy_that_is_under_way_is_sealed_first() {
    for behind in BEHIND {
        for fall in ["fall", "say too much"] {
            let what = format!("{behind:?}, {fall}");
            let mut hall = three(behind);
            hall.edge.holds_seals = true;
            hall.says(0, "work");
            hall.says(1, "one");
            assert!(!hall.edge.held.is_empty(), "{what}: a copy is due");
            hall.says(VILLAIN, fall);
            hall.says(1, "two");
            hall.settles();
            let replayed = hall.edge.owner.totals().replayed;
            hall.answers();
            hall.settles();
            hear(&hall, ": two", &what);
            let told = hall.heard(1).iter().filter(|line| line.ends_with(": two")).count();
            assert_eq!(told, 1, "{what}: {:?}", hall.heard(1));
            let replayed = hall.edge.owner.totals().replayed - replayed;
            // What goes to a backup that holds is a delta: this owner's own copy is an earlier one.
            let holds = matches!(behind, Behind::Later(_, Feed::WarmBackup));
            let most = if holds { 12 } else { 4 };
            assert!(replayed <= most, "{what}: the log since the copy, and no more: {replayed}");
            assert!(hall.edge.held.is_empty(), "{what}");
        }
    }
}

#[test]
fn a_backup_that_begins_with_a_copy_is_not_lost_with_the_cell() {
    for (form, feed) in [
        (BackupForm::Log, Feed::Backup),
        (BackupForm::Auto, Feed::WarmBackup),
        (BackupForm::Pages, Feed::WarmBackup),
    ] {
        let what = format!("{form:?}");
        let mut hall = Hall::alone(form);
        ["a", "b", "v"].into_iter().for_each(|text| _ = hall.joins(text));
        hall.edge.holds_seals = true;
        hall.begins_backup(feed);
        hall.says(VILLAIN, "fall");
        hall.says(1, "one");
        hall.answers();
        hall.has_backup();
        hall.says(0, "two");
        hall.settles();
        hear(&hall, ": two", &what);
        let all = hall.edge.feed.len();
        assert!(!hall.edge.feed.iter().any(|frame| matches!(frame, Frame::Ended(_))), "{what}: it is lost");
        hall.promotes(all);
        hall.asks_all();
        hall.says(1, "the end");
        hear(&hall, ": the end", &what);
        assert_eq!(hall.port(VILLAIN), None, "{what}");
    }
}

#[test]
fn a_copy_that_fails_costs_the_cell_only_if_it_is_the_first_one() {
    let mut hall = three(Behind::FromTheStart);
    hall.edge.holds_seals = true;
    hall.says(0, "work");
    hall.says(VILLAIN, "fall");
    hall.no_seal();
    hall.settles();
    hear(&hall, "3 is gone", "the log has all of it");

    let mut hall = three(Behind::FromTheStart);
    let all = hall.edge.feed.len();
    hall.holds_after_promotion = true;
    hall.promotes(all);
    hall.asks_all();
    hall.edge.may_end = true;
    hall.says(VILLAIN, "fall");
    assert_eq!(hall.edge.over, None, "a copy was made, and its seal is due");
    hall.no_seal();
    assert_eq!(hall.edge.over.map(|(code, _)| code), Some(Code::Guest));
}

#[test]
fn what_no_client_has_caused_ends_the_cell() {
    for fall in ["fall later", "fall as a task"] {
        let mut hall = three(Behind::FromTheStart);
        hall.edge.may_end = true;
        hall.says(VILLAIN, fall);
        hall.passes(1_000);
        assert_eq!(hall.edge.over.as_ref().map(|(code, _)| *code), Some(Code::Guest), "{fall}");
        for number in [0, 1, VILLAIN] {
            assert_eq!(hall.clients[number].ended, Some(Code::Guest), "{fall}: {number}");
        }
    }
}

#[test]
fn a_client_that_comes_again_and_again_costs_little() {
    for behind in BEHIND {
        let mut hall = three(behind);
        hall.says(VILLAIN, "fall");
        // Not so much that a copy is due.
        let count = 500;
        (0..count).for_each(|_| hall.says(0, "a little"));
        hall.settles();
        let before = hall.edge.owner.totals().replayed;
        let falls = 100;
        for _ in 0..falls {
            let number = hall.joins("fall");
            hall.settles();
            assert_eq!(hall.clients[number].ended, Some(Code::Guest));
        }
        hall.says(0, "still there");
        hall.settles();
        hear(&hall, ": still there", &format!("{behind:?}"));
        // Each adds its own entries. A replay counts as work, so that the next copy comes the sooner.
        let replayed = hall.edge.owner.totals().replayed - before;
        assert!(replayed < falls * 100, "{behind:?}: {replayed} entries, and {count} each without that");
    }
}
