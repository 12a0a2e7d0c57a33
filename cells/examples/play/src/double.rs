//! What a client says to a game, and what it sees, in native tests.

use marram_sdk::{
    Cell, Port,
    double::{Output, Session},
};

/// Sends a line as the client; returns what the game sent and closed.
pub fn say<C: Cell>(session: &mut Session<C>, line: &str) -> String {
    text(&session.message(Port::CLIENT, format!("{line}\n").as_bytes()))
}

/// The text of all messages; a close is the word `closed`.
#[must_use]
pub fn text(outputs: &[Output]) -> String {
    let text = |output: &Output| match output {
        Output::Message { payload, .. } => String::from_utf8_lossy(payload).into_owned(),
        Output::Close { .. } => "closed".to_owned(),
        Output::Connect { server, .. } => format!("connects to {server}"),
    };
    outputs.iter().map(text).collect()
}
