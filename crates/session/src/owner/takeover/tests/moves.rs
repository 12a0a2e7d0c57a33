//! Hand-overs: when the other edge takes over, and the session's time there.

use super::*;
use crate::owner::{ClientProgress, WitnessReply, Witnessing};
use alloc::string::String;
use marram_wire::frame::{HandOver, Reject};

const SESSION_NS: i64 = 30 * 86_400_000_000_000;

fn hand_over() -> Frame {
    HandOver { channel: 9, session_ns: SESSION_NS }.into()
}

fn takes_over(standby: &Standby) -> usize {
    standby.out.iter().filter(|effect| matches!(effect, OwnerEffect::TakeOver)).count()
}

#[test]
fn a_standby_takes_over_when_it_has_replayed_all_that_it_was_fed() {
    let mut standby = Standby::new(0, true).fed(0..2);
    // The handler of the next entry still runs when the session is handed over.
    standby.owner.fed(NOW, standby.history.fed(2), &mut standby.out);
    standby.owner.fed(NOW, hand_over(), &mut standby.out);
    standby.owner.fed(NOW, standby.history.fed(3), &mut standby.out);
    assert_eq!(takes_over(&standby), 0);
    standby.settle();
    assert_eq!((takes_over(&standby), standby.heard()), (1, SAID[..3].to_vec()));
    // What its owner consumes until the ends promise is replayed too, and changes nothing.
    let mut standby = standby.fed(4..5);
    assert_eq!(takes_over(&standby), 1);
    standby.opens(&level(5, 4), &silent(5));
    assert!(standby.goes_on());
    assert_eq!(standby.heard(), SAID[..4]);
}

#[test]
fn an_idle_standby_takes_over_at_once() {
    let mut standby = Standby::new(1, true).fed(1..3);
    standby.feed(hand_over());
    assert_eq!(takes_over(&standby), 1);
}

#[test]
fn a_warm_standby_replays_what_it_holds_and_takes_over() {
    for restored in [false, true] {
        let mut standby = Standby::new(usize::from(restored), false).fed(usize::from(restored)..3);
        assert!(standby.heard().is_empty() && standby.owner.standing_by().is_some_and(|(_, able)| able));
        standby.owner.fed(NOW, hand_over(), &mut standby.out);
        // What its owner consumes meanwhile is replayed too.
        standby.owner.fed(NOW, standby.history.fed(3), &mut standby.out);
        assert_eq!(takes_over(&standby), 0);
        standby.settle();
        assert_eq!((takes_over(&standby), standby.heard()), (1, SAID[..3].to_vec()));
        standby.opens(&level(4, 3), &silent(4));
        assert!(standby.goes_on());
        assert_eq!(standby.heard(), SAID[..3]);
    }
}

#[test]
fn a_warm_standby_is_advanced_no_more_once_the_session_is_handed_over() {
    let mut standby = Standby::new(1, false).fed(1..3);
    standby.feed(hand_over());
    let meta = CheckpointMeta { number: 2, ..standby.history.meta(3) };
    standby.feed(Base { channel: 9, meta, took: vec![2, 0] }.into());
    assert!(matches!(rejected(&standby), Some((Code::Protocol, _))), "{:?}", standby.out);
}

#[test]
fn a_warm_standby_whose_checkpoint_is_still_to_come_does_not_take_over() {
    let mut standby = Standby::new(1, false).fed(1..3);
    let meta = CheckpointMeta { number: 2, ..standby.history.meta(3) };
    standby.owner.fed(NOW, Base { channel: 9, meta, took: vec![2, 0] }.into(), &mut standby.out);
    standby.owner.fed(NOW, hand_over(), &mut standby.out);
    let refused = standby.out.iter().any(|effect| {
        matches!(effect, OwnerEffect::ToFeeder(Frame::Reject(Reject { code: Code::Protocol, .. })))
    });
    assert!(refused && takes_over(&standby) == 0, "{:?}", standby.out);
}

#[test]
fn session_time_goes_on_from_the_hand_over_and_not_from_this_machine_s_clock() {
    let mut standby = Standby::new(0, true).fed(0..3);
    standby.feed(hand_over());
    standby.opens(&level(3, 2), &silent(3));
    assert!(standby.goes_on());
    let later = Now { mono_ns: NOW.mono_ns + 500, unix_ns: 7 };
    assert_eq!(standby.owner.runner.session_ns(later, &standby.owner.log), SESSION_NS + 500);
}

#[test]
fn what_an_owner_that_was_replaced_says_of_the_time_does_not_count() {
    let mut standby = Standby::new(0, true).fed(0..3);
    standby.feed(hand_over());
    // The ends have promised another owner since, and an hour has passed there.
    let hour_later_ns = SESSION_NS + 3_600_000_000_000;
    let says = |level: Says| Says { live: false, session_ns: Some(hour_later_ns), ..level };
    standby.opens(&says(level(3, 2)), &says(silent(3)));
    assert!(standby.starts_again());
    let owner = &mut standby.owner;
    owner.runner.set_clock(NOW, 0);
    assert_eq!(owner.runner.session_ns(NOW, &owner.log), hour_later_ns);
}

#[test]
fn session_time_goes_on_as_the_ends_say_and_not_from_this_machine_s_clock() {
    let later = Now { mono_ns: NOW.mono_ns + 500, unix_ns: 7 };
    let at = |client: Option<i64>, server: Option<i64>| {
        let mut standby = Standby::new(0, true).fed(0..3);
        standby.opens(&Says { session_ns: client, ..level(3, 2) }, &Says { session_ns: server, ..silent(3) });
        assert!(standby.goes_on());
        standby.owner.runner.session_ns(later, &standby.owner.log)
    };
    let machine_ns = at(None, None);
    assert_eq!(machine_ns, NOW.unix_ns + 500, "no end knows");
    assert_eq!(at(Some(SESSION_NS), None), SESSION_NS + 500);
    assert_eq!(
        at(Some(SESSION_NS + 9_000), Some(SESSION_NS)),
        SESSION_NS + 500,
        "the server's end counts more"
    );
    assert!(
        (0..machine_ns).contains(&at(Some(i64::MIN), Some(i64::MIN))),
        "never before the last logged time"
    );
}

/// A standby of a session with a strict witness, to which it was handed over.
fn witnessed() -> Standby {
    let mut standby = Standby::new(0, true);
    standby.owner.about.policy.witness = Some(Witnessing::Strict);
    let mut standby = standby.fed(0..3);
    standby.feed(hand_over());
    standby
}

/// The generations under which it has asked the witness.
fn asked(standby: &Standby) -> Vec<Generation> {
    let asked = standby.out.iter().filter_map(|effect| match effect {
        OwnerEffect::AskWitness(generation) => Some(*generation),
        _ => None,
    });
    asked.collect()
}

fn seen(generation: Generation) -> WitnessReply {
    WitnessReply::Seen(Some(ClientProgress { generation, log_end: 0, tag: [0; 8] }))
}

fn rejected(standby: &Standby) -> Option<(Code, String)> {
    standby.out.iter().find_map(|effect| match effect {
        OwnerEffect::ToFeeder(Frame::Reject(Reject { code, reason, .. })) => Some((*code, reason.clone())),
        _ => None,
    })
}

#[test]
fn a_strict_witness_is_asked_before_the_ends_are() {
    let standby = witnessed();
    assert_eq!((takes_over(&standby), asked(&standby)), (0, vec![OLD]));
    // The session goes on meanwhile, and nothing is asked twice.
    let mut standby = standby.fed(3..4);
    assert_eq!((takes_over(&standby), asked(&standby)), (0, vec![OLD]));
    standby.owner.witnessed(NOW, OLD, seen(OLD), &mut standby.out);
    assert_eq!(takes_over(&standby), 1);
    standby.opens(&level(4, 3), &silent(4));
    assert!(standby.goes_on());
    assert_eq!(asked(&standby), [], "its answer counts for this attempt");
}

#[test]
fn a_session_stays_where_it_is_if_its_witness_is_away() {
    let mut standby = witnessed();
    let away = WitnessReply::Away("no answer in time".into());
    standby.owner.witnessed(NOW, OLD, away, &mut standby.out);
    let (code, reason) = rejected(&standby).expect("its owner is told");
    assert_eq!(code, Code::Waiting);
    assert!(reason.contains("keep.witness") && reason.contains("no answer in time"), "{reason}");
    let is_over = standby.out.iter().any(|effect| matches!(effect, OwnerEffect::Done(Code::Waiting, _)));
    assert!(is_over && takes_over(&standby) == 0, "{:?}", standby.out);
}

#[test]
fn an_owner_that_the_witness_has_seen_replaced_cannot_hand_over() {
    let mut standby = witnessed();
    standby.owner.witnessed(NOW, OLD, seen(NEW), &mut standby.out);
    let (code, reason) = rejected(&standby).expect("its owner is told");
    assert!(code == Code::Superseded && reason.contains("a newer owner"), "{reason}");
    assert_eq!(takes_over(&standby), 0);
}

#[test]
fn an_answer_that_comes_after_the_feed_was_lost_does_not_count() {
    let mut standby = witnessed();
    standby.owner.feed_lost(&mut standby.out);
    standby.owner.witnessed(NOW, OLD, seen(OLD), &mut standby.out);
    assert_eq!((takes_over(&standby), rejected(&standby)), (0, None));
    // It stands by, and takes over if its owner has died: the witness is asked as in any recovery.
    standby.opens(&level(3, 2), &silent(3));
    assert_eq!(asked(&standby), [NEW]);
    assert!(!standby.goes_on());
    standby.owner.witnessed(NOW, NEW, seen(OLD), &mut standby.out);
    standby.settle();
    assert!(standby.goes_on());
}
