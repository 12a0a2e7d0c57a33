//! Wires between agents and edges: how they are made, proved, framed and kept from growing without bound.
//!
//! Knows frames only as things with an encoding; what they mean is the pure machines' business.

mod security;
mod stop;

pub use security::{Identity, Security};
pub use stop::Stop;
