//! A shared cell of which no copy is left: its edge and its backup lose power at once. If both come back, clients begin again in a new
//! cell; if they do not, an operator gives it up.

use super::{
    guests::finish,
    hall::{Hall, epochs},
    world::{Seen, World},
};
use crate::support::{self, stream::until};
use std::process::Output;

const EPOCH: &str = "every = \"1ms\"";

/// The power of the cell's edge and of its backup fails.
fn power_cut(hall: &mut Hall) -> [usize; 2] {
    let Seen { owner, backup, .. } = hall.backed();
    let both = [owner, backup.unwrap()];
    // Neither of them notices that the other one is gone.
    both.iter().rev().for_each(|edge| hall.world.cluster.edges[*edge].stop());
    both.iter().for_each(|edge| hall.world.cluster.edges[*edge].kill());
    both
}

/// All guests that are here are told that their sessions are over.
fn are_told(hall: &mut Hall) {
    for guest in core::mem::take(&mut hall.guests) {
        until(|| guest.error(), || hall.world.cluster.logs.tail(400));
    }
}

/// These edges say so often that a cell is lost; figures come a moment later than what they count.
fn say_lost<const N: usize>(world: &World, edges: [usize; N], counts: [u64; N]) {
    let said = || edges.map(|edge| world.counter(edge, "cells_lost_total"));
    until(|| (said() == counts).then_some(()), || format!("{:?}\n{}", said(), world.cluster.logs.tail(60)));
}

/// `marram coordinator give-up hall` at an edge, of the slot with this number if the app has keys. It is asked again while the coordinator
/// does not answer, as on a busy machine.
pub(super) fn give_up(world: &World, edge: usize, slot: Option<u32>, dead: &[String]) -> Output {
    let mut command = support::marram();
    command.args(["coordinator", "give-up", "hall"]);
    slot.iter().for_each(|slot| {
        command.args(["--slot", &slot.to_string()]);
    });
    dead.iter().for_each(|name| {
        command.args(["--dead", name]);
    });
    let at = format!("http://{}", world.cluster.edges[edge].admin());
    command.args(["--edge", &at]);
    let ask = || {
        let output = command.output().unwrap();
        let is_silent = String::from_utf8_lossy(&output.stderr).contains("the coordinator gave no answer");
        (!is_silent).then_some(output)
    };
    until(ask, || world.cluster.logs.tail(60))
}

#[test]
fn a_hall_whose_edges_lose_power_begins_again_without_an_operator() {
    const ROUNDS: usize = 2;
    let mut hall = Hall::new("hall-power", support::UNSUSPECTING, &epochs(EPOCH));
    for _ in 0..ROUNDS {
        hall.join(4);
        hall.hear();
        let both = power_cut(&mut hall);
        // A guest comes while no edge has the cell.
        let before = hall.guests.len();
        hall.join(1);
        let late = hall.guests.split_off(before);
        hall.world.cluster.power_on(&both).unwrap();
        are_told(&mut hall);
        hall.guests = late;
        hall.join(3);
        hall.hear();
        assert_eq!(hall.backed().owner, both[0]);
        say_lost(&hall.world, both, [1, 0]);
    }
    let Hall { world, guests, .. } = hall;
    finish(guests);
    drop(world);
}

#[test]
fn a_hall_whose_edges_do_not_come_back_is_given_up() {
    let mut hall = Hall::new("hall-given-up", support::UNSUSPECTING, &epochs(EPOCH));
    hall.join(4);
    hall.hear();
    let Seen { owner, backup, .. } = hall.backed();
    let other = (0..3).find(|edge| *edge != owner && Some(*edge) != backup).unwrap();
    let names = [owner, backup.unwrap()].map(|edge| hall.world.name(edge));
    let refused = give_up(&hall.world, other, None, &names[..1]);
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && errors.contains(&names[1]) && errors.contains("--dead"), "{errors}");
    hall.hear();

    power_cut(&mut hall);
    let given_up = give_up(&hall.world, other, None, &names);
    assert!(given_up.status.success(), "{given_up:?}");
    let text = String::from_utf8_lossy(&given_up.stdout);
    assert!(text.contains("is lost") && names.iter().all(|name| text.contains(name)), "{text}");
    are_told(&mut hall);
    hall.join(3);
    hall.hear();
    say_lost(&hall.world, [other], [1]);
    let cells = hall.world.marram(other, &["coordinator", "cells"]);
    assert!(cells.contains(&hall.world.name(other)) && cells.contains("there"), "{cells}");
    let again = give_up(&hall.world, other, None, &names);
    assert!(again.status.success(), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stdout).contains("nothing to give up"), "{again:?}");

    // The former edges come back, and have nothing to say.
    hall.world.cluster.power_on(&[owner, backup.unwrap()]).unwrap();
    hall.join(2);
    hall.hear();
    assert_eq!(hall.backed().owner, other);
    let Hall { world, guests, .. } = hall;
    finish(guests);
    drop(world);
}
