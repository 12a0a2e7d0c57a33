//! Edges that die under load, many times and with many sessions: no byte is lost, repeated or changed.
//! Also the demo and the fault table, which show the same to people.

mod busy;
mod demo;
mod faults;
mod many;
mod real_faults;
