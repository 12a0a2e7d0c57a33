//! How often the epochs of a session's group end, and which edges are to be its backup: as its app says, unless a policy says otherwise.
//!
//! When policies change, a group follows the policy that all of its sessions match now. Its interval changes at once. Sessions that match
//! another one, or whose policy names another backup or number of groups, change their groups (`regroup.rs`). So do sessions of which
//! something else is measured than before (`traffic.rs`). What may leave
//! depends on a policy only where it lets outputs run ahead.

use super::{
    Shard,
    state::{
        groups::{Group, GroupKind, Pace},
        sessions::Session,
    },
};
use crate::{
    api::{App, Now, ReplicationPolicy, TrafficCondition},
    traffic::TrafficMeter,
};
use alloc::{string::String, sync::Arc, vec::Vec};
use marram_session::owner::BackupForm;
use marram_wire::{frame::GroupId, id::SessionId, peer::Origin};

impl Shard {
    /// The kind of group that a session belongs to, if its app asks for epochs.
    pub(super) fn group_kind_of(&self, session: &Session) -> Option<GroupKind> {
        let app = self.apps.of_owner(&session.owner)?;
        self.kind_by(app, self.policy_of(app, session))
    }

    /// The same, of a session of this app whose client connected there, and of which nothing is measured.
    pub(super) fn group_kind(&self, app: &App, origin: Option<&Origin>) -> Option<GroupKind> {
        self.kind_by(app, self.first_policy(app, origin, None))
    }

    /// The policy that a session of this app matches.
    pub(super) fn policy_of(&self, app: &App, session: &Session) -> Option<&Arc<ReplicationPolicy>> {
        self.first_policy(app, session.owner.origin(), session.traffic.as_deref())
    }

    fn first_policy(
        &self,
        app: &App,
        origin: Option<&Origin>,
        traffic: Option<&TrafficMeter>,
    ) -> Option<&Arc<ReplicationPolicy>> {
        let is_met = |condition: &TrafficCondition| {
            !condition.is_some() || traffic.is_some_and(|meter| meter.meets(condition))
        };
        self.policies.iter().find(|it| it.matches(&app.name, origin) && is_met(&it.traffic))
    }

    fn kind_by(&self, app: &App, policy: Option<&Arc<ReplicationPolicy>>) -> Option<GroupKind> {
        let epoch = app.epoch.as_ref()?;
        let every_us = policy.and_then(|policy| policy.every_us).unwrap_or(epoch.every_us);
        let pace = Pace {
            every_ns: u64::from(every_us) * 1_000,
            alone_after_ns: u64::from(epoch.alone_after_ms) * 1_000_000,
            whole: self.config.whole && epoch.form == BackupForm::Pages,
        };
        Some(GroupKind { pace, policy: policy.cloned() })
    }

    /// These policies are in force from now on.
    pub(super) fn set_policies(&mut self, now: Now, policies: Vec<ReplicationPolicy>) {
        if self.policies.iter().map(AsRef::as_ref).eq(&policies) {
            return;
        }
        self.policies = policies.into_iter().map(Arc::new).collect();
        for name in self.groups.names() {
            self.follow_policies(name);
        }
        self.measure_for_policies(now);
        self.regroup.begin(now.mono_ns);
    }

    /// Lets a group follow the policy that all of its sessions match. Where they match several, it goes on as it is until those that match
    /// another one have left it.
    pub(super) fn follow_policies(&mut self, name: GroupId) {
        let Some(group) = self.groups.get(name) else { return };
        let of = |id| self.group_kind_of(self.sessions.get(id)?);
        let Some(kind) = group.members().find_map(of) else { return };
        if group.members().filter_map(of).any(|other| other != kind) {
            let waits = group.members().filter_map(of).any(|kind| !kind.runs_ahead());
            self.groups.get_mut(name).into_iter().for_each(|group| group.divide(waits));
            return;
        }
        if kind == *group.kind() {
            self.groups.get_mut(name).into_iter().for_each(|group| group.divide(false));
            return;
        }
        let is_kept = self.would_keep(name, group, &kind);
        if let Some(group) = self.groups.get_mut(name) {
            group.follow(kind, is_kept);
        }
    }

    /// Whether a group of this kind would be given the target that it has, since its policy names that before others.
    fn would_keep(&self, name: GroupId, group: &Group, kind: &GroupKind) -> bool {
        let best = self.best_target(SessionId(name), kind);
        best.is_some() && best == group.target.as_ref().map(|target| &target.edge)
    }

    /// The first edge of those that a policy names which is connected.
    pub(super) fn best_target<'a>(&self, key: SessionId, kind: &'a GroupKind) -> Option<&'a String> {
        let is_there = |edge: &&String| self.wires.of_standby(edge, None, key).is_some();
        kind.targets().iter().filter(|edge| **edge != self.config.edge).find(is_there)
    }

    /// Whether the policies in force say of a session in this group what does not hold for it yet.
    pub(super) fn keeps_former_policy(&self, session: &Session, group: &Group) -> bool {
        group.is_placed_as_before() || self.follows_another(session, group)
    }
}
