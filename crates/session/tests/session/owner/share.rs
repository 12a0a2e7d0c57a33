//! A share of the shard's memory: what an owner does with a small one.

use crate::owner::bench::{Bench, CLIENT, SERVER, charged, message, policy};
use marram_session::{
    end::Share,
    owner::{Owner, OwnerShare},
};
use marram_wire::limits::{ALLOWANCE_MIN, INPUT_WINDOW, INPUT_WINDOW_MIN, RETAINED_MIN, charge};

fn least() -> OwnerShare {
    OwnerShare::of(Share::of(0), 0)
}

fn credits(bench: &mut Bench) -> Vec<String> {
    bench.look().into_iter().filter(|line| line.contains("credit")).collect()
}

#[test]
fn a_new_generation_begins_with_the_window_of_the_share() {
    let mut bench = Bench::new(policy());
    bench.owner.share(OwnerShare::of(Share::of(u64::MAX), 100_000));
    bench.begin();
    let lines = bench.look();
    assert!(lines.contains(&"client: chosen 0..0 credit 100000".to_string()), "{lines:?}");
}

#[test]
fn a_smaller_window_holds_once_the_end_has_used_its_credit() {
    let mut bench = Bench::begun(policy());
    bench.owner.share(least());
    bench.consume(CLIENT, charged(INPUT_WINDOW - INPUT_WINDOW_MIN), 0);
    assert_eq!(credits(&mut bench), [""; 0], "the end has as much left");
    bench.consume(CLIENT, charged(INPUT_WINDOW_MIN), 0);
    assert_eq!(credits(&mut bench), [format!("client: credit {INPUT_WINDOW_MIN}")]);
    bench.owner.share(OwnerShare::largest());
    bench.consume(CLIENT, charged(charge(1)), 0);
    let rest = INPUT_WINDOW - INPUT_WINDOW_MIN + charge(1);
    assert_eq!(credits(&mut bench), [format!("client: credit {rest}")], "a larger one at once");
}

#[test]
fn the_cell_rests_while_more_than_the_share_is_not_acknowledged_and_goes_on_after_that() {
    let mut bench = Bench::begun(policy());
    bench.owner.share(least());
    for (sent, rests) in [(RETAINED_MIN, false), (charge(0), true)] {
        bench.say(CLIENT, "a");
        bench.ran_with(|ran| ran.outputs = vec![message(SERVER, charged(sent))]);
        bench.look();
        assert_eq!(bench.owner.is_slowed(), rests);
        bench.say(CLIENT, "b");
        assert_eq!(bench.run.is_none(), rests);
        if !rests {
            bench.ran(&[]);
        }
    }
    bench.credit(SERVER, 2, 0);
    assert!(bench.run.is_some() && !bench.owner.is_slowed(), "all of it is acknowledged");
}

#[test]
fn a_session_that_became_idle_takes_a_checkpoint_when_its_share_shrinks() {
    let mut bench = Bench::begun(policy());
    while bench.owner.log_bytes().1 < ALLOWANCE_MIN {
        bench.consume(CLIENT, "a", 0);
    }
    assert!(!bench.owner.is_checkpoint_under_way());
    bench.step(|owner, _, out| Owner::check_share(owner, out));
    assert!(!bench.owner.is_checkpoint_under_way(), "the share is large");
    bench.owner.share(least());
    bench.step(|owner, _, out| Owner::check_share(owner, out));
    assert!(bench.owner.is_checkpoint_under_way());
}
