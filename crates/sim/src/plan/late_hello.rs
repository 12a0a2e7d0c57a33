//! An edge gets a client's first hello late: it slept, and another edge was asked meanwhile, which awaits the promise of a far server. Both edges
//! open the session, each with a server's agent of its choice, and the client's end may follow only one of them.
//!
//! ```text
//! client    | hello ------------ | hello, elsewhere | promises -------- a second promise? refused: another agent
//! edge      |    sleeps ................................... | opens with another server's agent
//! other edge|                      | opens ------ a server's agent, far away ------> not chosen yet
//! ```

use super::{Fault, FaultKind, FaultTarget, Load, MS, Moment, On, Plan, Service, US, Visit, talk};
use crate::random::Random;

/// Of a hundred seeds that can have it: with more than one agent of servers.
const PERCENT: u64 = 4;

pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 261);
    let random = &mut random;
    let is_usual = plan.load == Load::Usual && !plan.short_linger && plan.memory_max == super::UNLIMITED;
    let is_able = plan.servers > 1 && plan.shard_memory_max == 0 && !plan.has_epochs();
    if !is_usual || !is_able || plan.learning.is_some() || !random.percent(PERCENT) {
        return;
    }
    (plan.poison, plan.server_down, plan.open_ns, plan.recoveries_max) = (None, 0, 0, 0);
    let visit = |random: &mut Random, at_ns, count| Visit {
        at_ns,
        agent: 0,
        service: Service::Paired,
        key: None,
        script: talk::script(random, count, 20 * MS),
    };
    // The edge has a session by then that runs.
    let at_ns = random.between(200 * MS, 300 * MS);
    plan.visits = vec![visit(random, 50 * MS, 60)];
    for nth in 0..4 {
        let at_ns = at_ns + nth * 5 * MS;
        plan.visits.push(visit(random, at_ns, 5));
    }
    plan.spread = false;
    let clients = plan.clients;
    for (agent, delays_ns) in plan.delay_ns[..clients + plan.servers].iter_mut().enumerate() {
        for (edge, delay_ns) in delays_ns.iter_mut().enumerate() {
            // Each edge takes the agent that connects to it first: another one than the next edge takes.
            *delay_ns = match agent.checked_sub(clients) {
                None => random.magnitude(10 * US, 300 * US),
                Some(server) => 30 * MS + 20 * MS * ((server + edge) as u64 % 2),
            };
        }
    }
    plan.skew.iter_mut().flatten().flatten().for_each(|factor| *factor = 1);
    plan.moves.clear();
    plan.faults.clear();
    // The first session has asked before.
    let when = On { moment: Moment::Hello, skip: random.between(1, 3), delay_ns: 0 };
    let kind = FaultKind::FreezeEdge { place: FaultTarget::Here, for_ns: random.between(400 * MS, 500 * MS) };
    plan.first = Fault { when, kind };
}
