//! Elastic chords: an operator moves a cell of a slot that moves to an edge which has joined.

use super::{
    backups::{all_hear, running, say},
    moves::number,
    rebalance::{LATE, SETTLE_MS, moved, rebalance},
    rebalance_slots::{all_talk, belonging, is_at, places, until_a_pass_begins, without_one},
    world::{LONG_MS, World},
};
use marram_session::owner::BackupForm;
use marram_shard::api::{Destination, MoveSession, MoveWish, ToShard};
use marram_wire::{frame::GroupId, id::SessionId, limits::PART_SIZE};

/// A slot with several cells moves to the edge that has joined: the clients, the slot's group, where its cells are, the one that has the move,
/// and another one.
fn moving(is_slow: bool) -> (World, Vec<usize>, (GroupId, usize), [SessionId; 2]) {
    let (mut world, clients) = without_one(BackupForm::Log, rebalance(1_000));
    if is_slow {
        world.copy_size = 100 * PART_SIZE;
        (0..LATE).for_each(|edge| world.limits_moves(edge, PART_SIZE as u64));
    }
    let belong = belonging(&places(&world));
    world.restarts(LATE);
    world.runs(SETTLE_MS - 100);
    until_a_pass_begins(&mut world);
    for _ in 0..10_000 {
        let found = belong.iter().find_map(|name| {
            let at = number(&places(&world)[name].0);
            let (_, mut moving) = world.shard(at).rebalancing()?;
            let mut cells: Vec<SessionId> = {
                let in_it = world.shard(at).owners().filter(|owner| owner.group() == Some(*name));
                in_it.map(|owner| owner.session()).collect()
            };
            let leader = moving.find(|cell| cells.contains(cell))?;
            cells.retain(|cell| *cell != leader);
            Some(((*name, at), [leader, *cells.first()?]))
        });
        if let Some((slot, cells)) = found {
            return (world, clients, slot, cells);
        }
        world.steps(1);
    }
    panic!("no slot with two cells moves: {:?}", world.notes);
}

/// An edge that is neither the primary of a slot nor its backup, nor has joined.
fn elsewhere(world: &World, name: &GroupId) -> usize {
    let (primary, backup) = places(world)[name].clone();
    let backup = backup.expect("it has a backup");
    (0..LATE).find(|edge| ![number(&primary), number(&backup)].contains(edge)).expect("there are three")
}

#[test]
fn a_slot_goes_where_an_operator_moves_one_of_its_cells_whichever_has_the_move() {
    for which in 0..2 {
        let (mut world, clients, (name, at), cells) = moving(true);
        let (to, count) = (elsewhere(&world, &name), moved(&world));
        world.runs(500);
        (0..LATE).for_each(|edge| world.limits_moves(edge, 0));
        world.moves.clear();
        world.moves_session(cells[which], at, &format!("e{to}"));
        world.runs(3 * SETTLE_MS);
        all_talk(&mut world, &clients, "moved");
        assert!(is_at(&places(&world), &name, to), "{which}: {:?}: {:?}", world.moves, world.notes);
        // The pass knows that it was not its own move, and the others have moved.
        assert!(world.notes.iter().any(|note| note.contains("1 have ended or went elsewhere")), "{which}");
        assert!(moved(&world) > count, "{which}: {:?}", world.notes);
    }
}

/// The cells that an edge runs.
fn cells_of(world: &World, edge: usize) -> Vec<SessionId> {
    world.shard(edge).owners().map(|owner| owner.session()).collect()
}

fn asks(world: &mut World, session: SessionId, from: usize, wish: MoveWish) {
    world.moves.clear();
    world.control(from, ToShard::Move(MoveSession { tag: 1, session, wish }));
}

#[test]
fn an_operator_is_told_to_try_again_if_the_cells_of_a_slot_are_handed_over() {
    let (mut world, [at, backup, third], clients) = running(BackupForm::Log);
    world.moves(at, &format!("e{third}"));
    while world.feeds.handed == 0 {
        world.steps(1);
    }
    world.freezes(third);
    for cell in cells_of(&world, at) {
        let wish = MoveWish { replace: true, backup: true, ..MoveWish::to(Destination::edge("e9")) };
        asks(&mut world, cell, at, wish);
        world.settles_some(20);
        let is_it = |why: &String| {
            why.contains(&format!("handed over to `e{third}` already: try again when that is over"))
        };
        assert!(world.moves.iter().any(is_it), "e{backup} stays: {:?}", world.moves);
    }
    world.thaws(third);
    say(&mut world, &clients, "after");
    world.runs(2 * LONG_MS);
    all_hear(&world, &clients, &["after"], "tried");
}

#[test]
fn an_operator_is_told_which_cell_of_a_slot_another_one_moves() {
    for (moves_backup, moved) in [(false, "the cell's slot"), (true, "the backup of the cell's slot")] {
        let (mut world, [at, _, third], _) = running(BackupForm::Log);
        world.copy_size = 100 * PART_SIZE;
        world.limits_moves(at, PART_SIZE as u64);
        let [first, second] = cells_of(&world, at)[..] else { panic!("there are two") };
        let to =
            || MoveWish { backup: moves_backup, ..MoveWish::to(Destination::edge(&format!("e{third}"))) };
        asks(&mut world, first, at, to());
        world.runs(100);
        asks(&mut world, second, at, to());
        world.runs(100);
        let why = format!(
            "{moved} is being moved to `e{third}` already, with the cell {first}: cancel that move first, or try again when it is over"
        );
        assert_eq!(world.moves, [why], "{:?}", world.notes);
    }
}
