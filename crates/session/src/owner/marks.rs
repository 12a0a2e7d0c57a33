//! What has passed at each port. A copy costs nothing, since copies share what is equal in both: an owner has some for each epoch
//! that is on its way, and a shared cell may have thousands of ports.

use alloc::{sync::Arc, vec::Vec};
use marram_wire::id::Port;

/// What has passed at one end, up to a boundary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// Messages that the cell consumed.
    pub(super) took: u64,
    /// Outputs that were produced for the end.
    pub(super) produced: u64,
    /// Charge of the consumed messages that the end was not told to forget.
    pub(super) uncovered: u64,
}

/// Children of a node.
const FAN: usize = 16;
const FAN_BITS: u32 = FAN.ilog2();

/// A mark for each port; the default where nothing has passed.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    /// Those of the first two ports are in place: most sessions have no more, and need no memory of their own for a boundary.
    first: [Mark; 2],
    /// Nodes above each other. With none there are no further ports.
    height: u32,
    root: Option<Arc<Node>>,
}

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "most nodes are leaves")]
enum Node {
    Leaf([Mark; FAN]),
    Inner([Option<Arc<Node>>; FAN]),
}

/// Which child of a node that has so many nodes below it leads to a port.
fn child(port: u32, below: u32) -> usize {
    (port >> (FAN_BITS * below)) as usize % FAN
}

impl Node {
    fn new(below: u32) -> Arc<Self> {
        Arc::new(if below == 0 {
            Self::Leaf([Mark::default(); FAN])
        } else {
            Self::Inner(Default::default())
        })
    }

    fn set(&mut self, below: u32, port: u32, mark: Mark) {
        match self {
            Self::Leaf(marks) => marks[child(port, 0)] = mark,
            Self::Inner(nodes) => {
                let node = nodes[child(port, below)].get_or_insert_with(|| Self::new(below - 1));
                Arc::make_mut(node).set(below - 1, port, mark);
            }
        }
    }
}

impl Marks {
    /// Whether the tree has a place for this port.
    fn reaches(&self, port: u32) -> bool {
        u64::from(port) >> (FAN_BITS * self.height) == 0
    }

    /// The mark of a port.
    pub(super) fn get(&self, port: Port) -> Mark {
        if let Some(mark) = self.first.get(port.0 as usize) {
            return *mark;
        }
        if !self.reaches(port.0) {
            return Mark::default();
        }
        let (mut node, mut below) = (self.root.as_deref(), self.height);
        loop {
            below = below.saturating_sub(1);
            node = match node {
                None => return Mark::default(),
                Some(Node::Leaf(marks)) => return marks[child(port.0, 0)],
                Some(Node::Inner(nodes)) => nodes[child(port.0, below)].as_deref(),
            };
        }
    }

    /// Sets the mark of a port.
    pub(super) fn set(&mut self, port: Port, mark: Mark) {
        if let Some(first) = self.first.get_mut(port.0 as usize) {
            *first = mark;
        } else if self.get(port) != mark {
            while !self.reaches(port.0) {
                self.grow();
            }
            let below = self.height - 1;
            let root = self.root.get_or_insert_with(|| Node::new(below));
            Arc::make_mut(root).set(below, port.0, mark);
        }
    }

    /// One more node above the others.
    fn grow(&mut self) {
        if let Some(root) = self.root.take() {
            let mut nodes: [Option<Arc<Node>>; FAN] = Default::default();
            nodes[0] = Some(root);
            self.root = Some(Arc::new(Node::Inner(nodes)));
        }
        self.height += 1;
    }

    /// The ports whose marks differ, in ascending order. Costs as much as differs.
    pub(super) fn differ(&self, other: &Self) -> Vec<Port> {
        let firsts = (0..).zip(self.first.iter().zip(&other.first));
        let mut ports: Vec<Port> =
            firsts.filter(|(_, (one, two))| one != two).map(|(port, _)| Port(port)).collect();
        let (mut one, mut two) = (self.clone(), other.clone());
        while one.height < two.height {
            one.grow();
        }
        while two.height < one.height {
            two.grow();
        }
        differ(one.root.as_ref(), two.root.as_ref(), one.height, 0, &mut ports);
        ports
    }
}

/// The ports whose marks differ below these nodes, the first of which is `from`.
fn differ(one: Option<&Arc<Node>>, two: Option<&Arc<Node>>, height: u32, from: u32, ports: &mut Vec<Port>) {
    let is_same = match (one, two) {
        (None, None) => true,
        (Some(one), Some(two)) => Arc::ptr_eq(one, two),
        _ => false,
    };
    if is_same {
        return;
    }
    let Some(below) = height.checked_sub(1) else { return };
    for (at, index) in (0..).zip(0..FAN) {
        let from = from + (at << (FAN_BITS * below));
        if below == 0 {
            let mark = |node: Option<&Arc<Node>>| match node.map(|node| &**node) {
                Some(Node::Leaf(marks)) => marks[index],
                _ => Mark::default(),
            };
            ports.extend((mark(one) != mark(two)).then_some(Port(from)));
        } else {
            let node = |node: Option<&'_ Arc<Node>>| match node.map(|node| &**node) {
                Some(Node::Inner(nodes)) => nodes[index].clone(),
                _ => None,
            };
            differ(node(one).as_ref(), node(two).as_ref(), below, from, ports);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::{collections::BTreeMap, vec};

    /// Ports at which the tree has one level more, and those beside them.
    const PORTS: [u32; 17] =
        [0, 1, 2, 3, 14, 15, 16, 17, 31, 32, 255, 256, 4_095, 4_096, 70_000, 1 << 28, u32::MAX];

    fn mark(count: u64) -> Mark {
        Mark { took: count, produced: 2 * count, uncovered: 3 * count }
    }

    #[test]
    fn marks_are_as_they_were_set_and_copies_stay() {
        let (mut marks, mut expected) = (Marks::default(), BTreeMap::new());
        let mut copies = vec![(marks.clone(), expected.clone())];
        // Each port is set, set again, and cleared, in an order that goes up and down.
        for (step, index) in (0..).zip((0..3 * PORTS.len()).map(|step| step * 7 % PORTS.len())) {
            let (port, count) = (Port(PORTS[index]), if step % 5 == 4 { 0 } else { step + 1 });
            marks.set(port, mark(count));
            expected.insert(port, mark(count));
            copies.push((marks.clone(), expected.clone()));
        }
        let of = |expected: &BTreeMap<Port, Mark>, port| expected.get(&port).copied().unwrap_or_default();
        for (copy, expected) in &copies {
            for port in PORTS.map(Port) {
                assert_eq!(copy.get(port), of(expected, port), "{port:?}");
            }
            for (other, others) in &copies {
                let differ = PORTS.map(Port).into_iter().filter(|at| of(expected, *at) != of(others, *at));
                assert_eq!(copy.differ(other), differ.collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn what_did_not_change_is_shared() {
        let mut marks = Marks::default();
        (0..1_000).for_each(|port| marks.set(Port(port), mark(1)));
        let before = marks.clone();
        marks.set(Port(500), mark(2));
        let (Some(Node::Inner(one)), Some(Node::Inner(two))) =
            (before.root.as_deref(), marks.root.as_deref())
        else {
            panic!("there is more than one node");
        };
        let differ = |(one, two): (&Option<Arc<Node>>, &Option<Arc<Node>>)| match (one, two) {
            (Some(one), Some(two)) => !Arc::ptr_eq(one, two),
            (one, two) => one.is_some() || two.is_some(),
        };
        assert_eq!(one.iter().zip(two).filter(|it| differ(*it)).count(), 1);
    }
}
