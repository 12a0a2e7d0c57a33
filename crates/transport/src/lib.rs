//! Wires between agents and edges: connecting, authentication, framing and bounded buffers.
//!
//! Frames are only encoded and decoded here; the pure state machines interpret them.
//!
//! ```text
//! TCP connect ─▶ preamble ─▶ answer ─▶ [TLS 1.3] ─▶ nonce ─▶ signature [+ proof] ─▶ frames
//!                preamble.rs           crypt.rs     handshake.rs, proof.rs, key.rs   outgoing.rs
//!                                      trust.rs     credentials.rs
//! ```
//!
//! [`Wire`] walks one connection through these stages; [`WireTable`] shares one thread among all
//! wires of a loop. Everything here is non-blocking and single-threaded: the `mio` loops of agents,
//! shards and recorders own what they use of it, and no lock is shared. The byte layouts are
//! specified in `docs/formats-wire.md`.
//!
//! What is not about wires but needed by each of those loops is here too: the clock ([`Clock`]),
//! stop requests ([`StopSignal`]), deferred work ([`IdleTasks`]), freed memory ([`give_back`], [`free_elsewhere`]), messages between
//! processes ([`IpcChannel`]) and limits for log lines ([`LogLimiter`]).

mod certificate;
mod clock;
mod credentials;
mod crypt;
mod endpoint;
mod error;
mod fine;
mod handshake;
mod idle;
mod ipc;
mod key;
mod limiter;
mod listening;
mod memory;
mod outgoing;
mod preamble;
mod proof;
mod security;
mod socket;
mod stop;
mod table;
#[cfg(test)]
mod tests;
pub mod tls13;
pub mod token;
mod trust;
mod wire;

pub use clock::{Clock, cannot_wait, nanos};
pub use credentials::{CREDENTIALS_MAX, Credentials};
pub use endpoint::{ConnectError, SecurityError, WireAcceptor, WireConnector};
pub use error::WireError;
pub use fine::wait_finely;
pub use handshake::plain_answer;
pub use idle::IdleTasks;
pub use ipc::IpcChannel;
pub use key::{AgentKey, AgentKeyError};
pub use limiter::LogLimiter;
pub use listening::{ListenError, cannot_listen};
pub use memory::{free_elsewhere, freed_elsewhere, give_back};
pub use preamble::{NotUnderstood, Preamble, PreambleAnswer, PreambleVerdict, SIZE as PREAMBLE_SIZE};
pub use security::{Credential, Identity, Security};
pub use socket::Socket;
pub use stop::{StopRequests, StopSignal, Stopper};
pub use table::{WireEvent, WireTable};
pub use trust::TlsError;
pub use wire::Wire;

use std::io;

/// Unpredictable random bytes.
///
/// # Errors
/// If the operating system has none, which can happen only early in its start.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
