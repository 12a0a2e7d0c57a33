//! What the pure machines trace, as log lines of the part `session`, and the bugs that they find in themselves, as errors.
//!
//! The machines are pure and know no logger: they call a hook, if one is set. Connected once for
//! each process, when its subscriber is installed.

use marram_session::trace::{self, TraceContext, TraceEvent, TraceHook, TraceRole};
use marram_wire::id::Generation;

/// The log target of the part `session`.
pub(super) const TARGET: &str = "marram_session";

static HOOK: TraceHook = TraceHook(log);

/// Connects the machines of this process with its log. They format nothing unless the level of the part is `trace`.
pub(super) fn connect() {
    // A test program may have a hook of its own, which stays.
    let _ = trace::set_hook(&HOOK);
    trace::switch(tracing::enabled!(target: TARGET, tracing::Level::TRACE));
}

fn log(event: TraceEvent<'_>) {
    let text = event.text;
    // A bug is the only event without a context.
    if *event.context == TraceContext::NOWHERE {
        return tracing::error!(target: TARGET, "{text}; please report it");
    }
    let TraceContext { role, session, generation } = *event.context;
    let role = role.map_or("", TraceRole::name);
    let session = session.map(tracing::field::display);
    let generation = (generation > Generation::NONE).then(|| tracing::field::display(generation));
    tracing::trace!(target: TARGET, role, session, generation, "{text}");
}
