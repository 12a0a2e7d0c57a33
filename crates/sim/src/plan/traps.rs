//! Clients of halls that stop the cell: a message of theirs has bytes upon which the hall's handler traps, on whichever edge it runs. In some of these
//! halls close handlers trap, too. Only the client whose input it was may notice.

use super::Plan;
use crate::random::Random;

/// A hall's handler traps upon a message that has these bytes, and the number of a visit behind them.
const HALL_TRAP: [u8; 12] = *b"unreachable ";
/// These bytes with the number.
pub(crate) const HALL_TRAP_SIZE: usize = HALL_TRAP.len() + 4;

/// Which inputs of a hall's clients stop it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Traps {
    /// Messages: the visit, and which of its chunks stops the hall.
    pub chunks: Vec<(usize, usize)>,
    /// Whether close handlers trap for some clients, by what these have said.
    pub closes: bool,
}

/// What this visit's client says to stop its hall.
pub(crate) fn hall_trap(visit: u32) -> [u8; HALL_TRAP_SIZE] {
    let mut bytes = [0; HALL_TRAP_SIZE];
    bytes[..HALL_TRAP.len()].copy_from_slice(&HALL_TRAP);
    bytes[HALL_TRAP.len()..].copy_from_slice(&visit.to_le_bytes());
    bytes
}

/// The visit whose client says here what stops its hall.
pub(crate) fn hall_trap_of(payload: &[u8]) -> Option<u32> {
    let traps = payload.windows(HALL_TRAP_SIZE).filter_map(|bytes| bytes.strip_prefix(&HALL_TRAP));
    traps.filter_map(|visit| visit.try_into().ok()).map(u32::from_le_bytes).next()
}

/// Of a hundred halls.
const PERCENT: u64 = 30;
/// Of a hundred of these.
const CLOSES_PERCENT: u64 = 40;

/// One or two clients, each with one such message.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 288);
    let random = &mut random;
    if !plan.has_hall() || !random.percent(PERCENT) {
        return;
    }
    // A large cell may end with a stop, until it is copied again after a promotion.
    plan.large = false;
    for _ in 0..random.between(1, 2) {
        let visit = random.index(plan.visits.len());
        let script = &mut plan.visits[visit].script;
        let at = random.index(script.chunks.len());
        script.chunks[at].size = script.chunks[at].size.max(HALL_TRAP_SIZE);
        plan.traps.chunks.push((visit, at));
    }
    plan.traps.closes = random.percent(CLOSES_PERCENT);
}

#[cfg(test)]
mod tests {
    use super::{Traps, hall_trap, hall_trap_of};
    use crate::plan::{HALLS_FROM, Plan, Service};

    #[test]
    fn some_halls_are_stopped_and_no_saved_one() {
        let plans = || (0..1_000).map(|seed| Plan::of(HALLS_FROM + seed));
        let stopped = plans().filter(|plan| plan.traps != Traps::default()).count();
        assert!((250..350).contains(&stopped), "{stopped}");
        assert!(plans().any(|plan| plan.traps.closes) && plans().any(|plan| plan.decided_late_ns > 0));
        assert!(plans().flat_map(|plan| plan.visits).all(|visit| visit.service == Service::Hall));
        let saved = include_str!("../../seeds.txt").lines();
        for seed in saved.filter_map(|line| line.split_whitespace().next()?.parse().ok()) {
            let plan = Plan::of(seed);
            let is_as_ever = plan.traps == Traps::default() && plan.decided_late_ns == 0;
            assert!(is_as_ever, "{seed} was saved for what it was before halls were stopped");
        }
    }

    #[test]
    fn a_message_that_stops_a_hall_names_its_visit() {
        let message = [b"before".as_slice(), &hall_trap(7), b"behind"].concat();
        assert_eq!(hall_trap_of(&message), Some(7));
        assert_eq!(hall_trap_of(&message[..message.len() - 7]), None, "cut");
        assert_eq!(hall_trap_of(b""), None);
    }
}
