//! Protection of a session whose app has none, while the session moves.

use crate::owner::bench::{Bench, CLIENT, SERVER, charged, policy};
use marram_session::{
    cell::CheckpointBase,
    owner::{Feed, KeeperId, OwnerPolicy},
};
use marram_wire::{
    frame::{Credit, Keeps, Protected},
    limits::FEED_WINDOW,
};

const KEEPER: KeeperId = KeeperId(7);

/// A move begins: the ends keep the session from here on, and say so.
fn begin(bench: &mut Bench) -> Vec<String> {
    bench.step(|owner, now, out| owner.begin_protection(now, out));
    let asked = bench.look();
    confirm(bench);
    asked
}

/// Both ends have what they were asked to keep.
fn confirm(bench: &mut Bench) {
    for port in [CLIENT, SERVER] {
        bench.frame(port, Protected { channel: port.0 + 1, sent_start: 0, received: 0 });
    }
}

/// The move is given up. Protection ends in a new generation, which the ends confirm.
fn end(bench: &mut Bench) -> Vec<String> {
    bench.step(|owner, _, out| owner.end_protection(out));
    bench.look()
}

#[test]
fn protection_ends_after_each_move_that_is_given_up_also_after_two_in_one_generation() {
    let mut bench = Bench::begun(OwnerPolicy { keeps: Keeps::Nothing, ..policy() });
    assert_eq!(begin(&mut bench), ["client: protect", "server: protect"]);
    assert_eq!(end(&mut bench), ["again 1"]);
    bench.open();
    bench.look();
    bench.kept.iter_mut().for_each(|kept| kept.live_at(0));
    bench.hand_over();
    bench.look();
    confirm(&mut bench);
    assert_eq!(bench.look(), ["client: unprotect", "server: unprotect"]);
    // A second move begins in that generation, and another edge is fed in it.
    assert_eq!(begin(&mut bench), ["client: protect", "server: protect"]);
    assert_eq!(end(&mut bench), ["again 2"]);
}

/// The edge to which the session moves has acknowledged all that it was fed.
fn acknowledge_all(bench: &mut Bench) {
    let behind = bench.owner.keepers().next().expect("it is fed").behind;
    let credit = Credit { channel: 15, received: 1, bytes: behind };
    bench.step(|owner, now, out| owner.from_keeper(now, KEEPER, credit.into(), out));
}

#[test]
fn ends_forget_what_the_next_edge_was_fed_also_while_its_copy_is_made() {
    let mut bench = Bench::begun(OwnerPolicy { keeps: Keeps::Nothing, ..policy() });
    begin(&mut bench);
    bench.step(|owner, _, out| owner.add_replica(KEEPER, 15, Feed::Moved, out));
    assert_eq!(bench.copied, Some(CheckpointBase::Image));
    let copied_at = bench.taken.as_ref().expect("it is sealed at once").log_offset;
    bench.look();
    bench.consume(CLIENT, charged(FEED_WINDOW / 8), 0);
    acknowledge_all(&mut bench);
    let lines = bench.look();
    let client: Vec<_> = lines.iter().filter(|line| line.starts_with("client: ")).collect();
    assert!(client.contains(&&format!("client: forget log {} sent 1", bench.log_end())), "{client:?}");
    assert!(bench.log_end() > copied_at);
    // What was fed follows the copy, wherever the ends' log begins.
    assert_eq!(bench.checkpointed(&b"apart"[..]), None);
    let lines = bench.look();
    let base = lines.iter().find(|line| line.starts_with("to keeper 7: Base")).expect("the copy is sent");
    assert!(base.contains(&format!("log_offset: {copied_at},")), "{base}");
}
