//! What the TLS library's callbacks need of the host: it calls them without the handler's context, so that is left here while
//! the library works. Knows one thread, as a cell does.

use marram_sdk::Context;
use std::cell::RefCell;

thread_local! {
    static LENT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// Does something while the callbacks can reach the host.
pub(crate) fn lend<R>(context: &mut Context, work: impl FnOnce() -> R) -> R {
    LENT.set(Some(context.take()));
    let result = work();
    *context = LENT.take().expect("only this function takes it out");
    result
}

/// Fills a buffer from the cell's generator; says whether the host could be reached.
pub(crate) fn fill_random(buffer: &mut [u8]) -> bool {
    LENT.with_borrow_mut(|context| context.as_mut().map(|context| context.fill_random(buffer))).is_some()
}

/// Has the host sign.
pub(crate) fn sign(key: u32, message: &[u8]) -> Option<Vec<u8>> {
    LENT.with_borrow_mut(|context| context.as_mut().map(|context| context.sign(key, message)))
}
