//! Wires between agents and edges: how they are made, proved, framed and kept from growing without bound.
//!
//! Knows frames only as things with an encoding; what they mean is the pure machines' business.

mod clock;
mod crypt;
mod door;
mod error;
mod handshake;
mod limiter;
mod outgoing;
mod passing;
mod preamble;
mod proof;
mod security;
mod socket;
mod stop;
mod table;
#[cfg(test)]
mod tests;
pub(crate) mod token;
mod trust;
mod wire;

pub(crate) use clock::{Clock, nanos};
pub(crate) use door::{AgentDoor, EdgeDoor};
pub(crate) use error::WireError;
pub(crate) use limiter::Limiter;
pub(crate) use passing::Passage;
pub(crate) use preamble::{Answer, NotUnderstood, Preamble, SIZE as PREAMBLE_SIZE, Verdict};
pub use security::{Identity, Security};
pub(crate) use socket::Socket;
pub use stop::{Stop, Stopper};
pub(crate) use table::{Happened, Table};
pub(crate) use wire::Wire;

use std::io;

/// Bytes that nobody can guess.
///
/// # Errors
/// If the operating system has none, which it has from early in its start.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
