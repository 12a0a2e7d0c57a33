//! Sessions with `protect = "epoch"`, with real processes: outputs wait for a backup. Edges and the coordinator are killed and
//! stopped; clients and servers check every byte.

mod coordinator;
mod crowd;
mod crowd_of_a_hall;
mod gates;
mod guests;
mod hall;
mod keys;
mod kills;
mod lost;
mod moves;
mod policies;
mod rebalance;
mod servers;
mod sleeps;
mod world;
