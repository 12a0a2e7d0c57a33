//! The client's side: HTTP requests to an edge that serves the store, or to etcd. Tries the next address if one does not answer.
//!
//! Runs on the thread "coordinator" alone, so its state is in cells without locks. Each request
//! opens a connection and closes it: an edge makes few of them, and a connection that was idle may
//! be dead without a sign.

use super::protocol::{self, Seen};
use crate::coordinator::{StoreAddress, StoreCredentials};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use marram_http::tls::{self, Connector};
use marram_shard::coordinator::{StoreChange, StoreFailure, StoreReply, StoreRequest as Ask};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;
use tokio::net::TcpStream;

/// Timeout of a request, including connecting.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer: everything that a domain's edges register, with room to spare.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one line of a watch.
const LINE_BYTES_MAX: usize = 64 << 20;

/// The addresses of the store, and the credentials for it.
#[derive(Debug)]
pub(super) struct Store {
    places: Vec<StoreAddress>,
    /// For encrypted addresses.
    connector: Option<Connector>,
    credentials: StoreCredentials,
    /// The index of the address that answered last.
    /// It grows by one after each failure and is taken modulo their number, so all are tried in
    /// turn.
    current: Cell<usize>,
    /// The token that etcd gave for a user and password.
    /// It is asked for when it is needed, and forgotten when the store refuses something.
    session: RefCell<Option<String>>,
}

impl Store {
    pub(super) fn new(
        places: Vec<StoreAddress>,
        connector: Option<Connector>,
        credentials: StoreCredentials,
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

    /// Sends a request. There is always an answer, at most after twice [`PATIENCE`].
    /// Several requests may be on their way at once. Only the first that fails moves on to the next
    /// address, or two failures would skip one.
    pub(super) async fn ask(&self, request: &Ask) -> Result<StoreReply, StoreFailure> {
        let at = self.current.get();
        let answered = match tokio::time::timeout(PATIENCE, self.ask_once(request)).await {
            Ok(answered) => answered,
            Err(_) => Err(self.unreachable(format_args!("no answer in {PATIENCE:?}"))),
        };
        // A refusal is an answer: another member of the cluster would refuse it too.
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
                // etcd's tokens expire: the next request logs in again.
                self.session.replace(None);
            }
            return protocol::failure(status.as_u16(), &body).map_err(|failure| self.named(failure));
        }
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        protocol::reply(request, &value).ok_or_else(|| {
            let why = "the server there is neither etcd 3.4 or newer nor an edge with `coordinator.serve`";
            StoreFailure::Refused(format!("{}: {why}: correct `coordinator.urls`", self.current()))
        })
    }

    /// Watches until the watch breaks, and returns why it did. Calls `tell` with changes as they arrive.
    ///
    /// It has no timeout once it is open: a store without changes is silent. If the store's machine
    /// vanishes, the client's requests, which have timeouts, notice it. `tell` returns false if the
    /// receiver has no room; then the watch ends and everything is listed again, since a gap in the
    /// changes could not be seen.
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
                return "a line of it is too long".into();
            }
        }
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Response<Incoming>, StoreFailure> {
        let shown = match &self.credentials {
            StoreCredentials::None => None,
            StoreCredentials::Token(token) => Some(format!("Bearer {token}")),
            StoreCredentials::User { .. } => Some(self.session().await?),
        };
        self.send(path, body, shown.as_deref()).await
    }

    /// Logs in at etcd with user and password, and gives the token.
    async fn session(&self) -> Result<String, StoreFailure> {
        if let Some(session) = self.session.borrow().clone() {
            return Ok(session);
        }
        let StoreCredentials::User { name, password } = &self.credentials else { return Ok(String::new()) };
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
                let said = value["error"].as_str().unwrap_or("it has no users");
                let why = format!(
                    "it refuses user `{name}` ({said}): correct `coordinator.user` and `password_file`"
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
        // Requests are small, and the caller waits for each of them.
        let _ = stream.set_nodelay(true);
        let connector = self.connector.as_ref().filter(|_| self.place().is_encrypted);
        let stream = tls::connected(connector, &authority, stream).await.map_err(|error| {
            self.unreachable(format_args!(
                "its certificate is not trusted: {error}: is `coordinator.ca` its signer's?"
            ))
        })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| self.unreachable(error))?;
        // The task ends with the answer's body, and an error appears there.
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

    /// Adds the address to what the protocol's reader found.
    fn named(&self, failure: StoreFailure) -> StoreFailure {
        let at = self.current();
        match failure {
            StoreFailure::Unreachable(why) => StoreFailure::Unreachable(format!("{at}: {why}")),
            StoreFailure::Refused(why) => StoreFailure::Refused(format!("{at}: {why}")),
        }
    }
}
