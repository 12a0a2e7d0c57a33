//! The run queue: which handler runs next. Priority work runs first, then tenants by the CPU time that they have had, then each
//! tenant's cells in turn. The queue knows neither clocks nor cells: the caller reports what a turn cost.
//!
//! `fair` work is scheduled by stride scheduling: a tenant's pass grows by the cost of its handlers divided by its weight, and
//! the lowest pass runs next. An idle tenant does not save up time: when it returns, it starts one slice ahead of the highest
//! pass that had a turn. So it runs next, also if other tenants share one pass, as endless loops do; its advantage is one slice
//! at most. A preempted handler continues at its tenant's next turn, until it has had its share of turns; then it queues behind
//! its tenant's other cells. Because it continues first, handlers of similar length do not all end late together, as they would
//! with one slice each in turn.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};

/// Names a tenant: an index that the caller assigns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tenant(pub u32);

/// How urgent work is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Before all fair work and all lower priorities; first in, first out within one priority.
    Priority(u8),
    /// Weighted by tenant, then its cells in turn.
    Fair,
}

/// The work of one tenant.
#[derive(Debug)]
struct TenantQueue<T> {
    pass: u64,
    weight: u32,
    work: VecDeque<T>,
}

/// Work that waits for its turn.
#[derive(Debug)]
pub struct RunQueue<T> {
    /// By priority, highest first.
    urgent: BTreeMap<core::cmp::Reverse<u8>, VecDeque<T>>,
    tenants: Vec<TenantQueue<T>>,
    /// Tenants that have fair work, by pass.
    order: BTreeSet<(u64, Tenant)>,
    /// The highest pass that had a turn: returning tenants start a little ahead of it.
    pass: u64,
    len: usize,
}

impl<T> TenantQueue<T> {
    /// How much this time adds to the pass.
    fn passes(&self, spent_ns: u64) -> u64 {
        spent_ns.saturating_mul(SCALE) / u64::from(self.weight)
    }

    /// Limits the tenant's advantage to one slice, where the others are at `now`.
    fn catch_up(&mut self, now: u64) {
        self.pass = self.pass.max(now.saturating_sub(self.passes(AHEAD_NS)));
    }
}

impl<T> Default for RunQueue<T> {
    fn default() -> Self {
        Self {
            urgent: BTreeMap::new(),
            tenants: Vec::new(),
            order: BTreeSet::new(),
            pass: PASS_START,
            len: 0,
        }
    }
}

/// The minimum charge of a turn, in nanoseconds: no turn is free.
const TURN_NS_MIN: u64 = 500;
/// The unit of passes: large enough that division by a weight loses no relevant precision.
const SCALE: u64 = 1_000;
/// How far a returning tenant is ahead of the others, in nanoseconds of its time.
const AHEAD_NS: u64 = 1_000_000;
/// Where passes start: high enough that no tenant's advantage makes its pass negative.
const PASS_START: u64 = AHEAD_NS * SCALE;
/// The default weight of a tenant.
pub const WEIGHT: u32 = 100;

impl<T> RunQueue<T> {
    /// Work that waits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a tenant's weight; the default is 100, the minimum 1.
    pub fn set_weight(&mut self, tenant: Tenant, weight: u32) {
        self.tenant(tenant).weight = weight.max(1);
    }

    fn tenant(&mut self, tenant: Tenant) -> &mut TenantQueue<T> {
        let index = tenant.0 as usize;
        while self.tenants.len() <= index {
            self.tenants.push(TenantQueue { pass: 0, weight: WEIGHT, work: VecDeque::new() });
        }
        &mut self.tenants[index]
    }

    /// Adds work at the back of its tenant's queue, or of its priority's.
    pub fn push(&mut self, tenant: Tenant, class: Class, work: T) {
        self.queue(tenant, class).push_back(work);
    }

    /// Adds preempted work at the front of its tenant's queue, or of its priority's.
    pub fn requeue_front(&mut self, tenant: Tenant, class: Class, work: T) {
        self.queue(tenant, class).push_front(work);
    }

    /// The queue for new work.
    fn queue(&mut self, tenant: Tenant, class: Class) -> &mut VecDeque<T> {
        self.len += 1;
        if let Class::Priority(level) = class {
            return self.urgent.entry(core::cmp::Reverse(level)).or_default();
        }
        let now = self.pass;
        let queue = self.tenant(tenant);
        if queue.work.is_empty() {
            queue.catch_up(now);
            let pass = queue.pass;
            self.order.insert((pass, tenant));
        }
        &mut self.tenant(tenant).work
    }

    /// Takes the next work.
    pub fn pop(&mut self) -> Option<T> {
        if let Some(mut urgent) = self.urgent.first_entry() {
            let work = urgent.get_mut().pop_front();
            if urgent.get().is_empty() {
                urgent.remove();
            }
            self.len -= usize::from(work.is_some());
            return work;
        }
        let (pass, tenant) = self.order.pop_first()?;
        self.pass = self.pass.max(pass);
        let queue = self.tenant(tenant);
        let work = queue.work.pop_front()?;
        if !queue.work.is_empty() {
            self.order.insert((pass, tenant));
        }
        self.len -= 1;
        Some(work)
    }

    /// Charges a tenant for a fair turn of this many nanoseconds.
    pub fn charge(&mut self, tenant: Tenant, spent_ns: u64) {
        let now = self.pass;
        let queue = self.tenant(tenant);
        let before = queue.pass;
        queue.catch_up(now);
        queue.pass = queue.pass.saturating_add(queue.passes(spent_ns.max(TURN_NS_MIN)));
        let after = queue.pass;
        if self.order.remove(&(before, tenant)) {
            self.order.insert((after, tenant));
        }
    }

    /// The next work, without taking it.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        if let Some((_, urgent)) = self.urgent.first_key_value() {
            return urgent.front();
        }
        let (_, tenant) = self.order.first()?;
        self.tenants[tenant.0 as usize].work.front()
    }

    /// Drops work for which `wanted` is false; looks only at this tenant's work in this class, or at all work of this priority.
    pub fn retain(&mut self, tenant: Tenant, class: Class, wanted: impl FnMut(&T) -> bool) {
        let (before, after) = match class {
            Class::Priority(level) => {
                let level = core::cmp::Reverse(level);
                let Some(urgent) = self.urgent.get_mut(&level) else { return };
                let before = urgent.len();
                urgent.retain(wanted);
                let after = urgent.len();
                if after == 0 {
                    self.urgent.remove(&level);
                }
                (before, after)
            }
            Class::Fair => {
                let Some(queue) = self.tenants.get_mut(tenant.0 as usize) else { return };
                let before = queue.work.len();
                queue.work.retain(wanted);
                let (pass, after) = (queue.pass, queue.work.len());
                if after == 0 {
                    self.order.remove(&(pass, tenant));
                }
                (before, after)
            }
        };
        self.len -= before - after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const A: Tenant = Tenant(0);
    const B: Tenant = Tenant(1);

    /// Runs `count` turns of tenants that always have work. Returns the time of each in microseconds.
    fn run(queue: &mut RunQueue<Tenant>, count: usize, cost_ns: impl Fn(Tenant) -> u64) -> [u64; 2] {
        let mut had = [0; 2];
        for _ in 0..count {
            let tenant = queue.pop().expect("there is always work");
            had[tenant.0 as usize] += cost_ns(tenant) / 1_000;
            queue.charge(tenant, cost_ns(tenant));
            queue.push(tenant, Class::Fair, tenant);
        }
        had
    }

    #[test]
    fn tenants_get_equal_time_however_they_cut_it() {
        let mut queue = RunQueue::default();
        // One has many cells and long handlers, the other one cell and short ones.
        for _ in 0..50 {
            queue.push(A, Class::Fair, A);
        }
        queue.push(B, Class::Fair, B);
        let had = run(&mut queue, 50_000, |tenant| if tenant == A { 1_000_000 } else { 10_000 });
        let ratio = had[0] * 100 / had[1];
        assert!((95..=105).contains(&ratio), "{had:?}");
    }

    #[test]
    fn weight_is_a_share() {
        let mut queue = RunQueue::default();
        queue.set_weight(A, 300);
        queue.push(A, Class::Fair, A);
        queue.push(B, Class::Fair, B);
        let had = run(&mut queue, 40_000, |_| 10_000);
        let ratio = had[0] * 100 / had[1];
        assert!((295..=305).contains(&ratio), "{had:?}");
    }

    #[test]
    fn an_idle_tenant_is_next_but_saves_nothing_up() {
        let mut queue = RunQueue::default();
        queue.push(A, Class::Fair, A);
        run(&mut queue, 1_000, |_| 1_000_000);
        queue.push(B, Class::Fair, B);
        // One slice ahead, and no more: from there on they take turns.
        let had = run(&mut queue, 101, |_| 1_000_000);
        assert!(had[1] == had[0] + 1_000, "{had:?}");
    }

    #[test]
    fn an_idle_tenant_runs_before_tenants_with_equal_positions() {
        let mut queue = RunQueue::default();
        let loops: Vec<_> = (0..8).map(Tenant).collect();
        loops.iter().for_each(|tenant| queue.push(*tenant, Class::Fair, *tenant));
        // Each has used its initial advantage.
        for _ in &loops {
            let tenant = queue.pop().expect("there is always work");
            queue.charge(tenant, AHEAD_NS);
            queue.push(tenant, Class::Fair, tenant);
        }
        let quiet = Tenant(8);
        for _ in 0..100 {
            // One of them runs when the message of the idle tenant arrives, and is charged at once.
            let tenant = queue.pop().expect("there is always work");
            queue.push(quiet, Class::Fair, quiet);
            queue.charge(quiet, 2_000);
            queue.charge(tenant, 1_000_000);
            queue.push(tenant, Class::Fair, tenant);
            assert_eq!(queue.pop(), Some(quiet));
            queue.charge(quiet, 5_000);
        }
    }

    #[test]
    fn a_turn_is_never_free() {
        let mut queue = RunQueue::default();
        queue.push(A, Class::Fair, A);
        queue.push(B, Class::Fair, B);
        // A flood of handlers that cost nothing does not starve the other tenant.
        let had = run(&mut queue, 10_000, |tenant| if tenant == A { 0 } else { 1_000 });
        assert!(had[1] > 3_000, "{had:?}");
    }

    #[test]
    fn a_tenant_s_cells_take_turns() {
        let mut queue = RunQueue::default();
        for cell in 0..3 {
            queue.push(A, Class::Fair, cell);
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            let cell = queue.pop().expect("there is always work");
            order.push(cell);
            queue.charge(A, 10);
            queue.push(A, Class::Fair, cell);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn what_goes_on_is_before_its_tenant_s_others_and_not_before_other_tenants() {
        let mut queue = RunQueue::default();
        queue.push(A, Class::Fair, "long");
        assert_eq!(queue.pop(), Some("long"));
        queue.push(A, Class::Fair, "next of a");
        queue.push(B, Class::Fair, "b");
        queue.requeue_front(A, Class::Fair, "long");
        queue.charge(A, 1_000_000);
        let order: Vec<_> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["b", "long", "next of a"]);
    }

    #[test]
    fn priorities_go_first_and_by_level() {
        let mut queue = RunQueue::default();
        for (class, work) in [
            (Class::Fair, "fair"),
            (Class::Priority(1), "low"),
            (Class::Priority(9), "high"),
            (Class::Priority(9), "high too"),
        ] {
            queue.push(A, class, work);
        }
        let order: Vec<_> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, ["high", "high too", "low", "fair"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_not_wanted_any_more_is_dropped() {
        let mut queue = RunQueue::default();
        for work in 0..4 {
            queue.push(A, Class::Fair, work);
        }
        queue.push(B, Class::Fair, 4);
        queue.push(B, Class::Priority(0), 5);
        queue.push(A, Class::Priority(0), 6);
        queue.retain(A, Class::Fair, |work| *work % 2 == 1);
        queue.retain(A, Class::Priority(0), |work| *work != 6);
        queue.retain(A, Class::Priority(1), |_| false);
        assert_eq!(queue.len(), 4);
        assert_eq!(queue.peek(), Some(&5));
        assert_eq!(core::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), vec![5, 1, 3, 4]);
        queue.push(B, Class::Priority(0), 7);
        queue.push(B, Class::Fair, 8);
        queue.retain(B, Class::Priority(0), |_| false);
        queue.retain(B, Class::Fair, |_| false);
        assert!(queue.is_empty() && queue.peek().is_none() && queue.pop().is_none());
    }

    #[test]
    fn what_is_done_for_a_tenant_outside_of_its_turns_counts_too() {
        let mut queue = RunQueue::default();
        queue.push(A, Class::Fair, A);
        queue.push(B, Class::Fair, B);
        let mut had = [0; 2];
        for _ in 0..10_000 {
            let tenant = queue.pop().expect("there is always work");
            had[tenant.0 as usize] += 1;
            queue.charge(tenant, 1_000);
            if tenant == A {
                // What it sends costs as much again.
                queue.charge(A, 1_000);
            }
            queue.push(tenant, Class::Fair, tenant);
        }
        let ratio = had[1] * 100 / had[0];
        assert!((195..=205).contains(&ratio), "{had:?}");
    }
}
