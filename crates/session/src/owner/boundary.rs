//! Where an owner stood between two entries, and what had passed at each of its ends by then.

use super::{ends::Ends, log::Log};
use alloc::vec::Vec;
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

/// Where an owner stood between two entries.
#[derive(Debug, Default)]
pub(super) struct Boundary {
    pub(super) log_offset: u64,
    pub(super) tag: [u8; 8],
    marks: Marks,
}

impl Boundary {
    /// The owner stands here now. Done for each entry, so the buffer is kept.
    pub(super) fn set(&mut self, log: &Log, ends: &Ends) {
        (self.log_offset, self.tag) = (log.end(), log.tag());
        self.marks.clear();
        for side in ends.iter() {
            let mark = Mark { took: side.took, produced: side.produced, uncovered: side.uncovered };
            self.marks.push(side.port, mark);
        }
    }

    /// What has passed at the end of this port; nothing if the session did not have the port.
    pub(super) fn mark(&self, port: Port) -> Mark {
        self.marks.get(port).copied().unwrap_or_default()
    }

    /// These ends were told to forget messages of this charge. A port that is not here is skipped.
    pub(super) fn forgot(&mut self, told: &[(Port, u64)]) {
        for (port, charge) in told {
            if let Some(mark) = self.marks.get_mut(*port) {
                mark.uncovered = mark.uncovered.saturating_sub(*charge);
            }
        }
    }
}

impl Clone for Boundary {
    fn clone(&self) -> Self {
        Self { log_offset: self.log_offset, tag: self.tag, marks: self.marks.clone() }
    }

    /// Keeps the buffer.
    fn clone_from(&mut self, source: &Self) {
        (self.log_offset, self.tag) = (source.log_offset, source.tag);
        self.marks.first = source.marks.first;
        self.marks.more.clone_from(&source.marks.more);
    }
}

/// Marks by port, in ascending order. The first two are in place: most sessions have no more ends, and need no memory
/// of their own for a boundary.
#[derive(Clone, Debug, Default)]
struct Marks {
    first: [Option<(Port, Mark)>; 2],
    more: Vec<(Port, Mark)>,
}

impl Marks {
    fn clear(&mut self) {
        self.first = [None; 2];
        self.more.clear();
    }

    /// The port follows those that are here.
    fn push(&mut self, port: Port, mark: Mark) {
        match self.first.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some((port, mark)),
            None => self.more.push((port, mark)),
        }
    }

    fn get(&self, port: Port) -> Option<&Mark> {
        if let Some((_, mark)) = self.first.iter().flatten().find(|(at, _)| *at == port) {
            return Some(mark);
        }
        let index = self.more.binary_search_by_key(&port, |(at, _)| *at).ok()?;
        Some(&self.more[index].1)
    }

    fn get_mut(&mut self, port: Port) -> Option<&mut Mark> {
        if let Some((_, mark)) = self.first.iter_mut().flatten().find(|(at, _)| *at == port) {
            return Some(mark);
        }
        let index = self.more.binary_search_by_key(&port, |(at, _)| *at).ok()?;
        Some(&mut self.more[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use marram_wire::id::{HostId, SessionId};

    /// The end at each of these ports has sent as many messages as the port's number says, and one more.
    fn ends(ports: &[u32]) -> Ends {
        let mut ends = Ends::new(ports.iter().map(|port| (Port(*port), HostId([0; 16]))));
        for side in ends.iter_mut() {
            let count = u64::from(side.port.0) + 1;
            (side.took, side.produced, side.uncovered) = (count, 2 * count, 100 * count);
        }
        ends
    }

    fn mark(count: u64) -> Mark {
        Mark { took: count, produced: 2 * count, uncovered: 100 * count }
    }

    #[test]
    fn a_boundary_has_the_ports_of_its_moment() {
        let log = Log::new(SessionId([1; 16]));
        // A port that comes and goes between two boundaries is in neither, wherever it stands among the others.
        for (before, between) in [
            (vec![0], vec![0, 1]),
            (vec![0, 1], vec![0, 1, 2]),
            (vec![0, 3, 5, 9], vec![0, 2, 3, 5, 9]),
            (vec![2, 3, 5, 9], vec![2, 3, 5, 8, 9]),
        ] {
            let mut at = Boundary::default();
            at.set(&log, &ends(&before));
            let first = at.clone();
            at.set(&log, &ends(&between));
            for port in 0..10 {
                let is_here = |ports: &[u32]| ports.contains(&port);
                let expected =
                    |ports| if is_here(ports) { mark(u64::from(port) + 1) } else { Mark::default() };
                assert_eq!(at.mark(Port(port)), expected(&between[..]), "{port} of {between:?}");
                assert_eq!(first.mark(Port(port)), expected(&before[..]), "{port} of {before:?}");
            }
            at.set(&log, &ends(&before));
            let mut copied = Boundary::default();
            copied.set(&log, &ends(&[4, 6, 7]));
            copied.clone_from(&at);
            for port in (0..10).map(Port) {
                assert_eq!(at.mark(port), first.mark(port), "{port:?} came and went: {before:?}");
                assert_eq!(copied.mark(port), first.mark(port), "{port:?} is copied: {before:?}");
            }
        }
    }

    #[test]
    fn what_ends_were_told_to_forget_counts_no_more_where_they_have_a_mark() {
        for ports in [vec![0], vec![0, 1], vec![0, 2, 3, 7]] {
            let mut at = Boundary::default();
            at.set(&Log::new(SessionId([1; 16])), &ends(&ports));
            // 5 is of a port that is not here; of port 0 is forgotten what it has and more.
            at.forgot(&[(Port(0), 1_000), (Port(1), 50), (Port(5), 7), (Port(7), 801)]);
            at.forgot(&[]);
            let left = |port: u32| at.mark(Port(port)).uncovered;
            assert_eq!((left(0), left(5)), (0, 0), "{ports:?}");
            assert_eq!(left(1), if ports.contains(&1) { 150 } else { 0 }, "{ports:?}");
            assert_eq!(left(3), if ports.contains(&3) { 400 } else { 0 }, "{ports:?}");
            assert_eq!(left(7), 0, "{ports:?}");
            assert_eq!(at.mark(Port(0)).took, 1, "the counts stay");
        }
    }
}
