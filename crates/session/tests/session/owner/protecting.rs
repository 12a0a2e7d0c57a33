//! Protection of a session whose app has none, while the session moves.

use crate::owner::bench::{Bench, CLIENT, SERVER, policy};
use marram_session::owner::OwnerPolicy;
use marram_wire::frame::{Keeps, Protected};

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
