//! Moves of this shard's sessions to other edges and shards: which are under way, and which wait until one of them is over.

use super::copies::Copies;
use crate::api::{Copied, Destination, MoveRow, MoveStage, MoveWish};
use alloc::{collections::VecDeque, format, string::String, vec::Vec};
use core::iter;
use marram_session::{
    holds,
    invariant::BrokenInvariant,
    owner::{CopyProgress, KeeperId},
};
use marram_wire::id::SessionId;

const MS: u64 = 1_000_000;
/// Moves under way on one shard: each may send the whole state of a cell. Others wait.
pub const MOVES_MAX: usize = 8;
/// The pause between the beginnings of two moves, at most. Moves of large cells take far longer, and are fed beside each other.
const PAUSE_MAX_NS: u64 = 20 * MS;
/// How long a move takes, as long as none has been measured.
const TOOK_FIRST_NS: u64 = 5 * MS;
/// How long a move may take until it is handed over, not counting the time for which its copy waits for bandwidth. One that takes longer does not come to an end: the session changes faster
/// than it can be sent, or its ends are too slow to keep a checkpoint.
const MOVE_NS: u64 = 120_000 * MS;
/// How long a warm standby may take until the session is handed over to it. It holds the session's state, and at most needs another
/// delta. One that takes longer, since the ends store that slowly or the session is too busy, gets a copy of the session as it is then.
const STANDBY_NS: u64 = 5_000 * MS;
/// How long the ends may take to promise the other edge, after the session was handed over. They need a round trip.
pub(crate) const HANDED_OVER_NS: u64 = 5_000 * MS;
/// How long a shard reads what has arrived before it gives up a move that was handed over. It may have slept: then the other edge has the
/// session, and the ends have said so.
const READ_FIRST_NS: u64 = 1_000 * MS;
/// A shard that looks at a move so long after its time was over has slept: one that runs does so within milliseconds.
const SLEPT_NS: u64 = 100 * MS;
/// A move that failed says that it waited for bandwidth, if it did for so long.
const LIMITED_TOLD_NS: u64 = 1_000 * MS;

/// How far a move is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It has not begun: other moves are under way.
    Waiting,
    /// The edge is fed by this replica until it has all that it needs.
    Fed(KeeperId),
    /// The edge was told to take the session over.
    HandedOver(KeeperId),
}

/// What moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// The session.
    Session,
    /// Its backup: the session stays, and joins another group.
    Backup,
}

/// What asks for a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AskedBy {
    Operator,
    Policy,
    /// This edge stops.
    Drain,
}

/// The move of one session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    pub(crate) what: Moved,
    /// The edge or shard.
    pub(crate) to: Destination,
    /// Edges to try next if that one does not take it, while this edge stops.
    pub(crate) others: Vec<Destination>,
    asked_by: AskedBy,
    /// When it was asked for.
    pub(crate) asked_ns: u64,
    stage: Stage,
    /// The edge that is known to have taken the session: it has claimed its group, or has said that it owns it.
    taken_by: Option<String>,
    begun_ns: Option<u64>,
    /// Whether the edge is the session's warm standby, and goes on from what it has as that.
    from_standby: bool,
    until_ns: Option<u64>,
    /// Whether it was seen that the other edge is late.
    is_late: bool,
    /// Since when its copy waits for bandwidth, if it does, and for how long it did before.
    limited_since_ns: Option<u64>,
    limited_ns: u64,
}

impl Move {
    /// A move that waits.
    pub(crate) fn new(to: Destination, now_ns: u64) -> Self {
        Self {
            what: Moved::Session,
            to,
            others: Vec::new(),
            asked_by: AskedBy::Operator,
            asked_ns: now_ns,
            stage: Stage::Waiting,
            taken_by: None,
            begun_ns: None,
            from_standby: false,
            until_ns: None,
            is_late: false,
            limited_since_ns: None,
            limited_ns: 0,
        }
    }

    /// A move of this, which waits.
    pub(crate) fn of(what: Moved, to: Destination, now_ns: u64) -> Self {
        Self { what, ..Self::new(to, now_ns) }
    }

    /// A move of a session's backup, which waits.
    pub(crate) fn of_backup(to: Destination, now_ns: u64) -> Self {
        Self::of(Moved::Backup, to, now_ns)
    }

    /// A move of a session's backup that policies ask for, which waits.
    pub(crate) fn of_policy(to: Destination, now_ns: u64) -> Self {
        Self { asked_by: AskedBy::Policy, ..Self::of_backup(to, now_ns) }
    }

    /// Whether policies ask for it, and no operator.
    pub(crate) fn is_of_policy(&self) -> bool {
        self.asked_by == AskedBy::Policy
    }

    /// Whether the session moves only since this edge stops.
    pub(crate) fn is_of_drain(&self) -> bool {
        self.asked_by == AskedBy::Drain
    }

    /// A move as an operator wishes it, which waits.
    pub(crate) fn wished(wish: MoveWish, now_ns: u64) -> Self {
        if wish.backup { Self::of_backup(wish.to, now_ns) } else { Self::new(wish.to, now_ns) }
    }

    /// Whether the session's backup moves, and not the session.
    pub(crate) fn is_of_backup(&self) -> bool {
        self.what == Moved::Backup
    }

    /// Whether it is what an operator wishes.
    pub(crate) fn is_as(&self, wish: &MoveWish) -> bool {
        self.to == wish.to && self.is_of_backup() == wish.backup
    }

    /// A move to the first of these edges that takes the session, since this edge stops. None if there is no edge.
    pub(crate) fn to_one_of(mut edges: Vec<Destination>, now_ns: u64) -> Option<Self> {
        if edges.is_empty() {
            return None;
        }
        let to = edges.remove(0);
        Some(Self { others: edges, asked_by: AskedBy::Drain, ..Self::new(to, now_ns) })
    }

    /// The move that an operator wishes in place of this one. While this edge stops, the edges that would have been asked come after it.
    pub(crate) fn replaced_by(&self, wish: MoveWish, stops: bool, now_ns: u64) -> Self {
        let edges = iter::once(&self.to).chain(&self.others);
        let moves_out = stops && !self.is_of_backup() && !wish.backup;
        let others = edges.filter(|edge| moves_out && **edge != wish.to).cloned().collect();
        Self { others, ..Self::wished(wish, now_ns) }
    }

    /// It begins: this replica is at the edge.
    pub(crate) fn begin(&mut self, now_ns: u64, keeper: KeeperId) {
        (self.stage, self.until_ns) = (Stage::Fed(keeper), Some(now_ns + MOVE_NS));
        (self.begun_ns, self.from_standby) = (self.begun_ns.or(Some(now_ns)), false);
    }

    /// As above: the edge is the session's warm standby, and goes on from what it has as that.
    pub(crate) fn begin_from_standby(&mut self, now_ns: u64, keeper: KeeperId) {
        self.begin(now_ns, keeper);
        (self.from_standby, self.until_ns) = (true, Some(now_ns + STANDBY_NS));
    }

    /// The replica at a warm standby from which the session is to go on, until it is told so.
    pub(crate) fn standby(&self) -> Option<KeeperId> {
        self.fed().filter(|_| self.from_standby)
    }

    /// The replica at the edge, once the move has begun.
    pub(crate) fn keeper(&self) -> Option<KeeperId> {
        match self.stage {
            Stage::Waiting => None,
            Stage::Fed(keeper) | Stage::HandedOver(keeper) => Some(keeper),
        }
    }

    /// The replica, if it is still to be told to take the session over.
    pub(crate) fn fed(&self) -> Option<KeeperId> {
        self.keeper().filter(|_| !self.is_handed_over())
    }

    /// The edge was told to take the session over, for which it has this long.
    pub(crate) fn hand_over(&mut self, now_ns: u64, within_ns: u64) {
        if let Some(keeper) = self.fed() {
            self.limit_ends(now_ns);
            (self.stage, self.until_ns) = (Stage::HandedOver(keeper), Some(now_ns + within_ns));
        }
    }

    /// It is handed over, and whether the edge has taken the session is known later.
    pub(crate) fn wait_longer(&mut self, now_ns: u64) {
        self.until_ns = Some(now_ns + HANDED_OVER_NS);
    }

    /// Whether it is not given up yet, though its time is over: it was handed over, and this shard may have slept since. What has arrived
    /// meanwhile is read first, and once more if the shard slept again.
    pub(crate) fn reads_first(&mut self, now_ns: u64) -> bool {
        let has_slept = self.until_ns.is_some_and(|until_ns| until_ns.saturating_add(SLEPT_NS) < now_ns);
        let reads = self.is_handed_over() && (has_slept || !self.is_late);
        if reads {
            (self.is_late, self.until_ns) = (true, Some(now_ns + READ_FIRST_NS));
        }
        reads
    }

    /// Whether the edge was told to take the session over.
    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self.stage, Stage::HandedOver(_))
    }

    /// This edge has taken the session. It need not be the one to which that moves: its backup may have gone on, or its next owner
    /// may have died since.
    pub(crate) fn taken_by(&mut self, edge: &str) {
        self.taken_by = Some(edge.into());
    }

    /// Whether the edge has it, if its owner here was replaced. Where nothing says by which edge, it was the one that was told to take the
    /// session over.
    pub(crate) fn may_have_arrived(&self) -> bool {
        match &self.taken_by {
            Some(edge) => *edge == self.to.edge,
            None => self.is_handed_over() && !self.is_of_backup(),
        }
    }

    /// How long it has been under way; none if it still waits.
    pub(crate) fn took_ns(&self, now_ns: u64) -> Option<u64> {
        self.begun_ns.map(|begun_ns| now_ns.saturating_sub(begun_ns))
    }

    /// When it is given up. Not while its copy waits for bandwidth: each part has its turn in the end.
    pub(crate) fn until_ns(&self) -> Option<u64> {
        self.until_ns.filter(|_| !self.is_limited())
    }

    /// Why it is given up, if it takes too long.
    pub(crate) fn why_late(&self) -> &'static str {
        match self.stage {
            Stage::HandedOver(_) if self.is_of_backup() => "the next backup did not confirm in time",
            Stage::HandedOver(_) => "the edge did not take the session over in time",
            _ if self.is_of_backup() => {
                "it did not come to an end in time: the session changes faster than its state can be sent, or the coordinator does not \
                 answer the claim of its next group"
            }
            _ => {
                "it did not come to an end in time: the session changes faster than its state can be sent or its log replayed, or its \
                 ends cannot keep another full checkpoint"
            }
        }
    }

    /// Whether its copy waits for bandwidth.
    pub(crate) fn is_limited(&self) -> bool {
        self.limited_since_ns.is_some()
    }

    /// Its copy waits for bandwidth from now on. False if it does already.
    pub(crate) fn limit_begins(&mut self, now_ns: u64) -> bool {
        let begins = !self.is_limited();
        self.limited_since_ns = self.limited_since_ns.or(Some(now_ns));
        begins
    }

    /// Its copy goes on. The wait does not count for the time that the move may take. Returns how long that was.
    pub(crate) fn limit_ends(&mut self, now_ns: u64) -> u64 {
        let waited_ns = self.limited_since_ns.take().map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        self.limited_ns += waited_ns;
        self.until_ns = self.until_ns.map(|until_ns| until_ns.saturating_add(waited_ns));
        waited_ns
    }

    /// The reason for which it failed, for operators: with the bandwidth, if that is what it waited for most of the time.
    pub(crate) fn failure(&self, why: &str, now_ns: u64) -> String {
        let waits_ns = self.limited_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let (limited_ns, took_ns) = (self.limited_ns + waits_ns, self.took_ns(now_ns).unwrap_or(0));
        if limited_ns < LIMITED_TOLD_NS || 2 * limited_ns < took_ns {
            return why.into();
        }
        let [limited_s, took_s] = [limited_ns, took_ns].map(|ns| ns / (1_000 * MS));
        format!(
            "{why}; for {limited_s} s of {took_s} its copy waited for bandwidth (`limits.move_bandwidth`)"
        )
    }

    /// For listings. `copy` is how far its copy is.
    pub(crate) fn row(&self, copy: Option<CopyProgress>) -> MoveRow {
        let stage = match self.stage {
            Stage::Waiting => MoveStage::Waiting,
            Stage::Fed(_) => MoveStage::Copying,
            Stage::HandedOver(_) => MoveStage::HandedOver,
        };
        let copied = copy.map(|CopyProgress { sent, size, .. }| Copied { sent, size });
        let (to, backup) = (self.to.clone(), self.is_of_backup());
        MoveRow { to, backup, stage, copied, limited: self.is_limited() }
    }
}

/// The moves of a shard.
///
/// They begin one after another, with a pause of twice the time that a move takes, which is longer on a busy machine: so the traffic
/// of clients comes first. If an edge stops, moves hurry as much as its time demands.
#[derive(Debug)]
pub(crate) struct Moves {
    under_way: usize,
    waiting: VecDeque<SessionId>,
    /// When the next one may begin.
    next_ns: u64,
    /// How long a move takes, as a moving average.
    took_ns: u64,
    /// Those of which parts wait for bandwidth.
    pub(crate) copies: Copies,
}

impl Default for Moves {
    fn default() -> Self {
        let (waiting, copies) = (VecDeque::new(), Copies::default());
        Self { under_way: 0, waiting, next_ns: 0, took_ns: TOOK_FIRST_NS, copies }
    }
}

impl Moves {
    /// A move waits for its turn.
    pub(crate) fn wait(&mut self, session: SessionId) {
        self.waiting.push_back(session);
    }

    /// When the next move may begin, if one waits and there is room for it.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        (self.under_way < MOVES_MAX && !self.waiting.is_empty()).then_some(self.next_ns)
    }

    /// The next session to move, if it is time: it counts as under way from now on. `until_ns` is when all must be over, if the edge stops.
    pub(crate) fn next(&mut self, now_ns: u64, until_ns: Option<u64>) -> Option<SessionId> {
        self.due_ns().filter(|due_ns| *due_ns <= now_ns)?;
        let session = self.waiting.pop_front()?;
        self.under_way += 1;
        let left_ns = until_ns.map_or(u64::MAX, |until_ns| until_ns.saturating_sub(now_ns));
        let share_ns = left_ns / (2 * self.waiting.len() as u64).max(1);
        self.next_ns = now_ns + (2 * self.took_ns).min(PAUSE_MAX_NS).min(share_ns);
        Some(session)
    }

    /// A move is over, or will not begin. It took this long, if it had begun.
    pub(crate) fn over(&mut self, session: SessionId, took_ns: Option<u64>) {
        self.copies.forget(session);
        if let Some(took_ns) = took_ns {
            self.took_ns = (3 * self.took_ns).saturating_add(took_ns) / 4;
        }
        match self.waiting.iter().position(|waiting| *waiting == session) {
            Some(at) => {
                self.waiting.remove(at);
            }
            None => self.under_way -= 1,
        }
    }

    /// Moves under way, and those that wait.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.under_way, self.waiting.len())
    }

    /// Checks I47 of docs/protocol.md: `moving` has all sessions with their moves, and whether they wait for bandwidth without one of their own.
    pub(crate) fn invariants<'a>(
        &self,
        moving: impl Iterator<Item = (SessionId, Option<&'a Move>, bool)>,
    ) -> Result<(), BrokenInvariant> {
        let (mut under_way, mut waiting, mut limited) = (0, 0, Vec::new());
        for (id, it, is_limited) in moving {
            limited.extend(is_limited.then_some(id));
            let Some(it) = it else { continue };
            limited.extend(it.is_limited().then_some(id));
            let waits = self.waiting.contains(&id);
            holds!("I47", waits == (it.stage == Stage::Waiting));
            holds!("I47", waits == it.until_ns.is_none());
            under_way += usize::from(!waits);
            waiting += usize::from(waits);
        }
        holds!("I47", under_way == self.under_way && under_way <= MOVES_MAX);
        holds!("I47", waiting == self.waiting.len());
        holds!("I47", limited.len() == self.copies.count());
        self.copies.invariants(|id| limited.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets all sessions move, each for `took_ns`, and returns when each began.
    fn begun(count: u8, took_ns: u64, until_ns: Option<u64>) -> Vec<u64> {
        let mut moves = Moves::default();
        (0..count).for_each(|number| moves.wait(SessionId([number; 16])));
        let (mut now_ns, mut begun, mut over) = (0, Vec::new(), VecDeque::new());
        while begun.len() < usize::from(count) {
            while over.front().is_some_and(|(over_ns, _)| *over_ns <= now_ns) {
                let (_, session) = over.pop_front().expect("it was there");
                moves.over(session, Some(took_ns));
            }
            while let Some(session) = moves.next(now_ns, until_ns) {
                begun.push(now_ns);
                over.push_back((now_ns + took_ns, session));
            }
            let next = [moves.due_ns(), over.front().map(|(over_ns, _)| *over_ns)];
            now_ns = next.into_iter().flatten().filter(|next_ns| *next_ns > now_ns).min().unwrap_or(now_ns);
        }
        begun
    }

    #[test]
    fn short_moves_do_not_overlap() {
        let begun = begun(40, MS, None);
        assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= 2 * MS), "{begun:?}");
        assert!(begun[39] - begun[20] <= 20 * 3 * MS, "{begun:?}");
    }

    #[test]
    fn long_moves_are_beside_each_other_but_begin_one_after_another() {
        let begun = begun(20, 1_000 * MS, None);
        let places = MOVES_MAX - 1;
        assert!(begun[..=places].windows(2).all(|pair| pair[1] - pair[0] <= PAUSE_MAX_NS), "{begun:?}");
        assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= 10 * MS), "{begun:?}");
        assert!(begun[MOVES_MAX] >= 1_000 * MS, "{begun:?}");
    }

    #[test]
    fn moves_hurry_if_the_edge_stops_soon() {
        let begun = begun(200, 5 * MS, Some(400 * MS));
        assert!(begun[199] < 400 * MS, "{begun:?}");
    }
}
