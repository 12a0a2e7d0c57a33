//! Whose handler runs next: what has a priority first, then tenants by the time that they had, then each tenant's cells in
//! turn. Knows neither clocks nor cells: it is told what a turn cost.
//!
//! Among `fair` work this is stride scheduling: a tenant's pass grows by what its handlers cost divided by its weight, and
//! the lowest pass goes next. A tenant that had nothing to do does not save up: it starts one slice of its time ahead of the
//! lowest pass of those that have. So it is next, also where others stand at that pass side by side, as endless loops do; and
//! over any while it gains a slice by that and no more. A handler that is preempted goes on when its tenant's turn comes again, until it has
//! had its share of turns; then it queues behind its tenant's other cells. Going on at once keeps handlers of like length
//! from all ending late together, as they would if each had a slice in turn.

use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    vec::Vec,
};

/// Names a tenant: its place in whatever list the caller keeps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Tenant(pub u32);

/// How urgent work is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// Before all fair work and all lower priorities; first come, first served among its own.
    Priority(u8),
    /// In turn, weighted by tenant, then by cell.
    Fair,
}

/// What a tenant has to run.
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
    /// Tenants that have fair work, the one whose turn it is first.
    order: BTreeSet<(u64, Tenant)>,
    /// The highest pass that had a turn: tenants that had nothing to do start a little ahead of it.
    pass: u64,
    len: usize,
}

impl<T> TenantQueue<T> {
    /// What so much time adds to the pass.
    fn passes(&self, spent_ns: u64) -> u64 {
        spent_ns.saturating_mul(SCALE) / u64::from(self.weight)
    }

    /// Gives up what was saved beyond a slice, where the others are at `now`.
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

/// Nanoseconds of a turn at least: one that costs next to nothing still is one.
const TURN_NS_MIN: u64 = 500;
/// What a pass is counted in, so that weights divide it without loss that matters.
const SCALE: u64 = 1_000;
/// What a tenant that had nothing to do is ahead of the others, in nanoseconds of its time.
const AHEAD_NS: u64 = 1_000_000;
/// Where passes start: nobody's is so far ahead that it would be negative.
const PASS_START: u64 = AHEAD_NS * SCALE;
/// The weight of a tenant of whom nothing else is said.
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

    /// Sets what a tenant's time is worth; 100 unless it is said, and at least 1.
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

    /// Adds work behind what its tenant, or its priority, has.
    pub fn push(&mut self, tenant: Tenant, class: Class, work: T) {
        self.queue(tenant, class).push_back(work);
    }

    /// Adds work before what its tenant, or its priority, has: what was preempted and is to go on.
    pub fn requeue_front(&mut self, tenant: Tenant, class: Class, work: T) {
        self.queue(tenant, class).push_front(work);
    }

    /// Where one more piece of work goes.
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

    /// Takes the work whose turn it is.
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

    /// A tenant's fair turn took so long, in nanoseconds.
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

    /// Whose turn it is, without taking it.
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        if let Some((_, urgent)) = self.urgent.first_key_value() {
            return urgent.front();
        }
        let (_, tenant) = self.order.first()?;
        self.tenants[tenant.0 as usize].work.front()
    }

    /// Drops work that is not wanted any more; looks only at what this tenant has in this class, or at all that has this
    /// priority.
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

    /// Runs `turns` turns of tenants that always have work again; what each had, in microseconds.
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
    fn who_was_idle_is_next_but_saves_nothing_up() {
        let mut queue = RunQueue::default();
        queue.push(A, Class::Fair, A);
        run(&mut queue, 1_000, |_| 1_000_000);
        queue.push(B, Class::Fair, B);
        // A slice ahead, and no more: from there on they take turns.
        let had = run(&mut queue, 101, |_| 1_000_000);
        assert!(had[1] == had[0] + 1_000, "{had:?}");
    }

    #[test]
    fn who_was_idle_goes_before_those_that_stand_side_by_side() {
        let mut queue = RunQueue::default();
        let loops: Vec<_> = (0..8).map(Tenant).collect();
        loops.iter().for_each(|tenant| queue.push(*tenant, Class::Fair, *tenant));
        // Each has had what it was ahead when it came.
        for _ in &loops {
            let tenant = queue.pop().expect("there is always work");
            queue.charge(tenant, AHEAD_NS);
            queue.push(tenant, Class::Fair, tenant);
        }
        let quiet = Tenant(8);
        for _ in 0..100 {
            // One of them runs when the quiet one's message arrives, which is charged for at once.
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
        // A flood of handlers that cost nothing does not keep the other from its turn.
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
