//! Where an owner stood between two entries, and what had passed at each of its ends by then.

use super::{
    end_state::EndState,
    ends::Ends,
    log::Log,
    marks::{Mark, Marks},
    sides::Chore,
};
use alloc::vec::Vec;
use marram_wire::id::Port;

/// Where an owner stood between two entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Boundary {
    pub(super) log_offset: u64,
    pub(super) tag: [u8; 8],
    marks: Marks,
}

impl Boundary {
    /// The owner stands here now. Done for each entry, so what has not changed since the last one is not looked at.
    pub(super) fn set(&mut self, log: &Log, ends: &mut Ends) {
        (self.log_offset, self.tag) = (log.end(), log.tag());
        match ends.take_changed(Chore::Mark) {
            Some(ports) => {
                for port in ports {
                    let mark = ends.index(port).map(|index| ends[index].mark());
                    self.marks.set(port, mark.unwrap_or_default());
                }
            }
            None => {
                self.marks = Marks::default();
                ends.iter().for_each(|side| self.marks.set(side.port, side.mark()));
            }
        }
    }

    /// What has passed at the end of this port; nothing if the session did not have the port.
    pub(super) fn mark(&self, port: Port) -> Mark {
        self.marks.get(port)
    }

    /// The ports at which something else has passed up to `other`.
    pub(super) fn differ(&self, other: &Self) -> Vec<Port> {
        self.marks.differ(&other.marks)
    }

    /// These ends were told to forget messages of this charge. A port that is not here is skipped.
    pub(super) fn forgot(&mut self, told: &[(Port, u64)]) {
        for (port, charge) in told {
            let mark = self.mark(*port);
            let uncovered = mark.uncovered.saturating_sub(*charge);
            self.marks.set(*port, Mark { uncovered, ..mark });
        }
    }
}

impl EndState {
    /// What has passed here.
    pub(super) fn mark(&self) -> Mark {
        Mark { took: self.took, produced: self.produced, uncovered: self.uncovered }
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
            at.set(&log, &mut ends(&before));
            let first = at.clone();
            at.set(&log, &mut ends(&between));
            for port in 0..10 {
                let is_here = |ports: &[u32]| ports.contains(&port);
                let expected =
                    |ports| if is_here(ports) { mark(u64::from(port) + 1) } else { Mark::default() };
                assert_eq!(at.mark(Port(port)), expected(&between[..]), "{port} of {between:?}");
                assert_eq!(first.mark(Port(port)), expected(&before[..]), "{port} of {before:?}");
            }
            at.set(&log, &mut ends(&before));
            for port in (0..10).map(Port) {
                assert_eq!(at.mark(port), first.mark(port), "{port:?} came and went: {before:?}");
            }
        }
    }

    #[test]
    fn what_ends_were_told_to_forget_counts_no_more_where_they_have_a_mark() {
        for ports in [vec![0], vec![0, 1], vec![0, 2, 3, 7]] {
            let mut at = Boundary::default();
            at.set(&Log::new(SessionId([1; 16])), &mut ends(&ports));
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
