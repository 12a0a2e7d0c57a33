//! Why an app is not deployed at this edge.

use super::ControlConfig;
use crate::api::{App, CheckpointHolder, WitnessMode};
use alloc::{format, string::String};

/// What is wrong with an app for this edge, and what to do. `was`: the same version, as it was deployed before.
pub(super) fn refusal(app: &App, config: &ControlConfig, was: Option<&App>) -> Option<String> {
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
    let was = was.filter(|was| was.shares_protected_cells() && was.slots != app.slots)?;
    Some(other_slots(was, app))
}

/// Why a version of an app is not deployed again with other keys: its cells would be looked for in other slots, while they run.
fn other_slots(was: &App, app: &App) -> String {
    let keys = |app: &App| match app.slots {
        0 => "without keys".into(),
        slots => format!("with keys in {slots} slots"),
    };
    format!(
        "this edge has app `{}` with this module {}, and its cells may run; to have it {}, deploy it under another name, or with another \
         module or other `quotas`",
        app.name,
        keys(was),
        keys(app)
    )
}
