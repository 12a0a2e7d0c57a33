//! Which replication policies are in force at an edge: what its operator has set, else what the coordinator has for the whole domain,
//! else those of its configuration.

use super::{Control, ControlAnswer, ControlOutput, ControlRequest, MetricSample};
use crate::{
    api::{
        App, EDGE_CONNECTED, NoteLevel, PolicyList, REBALANCE_LEFT, REBALANCE_SESSIONS, ReplicationPolicy,
        SessionRow, Tag, ToShard,
    },
    coordinator::DomainPolicies,
    suggest,
};
use alloc::{
    boxed::Box,
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

/// Where the policies in force come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyOrigin {
    /// The edge's configuration.
    Configuration,
    /// An operator has set them at this edge. They last until its next start.
    Operator {
        /// The number of this change, from 1, since the edge started.
        revision: u64,
    },
    /// They are the domain's.
    Domain {
        /// The revision at the coordinator.
        revision: u64,
    },
}

/// An operator's change of the policies of one edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyChange {
    /// These and no others are in force.
    Set(Vec<ReplicationPolicy>),
    /// The one with this name is not in force any more.
    Remove(String),
    /// Those of the domain, or of the configuration, are in force again.
    Reset,
    /// What it would be like if the coordinator had these, or none; the coordinator itself is asked elsewhere.
    Domain(Option<Vec<ReplicationPolicy>>),
}

/// How a policy differs from what was in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyDifference {
    /// The policy's name.
    pub name: String,
    /// In a word: `new`, `removed`, `changed`, or `moved` if it is tried earlier or later among those that stay.
    pub what: &'static str,
}

/// Sessions that are moved onto an edge which has joined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RebalanceReport {
    /// The edge.
    pub edge: String,
    /// Those that belong there.
    pub sessions: u64,
    /// Those of them that have not moved yet, and are still to.
    pub left: u64,
}

/// The policies of an edge, for operators.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyReport {
    /// Those in force, in the order in which they are tried, each with the sessions that follow it.
    pub policies: Vec<(ReplicationPolicy, u64)>,
    /// Where they come from.
    pub origin: PolicyOrigin,
    /// The revision of the domain's policies, if it has some.
    pub domain: Option<u64>,
    /// Sessions in groups that follow no policy: they are replicated as their apps say.
    pub unmatched: u64,
    /// Sessions that keep, in all or in part, what a former policy gave them.
    pub former: u64,
    /// What a change has changed, or would change.
    pub differences: Vec<PolicyDifference>,
    /// Policies that have no effect, or not the whole one, and why.
    pub notes: Vec<String>,
    /// Where sessions are being moved to, since an edge has joined.
    pub rebalances: Vec<RebalanceReport>,
}

/// All lists that an edge knows.
#[derive(Clone, Debug, Default)]
pub(super) struct PolicyLists {
    configured: Vec<ReplicationPolicy>,
    operator: Option<Vec<ReplicationPolicy>>,
    domain: Option<DomainPolicies>,
    /// Changes by operators.
    changes: u64,
}

impl PolicyLists {
    pub(super) fn new(configured: Vec<ReplicationPolicy>) -> Self {
        Self { configured, ..Self::default() }
    }

    /// Those that are tried.
    pub(super) fn in_force(&self) -> &[ReplicationPolicy] {
        let domain = self.domain.as_ref().map(|domain| &domain.policies);
        self.operator.as_ref().or(domain).unwrap_or(&self.configured)
    }

    fn origin(&self) -> PolicyOrigin {
        match (&self.operator, &self.domain) {
            (Some(_), _) => PolicyOrigin::Operator { revision: self.changes },
            (None, Some(domain)) => PolicyOrigin::Domain { revision: domain.revision },
            (None, None) => PolicyOrigin::Configuration,
        }
    }

    /// As they are behind a change.
    fn after(&self, change: &PolicyChange) -> Result<Self, String> {
        let mut lists = self.clone();
        match change {
            PolicyChange::Set(policies) => lists.operator = Some(policies.clone()),
            PolicyChange::Reset => lists.operator = None,
            PolicyChange::Domain(policies) => {
                let policies = policies.clone();
                lists.domain = policies.map(|policies| DomainPolicies { revision: 0, policies });
            }
            PolicyChange::Remove(name) => {
                let mut policies = self.in_force().to_vec();
                policies.retain(|policy| policy.name != *name);
                if policies.len() == self.in_force().len() {
                    return Err(format!("there is no policy `{name}` in force"));
                }
                lists.operator = Some(policies);
            }
        }
        lists.changes += 1;
        Ok(lists)
    }
}

/// Whether a change is not made here.
fn is_dry(change: &PolicyChange, dry_run: bool) -> bool {
    dry_run || matches!(change, PolicyChange::Domain(_))
}

/// What differs between two lists, in the order of the new one, and then those that are gone.
fn differences(old: &[ReplicationPolicy], new: &[ReplicationPolicy]) -> Vec<PolicyDifference> {
    let of = |list: &[ReplicationPolicy], name: &str| list.iter().position(|policy| policy.name == name);
    let stays = |list: &[ReplicationPolicy], other: &[ReplicationPolicy]| {
        let names = list.iter().map(|policy| policy.name.clone());
        names.filter(|name| of(other, name).is_some()).collect::<Vec<_>>()
    };
    let (before, after) = (stays(old, new), stays(new, old));
    let difference = |name: &str, what| PolicyDifference { name: name.to_string(), what };
    let changed = new.iter().filter_map(|policy| {
        let name = policy.name.as_str();
        let Some(there) = of(old, name) else { return Some(difference(name, "new")) };
        if old[there] != *policy {
            return Some(difference(name, "changed"));
        }
        let place = |names: &[String]| names.iter().position(|other| other == name);
        (place(&before) != place(&after)).then(|| difference(name, "moved"))
    });
    let gone = old.iter().filter(|policy| of(new, &policy.name).is_none());
    changed.chain(gone.map(|policy| difference(&policy.name, "removed"))).collect()
}

/// Why a policy has no effect on sessions of this app that it names, or not the whole one.
fn no_effect(policy: &ReplicationPolicy, app: &App) -> Option<String> {
    let (name, app_name) = (&policy.name, &app.name);
    if policy.app.as_ref() != Some(app_name) {
        None
    } else if !app.has_backup() {
        Some(format!(
            "policy `{name}` has no effect: app `{app_name}` is not deployed with protect = \"epoch\", nor as a protected shared cell"
        ))
    } else if policy.traffic.is_some() && app.shared {
        Some(format!(
            "policy `{name}` has no effect: the cell of app `{app_name}` is shared, and `min_rate`, `max_rate` and `min_bytes` are for sessions \
             with a cell of their own"
        ))
    } else if policy.runs_ahead && app.shared {
        Some(format!(
            "policy `{name}`: `waits = false` has no effect, since the cell of app `{app_name}` is shared: its outputs wait"
        ))
    } else {
        None
    }
}

/// Which targets of a policy are passed over, since no shard of this edge is connected to them. An edge's own name is no mistake: all
/// edges of a domain have the same policies.
fn passed_over(policy: &ReplicationPolicy, own: &str, figures: &[MetricSample]) -> Option<String> {
    let is_connected = |edge: &str| {
        figures.iter().map(|figure| &figure.counter).any(|counter| {
            let label = counter.label.as_ref().filter(|_| counter.name == EDGE_CONNECTED);
            label.is_some_and(|label| label.value == edge)
        })
    };
    let others: Vec<&String> = policy.targets.iter().filter(|edge| *edge != own).collect();
    if others.is_empty() && !policy.targets.is_empty() {
        return Some(format!(
            "policy `{}` names no other edge than this one, which cannot be the backup of its own sessions: the ring decides. Name another \
             edge too, or leave `targets` out",
            policy.name
        ));
    }
    let away: Vec<String> =
        others.iter().filter(|edge| !is_connected(edge)).map(|edge| format!("`{edge}`")).collect();
    if away.is_empty() {
        return None;
    }
    let takes = if away.len() < others.len() { "the next one of its targets" } else { "the ring" };
    Some(format!(
        "policy `{}`: this edge is not connected to {}, so {takes} decides where backups are until it is. Correct the name, or let the \
         configuration of that edge name this one in `standby.edges`",
        policy.name,
        away.join(", ")
    ))
}

/// What all shards say of the passes that are under way.
fn rebalances(figures: &[MetricSample]) -> Vec<RebalanceReport> {
    let mut by_edge: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for counter in figures.iter().map(|figure| &figure.counter) {
        let Some(label) = &counter.label else { continue };
        match counter.name.as_str() {
            REBALANCE_SESSIONS => by_edge.entry(&label.value).or_default().0 += counter.value,
            REBALANCE_LEFT => by_edge.entry(&label.value).or_default().1 += counter.value,
            _ => {}
        }
    }
    let report = |(edge, (sessions, left)): (&str, _)| RebalanceReport { edge: edge.into(), sessions, left };
    by_edge.into_iter().map(report).collect()
}

impl Control {
    /// The policies for an app that is deployed and follows none.
    pub(super) fn warn_of_idle_policies(&self, app: &App, out: &mut Vec<ControlOutput>) {
        let texts = self.policies.in_force().iter().filter_map(|policy| no_effect(policy, app));
        out.extend(texts.map(|text| ControlOutput::Log(NoteLevel::Warning, text)));
    }

    /// Changes the policies of this edge, or finds what a change would do. The answer comes with what all shards have then.
    pub(super) fn change_policies(
        &mut self,
        tag: u64,
        (change, dry_run): (PolicyChange, bool),
        out: &mut Vec<ControlOutput>,
    ) {
        let lists = match self.policies.after(&change) {
            Ok(lists) => lists,
            Err(why) => {
                return out.push(ControlOutput::Answer { tag, answer: ControlAnswer::Refused(why) });
            }
        };
        let differences = differences(self.policies.in_force(), lists.in_force());
        let is_dry = is_dry(&change, dry_run);
        let request = ControlRequest::ChangePolicies { change, dry_run };
        if !is_dry {
            self.use_policies(lists, out);
        }
        if self.up.is_empty() {
            let report = self.policy_report(&request, (&[], &[]), differences);
            let answer = ControlAnswer::Policies(Box::new(report));
            return out.push(ControlOutput::Answer { tag, answer });
        }
        self.ask(tag, request, &ToShard::List(Tag { tag }), out);
        if let Some(question) = self.questions.get_mut(&tag) {
            question.differences = differences;
        }
    }

    /// The coordinator has these for the domain.
    pub(super) fn domain_policies(&mut self, domain: Option<DomainPolicies>, out: &mut Vec<ControlOutput>) {
        let lists = PolicyLists { domain, ..self.policies.clone() };
        self.use_policies(lists, out);
    }

    fn use_policies(&mut self, lists: PolicyLists, out: &mut Vec<ControlOutput>) {
        let before = core::mem::replace(&mut self.policies, lists);
        let policies = self.policies.in_force();
        if before.in_force() == policies {
            return;
        }
        let text =
            format!("{} replication policies are in force now, {}", policies.len(), self.policies.origin());
        out.push(ControlOutput::Log(NoteLevel::Info, text));
        self.apps.values().for_each(|app| self.warn_of_idle_policies(app, out));
        self.tell_all(&ToShard::Policies(PolicyList { policies: policies.to_vec() }), out);
    }

    /// The policies in force, with how many of these sessions follow each. Of a change that is only planned, the notes are about the
    /// planned ones.
    pub(super) fn policy_report(
        &self,
        request: &ControlRequest,
        (rows, figures): (&[SessionRow], &[MetricSample]),
        differences: Vec<PolicyDifference>,
    ) -> PolicyReport {
        let mut following: BTreeMap<&str, u64> = BTreeMap::new();
        let (mut former, mut unmatched) = (0, 0);
        for row in rows.iter().filter_map(|row| row.replication.as_ref()) {
            former += u64::from(row.former);
            match &row.policy {
                Some(name) => *following.entry(name).or_default() += 1,
                None => unmatched += 1,
            }
        }
        let policies = self.policies.in_force().iter();
        let count = |policy: &ReplicationPolicy| following.get(policy.name.as_str()).copied().unwrap_or(0);
        let planned = match request {
            ControlRequest::ChangePolicies { change, dry_run } if is_dry(change, *dry_run) => {
                self.policies.after(change).ok()
            }
            _ => None,
        };
        PolicyReport {
            notes: self.policy_notes(planned.as_ref().unwrap_or(&self.policies).in_force(), figures),
            policies: policies.map(|policy| (policy.clone(), count(policy))).collect(),
            origin: self.policies.origin(),
            domain: self.policies.domain.as_ref().map(|domain| domain.revision),
            unmatched,
            former,
            differences,
            rebalances: rebalances(figures),
        }
    }

    /// Which of these have no effect here, or not the whole one.
    fn policy_notes(&self, policies: &[ReplicationPolicy], figures: &[MetricSample]) -> Vec<String> {
        let apps = self.apps.values();
        let idle = apps.flat_map(|app| policies.iter().filter_map(move |policy| no_effect(policy, app)));
        let unknown = policies.iter().filter_map(|policy| self.no_app(policy));
        let away = policies.iter().filter_map(|policy| passed_over(policy, &self.config.edge, figures));
        idle.chain(unknown).chain(away).collect()
    }

    /// The note about a policy for an app that this edge does not have. It is no mistake if other edges have the app.
    fn no_app(&self, policy: &ReplicationPolicy) -> Option<String> {
        let app = policy.app.as_ref().filter(|app| !self.apps.contains_key(*app))?;
        let guess = suggest::did_you_mean(app, self.apps.keys().map(String::as_str));
        Some(format!("policy `{}`: no app `{app}` is deployed here{guess}", policy.name))
    }
}

impl core::fmt::Display for PolicyOrigin {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Configuration => write!(f, "from the configuration"),
            Self::Operator { revision } => write!(f, "set at this edge (change {revision})"),
            Self::Domain { revision } => write!(f, "set for the domain (revision {revision})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, every_us: u32) -> ReplicationPolicy {
        ReplicationPolicy { name: name.into(), every_us: Some(every_us), ..ReplicationPolicy::default() }
    }

    #[test]
    fn differences_name_what_is_new_changed_gone_or_tried_in_another_order() {
        let told = |old: &[(&str, u32)], new: &[(&str, u32)]| {
            let list = |written: &[(&str, u32)]| {
                written.iter().map(|(name, every_us)| policy(name, *every_us)).collect::<Vec<_>>()
            };
            let found = differences(&list(old), &list(new));
            found.into_iter().map(|it| format!("{} {}", it.name, it.what)).collect::<Vec<_>>()
        };
        let abc = [("a", 1), ("b", 2), ("c", 3)];
        assert_eq!(told(&abc, &abc), [""; 0]);
        assert_eq!(told(&abc, &[("b", 2), ("c", 3)]), ["a removed"], "the others are tried as before");
        assert_eq!(told(&abc, &[("x", 1), ("a", 1), ("b", 9), ("c", 3)]), ["x new", "b changed"]);
        assert_eq!(told(&abc, &[("a", 1), ("c", 3), ("b", 2)]), ["c moved", "b moved"]);
        assert_eq!(told(&abc, &[]), ["a removed", "b removed", "c removed"]);
    }

    #[test]
    fn an_edge_s_own_list_comes_before_the_domain_s_and_that_before_the_configuration_s() {
        let mut lists = PolicyLists::new(alloc::vec![policy("configured", 1)]);
        assert_eq!(lists.origin(), PolicyOrigin::Configuration);
        let domain = DomainPolicies { revision: 7, policies: alloc::vec![policy("domain", 2)] };
        lists.domain = Some(domain);
        assert_eq!(
            (lists.in_force()[0].name.as_str(), lists.origin()),
            ("domain", PolicyOrigin::Domain { revision: 7 })
        );
        // Of none, too.
        lists = lists.after(&PolicyChange::Set(Vec::new())).expect("nothing is refused");
        assert_eq!((lists.in_force(), lists.origin()), (&[][..], PolicyOrigin::Operator { revision: 1 }));
        assert!(lists.after(&PolicyChange::Remove("domain".into())).is_err(), "it is not in force");
        lists = lists.after(&PolicyChange::Reset).expect("nothing is refused");
        lists = lists.after(&PolicyChange::Remove("domain".into())).expect("it is in force");
        assert_eq!((lists.in_force(), lists.origin()), (&[][..], PolicyOrigin::Operator { revision: 3 }));
        lists = lists.after(&PolicyChange::Reset).expect("nothing is refused");
        lists.domain = None;
        assert_eq!(
            (lists.in_force()[0].name.as_str(), lists.origin()),
            ("configured", PolicyOrigin::Configuration)
        );
    }
}
