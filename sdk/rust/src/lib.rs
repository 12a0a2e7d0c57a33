//! The guest side of Marram: what a cell written in Rust implements and what it may call.
//!
//! A cell is a deterministic machine: state and an input give a new state and outputs. Implement [`Cell`] for a
//! type whose fields are the session's state, and export it with [`cell!`]:
//!
//! ```
//! use marram_sdk::{Cell, Context, Port, cell};
//!
//! /// Upper-cases what the client says.
//! #[derive(Default)]
//! struct Shout {
//!     messages: u64,
//! }
//!
//! impl Cell for Shout {
//!     fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
//!         self.messages += 1;
//!         context.send(port, &payload.to_ascii_uppercase());
//!     }
//! }
//!
//! cell!(Shout);
//!
//! # fn main() {
//! // The same type runs natively, against a scripted host.
//! use marram_sdk::double::{Output, Session};
//! let mut session = Session::<Shout>::new();
//! assert_eq!(session.message(Port::CLIENT, b"hey"), [Output::message(Port::CLIENT, b"HEY")]);
//! assert_eq!(session.cell().messages, 1);
//! # }
//! ```
//!
//! # When state is created
//!
//! `Default::default` runs once, when the app is deployed; its result is frozen into the image that every session
//! starts from. There is no client yet and **no randomness**: all sessions would share it, so the host refuses an
//! app that asks for some. Beware of `std::collections::HashMap::new()` there: its hasher draws random keys. Use
//! `BTreeMap`, or a map with a [`FixedState`] hasher, or create the map in [`Cell::opened`].
//!
//! # What makes a cell deterministic
//!
//! Everything a cell can observe comes through its handlers and its [`Context`], and the host logs it. There are no
//! threads, but [tasks](Context::spawn), which run between messages; `std::time` and WASI's clocks and randomness return values
//! from the same log as [`Context::now`] and [`Context::fill_random`].
//!
//! This crate knows nothing of logs, ends and recovery: a cell cannot tell that it has been recovered.
#![no_std]

extern crate alloc;

mod context;
#[cfg(not(target_arch = "wasm32"))]
pub mod double;
mod export;
mod hash;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod rim;

pub use context::{Context, Level, MESSAGE_BYTES_MAX, Port, PortKind, Time, Unread};
pub use hash::{FixedHasher, FixedState};

/// One session's handlers. The implementing type's fields are the session's state.
///
/// The host calls one handler at a time and each runs to its end. A handler that panics or breaks a quota ends its
/// session, and none of its outputs leave.
pub trait Cell: Default + 'static {
    /// A peer is connected and can receive messages.
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        let _ = (context, port, kind);
    }

    /// A message from a peer. If the peer is a TCP stream, the bytes are a piece of the stream, cut at an arbitrary place, unless
    /// its agent knows the message boundaries.
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]);

    /// A timer set with [`Context::set_timer`] is due.
    fn timer(&mut self, context: &mut Context, token: u64) {
        let _ = (context, token);
    }

    /// A task runs: it was queued with [`Context::spawn`], or has the lock that [`Context::lock`] requested.
    fn task(&mut self, context: &mut Context, token: u64) {
        let _ = (context, token);
    }

    /// A peer will send no more. This cell can still send to it (a half-close) until it closes the port as well.
    fn closed(&mut self, context: &mut Context, port: Port) {
        let _ = (context, port);
    }
}
