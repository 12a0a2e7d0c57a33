//! `marram inspect`: a summary of an edge, or one session.
//!
//! It prints what the edge says: figures by name, and what a session survives in the edge's own
//! words, since only the edge knows where the ends run.

use super::Failure;
use super::operate::{Edges, short, text};
use clap::Args;
use hyper::Method;
use marram_node::text::counted;
use marram_node::text::table;
use serde_json::Value;
use std::time::{Duration, SystemTime};

/// `marram inspect`
#[derive(Args)]
pub(super) struct Inspect {
    /// A session's identifier, as `marram ps` shows it, or its first digits; if left out, the edges are shown.
    session: Option<String>,
    #[command(flatten)]
    edges: Edges,
}

/// The figures in the table of shards, with their headings.
const OF_SHARDS: [(&str, &str); 8] = [
    ("sessions", "SESSIONS"),
    ("wires", "WIRES"),
    ("cells", "CELLS"),
    ("shared_cells", "SHARED"),
    ("cells_ready", "READY"),
    ("slots_warm", "WARM SLOTS"),
    ("images_loaded", "IMAGES"),
    ("memory_reclaims_total", "RECLAIMS"),
];
/// The same for the table of apps.
const OF_APPS: [(&str, &str); 6] = [
    ("app_sessions", "SESSIONS"),
    ("app_sessions_refused_total", "REFUSED"),
    ("app_cells_ready", "READY"),
    ("app_cells_ready_found_total", "FOUND READY"),
    ("app_cells_ready_missed_total", "MISSED"),
    ("app_images_loaded", "LOADED ON"),
];

/// The fields of a shared cell's clients, with their headings.
const OF_CLIENTS: [(&str, &str); 7] = [
    ("session", "CLIENT"),
    ("port", "PORT"),
    ("connected", "CONNECTED"),
    ("agent", "AGENT"),
    ("consumed", "CONSUMED"),
    ("produced", "PRODUCED"),
    ("unsent", "UNSENT"),
];
/// The fields of the servers to which a shared cell has connected, with their headings.
const OF_SERVERS: [(&str, &str); 7] = [
    ("server", "SERVER"),
    ("port", "PORT"),
    ("state", "STATE"),
    ("agent", "AGENT"),
    ("consumed", "CONSUMED"),
    ("produced", "PRODUCED"),
    ("waiting_bytes", "BYTES WAITING"),
];
/// Fields of a session that have lines of their own.
const APART: [&str; 3] = ["survives", "clients_listed", "servers"];

pub(super) fn run(arguments: &Inspect) -> Result<(), Failure> {
    match &arguments.session {
        Some(session) => one(session, &arguments.edges),
        None => arguments.edges.list("/v1/edge", |edges| {
            let edges: Vec<String> = edges.iter().map(edge).collect();
            edges.join("\n")
        }),
    }
}

/// The text about an edge, its shards and its apps.
/// A figure that this edge does not have (an older version) is shown as `-`.
fn edge(edge: &Value) -> String {
    let figures = |of: &Value, names: &[(&str, &str)]| -> Vec<String> {
        names.iter().map(|(name, _)| text(&of["figures"], name)).collect()
    };
    let headings = |first: &[&'static str], names: &[(&str, &'static str)]| -> Vec<&'static str> {
        first.iter().copied().chain(names.iter().map(|(_, heading)| *heading)).collect()
    };
    let list = |name: &str| edge[name].as_array().into_iter().flatten();
    let shards: Vec<Vec<String>> = list("shards")
        .map(|shard| [vec![text(shard, "shard")], figures(shard, &OF_SHARDS)].concat())
        .collect();
    let apps: Vec<Vec<String>> = list("apps")
        .map(|app| {
            let first = vec![text(app, "name"), short(&text(app, "image"))];
            [first, figures(app, &OF_APPS), vec![text(app, "stages")]].concat()
        })
        .collect();
    let mut app_headings = headings(&["APP", "IMAGE"], &OF_APPS);
    app_headings.push("STAGES");
    let figure = |name: &str| edge["figures"][name].as_u64().unwrap_or(0);
    let waiting = match figure("sessions_waiting") {
        0 => String::new(),
        count => {
            format!("waiting to be admitted: {}; the edge's log shows why\n", counted(count, "session"))
        }
    };
    format!(
        "edge {}: {}, {}, {} ({} died)\n{waiting}\n{}\n{}",
        text(edge, "edge"),
        counted(figure("sessions"), "session"),
        counted(figure("apps"), "app"),
        counted(figure("shards"), "shard"),
        figure("shard_deaths_total"),
        table::format(&headings(&["SHARD"], &OF_SHARDS), &shards),
        table::format(&app_headings, &apps),
    )
}

/// The session may be given by its first digits. If no edge that was asked owns it, the standby's
/// row is shown, or what the coordinator knows.
fn one(session: &str, edges: &Edges) -> Result<(), Failure> {
    let session = &edges.whole(session)?;
    let mut answer = match edges.ask_owner(&format!("/v1/sessions/{session}")) {
        Ok(answer) => answer,
        Err(failure) => return elsewhere(session, edges, failure),
    };
    // Without it the rest is right, too.
    if let Ok((asked, _)) = edges.listed("/v1/edge") {
        name_gates(&mut answer, &asked);
    }
    edges.show(std::slice::from_ref(&answer), || {
        let mut out = String::new();
        for (field, value) in
            answer.as_object().into_iter().flatten().filter(|(field, _)| !APART.contains(&field.as_str()))
        {
            match (field.as_str(), value.as_u64()) {
                ("since_ms", Some(since_ms)) => out += &format!("{:<16} {}\n", "since", ago(since_ms)),
                (field, _) => out += &format!("{:<16} {}\n", label(field), text(&answer, field)),
            }
        }
        for line in answer["survives"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let (label, what) = line.split_once(": ").unwrap_or(("", line));
            out += &format!("{label:<16} {what}\n");
        }
        out + &clients(&answer) + &servers(&answer)
    });
    Ok(())
}

/// Names the edges at whose gates the ends of a session are, among those that were asked. The cell may be at another one.
fn name_gates(session: &mut Value, asked: &[Value]) {
    for end in ["client", "server"] {
        let is_its = |edge: &&Value| edge["gate"].is_string() && edge["gate"] == session[end];
        let Some(edge) = asked.iter().find(is_its).map(|edge| edge["edge"].clone()) else { continue };
        if edge != session["edge"]
            && let Some(survives) = session["survives"].as_array_mut()
        {
            let edge = edge.as_str().unwrap_or_default();
            let line = format!(
                "ends with: the failure of the edge `{edge}`: the {end}'s connection stays at its gate"
            );
            survives.push(line.into());
        }
        session[format!("{end}_gate")] = edge;
    }
}

/// The clients of a shared cell, as far as the edge lists them.
fn clients(cell: &Value) -> String {
    let Some(listed) = cell["clients_listed"].as_array() else { return String::new() };
    let rows: Vec<Vec<String>> = listed
        .iter()
        .map(|client| OF_CLIENTS.iter().map(|(field, _)| text(client, field)).collect())
        .collect();
    let count = cell["clients"].as_u64().unwrap_or(0);
    let more = count.saturating_sub(listed.len() as u64);
    let rest = if more > 0 { format!("and {}\n", counted(more, "further client")) } else { String::new() };
    format!("\n{}{rest}", table::format(&OF_CLIENTS.map(|(_, heading)| heading), &rows))
}

/// The servers of a shared cell.
fn servers(cell: &Value) -> String {
    let listed = cell["servers"].as_array().map_or(&[][..], Vec::as_slice);
    if listed.is_empty() {
        return String::new();
    }
    let row = |server: &Value| OF_SERVERS.iter().map(|(field, _)| text(server, field)).collect();
    let rows: Vec<Vec<String>> = listed.iter().map(row).collect();
    format!("\n{}", table::format(&OF_SERVERS.map(|(_, heading)| heading), &rows))
}

/// For a session that none of the edges has: the coordinator may know its standby.
///
/// If that is no help either, the first failure is reported: it is about what was asked.
fn elsewhere(session: &str, edges: &Edges, unknown: Failure) -> Result<(), Failure> {
    let Ok(answer) = edges.ask_first(&Method::GET, &format!("/v1/standbys/{session}")) else {
        return Err(unknown);
    };
    edges.show(std::slice::from_ref(&answer), || {
        let how = if answer["hot"].as_bool().unwrap_or(false) { "hot" } else { "warm" };
        let of = |field: &str| text(&answer, field);
        format!(
            "no edge that was asked has it; its owner, `{}`, reported to the coordinator in generation {}: `{}` \
             stands by ({how})\n",
            of("owner"),
            of("generation"),
            of("standby"),
        )
    });
    Ok(())
}

/// Labels the counters that each edge starts when it takes a session over: they do not cover the whole session.
fn label(field: &str) -> String {
    let here = ["consumed", "produced", "payload_bytes", "checkpoints"].contains(&field);
    if here { format!("{field} here") } else { field.to_owned() }
}

/// How long ago a time was, for people; in Unix milliseconds of this machine's clock.
fn ago(then_ms: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    age(now.saturating_sub(Duration::from_millis(then_ms)).as_secs()) + " ago"
}

/// A number of seconds, in its two largest units.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::name_gates;
    use serde_json::{Value, json};

    #[test]
    fn the_edge_at_whose_gate_an_end_is_is_named_if_it_was_asked() {
        let asked = [
            json!({ "edge": "a", "gate": "01" }),
            json!({ "edge": "b", "gate": null }),
            json!({ "edge": "old" }),
        ];
        let session = |edge: &str, client: &str, server: Value| {
            let mut session = json!({ "edge": edge, "client": client, "server": server, "survives": [] });
            name_gates(&mut session, &asked);
            let survives = session["survives"].as_array().map(Vec::len);
            (session["client_gate"].clone(), session["server_gate"].clone(), survives)
        };
        let none = Value::Null;
        assert_eq!(session("b", "01", none.clone()), ("a".into(), none.clone(), Some(1)));
        assert_eq!(session("a", "01", "01".into()), ("a".into(), "a".into(), Some(0)));
        assert_eq!(session("b", "02", none.clone()), (none.clone(), none, Some(0)));
    }

    #[test]
    fn an_age_is_shown_in_two_units() {
        for (seconds, formatted) in
            [(0, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7_199, "1 h 59 min"), (90_000, "1 d 1 h")]
        {
            assert_eq!(super::age(seconds), formatted);
        }
    }
}
