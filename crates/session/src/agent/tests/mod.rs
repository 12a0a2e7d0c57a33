//! The agent's behaviour as conversations: an event goes in, and lines like `w1 hello c2 fresh` come out.

mod choice;
mod datagrams;
mod dialling;
mod domains;
mod draining;
mod failback;
mod forgetting;
mod heartbeat;
mod kept;
mod leading;
mod leads;
mod learning;
mod lines;
mod local;
mod memory;
mod moving;
mod owners;
mod promises;
mod rejection;
mod spread;
mod stage;
mod timeouts;

use stage::{Stage, chosen, promise};
