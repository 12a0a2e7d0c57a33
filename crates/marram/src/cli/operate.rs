//! What operators do with running edges: deploy, list, kill, drain. Each command talks to the admin API.

use super::{Failure, table};
use crate::admin::client::{ApiClient, ClientError};
use crate::config::source::unreadable;
use crate::config::units::Name;
use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use marram_wire::id::SessionId;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long an edge may take to answer what it has at hand.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// Of a session's identifier.
const SESSION_DIGITS: usize = 2 * size_of::<SessionId>();
/// Sessions that are named where several begin alike.
const NAMED_MAX: usize = 4;
/// How long for what takes its time: it compiles a module, or asks distant ends for what they keep.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// Which edges to talk to.
#[derive(Args)]
pub(super) struct Edges {
    /// An edge's admin address, as http://HOST:PORT or https://HOST:PORT; several times for several edges.
    #[arg(long = "edge", value_name = "ADMIN_URL", default_value = "http://127.0.0.1:7401")]
    edges: Vec<String>,
    /// File with the edges' admin token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) by which edges at https:// are believed: their own, or their signer's; the system's if left out.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON: one array with one object an edge; of log lines an object each.
    #[arg(long)]
    pub(super) json: bool,
}

/// Reads what `--ca` names.
pub(super) fn read_ca(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        let why = unreadable(path, &error);
        Failure::Usage(anyhow!("the certificates {} {why}", path.display()))
    })
}

/// Asks the edge at this address, believing it by `ca` where it is encrypted.
pub(super) fn client(url: &str, token: Option<String>, ca: Option<&[u8]>) -> Result<ApiClient, Failure> {
    let client = ApiClient::new(url, token).map_err(|why| Failure::Usage(anyhow!(why)))?;
    match ca {
        None => Ok(client),
        Some(ca) => client.believing(ca).map_err(|why| Failure::Usage(anyhow!("--ca: {why}"))),
    }
}

impl Edges {
    /// Whether a line has to say of which edge it is.
    pub(super) fn are_several(&self) -> bool {
        self.edges.len() > 1
    }

    /// Each of them alone.
    pub(super) fn each(&self) -> impl Iterator<Item = Self> {
        let one = |edge: &String| Self {
            edges: vec![edge.clone()],
            token_file: self.token_file.clone(),
            ca: self.ca.clone(),
            json: self.json,
        };
        self.edges.iter().map(one)
    }

    pub(super) fn clients(&self) -> Result<Vec<(String, ApiClient)>, Failure> {
        let token = match &self.token_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| {
                    let why = unreadable(path, &error);
                    Failure::Usage(anyhow!("the token file {} {why}", path.display()))
                })?;
                Some(text.trim().to_owned())
            }
        };
        let ca = self.ca.as_deref().map(read_ca).transpose()?;
        let client = |url: &String| {
            let client = client(url, token.clone(), ca.as_deref())?;
            Ok((url.clone(), client))
        };
        self.edges.iter().map(client).collect()
    }

    /// Asks all edges at once, and gives their answers as they come, each with its place, until `enough` of them have.
    fn gather(
        &self,
        (method, path, body): (&Method, &str, &Bytes),
        patience: Duration,
        enough: impl Fn(&Bytes) -> bool,
    ) -> Result<Vec<Asked>, Failure> {
        let (sender, receiver) = mpsc::channel();
        let mut waiting = 0;
        for (place, (url, client)) in self.clients()?.into_iter().enumerate() {
            let sender = sender.clone();
            let (method, path, body) = (method.clone(), path.to_owned(), body.clone());
            // One that hangs keeps its thread until its time is up, and nobody else.
            std::thread::spawn(move || {
                let answer = call(&client, (method, &path, body), patience);
                // Nobody may want it any more.
                let _ = sender.send(Asked { place, url, client, answer });
            });
            waiting += 1;
        }
        let mut answers: Vec<Asked> = Vec::new();
        for asked in receiver.iter().take(waiting) {
            let last = asked.answer.as_ref().is_ok_and(&enough);
            answers.push(asked);
            if last {
                break;
            }
        }
        answers.sort_by_key(|asked| asked.place);
        Ok(answers)
    }

    /// Asks all edges the same, shows what they answer, and then says which did not.
    pub(super) fn ask_all(
        &self,
        (method, path, body): (&Method, &str, &Bytes),
        patience: Duration,
        text: impl FnOnce(&[Value]) -> String,
    ) -> Result<(), Failure> {
        let (answers, failed) = self.answers((method, path, body), patience)?;
        if !answers.is_empty() {
            self.show(&answers, || text(&answers));
        }
        failed.map_or(Ok(()), Err)
    }

    /// What all edges answer, and which did not.
    fn answers(
        &self,
        asked: (&Method, &str, &Bytes),
        patience: Duration,
    ) -> Result<(Vec<Value>, Option<Failure>), Failure> {
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        for Asked { url, answer, .. } in self.gather(asked, patience, |_| false)? {
            match answer.map_err(|error| failure(&url, error)).and_then(|answer| json_of(&url, &answer)) {
                Ok(answer) => answers.push(answer),
                Err(failure) => failed.push(failure),
            }
        }
        Ok((answers, Failure::all(failed)))
    }

    /// What edges list that can be asked, and which cannot.
    pub(super) fn listed(&self, path: &str) -> Result<(Vec<Value>, Option<Failure>), Failure> {
        self.answers((&Method::GET, path, &Bytes::new()), PATIENCE)
    }

    /// Asks every edge the same and collects the answers; all of them, or the failures.
    pub(super) fn ask(&self, method: &Method, path: &str, body: &Bytes) -> Result<Vec<Value>, Failure> {
        let (answers, failed) = self.answers((method, path, body), PATIENCE)?;
        failed.map_or(Ok(answers), Err)
    }

    /// Shows what the edges list that can be asked; then says which cannot.
    pub(super) fn list(&self, path: &str, text: impl FnOnce(&[Value]) -> String) -> Result<(), Failure> {
        self.ask_all((&Method::GET, path, &Bytes::new()), PATIENCE, text)
    }

    /// A session's whole identifier, for one that begins so.
    pub(super) fn whole(&self, session: &str) -> Result<String, Failure> {
        can_be_session(session)?;
        if session.len() == SESSION_DIGITS {
            return Ok(session.to_owned());
        }
        let begins = session.to_ascii_lowercase();
        let (answers, away) = self.listed("/v1/sessions")?;
        let rows = answers.iter().filter_map(|answer| answer["sessions"].as_array()).flatten();
        let ids = rows.filter_map(|row| row["session"].as_str());
        let mut found: BTreeSet<String> =
            ids.filter(|id| id.starts_with(&begins)).map(str::to_owned).collect();
        let count = found.len();
        match found.pop_first() {
            Some(id) if count == 1 => Ok(id),
            Some(first) => {
                let some: Vec<String> = std::iter::once(first).chain(found).take(NAMED_MAX).collect();
                let rest = if count > NAMED_MAX { ", ..." } else { "" };
                Err(Failure::Usage(anyhow!(
                    "{count} sessions begin with {session}: {}{rest}; write more of the one that is meant",
                    some.join(", ")
                )))
            }
            None => Err(away.unwrap_or_else(|| {
                Failure::Refused(anyhow!("no session here begins with {session}; look with `marram ps`"))
            })),
        }
    }

    /// Asks edges until one knows the answer.
    pub(super) fn ask_first(&self, method: &Method, path: &str) -> Result<Value, Failure> {
        self.first_json(method, path, |_| true)
    }

    /// As above, about a session: the edge that owns it rather than one that stands by for it.
    pub(super) fn ask_owner(&self, path: &str) -> Result<Value, Failure> {
        self.first_json(&Method::GET, path, |answer| answer["phase"] != "standing by")
    }

    fn first_json(
        &self,
        method: &Method,
        path: &str,
        best: impl Fn(&Value) -> bool,
    ) -> Result<Value, Failure> {
        let (_, answer) = self.first(method, path, PATIENCE, |answer| {
            serde_json::from_slice(answer).is_ok_and(|answer| best(&answer))
        })?;
        serde_json::from_slice(&answer)
            .map_err(|error| Failure::Other(anyhow!("the answer is no JSON: {error}")))
    }

    /// As [`Self::ask_first`], for an answer that is no JSON and may take long; with the edge that knew it.
    pub(super) fn call_first(&self, method: &Method, path: &str) -> Result<(ApiClient, Bytes), Failure> {
        self.first(method, path, LONG, |_| true)
    }

    /// The first answer that is as good as one can be, or else any.
    fn first(
        &self,
        method: &Method,
        path: &str,
        patience: Duration,
        best: impl Fn(&Bytes) -> bool,
    ) -> Result<(ApiClient, Bytes), Failure> {
        let (mut known, mut unknown, mut broken) = (None, None, Vec::new());
        for Asked { url, client, answer, .. } in
            self.gather((method, path, &Bytes::new()), patience, &best)?
        {
            match answer {
                Ok(answer) if best(&answer) => return Ok((client, answer)),
                Ok(answer) => known = known.or(Some((client, answer))),
                Err(error) if error.is_not_found() => unknown = Some(failure(&url, error)),
                Err(error) => broken.push(failure(&url, error)),
            }
        }
        // An edge that could not be asked may be the one that knows.
        let why = || Failure::all(broken).or(unknown);
        known.ok_or_else(|| why().unwrap_or_else(|| Failure::Usage(anyhow!("name an edge with --edge"))))
    }

    pub(super) fn show(&self, answers: &[Value], text: impl FnOnce() -> String) {
        if self.json {
            super::emit(&format!("{}\n", json!(answers)));
        } else {
            super::emit(&text());
        }
    }
}

/// Whether a session's identifier can begin so.
pub(super) fn can_be_session(text: &str) -> Result<(), Failure> {
    if (1..=SESSION_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(Failure::Usage(anyhow!(
        "{text:?} is no session: its identifier, or how it begins, is hexadecimal digits; look with `marram ps`"
    )))
}

/// What one of the edges said.
struct Asked {
    /// Which of those that were named.
    place: usize,
    url: String,
    client: ApiClient,
    answer: Result<Bytes, ClientError>,
}

/// Where the answer may take long, one that is not there is found out before.
fn call(
    client: &ApiClient,
    (method, path, body): (Method, &str, Bytes),
    patience: Duration,
) -> Result<Bytes, ClientError> {
    if patience > PATIENCE
        && let Err(away @ (ClientError::Silent(_) | ClientError::Unreachable(_))) =
            client.clone().with_patience(PATIENCE).call(Method::GET, "/healthz", Bytes::new())
    {
        return Err(away);
    }
    client.clone().with_patience(patience).call(method, path, body)
}

fn json_of(url: &str, answer: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(answer).map_err(|error| {
        Failure::Other(anyhow!("{url}: the answer is no JSON ({error}); is it an edge of this version?"))
    })
}

pub(super) fn failure(url: &str, error: ClientError) -> Failure {
    let wrapped = anyhow!("{url}: {error}");
    match error {
        ClientError::Unreachable(_) | ClientError::Silent(_) => Failure::Unreachable(wrapped),
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
    arguments.edges.ask_all((&Method::POST, "/v1/apps", &body), LONG, |answers| {
        let line = |answer: &Value| {
            let note = answer["note"].as_str().map_or_else(String::new, |note| format!("note: {note}\n"));
            let (edge, name) = (text(answer, "edge"), text(answer, "name"));
            let (image, survives) = (short(&text(answer, "image")), text(answer, "survives"));
            if answer["unchanged"] == true {
                return format!(
                    "{edge}: {name} is unchanged: image {image} was deployed already (if you changed its source, build it first)\n{note}"
                );
            }
            format!("{edge}: {name} is deployed as image {image}; its sessions survive {survives}\n{note}")
        };
        answers.iter().map(line).collect()
    })
}

pub(super) fn apps(edges: &Edges) -> Result<(), Failure> {
    edges.list("/v1/apps", |answers| {
        let fields = ["name", "image", "cell", "protect", "server", "keep", "stages"];
        let headings = ["APP", "IMAGE", "CELL", "PROTECT", "SERVER", "CHECKPOINTS AT", "STAGES"];
        listing(answers, edges.are_several(), "apps", &fields, &headings)
    })
}

/// `marram undeploy`
#[derive(Args)]
pub(super) struct Undeploy {
    /// The app's name, as `marram apps` shows it.
    app: Name,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn undeploy(arguments: &Undeploy) -> Result<(), Failure> {
    let name = &arguments.app.0;
    arguments.edges.ask_all(
        (&Method::DELETE, &format!("/v1/apps/{name}"), &Bytes::new()),
        PATIENCE,
        |answers| {
            let line = |_: &Value| format!("{name} takes no new sessions; those that run go on\n");
            answers.first().map(line).unwrap_or_default()
        },
    )
}

/// `marram kill`
#[derive(Args)]
pub(super) struct Kill {
    /// Sessions' identifiers, as `marram ps` shows them, or how they begin.
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<String>,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn kill(arguments: &Kill) -> Result<(), Failure> {
    let mut failed = Vec::new();
    for session in &arguments.sessions {
        let ended = arguments.edges.whole(session).and_then(|session| {
            arguments.edges.ask_first(&Method::DELETE, &format!("/v1/sessions/{session}"))
        });
        match ended {
            Ok(answer) => arguments.edges.show(&[answer], || "the session is ended\n".to_owned()),
            Err(failure) => failed.push(failure),
        }
    }
    Failure::all(failed).map_or(Ok(()), Err)
}

pub(super) fn drain(edges: &Edges) -> Result<(), Failure> {
    edges.ask_all((&Method::POST, "/v1/drain", &Bytes::new()), PATIENCE, |_| {
        "draining: sessions move to other edges, new ones are refused; `marram ps` shows the rest. The edge stops when none is \
         left, or after its `limits.drain` (30s unless configured)\n"
            .to_owned()
    })
}

/// A table of what each edge lists; says of which edge a line is where several were asked, whether or not they answered.
pub(super) fn listing(
    answers: &[Value],
    several: bool,
    list: &str,
    fields: &[&str],
    headings: &[&str],
) -> String {
    let edge = |answer: &Value| several.then(|| text(answer, "edge"));
    let mut rows = Vec::new();
    let items = |answer: &Value| answer[list].as_array().is_some_and(|items| !items.is_empty());
    if !answers.iter().any(items) {
        return format!("no {list}\n");
    }
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
