//! How often the epochs of a session's group end, and which edges are to be its backup: as its app says, unless a policy says otherwise.

use super::{
    Shard,
    state::{
        groups::{GroupKind, Pace},
        sessions::Session,
    },
};
use crate::api::{App, ReplicationPolicy};
use alloc::string::String;
use marram_session::owner::BackupForm;
use marram_wire::peer::Origin;

impl Shard {
    /// The kind of group that a session belongs to, if its app asks for epochs.
    pub(super) fn group_kind_of(&self, session: &Session) -> Option<GroupKind> {
        self.group_kind(self.apps.of_owner(&session.owner)?, session.owner.origin())
    }

    /// The same, of a session of this app whose client connected there.
    pub(super) fn group_kind(&self, app: &App, origin: Option<&Origin>) -> Option<GroupKind> {
        let epoch = app.epoch.as_ref()?;
        let policies = self.config.policies.iter();
        let found = policies.enumerate().find(|(_, policy)| policy.matches(&app.name, origin));
        let every_us = found.and_then(|(_, policy)| policy.every_us).unwrap_or(epoch.every_us);
        let pace = Pace {
            every_ns: u64::from(every_us) * 1_000,
            alone_after_ns: u64::from(epoch.alone_after_ms) * 1_000_000,
            whole: self.config.whole && epoch.form == BackupForm::Pages,
        };
        Some(GroupKind { pace, policy: found.map(|(index, _)| index) })
    }

    /// The policy of such a group, if it has one.
    pub(super) fn policy(&self, kind: GroupKind) -> Option<&ReplicationPolicy> {
        self.config.policies.get(kind.policy?)
    }

    /// The edges that are to be the backup of such a group rather than others, the best first. All edges may have
    /// the same policies, so this one may be among them.
    pub(super) fn preferred_targets(&self, kind: GroupKind) -> &[String] {
        self.policy(kind).map_or(&[], |policy| &policy.targets)
    }

    /// Over how many such groups sessions with the same backup are spread.
    pub(super) fn groups_of_kind(&self, kind: GroupKind) -> usize {
        self.policy(kind).map_or(1, |policy| policy.groups.max(1) as usize)
    }
}
