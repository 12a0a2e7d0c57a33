//! Several shards that take one slot, and a store; each backs the groups of another one. Questions and answers come in any order or are
//! lost, shards die, and others are promoted although the primary lives.
//!
//! What must hold: only a group that the slot names has a cell that runs, the slot's record is that of the first write, and a group that
//! the slot names keeps its record.

use super::*;
use alloc::collections::BTreeSet;
use marram_wire::seeded::Seeded;

const EDGES: usize = 3;
/// The edge of a write that is late: its answer is lost.
const LATE: usize = EDGES;

/// A group's cell at one edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    /// It is inserted, and the group is not claimed.
    Inserted,
    Unopened,
    Runs,
}

#[derive(Default)]
struct Edge {
    slots: Slots,
    cells: BTreeMap<GroupId, Cell>,
}

/// A group's record, and whether its cell has run.
#[derive(Clone, Debug)]
struct Group {
    primary: usize,
    backup: Option<usize>,
    has_run: bool,
}

enum Letter {
    Query(usize, SlotQuery),
    Answer(usize, SlotAnswer),
}

struct Model {
    now: u64,
    slot: Option<SlotRecord>,
    groups: BTreeMap<GroupId, Group>,
    removed: BTreeSet<GroupId>,
    edges: Vec<Edge>,
    letters: Vec<Letter>,
    dice: Seeded,
    numbers: u8,
    counts: BTreeMap<&'static str, u32>,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            now: 0,
            slot: None,
            groups: BTreeMap::new(),
            removed: BTreeSet::new(),
            edges: (0..EDGES).map(|_| Edge::default()).collect(),
            letters: Vec::new(),
            dice: Seeded::new(seed),
            numbers: 0,
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn number(&mut self) -> u8 {
        self.numbers += 1;
        self.numbers
    }

    fn send(&mut self, edge: usize, query: SlotQuery) {
        self.letters.push(Letter::Query(edge, query));
    }

    /// An end asks for the cell.
    fn hello(&mut self, edge: usize) {
        match self.edges[edge].slots.look(self.now, SLOT) {
            Look::Ask(query) | Look::Known(_, Some(query)) => self.send(edge, query),
            Look::Free => {
                let number = self.number();
                self.edges[edge].slots.begin_taking(SLOT, record(number));
                self.edges[edge].cells.insert(record(number).group, Cell::Inserted);
                self.count("begun");
            }
            Look::Known(..) | Look::Waits => {}
            Look::Own(group) => assert_eq!(self.edges[edge].cells.get(&group), Some(&Cell::Runs)),
        }
    }

    /// The claim of a group from nothing.
    fn claims(&mut self, edge: usize) {
        let mut cells = self.edges[edge].cells.iter();
        let Some(group) = cells.find(|(_, cell)| **cell == Cell::Inserted).map(|(group, _)| *group) else {
            return;
        };
        if self.dice.percent(20) {
            // Its client is gone, or the image is not there.
            assert!(!self.edges[edge].slots.keeps(group));
            self.edges[edge].slots.group_gone(self.now, group);
            self.edges[edge].cells.remove(&group);
            return self.count("abandoned");
        }
        let backup = self.dice.percent(80).then_some((edge + 1) % EDGES);
        self.groups.insert(group, Group { primary: edge, backup, has_run: false });
        self.edges[edge].cells.insert(group, Cell::Unopened);
        if let Some(query) = self.edges[edge].slots.group_claimed(group) {
            self.send(edge, query);
        }
    }

    fn news(&mut self, edge: usize, news: Vec<SlotNews>) {
        for news in news {
            match news {
                SlotNews::Won { record, .. } => {
                    assert_eq!(self.slot, Some(record.clone()));
                    self.edges[edge].cells.insert(record.group, Cell::Runs);
                    // What runs under a claim that is another edge's releases nothing.
                    let group = self.groups.get_mut(&record.group).filter(|group| group.primary == edge);
                    if let Some(group) = group {
                        group.has_run = true;
                        self.count("won");
                    }
                }
                SlotNews::Lost { group, .. } => {
                    self.edges[edge].cells.remove(&group).expect("it is here");
                    self.removes(edge, group);
                    self.count("lost");
                }
                SlotNews::Unanswered { .. } => self.count("unanswered"),
            }
        }
    }

    /// The record of an empty group is removed, by compare.
    fn removes(&mut self, edge: usize, group: GroupId) {
        assert!(!self.edges[edge].slots.keeps(group));
        if self.groups.get(&group).is_some_and(|it| it.primary == edge) {
            self.groups.remove(&group);
            self.removed.insert(group);
            self.count("removed");
        }
    }

    /// The backup of a group claims it: its primary is dead, or seems so.
    fn promotes(&mut self) {
        let is_backed = |(_, group): &(&GroupId, &Group)| group.backup.is_some();
        let backed: Vec<GroupId> = self.groups.iter().filter(is_backed).map(|(name, _)| *name).collect();
        if backed.is_empty() {
            return;
        }
        let name = backed[self.dice.index(backed.len())];
        let Some(group) = self.groups.get_mut(&name) else { return };
        let Some(edge) = group.backup.take() else { return };
        group.primary = edge;
        if group.has_run {
            self.edges[edge].cells.insert(name, Cell::Runs);
            let news = self.edges[edge].slots.promoted(SLOT, name);
            self.news(edge, news);
            return self.count("promoted");
        }
        self.edges[edge].cells.insert(name, Cell::Unopened);
        let record = SlotRecord { incarnation: [self.number(); 16], group: name };
        self.count("promoted empty");
        match self.edges[edge].slots.take_promoted(SLOT, record) {
            Promoted::Ask(query) => self.send(edge, query),
            Promoted::Waits => self.count("waits"),
            Promoted::Lost => {
                self.edges[edge].cells.remove(&name);
                self.removes(edge, name);
            }
        }
    }

    /// An edge learns that its groups are others'.
    fn learns(&mut self, edge: usize) {
        let is_own = |name: &GroupId| self.groups.get(name).is_some_and(|group| group.primary == edge);
        let cells = self.edges[edge].cells.iter();
        let gone = cells.filter(|(name, cell)| **cell != Cell::Inserted && !is_own(name));
        for name in gone.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.edges[edge].cells.remove(&name);
            self.edges[edge].slots.group_gone(self.now, name);
            self.count("superseded");
        }
    }

    fn dies(&mut self, edge: usize) {
        self.edges[edge] = Edge::default();
        // A new life backs nothing.
        for group in self.groups.values_mut().filter(|group| group.backup == Some(edge)) {
            group.backup = None;
        }
    }

    /// A letter arrives. That of an edge that has died arrives at its next life.
    fn delivers(&mut self) {
        if self.letters.is_empty() {
            return;
        }
        let at = self.dice.index(self.letters.len());
        match self.letters.swap_remove(at) {
            Letter::Query(edge, query) => {
                let lost = away(query.take.clone());
                let answer = match self.dice.index(10) {
                    0 => lost,
                    1 => {
                        self.asked(&query);
                        lost
                    }
                    2 => {
                        self.send(LATE, query);
                        lost
                    }
                    _ => self.asked(&query),
                };
                self.letters.push(Letter::Answer(edge, answer));
            }
            Letter::Answer(LATE, _) => {}
            Letter::Answer(edge, answer) => {
                let news = self.edges[edge].slots.answered(self.now, answer);
                self.news(edge, news);
            }
        }
    }

    /// The store takes a question.
    fn asked(&mut self, query: &SlotQuery) -> SlotAnswer {
        if let (None, Some(take)) = (&self.slot, &query.take) {
            assert!(!self.removed.contains(&take.group), "a slot names a group without a record");
            assert!(self.groups.contains_key(&take.group));
            self.slot = Some(take.clone());
        }
        let is_own = self.slot.is_some() && query.take == self.slot;
        let held = self.slot.clone().filter(|_| !is_own).map(|record| SlotHeld { record, holder: None });
        SlotAnswer { slot: SLOT, take: query.take.clone(), won: is_own, held, away: None }
    }

    fn step(&mut self) {
        let edge = self.dice.index(EDGES);
        match self.dice.index(100) {
            0..30 => self.hello(edge),
            30..50 => self.claims(edge),
            50..75 => self.delivers(),
            75..80 => self.promotes(),
            80..85 => self.learns(edge),
            85..87 => self.dies(edge),
            _ => {
                self.now += SLOT_FRESH_NS / 4;
                for query in self.edges[edge].slots.due(self.now) {
                    self.send(edge, query);
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        let named = self.slot.as_ref().map(|slot| slot.group);
        for (number, edge) in self.edges.iter().enumerate() {
            edge.slots.invariants().unwrap();
            for (name, _) in edge.cells.iter().filter(|(_, cell)| **cell == Cell::Runs) {
                assert_eq!(named, Some(*name), "at edge {number}");
            }
        }
        assert!(named.is_none_or(|name| self.groups.contains_key(&name)));
    }
}

#[test]
fn only_the_group_that_the_slot_names_has_a_cell_that_runs() {
    let mut counts = BTreeMap::<&str, u32>::new();
    for seed in 0..2_000 {
        let mut model = Model::new(seed);
        for _ in 0..150 {
            model.step();
        }
        for (what, count) in model.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    let all = ["begun", "abandoned", "won", "lost", "removed", "unanswered", "superseded", "promoted"];
    for what in all.into_iter().chain(["promoted empty", "waits"]) {
        assert!(counts.get(what).is_some_and(|count| *count > 20), "{what}: {counts:?}");
    }
}
