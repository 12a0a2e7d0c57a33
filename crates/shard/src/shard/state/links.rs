//! The channels of a session's ends, by port.

use super::sessions::At;
use alloc::vec::Vec;
use marram_wire::id::Port;

/// The channels of the ends that are linked, in ascending order of ports.
#[derive(Debug, Default)]
pub(crate) struct Links(Vec<(Port, At)>);

impl Links {
    /// The channel of the end at this port, if the end is linked.
    pub(crate) fn get(&self, port: Port) -> Option<At> {
        self.place(port).ok().map(|index| self.0[index].1)
    }

    /// Replaces the channel of an end, and returns the former one.
    pub(crate) fn replace(&mut self, port: Port, at: Option<At>) -> Option<At> {
        match (self.place(port), at) {
            (Ok(index), Some(at)) => Some(core::mem::replace(&mut self.0[index].1, at)),
            (Ok(index), None) => Some(self.0.remove(index).1),
            (Err(index), Some(at)) => {
                self.0.insert(index, (port, at));
                None
            }
            (Err(_), None) => None,
        }
    }

    /// The ends that are linked, in ascending order of ports.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Port, At)> {
        self.0.iter().copied()
    }

    /// Where the port is, or belongs.
    fn place(&self, port: Port) -> Result<usize, usize> {
        self.0.binary_search_by_key(&port, |(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ShardWireId;
    use alloc::collections::BTreeMap;

    #[test]
    fn links_are_those_of_a_map() {
        let (mut links, mut expected) = (Links::default(), BTreeMap::new());
        // Every port is linked, linked again, unlinked and unlinked again, in changing order.
        for step in 0..400_u32 {
            let port = Port(step * 7 % 11);
            let at = (step % 5 < 3).then_some((ShardWireId(step.into()), step));
            let former = match at {
                Some(at) => expected.insert(port, at),
                None => expected.remove(&port),
            };
            assert_eq!(links.replace(port, at), former, "step {step}");
            assert!(links.iter().eq(expected.iter().map(|(port, at)| (*port, *at))), "step {step}");
            for port in (0..12).map(Port) {
                assert_eq!(links.get(port), expected.get(&port).copied(), "step {step}: {port:?}");
            }
        }
        assert!(links.iter().next().is_some());
    }
}
