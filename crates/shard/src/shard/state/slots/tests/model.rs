//! Several shards that take one slot, and a store; each backs the groups of another one. Questions and answers come in any order or are
//! lost, shards die, and others are promoted although the primary lives.
//!
//! What must hold: only a group that the slot names has a cell that runs, and a group that the slot names keeps its record. When the store
//! has lost everything, and an operator has accepted that, it holds for a cell again once its edge has had the slot's answer.

use super::*;
use alloc::{collections::BTreeSet, format};
use marram_wire::seeded::Seeded;

const EDGES: usize = 3;
/// The edge of a write that is late: its answer is lost.
const LATE: usize = EDGES;

/// A group's cell at one edge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cell {
    /// It is inserted, and the group is not claimed; the number of the claim that it had, of a cell that is lost.
    Inserted(Option<u64>),
    Unopened,
    Runs,
}

#[derive(Default)]
struct Edge {
    slots: Slots,
    cells: BTreeMap<GroupId, Cell>,
    /// Groups whose cell is over, and those of them that are to be claimed without a backup.
    emptied: BTreeSet<GroupId>,
    leaves: BTreeSet<GroupId>,
    /// Groups that are to be claimed again, since the store has lost what it knew of them, and those of which the slot's answer is awaited.
    renews: BTreeSet<GroupId>,
    doubts: BTreeSet<GroupId>,
}

/// A group's record, and whether its cell has run.
#[derive(Clone, Debug)]
struct Group {
    primary: usize,
    backup: Option<usize>,
    has_run: bool,
    claims: u64,
}

fn name(edge: usize) -> String {
    format!("edge-{edge}")
}

impl Group {
    fn claimed(&self) -> Claimed {
        let generation = Generation { count: self.claims, opener: 0 };
        Claimed { generation, primary: name(self.primary), backup: self.backup.map(name) }
    }
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
    /// What the store had before it lost everything.
    lost: BTreeMap<GroupId, Group>,
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
            lost: BTreeMap::new(),
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
            Look::Ask(query) => self.send(edge, query),
            Look::Known(held, query) => {
                query.into_iter().for_each(|query| self.send(edge, query));
                self.takes_lost(edge, held);
            }
            Look::Free => {
                let number = self.number();
                self.edges[edge].slots.begin_taking(SLOT, record(number), None);
                self.edges[edge].cells.insert(record(number).group, Cell::Inserted(None));
                self.count("begun");
            }
            Look::Waits => {}
            Look::Full => panic!("there is one slot"),
            Look::Own(group) => assert_eq!(self.edges[edge].cells.get(&group), Some(&Cell::Runs)),
        }
    }

    /// The slot's cell may be lost.
    fn takes_lost(&mut self, edge: usize, held: SlotHeld) {
        let group = held.record.group;
        let is_own = |holder: &Claimed| holder.primary == name(edge) && holder.backup.is_none();
        let (cells, emptied) = (&self.edges[edge].cells, &self.edges[edge].emptied);
        if !held.holder.as_ref().is_none_or(is_own) || cells.contains_key(&group) || emptied.contains(&group)
        {
            return;
        }
        let record = SlotRecord { incarnation: [self.number(); 16], group };
        self.edges[edge].slots.begin_taking(SLOT, record, Some(held.record));
        let claim = held.holder.map(|holder| holder.generation.count);
        self.edges[edge].cells.insert(group, Cell::Inserted(claim));
        self.count("takes a lost one");
    }

    /// The claim of a group, from nothing or from that of a cell that is lost; or again, since the store has lost it.
    fn claims(&mut self, edge: usize) {
        if let Some(group) = self.edges[edge].leaves.pop_first() {
            return self.claims_alone(edge, group);
        }
        let renews = self.edges[edge].renews.pop_first();
        let inserted = |(group, cell): (&GroupId, &Cell)| match cell {
            Cell::Inserted(claim) => Some((*group, *claim)),
            _ => None,
        };
        let begun = || self.edges[edge].cells.iter().find_map(inserted);
        let Some((group, from)) = renews.map(|group| (group, None)).or_else(begun) else { return };
        if renews.is_none() && from.is_none() && self.dice.percent(20) && !self.edges[edge].slots.keeps(group)
        {
            // Its client is gone, or the image is not there.
            self.edges[edge].slots.group_gone(self.now, group);
            self.edges[edge].cells.remove(&group);
            return self.count("abandoned");
        }
        let claims = self.groups.get(&group).map(|group| group.claims);
        if claims != from {
            self.edges[edge].slots.group_gone(self.now, group);
            self.forgets(edge, group);
            return self.count("claim lost");
        }
        let backup = self.dice.percent(80).then_some((edge + 1) % EDGES);
        let claims = claims.unwrap_or_default() + 1;
        let has_run = self.edges[edge].cells.get(&group) == Some(&Cell::Runs);
        self.groups.insert(group, Group { primary: edge, backup, has_run, claims });
        if !has_run && !self.edges[edge].emptied.contains(&group) {
            self.edges[edge].cells.insert(group, Cell::Unopened);
        }
        if let Some(query) = self.edges[edge].slots.group_claimed(group) {
            self.send(edge, query);
        }
    }

    /// The claim of a group whose cell is over: its backup must not go on.
    fn claims_alone(&mut self, edge: usize, name: GroupId) {
        let Some(group) = self.groups.get_mut(&name).filter(|group| group.primary == edge) else { return };
        (group.backup, group.claims) = (None, group.claims + 1);
        if let Some(query) = self.edges[edge].slots.group_claimed(name) {
            self.send(edge, query);
        }
    }

    fn forgets(&mut self, edge: usize, group: GroupId) {
        let edge = &mut self.edges[edge];
        edge.cells.remove(&group);
        for groups in [&mut edge.emptied, &mut edge.leaves, &mut edge.renews, &mut edge.doubts] {
            groups.remove(&group);
        }
    }

    /// The store loses everything, and an operator accepts that. What is on its way to it is not written.
    fn loses_all(&mut self) {
        self.slot = None;
        self.lost = core::mem::take(&mut self.groups);
        for letter in &mut self.letters {
            if let Letter::Query(edge, SlotQuery { take, from, .. }) = letter
                && (take.is_some() || from.is_some())
            {
                *letter = Letter::Answer(*edge, SlotAnswer { from: from.clone(), ..away(take.clone()) });
            }
        }
        let mut numbers = self.numbers;
        for edge in &mut self.edges {
            let is_claimed = |(_, cell): &(&GroupId, &Cell)| !matches!(cell, Cell::Inserted(_));
            let claimed = edge.cells.iter().filter(is_claimed).map(|(group, _)| *group);
            edge.renews = claimed.chain(edge.emptied.iter().copied()).collect();
            edge.doubts = edge.renews.clone();
            for group in &edge.renews {
                numbers += 1;
                edge.slots.again(*group, [numbers; 16]);
            }
        }
        self.numbers = numbers;
        self.count("loss");
    }

    /// A cell that runs ends, and no other one is to begin: the slot's record is removed, and then that of the group.
    fn ends(&mut self, edge: usize) {
        let runs =
            self.edges[edge].cells.iter().find(|(_, cell)| **cell == Cell::Runs).map(|(group, _)| *group);
        if let Some(group) = runs
            && self.edges[edge].doubts.is_empty()
            && self.edges[edge].slots.remove(SLOT).is_some()
        {
            self.edges[edge].leaves.insert(group);
            self.edges[edge].cells.remove(&group);
            self.edges[edge].emptied.insert(group);
            self.count("ended");
        }
        for group in self.edges[edge].emptied.clone() {
            if !self.edges[edge].slots.keeps(group) && !self.edges[edge].renews.contains(&group) {
                self.removes(edge, group);
                self.forgets(edge, group);
            }
        }
    }

    fn news(&mut self, edge: usize, news: Vec<SlotNews>) {
        for news in news {
            match news {
                SlotNews::Won { record, has_run, was_lost, .. } => {
                    if was_lost {
                        self.count("replaced");
                    }
                    let before = self.edges[edge].cells.insert(record.group, Cell::Runs);
                    assert!(!has_run || before.is_some(), "it is here");
                    self.edges[edge].doubts.remove(&record.group);
                    // What runs under a claim that is another edge's releases nothing.
                    let group = self.groups.get_mut(&record.group).filter(|group| group.primary == edge);
                    if let Some(group) = group {
                        assert_eq!(self.slot.as_ref().map(|slot| slot.group), Some(record.group));
                        group.has_run = true;
                        self.count(if has_run { "kept" } else { "won" });
                    }
                }
                SlotNews::Lost { group, has_run, .. } => {
                    let is_over = self.edges[edge].emptied.contains(&group);
                    let there = self.edges[edge].cells.contains_key(&group);
                    assert!(there || is_over, "it is here");
                    self.forgets(edge, group);
                    self.removes(edge, group);
                    self.count(if has_run { "ended for another" } else { "lost" });
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
        let lost = self.lost.iter().filter(|(name, _)| !self.groups.contains_key(*name));
        let is_backed = |(_, group): &(&GroupId, &Group)| group.backup.is_some();
        let backed: Vec<(GroupId, Group)> = self
            .groups
            .iter()
            .chain(lost)
            .filter(is_backed)
            .map(|(name, group)| (*name, group.clone()))
            .collect();
        if backed.is_empty() {
            return;
        }
        let (name, group) = backed[self.dice.index(backed.len())].clone();
        self.lost.remove(&name);
        let Some(edge) = group.backup.filter(|edge| !self.edges[*edge].cells.contains_key(&name)) else {
            return;
        };
        let (has_run, claims) = (group.has_run, group.claims + 1);
        self.groups.insert(name, Group { primary: edge, backup: None, has_run, claims });
        self.edges[edge].cells.insert(name, Cell::Unopened);
        let record = SlotRecord { incarnation: [self.number(); 16], group: name };
        self.count(if has_run { "promoted" } else { "promoted empty" });
        match self.edges[edge].slots.take_promoted(SLOT, record, has_run) {
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
        let claimed = cells.filter(|(_, cell)| !matches!(cell, Cell::Inserted(_))).map(|(name, _)| name);
        let renews = &self.edges[edge].renews;
        let all = claimed.chain(&self.edges[edge].emptied);
        let gone = all.filter(|name| !renews.contains(*name) && !is_own(name)).copied();
        for name in gone.collect::<Vec<_>>() {
            self.forgets(edge, name);
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
                let lost = SlotAnswer { from: query.from.clone(), ..away(query.take.clone()) };
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
        let SlotQuery { slot, take, from } = query.clone();
        let is_change = take.is_some() || from.is_some();
        if is_change && self.slot != take && (self.slot.is_none() || self.slot == from) {
            if take.as_ref().is_some_and(|take| !self.groups.contains_key(&take.group)) {
                // A write that was very late, or from before the loss.
                self.count("of a group without a record");
            }
            self.slot.clone_from(&take);
        }
        let won = is_change && take == self.slot;
        let there = self.slot.clone().filter(|_| !won);
        let held = there.map(|record| {
            let holder = self.groups.get(&record.group).map(Group::claimed);
            SlotHeld { record, holder }
        });
        SlotAnswer { slot, take, from, won, held, away: None }
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
            87..90 => self.ends(edge),
            90 if self.dice.percent(20) => self.loses_all(),
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
                // Whose group is another edge's releases nothing more.
                if self.groups.get(name).is_some_and(|group| group.primary == number)
                    && !edge.doubts.contains(name)
                {
                    assert_eq!(named, Some(*name), "at edge {number}");
                }
            }
        }
    }
}

#[test]
fn only_the_group_that_the_slot_names_has_a_cell_that_runs() {
    let mut counts = BTreeMap::<&str, u32>::new();
    for seed in 0..4_000 {
        let mut model = Model::new(seed);
        for _ in 0..150 {
            model.step();
        }
        for (what, count) in model.counts {
            *counts.entry(what).or_default() += count;
        }
    }
    let all = ["begun", "abandoned", "won", "lost", "removed", "unanswered", "superseded", "promoted"];
    let more = ["takes a lost one", "replaced", "claim lost", "loss", "kept", "ended", "ended for another"];
    for what in all.into_iter().chain(["promoted empty", "waits"]).chain(more) {
        assert!(counts.get(what).is_some_and(|count| *count > 20), "{what}: {counts:?}");
    }
}
