//! What operators do with running edges: deploy, list, kill. Each command talks to the admin API.
//!
//! ```text
//! Edges ─ clients ─▶ gather: a thread an edge, all at once ─▶ answers in the order of the command line
//!                        all: ask_all, listed      every edge must answer; failures come after the answers
//!                        first: ask_first, ask_owner   one answer is enough
//! ```
//!
//! Several edges are asked in parallel, so one that hangs costs its timeout once. What the others
//! answered is always printed.

use super::{Failure, keeper};
use anyhow::anyhow;
use bytes::Bytes;
use clap::Args;
use hyper::Method;
use marram_admin::client::{ApiClient, ClientError};
use marram_config::source::unreadable;
use marram_config::units::Name;
use marram_node::text::table;
use marram_wire::id::SessionId;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// Timeout of an answer that an edge has ready.
/// Longer than the control waits for a shard that hangs (`asking.rs` in `marram-admin`), so that
/// the edge's own answer arrives first.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// Digits of a session's identifier.
const SESSION_DIGITS: usize = 2 * size_of::<SessionId>();
/// Most sessions that an error lists if an identifier's first digits are ambiguous.
const NAMED_MAX: usize = 4;
/// Timeout of a request that takes long: the edge compiles a module, or asks distant ends for data.
pub(super) const LONG: Duration = Duration::from_secs(120);

/// What each edge answered, behind its address.
pub(super) type EdgeAnswers = Vec<(String, Result<Value, Failure>)>;

/// The edges that a command talks to.
// Flattened into the arguments of each command that talks to edges.
#[derive(Args)]
pub(super) struct Edges {
    /// An edge's admin address, as http://HOST:PORT or https://HOST:PORT; repeat it for several edges.
    #[arg(long = "edge", value_name = "ADMIN_URL", default_value = "http://127.0.0.1:7401")]
    edges: Vec<String>,
    /// File with the edges' admin token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Certificates (PEM) to verify edges at https:// with: their own, or their signer's. Default: the system's.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Print JSON: one array with one object for each edge; for log lines, one object for each line.
    #[arg(long)]
    pub(super) json: bool,
}

/// Reads the file of `--ca`.
pub(super) fn read_ca(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| {
        let why = unreadable(path, &error);
        Failure::Usage(anyhow!("the certificates {} {why}", path.display()))
    })
}

/// A client for the edge at this address; `ca` verifies it if the connection is encrypted.
pub(super) fn client(url: &str, token: Option<String>, ca: Option<&[u8]>) -> Result<ApiClient, Failure> {
    let client = ApiClient::new(url, token).map_err(|error| Failure::Usage(error.into()))?;
    match ca {
        None => Ok(client),
        Some(ca) => client.believing(ca).map_err(|why| Failure::Usage(anyhow!("--ca: {why}"))),
    }
}

impl Edges {
    /// Whether each line of output has to name its edge.
    pub(super) fn are_several(&self) -> bool {
        self.edges.len() > 1
    }

    /// The edges' addresses.
    pub(super) fn names(&self) -> String {
        self.edges.join(", ")
    }

    /// Each edge alone.
    ///
    /// For changes that depend on what that edge has.
    pub(super) fn each(&self) -> impl Iterator<Item = Self> {
        let one = |edge: &String| Self {
            edges: vec![edge.clone()],
            token_file: self.token_file.clone(),
            ca: self.ca.clone(),
            json: self.json,
        };
        self.edges.iter().map(one)
    }

    ///
    /// One token for all of them: edges of one operator share it, or each publishes its own on its
    /// machine.
    pub(super) fn clients(&self) -> Result<Vec<(String, ApiClient)>, Failure> {
        let token = self.token_file.as_deref().map(read_token).transpose()?;
        let ca = self.ca.as_deref().map(read_ca).transpose()?;
        let client = |url: &String| {
            let client = client(url, token.clone(), ca.as_deref())?;
            Ok((url.clone(), client))
        };
        self.edges.iter().map(client).collect()
    }

    /// Asks all edges at once and returns their answers in the order of the command line; stops early at an answer that is
    /// `enough`.
    ///
    /// Threads that are not needed any more go on until their timeout; the process does not wait
    /// for them.
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
            // An edge that hangs delays only its own thread, until the timeout.
            std::thread::spawn(move || {
                let answer = call(&client, (method, &path, body), patience);
                // The receiver may be gone.
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

    /// Asks all edges the same, shows the answers, and then reports the edges that failed.
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

    /// The answers of all edges, and the failures of those that did not answer.
    ///
    /// An answer that is not JSON counts as a failure of that edge: another program may listen
    /// there.
    fn answers(
        &self,
        asked: (&Method, &str, &Bytes),
        patience: Duration,
    ) -> Result<(Vec<Value>, Option<Failure>), Failure> {
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        for (_, answer) in self.answer_of_each(asked, patience)? {
            match answer {
                Ok(answer) => answers.push(answer),
                Err(failure) => failed.push(failure),
            }
        }
        Ok((answers, Failure::all(failed)))
    }

    /// The answer of each edge or its failure, behind its address.
    fn answer_of_each(
        &self,
        asked: (&Method, &str, &Bytes),
        patience: Duration,
    ) -> Result<EdgeAnswers, Failure> {
        let answer = |Asked { url, answer, .. }: Asked| {
            let answer =
                answer.map_err(|error| failure(&url, error)).and_then(|answer| json_of(&url, &answer));
            (url, answer)
        };
        Ok(self.gather(asked, patience, |_| false)?.into_iter().map(answer).collect())
    }

    /// The list of each edge or its failure, behind its address: for commands that go on while some do not answer.
    pub(super) fn list_of_each(&self, path: &str) -> Result<EdgeAnswers, Failure> {
        self.answer_of_each((&Method::GET, path, &Bytes::new()), PATIENCE)
    }

    /// The list of the only edge, and what the client says if there is none.
    pub(super) fn list_of_one(&self, path: &str) -> Result<Result<Value, ClientError>, Failure> {
        let asked = self.gather((&Method::GET, path, &Bytes::new()), PATIENCE, |_| false)?;
        let asked = asked.into_iter().next().map(|asked| asked.answer);
        let answer = asked.ok_or_else(|| Failure::Usage(anyhow!("name an edge with --edge")))?;
        Ok(answer.and_then(|answer| {
            serde_json::from_slice(&answer).map_err(|error| ClientError::NotUnderstood(error.to_string()))
        }))
    }

    /// The lists of the edges that answer, and the failures of the others.
    pub(super) fn listed(&self, path: &str) -> Result<(Vec<Value>, Option<Failure>), Failure> {
        self.answers((&Method::GET, path, &Bytes::new()), PATIENCE)
    }

    /// The same, for lists that take longer: an edge asks another one.
    pub(super) fn listed_late(&self, path: &str) -> Result<(Vec<Value>, Option<Failure>), Failure> {
        self.answers((&Method::GET, path, &Bytes::new()), LONG)
    }

    /// Asks every edge the same and collects the answers; all of them, or the failures.
    ///
    /// For steps that must not go on with a part of the edges.
    pub(super) fn ask(&self, method: &Method, path: &str, body: &Bytes) -> Result<Vec<Value>, Failure> {
        let (answers, failed) = self.answers((method, path, body), PATIENCE)?;
        failed.map_or(Ok(answers), Err)
    }

    /// Shows the lists of the edges that answer, and then reports the others.
    pub(super) fn list(&self, path: &str, text: impl FnOnce(&[Value]) -> String) -> Result<(), Failure> {
        self.ask_all((&Method::GET, path, &Bytes::new()), PATIENCE, text)
    }

    /// A session's complete identifier, from its first digits.
    ///
    /// Digits are accepted in either case, and are in lower case behind it. A complete identifier is not looked up: the session may
    /// be on an edge that was not asked.
    pub(super) fn whole(&self, session: &str) -> Result<String, Failure> {
        can_be_session(session)?;
        let begins = session.to_ascii_lowercase();
        if begins.len() == SESSION_DIGITS {
            return Ok(begins);
        }
        let (answers, away) = self.listed("/v1/sessions")?;
        let rows = answers.iter().filter_map(|answer| answer["sessions"].as_array()).flatten();
        let with_clients = rows.flat_map(|row| {
            std::iter::once(row).chain(row["clients_listed"].as_array().into_iter().flatten())
        });
        let ids = with_clients.filter_map(|row| row["session"].as_str());
        let mut found: BTreeSet<String> =
            ids.filter(|id| id.starts_with(&begins)).map(str::to_owned).collect();
        let count = found.len();
        match found.pop_first() {
            Some(id) if count == 1 => Ok(id),
            Some(first) => {
                let some: Vec<String> = std::iter::once(first).chain(found).take(NAMED_MAX).collect();
                let rest = if count > NAMED_MAX { ", ..." } else { "" };
                Err(Failure::Usage(anyhow!(
                    "{count} sessions begin with {session}: {}{rest}; write more digits of the one that is meant",
                    some.join(", ")
                )))
            }
            // If an edge did not answer, the session may be there.
            None => Err(away.unwrap_or_else(|| {
                Failure::Refused(anyhow!("no session here begins with {session}; look with `marram ps`"))
            })),
        }
    }

    /// Asks edges until one has the answer.
    pub(super) fn ask_first(&self, method: &Method, path: &str) -> Result<Value, Failure> {
        self.first_json(method, path, |_| true)
    }

    /// The same for a session: prefers the edge that owns it to its standby.
    ///
    /// If only the standby answers, its answer is returned.
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
            .map_err(|error| Failure::Other(anyhow!("the answer is not JSON: {error}")))
    }

    /// As [`Self::ask_first`], for an answer that is not JSON and may take long; returns the edge as well.
    pub(super) fn call_first(&self, method: &Method, path: &str) -> Result<(ApiClient, Bytes), Failure> {
        self.first(method, path, LONG, |_| true)
    }

    /// The first answer for which `best` is true, or else any.
    /// 404 from one edge is no failure while another one may know the object.
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
        // An edge that failed may be the one that has the answer.
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

/// Reads the file of `--token-file`.
pub(super) fn read_token(path: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        let why = unreadable(path, &error);
        Failure::Usage(anyhow!("the token file {} {why}", path.display()))
    })?;
    one_line(path, &text)
}

/// The token in this file's text, without white space around it: it becomes a header, which is one line.
fn one_line(path: &Path, text: &str) -> Result<String, Failure> {
    let token = text.trim();
    if token.is_empty() || token.contains(char::is_control) {
        return Err(Failure::Usage(anyhow!(
            "the token file {} is not one line of printable characters: name the file of `admin.token_file`",
            path.display()
        )));
    }
    Ok(token.to_owned())
}

/// Checks that a session's identifier can begin with this text.
pub(super) fn can_be_session(text: &str) -> Result<(), Failure> {
    if (1..=SESSION_DIGITS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(());
    }
    Err(Failure::Usage(anyhow!(
        "{text:?} is not a session: write its identifier, or its first digits, in hexadecimal; look with `marram ps`"
    )))
}

/// One edge's answer.
struct Asked {
    /// The edge's position on the command line.
    place: usize,
    url: String,
    client: ApiClient,
    answer: Result<Bytes, ClientError>,
}

/// Before a request that may take long, checks that the edge is reachable.
/// Without it, an edge that is down would be noticed only after the long timeout.
fn call(
    client: &ApiClient,
    (method, path, body): (Method, &str, Bytes),
    patience: Duration,
) -> Result<Bytes, ClientError> {
    if patience > PATIENCE
        && let Err(away) = client.clone().with_patience(PATIENCE).call(Method::GET, "/healthz", Bytes::new())
        && away.is_without_answer()
    {
        return Err(away);
    }
    client.clone().with_patience(patience).call(method, path, body)
}

fn json_of(url: &str, answer: &Bytes) -> Result<Value, Failure> {
    serde_json::from_slice(answer).map_err(|error| {
        Failure::Other(anyhow!("{url}: the answer is not JSON ({error}); is it an edge of this version?"))
    })
}

/// The address is part of the text, since several edges may have been asked.
pub(super) fn failure(url: &str, error: ClientError) -> Failure {
    let wrapped = anyhow!("{url}: {error}");
    match error {
        ClientError::Unreachable(_) | ClientError::Gone(_) | ClientError::Silent(_) => {
            Failure::Unreachable(wrapped)
        }
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

/// The files are read once, here: all edges get the same bytes, and so the same image unless their
/// `[chain]` differs.
pub(super) fn deploy(arguments: &Deploy) -> Result<(), Failure> {
    let upload = marram_admin::load(&arguments.path).map_err(|error| Failure::Usage(error.into()))?;
    let body = upload.encode().map_err(|error| Failure::Usage(error.into()))?;
    arguments.edges.ask_all((&Method::POST, "/v1/apps", &body), LONG, |answers| {
        let line = |answer: &Value| {
            let notes = answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let note: String = notes.map(|note| format!("note: {note}\n")).collect();
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
            let line = |_: &Value| format!("{name} accepts no new sessions; existing sessions continue\n");
            answers.first().map(line).unwrap_or_default()
        },
    )
}

/// `marram kill`
#[derive(Args)]
pub(super) struct Kill {
    /// Sessions' identifiers, as `marram ps` shows them, or their first digits.
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<String>,
    #[command(flatten)]
    edges: Edges,
}

/// All edges are asked to end a session; one that knows it suffices. The remaining sessions are ended
/// also if one fails.
pub(super) fn kill(arguments: &Kill) -> Result<(), Failure> {
    // All are looked up before the first one is ended: one that is named twice, perhaps by other digits, would not be found again.
    let whole: Vec<_> = arguments.sessions.iter().map(|session| arguments.edges.whole(session)).collect();
    let (mut failed, mut named) = (Vec::new(), BTreeSet::new());
    for session in whole {
        if session.as_ref().is_ok_and(|session| !named.insert(session.clone())) {
            continue;
        }
        let ended = session.and_then(|session| {
            arguments.edges.ask_first(&Method::DELETE, &format!("/v1/sessions/{session}"))
        });
        match ended {
            Ok(answer) => arguments.edges.show(&[answer], || "the session is ended\n".to_owned()),
            Err(failure) => failed.push(failure),
        }
    }
    Failure::all(failed).map_or(Ok(()), Err)
}

/// A table of the edges' lists; if several edges were asked, each row names its edge, whether or not the others answered.
///
/// Digests are shortened; `--json` has them whole.
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

/// A field's value without quotes, an array (of stages, or of keepers) as a list in its order; `-` if there is none.
pub(super) fn text(value: &Value, field: &str) -> String {
    match &value[field] {
        Value::Null => "-".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".into(),
        Value::Array(items) if field == "keepers" => {
            items.iter().map(keeper::text).collect::<Vec<_>>().join("; ")
        }
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" > "),
        other => other.to_string(),
    }
}

/// The first digits of a digest; other texts are unchanged.
pub(super) fn short(text: &str) -> String {
    if text.len() == 64 { text[..12].to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_line() {
        let token =
            |text: &str| one_line(Path::new("token"), text).map_err(|failure| failure.parts().1.to_string());
        assert_eq!(token("a token of some length\n"), Ok("a token of some length".to_owned()));
        for text in ["", "\n", "one\ntwo\n", "-----BEGIN KEY-----\r\nab", "a\0b", "a\tb"] {
            let error = token(text).expect_err(text);
            assert!(
                error.contains("the token file token") && error.contains("`admin.token_file`"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_complete_identifier_is_looked_up_nowhere_and_written_as_edges_write_it() {
        let edges = Edges { edges: Vec::new(), token_file: None, ca: None, json: false };
        let session = "0123456789ABCDEF0123456789abcdef";
        assert_eq!(session.len(), SESSION_DIGITS);
        assert_eq!(edges.whole(session).ok(), Some(session.to_ascii_lowercase()));
    }
}
