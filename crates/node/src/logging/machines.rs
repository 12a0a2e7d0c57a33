//! What the pure machines trace, as log lines of the part `session`; the bugs that they find in themselves, as errors; and whether
//! they search for such bugs after each step.
//!
//! The machines are pure and know no logger: they call a hook, if one is set. Connected once for
//! each process, when its subscriber is installed.

use marram_session::{
    bug, invariant,
    trace::{self, TraceContext, TraceEvent, TraceHook, TraceRole},
};
use marram_wire::id::Generation;

/// The log target of the part `session`.
pub(super) const TARGET: &str = "marram_session";

/// The environment variable with which the machines of a process check their invariants after each step, and panic on a bug. Tests
/// set it; each step then takes as long as the machine has sessions.
const CHECK_VARIABLE: &str = "MARRAM_CHECK_INVARIANTS";

static HOOK: TraceHook = TraceHook(log);

/// Connects the machines of this process with its log. They format nothing unless the level of the part is `trace`.
pub(super) fn connect() {
    // A test program may have a hook of its own, which stays.
    let _ = trace::set_hook(&HOOK);
    if std::env::var_os(CHECK_VARIABLE).is_some_and(|value| value == "1") {
        bug::panic_on_bugs();
        invariant::check_each_step();
    }
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
