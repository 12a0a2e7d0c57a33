//! The admin API of a recorder: its health, its figures, the sessions that it keeps.
//!
//! It names the fields as an edge does where they mean the same, so that `marram ps` can print both
//! in one table. Values are counts and sizes in bytes. What a recorder keeps is sealed or belongs
//! to peers, and is never shown.

use super::answer::{Answer, Call};
use super::figures::escaped;
use super::server::AdminApi;
use hyper::{Method, StatusCode};
use marram_http::Refusal;
use marram_node::recorder::{RecorderHandle, RecorderMetric};
use marram_session::recorder::RecorderRow;
use serde_json::{Value, json};
use std::fmt::Write;

/// The recorder, as seen by its admin API.
#[derive(Debug)]
pub struct RecorderAdmin {
    /// Asks the recorder's loop.
    pub client: RecorderHandle,
}

impl AdminApi for RecorderAdmin {
    fn answer(&self, name: &str, call: &Call) -> Result<Answer, Refusal> {
        let away = |error: marram_node::recorder::Unanswered| {
            let fix = "try again in a moment";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), fix)
        };
        if call.method == Method::GET {
            match call.path.trim_matches('/') {
                "healthz" => {
                    self.client.figures().map_err(away)?;
                    return Ok(Answer::json(&json!({ "recorder": name })));
                }
                "metrics" => {
                    let figures = self.client.figures().map_err(away)?;
                    return Ok(Answer::text(prometheus(name, &figures)));
                }
                "v1/sessions" => {
                    let rows = self.client.sessions().map_err(away)?;
                    let rows: Vec<Value> = rows.iter().map(row).collect();
                    // The field that `marram ps` uses for the name when it asks several.
                    return Ok(Answer::json(&json!({ "edge": name, "sessions": rows })));
                }
                _ => {}
            }
        }
        let what = format!("a recorder does not support {} {}", call.method, call.path);
        let fix = "it answers GET /healthz, /metrics, /v1/sessions and /v1/logs; ask an edge for the rest";
        Err(Refusal::new(StatusCode::NOT_FOUND, what, fix))
    }
}

/// One session that is kept.
fn row((row, edge): &(RecorderRow, Option<String>)) -> Value {
    // "receiving": the first checkpoint or log is not complete. "orphaned": complete, but no edge
    // feeds it now.
    let phase = match (row.ready, edge) {
        (false, _) => "receiving",
        (true, Some(_)) => "recorded",
        (true, None) => "orphaned",
    };
    json!({
        "session": row.session.to_string(),
        "app": row.app,
        "generation": row.generation.to_string(),
        "phase": phase,
        "edge": edge,
        "shard": row.target.map(|target| target.shard),
        "log_bytes": row.log,
        "message_bytes": row.messages,
        "checkpoint_bytes": row.checkpoints,
    })
}

fn prometheus(name: &str, figures: &[RecorderMetric]) -> String {
    let (mut out, recorder) = (String::new(), escaped(name));
    for RecorderMetric { name, value, gauge } in figures {
        let kind = if *gauge { "gauge" } else { "counter" };
        write!(
            out,
            "# TYPE marram_recorder_{name} {kind}\nmarram_recorder_{name}{{recorder=\"{recorder}\"}} {value}\n"
        )
        .expect("writing to a string never fails");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_prometheus_text() {
        let figures = [
            RecorderMetric { name: "sessions", value: 3, gauge: true },
            RecorderMetric { name: "inputs", value: 7, gauge: false },
        ];
        assert_eq!(
            prometheus("r\"1", &figures),
            "# TYPE marram_recorder_sessions gauge\nmarram_recorder_sessions{recorder=\"r\\\"1\"} 3\n\
             # TYPE marram_recorder_inputs counter\nmarram_recorder_inputs{recorder=\"r\\\"1\"} 7\n"
        );
    }
}
