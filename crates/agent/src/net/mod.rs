//! Wires between agents and edges: how they are made, proved, framed and kept from growing without bound.
//!
//! Knows frames only as things with an encoding; what they mean is the pure machines' business.

mod certificate;
mod clock;
mod credentials;
mod crypt;
mod door;
mod error;
mod handshake;
mod key;
mod limiter;
mod listening;
mod lull;
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
pub mod token;
mod trust;
mod wire;

pub use clock::{Clock, nanos};
pub use credentials::{CREDENTIALS_MAX, Credentials};
pub use door::{AgentDoor, EdgeDoor};
pub use error::WireError;
pub use handshake::plain_answer;
pub use key::AgentKey;
pub use limiter::Limiter;
pub use listening::cannot_listen;
pub use lull::Lull;
pub use passing::Passage;
pub use preamble::{Answer, NotUnderstood, Preamble, SIZE as PREAMBLE_SIZE, Verdict};
pub use security::{Credential, Identity, Security};
pub use socket::Socket;
pub use stop::{Stop, Stopper};
pub use table::{Happened, Table};
pub use wire::Wire;

use std::io;

/// Bytes that nobody can guess.
///
/// # Errors
/// If the operating system has none, which it has from early in its start.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
