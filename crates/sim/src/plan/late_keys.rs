//! Halls whose coordinator answers decisions late, while clients come that are the first ones of their keys. A backup that has won its claim does
//! not know that for a while, and must begin no cell in the slot meanwhile.

use super::{MS, Plan, S, Service, Visit, hall};
use crate::random::Random;

/// Of a hundred halls with keys.
const PERCENT: u64 = 25;

/// Answers leave before an edge gives the request up, which is after 700 ms.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 292);
    let random = &mut random;
    let last = plan.visits.iter().filter_map(|visit| visit.key).max();
    let Some(last) = last.filter(|_| random.percent(PERCENT)) else { return };
    plan.decided_late_ns = random.between(100 * MS, 600 * MS);
    for nth in 1..=random.between(3, 6) {
        plan.visits.push(Visit {
            at_ns: random.between(10 * MS, 3 * S),
            agent: random.index(plan.clients),
            service: Service::Hall,
            key: u8::try_from(nth).ok().map(|nth| last + nth),
            script: hall::guest(random),
        });
    }
}
