//! The shard's state. Each structure owns the tables of one subject, keeps them consistent and knows no other subject;
//! none of them sends anything. The shard composes them: it decides across subjects and carries out effects.

pub(super) mod apps;
pub(super) mod asked;
pub(super) mod backups;
pub(super) mod copies;
pub(super) mod drain;
pub(super) mod edges;
pub(super) mod groups;
pub(super) mod keepers;
pub(super) mod links;
pub(super) mod missing;
pub(super) mod moves;
pub(super) mod peers;
pub(super) mod placing;
pub(super) mod plans;
pub(super) mod recalls;
pub(super) mod refused;
pub(super) mod replay;
pub(super) mod sessions;
pub(super) mod shared;
pub(super) mod slots;
pub(super) mod snapshot;
pub(super) mod tenants;
pub(super) mod unknown;
pub(super) mod unneeded;
pub(super) mod waiting;
pub(super) mod wires;
