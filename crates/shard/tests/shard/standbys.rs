//! Moves to the edge that stands by for the session: it has what it needs already, or nearly so.

use crate::{
    agents::world::{World, app},
    moves::{Feed, ask, ask_for, cancel, feed, feeds, over, stores, there},
};
use marram_shard::api::{
    App, FromShard, KeeperKind, MovePlan, MoveStage, MoveWish, PlanMoves, Planned, Protect, ShardInput,
    ShardWireId, ToShard,
};
use marram_wire::{
    frame::{CanMove, Code, Frame, Reject},
    id::Generation,
};

/// How long the standby may take to be handed the session, before it gets a copy.
const STANDBY_MS: u64 = 5_000;

/// The honest session, with its standby, and the beginning of the feed of that.
struct Kept {
    world: World,
    standby: ShardWireId,
    name: &'static str,
    feed: Feed,
}

/// The session's app asks for a standby. Two edges are connected, of which one stands by.
fn kept(protect: Protect) -> Kept {
    let mut world = World::new();
    let wires = [("a", there(&mut world, 0, "a")), ("b", there(&mut world, 1, "b"))];
    world.shard(ShardInput::Control(ToShard::Deploy(App { protect, ..app("web", Some("origin")) })));
    let is_fed = |world: &World, wire| {
        let is_keep = |(to, frame): &(ShardWireId, Frame)| *to == wire && matches!(frame, Frame::Keep(_));
        world.told.iter().any(is_keep)
    };
    let (name, standby) = wires.into_iter().find(|(_, wire)| is_fed(&world, *wire)).expect("a standby");
    let feed = feed(&mut world, standby);
    let hot = protect == Protect::Hot;
    assert!(feed.keep.as_ref().is_some_and(|keep| keep.hot == hot && !keep.moves), "{feed:?}");
    Kept { world, standby, name, feed }
}

impl Kept {
    /// It has the checkpoint with which it began.
    fn stored(mut self) -> Self {
        stores(&mut self.world, self.standby, &self.feed);
        self.world.unharmed();
        feeds(&mut self.world, self.standby);
        self
    }

    /// An operator asks to move the session to its standby.
    fn moves(&mut self) -> Result<(), String> {
        let session = self.world.session;
        ask(&mut self.world, session, self.name)
    }

    fn asks_for(&mut self, wish: MoveWish) -> Result<(), String> {
        let session = self.world.session;
        ask_for(&mut self.world, session, wish)
    }

    fn cancels(&mut self) -> Result<(), String> {
        let session = self.world.session;
        cancel(&mut self.world, session)
    }

    /// How far the move is, and what the standby is.
    fn row(&mut self) -> (Option<MoveStage>, Vec<KeeperKind>) {
        let session = self.world.session;
        let row = self.world.rows().into_iter().find(|row| row.session == session).expect("it is here");
        (row.moving.map(|moving| moving.stage), row.keepers.iter().map(|keeper| keeper.kind).collect())
    }

    /// What its feed has got since the last look.
    fn fed(&mut self) -> Feed {
        let mut feeds = feeds(&mut self.world, self.standby);
        assert!(feeds.len() <= 1, "{feeds:?}");
        feeds.pop().unwrap_or_default()
    }

    /// What control was told since the last look: whether an edge could take over.
    fn listed(&mut self) -> Vec<bool> {
        let listed = self.world.control.extract_if(.., |message| matches!(message, FromShard::Placed(_)));
        let at = listed.filter_map(|message| match message {
            FromShard::Placed(placed) => Some(placed.at.is_some()),
            _ => None,
        });
        at.collect()
    }
}

#[test]
fn a_session_moves_to_its_standby_with_what_that_has() {
    for protect in [Protect::Warm, Protect::Hot] {
        let mut kept = kept(protect).stored();
        assert_eq!(kept.listed(), [true]);
        assert_eq!(kept.moves(), Ok(()));
        let told = kept.fed();
        assert!(told.handed_over.is_some(), "{told:?}");
        assert!(
            told.keep.is_none() && told.base.is_none() && told.ended.is_none() && told.bytes == 0,
            "{told:?}"
        );
        assert_eq!(kept.row(), (Some(MoveStage::HandedOver), vec![KeeperKind::Moving]));
        // The session goes on here, and the feed too; and the edge stands by as before.
        kept.world.unharmed();
        assert_eq!(kept.listed(), []);
        let session = kept.world.session;
        kept.world.superseded(Generation { count: 50, opener: 1 });
        assert_eq!(over(&mut kept.world), [(session, kept.name.into(), String::new())]);
    }
}

#[test]
fn a_session_whose_standby_has_not_stored_its_checkpoint_moves_once_it_has() {
    let mut kept = kept(Protect::Warm);
    assert_eq!(kept.moves(), Ok(()));
    kept.world.unharmed();
    assert!(kept.fed().handed_over.is_none());
    assert_eq!(kept.row(), (Some(MoveStage::Copying), vec![KeeperKind::Moving]));
    stores(&mut kept.world, kept.standby, &kept.feed);
    assert!(kept.fed().handed_over.is_some());
    assert_eq!(kept.row().0, Some(MoveStage::HandedOver));
}

#[test]
fn a_standby_stays_one_if_the_session_stays() {
    for (protect, kind) in [(Protect::Warm, KeeperKind::Warm), (Protect::Hot, KeeperKind::Hot)] {
        let mut kept = kept(protect);
        assert_eq!(kept.moves(), Ok(()));
        assert_eq!(kept.row(), (Some(MoveStage::Copying), vec![KeeperKind::Moving]));
        assert_eq!(kept.cancels(), Ok(()));
        kept.world.unharmed();
        assert_eq!(kept.row(), (None, vec![kind]));
        let told = kept.fed();
        assert!(told.keep.is_none() && told.ended.is_none(), "the feed goes on: {told:?}");
        // The same if the session moves to another edge instead: it has both then.
        kept.world.wait_ms(20);
        assert_eq!(kept.moves(), Ok(()));
        let other = if kept.name == "a" { "b" } else { "a" };
        let wish = MoveWish { replace: true, ..MoveWish::to(other.parse().expect("an edge")) };
        assert_eq!(kept.asks_for(wish), Ok(()));
        kept.world.wait_ms(20);
        let (_, mut kinds) = kept.row();
        kinds.sort_by_key(|kind| *kind == KeeperKind::Moving);
        assert_eq!(kinds, [kind, KeeperKind::Moving]);
        assert!(kept.fed().ended.is_none());
    }
}

#[test]
fn a_standby_that_was_told_to_take_the_session_over_and_did_not_begins_again() {
    let mut kept = kept(Protect::Warm).stored();
    assert_eq!(kept.moves(), Ok(()));
    assert!(kept.fed().handed_over.is_some());
    let session = kept.world.session;
    kept.world.wait_ms(5_000);
    // What has arrived meanwhile is read first.
    kept.world.wait_ms(1_000);
    let results = over(&mut kept.world);
    assert!(
        matches!(&results[..], [(_, _, why)] if why.contains("did not take the session over")),
        "{results:?}"
    );
    let told = feeds(&mut kept.world, kept.standby);
    assert!(told.iter().any(|feed| feed.ended.is_some()), "it replays, and holds no more: {told:?}");
    let keeps = told.iter().filter_map(|feed| feed.keep.as_ref());
    assert_eq!(keeps.map(|keep| (keep.session, keep.hot)).collect::<Vec<_>>(), [(session, false)]);
    // One that refuses is asked again later.
    kept.world.unharmed();
    assert_eq!(kept.row(), (None, vec![KeeperKind::Warm]));
}

#[test]
fn a_standby_that_refuses_to_take_the_session_over_is_asked_again_as_a_standby() {
    let mut kept = kept(Protect::Warm).stored();
    assert_eq!(kept.moves(), Ok(()));
    let channel = kept.fed().handed_over.expect("it is handed over").channel;
    let reason = "the agent of the session's client is not connected".to_string();
    kept.world.send(kept.standby, Reject { channel, code: Code::Waiting, reason: reason.clone() });
    assert_eq!(over(&mut kept.world), [(kept.world.session, kept.name.into(), reason)]);
    assert_eq!(kept.row(), (None, Vec::new()));
    kept.world.wait_ms(200);
    assert_eq!(kept.row(), (None, vec![KeeperKind::Warm]));
    kept.world.unharmed();
}

#[test]
fn a_standby_that_does_not_get_so_far_is_sent_a_copy() {
    let mut kept = kept(Protect::Warm);
    assert_eq!(kept.moves(), Ok(()));
    kept.world.wait_ms(STANDBY_MS - 1);
    assert!(kept.fed().keep.is_none());
    kept.world.wait_ms(1);
    assert_eq!(over(&mut kept.world), [], "the session still moves");
    let mut told = feeds(&mut kept.world, kept.standby);
    assert!(told.iter().any(|feed| feed.ended.is_some()), "{told:?}");
    let copy = |feed: &Feed| feed.keep.as_ref().is_some_and(|keep| keep.moves && keep.hot);
    let at = told.iter().position(copy).expect("another feed");
    let mut copy = told.swap_remove(at);
    for _ in 0..100 {
        if copy.base.is_some() {
            break;
        }
        kept.world.unharmed();
        feeds(&mut kept.world, kept.standby).into_iter().for_each(|more| {
            copy.base = more.base.or(copy.base.take());
            copy.bytes += more.bytes;
        });
    }
    stores(&mut kept.world, kept.standby, &copy);
    assert!(kept.fed().handed_over.is_some());
    assert_eq!(kept.row(), (Some(MoveStage::HandedOver), vec![KeeperKind::Moving]));
}

#[test]
fn a_plan_says_that_nothing_is_copied_to_a_standby() {
    let bytes = |kept: &mut Kept| {
        let wish = MoveWish::to(kept.name.parse().expect("an edge"));
        kept.world.shard(ShardInput::Control(ToShard::PlanMoves(PlanMoves { tag: 9, wish })));
        let asked = kept.world.heard(kept.standby).into_iter().find_map(|frame| match frame {
            Frame::AskMove(asked) => Some(asked.keep.channel),
            _ => None,
        });
        kept.world.send(kept.standby, CanMove { channel: asked.expect("it is asked") });
        let planned = kept.world.control.drain(..).find_map(|message| match message {
            FromShard::Planned(Planned { plans, .. }) => Some(plans),
            _ => None,
        });
        let [MovePlan { bytes, .. }] = &planned.expect("a plan")[..] else { panic!("of one session") };
        *bytes
    };
    let mut kept = kept(Protect::Warm);
    assert_ne!(bytes(&mut kept), Some(0));
    let mut kept = kept.stored();
    assert_eq!(bytes(&mut kept), Some(0));
}
