//! Hostile guests. Each file is a class of attacks, each test an attack and its containment; docs/red-team.md lists them.

mod chains;
mod checkpoints;
mod files;
mod imports;
mod keys;
mod memory;
mod messages;
mod prints;
mod sealed;
mod slots;
mod stages;
mod table;
mod tasks;
mod time;
mod timers;
mod witness;
