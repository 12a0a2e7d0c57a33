//! Why an app is not deployed at this edge.

use super::ControlConfig;
use crate::api::{App, CheckpointHolder, WitnessMode};
use alloc::{format, string::String};

/// What is wrong with an app for this edge, and what to do.
pub(super) fn refusal(app: &App, config: &ControlConfig) -> Option<String> {
    if app.keep != CheckpointHolder::Client && app.server.is_none() {
        return Some(
            "keep.checkpoint names the server's end, but the app has no server: set keep.checkpoint = \"client\"".into(),
        );
    }
    if app.witness != WitnessMode::None && !config.coordinator {
        return Some(
            "keep.witness requires a coordinator, and this edge has none: add [coordinator] to its \
             configuration, or remove keep.witness"
                .into(),
        );
    }
    if app.has_backup() && !config.coordinator {
        let cell = if app.shared { " of a shared cell" } else { "" };
        return Some(format!(
            "protect = \"{}\"{cell} requires a coordinator, which decides between a primary and its backup, and this edge has none: \
             add [coordinator] to its configuration, or choose another protection",
            app.protect.written()
        ));
    }
    None
}
