//! `marram route`: the rules by which an edge's gates choose the app, changed while the edge runs.
//!
//! `add` and `remove` read the present rules, change them, and send all of them back with the
//! revision that was read: a change by another operator in between is refused by the edge and not
//! lost. `set` replaces everything.

use super::{
    Failure,
    operate::{Edges, PATIENCE, text},
};
use anyhow::anyhow;
use bytes::Bytes;
use clap::{Args, Subcommand};
use hyper::Method;
use marram_admin::Replacement;
use marram_config::routes::{self, WrittenRoute};
use marram_config::source::Source;
use marram_node::text::table;
use serde_json::Value;
use std::path::PathBuf;

/// The path of the routes in the admin API.
const PATH: &str = "/v1/routes";

/// Show or change the rules of running edges. After a restart, an edge has the rules of its configuration.
#[derive(Subcommand)]
pub(super) enum Route {
    /// List the rules and how often each decided.
    List(Edges),
    /// Replace all rules by those of a file (`[[route]]` tables, as in a configuration, and nothing else).
    Set {
        /// The file; `route = []` in it for none.
        file: PathBuf,
        #[command(flatten)]
        edges: Edges,
    },
    /// Add a rule, after the existing ones.
    Add(Box<Add>),
    /// Remove a rule.
    Remove {
        /// The rule's name.
        name: String,
        #[command(flatten)]
        edges: Edges,
    },
}

/// A rule. All given conditions must hold.
#[derive(Args)]
pub(super) struct Add {
    /// The rule's name.
    name: String,
    /// The app that it selects.
    #[arg(long, required_unless_present = "refuse", conflicts_with = "refuse")]
    app: Option<String>,
    /// Refuse the connection, for this reason.
    #[arg(long, value_name = "REASON")]
    refuse: Option<String>,
    /// Rules with a higher priority are tried first.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// A gate's name or address.
    #[arg(long)]
    listener: Option<String>,
    /// The client's address or prefix, such as 10.1.0.0/16.
    #[arg(long, value_name = "PREFIX")]
    client: Option<String>,
    /// The client's port, or a range such as 1024-65535.
    #[arg(long, value_name = "PORTS")]
    client_port: Option<String>,
    /// tcp, udp or websocket.
    #[arg(long)]
    protocol: Option<String>,
    /// The TLS server that the client asks for: www.example.org, or *.example.org.
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// The first bytes that the client sends.
    #[arg(long, value_name = "TEXT", conflicts_with = "first_bytes_hex")]
    first_bytes: Option<String>,
    /// The same as hexadecimal digits.
    #[arg(long, value_name = "DIGITS")]
    first_bytes_hex: Option<String>,
    /// What chooses the cell of a client, if the app has one for each key: path, sni, client/24, first-bytes/8 or name/NAME.
    #[arg(long, value_name = "SOURCE", requires = "app")]
    key: Option<String>,
    #[command(flatten)]
    edges: Edges,
}

impl Add {
    fn written(&self) -> WrittenRoute {
        WrittenRoute {
            name: self.name.clone(),
            priority: self.priority,
            listener: self.listener.clone(),
            client: self.client.clone(),
            client_port: self.client_port.clone(),
            protocol: self.protocol.clone(),
            sni: self.sni.clone(),
            first_bytes: self.first_bytes.clone(),
            first_bytes_hex: self.first_bytes_hex.clone(),
            app: self.app.clone(),
            key: self.key.clone(),
            refuse: self.refuse.clone(),
        }
    }
}

pub(super) fn run(command: &Route) -> Result<(), Failure> {
    match command {
        Route::List(edges) => list(edges),
        Route::Set { file, edges } => set(file, edges),
        Route::Add(add) => {
            let new = add.written();
            // Checked here already, where the user wrote it, and not only at the edge.
            new.resolve().map_err(|(field, what)| Failure::Usage(anyhow!("`{field}` {what}")))?;
            change(&add.edges, |routes| {
                if routes.iter().any(|route| route.name == new.name) {
                    return Err(format!("there is a route `{}` already; remove it first", new.name));
                }
                routes.push(new.clone());
                Ok(())
            })
        }
        Route::Remove { name, edges } => change(edges, |routes| {
            let before = routes.len();
            routes.retain(|route| route.name != *name);
            if routes.len() == before { Err(no_route(name)) } else { Ok(()) }
        }),
    }
}

fn no_route(name: &str) -> String {
    format!("there is no route `{name}`; look with `marram route list`")
}

fn list(edges: &Edges) -> Result<(), Failure> {
    edges.list(PATH, table)
}

/// The whole file is checked here first, so that no edge gets rules which another one would refuse.
fn set(file: &std::path::Path, edges: &Edges) -> Result<(), Failure> {
    let source = Source::read(file).map_err(|problem| Failure::Usage(problem.into()))?;
    let rules = routes::read(&source).map_err(|problem| Failure::Usage(problem.into()))?;
    let routes = rules.iter().map(WrittenRoute::from).collect();
    let body = encoded(&Replacement { revision: None, routes })?;
    edges.ask_all((&Method::PUT, PATH, &body), PATIENCE, table)
}

/// Changes the present rules; fails if they are replaced by another request in the meantime.
fn change(
    edges: &Edges,
    mut change: impl FnMut(&mut Vec<WrittenRoute>) -> Result<(), String>,
) -> Result<(), Failure> {
    let mut answers = Vec::new();
    // One after the other: if an edge refuses, those before it have the change and those behind it
    // do not; the error names the edge.
    for edge in edges.each() {
        for now in edge.ask(&Method::GET, PATH, &Bytes::new())? {
            let mut routes: Vec<WrittenRoute> = serde_json::from_value(now["routes"].clone())
                .map_err(|error| Failure::Other(anyhow!("the routes of the edge cannot be read: {error}")))?;
            change(&mut routes).map_err(|why| Failure::Refused(anyhow!("{}: {why}", text(&now, "edge"))))?;
            let body = encoded(&Replacement { revision: now["revision"].as_u64(), routes })?;
            answers.extend(edge.ask(&Method::PUT, PATH, &body)?);
        }
    }
    edges.show(&answers, || table(&answers));
    Ok(())
}

fn encoded(replacement: &Replacement) -> Result<Bytes, Failure> {
    serde_json::to_vec(replacement).map(Bytes::from).map_err(|error| Failure::Other(error.into()))
}

fn table(answers: &[Value]) -> String {
    let headings = ["EDGE", "ROUTE", "PRIORITY", "ASKS FOR", "LEADS TO", "HITS"];
    table::format(&headings, &answers.iter().flat_map(rows).collect::<Vec<_>>())
}

/// An app, and what chooses one of its cells.
fn leads_to(app: Option<String>, key: Option<String>) -> Option<String> {
    let app = app?;
    Some(key.map_or_else(|| app.clone(), |key| format!("{app} by {key}")))
}

/// A row for each rule, and one for connections that no rule decides.
fn rows(answer: &Value) -> Vec<Vec<String>> {
    let edge = answer["edge"].as_str().unwrap_or("-").to_string();
    let routes: Vec<WrittenRoute> = serde_json::from_value(answer["routes"].clone()).unwrap_or_default();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for route in routes {
        let asks = [
            ("listener", &route.listener),
            ("client", &route.client),
            ("client_port", &route.client_port),
            ("protocol", &route.protocol),
            ("sni", &route.sni),
            ("first_bytes", &route.first_bytes),
            ("first_bytes_hex", &route.first_bytes_hex),
        ];
        let asks: Vec<String> = asks
            .into_iter()
            .filter_map(|(name, value)| value.as_ref().map(|value| format!("{name}={value}")))
            .collect();
        let refuse = route.refuse.map(|reason| format!("refused: {reason}"));
        rows.push(vec![
            edge.clone(),
            route.name.clone(),
            route.priority.to_string(),
            if asks.is_empty() { "anything".to_string() } else { asks.join(" ") },
            leads_to(route.app, route.key).or(refuse).unwrap_or_default(),
            answer["hits"][&route.name].to_string(),
        ]);
    }
    let hits = answer["default_hits"].to_string();
    rows.push(vec![edge, "-".into(), "-".into(), "anything else".into(), "the gate's app".into(), hits]);
    rows
}
