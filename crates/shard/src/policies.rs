//! Which sessions are replicated in another way than their app says: one policy of an edge's table (Pico Replication, 4.4).

use crate::traffic::TrafficCondition;
use alloc::{string::String, vec::Vec};
use marram_session::agent::routes::Prefix;
use marram_wire::{peer::Origin, record};

/// The most policies of an edge: each session that begins is compared with them.
pub const POLICIES_MAX: usize = 64;

record! {
    /// A range of ports, both ends included.
    #[derive(Copy)]
    PortRange {
        /// The first port.
        from: u16,
        /// The last port.
        to: u16,
    }
}

record! {
    /// How sessions under `epoch` are replicated for which all of its conditions hold.
    #[derive(Default)]
    ReplicationPolicy {
        /// The policy's name, for operators.
        name: String,
        /// The app; none for every app.
        app: Option<String>,
        /// The listener that the client connected to, by its name.
        listener: Option<String>,
        /// Where the client is.
        client: Option<Prefix>,
        /// The client's port.
        client_port: Option<PortRange>,
        /// What is measured of the session. Only the edge that runs it knows whether that holds.
        traffic: TrafficCondition,
        /// Epochs end so often at most, in microseconds; 0 for one with each message; none for what the app says.
        every_us: Option<u32>,
        /// The edges that are to be the backup: the first one that is connected. If none is, the edge that has none of these policies would
        /// choose.
        targets: Vec<String>,
        /// Whether outputs leave before the backup has what produced them. Those of shared cells wait all the same.
        runs_ahead: bool,
        /// Over how many groups sessions with the same backup are spread; 0 counts as 1.
        groups: u32,
        /// How many sessions, and slots of shared cells, of a shard move in a second, at most, to an edge that joins and at which they belong; 0 if
        /// they stay.
        rebalance: u32,
    }
}

record! {
    /// All policies of an edge.
    PolicyList {
        /// In the order in which they are tried.
        policies: Vec<ReplicationPolicy>,
    }
}

impl ReplicationPolicy {
    /// Whether it is for a session of this app, whose client connected there, if what is measured of the session is as it says.
    #[must_use]
    pub fn matches(&self, app: &str, origin: Option<&Origin>) -> bool {
        let client = origin.and_then(|origin| origin.client);
        let is_app = self.app.as_ref().is_none_or(|named| named == app);
        let is_listener = |named: &String| origin.is_some_and(|origin| origin.listener == *named);
        let is_client = |prefix: Prefix| client.is_some_and(|client| prefix.contains(client.ip()));
        let has_port =
            |range: PortRange| client.is_some_and(|it| (range.from..=range.to).contains(&it.port()));
        is_app
            && self.listener.as_ref().is_none_or(is_listener)
            && self.client.is_none_or(is_client)
            && self.client_port.is_none_or(has_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::BytesMut;
    use marram_wire::codec::Field;

    fn from(client: &str, listener: &str) -> Origin {
        Origin { client: Some(client.parse().unwrap()), local: None, listener: listener.into() }
    }

    #[test]
    fn all_conditions_that_are_there_must_hold() {
        let any = ReplicationPolicy::default();
        assert!(any.matches("relay", None) && any.matches("web", Some(&from("192.0.2.7:5060", "sip"))));
        let app = ReplicationPolicy { app: Some("relay".into()), ..any.clone() };
        assert!(app.matches("relay", None) && !app.matches("web", None));
        let listener = ReplicationPolicy { listener: Some("sip".into()), ..any.clone() };
        assert!(listener.matches("web", Some(&from("192.0.2.7:5060", "sip"))));
        assert!(!listener.matches("web", Some(&from("192.0.2.7:5060", "rtp"))));
        let client = ReplicationPolicy { client: Some("192.0.2.0/24".parse().unwrap()), ..any.clone() };
        assert!(client.matches("web", Some(&from("192.0.2.7:5060", ""))));
        assert!(!client.matches("web", Some(&from("192.0.3.7:5060", ""))));
        let port = ReplicationPolicy { client_port: Some(PortRange { from: 5060, to: 5061 }), ..any };
        assert!(port.matches("web", Some(&from("192.0.2.7:5061", ""))));
        assert!(!port.matches("web", Some(&from("192.0.2.7:5062", ""))));
        // Of a client whose agent says nothing of it, no condition holds.
        for policy in [&listener, &client, &port] {
            assert!(!policy.matches("web", None) && !policy.matches("web", Some(&Origin::default())));
        }
        let both = ReplicationPolicy { app: app.app, ..client };
        assert!(both.matches("relay", Some(&from("192.0.2.7:5060", ""))));
        assert!(!both.matches("web", Some(&from("192.0.2.7:5060", ""))));
    }

    #[test]
    fn a_policy_reaches_shards_as_it_is() {
        let policy = ReplicationPolicy {
            name: "calls".into(),
            app: Some("relay".into()),
            listener: None,
            client: Some("2001:db8::/32".parse().unwrap()),
            client_port: Some(PortRange { from: 0, to: u16::MAX }),
            traffic: TrafficCondition { rate_min: Some(0), rate_max: Some(u64::MAX), bytes_min: Some(7) },
            every_us: Some(0),
            targets: alloc::vec!["here".into(), "there".into()],
            runs_ahead: true,
            groups: 40,
            rebalance: 50,
        };
        for policy in [policy, ReplicationPolicy::default()] {
            let mut out = BytesMut::new();
            policy.put(&mut out);
            assert_eq!(ReplicationPolicy::take(&mut out.freeze()), Ok(policy));
        }
    }
}
