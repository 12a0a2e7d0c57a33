//! Takeovers of sessions whose ends may have no room for a further checkpoint, and of sessions without an end.

use super::*;
use alloc::string::String;

/// Bytes of each checkpoint here, as `History::meta` says.
const SIZE: usize = 8;

/// The session goes on at a standby, and both ends keep the checkpoint with which it began, of `checkpoints_max` bytes at most.
fn taken_over(checkpoints_max: usize) -> Standby {
    let mut standby = fed_from_the_middle();
    let checkpoints = vec![standby.history.meta(3)];
    let says = |level: Says| Says {
        checkpoints: checkpoints.clone(),
        checkpoints_max: checkpoints_max as u64,
        ..level
    };
    standby.opens(&says(level(5, 4)), &says(silent(5)));
    assert!(standby.goes_on(), "{:?}", standby.out);
    standby
}

/// Every checkpoint that is asked for is sealed, and further ones are required; returns how many of them fitted, and why the session ended.
fn continues(standby: &mut Standby) -> (usize, Option<(Code, String)>) {
    let mut looked = 0;
    // Each kind of checkpoint is tried once.
    for _ in 0..8 {
        if let Some(over) = seal_all(standby, &mut looked) {
            return (announced(standby), Some(over));
        }
        standby.owner.require_checkpoint(&mut standby.out);
        standby.settle();
    }
    (announced(standby), None)
}

/// Seals every checkpoint that is asked for in the effects from `looked` on; returns why the session ended, if it did.
fn seal_all(standby: &mut Standby, looked: &mut usize) -> Option<(Code, String)> {
    while let Some(effect) = standby.out.get(*looked).cloned() {
        *looked += 1;
        match effect {
            OwnerEffect::Checkpoint(cell, header, _) => {
                let sealed = Bytes::from_static(&[0; SIZE]);
                standby.owner.checkpointed(NOW, cell, header.number, Ok(sealed), &mut standby.out);
                standby.settle();
            }
            OwnerEffect::Done(code, reason) => return Some((code, reason)),
            _ => {}
        }
    }
    None
}

/// Checkpoints of which the client's end was told.
fn announced(standby: &Standby) -> usize {
    standby.sent(Port::CLIENT).filter(|frame| matches!(frame, Frame::CheckpointBegin(_))).count()
}

#[test]
fn the_first_checkpoint_comes_some_time_after_the_takeover_or_when_it_is_required() {
    let copies = |standby: &Standby| {
        standby.out.iter().filter(|effect| matches!(effect, OwnerEffect::Copy(..))).count()
    };
    let mut standby = taken_over(100 * SIZE);
    let due_ns = standby.owner.due_ns().expect("one is due later");
    assert!(copies(&standby) == 0 && due_ns > NOW.mono_ns, "{:?}", standby.out);
    for (late_ns, expected) in [(0, 0), (1, 1)] {
        let now = Now { mono_ns: due_ns - 1 + late_ns, ..NOW };
        standby.owner.tick(now, &mut standby.out);
        assert_eq!(copies(&standby), expected);
    }
    assert_eq!(standby.owner.due_ns(), None);
    let mut standby = taken_over(100 * SIZE);
    standby.owner.require_checkpoint(&mut standby.out);
    assert_eq!(copies(&standby), 1);
}

#[test]
fn a_session_that_was_taken_over_ends_with_the_reason_where_no_checkpoint_fits() {
    let mut standby = taken_over(2 * SIZE - 1);
    let (announced, over) = continues(&mut standby);
    let (code, reason) = over.expect("no checkpoint will ever make room for what its ends keep");
    assert_eq!((announced, code), (0, Code::Guest));
    for part in ["was taken over, and no checkpoint can be taken", "room for 7 bytes", "limits.checkpoints"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    for port in [Port::CLIENT, Port::SERVER] {
        let told = |frame: &Frame| matches!(frame, Frame::Ended(it) if it.code == Code::Guest && it.reason == reason);
        assert!(standby.sent(port).any(told), "{port:?}: {:?}", standby.out);
    }
    let removed = standby.out.iter().any(|effect| matches!(effect, OwnerEffect::Remove(CELL)));
    assert!(removed, "{:?}", standby.out);
}

#[test]
fn it_ends_so_if_no_further_checkpoint_is_due() {
    let mut standby = taken_over(2 * SIZE - 1);
    standby.owner.require_checkpoint(&mut standby.out);
    standby.settle();
    let over = seal_all(&mut standby, &mut 0).map(|(code, _)| code);
    assert_eq!((announced(&standby), over), (0, Some(Code::Guest)));
}

#[test]
fn it_goes_on_where_one_fits_exactly() {
    assert_eq!(continues(&mut taken_over(2 * SIZE)), (1, None));
}

#[test]
fn a_feed_with_an_entry_of_an_absent_port_is_refused() {
    for (port, hot) in
        [(Port::CLIENT, false), (Port::CLIENT, true), (Port::SERVER, false), (Port::SERVER, true)]
    {
        let history = History::of(port, &SAID);
        // The session has no server.
        let keep = Keep { hosts: HOSTS[..1].to_vec(), took: vec![0], ..keep(&history, 0, hot) };
        let policy = OwnerPolicy { server: None, ..policy() };
        let owner = Owner::standby(keys(), policy, &keep, Seed([4; 32])).expect("it makes sense");
        let (out, consumed) = (Vec::new(), Vec::new());
        let standby =
            Standby { history, owner, out, done: 0, restoring: None, consumed, late: None }.fed(0..2);
        let refusal = "an entry is of a port that does not exist";
        let says = |effect: &&OwnerEffect| match effect {
            OwnerEffect::ToFeeder(Frame::Reject(it)) => it.code == Code::Protocol && it.reason == refusal,
            OwnerEffect::Done(code, reason) => *code == Code::Protocol && reason == refusal,
            _ => false,
        };
        let is_refused = port == Port::SERVER;
        let said = standby.out.iter().filter(says).count();
        assert_eq!(
            said,
            if is_refused { 2 } else { 0 },
            "its feeder and this shard: {port:?}: {:?}",
            standby.out
        );
        assert_eq!(standby.heard(), if hot && !is_refused { &SAID[..1] } else { &[] });
    }
}

#[test]
fn what_concerns_an_absent_port_changes_nothing() {
    let mut standby = taken_over(2 * SIZE);
    let before = standby.out.len();
    let ended = marram_wire::frame::Ended { channel: 1, code: Code::Guest, reason: String::new() };
    standby.say(Port(2), ended);
    standby.owner.unlinked(Port(2), &mut standby.out);
    assert_eq!(standby.out.len(), before, "{:?}", standby.out);
    assert!(standby.goes_on() && !standby.owner.incomplete());
}
