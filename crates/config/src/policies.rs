//! `[[policy]]`: which sessions under `protect = "epoch"` are replicated in another way than their app's manifest says.
//!
//! Matching is not here: a resolved [`ReplicationPolicy`] is the shard crate's. Its conditions are those of `[[route]]` that an edge
//! knows of a session: what the client's agent says of where the client connected.

use super::manifest::every_us;
use super::source::{Problem, Source};
use super::units::{Name, Size};
use marram_session::agent::routes::BadPrefix;
use marram_shard::api::{POLICIES_MAX, PortRange, ReplicationPolicy, TrafficCondition};
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

/// The most edges that a policy names.
pub const TARGETS_MAX: usize = 16;
/// The most groups of a policy: each costs a frame to the backup and back for each epoch.
pub const GROUPS_MAX: u32 = 256;
/// The most sessions of a shard that a policy moves in a second onto an edge that joins. Each is copied, fed and handed over.
pub const REBALANCE_MAX: u32 = 1_000;

/// A policy as written. All conditions that are there must hold.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenPolicy {
    name: Name,
    /// The policy with the highest priority is tried first.
    #[serde(default)]
    priority: i32,
    app: Option<Name>,
    /// A listener's name, or its address if it has none.
    listener: Option<String>,
    client: Option<Spanned<String>>,
    client_port: Option<Spanned<String>>,
    /// What is measured of the session: bytes a second, and bytes.
    min_rate: Option<Spanned<Size>>,
    max_rate: Option<Spanned<Size>>,
    min_bytes: Option<Spanned<Size>>,
    every: Option<Spanned<String>>,
    targets: Option<Spanned<Vec<Name>>>,
    groups: Option<Spanned<u32>>,
    /// How many sessions a second move to an edge that joins.
    rebalance: Option<Spanned<u32>>,
    waits: Option<Spanned<bool>>,
}

/// The policies, in the order in which they are tried.
pub(super) fn resolve(
    source: &Source,
    written: Vec<Spanned<WrittenPolicy>>,
) -> Result<Vec<ReplicationPolicy>, Problem> {
    if let Some(many) = written.get(POLICIES_MAX) {
        return Err(
            source.problem(&many.span(), format!("is one too many; at most {POLICIES_MAX} are tried"))
        );
    }
    let mut policies: Vec<(i32, ReplicationPolicy)> = Vec::new();
    for policy in written {
        let span = policy.span();
        let policy = policy.into_inner();
        let name = &policy.name.0;
        if policies.iter().any(|(_, other)| other.name == *name) {
            return Err(source.problem(&span, format!("`{name}` is written twice; rename one of them")));
        }
        policies.push((policy.priority, policy.resolve(source, &span)?));
    }
    // Of those with the same priority the first one that is written comes first.
    policies.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    Ok(policies.into_iter().map(|(_, policy)| policy).collect())
}

/// Reads a text that has policies and nothing else, for `marram policy set`: their mistakes are those of a configuration.
///
/// # Errors
/// If something else is in it, or no list of policies at all: an empty one is written `policy = []`.
pub fn read(source: &Source) -> Result<Vec<ReplicationPolicy>, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outline {
        policy: Option<Vec<Spanned<WrittenPolicy>>>,
    }
    let outline: Outline = source.parse("edge")?;
    let none = || source.complaint("has no `[[policy]]`; write `policy = []` if there are to be none");
    resolve(source, outline.policy.ok_or_else(none)?)
}

impl WrittenPolicy {
    fn resolve(self, source: &Source, span: &Range<usize>) -> Result<ReplicationPolicy, Problem> {
        let changes = self.every.is_some() || self.targets.is_some() || self.groups.is_some();
        if !changes && self.rebalance.is_none() && self.waits.is_none() {
            let what = "changes nothing; write `every`, `targets`, `groups`, `rebalance` or `waits`";
            return Err(source.problem(span, what));
        }
        let traffic = self.traffic(source)?;
        let rebalance = self.rebalance.as_ref().map(|rate| rebalance(source, rate)).transpose()?;
        let client = self.client.as_ref().map(|text| {
            text.get_ref().parse().map_err(|error: BadPrefix| source.problem(&text.span(), error.to_string()))
        });
        let every = self.every.as_ref().map(|text| every_us(source, text));
        let targets = self.targets.map(|targets| edges(source, targets)).transpose()?;
        if let Some(groups) =
            self.groups.as_ref().filter(|groups| !(1..=GROUPS_MAX).contains(groups.get_ref()))
        {
            let what = format!("sessions are spread over 1 to {GROUPS_MAX} groups");
            return Err(source.problem(&groups.span(), what));
        }
        Ok(ReplicationPolicy {
            name: self.name.0,
            app: self.app.map(|app| app.0),
            listener: self.listener,
            client: client.transpose()?,
            client_port: self.client_port.as_ref().map(|text| ports(source, text)).transpose()?,
            traffic,
            every_us: every.transpose()?,
            targets: targets.unwrap_or_default(),
            runs_ahead: self.waits.map(Spanned::into_inner) == Some(false),
            groups: self.groups.map_or(1, Spanned::into_inner),
            rebalance: rebalance.unwrap_or(0),
        })
    }
}

impl WrittenPolicy {
    /// What is measured of a session that the policy is for.
    fn traffic(&self, source: &Source) -> Result<TrafficCondition, Problem> {
        let size = |written: &Option<Spanned<Size>>| written.as_ref().map(|size| size.get_ref().0);
        for limit in [&self.min_rate, &self.min_bytes].into_iter().flatten() {
            if limit.get_ref().0 == 0 {
                return Err(source.problem(&limit.span(), "holds for every session; leave it out"));
            }
        }
        let (rate_min, rate_max) = (size(&self.min_rate), size(&self.max_rate));
        if let (Some(min), Some(max), Some(written)) = (rate_min, rate_max, &self.max_rate)
            && min > max
        {
            let what =
                format!("no session has this rate at most and {} at least; write a higher one", Size(min));
            return Err(source.problem(&written.span(), what));
        }
        let traffic = TrafficCondition { rate_min, rate_max, bytes_min: size(&self.min_bytes) };
        if let Some(waits) = self.waits.as_ref().filter(|waits| !*waits.get_ref() && traffic.is_some()) {
            let what = "a session whose outputs do not wait keeps its group, whatever is measured; leave it out, or `min_rate`, `max_rate` \
                        and `min_bytes`";
            return Err(source.problem(&waits.span(), what));
        }
        Ok(traffic)
    }
}

/// Edges that are to be backups. This one may be among them, so that all edges can have the same policies.
fn edges(source: &Source, written: Spanned<Vec<Name>>) -> Result<Vec<String>, Problem> {
    let span = written.span();
    let names: Vec<String> = written.into_inner().into_iter().map(|name| name.0).collect();
    let what = if names.is_empty() {
        "names no edge; leave it out, and the ring of edges decides".to_string()
    } else if names.len() > TARGETS_MAX {
        format!("names more than {TARGETS_MAX} edges")
    } else {
        return Ok(names);
    };
    Err(source.problem(&span, what))
}

/// How many sessions move in a second.
fn rebalance(source: &Source, written: &Spanned<u32>) -> Result<u32, Problem> {
    let rate = *written.get_ref();
    let what = match rate {
        0 => "moves no session; leave it out, and sessions stay when an edge joins".to_string(),
        1..=REBALANCE_MAX => return Ok(rate),
        _ => format!("at most {REBALANCE_MAX} sessions of a shard move in a second"),
    };
    Err(source.problem(&written.span(), what))
}

fn ports(source: &Source, written: &Spanned<String>) -> Result<PortRange, Problem> {
    let range =
        super::routes::ports(written.get_ref()).map_err(|(_, what)| source.problem(&written.span(), what))?;
    if range.is_empty() {
        return Err(source.problem(&written.span(), "is empty; write the lower port first"));
    }
    Ok(PortRange { from: *range.start(), to: *range.end() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The policies of an edge with these tables.
    fn parse(tables: &str) -> Result<Vec<ReplicationPolicy>, String> {
        #[derive(Deserialize)]
        struct Outline {
            #[serde(default)]
            policy: Vec<Spanned<WrittenPolicy>>,
        }
        let source = Source::new("edge.toml", tables.into());
        let outline: Result<Outline, Problem> = source.parse("edge");
        let policies = outline.and_then(|outline| resolve(&source, outline.policy));
        policies.map_err(|problem| problem.to_string())
    }

    #[test]
    fn policies_are_tried_by_priority_and_then_as_written() {
        let policies = parse(
            "[[policy]]\nname = \"bulk\"\nevery = \"10ms\"\n\
             [[policy]]\nname = \"spread\"\ngroups = 4\n\
             [[policy]]\nname = \"calls\"\npriority = 1\napp = \"relay\"\nlistener = \"sip\"\nclient = \"192.0.2.0/24\"\n\
             client_port = \"5060\"\nmin_rate = \"1MiB\"\nmax_rate = \"1.5MiB\"\nmin_bytes = \"1KiB\"\nevery = \"message\"\ntargets = [\"there\", \"far\"]\n\
             [[policy]]\nname = \"free\"\npriority = -1\nwaits = false\n[[policy]]\nname = \"safe\"\npriority = -2\nwaits = true\n",
        )
        .unwrap();
        let names: Vec<&str> = policies.iter().map(|policy| policy.name.as_str()).collect();
        assert_eq!(names, ["calls", "bulk", "spread", "free", "safe"]);
        let ahead: Vec<bool> = policies.iter().map(|policy| policy.runs_ahead).collect();
        assert_eq!(ahead, [false, false, false, true, false]);
        let calls = ReplicationPolicy {
            name: "calls".into(),
            app: Some("relay".into()),
            listener: Some("sip".into()),
            client: Some("192.0.2.0/24".parse().unwrap()),
            client_port: Some(PortRange { from: 5060, to: 5060 }),
            traffic: TrafficCondition {
                rate_min: Some(1 << 20),
                rate_max: Some(3 << 19),
                bytes_min: Some(1 << 10),
            },
            every_us: Some(0),
            targets: vec!["there".into(), "far".into()],
            runs_ahead: false,
            groups: 1,
            rebalance: 0,
        };
        assert_eq!(policies[0], calls);
        assert_eq!((policies[1].every_us, policies[2].every_us, policies[2].groups), (Some(10_000), None, 4));
        assert_eq!(parse(""), Ok(Vec::new()));
    }

    #[test]
    fn a_file_for_running_edges_has_policies_and_nothing_else() {
        let read =
            |text: &str| read(&Source::new("new.toml", text.into())).map_err(|error| error.to_string());
        assert_eq!(read("[[policy]]\nname = \"p\"\ngroups = 2\n").map(|policies| policies.len()), Ok(1));
        assert_eq!(read("policy = []"), Ok(Vec::new()));
        for (text, expected) in [
            ("", "policy = []"),
            ("[[polices]]\nname = \"p\"\ngroups = 2\n", "polices"),
            ("name = \"edge\"\n[[policy]]\nname = \"p\"\ngroups = 2\n", "name"),
            ("[[policy]]\nname = \"p\"\n", "changes nothing"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.starts_with("new.toml") && refused.contains(expected), "{text}: {refused}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let table = |fields: &str| format!("[[policy]]\nname = \"p\"\n{fields}\n");
        for (fields, expected) in [
            ("app = \"relay\"", "changes nothing"),
            ("waits = \"no\"", "waits"),
            ("every = \"1us\"", "an epoch lasts"),
            ("every = \"soon\"", "an epoch lasts"),
            ("targets = []", "names no edge"),
            ("groups = 0", "1 to 256 groups"),
            ("groups = 257", "1 to 256 groups"),
            ("rebalance = 0", "leave it out"),
            ("rebalance = 1001", "at most 1000 sessions"),
            ("rebalance = \"fast\"", "invalid type"),
            ("every = \"1ms\"\nclient = \"192.0.2.7/24\"", "not an address prefix"),
            ("every = \"1ms\"\nclient_port = \"9-5\"", "is empty"),
            ("every = \"1ms\"\nclient_port = \"many\"", "neither a port"),
            ("every = \"1ms\"\nmin_rate = \"0B\"", ":4: `policy.min_rate`: holds for every session; leave"),
            ("every = \"1ms\"\nmin_bytes = \"0B\"", ":4: `policy.min_bytes`: holds for every session; leave"),
            ("every = \"1ms\"\nmin_rate = 5", "a size such as"),
            ("every = \"1ms\"\nmin_rate = \"1MB\"", "a size such as"),
            ("every = \"1ms\"\nmax_rate = \"1MiB/s\"", "a size such as"),
            (
                "every = \"1ms\"\nmax_rate = \"1KiB\"\nmin_rate = \"1MiB\"",
                ":4: `policy.max_rate`: no session has this rate at most and 1MiB at least; write a higher one",
            ),
            (
                "waits = false\nmin_rate = \"1MiB\"",
                ":3: `policy.waits`: a session whose outputs do not wait keeps",
            ),
            ("min_rate = \"1MiB\"", "changes nothing"),
            ("every = \"1ms\"\nsni = \"www.example.org\"", "sni"),
        ] {
            let refused = parse(&table(fields)).expect_err(fields);
            assert!(refused.contains(expected), "{fields}: {refused}");
        }
        let twice = parse(&table("groups = 2").repeat(2)).unwrap_err();
        assert!(twice.contains("`p` is written twice"), "{twice}");
        let many: String =
            (0..65).map(|number| format!("[[policy]]\nname = \"p{number}\"\ngroups = 2\n")).collect();
        assert!(parse(&many).unwrap_err().contains("one too many"));
    }
}
