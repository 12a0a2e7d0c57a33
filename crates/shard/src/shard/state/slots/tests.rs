//! What is known of a slot, and how it is taken; several shards and a store are in `model.rs`.

mod model;

use super::*;
use crate::coordinator::contents::Claimed;
use marram_wire::id::Generation;

const SLOT: SlotName = SlotName([1; 16]);
const S: u64 = 1_000_000_000;

fn record(number: u8) -> SlotRecord {
    SlotRecord { incarnation: [number; 16], group: [128 + number; 16] }
}

fn held(number: u8) -> SlotHeld {
    let generation = Generation { count: 1, opener: 1 };
    SlotHeld {
        record: record(number),
        holder: Some(Claimed { generation, primary: "a".into(), backup: None }),
    }
}

fn query(take: Option<SlotRecord>) -> SlotQuery {
    SlotQuery { slot: SLOT, take, from: None }
}

/// Another record; or that it was won.
fn answer(take: Option<SlotRecord>, held: Option<SlotHeld>) -> SlotAnswer {
    SlotAnswer { slot: SLOT, won: take.is_some() && held.is_none(), take, from: None, held, away: None }
}

fn away(take: Option<SlotRecord>) -> SlotAnswer {
    SlotAnswer { slot: SLOT, take, from: None, won: false, held: None, away: Some("full".into()) }
}

fn unanswered() -> Vec<SlotNews> {
    vec![SlotNews::Unanswered { slot: SLOT, why: "full".into() }]
}

fn won(record: SlotRecord) -> SlotNews {
    SlotNews::Won { slot: SLOT, record, has_run: false, was_lost: false }
}

fn lost(number: u8) -> SlotNews {
    SlotNews::Lost { slot: SLOT, group: record(number).group, has_run: false }
}

/// One that has found no record, and takes the slot.
fn taking(now_ns: u64) -> Slots {
    let mut slots = Slots::default();
    assert_eq!(slots.look(now_ns, SLOT), Look::Ask(query(None)));
    assert_eq!(slots.answered(now_ns, answer(None, None)), []);
    assert_eq!(slots.look(now_ns, SLOT), Look::Free);
    slots.begin_taking(SLOT, record(1), None);
    slots
}

#[test]
fn one_question_is_asked_and_its_answer_leads_for_a_second() {
    let mut slots = Slots::default();
    assert_eq!(slots.look(0, SLOT), Look::Ask(query(None)));
    assert_eq!((slots.look(0, SLOT), slots.look(9 * S, SLOT)), (Look::Waits, Look::Waits));
    assert_eq!(slots.answered(9 * S, answer(None, Some(held(2)))), []);
    for now_ns in [9 * S, 10 * S - 1] {
        assert_eq!(slots.look(now_ns, SLOT), Look::Known(held(2), None));
    }
    assert_eq!(slots.look(10 * S, SLOT), Look::Ask(query(None)), "that is old");
    assert_eq!(slots.look(10 * S, SLOT), Look::Waits);
    slots.answered(10 * S, answer(None, Some(held(3))));
    assert_eq!(slots.look(10 * S, SLOT), Look::Known(held(3), None));
    assert_eq!((slots.due(99 * S), slots.due_ns()), (vec![], None), "ends ask again");
}

#[test]
fn while_the_coordinator_is_away_what_was_known_leads_on() {
    let mut slots = Slots::default();
    slots.look(0, SLOT);
    assert_eq!(slots.answered(0, away(None)), unanswered());
    assert_eq!(slots.look(0, SLOT), Look::Waits, "nothing is known, and it was asked just before");
    assert_eq!(slots.look(S, SLOT), Look::Ask(query(None)));
    slots.answered(S, answer(None, Some(held(2))));
    assert_eq!(slots.look(3 * S, SLOT), Look::Ask(query(None)));
    assert_eq!(slots.answered(3 * S, away(None)), unanswered());
    assert_eq!(slots.look(3 * S, SLOT), Look::Known(held(2), None));
    assert_eq!(slots.look(4 * S, SLOT), Look::Known(held(2), Some(query(None))));
    assert_eq!(slots.look(4 * S, SLOT), Look::Waits, "an answer may come soon");
    slots.answered(4 * S, answer(None, None));
    assert_eq!(slots.look(5 * S - 1, SLOT), Look::Free);
    // A slot that was free is not taken while that is old.
    assert_eq!(slots.look(5 * S, SLOT), Look::Ask(query(None)));
    slots.answered(5 * S, away(None));
    assert_eq!(slots.look(5 * S, SLOT), Look::Waits);
}

#[test]
fn a_slot_is_taken_once_its_group_is_claimed() {
    let mut slots = taking(0);
    let group = record(1).group;
    assert_eq!(slots.look(0, SLOT), Look::Waits);
    assert!(!slots.keeps(group), "nothing can be written yet");
    assert_eq!(slots.group_claimed([9; 16]), None);
    assert_eq!(slots.group_claimed(group), Some(query(Some(record(1)))));
    assert_eq!(slots.group_claimed(group), None, "a later claim of that group");
    assert!(slots.keeps(group));
    assert_eq!(slots.answered(0, answer(Some(record(1)), None)), [won(record(1))]);
    assert_eq!(slots.answered(0, answer(Some(record(1)), None)), [], "once");
    assert_eq!((slots.look(0, SLOT), slots.keeps(group)), (Look::Own(group), true));
    slots.group_gone(0, group);
    assert_eq!((slots.look(0, SLOT), slots.keeps(group)), (Look::Ask(query(None)), false));
}

#[test]
fn a_take_that_is_not_answered_is_asked_for_until_it_is() {
    let mut slots = taking(0);
    slots.group_claimed(record(1).group);
    for round in 1..5 {
        let now_ns = round * 10 * S;
        assert_eq!(slots.due_ns(), None, "it is on its way");
        assert_eq!(slots.answered(now_ns, away(Some(record(1)))), unanswered());
        let due_ns = slots.due_ns().expect("it is asked for again");
        assert!(due_ns > now_ns && slots.due(due_ns - 1).is_empty());
        assert_eq!(slots.due(due_ns), [query(Some(record(1)))]);
        assert!(slots.keeps(record(1).group));
    }
    assert_eq!(slots.answered(99 * S, answer(Some(record(1)), Some(held(2)))), [lost(1)]);
    assert_eq!((slots.look(99 * S, SLOT), slots.due_ns()), (Look::Known(held(2), None), None));
    assert!(!slots.keeps(record(1).group));
}

#[test]
fn answers_to_what_was_not_asked_are_ignored() {
    let mut slots = taking(0);
    // Of a former life of this shard.
    for old in [answer(None, Some(held(2))), answer(Some(record(3)), None), answer(Some(record(1)), None)] {
        assert_eq!(slots.answered(0, old), []);
    }
    slots.group_claimed(record(1).group);
    for old in [answer(None, Some(held(2))), answer(Some(record(3)), None), away(None)] {
        assert_eq!(slots.answered(0, old), []);
    }
    assert_eq!(slots.answered(0, answer(Some(record(1)), None)), [won(record(1))]);
    assert_eq!(slots.answered(0, answer(None, Some(held(2)))), []);
    assert_eq!(slots.look(0, SLOT), Look::Own(record(1).group));
    assert_eq!(Slots::default().answered(0, answer(None, Some(held(2)))), []);
}

/// The slot of a cell that runs here.
fn owning() -> Slots {
    let mut slots = taking(0);
    slots.group_claimed(record(1).group);
    assert_eq!(slots.answered(0, answer(Some(record(1)), None)), [won(record(1))]);
    slots
}

#[test]
fn a_promoted_cell_that_has_run_goes_on_if_the_slot_names_it() {
    let kept = |record| SlotNews::Won { slot: SLOT, record, has_run: true, was_lost: false };
    let former = SlotRecord { incarnation: [5; 16], group: record(1).group };
    let ended = SlotNews::Lost { slot: SLOT, group: record(1).group, has_run: true };
    for (there, news) in [
        (Some(SlotHeld { record: former.clone(), holder: None }), kept(former)),
        // The store has lost it.
        (None, kept(record(1))),
        (Some(held(2)), ended),
    ] {
        let mut slots = Slots::default();
        assert_eq!(slots.take_promoted(SLOT, record(1), true), Promoted::Ask(query(Some(record(1)))));
        assert!(slots.keeps(record(1).group));
        assert_eq!(slots.answered(0, answer(Some(record(1)), there)), [news]);
    }
}

#[test]
fn a_slot_that_the_store_may_have_lost_is_taken_again_once_its_group_is_claimed() {
    let again = || {
        let mut slots = owning();
        slots.again([9; 16], [7; 16]);
        assert_eq!(slots.look(0, SLOT), Look::Own(record(1).group), "another group's");
        slots.again(record(1).group, [7; 16]);
        assert!(slots.keeps(record(1).group));
        assert_eq!((slots.look(0, SLOT), slots.due_ns()), (Look::Waits, None));
        assert_eq!(
            slots.group_claimed(record(1).group),
            Some(query(Some(SlotRecord { incarnation: [7; 16], ..record(1) })))
        );
        slots
    };
    let record = |incarnation| SlotRecord { incarnation: [incarnation; 16], ..record(1) };
    let kept = |incarnation| SlotNews::Won {
        slot: SLOT,
        record: record(incarnation),
        has_run: true,
        was_lost: false,
    };
    assert_eq!(again().answered(0, answer(Some(record(7)), None)), [kept(7)]);
    // It was not lost.
    let there = SlotHeld { record: record(1), holder: None };
    assert_eq!(again().answered(0, answer(Some(record(7)), Some(there))), [kept(1)]);
    let ended = SlotNews::Lost { slot: SLOT, group: record(1).group, has_run: true };
    let mut slots = again();
    assert_eq!(slots.answered(0, answer(Some(record(7)), Some(held(2)))), [ended]);
    assert!(!slots.keeps(record(1).group));
    // Once more before there is an answer: what the store had then does not count.
    let mut slots = again();
    slots.again(record(1).group, [8; 16]);
    assert_eq!(slots.group_claimed(record(1).group), Some(query(Some(record(8)))));
    assert_eq!(slots.answered(0, answer(Some(record(7)), None)), []);
    assert!(slots.keeps(record(1).group));
    assert_eq!(slots.answered(0, answer(Some(record(8)), None)), [kept(8)]);
}

#[test]
fn the_record_of_a_lost_cell_is_replaced() {
    let mut slots = Slots::default();
    slots.look(0, SLOT);
    slots.answered(0, answer(None, Some(held(2))));
    let next = SlotRecord { incarnation: [7; 16], ..record(2) };
    slots.begin_taking(SLOT, next.clone(), Some(record(2)));
    assert!(slots.keeps(next.group), "the slot names it before that");
    let asked = SlotQuery { slot: SLOT, take: Some(next.clone()), from: Some(record(2)) };
    assert_eq!(slots.group_claimed(next.group), Some(asked));
    assert_eq!(slots.answered(0, answer(Some(next.clone()), None)), [], "it was asked otherwise");
    let answer = SlotAnswer { from: Some(record(2)), ..answer(Some(next.clone()), None) };
    let news = SlotNews::Won { slot: SLOT, record: next.clone(), has_run: false, was_lost: true };
    assert_eq!(slots.answered(0, answer), [news]);
    assert_eq!(slots.look(0, SLOT), Look::Own(next.group));
}

#[test]
fn the_record_of_a_cell_that_is_over_is_removed_before_that_of_its_group() {
    let removes = SlotQuery { slot: SLOT, take: None, from: Some(record(1)) };
    let answered = |held: Option<SlotHeld>, why: Option<&str>| SlotAnswer {
        from: Some(record(1)),
        won: why.is_none() && held.is_none(),
        away: why.map(Into::into),
        ..answer(None, held)
    };
    for there in [None, Some(held(2))] {
        let mut slots = owning();
        assert_eq!(slots.remove(SLOT), Some(record(1).group));
        assert_eq!((slots.remove(SLOT), slots.look(0, SLOT)), (None, Look::Waits));
        assert!(slots.is_leaving(record(1).group) && slots.due_ns().is_none());
        assert_eq!(slots.answered(0, answered(None, None)), [], "its group is not claimed");
        assert_eq!(slots.group_claimed(record(1).group), Some(removes.clone()));
        assert!(slots.keeps(record(1).group));
        assert_eq!(slots.answered(0, answered(None, Some("full"))), unanswered());
        let due_ns = slots.due_ns().expect("it is asked for again");
        assert_eq!(slots.due(due_ns), core::slice::from_ref(&removes));
        assert_eq!(slots.answered(due_ns, answered(there, None)), []);
        assert_eq!((slots.keeps(record(1).group), slots.due_ns()), (false, None));
        assert_eq!(slots.look(0, SLOT), Look::Ask(query(None)));
    }
    assert_eq!(taking(0).remove(SLOT), None);
    let mut slots = owning();
    slots.remove(SLOT);
    assert_eq!(slots.take_promoted(SLOT, record(2), true), Promoted::Lost);
    slots.group_gone(0, record(1).group);
    assert_eq!(slots.answered(0, answered(None, None)), [], "another edge has claimed the group");
}

#[test]
fn a_promoted_cell_that_has_not_run_takes_the_slot() {
    // The former primary has written a record of the group, or not, or another edge was first.
    let former = SlotRecord { incarnation: [5; 16], group: record(1).group };
    for (there, news, look) in [
        (None, won(record(1)), Look::Own(record(1).group)),
        (Some(SlotHeld { record: former.clone(), holder: None }), won(former), Look::Own(record(1).group)),
        (Some(held(2)), lost(1), Look::Known(held(2), None)),
    ] {
        let mut slots = Slots::default();
        assert_eq!(slots.take_promoted(SLOT, record(1), false), Promoted::Ask(query(Some(record(1)))));
        assert!(slots.keeps(record(1).group));
        assert_eq!(slots.answered(0, answer(Some(record(1)), there)), [news]);
        assert_eq!(slots.look(0, SLOT), look);
    }
}

#[test]
fn a_promotion_waits_for_the_take_of_another_group() {
    let begun = || {
        let mut slots = taking(0);
        slots.group_claimed(record(1).group);
        assert_eq!(slots.take_promoted(SLOT, record(2), false), Promoted::Waits);
        assert!(slots.keeps(record(2).group));
        slots
    };
    let asked = Some(record(1));
    assert_eq!(begun().answered(0, answer(asked.clone(), None)), [lost(2), won(record(1))]);
    assert_eq!(begun().answered(0, answer(asked.clone(), Some(held(2)))), [lost(1), won(record(2))]);
    assert_eq!(begun().answered(0, answer(asked, Some(held(3)))), [lost(1), lost(2)]);
    let mut slots = begun();
    slots.group_gone(0, record(2).group);
    assert!(!slots.keeps(record(2).group) && slots.keeps(record(1).group));
    assert_eq!(slots.answered(0, answer(Some(record(1)), None)), [won(record(1))]);
    let mut slots = begun();
    slots.group_gone(0, record(1).group);
    let due_ns = slots.due_ns().expect("it is the other one's turn");
    assert_eq!(slots.due(due_ns), [query(Some(record(2)))]);
    assert_eq!(slots.answered(0, answer(Some(record(2)), None)), [won(record(2))]);
    assert_eq!(slots.take_promoted(SLOT, record(3), false), Promoted::Lost);
}

#[test]
fn what_is_known_of_slots_is_bounded() {
    let name = |number: usize| {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&number.to_le_bytes());
        SlotName(name)
    };
    let mut slots = Slots::default();
    for number in 0..SLOTS_MAX {
        assert_eq!(
            slots.look(0, name(number)),
            Look::Ask(SlotQuery { slot: name(number), take: None, from: None })
        );
    }
    assert_eq!(slots.look(0, name(SLOTS_MAX)), Look::Full, "all questions are on their way");
    slots.answered(5, SlotAnswer { slot: name(7), ..answer(None, Some(held(2))) });
    slots.answered(4, SlotAnswer { slot: name(8), ..answer(None, Some(held(2))) });
    assert_eq!(
        slots.look(5, name(SLOTS_MAX)),
        Look::Ask(SlotQuery { slot: name(SLOTS_MAX), take: None, from: None })
    );
    assert_eq!(slots.look(5, name(7)), Look::Known(held(2), None), "the other one is older");
    assert_eq!(slots.by_name.len(), SLOTS_MAX);
    slots.invariants().unwrap();
}

#[test]
fn a_shard_takes_all_slots_of_several_apps() {
    let id = |number: usize| {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        id
    };
    let mut slots = Slots::default();
    let count = 8 * 1_024;
    for number in 0..count {
        let (slot, record) =
            (SlotName(id(number)), SlotRecord { incarnation: id(1), group: id(count + number) });
        assert_eq!(slots.look(0, slot), Look::Ask(SlotQuery { slot, take: None, from: None }));
        slots.answered(0, SlotAnswer { slot, ..answer(None, None) });
        slots.begin_taking(slot, record.clone(), None);
        let query = SlotQuery { slot, take: Some(record.clone()), from: None };
        assert_eq!(slots.group_claimed(record.group), Some(query));
        slots.answered(0, SlotAnswer { slot, ..answer(Some(record.clone()), None) });
        assert_eq!((slots.own_of(record.group), slots.keeps(record.group)), (Some(slot), true));
    }
    slots.invariants().unwrap();
    assert_eq!((slots.due(u64::MAX), slots.due_ns()), (vec![], None));
    for number in 0..count {
        assert_eq!(slots.remove(SlotName(id(number))), Some(id(count + number)));
        assert!(slots.is_leaving(id(count + number)));
    }
    slots.invariants().unwrap();
}
