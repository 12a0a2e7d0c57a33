//! How apps, sessions and counters look outside.

use marram_edge::api::{App, Keep, Protect, Row};
use serde_json::{Value, json};
use std::fmt::Write;

/// One app; `manifest` is its text, where it is kept.
pub(super) fn app(app: &App, manifest: Option<String>) -> Value {
    json!({
        "name": app.name,
        "image": app.image.to_string(),
        "cell": if app.shared { "shared" } else { "client" },
        "protect": protect(app.protect),
        "server": app.server,
        "keep": match app.keep {
            Keep::Client => "client",
            Keep::Server => "server",
            Keep::Both => "both",
        },
        "recovery_target_ns": app.recovery_target_ns,
        "linger_ms": app.linger_ms,
        "messages_per_s": app.messages_per_s,
        "log_bytes_per_s": app.log_bytes_per_s,
        "sessions_max": app.sessions_max,
        "manifest": manifest,
    })
}

/// One session.
pub(super) fn row(row: &Row) -> Value {
    json!({
        "session": row.session.to_string(),
        "app": row.app,
        "generation": row.generation.to_string(),
        "phase": row.phase,
        "client": row.client.to_string(),
        "server": row.server.map(|host| host.to_string()),
        "protect": protect(row.protect),
        "client_in_gate": row.client_in_gate,
        "server_in_gate": row.server_in_gate,
        "consumed": row.consumed,
        "produced": row.produced,
        "log_bytes": row.log_bytes,
        "uncovered_bytes": row.uncovered_bytes,
        "checkpoints": row.checkpoints,
        "recoveries": row.recoveries,
        "since_ms": row.since_ms,
    })
}

fn protect(protect: Protect) -> &'static str {
    match protect {
        Protect::None => "none",
        Protect::Endpoints => "endpoints",
    }
}

/// Counters as Prometheus reads them.
pub(super) fn prometheus(edge: &str, counters: &[(String, u64, bool)]) -> String {
    let mut out = String::new();
    for (name, value, gauge) in counters {
        let kind = if *gauge { "gauge" } else { "counter" };
        writeln!(out, "# TYPE marram_{name} {kind}\nmarram_{name}{{edge=\"{edge}\"}} {value}")
            .expect("writing to a string never fails");
    }
    out
}

/// Two hexadecimal digits a byte, exactly `N` bytes.
pub(super) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_read_as_they_are_shown() {
        assert_eq!(parse_hex("00ff7a"), Some([0, 0xff, 0x7a]));
        for text in ["", "00ff7", "00ff7g", "+0ff7a", "00ff7a00"] {
            assert_eq!(parse_hex::<3>(text), None, "{text}");
        }
    }

    #[test]
    fn counters_are_prometheus_text() {
        let text = prometheus("a", &[("sessions".into(), 3, true), ("recoveries".into(), 9, false)]);
        assert_eq!(
            text,
            "# TYPE marram_sessions gauge\nmarram_sessions{edge=\"a\"} 3\n\
             # TYPE marram_recoveries counter\nmarram_recoveries{edge=\"a\"} 9\n"
        );
    }
}
