//! Access to the host for the TLS library's callbacks: the library calls them without the handler's context, so the context is
//! stored here while the library works. For one thread only, as in a cell.
//!
//! ```text
//! handler: lend(context) --> connection --> library --> fill_random, sign
//!               |                                            |
//!               +--> LENT holds the context <--- borrows it -+
//! ```

use marram_sdk::Context;
use std::cell::RefCell;

thread_local! {
    /// Set only while [`lend`] runs.
    static LENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// Runs a function while the callbacks can reach the host. Must not be nested. The work must not
/// use the context that was lent.
pub(crate) fn lend<R>(context: &mut Context, work: impl FnOnce() -> R) -> R {
    LENT.set(Some(context.take()));
    let result = work();
    *context = LENT.take().expect("only this function takes it out");
    result
}

/// Fills a buffer from the cell's generator; returns whether the host could be reached.
pub(crate) fn fill_random(buffer: &mut [u8]) -> bool {
    LENT.with_borrow_mut(|context| context.as_mut().map(|context| context.fill_random(buffer))).is_some()
}

/// Lets the host sign. `None` if the host cannot be reached. `key` is an index in the manifest's
/// `keys`.
pub(crate) fn sign(key: u32, message: &[u8]) -> Option<Vec<u8>> {
    LENT.with_borrow_mut(|context| context.as_mut().map(|context| context.sign(key, message)))
}
