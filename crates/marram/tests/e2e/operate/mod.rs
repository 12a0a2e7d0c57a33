//! What operators do with edges, and what they see of them: the admin API, logs, shards, the coordinator,
//! deployed apps with their files, and a disk that is full.

mod admin;
mod coordinator;
mod fetch;
mod files;
mod full_disk;
mod logs;
mod shards;
mod store;
