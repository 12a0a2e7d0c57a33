//! Plans of moves: what an operator is told must be what a move meets.

use crate::{
    agents::world::{World, app, client},
    moves::{self, there},
    recalls,
};
use marram_shard::{
    api::{
        App, Configure, Destination, FromShard, MovePlan, MoveWish, PlanMoves, Planned, Protect, ShardInput,
        ShardWireId, Tag, ToShard,
    },
    shard::PLAN_NS,
};
use marram_wire::{
    frame::{AskMove, CanMove, Code, Frame, Keep, Reject, Stored},
    id::{HostId, ImageHash},
};

fn ask(world: &mut World, wish: MoveWish) {
    world.shard(ShardInput::Control(ToShard::PlanMoves(PlanMoves { tag: 9, wish })));
}

/// The plans, once they are known.
fn plans(world: &mut World) -> Option<Vec<MovePlan>> {
    let found = world.control.iter().position(|message| matches!(message, FromShard::Planned(_)))?;
    match world.control.remove(found) {
        FromShard::Planned(Planned { tag: 9, plans, last: true }) => Some(plans),
        other => panic!("{other:?}"),
    }
}

/// About what the other edge is asked.
fn asked(world: &mut World, wire: ShardWireId) -> Vec<Keep> {
    let keep = |frame| match frame {
        Frame::AskMove(AskMove { keep }) => Some(keep),
        _ => None,
    };
    world.heard(wire).into_iter().filter_map(keep).collect()
}

/// Why the honest session would not move, as the plan says and as a move is refused.
fn refused(world: &mut World, wish: &MoveWish) -> String {
    ask(world, wish.clone());
    let session = world.session;
    let plans = plans(world).expect("this shard knows it");
    let plan = plans.into_iter().find(|plan| plan.session == session).expect("it is here");
    assert_eq!(moves::ask_for(world, session, wish.clone()), Err(plan.why.clone()));
    plan.why
}

#[test]
fn what_this_shard_refuses_is_refused_in_the_plan() {
    let mut world = World::new();
    let to = |to: &str| MoveWish::to(Destination::edge(to));
    assert!(refused(&mut world, &to("there")).contains("connected: none"));
    let wire = there(&mut world, 0, "there");
    assert!(refused(&mut world, &to("ther")).contains("connected: `there`"));
    assert!(refused(&mut world, &to("edge")).contains("on `edge` already"));
    // The app asks for a standby now, and there is no third edge.
    let hot = App { protect: Protect::Hot, ..app("web", Some("origin")) };
    world.shard(ShardInput::Control(ToShard::Deploy(hot)));
    assert!(refused(&mut world, &to("there")).contains("--force"));
    let session = world.session;
    assert_eq!(moves::ask_for(&mut world, session, MoveWish { force: true, ..to("there") }), Ok(()));
    assert!(refused(&mut world, &to("there")).contains("being moved to `there` already"));
    let third = there(&mut world, 1, "third");
    let replace = MoveWish { replace: true, ..to("third") };
    ask(&mut world, replace.clone());
    assert_eq!(asked(&mut world, third).len(), 1, "it is connected, and would replace the move");
    world.wait_ms(PLAN_NS / 1_000_000);
    assert!(plans(&mut world).is_some_and(|plans| plans[0].why.contains("did not answer in time")));
    let feed = moves::feed(&mut world, wire);
    let (keep, base) = (feed.keep.expect("a feed"), feed.base.expect("its base"));
    let stored = Stored { channel: keep.channel, bytes: feed.bytes, complete: Some(base.meta.number) };
    world.send(wire, stored);
    assert!(refused(&mut world, &replace).contains("handed over to `there` already"));
    world.unharmed();
}

#[test]
fn the_other_edge_has_the_last_word() {
    let mut world = World::new();
    let (wire, second) = (there(&mut world, 0, "there"), world.another(2));
    ask(&mut world, MoveWish::to(Destination::edge("there")));
    let keeps = asked(&mut world, wire);
    assert_eq!(keeps.len(), 2);
    assert!(keeps.iter().all(|keep| keep.moves && keep.hot && keep.app == "web" && keep.hosts.len() == 2));
    let reason = "the edge is shutting down".to_string();
    for Keep { channel, session, .. } in keeps {
        assert_eq!(plans(&mut world), None, "it has not said all");
        if session == second {
            world.send(wire, Reject { channel, code: Code::Busy, reason: reason.clone() });
        } else {
            world.send(wire, CanMove { channel });
        }
    }
    let whys: Vec<(bool, String)> = plans(&mut world)
        .expect("all is known")
        .into_iter()
        .map(|plan| (plan.session == second, plan.why))
        .collect();
    assert!(whys.contains(&(true, reason)) && whys.contains(&(false, String::new())), "{whys:?}");
    // Nothing was begun.
    assert!(world.rows().iter().all(|row| row.moving.is_none() && row.keepers.is_empty()));
    // An answer to nothing is ignored, and a wire that breaks is one.
    world.send(wire, CanMove { channel: 999 });
    ask(&mut world, MoveWish::to(Destination::edge("there")));
    world.shard(ShardInput::WireDown { wire });
    let plans = plans(&mut world).expect("all is known");
    assert!(plans.len() == 2 && plans.iter().all(|plan| plan.why.contains("connection to that edge broke")));
    world.unharmed();
}

fn rejected(heard: &[Frame]) -> Option<(Code, String)> {
    heard.iter().find_map(|frame| match frame {
        Frame::Reject(reject) => Some((reject.code, reject.reason.clone())),
        _ => None,
    })
}

#[test]
fn an_edge_that_is_asked_says_what_it_would_answer_to_the_move() {
    let mut world = World::new();
    let peer = recalls::peer(&mut world);
    world.heard(peer);
    let keep = |channel| Keep { hot: true, moves: true, ..recalls::keep(channel, 3) };
    let mut channel = 1;
    let mut both = |world: &mut World, change: &dyn Fn(Keep) -> Keep| {
        channel += 4;
        let sessions = world.rows().len();
        world.send(peer, AskMove { keep: change(keep(channel)) });
        let said = world.heard(peer);
        assert_eq!(world.rows().len(), sessions, "nothing is kept");
        world.send(peer, change(keep(channel + 2)));
        let did = rejected(&world.heard(peer));
        assert_eq!(rejected(&said), did);
        assert_eq!(did.is_none(), matches!(&said[..], [Frame::CanMove(_)]), "{said:?}");
        did.map(|(code, _)| code)
    };
    assert_eq!(both(&mut world, &|keep| keep), Some(Code::Waiting), "no agent is connected");
    world.rogue(1, 9, client(), &[]);
    assert_eq!(
        both(&mut world, &|keep| Keep { image: ImageHash([7; 32]), ..keep }),
        Some(Code::UnknownImage)
    );
    let two = |keep| Keep { hosts: vec![HostId([9; 16]); 2], took: vec![0; 2], ..keep };
    assert!(both(&mut world, &two).is_some(), "the app has one end here");
    let configure = |sessions_max| {
        let dials = vec!["peer:1".into()];
        Configure { edge: "here".into(), dials, sessions_max, ..Configure::default() }
    };
    world.shard(ShardInput::Control(ToShard::Configure(configure(1))));
    assert_eq!(both(&mut world, &|keep| keep), Some(Code::Busy), "it is full");
    world.shard(ShardInput::Control(ToShard::Configure(configure(0))));
    assert_eq!(both(&mut world, &|keep| keep), None);
    assert_eq!(both(&mut world, &|keep| keep), None, "its feed restarts");
    world.shard(ShardInput::Control(ToShard::Drain(Tag { tag: 1 })));
    world.heard(peer);
    assert_eq!(both(&mut world, &|keep| keep), Some(Code::Busy), "it stops");
    world.unharmed();
}
