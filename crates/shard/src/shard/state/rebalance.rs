//! Passes that move sessions onto an edge which has joined: when one begins, which session is next, and when it is over.
//!
//! ```text
//! connected --- settles ---> pass: one session after the other, limited in rate ---> over
//!     '--- lost ---> away for a moment: settles again; for longer: joins as one that was never seen
//! ```
//! Which sessions belong at the edge, and how they get there, is not here.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
};
use marram_session::{holds, invariant::BrokenInvariant};
use marram_wire::{frame::GroupId, id::SessionId};

const SECOND_NS: u64 = 1_000_000_000;
/// A session that cannot move is tried so often in one pass.
pub const TRIES_MAX: u8 = 9;
/// The wait behind the first try that failed; it doubles with each.
const AGAIN_NS: u64 = SECOND_NS / 10;
/// The move of a slot that began and failed counts for so many tries: its cells may have stood still meanwhile, or have lost their backup.
const TRIES_OF_SLOT: u8 = 3;

/// What moves at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum PassItem {
    /// A session with a cell of its own.
    Session(SessionId),
    /// All shared cells of the slot that has this group. One of them has the move.
    Slot(GroupId),
}

/// An edge that is connected, or was a moment ago.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When it was connected or lost last.
    since_ns: u64,
    connected: bool,
    /// Whether sessions are to be moved onto it, which has not been done or was not finished.
    joins: bool,
}

/// What came of the sessions of a pass. A slot counts as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PassTally {
    /// Those that belonged at the edge when it began.
    pub(crate) planned: u64,
    /// Those that have moved there.
    pub(crate) moved: u64,
    /// Those that could not be moved, however often it was tried.
    pub(crate) stayed: u64,
    /// Those that ended meanwhile, or that an operator or another policy sent elsewhere.
    pub(crate) left: u64,
}

/// The sessions and slots that move onto one edge.
#[derive(Debug)]
struct Pass {
    edge: String,
    begun_ns: u64,
    /// When each is tried, and how often it was.
    waiting: BTreeSet<(u64, PassItem, u8)>,
    /// Those that are being moved, by the session that has the move, and how often each was tried before.
    moving: BTreeMap<SessionId, (PassItem, u8)>,
    /// When the limit allows the next one.
    next_ns: u64,
    tally: PassTally,
}

/// A pass that is over.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct PassOver {
    pub(crate) edge: String,
    /// How long it took.
    pub(crate) ns: u64,
    pub(crate) tally: PassTally,
}

/// The edges that join, and the pass that is under way. There is one at a time.
#[derive(Debug, Default)]
pub(crate) struct Rebalance {
    /// How long an edge must be connected before anything moves onto it.
    settle_ns: u64,
    edges: BTreeMap<String, Seen>,
    pass: Option<Pass>,
}

impl Rebalance {
    /// An edge must be connected for so long before anything moves onto it.
    pub(crate) fn settle_after(&mut self, settle_ns: u64) {
        self.settle_ns = settle_ns;
    }

    /// These other edges are connected now. One that comes while this shard has no session does not join: it may be this shard that has come.
    /// Returns the pass that ends, since its edge is not connected.
    pub(crate) fn connected(
        &mut self,
        now_ns: u64,
        names: &BTreeSet<&str>,
        has_sessions: bool,
    ) -> Option<PassOver> {
        let settle_ns = self.settle_ns;
        for (name, seen) in &mut self.edges {
            let connected = names.contains(name.as_str());
            if connected != seen.connected {
                // One that was away for longer is new.
                seen.joins |= connected && now_ns.saturating_sub(seen.since_ns) > settle_ns;
                (seen.connected, seen.since_ns) = (connected, now_ns);
            }
        }
        self.edges.retain(|_, seen| seen.connected || now_ns.saturating_sub(seen.since_ns) <= settle_ns);
        for name in names {
            if !self.edges.contains_key(*name) {
                self.edges.insert(
                    (*name).to_string(),
                    Seen { since_ns: now_ns, connected: true, joins: has_sessions },
                );
            }
        }
        let is_lost = |pass: &Pass| !self.edges.get(&pass.edge).is_some_and(|seen| seen.connected);
        if self.pass.as_ref().is_some_and(is_lost) { self.stop(now_ns) } else { None }
    }

    /// The edge onto which sessions are to be moved now, if no pass is under way: that of the first name.
    pub(crate) fn settled(&self, now_ns: u64) -> Option<&str> {
        let is_settled = |seen: &Seen| seen.settled_ns(self.settle_ns).is_some_and(|at_ns| at_ns <= now_ns);
        let mut settled = self.edges.iter().filter(|(_, seen)| is_settled(seen));
        settled.next().filter(|_| self.pass.is_none()).map(|(name, _)| name.as_str())
    }

    /// A pass begins with what belongs at this edge. The edge has joined: whatever comes of the pass, only its loss begins another one.
    pub(crate) fn begin_pass(&mut self, now_ns: u64, edge: &str, belong: BTreeSet<PassItem>) {
        if let Some(seen) = self.edges.get_mut(edge) {
            seen.joins = false;
        }
        if belong.is_empty() {
            return;
        }
        let tally = PassTally { planned: belong.len() as u64, ..PassTally::default() };
        let waiting = belong.into_iter().map(|item| (now_ns, item, 0)).collect();
        self.pass = Some(Pass {
            edge: edge.to_string(),
            begun_ns: now_ns,
            waiting,
            moving: BTreeMap::new(),
            next_ns: now_ns,
            tally,
        });
    }

    /// The edge of the pass that is under way.
    pub(crate) fn edge(&self) -> Option<&str> {
        self.pass.as_ref().map(|pass| pass.edge.as_str())
    }

    /// The edge of the pass that is under way, its sessions, and how many of them it has not done with.
    pub(crate) fn progress(&self) -> Option<(&str, usize, usize)> {
        let pass = self.pass.as_ref()?;
        let planned = usize::try_from(pass.tally.planned).unwrap_or(usize::MAX);
        Some((&pass.edge, planned, pass.waiting.len() + pass.moving.len()))
    }

    /// When the pass that is under way began, and the sessions that it moves now, for inspection.
    pub(crate) fn moving(&self) -> Option<(u64, impl Iterator<Item = SessionId>)> {
        self.pass.as_ref().map(|pass| (pass.begun_ns, pass.moving.keys().copied()))
    }

    /// What is tried next, if it is time. It must be `began`, `failed` or `skipped` then.
    pub(crate) fn next(&self, now_ns: u64) -> Option<PassItem> {
        let pass = self.pass.as_ref()?;
        let (at_ns, item, _) = pass.waiting.first()?;
        ((*at_ns).max(pass.next_ns) <= now_ns).then_some(*item)
    }

    /// What was next moves, with the move of this session. Its policy allows so many in a second: the next one waits for as long as that takes.
    pub(crate) fn began(&mut self, now_ns: u64, session: SessionId, per_s: u32) {
        let Some(pass) = &mut self.pass else { return };
        let Some((_, item, tries)) = pass.waiting.pop_first() else { return };
        pass.moving.insert(session, (item, tries));
        pass.next_ns = now_ns.saturating_add(SECOND_NS / u64::from(per_s.max(1)));
    }

    /// What was next cannot move now.
    pub(crate) fn failed(&mut self, now_ns: u64) {
        let Some(pass) = &mut self.pass else { return };
        if let Some((_, item, tries)) = pass.waiting.pop_first() {
            pass.again(now_ns, item, tries + 1);
        }
    }

    /// What was next belongs at the edge no more, or moves already.
    pub(crate) fn skipped(&mut self) {
        let Some(pass) = &mut self.pass else { return };
        pass.waiting.pop_first();
        pass.tally.left += 1;
    }

    /// Whether a session is being moved by the pass.
    pub(crate) fn moves(&self, session: SessionId) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.moving.contains_key(&session))
    }

    /// The move that this session has is over: it has moved, or stays.
    pub(crate) fn over(&mut self, now_ns: u64, session: SessionId, has_moved: bool) {
        let Some(pass) = &mut self.pass else { return };
        match pass.moving.remove(&session) {
            Some(_) if has_moved => pass.tally.moved += 1,
            Some((item @ PassItem::Session(_), tries)) => pass.again(now_ns, item, tries + 1),
            Some((item @ PassItem::Slot(_), tries)) => pass.again(now_ns, item, tries + TRIES_OF_SLOT),
            None => {}
        }
    }

    /// An operator decides where a session goes that is being moved.
    pub(crate) fn left_to_others(&mut self, session: SessionId) {
        let Some(pass) = &mut self.pass else { return };
        pass.tally.left += u64::from(pass.moving.remove(&session).is_some());
    }

    /// An operator decides where a slot goes that is to be tried again.
    pub(crate) fn leave_slot(&mut self, name: GroupId) {
        let Some(pass) = &mut self.pass else { return };
        let waited = pass.waiting.len();
        pass.waiting.retain(|(_, item, _)| *item != PassItem::Slot(name));
        pass.tally.left += (waited - pass.waiting.len()) as u64;
    }

    /// The pass that has come to its end.
    pub(crate) fn finished(&mut self, now_ns: u64) -> Option<PassOver> {
        let is_over = |pass: &mut Pass| pass.waiting.is_empty() && pass.moving.is_empty();
        self.pass.take_if(is_over).map(|pass| pass.over(now_ns))
    }

    /// The pass ends before its end. If its edge is lost, it begins again when that is back.
    pub(crate) fn stop(&mut self, now_ns: u64) -> Option<PassOver> {
        let pass = self.pass.take()?;
        if let Some(seen) = self.edges.get_mut(&pass.edge) {
            seen.joins = true;
        }
        Some(pass.over(now_ns))
    }

    /// When something is due, if there is `room` for another move.
    pub(crate) fn due_ns(&self, room: bool) -> Option<u64> {
        match &self.pass {
            Some(pass) => pass.waiting.first().filter(|_| room).map(|(at_ns, ..)| (*at_ns).max(pass.next_ns)),
            None => self.edges.values().filter_map(|seen| seen.settled_ns(self.settle_ns)).min(),
        }
    }

    /// Checks I47 of docs/protocol.md, as far as it concerns sessions that a pass moves: each of them moves.
    pub(crate) fn invariants(&self, moves: impl Fn(SessionId) -> bool) -> Result<(), BrokenInvariant> {
        let Some(pass) = &self.pass else { return Ok(()) };
        holds!("I47", pass.moving.keys().all(|session| moves(*session)));
        let PassTally { planned, moved, stayed, left } = pass.tally;
        let open = (pass.waiting.len() + pass.moving.len()) as u64;
        holds!("I47", planned == moved + stayed + left + open);
        Ok(())
    }
}

impl Seen {
    /// When sessions may be moved onto it, if any are to be.
    fn settled_ns(&self, settle_ns: u64) -> Option<u64> {
        (self.connected && self.joins).then(|| self.since_ns.saturating_add(settle_ns))
    }
}

impl Pass {
    /// It has not moved, and was tried so often by now.
    fn again(&mut self, now_ns: u64, item: PassItem, tries: u8) {
        if tries >= TRIES_MAX {
            self.tally.stayed += 1;
        } else {
            let wait_ns = AGAIN_NS << (tries - 1);
            self.waiting.insert((now_ns.saturating_add(wait_ns), item, tries));
        }
    }

    fn over(self, now_ns: u64) -> PassOver {
        PassOver { edge: self.edge, ns: now_ns.saturating_sub(self.begun_ns), tally: self.tally }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLE_NS: u64 = 5 * SECOND_NS;
    const LATER_NS: u64 = 100 * SECOND_NS;

    fn sessions(count: u8) -> BTreeSet<PassItem> {
        (0..count).map(|number| PassItem::Session(session(number))).collect()
    }

    fn session(number: u8) -> SessionId {
        SessionId([number; 16])
    }

    /// The session that is to move next.
    fn next(rebalance: &Rebalance, now_ns: u64) -> SessionId {
        match rebalance.next(now_ns).expect("it is time") {
            PassItem::Session(session) => session,
            PassItem::Slot(_) => panic!("there are no slots"),
        }
    }

    /// A shard that has sessions, and these edges connected at `LATER_NS`.
    fn with(names: &[&str]) -> Rebalance {
        let mut rebalance = Rebalance::default();
        rebalance.settle_after(SETTLE_NS);
        connect(&mut rebalance, LATER_NS, names);
        rebalance
    }

    fn connect(rebalance: &mut Rebalance, now_ns: u64, names: &[&str]) -> Option<PassOver> {
        rebalance.connected(now_ns, &names.iter().copied().collect(), true)
    }

    #[test]
    fn an_edge_that_comes_has_joined_once_it_has_stayed() {
        let rebalance = with(&["a"]);
        assert_eq!(rebalance.due_ns(true), Some(LATER_NS + SETTLE_NS));
        assert_eq!(rebalance.settled(LATER_NS + SETTLE_NS - 1), None);
        assert_eq!(rebalance.settled(LATER_NS + SETTLE_NS), Some("a"));
    }

    #[test]
    fn those_that_come_before_a_shard_has_sessions_do_not_join() {
        let mut rebalance = Rebalance::default();
        rebalance.settle_after(SETTLE_NS);
        rebalance.connected(LATER_NS, &["a"].into(), false);
        rebalance.connected(LATER_NS + 1, &["a", "b"].into(), true);
        assert_eq!(rebalance.settled(LATER_NS + 1 + SETTLE_NS), Some("b"));
        rebalance.begin_pass(LATER_NS + 1 + SETTLE_NS, "b", BTreeSet::new());
        assert_eq!(rebalance.due_ns(true), None);
    }

    #[test]
    fn a_wire_that_breaks_for_a_moment_begins_nothing() {
        let mut rebalance = with(&["a"]);
        rebalance.begin_pass(LATER_NS + SETTLE_NS, "a", BTreeSet::new());
        let mut now_ns = 2 * LATER_NS;
        for _ in 0..3 {
            connect(&mut rebalance, now_ns, &[]);
            connect(&mut rebalance, now_ns + SETTLE_NS, &["a"]);
            assert_eq!(rebalance.due_ns(true), None);
            now_ns += 2 * SETTLE_NS;
        }
        // Away for longer, it may have restarted.
        connect(&mut rebalance, now_ns, &[]);
        connect(&mut rebalance, now_ns + SETTLE_NS + 1, &["a"]);
        assert_eq!(rebalance.due_ns(true), Some(now_ns + 2 * SETTLE_NS + 1));
    }

    #[test]
    fn an_edge_that_comes_and_goes_settles_each_time() {
        let mut rebalance = with(&["a"]);
        let mut now_ns = LATER_NS;
        for _ in 0..5 {
            connect(&mut rebalance, now_ns + 1, &[]);
            now_ns += SETTLE_NS / 2;
            connect(&mut rebalance, now_ns, &["a"]);
            assert_eq!(rebalance.due_ns(true), Some(now_ns + SETTLE_NS));
        }
        assert_eq!(rebalance.settled(now_ns + SETTLE_NS), Some("a"));
    }

    #[test]
    fn no_more_move_in_a_second_than_the_limit_says() {
        for per_s in [1, 7, 1_000] {
            let mut rebalance = with(&["a"]);
            rebalance.begin_pass(LATER_NS, "a", sessions(40));
            let (mut now_ns, mut begun) = (LATER_NS, alloc::vec::Vec::new());
            while let Some(due_ns) = rebalance.due_ns(true) {
                now_ns = now_ns.max(due_ns);
                let session = next(&rebalance, now_ns);
                begun.push(now_ns);
                rebalance.began(now_ns, session, per_s);
                rebalance.over(now_ns, session, true);
            }
            assert_eq!(begun.len(), 40);
            let in_a_second =
                |from: &u64| begun.iter().filter(|at_ns| (*from..from + SECOND_NS).contains(*at_ns)).count();
            // A second has parts that are not whole nanoseconds.
            assert!(begun.iter().all(|from| in_a_second(from) <= per_s as usize + 1), "{per_s}: {begun:?}");
            let over = rebalance.finished(now_ns).expect("all have moved");
            assert_eq!(over.tally, PassTally { planned: 40, moved: 40, ..PassTally::default() });
        }
    }

    #[test]
    fn one_that_cannot_move_is_tried_a_few_times_and_holds_up_no_other() {
        let mut rebalance = with(&["a"]);
        rebalance.begin_pass(LATER_NS, "a", sessions(3));
        let stuck = session(0);
        let (mut now_ns, mut tries, mut moved_ns) = (LATER_NS, 0, LATER_NS);
        while let Some(due_ns) = rebalance.due_ns(true) {
            now_ns = now_ns.max(due_ns);
            let session = next(&rebalance, now_ns);
            if session == stuck && tries % 2 == 0 {
                tries += 1;
                rebalance.failed(now_ns);
                continue;
            }
            rebalance.began(now_ns, session, 10);
            tries += u8::from(session == stuck);
            moved_ns = if session == stuck { moved_ns } else { now_ns };
            rebalance.over(now_ns, session, session != stuck);
            assert_eq!(rebalance.invariants(|_| true), Ok(()));
        }
        assert!(moved_ns < LATER_NS + SECOND_NS / 2, "the others have not waited");
        assert_eq!(tries, TRIES_MAX);
        let over = rebalance.finished(now_ns).expect("no more is tried");
        assert_eq!(over.tally, PassTally { planned: 3, moved: 2, stayed: 1, left: 0 });
        assert_eq!(rebalance.due_ns(true), None, "the edge has joined");
    }

    #[test]
    fn a_slot_whose_cells_take_turns_to_stand_for_it_is_not_tried_for_long() {
        let mut rebalance = with(&["a"]);
        rebalance.begin_pass(LATER_NS, "a", [PassItem::Slot([7; 16])].into());
        let (mut now_ns, mut cells) = (LATER_NS, 0);
        while let Some(due_ns) = rebalance.due_ns(true) {
            now_ns = now_ns.max(due_ns);
            assert_eq!(rebalance.next(now_ns), Some(PassItem::Slot([7; 16])));
            rebalance.began(now_ns, session(cells), 1_000);
            assert!(rebalance.moves(session(cells)));
            rebalance.over(now_ns, session(cells), false);
            assert_eq!(rebalance.invariants(|_| false), Ok(()));
            cells += 1;
        }
        assert_eq!(cells, TRIES_MAX / TRIES_OF_SLOT);
        let over = rebalance.finished(now_ns).expect("no more is tried");
        assert_eq!(over.tally, PassTally { planned: 1, stayed: 1, ..PassTally::default() });
    }

    #[test]
    fn a_pass_whose_edge_is_lost_begins_again_when_that_is_back() {
        let mut rebalance = with(&["a", "b"]);
        rebalance.begin_pass(LATER_NS, "a", sessions(3));
        rebalance.began(LATER_NS, session(0), 1);
        assert_eq!(rebalance.progress(), Some(("a", 3, 3)));
        assert_eq!(rebalance.settled(2 * LATER_NS), None, "one pass at a time");
        let lost_ns = LATER_NS + SECOND_NS;
        let over = connect(&mut rebalance, lost_ns, &["b"]).expect("it ends");
        assert_eq!((over.edge.as_str(), over.ns, over.tally.planned), ("a", SECOND_NS, 3));
        rebalance.over(lost_ns, session(0), false);
        assert_eq!(rebalance.progress(), None);
        assert_eq!(rebalance.settled(LATER_NS + SETTLE_NS), Some("b"));
        connect(&mut rebalance, lost_ns + 1, &["a", "b"]);
        rebalance.begin_pass(LATER_NS + SETTLE_NS, "b", BTreeSet::new());
        assert_eq!(rebalance.due_ns(true), Some(lost_ns + 1 + SETTLE_NS));
    }

    #[test]
    fn what_an_operator_decides_is_left_alone() {
        let mut rebalance = with(&["a"]);
        rebalance.begin_pass(LATER_NS, "a", sessions(2));
        rebalance.began(LATER_NS, session(0), 1_000);
        rebalance.left_to_others(session(0));
        rebalance.over(LATER_NS, session(0), true);
        rebalance.skipped();
        let over = rebalance.finished(LATER_NS).expect("nothing is left");
        assert_eq!(over.tally, PassTally { planned: 2, left: 2, ..PassTally::default() });
    }
}
