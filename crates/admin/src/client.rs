//! The client of the admin API, for the command line, the demo, tests, and edges that fetch from one another.
//!
//! Blocking, for callers without a runtime: each call makes a runtime on the calling thread and one
//! connection, and ends both. Must not be used inside a tokio runtime. Operators' commands are
//! rare, so nothing is pooled.
//!
//! Whom the token is sent to matters: a configured one goes to the authority that the caller named;
//! a published one only to the very address at which its process listens, and only on loopback
//! (`token.rs`).

use super::token;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use marram_http::EdgeRequest;
use marram_http::tls::{Connector, HttpsError, Stream};
use marram_wire::edge_key::{ANSWER_OVERHEAD, EdgeKey};
use serde_json::Value;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Bytes of an answer: an app or a recording, with room to spare.
pub const ANSWER_BYTES_MAX: usize = super::body::SIZE_MAX;
/// Default timeout of an answer: an edge may have to compile a large module.
const PATIENCE: Duration = Duration::from_secs(120);
/// Most bytes of one line in an answer that is read line by line.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Timeout of connecting.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// A client of one edge's admin API.
///
/// Cheap to clone. `Debug` of it shows the token: do not log it.
#[derive(Clone, Debug)]
pub struct ApiClient {
    authority: String,
    /// Whether the connection is encrypted.
    is_encrypted: bool,
    /// CA certificates in PEM; the system's if there are none.
    ca: Option<Arc<[u8]>>,
    token: Option<String>,
    patience: Duration,
}

/// Why a call failed.
///
/// `Display` ends with what the operator can do.
#[derive(Debug)]
pub enum ClientError {
    /// The connection could not be made.
    Unreachable(String),
    /// The connection was refused, reset, or closed without an answer: no server is there, or it has just stopped.
    Gone(String),
    /// The server accepted the connection and sent nothing for this time.
    Silent(Duration),
    /// The edge refused the request.
    Refused {
        /// The HTTP status.
        status: u16,
        /// What happened.
        error: String,
        /// How to fix it.
        fix: String,
    },
    /// The server is no edge, or one of another version.
    NotUnderstood(String),
}

impl ClientError {
    /// Whether the edge answered that it does not have what was asked for.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { status: 404, .. })
    }

    /// Whether there was no answer. Another attempt may have one.
    #[must_use]
    pub fn is_without_answer(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Gone(_) | Self::Silent(_))
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) | Self::Gone(why) => {
                write!(f, "{why}; is the edge running, and is this its admin address?")
            }
            Self::Silent(patience) => {
                write!(f, "no answer in {} s; it hangs or is stopped", patience.as_secs())
            }
            Self::Refused { error, fix, .. } => write!(f, "{error}; {fix}"),
            Self::NotUnderstood(why) => {
                write!(f, "the answer is not one of this version's admin API: {why}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

/// Why a text is not the URL of an admin API; its author writes it as the message says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not an admin address; write http://HOST:PORT or https://HOST:PORT", self.0)
    }
}

impl std::error::Error for UrlError {}

impl ApiClient {
    /// A client for the edge with the admin API at `url`: `http://HOST:PORT`, `https://HOST:PORT`, or `HOST:PORT` alone, which is
    /// not encrypted. Without a token it uses the one that is published to this user, if there is one.
    ///
    /// # Errors
    /// If `url` has none of these forms.
    pub fn new(url: &str, token: Option<String>) -> Result<Self, UrlError> {
        let encrypted = url.strip_prefix("https://");
        let authority = encrypted.or(url.strip_prefix("http://")).unwrap_or(url).trim_end_matches('/');
        let address: marram_config::units::Address =
            authority.parse().map_err(|_| UrlError(url.to_owned()))?;
        let is_encrypted = encrypted.is_some();
        Ok(Self { authority: address.0, is_encrypted, ca: None, token, patience: PATIENCE })
    }

    /// The same with these certificates (PEM) as the trusted ones, or signers of them, in place of the system's.
    ///
    /// # Errors
    /// If they cannot be used. The text says why.
    pub fn believing(self, ca_pem: &[u8]) -> Result<Self, HttpsError> {
        Connector::new(Some(ca_pem), None)?;
        Ok(Self { ca: Some(ca_pem.into()), ..self })
    }

    /// The same with this timeout for an answer.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Sends a request and waits for the body of the answer.
    ///
    /// # Errors
    /// If there is no answer, or the edge refuses.
    ///
    /// The timeout is for all of it: connecting, sending, and the whole answer.
    pub fn call(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
        self.block(self.exchange(method, path, body))
    }

    /// Runs a call on this thread, for the timeout at most.
    fn block<T>(&self, call: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        runtime()?.block_on(async {
            tokio::time::timeout(self.patience, call)
                .await
                .unwrap_or_else(|_| Err(ClientError::Silent(self.patience)))
        })
    }

    /// Reads `path` as another edge of the domain does: shows no token, and takes no answer that is not sealed by the domain's key.
    ///
    /// # Errors
    /// As those of [`Self::call`], and [`ClientError::NotUnderstood`] if no edge of the domain has sealed the answer.
    pub fn read(&self, key: &EdgeKey, path: &str) -> Result<Bytes, ClientError> {
        let asked = EdgeRequest::new(key, path).map_err(|error| self.unreachable(error))?;
        let (headers, body) = self.block(async {
            let shown = Some(asked.authorization());
            let answer = self.ask_with(&self.authority, shown, Method::GET, path, Bytes::new()).await?;
            self.whole(answer).await
        })?;
        asked.open(&headers, body).ok_or_else(|| {
            let why = "it is not sealed with the key of this domain: is that server an edge of it?";
            ClientError::NotUnderstood(why.into())
        })
    }

    /// Sends a request without a body, and passes each line of the answer to `take` as it arrives, until `take` returns false,
    /// the answer ends, or nothing arrives within the timeout.
    ///
    /// # Errors
    /// If there is no answer, the edge refuses, or it becomes silent.
    ///
    /// The timeout is for each piece of the answer, since a followed log has no end. The server
    /// sends an empty line in a silence (`HEARTBEAT` in `logs.rs`), far more often than the
    /// timeout.
    pub fn lines(&self, path: &str, mut take: impl FnMut(&str) -> bool) -> Result<(), ClientError> {
        runtime()?.block_on(async {
            let silent = |_| ClientError::Silent(self.patience);
            let asked = tokio::time::timeout(self.patience, self.ask(Method::GET, path, Bytes::new()));
            let answer = asked.await.map_err(silent)??;
            let status = answer.status();
            let mut body = answer.into_body();
            if !status.is_success() {
                let body =
                    tokio::time::timeout(self.patience, Limited::new(body, ANSWER_BYTES_MAX).collect());
                let body = body.await.map_err(silent)?.map_err(|error| self.unreachable(error))?.to_bytes();
                return Err(refused(status.as_u16(), &body));
            }
            let mut rest = Vec::new();
            while let Some(frame) = tokio::time::timeout(self.patience, body.frame()).await.map_err(silent)? {
                rest.extend_from_slice(
                    frame.map_err(|error| self.unreachable(error))?.data_ref().map_or(&[][..], |data| data),
                );
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    if !take(String::from_utf8_lossy(&line).trim_end()) {
                        return Ok(());
                    }
                }
                if rest.len() > LINE_BYTES_MAX {
                    return Err(ClientError::NotUnderstood("a line that is too long".into()));
                }
            }
            Ok(())
        })
    }

    /// Sends a request without a body and reads the answer as JSON.
    ///
    /// # Errors
    /// If there is no answer, the edge refuses, or the answer is no JSON.
    pub fn json(&self, method: Method, path: &str) -> Result<Value, ClientError> {
        let body = self.call(method, path, Bytes::new())?;
        serde_json::from_slice(&body).map_err(|error| ClientError::NotUnderstood(error.to_string()))
    }

    fn unreachable(&self, why: impl fmt::Display) -> ClientError {
        self.broken(false, why)
    }

    fn broken(&self, is_gone: bool, why: impl fmt::Display) -> ClientError {
        let why = format!("{}: {why}", self.authority);
        if is_gone { ClientError::Gone(why) } else { ClientError::Unreachable(why) }
    }

    async fn exchange(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ClientError> {
        let answer = self.ask(method, path, body).await?;
        Ok(self.whole(answer).await?.1)
    }

    /// The headers and the whole body of an answer.
    async fn whole(&self, answer: Response<Incoming>) -> Result<(HeaderMap, Bytes), ClientError> {
        let status = answer.status();
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX + ANSWER_OVERHEAD).collect().await;
        let body = body.map_err(|error| self.unreachable(error))?.to_bytes();
        if status.is_success() { Ok((head.headers, body)) } else { Err(refused(status.as_u16(), &body)) }
    }

    /// The handshake, with a timeout of its own: a plain HTTP server would wait for a request and
    /// answer nothing.
    async fn encrypted(&self, stream: TcpStream) -> Result<Stream, ClientError> {
        if !self.is_encrypted {
            return Ok(Stream::Plain(stream));
        }
        let connector = Connector::new(self.ca.as_deref(), None)
            .map_err(|error| self.unreachable(format_args!("{error:#}; with --ca FILE or `admin.ca`")))?;
        let connected = tokio::time::timeout(CONNECT_PATIENCE, connector.connect(&self.authority, stream));
        connected
            .await
            .map_err(|_| self.unreachable("its handshake takes too long; is it https://?"))?
            .map_err(|error| {
                let fix = "is it https://, and its certificate, or its signer's, the one in --ca FILE or `admin.ca`?";
                self.unreachable(format_args!("its certificate is not trusted: {error}; {fix}"))
            })
    }

    /// Sends the request, and again for as long as the server refuses a published token and another
    /// one is published by then.
    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>, ClientError> {
        // An edge that was restarted has another token.
        let find = || if self.token.is_none() { token::find(&self.authority) } else { None };
        let mut found = find();
        loop {
            let (at, token) = match &found {
                // A published token is sent only to its own address, whatever else a name resolves to.
                Some((address, token)) => (address.to_string(), Some(token)),
                None => (self.authority.clone(), self.token.as_ref()),
            };
            let shown = token.map(|token| format!("Bearer {token}"));
            let answer = self.ask_with(&at, shown, method.clone(), path, body.clone()).await?;
            // A server that has just started accepts connections before its token is published, and answers none before.
            let now = if answer.status() == StatusCode::UNAUTHORIZED { find() } else { None };
            if now.is_none() || now == found {
                return Ok(answer);
            }
            found = now;
        }
    }

    /// Sends the request once, with this `Authorization`.
    async fn ask_with(
        &self,
        at: &str,
        authorization: Option<String>,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let stream = tokio::time::timeout(CONNECT_PATIENCE, TcpStream::connect(at))
            .await
            .map_err(|_| self.unreachable("connecting takes too long"))?
            .map_err(|error| self.broken(is_gone(&error), error))?;
        // The request names the server by its address, whatever name was given here.
        let host = stream.peer_addr().map_err(|error| self.unreachable(error))?;
        let host = SocketAddr::new(host.ip(), host.port()).to_string();
        let stream = self.encrypted(stream).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(error))?;
        // The task ends when `sender` is dropped; an error appears in the answer.
        tokio::spawn(connection);
        let kind = if path == "/v1/apps" { "application/octet-stream" } else { "application/json" };
        let has_body = matches!(method, Method::POST | Method::PUT);
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if has_body {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        if let Some(authorization) = authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request =
            request.body(Full::new(body)).map_err(|error| ClientError::NotUnderstood(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| {
            let what = "it accepts connections but does not answer as an admin API: it may be an address where \
                        agents connect (`listen`), or require https://";
            self.broken(is_closed(&error), format!("{what} ({error})"))
        })
    }
}

fn runtime() -> Result<Runtime, ClientError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| ClientError::Unreachable(format!("cannot start the runtime: {error}")))
}

/// Whether the other side does not listen, or does not any more. A machine that cannot be reached says neither.
fn is_gone(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | ConnectionAborted | BrokenPipe)
}

/// Whether a connection ended before its answer.
fn is_closed(error: &hyper::Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    error.is_incomplete_message() || error.is_canceled() || error.is_closed() || cause.is_some_and(is_gone)
}

/// The error in an answer with another status than success. Without the two texts it is not from
/// this API.
fn refused(status: u16, body: &[u8]) -> ClientError {
    let value: Value = serde_json::from_slice(body).unwrap_or_default();
    match (value["error"].as_str(), value["fix"].as_str()) {
        (Some(error), Some(fix)) => ClientError::Refused { status, error: error.into(), fix: fix.into() },
        _ => ClientError::NotUnderstood(format!("status {status} without a reason")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// What a call says of a server that does this with each connection.
    fn against(patience: Duration, serve: impl Fn(std::net::TcpStream) + Send + 'static) -> ClientError {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
        let client = ApiClient::new(&address.to_string(), Some("token".into())).expect("an address");
        let client = client.with_patience(patience);
        client.call(Method::GET, "/healthz", Bytes::new()).expect_err("no answer")
    }

    #[test]
    fn a_server_that_is_gone_differs_from_one_that_does_not_answer() {
        let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let client = ApiClient::new(&closed.expect("an address").to_string(), Some("token".into()));
        let refused = client.expect("an address").call(Method::GET, "/healthz", Bytes::new());
        assert!(matches!(refused, Err(ClientError::Gone(_))), "{refused:?}");
        let [short, long] = [Duration::from_millis(200), Duration::from_secs(60)];
        let dropped = against(long, drop);
        assert!(matches!(dropped, ClientError::Gone(_)), "{dropped:?}");
        let silent = against(short, std::mem::forget);
        assert!(matches!(silent, ClientError::Silent(_)), "{silent:?}");
        let other = against(long, |mut stream| {
            // Behind the request: before it, an answer closes the connection. The reader may be gone.
            let _ = stream.peek(&mut [0; 1]);
            let _ = std::io::Write::write_all(&mut stream, b"220 mail.example.org\r\n");
            std::mem::forget(stream);
        });
        assert!(matches!(other, ClientError::Unreachable(_)), "{other:?}");
        assert!(
            [refused.expect_err("gone"), dropped, silent, other].iter().all(ClientError::is_without_answer)
        );
    }
}
