//! The asking side: requests to an edge that serves the store, or to etcd, over HTTP. Tries the next of several addresses when
//! one does not answer.

use super::protocol::{self, Seen};
use crate::coordinator::{Credentials, StoreAddress};
use crate::tls::{self, Connector};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use marram_edge::coordinator::{StoreChange, StoreFailure, StoreReply, StoreRequest as Ask};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a request may take, with connecting.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer: everything that a domain's edges say of themselves, with room.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one line of a watch.
const LINE_BYTES_MAX: usize = 64 << 20;

/// Where the store is, and what to show there.
#[derive(Debug)]
pub(super) struct Store {
    places: Vec<StoreAddress>,
    /// What encrypted ones are believed by.
    connector: Option<Connector>,
    credentials: Credentials,
    /// Which of them answered last.
    current: Cell<usize>,
    /// What the store gave for a user and password.
    session: RefCell<Option<String>>,
}

impl Store {
    pub(super) fn new(
        places: Vec<StoreAddress>,
        connector: Option<Connector>,
        credentials: Credentials,
    ) -> Self {
        Self { places, connector, credentials, current: Cell::new(0), session: RefCell::new(None) }
    }

    /// The address that answered last.
    pub(super) fn current(&self) -> &str {
        &self.place().authority
    }

    fn place(&self) -> &StoreAddress {
        &self.places[self.current.get() % self.places.len()]
    }

    /// Asks; always answered, in twice [`PATIENCE`] at the most.
    pub(super) async fn ask(&self, request: &Ask) -> Result<StoreReply, StoreFailure> {
        let at = self.current.get();
        let answered = match tokio::time::timeout(PATIENCE, self.ask_once(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(self.unreachable(format_args!("no answer in {PATIENCE:?}"))),
        };
        if matches!(answered, Err(StoreFailure::Unreachable(_))) && self.current.get() == at {
            self.current.set(at + 1);
        }
        answered
    }

    async fn ask_once(&self, request: &Ask) -> Result<StoreReply, StoreFailure> {
        let (path, body) = protocol::call(request);
        let response = self.post(path, &body).await?;
        let status = response.status();
        let body = self.whole(response).await?;
        if status != 200 {
            if matches!(status.as_u16(), 400 | 401) {
                // A session of etcd's ends with time: the next request begins another.
                self.session.replace(None);
            }
            return protocol::failure(status.as_u16(), &body).map_err(|failure| self.named(failure));
        }
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        protocol::reply(request, &value).ok_or_else(|| {
            let why = "what answers there is neither etcd 3.4 or newer nor an edge with `coordinator.serve`";
            StoreFailure::Refused(format!("{}: {why}: correct `coordinator.urls`", self.current()))
        })
    }

    /// Watches until the watch breaks, and says why it did. `tell` is given changes as they come.
    pub(super) async fn watch(
        &self,
        prefix: &str,
        since: u64,
        tell: impl Fn(Vec<StoreChange>) -> bool,
    ) -> String {
        let (path, body) = protocol::watch_call(prefix, since);
        let opened = tokio::time::timeout(PATIENCE, self.post(path, &body)).await;
        let response = match opened {
            Ok(Ok(response)) if response.status() == 200 => response,
            Ok(Ok(response)) => return format!("status {}", response.status()),
            Ok(Err(failure)) => return failure.to_string(),
            Err(_) => return format!("no answer in {PATIENCE:?}"),
        };
        let (mut body, mut rest) = (response.into_body(), BytesMut::new());
        loop {
            let frame = match body.frame().await {
                None => return "the store closed it".into(),
                Some(Err(error)) => return error.to_string(),
                Some(Ok(frame)) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            rest.extend_from_slice(&data);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line = rest.split_to(end + 1);
                match protocol::seen(&line[..end]) {
                    Seen::Nothing => {}
                    Seen::Changes(changes) => {
                        if !tell(changes) {
                            return "this edge is too slow for it".into();
                        }
                    }
                    Seen::Over(why) => return why,
                }
            }
            if rest.len() > LINE_BYTES_MAX {
                return "a line of it has no end".into();
            }
        }
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Response<Incoming>, StoreFailure> {
        let shown = match &self.credentials {
            Credentials::None => None,
            Credentials::Token(token) => Some(format!("Bearer {token}")),
            Credentials::User { .. } => Some(self.session().await?),
        };
        self.send(path, body, shown.as_deref()).await
    }

    /// What etcd gives for a user and password.
    async fn session(&self) -> Result<String, StoreFailure> {
        if let Some(session) = self.session.borrow().clone() {
            return Ok(session);
        }
        let Credentials::User { name, password } = &self.credentials else { return Ok(String::new()) };
        let body = json!({ "name": name, "password": password });
        let response = self.send("/v3/auth/authenticate", &body, None).await?;
        let status = response.status().as_u16();
        let body = self.whole(response).await?;
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        match value["token"].as_str() {
            Some(session) => {
                self.session.replace(Some(session.to_owned()));
                Ok(session.to_owned())
            }
            None if status < 500 => {
                let said = value["error"].as_str().unwrap_or("it knows no users");
                let why = format!(
                    "it does not take user `{name}` ({said}): correct `coordinator.user` and `password_file`"
                );
                Err(self.named(StoreFailure::Refused(why)))
            }
            None => Err(self.unreachable(format_args!("status {status}"))),
        }
    }

    async fn send(
        &self,
        path: &str,
        body: &Value,
        shown: Option<&str>,
    ) -> Result<Response<Incoming>, StoreFailure> {
        let authority = self.current().to_owned();
        let stream = TcpStream::connect(&authority).await.map_err(|error| self.unreachable(error))?;
        // Small requests, each of which is waited for.
        let _ = stream.set_nodelay(true);
        let connector = self.connector.as_ref().filter(|_| self.place().is_encrypted);
        let stream = tls::connected(connector, &authority, stream).await.map_err(|error| {
            self.unreachable(format_args!("it is not believed: {error}: is `coordinator.ca` its signer's?"))
        })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable(error))?;
        // Ends with the answer's body; an error shows up there.
        tokio::spawn(connection);
        let mut request = Request::post(path)
            .header(header::HOST, &authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(shown) = shown {
            request = request.header(header::AUTHORIZATION, shown);
        }
        let request = request.body(Full::new(Bytes::from(body.to_string())));
        let request = request.map_err(|error| StoreFailure::Refused(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| self.unreachable(error))
    }

    async fn whole(&self, response: Response<Incoming>) -> Result<Bytes, StoreFailure> {
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| self.unreachable(error))
    }

    fn unreachable(&self, why: impl fmt::Display) -> StoreFailure {
        StoreFailure::Unreachable(format!("{}: {why}", self.current()))
    }

    fn named(&self, failure: StoreFailure) -> StoreFailure {
        let at = self.current();
        match failure {
            StoreFailure::Unreachable(why) => StoreFailure::Unreachable(format!("{at}: {why}")),
            StoreFailure::Refused(why) => StoreFailure::Refused(format!("{at}: {why}")),
        }
    }
}
