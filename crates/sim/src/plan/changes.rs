//! A session's backup moves to a far edge, and its primary dies right behind one of the steps: so what has left of the session is at one
//! place only, if a rule is broken.
//!
//! ```text
//! former backup, near   |==== has all that has left ====| drops its copy
//! primary               | JoinGroup --- dies? ---------- | Confirmed, the backup has moved --- dies?
//! next backup, far      |      what was sent last is on its way: lost if the primary dies
//! ```

use super::{Fault, FaultKind, FaultTarget, Load, MS, Moment, On, Plan, S, US, epochs};
use crate::random::Random;
use marram_shard::api::BackupForm;

/// Of a hundred seeds that can have it.
const PERCENT: u64 = 12;
/// One way, between each two of three edges: of each primary one other edge is nearer than the other one, and half of the moves are to
/// that which is further away.
const BETWEEN_NS: [u64; 3] = [50 * US, 5 * MS, 20 * MS];

/// Operators move the backup of the only session to and fro.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 220);
    let random = &mut random;
    let is_usual = plan.load == Load::Usual && !plan.short_linger;
    let is_able = plan.has_epochs() && !plan.runs_ahead() && plan.elastic().is_none();
    if !is_usual || !is_able || plan.shards.len() != BETWEEN_NS.len() || !random.percent(PERCENT) {
        return;
    }
    let pace_ns = random.between(2 * MS, 8 * MS);
    epochs::talk(plan, random, 600, pace_ns);
    let form = random.pick(&[BackupForm::Log, BackupForm::Auto, BackupForm::Pages]);
    // Sessions that are copied together do not change their group.
    let form = if plan.copies_whole() { BackupForm::Log } else { form };
    plan.apps.iter_mut().filter_map(|app| app.epoch.as_mut()).for_each(|epoch| epoch.form = form);
    if let Some(coordinator) = &mut plan.witness {
        coordinator.away.clear();
        coordinator.losses = None;
    }
    (plan.datagrams, plan.open_ns, plan.move_bytes_per_s) = ([false; 2], 0, 0);
    place_edges(plan, random);
    let step = |random: &mut Random, skip| {
        let when = On { moment: Moment::Message, skip, delay_ns: random.below(MS) };
        let (place, by) = (FaultTarget::Owner, random.between(1, 2));
        Fault { when, kind: FaultKind::Move { place, by, cancel_ns: None, replaces: false, backup: true } }
    };
    plan.first = step(random, 20);
    plan.faults.clear();
    plan.moves = (1..8).map(|nth| step(random, 20 + 80 * nth)).collect();
    let when = On {
        moment: random.pick(&[Moment::NextGroup, Moment::BackupMoved]),
        skip: random.below(3),
        delay_ns: random.between(200 * US, 6 * MS),
    };
    // Its connections are closed: what is on its way to the far edge does not arrive.
    let kind =
        FaultKind::CrashEdge { place: FaultTarget::Here, loud: true, for_ns: random.between(S, 2 * S) };
    plan.moves.push(Fault { when, kind });
}

/// Agents are near all edges.
fn place_edges(plan: &mut Plan, random: &mut Random) {
    let (agents, edges) = (plan.agents(), plan.shards.len());
    for delay_ns in plan.delay_ns[..agents].iter_mut().flatten() {
        *delay_ns = random.magnitude(10 * US, 300 * US);
    }
    let first = random.index(edges);
    for (caller, delays_ns) in plan.delay_ns[agents..agents + edges].iter_mut().enumerate() {
        for (edge, delay_ns) in delays_ns.iter_mut().enumerate() {
            // Each pair by the edge that is in neither.
            *delay_ns = BETWEEN_NS[(first + 2 * edges - caller - edge) % edges];
        }
    }
    plan.skew.iter_mut().flatten().flatten().for_each(|factor| *factor = 1);
}
