//! What the machines ignored and when they changed their phase, for an engineer who wants to know why a session is stuck.
//!
//! Pure: an event goes to the hook that the shell has set. While tracing is off, a place that traces costs one relaxed load of a
//! flag, and formats nothing.

use core::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};
use marram_wire::id::{Generation, SessionId};
use once_cell::race::OnceRef;

/// The machine that traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceRole {
    /// The owner of a session, on an edge.
    Owner,
    /// The client's end of a session.
    ClientEnd,
    /// The server's end of a session.
    ServerEnd,
    /// An agent, outside of its ends.
    Agent,
    /// A recorder.
    Recorder,
    /// A cell that many sessions share.
    SharedCell,
    /// A shard of an edge, outside of its owners.
    Shard,
}

impl TraceRole {
    /// The role in log lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::ClientEnd => "client end",
            Self::ServerEnd => "server end",
            Self::Agent => "agent",
            Self::Recorder => "recorder",
            Self::SharedCell => "shared cell",
            Self::Shard => "shard",
        }
    }
}

/// What an event concerns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceContext {
    /// The machine; none for a bug that is outside of a machine.
    pub role: Option<TraceRole>,
    /// The session, if there is one.
    pub session: Option<SessionId>,
    /// The machine's newest generation of the session; [`Generation::NONE`] if it has none.
    pub generation: Generation,
}

impl TraceContext {
    /// No machine and no session.
    pub const NOWHERE: Self = Self { role: None, session: None, generation: Generation::NONE };

    /// A machine and no session.
    #[must_use]
    pub const fn of(role: TraceRole) -> Self {
        Self { role: Some(role), ..Self::NOWHERE }
    }

    /// A machine's session.
    #[must_use]
    pub const fn of_session(role: TraceRole, session: SessionId, generation: Generation) -> Self {
        Self { role: Some(role), session: Some(session), generation }
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.role.map_or("marram", TraceRole::name))?;
        if let Some(session) = self.session {
            write!(f, " {session}")?;
        }
        if self.generation > Generation::NONE {
            write!(f, " generation {}", self.generation)?;
        }
        Ok(())
    }
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// What it concerns.
    pub context: &'a TraceContext,
    /// What happened.
    pub text: fmt::Arguments<'a>,
}

/// Receives the events of every machine of the process, on the thread that steps the machine.
#[derive(Debug)]
pub struct TraceHook(pub fn(TraceEvent<'_>));

static HOOK: OnceRef<'static, TraceHook> = OnceRef::new();
static ON: AtomicBool = AtomicBool::new(false);

/// Sets the hook. False if there is one already: then that one stays.
pub fn set_hook(hook: &'static TraceHook) -> bool {
    HOOK.set(hook).is_ok()
}

/// Turns tracing on or off, for all machines of the process.
pub fn switch(on: bool) {
    ON.store(on, Ordering::Relaxed);
}

/// Whether tracing is on.
#[inline]
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Hands an event to the hook, also while tracing is off: called by [`trace!`](crate::trace!), which asks [`is_on`] first, and for
/// bugs.
#[cold]
pub fn emit_always(context: &TraceContext, text: fmt::Arguments<'_>) {
    if let Some(TraceHook(hook)) = HOOK.get() {
        hook(TraceEvent { context, text });
    }
}

/// Traces what happened: `trace!(context, "text {}", value)`. The context is a [`TraceContext`](crate::trace::TraceContext); it and
/// the values are evaluated only while tracing is on.
#[macro_export]
macro_rules! trace {
    ($context:expr, $($text:tt)+) => {
        if $crate::trace::is_on() {
            $crate::trace::emit_always(&$context, format_args!($($text)+));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use core::sync::atomic::AtomicUsize;

    static SEEN: AtomicUsize = AtomicUsize::new(0);

    fn count(event: TraceEvent<'_>) {
        if event.text.to_string() == "an input of 3 bytes" {
            assert_eq!(event.context.to_string(), "agent");
            SEEN.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn nothing_is_evaluated_while_tracing_is_off() {
        static COUNT: TraceHook = TraceHook(count);
        assert!(set_hook(&COUNT));
        let mut evaluated = 0;
        let mut context = || {
            evaluated += 1;
            TraceContext::of(TraceRole::Agent)
        };
        for on in [false, true, false] {
            switch(on);
            crate::trace!(context(), "an input of {} bytes", 3);
        }
        assert_eq!((evaluated, SEEN.load(Ordering::Relaxed)), (1, 1));
    }

    #[test]
    fn a_context_has_the_session_and_its_generation() {
        let text = |generation| -> String {
            TraceContext::of_session(TraceRole::ClientEnd, SessionId([0x1f; 16]), generation).to_string()
        };
        let session = "client end 1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f1f";
        assert_eq!(text(Generation::NONE), session);
        let second = Generation { count: 2, opener: 7 };
        assert_eq!(text(second), alloc::format!("{session} generation 2.0000000000000007"));
    }
}
