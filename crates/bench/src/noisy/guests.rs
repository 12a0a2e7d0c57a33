//! The hostile cells: modules with which a tenant could try to take more than its share.
//!
//! Assembled at run time from `marram_sandbox::bench::guests`: such modules would not be built by a
//! toolchain, and a hostile tenant is not bound to one.

use super::Kind;
use marram_sandbox::bench::guests::{again, answer, endless, grow, module, nothing, send, set_timers};

/// A module that does the same as a process of this kind.
#[must_use]
pub(super) fn of(kind: Kind) -> Vec<u8> {
    match kind {
        Kind::Echo | Kind::Connections => module(answer, nothing),
        Kind::Loop => module(endless, nothing),
        Kind::Flood => module(|code| send(code, 256, 4_096), nothing),
        Kind::Growth => module(grow, nothing),
        // The timer is always due.
        Kind::Timers => module(|code| set_timers(code, 8), again),
    }
}
