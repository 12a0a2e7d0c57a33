//! What operators do with running edges: deploy, list, kill, drain. Each command talks to the admin API.

use super::{Failure, table};
use crate::admin::client::{Client, ClientError};
use anyhow::{Context, anyhow};
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Which edges to talk to.
#[derive(Args)]
pub(super) struct Edges {
    /// An edge's admin address, as http://HOST:PORT; several times for several edges.
    #[arg(long = "edge", value_name = "ADMIN_URL", default_value = "http://127.0.0.1:7401")]
    edges: Vec<String>,
    /// File with the edges' admin token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print JSON: one array with one object an edge.
    #[arg(long)]
    json: bool,
}

impl Edges {
    /// Each of them alone.
    pub(super) fn each(&self) -> impl Iterator<Item = Self> {
        let one = |edge: &String| Self {
            edges: vec![edge.clone()],
            token_file: self.token_file.clone(),
            json: self.json,
        };
        self.edges.iter().map(one)
    }

    fn clients(&self) -> Result<Vec<(String, Client)>, Failure> {
        let token = match &self.token_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("the token file {} cannot be read", path.display()))
                    .map_err(Failure::Usage)?;
                Some(text.trim().to_owned())
            }
        };
        let client = |url: &String| {
            let client = Client::new(url, token.clone()).map_err(|why| Failure::Usage(anyhow!(why)))?;
            Ok((url.clone(), client))
        };
        self.edges.iter().map(client).collect()
    }

    /// Asks every edge the same and collects the answers.
    pub(super) fn ask(&self, method: &Method, path: &str, body: &Bytes) -> Result<Vec<Value>, Failure> {
        self.clients()?.into_iter().map(|(url, client)| ask_one(&url, &client, method, path, body)).collect()
    }

    /// Shows what the edges list that can be asked; then says which cannot.
    pub(super) fn list(&self, path: &str, text: impl FnOnce(&[Value]) -> String) -> Result<(), Failure> {
        let (mut answers, mut failed) = (Vec::new(), None);
        for (url, client) in self.clients()? {
            match ask_one(&url, &client, &Method::GET, path, &Bytes::new()) {
                Ok(answer) => answers.push(answer),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        if !answers.is_empty() {
            self.show(&answers, || text(&answers));
        }
        failed.map_or(Ok(()), Err)
    }

    /// Asks edge after edge until one knows the answer.
    pub(super) fn ask_first(&self, method: &Method, path: &str) -> Result<Value, Failure> {
        let (_, answer) = self.call_first(method, path)?;
        serde_json::from_slice(&answer)
            .map_err(|error| Failure::Other(anyhow!("the answer is no JSON: {error}")))
    }

    /// As above, about a session: the edge that owns it rather than one that stands by for it.
    pub(super) fn ask_owner(&self, path: &str) -> Result<Value, Failure> {
        let mut standby = None;
        for edge in self.each() {
            match edge.ask_first(&Method::GET, path) {
                Ok(answer) if answer["phase"] == "standing by" => standby = standby.or(Some(answer)),
                Ok(answer) => return Ok(answer),
                // Whoever owns it may be among the others; if not, all are asked once more for what to say.
                Err(_) => {}
            }
        }
        standby.map_or_else(|| self.ask_first(&Method::GET, path), Ok)
    }

    /// As above, for an answer that is no JSON; with the edge that knew it.
    pub(super) fn call_first(&self, method: &Method, path: &str) -> Result<(Client, Bytes), Failure> {
        let (mut unknown, mut broken) = (None, None);
        for (url, client) in self.clients()? {
            match client.call(method.clone(), path, Bytes::new()) {
                Ok(answer) => return Ok((client, answer)),
                Err(error) if error.is_not_found() => unknown = Some(failure(&url, error)),
                Err(error) => broken = Some(failure(&url, error)),
            }
        }
        // An edge that could not be asked may be the one that knows.
        Err(broken.or(unknown).unwrap_or_else(|| Failure::Usage(anyhow!("name an edge with --edge"))))
    }

    pub(super) fn show(&self, answers: &[Value], text: impl FnOnce() -> String) {
        if self.json {
            super::emit(&format!("{}\n", json!(answers)));
        } else {
            super::emit(&text());
        }
    }
}

fn ask_one(url: &str, client: &Client, method: &Method, path: &str, body: &Bytes) -> Result<Value, Failure> {
    let answer = client.call(method.clone(), path, body.clone()).map_err(|error| failure(url, error))?;
    serde_json::from_slice(&answer).map_err(|error| {
        Failure::Other(anyhow!("{url}: the answer is no JSON ({error}); is it an edge of this version?"))
    })
}

fn failure(url: &str, error: ClientError) -> Failure {
    let wrapped = anyhow!("{url}: {error}");
    match error {
        ClientError::Unreachable(_) => Failure::Unreachable(wrapped),
        ClientError::Refused { .. } => Failure::Refused(wrapped),
        ClientError::NotUnderstood(_) => Failure::Other(wrapped),
    }
}

/// `marram deploy`
#[derive(Args)]
pub(super) struct Deploy {
    /// A manifest, or the directory that holds one (marram.toml).
    path: PathBuf,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn deploy(arguments: &Deploy) -> Result<(), Failure> {
    let upload = crate::admin::load(&arguments.path).map_err(|why| Failure::Usage(anyhow!(why)))?;
    let body = upload.encode().map_err(|why| Failure::Usage(anyhow!(why)))?;
    let answers = arguments.edges.ask(&Method::POST, "/v1/apps", &body)?;
    arguments.edges.show(&answers, || {
        let line = |answer: &Value| {
            format!(
                "{}: {} is deployed as image {}; its sessions survive {}\n",
                text(answer, "edge"),
                text(answer, "name"),
                short(&text(answer, "image")),
                text(answer, "survives")
            )
        };
        answers.iter().map(line).collect()
    });
    Ok(())
}

pub(super) fn apps(edges: &Edges) -> Result<(), Failure> {
    edges.list("/v1/apps", |answers| {
        let fields = ["name", "image", "cell", "protect", "server", "keep", "stages"];
        let headings = ["APP", "IMAGE", "CELL", "PROTECT", "SERVER", "CHECKPOINTS AT", "STAGES"];
        listing(answers, "apps", &fields, &headings)
    })
}

pub(super) fn ps(edges: &Edges) -> Result<(), Failure> {
    edges.list("/v1/sessions", |answers| {
        let fields = [
            "session",
            "app",
            "phase",
            "protect",
            "keepers",
            "consumed",
            "produced",
            "log_bytes",
            "recoveries",
            "stages",
        ];
        let headings = [
            "SESSION",
            "APP",
            "PHASE",
            "PROTECT",
            "KEEPERS",
            "CONSUMED",
            "PRODUCED",
            "LOG BYTES",
            "RECOVERIES",
            "STAGES",
        ];
        listing(answers, "sessions", &fields, &headings)
    })
}

/// A command about one session.
#[derive(Args)]
pub(super) struct One {
    /// The session's identifier, as `marram ps` shows it.
    session: String,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn kill(arguments: &One) -> Result<(), Failure> {
    let answer =
        arguments.edges.ask_first(&Method::DELETE, &format!("/v1/sessions/{}", arguments.session))?;
    arguments.edges.show(&[answer], || "the session is ended\n".to_owned());
    Ok(())
}

pub(super) fn drain(edges: &Edges) -> Result<(), Failure> {
    let answers = edges.ask(&Method::POST, "/v1/drain", &Bytes::new())?;
    edges.show(&answers, || {
        "draining: sessions move to other edges, new ones are refused; `marram ps` shows the rest\n"
            .to_owned()
    });
    Ok(())
}

/// A table of what each edge lists; says of which edge a line is where there are several.
fn listing(answers: &[Value], list: &str, fields: &[&str], headings: &[&str]) -> String {
    let several = answers.len() > 1;
    let edge = |answer: &Value| several.then(|| text(answer, "edge"));
    let mut rows = Vec::new();
    for answer in answers {
        for item in answer[list].as_array().into_iter().flatten() {
            let cells = fields.iter().map(|field| short(&text(item, field)));
            rows.push(edge(answer).into_iter().chain(cells).collect());
        }
    }
    let headings: Vec<&str> = several.then_some("EDGE").into_iter().chain(headings.iter().copied()).collect();
    table::format(&headings, &rows)
}

/// A field's value without quotes, a list of names in its order (of stages, or of keepers); `-` where there is none.
pub(super) fn text(value: &Value, field: &str) -> String {
    match &value[field] {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".into(),
        Value::Array(items) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join(if field == "keepers" { "; " } else { " > " })
        }
        other => other.to_string(),
    }
}

/// The beginning of a digest; other texts as they are.
pub(super) fn short(text: &str) -> String {
    if text.len() == 64 { text[..12].to_owned() } else { text.to_owned() }
}
