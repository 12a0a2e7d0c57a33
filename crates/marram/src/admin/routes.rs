//! What each request does. Every function blocks until its answer is there; none of them touches a socket.

use super::apps::{self, StageNames};
use super::body::Upload;
use super::coordination;
use super::desk::Desk;
use super::figures;
use super::routing;
use super::server::Site;
use super::view;
use crate::edge::{AskError, take_recording};
use crate::http::Body;
use bytes::Bytes;
use hyper::{Method, StatusCode};
use marram_edge::api::{App, SessionRow};
use marram_edge::control::{self, ControlRequest, MetricSample};
use marram_sandbox::{Images, LoadError};
use marram_wire::id::{ImageHash, SessionId};
use serde_json::{Value, json};
use std::time::Duration;

/// How long a recording may take: its ends may be far, and its checkpoints large.
const RECORD_PATIENCE: Duration = Duration::from_secs(60);
/// How long shards may take to answer an operator.
const PATIENCE: Duration = Duration::from_secs(2);

/// A request, all of it.
pub struct Call {
    pub(super) method: Method,
    pub(super) path: String,
    /// What follows a question mark, if anything.
    pub(super) query: String,
    pub(super) body: Bytes,
}

/// An answer, all of it.
pub struct Answer {
    pub(super) status: StatusCode,
    pub(super) content_type: &'static str,
    pub(super) body: Body,
}

impl Answer {
    pub(super) fn json(value: &Value) -> Self {
        Self { status: StatusCode::OK, content_type: "application/json", body: line(value).into() }
    }

    fn bytes(body: Bytes) -> Self {
        Self { status: StatusCode::OK, content_type: "application/octet-stream", body: body.into() }
    }

    /// As Prometheus reads it.
    pub(super) fn text(text: String) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: "text/plain; version=0.0.4",
            body: Bytes::from(text).into(),
        }
    }
}

/// Why a request was not done.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    error: String,
    fix: String,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, error: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { status, error: error.into(), fix: fix.into() }
    }

    /// The same, of a part of what was asked.
    pub(super) fn about(self, part: &str) -> Self {
        Self { error: format!("{part}: {}", self.error), ..self }
    }

    /// For what cannot happen.
    pub(super) fn bug(error: &str) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error, "this is a bug in the edge; its log says more")
    }

    pub(super) fn into_answer(self) -> Answer {
        let body = line(&json!({ "error": self.error, "fix": self.fix }));
        Answer { status: self.status, content_type: "application/json", body: body.into() }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.error, self.fix)
    }
}

fn line(value: &Value) -> Bytes {
    let mut text = value.to_string();
    text.push('\n');
    text.into()
}

impl Site for Desk {
    fn answer(&self, _: &str, call: &Call) -> Result<Answer, Refusal> {
        answer(self, call)
    }
}

/// Does what is asked.
fn answer(desk: &Desk, call: &Call) -> Result<Answer, Refusal> {
    let path: Vec<&str> = call.path.trim_matches('/').split('/').collect();
    let (get, delete, post) = (Method::GET, Method::DELETE, Method::POST);
    match (&call.method, path.as_slice()) {
        (method, ["healthz"]) if method == get => healthz(desk),
        (method, ["metrics"]) if method == get => metrics(desk),
        (method, ["v1", "edge"]) if method == get => edge(desk),
        (method, ["v1", "apps"]) if method == get => list_apps(desk),
        (method, ["v1", "apps"]) if method == post => deploy(desk, &call.body),
        (method, ["v1", "apps", name]) if method == get => one_app(desk, name),
        (method, ["v1", "apps", name]) if method == delete => undeploy(desk, name),
        (method, ["v1", "sessions"]) if method == get => sessions(desk),
        (method, ["v1", "sessions", id]) if method == get => inspect(desk, id),
        (method, ["v1", "sessions", id]) if method == delete => kill(desk, id),
        (method, ["v1", "sessions", id, "record"]) if method == post => record(desk, id, false),
        (method, ["v1", "sessions", id, "record", "redacted"]) if method == post => record(desk, id, true),
        (method, ["v1", "routes"]) if method == get => Ok(Answer::json(&routing::list(desk))),
        (method, ["v1", "routes"]) if method == Method::PUT => {
            routing::replace(desk, &call.body).map(|routes| Answer::json(&routes))
        }
        (method, ["v1", "coordinator"]) if method == get => Ok(Answer::json(&coordination::shown(desk))),
        (method, ["v1", "standbys", id]) if method == get => coordination::stands_by(desk, session(id)?),
        (method, ["v1", "drain"]) if method == post => done(ask(desk, ControlRequest::Drain)?),
        (method, ["v1", "images", hash]) if method == get => image(desk, hash),
        (method, ["v1", "images", hash, "app"]) if method == get => image_app(desk, hash),
        (method, _) => {
            let what = format!("there is no {method} {}", call.path);
            Err(Refusal::new(StatusCode::NOT_FOUND, what, "docs/operating.md lists the admin API"))
        }
    }
}

/// Asks the control.
pub(super) fn ask(desk: &Desk, request: ControlRequest) -> Result<control::ControlAnswer, Refusal> {
    ask_patiently(desk, request, PATIENCE)
}

fn ask_patiently(
    desk: &Desk,
    request: ControlRequest,
    patience: Duration,
) -> Result<control::ControlAnswer, Refusal> {
    desk.control.ask(request, patience).map_err(|error| {
        let fix = match error {
            AskError::Busy | AskError::Overdue => "try again in a moment",
            AskError::Stopped => "ask another edge",
        };
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string(), fix)
    })
}

fn unexpected() -> Refusal {
    Refusal::bug("the control answered something else than was asked")
}

fn done(answer: control::ControlAnswer) -> Result<Answer, Refusal> {
    match answer {
        control::ControlAnswer::Done => Ok(Answer::json(&json!({ "done": true }))),
        control::ControlAnswer::NotFound => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "there is no such app or session here",
            "look with `marram ps`",
        )),
        control::ControlAnswer::Refused(why) => {
            Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why, "change the manifest and deploy again"))
        }
        _ => Err(unexpected()),
    }
}

fn healthz(desk: &Desk) -> Result<Answer, Refusal> {
    match ask(desk, ControlRequest::Apps)? {
        control::ControlAnswer::Apps(apps) => {
            Ok(Answer::json(&json!({ "edge": desk.edge, "apps": apps.len() })))
        }
        _ => Err(unexpected()),
    }
}

fn figures(desk: &Desk) -> Result<Vec<MetricSample>, Refusal> {
    match ask(desk, ControlRequest::Counters)? {
        control::ControlAnswer::Counters(figures) => Ok(figures),
        _ => Err(unexpected()),
    }
}

fn metrics(desk: &Desk) -> Result<Answer, Refusal> {
    let body = figures::prometheus(&desk.edge, &figures(desk)?);
    Ok(Answer::text(body + &routing::prometheus(desk) + &coordination::prometheus(desk)))
}

/// The whole edge: what it, each shard and each app have now.
fn edge(desk: &Desk) -> Result<Answer, Refusal> {
    let figures = figures(desk)?;
    let control::ControlAnswer::Apps(apps) = ask(desk, ControlRequest::Apps)? else {
        return Err(unexpected());
    };
    let mut names = StageNames::new(desk);
    let mut value = figures::edge(&figures, &apps);
    for (app, listed) in apps.iter().zip(value["apps"].as_array_mut().into_iter().flatten()) {
        listed["stages"] = json!(names.of(&app.name, app.image));
    }
    value["edge"] = json!(desk.edge);
    Ok(Answer::json(&value))
}

fn list_apps(desk: &Desk) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Apps(apps) = ask(desk, ControlRequest::Apps)? else {
        return Err(unexpected());
    };
    let mut names = StageNames::new(desk);
    let apps: Vec<Value> = apps.iter().map(|app| shown(desk, &mut names, app)).collect();
    Ok(Answer::json(&json!({ "edge": desk.edge, "apps": apps })))
}

fn one_app(desk: &Desk, name: &str) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Apps(apps) = ask(desk, ControlRequest::Apps)? else {
        return Err(unexpected());
    };
    match apps.iter().find(|app| app.name == name) {
        Some(app) => Ok(Answer::json(&shown(desk, &mut StageNames::new(desk), app))),
        None => done(control::ControlAnswer::NotFound),
    }
}

/// An app with its manifest, where it is kept, and the stages that its sessions go through here.
fn shown(desk: &Desk, names: &mut StageNames, app: &App) -> Value {
    let mut value = view::app(app);
    value["manifest"] = json!(apps::kept_manifest(desk, &app.name));
    value["stages"] = json!(names.of(&app.name, app.image));
    value
}

fn deploy(desk: &Desk, body: &Bytes) -> Result<Answer, Refusal> {
    let upload = Upload::decode(body.clone())
        .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why, "send it with `marram deploy`"))?;
    let mut deployed = apps::deploy(desk, &upload)?;
    if let Some(server) = deployed["server"].as_str() {
        deployed["note"] = json!(figures::unreached(server, &figures(desk)?));
    }
    Ok(Answer::json(&deployed))
}

fn undeploy(desk: &Desk, name: &str) -> Result<Answer, Refusal> {
    let answer = done(ask(desk, ControlRequest::Undeploy(name.to_owned()))?)?;
    apps::forget(desk, name)?;
    Ok(answer)
}

fn sessions(desk: &Desk) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Sessions(rows, figures) = ask(desk, ControlRequest::Sessions)? else {
        return Err(unexpected());
    };
    let mut names = StageNames::new(desk);
    let rows: Vec<Value> = rows.iter().map(|row| session_row(&mut names, row)).collect();
    let waiting = figures.iter().filter(|figure| figure.counter.name == "sessions_waiting");
    let waiting: u64 = waiting.map(|figure| figure.counter.value).sum();
    Ok(Answer::json(&json!({ "edge": desk.edge, "sessions": rows, "waiting": waiting })))
}

/// A session with the stages that its messages go through.
fn session_row(names: &mut StageNames, row: &SessionRow) -> Value {
    let mut value = view::row(row);
    value["stages"] = json!(names.of(&row.app, row.image));
    value
}

fn inspect(desk: &Desk, id: &str) -> Result<Answer, Refusal> {
    match ask(desk, ControlRequest::Inspect(session(id)?))? {
        control::ControlAnswer::Session(row, survives) => {
            let mut value = session_row(&mut StageNames::new(desk), &row);
            value["edge"] = json!(desk.edge);
            value["survives"] = json!(survives);
            Ok(Answer::json(&value))
        }
        other => done(other),
    }
}

fn kill(desk: &Desk, id: &str) -> Result<Answer, Refusal> {
    done(ask(desk, ControlRequest::Kill(session(id)?, "killed by the operator".into()))?)
}

fn record(desk: &Desk, id: &str, redact: bool) -> Result<Answer, Refusal> {
    match ask_patiently(desk, ControlRequest::Record(session(id)?, redact), RECORD_PATIENCE)? {
        control::ControlAnswer::Recorded(name) => {
            let body = take_recording(&desk.recordings, &name)
                .map_err(|error| Refusal::bug(&format!("the recording cannot be read back: {error}")))?;
            Ok(Answer::bytes(body.into()))
        }
        control::ControlAnswer::Refused(why) => Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("the session cannot be recorded: {why}"),
            "`marram inspect` shows how it is",
        )),
        other => done(other),
    }
}

fn image(desk: &Desk, hash: &str) -> Result<Answer, Refusal> {
    let hash = ImageHash(bytes_of(hash)?);
    let images = Images::open(&desk.images).map_err(|error| Refusal::bug(&error.to_string()))?;
    match images.app(hash) {
        Ok(app) => Ok(Answer::bytes(app.into())),
        Err(error @ LoadError::Unknown(_)) => {
            Err(Refusal::new(StatusCode::NOT_FOUND, error.to_string(), "ask an edge that has it deployed"))
        }
        Err(error) => {
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "deploy the app again"))
        }
    }
}

fn image_app(desk: &Desk, hash: &str) -> Result<Answer, Refusal> {
    match ask(desk, ControlRequest::Image(ImageHash(bytes_of(hash)?)))? {
        control::ControlAnswer::Apps(apps) if !apps.is_empty() => Ok(Answer::json(&view::app(&apps[0]))),
        _ => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!("no app of this edge runs or ran image {hash}"),
            "ask an edge that has it deployed",
        )),
    }
}

fn session(id: &str) -> Result<SessionId, Refusal> {
    bytes_of(id).map(SessionId)
}

/// Reads an identifier: two hexadecimal digits a byte.
fn bytes_of<const N: usize>(text: &str) -> Result<[u8; N], Refusal> {
    view::parse_hex(text).ok_or_else(|| {
        let what = format!("an identifier has {} hexadecimal digits here", 2 * N);
        Refusal::new(StatusCode::BAD_REQUEST, what, "copy it from `marram ps` or `marram apps`")
    })
}
