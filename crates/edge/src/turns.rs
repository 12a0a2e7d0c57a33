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
struct Line<T> {
    pass: u64,
    weight: u32,
    work: VecDeque<T>,
}

/// Work that waits for its turn.
#[derive(Debug)]
pub struct Turns<T> {
    /// By priority, highest first.
    urgent: BTreeMap<core::cmp::Reverse<u8>, VecDeque<T>>,
    tenants: Vec<Line<T>>,
    /// Tenants that have fair work, the one whose turn it is first.
    order: BTreeSet<(u64, Tenant)>,
    /// The highest pass that had a turn: tenants that had nothing to do start a little ahead of it.
    pass: u64,
    len: usize,
}

impl<T> Line<T> {
    /// What so much time adds to the pass.
    fn passes(&self, spent_ns: u64) -> u64 {
        spent_ns.saturating_mul(SCALE) / u64::from(self.weight)
    }

    /// Gives up what was saved beyond a slice, where the others are at `now`.
    fn catch_up(&mut self, now: u64) {
        self.pass = self.pass.max(now.saturating_sub(self.passes(AHEAD_NS)));
    }
}

impl<T> Default for Turns<T> {
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

impl<T> Turns<T> {
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
    pub fn weigh(&mut self, tenant: Tenant, weight: u32) {
        self.line(tenant).weight = weight.max(1);
    }

    fn line(&mut self, tenant: Tenant) -> &mut Line<T> {
        let index = tenant.0 as usize;
        while self.tenants.len() <= index {
            self.tenants.push(Line { pass: 0, weight: WEIGHT, work: VecDeque::new() });
        }
        &mut self.tenants[index]
    }

    /// Adds work behind what its tenant, or its priority, has.
    pub fn push(&mut self, tenant: Tenant, class: Class, work: T) {
        self.queue(tenant, class).push_back(work);
    }

    /// Adds work before what its tenant, or its priority, has: what was preempted and is to go on.
    pub fn push_again(&mut self, tenant: Tenant, class: Class, work: T) {
        self.queue(tenant, class).push_front(work);
    }

    /// Where one more piece of work goes.
    fn queue(&mut self, tenant: Tenant, class: Class) -> &mut VecDeque<T> {
        self.len += 1;
        if let Class::Priority(level) = class {
            return self.urgent.entry(core::cmp::Reverse(level)).or_default();
        }
        let now = self.pass;
        let line = self.line(tenant);
        if line.work.is_empty() {
            line.catch_up(now);
            let pass = line.pass;
            self.order.insert((pass, tenant));
        }
        &mut self.line(tenant).work
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
        let line = self.line(tenant);
        let work = line.work.pop_front()?;
        if !line.work.is_empty() {
            self.order.insert((pass, tenant));
        }
        self.len -= 1;
        Some(work)
    }

    /// A tenant's fair turn took so long, in nanoseconds.
    pub fn charge(&mut self, tenant: Tenant, spent_ns: u64) {
        let now = self.pass;
        let line = self.line(tenant);
        let before = line.pass;
        line.catch_up(now);
        line.pass = line.pass.saturating_add(line.passes(spent_ns.max(TURN_NS_MIN)));
        let after = line.pass;
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
                let Some(line) = self.tenants.get_mut(tenant.0 as usize) else { return };
                let before = line.work.len();
                line.work.retain(wanted);
                let (pass, after) = (line.pass, line.work.len());
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
    fn run(turns: &mut Turns<Tenant>, count: usize, cost_ns: impl Fn(Tenant) -> u64) -> [u64; 2] {
        let mut had = [0; 2];
        for _ in 0..count {
            let tenant = turns.pop().expect("there is always work");
            had[tenant.0 as usize] += cost_ns(tenant) / 1_000;
            turns.charge(tenant, cost_ns(tenant));
            turns.push(tenant, Class::Fair, tenant);
        }
        had
    }

    #[test]
    fn tenants_get_equal_time_however_they_cut_it() {
        let mut turns = Turns::default();
        // One has many cells and long handlers, the other one cell and short ones.
        for _ in 0..50 {
            turns.push(A, Class::Fair, A);
        }
        turns.push(B, Class::Fair, B);
        let had = run(&mut turns, 50_000, |tenant| if tenant == A { 1_000_000 } else { 10_000 });
        let ratio = had[0] * 100 / had[1];
        assert!((95..=105).contains(&ratio), "{had:?}");
    }

    #[test]
    fn weight_is_a_share() {
        let mut turns = Turns::default();
        turns.weigh(A, 300);
        turns.push(A, Class::Fair, A);
        turns.push(B, Class::Fair, B);
        let had = run(&mut turns, 40_000, |_| 10_000);
        let ratio = had[0] * 100 / had[1];
        assert!((295..=305).contains(&ratio), "{had:?}");
    }

    #[test]
    fn who_was_idle_is_next_but_saves_nothing_up() {
        let mut turns = Turns::default();
        turns.push(A, Class::Fair, A);
        run(&mut turns, 1_000, |_| 1_000_000);
        turns.push(B, Class::Fair, B);
        // A slice ahead, and no more: from there on they take turns.
        let had = run(&mut turns, 101, |_| 1_000_000);
        assert!(had[1] == had[0] + 1_000, "{had:?}");
    }

    #[test]
    fn who_was_idle_goes_before_those_that_stand_side_by_side() {
        let mut turns = Turns::default();
        let loops: Vec<_> = (0..8).map(Tenant).collect();
        loops.iter().for_each(|tenant| turns.push(*tenant, Class::Fair, *tenant));
        // Each has had what it was ahead when it came.
        for _ in &loops {
            let tenant = turns.pop().expect("there is always work");
            turns.charge(tenant, AHEAD_NS);
            turns.push(tenant, Class::Fair, tenant);
        }
        let quiet = Tenant(8);
        for _ in 0..100 {
            // One of them runs when the quiet one's message arrives, which is charged for at once.
            let tenant = turns.pop().expect("there is always work");
            turns.push(quiet, Class::Fair, quiet);
            turns.charge(quiet, 2_000);
            turns.charge(tenant, 1_000_000);
            turns.push(tenant, Class::Fair, tenant);
            assert_eq!(turns.pop(), Some(quiet));
            turns.charge(quiet, 5_000);
        }
    }

    #[test]
    fn a_turn_is_never_free() {
        let mut turns = Turns::default();
        turns.push(A, Class::Fair, A);
        turns.push(B, Class::Fair, B);
        // A flood of handlers that cost nothing does not keep the other from its turn.
        let had = run(&mut turns, 10_000, |tenant| if tenant == A { 0 } else { 1_000 });
        assert!(had[1] > 3_000, "{had:?}");
    }

    #[test]
    fn a_tenant_s_cells_take_turns() {
        let mut turns = Turns::default();
        for cell in 0..3 {
            turns.push(A, Class::Fair, cell);
        }
        let mut order = Vec::new();
        for _ in 0..6 {
            let cell = turns.pop().expect("there is always work");
            order.push(cell);
            turns.charge(A, 10);
            turns.push(A, Class::Fair, cell);
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn what_goes_on_is_before_its_tenant_s_others_and_not_before_other_tenants() {
        let mut turns = Turns::default();
        turns.push(A, Class::Fair, "long");
        assert_eq!(turns.pop(), Some("long"));
        turns.push(A, Class::Fair, "next of a");
        turns.push(B, Class::Fair, "b");
        turns.push_again(A, Class::Fair, "long");
        turns.charge(A, 1_000_000);
        let order: Vec<_> = core::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order, ["b", "long", "next of a"]);
    }

    #[test]
    fn priorities_go_first_and_by_level() {
        let mut turns = Turns::default();
        for (class, work) in [
            (Class::Fair, "fair"),
            (Class::Priority(1), "low"),
            (Class::Priority(9), "high"),
            (Class::Priority(9), "high too"),
        ] {
            turns.push(A, class, work);
        }
        let order: Vec<_> = core::iter::from_fn(|| turns.pop()).collect();
        assert_eq!(order, ["high", "high too", "low", "fair"]);
        assert!(turns.is_empty());
    }

    #[test]
    fn what_is_not_wanted_any_more_is_dropped() {
        let mut turns = Turns::default();
        for work in 0..4 {
            turns.push(A, Class::Fair, work);
        }
        turns.push(B, Class::Fair, 4);
        turns.push(B, Class::Priority(0), 5);
        turns.push(A, Class::Priority(0), 6);
        turns.retain(A, Class::Fair, |work| *work % 2 == 1);
        turns.retain(A, Class::Priority(0), |work| *work != 6);
        turns.retain(A, Class::Priority(1), |_| false);
        assert_eq!(turns.len(), 4);
        assert_eq!(turns.peek(), Some(&5));
        assert_eq!(core::iter::from_fn(|| turns.pop()).collect::<Vec<_>>(), vec![5, 1, 3, 4]);
        turns.push(B, Class::Priority(0), 7);
        turns.push(B, Class::Fair, 8);
        turns.retain(B, Class::Priority(0), |_| false);
        turns.retain(B, Class::Fair, |_| false);
        assert!(turns.is_empty() && turns.peek().is_none() && turns.pop().is_none());
    }

    #[test]
    fn what_is_done_for_a_tenant_outside_of_its_turns_counts_too() {
        let mut turns = Turns::default();
        turns.push(A, Class::Fair, A);
        turns.push(B, Class::Fair, B);
        let mut had = [0; 2];
        for _ in 0..10_000 {
            let tenant = turns.pop().expect("there is always work");
            had[tenant.0 as usize] += 1;
            turns.charge(tenant, 1_000);
            if tenant == A {
                // What it sends costs as much again.
                turns.charge(A, 1_000);
            }
            turns.push(tenant, Class::Fair, tenant);
        }
        let ratio = had[1] * 100 / had[0];
        assert!((195..=205).contains(&ratio), "{had:?}");
    }
}
