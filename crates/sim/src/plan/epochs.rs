//! Seeds in which outputs wait for a backup, and claims decide which edge goes on.

use super::{
    Absence, Fault, FaultKind, FaultTarget, Load, MS, Memory, Moment, On, Plan, S, Service, US, Visit, When,
    talk,
};
use crate::random::Random;
use marram_shard::{
    api::{BackupForm, EpochSettings, ReplicationPolicy, TrafficCondition, WitnessMode},
    control::PolicyChange,
};

/// In a quarter of all seeds.
pub(super) fn draw(seed: u64) -> Option<EpochSettings> {
    Random::new(seed, 190).percent(25).then(|| settings(seed))
}

/// The settings of a seed, whether it was drawn or not.
pub(super) fn settings(seed: u64) -> EpochSettings {
    let mut random = Random::new(seed, 190);
    // This number was drawn already.
    _ = random.percent(25);
    EpochSettings {
        every_us: random.pick(&[0, 500, 1_000, 10_000]),
        alone_after_ms: random.pick(&[0, 20, 200, 1_000]),
        form: random.pick(&[BackupForm::Log, BackupForm::Auto, BackupForm::Pages]),
    }
}

impl Plan {
    /// Whether sessions whose backup gets pages are copied and released together, in a third of all seeds.
    pub(crate) fn copies_whole(&self) -> bool {
        Random::new(self.seed, 193).percent(33)
    }

    /// Edges replicate some sessions in another way than the app says, in a sixth of all seeds and where sessions are measured: those of some
    /// clients, of whom something is measured, or all.
    pub(crate) fn policies(&self) -> Vec<ReplicationPolicy> {
        let mut policies = self.drawn_policies();
        if let Some(random) = &mut self.measures() {
            let another =
                || another_policy(&mut Random::new(self.seed, 231), ("much", None), self.shards.len());
            policies.extend(policies.is_empty().then(another));
            measure(random, &mut policies);
        }
        policies
    }

    /// Policies ask for what is measured of sessions, in a third of the seeds with epochs. Continues from what is drawn of that.
    fn measures(&self) -> Option<Random> {
        let mut random = Random::new(self.seed, 230);
        let is_drawn = random.percent(33);
        (is_drawn && self.has_epochs() && self.elastic().is_none()).then_some(random)
    }

    fn drawn_policies(&self) -> Vec<ReplicationPolicy> {
        if let Some(elastic) = self.elastic() {
            return elastic.policies(self.seed);
        }
        let mut random = Random::new(self.seed, 195);
        let runs_ahead = self.runs_ahead();
        if !random.percent(16) {
            let all = ReplicationPolicy { name: "all".into(), runs_ahead, ..ReplicationPolicy::default() };
            return Vec::from_iter(runs_ahead.then_some(all));
        }
        let edge = random.below(self.shards.len() as u64);
        let client = random.percent(50).then(|| "10.0.0.0/31".parse().expect("it is a prefix"));
        vec![ReplicationPolicy {
            name: "some".into(),
            client,
            every_us: random.percent(50).then_some(2_000),
            targets: vec![format!("edge-{edge}")],
            groups: random.pick(&[1, 2, 3]),
            runs_ahead,
            ..ReplicationPolicy::default()
        }]
    }
}

impl Plan {
    /// Whether operators move the backups of sessions.
    pub(crate) fn moves_backups(&self) -> bool {
        self.moves.iter().any(|fault| matches!(fault.kind, FaultKind::Move { backup: true, .. }))
    }

    /// Outputs of some sessions do not wait for the backup, in a quarter of the seeds with epochs.
    pub(crate) fn runs_ahead(&self) -> bool {
        self.has_epochs() && self.elastic().is_none() && Random::new(self.seed, 208).percent(25)
    }
}

/// An operator gives an edge other policies at this time, or takes back what one has given it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyStep {
    pub(crate) at_ns: u64,
    pub(crate) edge: usize,
    pub(crate) change: PolicyChange,
}

impl Plan {
    /// In two fifths of the seeds with epochs operators change the policies of edges, each for itself, while sessions run.
    pub(crate) fn policy_steps(&self) -> Vec<PolicyStep> {
        let mut random = Random::new(self.seed, 207);
        let random = &mut random;
        if !self.has_epochs() || !random.percent(40) {
            return Vec::new();
        }
        let edges = self.shards.len();
        let step = |random: &mut Random| PolicyStep {
            at_ns: random.between(100 * MS, 2 * S),
            edge: usize::try_from(random.below(edges as u64)).expect("there are few edges"),
            change: match random.below(100) {
                0..15 => PolicyChange::Reset,
                15..25 => PolicyChange::Set(Vec::new()),
                25..60 => PolicyChange::Set(vec![another_policy(random, ("all", None), edges)]),
                _ => {
                    let some = another_policy(random, ("some", Some("10.0.0.0/31")), edges);
                    PolicyChange::Set(vec![some, another_policy(random, ("rest", None), edges)])
                }
            },
        };
        let mut steps: Vec<PolicyStep> = (0..random.between(2, 8)).map(|_| step(random)).collect();
        if self.runs_ahead() {
            let mut ahead = Random::new(self.seed, 208);
            // This number was drawn already.
            _ = ahead.percent(25);
            for step in &mut steps {
                if let PolicyChange::Set(policies) = &mut step.change {
                    policies.iter_mut().for_each(|policy| policy.runs_ahead = ahead.percent(60));
                }
            }
        }
        if self.measures().is_some() {
            let mut random = Random::new(self.seed, 232);
            for step in &mut steps {
                if let PolicyChange::Set(policies) = &mut step.change {
                    measure(&mut random, policies);
                }
            }
        }
        steps
    }
}

/// What is measured decides about most of these. Of sessions whose outputs do not wait, no policy asks for it.
fn measure(random: &mut Random, policies: &mut [ReplicationPolicy]) {
    for policy in policies.iter_mut().filter(|policy| !policy.runs_ahead) {
        if !random.percent(80) {
            continue;
        }
        let rate_max = random.percent(25).then(|| random.pick(&[0, 50, 1_000]));
        policy.traffic = TrafficCondition {
            rate_min: random.percent(25).then(|| random.pick(&[1, 50, 1_000])).filter(|_| rate_max.is_none()),
            rate_max,
            bytes_min: random.percent(70).then(|| random.pick(&[1, 100, 2_000])),
        };
    }
}

fn another_policy(
    random: &mut Random,
    (name, client): (&str, Option<&str>),
    edges: usize,
) -> ReplicationPolicy {
    let target = random.percent(40).then(|| format!("edge-{}", random.below(edges as u64)));
    ReplicationPolicy {
        name: name.into(),
        client: client.map(|prefix| prefix.parse().expect("it is a prefix")),
        every_us: random.percent(80).then(|| random.pick(&[0, 500, 3_000, 100_000])),
        targets: target.into_iter().collect(),
        groups: random.pick(&[1, 1, 2, 3]),
        ..ReplicationPolicy::default()
    }
}

/// In a fifth of these seeds a primary first sleeps for so long that its backup claims its sessions meanwhile, and wakes. In others
/// it loses its backup, and dies as soon as its next claim names one, or both claim while no claim is decided.
pub(super) fn prepare(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 192);
    if !plan.has_epochs() {
        return;
    }
    enlarge_pages(plan);
    if dies_ahead(plan) {
        return;
    }
    match random.below(100) {
        0..20 => {
            let when = On { moment: Moment::Message, skip: random.below(8), delay_ns: random.below(MS) };
            let for_ns = random.between(700 * MS, 1_500 * MS);
            plan.first = Fault { when, kind: FaultKind::FreezeEdge { place: FaultTarget::Owner, for_ns } };
        }
        20..45 if plan.load == Load::Usual && !plan.short_linger => {
            if plan.shards.len() > 2 {
                next_backup(plan, &mut random);
            } else {
                late_claim(plan, &mut random);
            }
        }
        45..55 if plan.load == Load::Usual && !plan.short_linger && plan.shards.len() == 2 => {
            undecided_claim(plan, &mut random);
        }
        45..100 if plan.load == Load::Usual && !plan.short_linger && plan.shards.len() > 2 => {
            return past_backup(plan, &mut random);
        }
        _ => return,
    }
    if let Some(coordinator) = &mut plan.witness {
        coordinator.away.clear();
        coordinator.losses = None;
    }
}

/// In a fifth of the seeds that send pages, these have so many parts that an edge which dies has often sent only some of them.
fn enlarge_pages(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 193);
    let are_sent = plan.apps.iter().filter_map(|app| app.epoch.as_ref()).any(|it| it.form != BackupForm::Log);
    if are_sent && plan.load == Load::Usual && random.percent(20) {
        plan.ballast = usize::try_from(random.between(140_000, 400_000)).unwrap_or(0);
    }
}

/// In three fifths of the seeds in which outputs do not wait, the primary of a session that says much dies, whose backup is far away: so
/// much of what has left is not confirmed. True if so.
fn dies_ahead(plan: &mut Plan) -> bool {
    let mut random = Random::new(plan.seed ^ (1 << 63), 208);
    let is_it = plan.runs_ahead() && plan.load == Load::Usual && !plan.short_linger;
    if !is_it || !random.percent(60) {
        return false;
    }
    let pace_ns = random.magnitude(100 * US, 2 * MS);
    talk(plan, &mut random, 600, pace_ns);
    let (agents, edges) = (plan.agents(), plan.shards.len());
    for delay_ns in plan.delay_ns[agents..agents + edges].iter_mut().flatten() {
        *delay_ns = random.between(3 * MS, 20 * MS);
    }
    let kind = FaultKind::CrashEdge { place: FaultTarget::Owner, loud: random.percent(50), for_ns: S };
    let skip = random.between(200, 900);
    plan.first = Fault { when: On { moment: Moment::Message, skip, delay_ns: random.below(MS) }, kind };
    if let Some(coordinator) = &mut plan.witness {
        coordinator.losses = None;
    }
    true
}

/// The backup dies, so that the primary runs alone. Its next backup is far away. The primary dies when its claim has named that one,
/// which has not received all that the primary has released alone if the claim came too early.
fn next_backup(plan: &mut Plan, random: &mut Random) {
    let pace_ns = random.magnitude(100 * US, 2 * MS);
    talk(plan, random, 600, pace_ns);
    let alone_after_ms = random.pick(&[0, 0, 20]);
    for epoch in plan.apps.iter_mut().filter_map(|app| app.epoch.as_mut()) {
        epoch.alone_after_ms = alone_after_ms;
    }
    let (agents, edges) = (plan.agents(), plan.shards.len());
    for delay_ns in plan.delay_ns[agents..agents + edges].iter_mut().flatten() {
        *delay_ns = random.between(25 * MS, 40 * MS);
    }
    let kind = FaultKind::CrashEdge { place: FaultTarget::Standby, loud: true, for_ns: S };
    plan.first =
        Fault { when: On { moment: Moment::Message, skip: random.between(10, 60), delay_ns: 0 }, kind };
    let dies_ns = random.between(2 * MS, 22 * MS);
    plan.faults = vec![dies_at_next_backup(dies_ns)];
}

/// Sessions move while much is said: with three edges half of the moves are to another one than the backup. Where the seed has faults at
/// the steps of moves, they stay.
fn past_backup(plan: &mut Plan, random: &mut Random) {
    let pace_ns = random.magnitude(100 * US, 5 * MS);
    talk(plan, random, 300, pace_ns);
    plan.moves.retain(|fault| !matches!(fault.kind, FaultKind::Move { .. }));
    for _ in 0..random.between(2, 4) {
        let when = On { moment: Moment::Message, skip: random.between(5, 200), delay_ns: random.below(MS) };
        let by = random.between(1, 2);
        let kind = FaultKind::Move {
            place: FaultTarget::Owner,
            by,
            cancel_ns: None,
            replaces: false,
            backup: false,
        };
        plan.moves.push(Fault { when, kind });
    }
}

/// In two fifths of the seeds with epochs and a third edge operators move the backups of running sessions, and in most of these something happens as
/// soon as a next backup is told of its group.
pub(super) fn move_backups(plan: &mut Plan) {
    let mut random = Random::new(plan.seed, 213);
    let random = &mut random;
    let is_usual = plan.load == Load::Usual && !plan.short_linger && !plan.has_hall();
    // Most of those in which sessions move stay as they are.
    let percent = if plan.moves.is_empty() { 60 } else { 15 };
    if !plan.has_epochs() || !is_usual || plan.shards.len() < 3 || !random.percent(percent) {
        return;
    }
    let pace_ns = random.between(MS, 10 * MS);
    talk(plan, random, 300, pace_ns);
    let is_calm = random.percent(80);
    if let Some(coordinator) = plan.witness.as_mut().filter(|_| is_calm) {
        coordinator.away.clear();
        coordinator.losses = None;
    }
    let step = |random: &mut Random| {
        // Primaries need some time to find backups, and to claim their groups.
        let delay_ns = random.magnitude(10 * MS, S);
        let when = On { moment: Moment::Message, skip: random.between(5, 150), delay_ns };
        let cancel_ns = random.percent(15).then(|| random.magnitude(10 * US, 10 * MS));
        let (place, by) = (FaultTarget::Owner, random.between(1, 2));
        Fault {
            when,
            kind: FaultKind::Move { place, by, cancel_ns, replaces: random.percent(20), backup: true },
        }
    };
    if is_calm {
        (plan.first, plan.faults) = (step(random), Vec::new());
        // While the session certainly runs.
        (plan.first.when.skip, plan.first.when.delay_ns) = (random.between(5, 60), 0);
    }
    plan.moves = (0..random.between(1, 6)).map(|_| step(random)).collect();
    if !random.percent(65) {
        return;
    }
    // Which of the two backups is further away matters.
    let (agents, edges) = (plan.agents(), plan.shards.len());
    if random.percent(60) {
        for delay_ns in plan.delay_ns[agents..agents + edges].iter_mut().flatten() {
            *delay_ns = random.pick(&[50 * US, MS, 20 * MS]);
        }
    }
    let places = [FaultTarget::Here, FaultTarget::Here, FaultTarget::MoveTarget, FaultTarget::Standby];
    let (place, for_ns) = (random.pick(&places), random.magnitude(50 * MS, 1_500 * MS));
    let moment = random.pick(&[Moment::NextGroup, Moment::BackupMoved]);
    let delay_ns = if random.percent(30) { 0 } else { random.magnitude(10 * US, 50 * MS) };
    let kind = match random.below(100) {
        0..60 => FaultKind::CrashEdge { place, loud: random.percent(70), for_ns },
        60..75 => FaultKind::FreezeEdge { place, for_ns },
        75..85 => FaultKind::Drain { place, for_ns: for_ns + S, cancel_ns: None },
        _ => FaultKind::CutWires { agent: random.index(agents + edges), place },
    };
    plan.moves.push(Fault { when: On { moment, skip: random.below(4), delay_ns }, kind });
}

/// The connection between primary and backup breaks while the coordinator is away, and a client's agent loses the primary: both claim
/// the group. The primary wins and feeds the same edge again, before that learns that its own claim was lost, and forgets what it was
/// fed.
fn late_claim(plan: &mut Plan, random: &mut Random) {
    let pace_ns = random.between(20 * MS, 60 * MS);
    talk(plan, random, 300, pace_ns);
    let silent = FaultKind::Silence {
        agent: 0,
        place: FaultTarget::Owner,
        up: true,
        down: true,
        for_ns: random.between(600 * MS, 2 * S),
    };
    let away = FaultKind::CoordinatorAway { absence: Absence::Cut, for_ns: random.between(5 * S, 7 * S) };
    plan.first =
        Fault { when: On { moment: Moment::Message, skip: random.between(10, 40), delay_ns: 0 }, kind: away };
    let (agents, edges) = (plan.agents(), plan.shards.len());
    let cut = |edge| FaultKind::CutWires { agent: agents + edge, place: FaultTarget::Edge(1 - edge) };
    let soon = [silent].into_iter().chain((0..edges).map(cut));
    let dies_ns = random.magnitude(10 * MS, S);
    let soon = soon.map(|kind| Fault { when: When::After(random.below(MS)), kind });
    plan.faults = soon.chain([dies_at_next_backup(dies_ns)]).collect();
}

/// Primary and backup do not hear each other for a moment, on wires that stay, and both claim the group while the coordinator is away.
/// That lasts until the primary may choose the same backup again. If it wins, it feeds that edge before this one has its answer.
fn undecided_claim(plan: &mut Plan, random: &mut Random) {
    let pace_ns = random.between(60 * MS, 100 * MS);
    talk(plan, random, 300, pace_ns);
    let away =
        FaultKind::CoordinatorAway { absence: Absence::Cut, for_ns: random.between(6_500 * MS, 9_500 * MS) };
    plan.first =
        Fault { when: On { moment: Moment::Message, skip: random.between(10, 40), delay_ns: 0 }, kind: away };
    let (agents, edges) = (plan.agents(), plan.shards.len());
    let silent = |agent, place, for_ns| FaultKind::Silence { agent, place, up: true, down: true, for_ns };
    let between_ns = random.between(900 * MS, 1_500 * MS);
    let mut soon = vec![silent(0, FaultTarget::Owner, random.between(600 * MS, 2 * S))];
    soon.extend((0..edges).map(|edge| silent(agents + edge, FaultTarget::Edge(1 - edge), between_ns)));
    let soon = soon.into_iter().map(|kind| Fault { when: When::After(random.below(MS)), kind });
    plan.faults = soon.collect();
    plan.faults.push(dies_at_next_backup(random.magnitude(10 * MS, S)));
}

/// The only session sends so many messages, each at most so long after the one before.
pub(super) fn talk(plan: &mut Plan, random: &mut Random, count: u64, pace_ns: u64) {
    let script = talk::script(random, count, pace_ns);
    plan.visits = vec![Visit {
        at_ns: random.between(100 * MS, 300 * MS),
        agent: 0,
        service: Service::Paired,
        key: None,
        script,
    }];
    (plan.poison, plan.server_down, plan.recorder) = (None, 0, None);
}

fn dies_at_next_backup(delay_ns: u64) -> Fault<When> {
    let when = When::On(On { moment: Moment::NextBackup, skip: 0, delay_ns });
    Fault { when, kind: FaultKind::CrashEdge { place: FaultTarget::Here, loud: true, for_ns: S } }
}

/// The coordinator of a seed that would have none. In a quarter of them it is sometimes away.
pub(super) fn coordinator(seed: u64) -> Memory {
    let mut random = Random::new(seed, 191);
    let count = if random.percent(25) { random.between(1, 2) } else { 0 };
    let kinds = [Absence::Frozen, Absence::Cut, Absence::Dead];
    let mut away = || (random.magnitude(MS, 2 * S), random.magnitude(MS, S), random.pick(&kinds));
    let away = (0..count).map(|_| away()).collect();
    Memory { how: WitnessMode::Lenient, away, claims: Vec::new(), losses: None }
}
