//! From which record a backup claims; no session and no wire is here.

use super::*;
use marram_wire::id::Generation;

const GROUP: GroupId = [7; 16];
const WIRE: ShardWireId = ShardWireId(1);
const SESSION: SessionId = SessionId([1; 16]);

fn claimed(count: u64, primary: &str, backup: Option<&str>) -> Claimed {
    let generation = Generation { count, opener: count };
    Claimed { generation, primary: primary.into(), backup: backup.map(Into::into) }
}

/// The backup `b` of a group whose primary `a` has announced its claim 4, and is lost; and an end asks.
fn asked() -> Backups {
    let mut backups = Backups::default();
    backups.join(GROUP, (WIRE, "a"), SESSION);
    backups.announced(GROUP, WIRE, claimed(4, "a", Some("b")));
    backups.lost(0, WIRE);
    assert_eq!(backups.asked(0, SESSION), Some(AskedFor::Claim));
    backups
}

/// The record that is claimed from, if something is claimed.
fn claims(backups: &mut Backups, now_ns: u64) -> Option<Option<Claimed>> {
    let mut claims = backups.claims(now_ns, "b", || (9, 9));
    let (_, _, from, to) = claims.pop()?;
    assert_eq!((to.generation.count, to.primary.as_str(), to.backup), (5, "b", None));
    Some(from)
}

#[test]
fn a_claim_that_was_announced_and_not_written_is_claimed_over() {
    let (older, announced) = (claimed(3, "a", None), claimed(4, "a", Some("b")));
    let mut backups = asked();
    assert_eq!(claims(&mut backups, 0), Some(Some(announced.clone())));
    assert!(backups.may_claim_from(0, GROUP, &older));
    assert_eq!(claims(&mut backups, 0), Some(Some(older)));
    assert!(!backups.may_confirm(GROUP, WIRE), "nothing more leaves the primary");
    // The primary's claim has arrived before this one.
    assert!(backups.may_claim_from(0, GROUP, &announced));
    assert_eq!(claims(&mut backups, 0), Some(Some(announced.clone())));
    assert!(!backups.may_claim_from(0, GROUP, &claimed(5, "a", None)), "its primary runs alone");
}

#[test]
fn a_claim_that_was_to_be_renewed_is_claimed_over() {
    let mut backups = asked();
    claims(&mut backups, 0);
    let before = claimed(3, "a", Some("b"));
    assert!(backups.may_claim_from(0, GROUP, &before));
    assert_eq!(claims(&mut backups, 0), Some(Some(before)));
}

#[test]
fn a_claim_that_was_renewed_unheard_is_claimed_over() {
    let mut backups = asked();
    claims(&mut backups, 0);
    let next = claimed(5, "a", Some("b"));
    assert!(backups.may_claim_from(0, GROUP, &next));
    assert_eq!(claims(&mut backups, 0), Some(Some(next)));
    // Between these the primary may have run alone, and it may do so now.
    for other in [claimed(6, "a", Some("b")), claimed(5, "a", Some("c")), claimed(5, "c", Some("b"))] {
        let mut backups = asked();
        claims(&mut backups, 0);
        assert!(!backups.may_claim_from(0, GROUP, &other));
    }
}

#[test]
fn a_claim_from_which_the_former_backup_has_resigned_is_claimed_over() {
    let mut backups = asked();
    claims(&mut backups, 0);
    // The primary was about to name this edge in place of `c`, which was started again.
    let resigned = claimed(3, "a", Some("c")).resigned();
    assert!(backups.may_claim_from(0, GROUP, &resigned));
    assert_eq!(claims(&mut backups, 0), Some(Some(resigned)));
}

#[test]
fn no_claim_follows_the_one_with_the_largest_count() {
    let last = claimed(u64::MAX, "a", Some("b"));
    let mut backups = Backups::default();
    backups.join(GROUP, (WIRE, "a"), SESSION);
    backups.announced(GROUP, WIRE, last.clone());
    backups.lost(0, WIRE);
    backups.asked(0, SESSION);
    let claims = backups.claims(0, "b", || (9, 9));
    for next in [&claims[0].3, &last.resigned(), &last.handed_to("c")] {
        assert_eq!(next.generation.count, u64::MAX);
    }
}

#[test]
fn a_claim_that_loses_to_a_renewal_which_was_announced_before_is_no_end_of_the_backup() {
    let mut backups = Backups::default();
    backups.join(GROUP, (WIRE, "a"), SESSION);
    backups.announced(GROUP, WIRE, claimed(4, "a", Some("b")));
    backups.suspect(0, WIRE);
    assert_eq!(backups.asked(0, SESSION), Some(AskedFor::Claim));
    assert_eq!(claims(&mut backups, 0), Some(Some(claimed(4, "a", Some("b")))));
    // The primary was only slow, and has claimed again what it has.
    backups.heard(WIRE);
    let renewed = claimed(5, "a", Some("b"));
    backups.announced(GROUP, WIRE, renewed.clone());
    assert!(!backups.may_confirm(GROUP, WIRE));
    assert!(backups.may_claim_from(0, GROUP, &renewed), "this edge has everything");
    assert!(backups.has(SESSION));
}

#[test]
fn the_first_claim_of_a_group_that_arrives_late_is_claimed_from() {
    let mut backups = asked();
    claims(&mut backups, 0);
    backups.forgotten(GROUP);
    assert_eq!(claims(&mut backups, 0), Some(None));
    let announced = claimed(4, "a", Some("b"));
    assert!(backups.may_claim_from(0, GROUP, &announced));
    assert_eq!(claims(&mut backups, 0), Some(Some(announced)));
}

#[test]
fn an_older_record_that_is_not_the_primarys_alone_is_waited_for() {
    for older in [claimed(3, "a", Some("c")), claimed(3, "c", None)] {
        let mut backups = asked();
        claims(&mut backups, 0);
        assert!(backups.may_claim_from(0, GROUP, &older));
        assert_eq!(claims(&mut backups, 0), None);
        assert!(backups.has(SESSION));
        backups.asked(1, SESSION);
        assert_eq!(claims(&mut backups, 1), Some(Some(claimed(4, "a", Some("b")))));
    }
}

#[test]
fn an_edge_resigns_from_a_claim_of_which_it_has_no_copy() {
    let (other, claim) = (ShardWireId(2), claimed(4, "a", Some("b")));
    let mut backups = Backups::default();
    assert!(backups.resigns(0, GROUP, claim.generation));
    assert!(backups.resigns(0, GROUP, claim.generation), "the answer may be lost");
    // What it was fed under that claim was on its way.
    backups.join(GROUP, (WIRE, "a"), SESSION);
    backups.is_slot(GROUP);
    assert!(!backups.resigns(0, GROUP, claim.generation), "it may have a copy by now");
    assert_eq!(backups.announced(GROUP, other, claim.clone()), [], "on another wire");
    assert_eq!(backups.announced(GROUP, WIRE, claim), [SESSION]);
    assert!(!backups.may_claim(SESSION));
    // A later claim is none from which it has resigned.
    let claim = claimed(6, "a", Some("b"));
    assert_eq!(backups.announced(GROUP, WIRE, claim.clone()), []);
    assert!(backups.may_claim(SESSION));
    // The cell has ended, and its primary, which is connected, may begin another one under the same claim.
    backups.leave(SESSION);
    assert!(!backups.resigns(0, GROUP, claim.generation));
    backups.lost(0, other);
    assert!(!backups.resigns(FED_AGAIN_NS - 1, GROUP, claim.generation));
    assert!(backups.resigns(FED_AGAIN_NS, GROUP, claim.generation), "nothing came");
    backups.join(GROUP, (WIRE, "a"), SESSION);
    backups.is_slot(GROUP);
    assert_eq!(backups.announced(GROUP, WIRE, claim.clone()), [SESSION]);
    let claim = claimed(8, "a", Some("b"));
    assert_eq!(backups.announced(GROUP, WIRE, claim.clone()), []);
    backups.leave(SESSION);
    assert!(!backups.resigns(0, GROUP, claim.generation));
    backups.lost(0, WIRE);
    assert!(backups.resigns(0, GROUP, claim.generation));
}

#[test]
fn a_claim_that_is_found_is_for_what_was_fed_since_the_primary_was_back() {
    let [stays, ended, new] = [1, 2, 3].map(|number| SessionId([number; 16]));
    let mut backups = Backups::default();
    [stays, ended].into_iter().for_each(|session| backups.join(GROUP, (WIRE, "a"), session));
    assert_eq!(backups.found(GROUP, &claimed(4, "a", Some("b"))), [], "its primary would announce it");
    backups.lost(0, WIRE);
    // The primary has run alone, and feeds this edge again.
    let wire = ShardWireId(2);
    [stays, new].into_iter().for_each(|session| backups.join(GROUP, (wire, "a"), session));
    backups.lost(0, wire);
    assert_eq!(backups.found(GROUP, &claimed(6, "a", Some("b"))), [ended]);
    assert!(backups.may_claim(stays) && backups.invariants().is_ok());
    backups.leave(ended);
    assert!(backups.invariants().is_ok());
}

/// Another edge's claim, which follows that of the primary and names the same backup, and the wire to that edge.
fn heir() -> (Claimed, ShardWireId) {
    (claimed(4, "a", Some("b")).handed_to("c"), ShardWireId(3))
}

/// The backup `b` of a group whose primary `a` is lost, and which the store has said is `c`'s.
fn told_by_store() -> Backups {
    let mut backups = asked();
    claims(&mut backups, 0);
    assert_eq!(backups.has_heir(0, GROUP, (&heir().0, None)), Some([SESSION].into()));
    backups.is_slot(GROUP);
    backups
}

#[test]
fn a_claim_that_names_this_backup_without_the_word_of_its_primary_is_no_heirs() {
    // What is known here may never have been written, and the other edge may have run alone since.
    let known = claimed(4, "a", Some("b"));
    let others = [claimed(5, "c", Some("b")), claimed(3, "a", Some("b")).handed_to("c"), {
        Claimed { primary: "c".into(), ..known.handed_to("d") }
    }];
    for other in others {
        let mut backups = asked();
        claims(&mut backups, 0);
        assert_eq!(backups.has_heir(0, GROUP, (&other, None)), None);
        assert_eq!(backups.has_heir(0, GROUP, (&other, Some(ShardWireId(3)))), None);
    }
    // An edge that is told to go on claims just what the backup expects.
    let mut backups = Backups::default();
    backups.join(GROUP, (WIRE, "a"), SESSION);
    backups.handed(GROUP, WIRE, known.clone());
    assert_eq!(backups.claims(0, "c", || (9, 9)), [], "only slots are handed over so");
    backups.is_slot(GROUP);
    backups.handed(GROUP, WIRE, known.clone());
    let claims = backups.claims(0, "c", || (9, 9));
    assert_eq!(claims, [(GROUP, 9, Some(known.clone()), known.handed_to("c"))]);
    assert_eq!(heir().0.generation.count, 5);
}

#[test]
fn cells_that_are_handed_over_are_claimed_together_or_not_at_all() {
    for is_asked in [false, true] {
        let (mut backups, other) = (Backups::default(), SessionId([2; 16]));
        [SESSION, other].into_iter().for_each(|cell| backups.join(GROUP, (WIRE, "a"), cell));
        backups.is_slot(GROUP);
        backups.handed(GROUP, WIRE, claimed(4, "a", Some("b")));
        assert!(!is_asked || asks_now(&mut backups, 0));
        backups.leave(other);
        assert_eq!((asks_now(&mut backups, 0), backups.is_heir(GROUP)), (false, is_asked));
        assert_eq!((backups.is_claiming(SESSION), backups.invariants()), (is_asked, Ok(())));
    }
}

fn asks_now(backups: &mut Backups, now_ns: u64) -> bool {
    !backups.claims(now_ns, "b", || (9, 9)).is_empty()
}

#[test]
fn an_heir_of_which_the_store_has_told_goes_on_when_it_says_so_itself() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    assert!(!backups.may_continue(GROUP, wire, SESSION), "it has not said so");
    assert_eq!(backups.announced(GROUP, wire, claim), []);
    assert!(backups.may_continue(GROUP, wire, SESSION) && !backups.may_continue(GROUP, WIRE, SESSION));
    assert!(!asks_now(&mut backups, 2 * UNASKED_NS), "it lives");
    backups.continued(GROUP, SESSION);
    assert!(backups.may_confirm(GROUP, wire) && backups.may_claim(SESSION));
    assert!(!backups.may_continue(GROUP, wire, SESSION), "only once");
    backups.lost(2 * UNASKED_NS, wire);
    assert!(asks_now(&mut backups, 3 * UNASKED_NS));
}

#[test]
fn a_claim_that_is_asked_for_is_not_forgotten_for_an_heir() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    assert!(asks_now(&mut backups, UNASKED_NS));
    assert_eq!(backups.announced(GROUP, wire, claim), []);
    assert!(backups.is_claiming(SESSION));
    assert!(!backups.may_continue(GROUP, wire, SESSION) && !backups.may_confirm(GROUP, wire));
    // It is refused, and the claim stays.
    backups.not_continued(UNASKED_NS, GROUP, wire);
    assert!(backups.is_claiming(SESSION) && backups.of_tag(9).is_some());
    assert_eq!(backups.won(GROUP), [SESSION]);
}

#[test]
fn an_heir_that_is_refused_is_not_waited_for() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    backups.announced(GROUP, wire, claim.clone());
    backups.not_continued(0, GROUP, wire);
    // It says so again behind the next session.
    backups.announced(GROUP, wire, claim);
    assert!(!backups.may_continue(GROUP, wire, SESSION) && !backups.may_confirm(GROUP, wire));
    // It lives, and may have more than is here.
    let primary = AskedFor::Primary { wire, now: true };
    assert_eq!(backups.asked(0, SESSION), Some(primary));
    assert!(!asks_now(&mut backups, 1) && !asks_now(&mut backups, 2 * UNASKED_NS));
    backups.suspect(2 * UNASKED_NS, wire);
    backups.heard(wire);
    assert!(!backups.may_continue(GROUP, wire, SESSION) && !backups.may_confirm(GROUP, wire));
    assert!(!asks_now(&mut backups, 4 * UNASKED_NS) && backups.invariants() == Ok(()));
    backups.lost(4 * UNASKED_NS, wire);
    assert!(!asks_now(&mut backups, 5 * UNASKED_NS - 1) && asks_now(&mut backups, 5 * UNASKED_NS));
}

#[test]
fn what_an_heir_that_is_refused_was_to_go_on_with_is_still_known() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    let new = SessionId([2; 16]);
    backups.announced(GROUP, wire, claim);
    backups.join(GROUP, (wire, "c"), new);
    backups.not_continued(0, GROUP, wire);
    // Whichever of both ends there, they are told apart.
    assert!(backups.is_awaited(SESSION) && !backups.is_awaited(new));
    assert!(!backups.may_continue(GROUP, wire, SESSION));
}

#[test]
fn the_store_is_asked_about_an_heir_that_is_refused() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    backups.announced(GROUP, wire, claim.clone());
    assert_eq!(backups.unclaimed_slots(UNASKED_NS), []);
    backups.not_continued(0, GROUP, wire);
    assert_eq!(backups.due_ns(), Some(UNASKED_NS));
    assert_eq!(backups.unclaimed_slots(UNASKED_NS - 1), []);
    assert_eq!(backups.unclaimed_slots(UNASKED_NS), [SESSION]);
    assert_eq!(backups.unclaimed_slots(UNASKED_NS), []);
    assert_eq!(backups.due_ns(), Some(2 * UNASKED_NS));
    // It may not have claimed the group again yet, or with the same backup before it knew.
    for holder in [claim, claimed(6, "c", Some("b")), claimed(4, "a", Some("b"))] {
        assert!(!backups.is_past(GROUP, &holder));
    }
    for holder in [claimed(6, "c", None), claimed(7, "c", Some("a"))] {
        assert!(backups.is_past(GROUP, &holder));
    }
    backups.arrived(wire, 1);
    assert!(backups.is_past(GROUP, &claimed(6, "c", None)));
    backups.join(GROUP, (wire, "c"), SESSION);
    assert!(!backups.is_past(GROUP, &claimed(6, "c", None)) && backups.invariants() == Ok(()));
}

#[test]
fn a_backup_whose_copies_have_all_ended_does_not_wait_for_an_heir() {
    let (claim, wire) = heir();
    for told_by in [None, Some(wire)] {
        let mut backups = asked();
        claims(&mut backups, 0);
        backups.leave(SESSION);
        assert!(backups.of_tag(9).is_some() && backups.invariants() == Ok(()));
        assert_eq!(backups.has_heir(0, GROUP, (&claim, told_by)), Some(Vec::new()));
        assert!(backups.get(GROUP).is_none() && backups.invariants() == Ok(()));
        assert_eq!(backups.announced(GROUP, wire, claim.clone()), []);
        assert!(!asks_now(&mut backups, 2 * UNASKED_NS), "it has no copy");
    }
}

#[test]
fn an_heir_that_does_not_know_that_it_was_refused_begins_no_other_feed() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    assert!(asks_now(&mut backups, UNASKED_NS));
    backups.announced(GROUP, wire, claim);
    backups.not_continued(UNASKED_NS, GROUP, wire);
    assert!(backups.is_refused(GROUP, wire) && !backups.is_refused(GROUP, WIRE));
    // A ping that was sent before that.
    backups.arrived(wire, UNASKED_NS);
    assert!(backups.is_refused(GROUP, wire) && backups.of_tag(9).is_some());
    backups.arrived(WIRE, 2 * UNASKED_NS);
    assert!(backups.is_refused(GROUP, wire));
    backups.arrived(wire, UNASKED_NS + 1);
    assert!(!backups.is_refused(GROUP, wire) && backups.of_tag(9).is_some());
    // It knows, and has claimed the group since.
    backups.join(GROUP, (wire, "c"), SESSION);
    assert!(backups.of_tag(9).is_none() && backups.may_confirm(GROUP, wire));
}

#[test]
fn what_a_refused_heir_ends_is_not_confirmed_when_its_group_is_won() {
    let (claim, wire) = heir();
    for breaks in [false, true] {
        let mut backups = told_by_store();
        assert!(asks_now(&mut backups, UNASKED_NS));
        backups.announced(GROUP, wire, claim.clone());
        backups.not_continued(0, GROUP, wire);
        if breaks {
            backups.lost(UNASKED_NS, wire);
            assert!(!backups.is_refused(GROUP, wire));
        }
        assert_eq!(backups.won(GROUP), [SESSION]);
        assert_eq!((backups.is_former(GROUP, wire), backups.may_confirm(GROUP, wire)), (!breaks, breaks));
        backups.arrived(wire, 1);
        assert!(!backups.is_former(GROUP, wire));
    }
}

#[test]
fn what_an_heir_does_not_go_on_with_is_awaited_no_more_under_its_next_claim_or_from_another_feed() {
    let (claim, wire) = heir();
    let mut backups = told_by_store();
    backups.announced(GROUP, wire, claim.clone());
    assert!(backups.is_awaited(SESSION));
    backups.announced(GROUP, wire, claim);
    assert!(backups.is_awaited(SESSION));
    backups.announced(GROUP, wire, claimed(7, "c", Some("b")));
    assert!(!backups.is_awaited(SESSION));

    let mut backups = told_by_store();
    let other = SessionId([2; 16]);
    backups.join(GROUP, (wire, "c"), other);
    assert!(!backups.is_awaited(SESSION) && backups.has(SESSION));
}
