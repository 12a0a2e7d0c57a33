//! The replication policies of a whole domain: one key, which every edge's client reads with those of the other edges.
//!
//! An edge of an older version follows a list that says nothing which that version lacks. So what came later is behind the list, and
//! only if a policy has it; an edge that does not know it cannot read the list then, logs that and keeps the former one.

use crate::{
    policies::{POLICIES_MAX, PortRange, ReplicationPolicy},
    traffic::TrafficCondition,
};
use alloc::{string::String, vec::Vec};
use bytes::Bytes;
use marram_session::agent::routes::Prefix;
use marram_wire::{
    codec::{Error, Last},
    record,
};

/// Policies that an operator has set for all edges of the domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainPolicies {
    /// The revision of the key.
    pub revision: u64,
    /// In the order in which they are tried.
    pub policies: Vec<ReplicationPolicy>,
}

record! {
    /// A policy as the first version has written it. Never changed: each field is that of [`ReplicationPolicy`].
    StoredPolicy {
        /// See there.
        name: String,
        /// See there.
        app: Option<String>,
        /// See there.
        listener: Option<String>,
        /// See there.
        client: Option<Prefix>,
        /// See there.
        client_port: Option<PortRange>,
        /// See there.
        every_us: Option<u32>,
        /// See there.
        targets: Vec<String>,
        /// See there.
        runs_ahead: bool,
        /// See there.
        groups: u32,
        /// See there.
        rebalance: u32,
    }
}

record! {
    /// The value of the key.
    StoredPolicies {
        /// In the order in which they are tried.
        policies: Vec<StoredPolicy>,
        /// What is measured: of each of them, if any asks for something.
        traffic: Last<Vec<TrafficCondition>>,
    }
}

/// The value for these policies.
pub(super) fn encode(policies: &[ReplicationPolicy]) -> Bytes {
    let traffic: Vec<TrafficCondition> = policies.iter().map(|policy| policy.traffic).collect();
    let is_asked = traffic.iter().any(TrafficCondition::is_some);
    super::contents::encode(&StoredPolicies {
        policies: policies.iter().cloned().map(stored).collect(),
        traffic: Last(is_asked.then_some(traffic)),
    })
}

/// The policies of a value.
///
/// # Errors
/// If this version cannot read it, or no operator could set it.
pub(super) fn decode(value: &Bytes) -> Result<Vec<ReplicationPolicy>, Error> {
    let StoredPolicies { policies, traffic } = super::contents::decode(value)?;
    let traffic = traffic.0.unwrap_or_else(|| alloc::vec![TrafficCondition::default(); policies.len()]);
    if traffic.len() != policies.len() {
        return Err(Error::Truncated);
    }
    if policies.len() > POLICIES_MAX {
        return Err(Error::TooLarge);
    }
    // Which group a session is in must not change while its outputs run ahead.
    if policies.iter().zip(&traffic).any(|(policy, traffic)| policy.runs_ahead && traffic.is_some()) {
        return Err(Error::Unknown);
    }
    Ok(policies.into_iter().zip(traffic).map(|(policy, traffic)| read(policy, traffic)).collect())
}

fn stored(policy: ReplicationPolicy) -> StoredPolicy {
    let ReplicationPolicy { name, app, listener, client, client_port, traffic: _, .. } = policy;
    let ReplicationPolicy { every_us, targets, runs_ahead, groups, rebalance, .. } = policy;
    StoredPolicy {
        name,
        app,
        listener,
        client,
        client_port,
        every_us,
        targets,
        runs_ahead,
        groups,
        rebalance,
    }
}

fn read(stored: StoredPolicy, traffic: TrafficCondition) -> ReplicationPolicy {
    let StoredPolicy { name, app, listener, client, client_port, .. } = stored;
    let StoredPolicy { every_us, targets, runs_ahead, groups, rebalance, .. } = stored;
    ReplicationPolicy {
        name,
        app,
        listener,
        client,
        client_port,
        traffic,
        every_us,
        targets,
        runs_ahead,
        groups,
        rebalance,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn policy() -> ReplicationPolicy {
        ReplicationPolicy {
            name: "p".into(),
            app: Some("a".into()),
            client_port: Some(PortRange { from: 1, to: 2 }),
            every_us: Some(3),
            targets: vec!["t".into()],
            runs_ahead: true,
            groups: 4,
            rebalance: 5,
            ..ReplicationPolicy::default()
        }
    }

    /// What the first version has written for that.
    const OLD: &[u8] = &[1, 1, b'p', 1, 1, b'a', 0, 0, 1, 1, 2, 1, 3, 1, 1, b't', 1, 4, 5];

    #[test]
    fn a_list_that_asks_for_nothing_new_is_written_as_ever() {
        assert_eq!(&encode(&[policy()])[..], OLD);
        assert_eq!(decode(&Bytes::from_static(OLD)), Ok(vec![policy()]));
        assert_eq!((&encode(&[])[..], decode(&Bytes::from_static(&[0]))), (&[0][..], Ok(vec![])));
    }

    #[test]
    fn what_is_measured_is_behind_the_list() {
        let traffic = TrafficCondition { rate_min: Some(8), rate_max: None, bytes_min: Some(9) };
        let list = [policy(), ReplicationPolicy { traffic, runs_ahead: false, ..policy() }];
        let value = encode(&list);
        // An older version finds bytes behind what it knows.
        assert_eq!((value[0], &value[1..OLD.len()]), (2, &OLD[1..]));
        assert_eq!(&value[2 * OLD.len() - 1..], [2, 0, 0, 0, 1, 8, 0, 1, 9]);
        assert_eq!(decode(&value), Ok(list.to_vec()));
        let ahead = [policy(), ReplicationPolicy { traffic, ..policy() }];
        assert_eq!(decode(&encode(&ahead)), Err(Error::Unknown));
        assert_eq!(decode(&encode(&vec![policy(); POLICIES_MAX])).map(|list| list.len()), Ok(POLICIES_MAX));
        assert_eq!(decode(&encode(&vec![policy(); POLICIES_MAX + 1])), Err(Error::TooLarge));
        let broken = |value: &[u8]| decode(&Bytes::copy_from_slice(value)).is_err();
        assert!(broken(&value[..value.len() - 1]) && broken(&[OLD, &[0]].concat()) && broken(&[1]));
    }
}
