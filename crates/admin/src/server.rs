//! The HTTP server of admin APIs: limits, and tokens. Knows no route.
//!
//! ```text
//! head ─▶ Guard::admit ─▶ body (≤ SIZE_MAX, ≤ 120 s) ─▶ /v1/logs: on this thread
//!          401, 403, 415        413, 408                 all else: AdminApi::answer on a blocking thread, sealed for an edge
//! ```
//!
//! The body is read only if the head is allowed, so a client without a token cannot make it hold
//! memory.

use super::answer::{Answer, Call};
use super::logs;
use super::state::AdminState;
use super::token::{self, TokenError};
use super::{body, boot};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use marram_http::Refusal;
use marram_http::tls::{Acceptor, HttpsError};
use marram_http::{Access, EdgeCaller, Guard};
use marram_http::{Body, Server};
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Operators' connections at a time; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a request's head may take.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a request's body may take.
pub const BODY_PATIENCE: Duration = Duration::from_secs(120);
/// How long an operator may read nothing of an answer. One that follows a log and was away for longer asks again.
pub const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// Why an admin API cannot start. The operator fixes the first two by the table `[admin]`; the last is an error of the operating
/// system.
#[derive(Debug)]
pub enum AdminStartError {
    /// It has no token.
    Token(TokenError),
    /// Its certificate or key cannot be used.
    Identity(HttpsError),
    /// A system call failed.
    Io(io::Error),
}

impl From<TokenError> for AdminStartError {
    fn from(error: TokenError) -> Self {
        Self::Token(error)
    }
}

impl From<io::Error> for AdminStartError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for AdminStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(error) => write!(f, "{error}"),
            Self::Identity(error) => write!(f, "correct `admin.certificate` and `admin.key`: {error}"),
            Self::Io(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for AdminStartError {}

/// A program with an admin API.
///
/// Implemented by edges, recorders and agents.
pub trait AdminApi: Send + Sync + 'static {
    /// Handles a request; `name` is the name that the API was started with. May block.
    fn answer(&self, name: &str, call: &Call) -> Result<Answer, Refusal>;
}

/// The header that goes with an answer that is sealed.
type Salt = (HeaderName, HeaderValue);

/// An API with its access rules.
///
/// One for each program; all connections share it.
struct Served {
    name: String,
    guard: Guard,
    site: Arc<dyn AdminApi>,
    /// Keeps the token published.
    /// None if a token is configured, or if no directory could be used.
    _published: Option<token::Published>,
}

/// Starts an edge's API, and a thread that deploys the apps of the start.
///
/// # Errors
/// If its token cannot be made, or the operating system has no thread or descriptor left.
///
/// The caller has bound the listener, so a command that finds the token can connect at once; its
/// request waits until the thread answers, and then perhaps for apps that are being deployed.
pub fn start(listener: TcpListener, state: Arc<AdminState>) -> Result<(), AdminStartError> {
    let (token, published) =
        token_of(&listener, state.access.token.as_ref(), || token::kept(&state.token_file))?;
    let booting = Arc::clone(&state);
    thread::Builder::new().name("admin-boot".into()).spawn(move || boot::deploy_all(&booting))?;
    let guard = Guard::new(&state.access, token, Some(state.edge_key.clone()));
    let tls =
        state.access.identity.as_ref().map(Acceptor::new).transpose().map_err(AdminStartError::Identity)?;
    listen(listener, tls, Served { name: state.edge.clone(), guard, site: state, _published: published })
}

/// Starts the thread of an API with this name. If no token is configured, one is made and published while the API runs.
///
/// # Errors
/// If a token cannot be made, or the operating system has no thread or descriptor left.
pub fn serve(
    listener: TcpListener,
    name: String,
    access: &Access,
    site: Arc<dyn AdminApi>,
) -> Result<(), AdminStartError> {
    let (token, published) = token_of(&listener, access.token.as_ref(), token::fresh)?;
    let guard = Guard::new(access, token, None);
    let tls = access.identity.as_ref().map(Acceptor::new).transpose().map_err(AdminStartError::Identity)?;
    listen(listener, tls, Served { name, guard, site, _published: published })
}

/// The configured token, or a new one, which commands of the same user find.
/// A token that cannot be published is a warning only: the operator can read it from the file, if
/// there is one.
fn token_of(
    listener: &TcpListener,
    configured: Option<&String>,
    make: impl FnOnce() -> Result<String, TokenError>,
) -> Result<(String, Option<token::Published>), TokenError> {
    if let Some(token) = configured {
        return Ok((token.clone(), None));
    }
    let token = make()?;
    let published = listener.local_addr().and_then(|address| token::publish(address, &token));
    if let Err(error) = &published {
        tracing::warn!(
            "commands cannot find the admin token by themselves: {error}; name one with `admin.token_file`"
        );
    }
    Ok((token, published.ok()))
}

fn listen(listener: TcpListener, tls: Option<Acceptor>, served: Served) -> Result<(), AdminStartError> {
    let served = Arc::new(served);
    let server = Server {
        thread: "admin",
        what: "the admin API",
        connections_max: CONNECTIONS_MAX,
        head_patience: HEAD_PATIENCE,
        write_patience: WRITE_PATIENCE,
        tls,
    };
    Ok(server.start(listener, move |request| respond(Arc::clone(&served), request))?)
}

/// Runs on the server's thread. A handler that panics costs its request alone.
async fn respond(served: Arc<Served>, request: Request<Incoming>) -> Response<Body> {
    let answer = match read(&served.guard, request).await {
        Ok((call, None)) if logs::is_asked_for(&call) => {
            logs::answer(&served.name, &call).map(|answer| (answer, None))
        }
        Ok((call, caller)) => tokio::task::spawn_blocking(move || {
            let answer = served.site.answer(&served.name, &call)?;
            match caller {
                Some(caller) => sealed(&caller, answer),
                None => Ok((answer, None)),
            }
        })
        .await
        .unwrap_or_else(|_| Err(Refusal::bug("answering panicked"))),
        Err(refusal) => Err(refusal),
    };
    let (answer, salt) = answer.unwrap_or_else(|refusal| (refusal.into(), None));
    response(answer, salt)
}

/// Seals an answer for the edge that asked.
fn sealed(caller: &EdgeCaller, answer: Answer) -> Result<(Answer, Option<Salt>), Refusal> {
    let Body::Whole(body) = answer.body else { return Err(Refusal::bug("an edge asked for a stream")) };
    let (body, salt) = caller.seal(body.unwrap_or_default()).map_err(|error| {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("no random bytes: {error}"), "try again")
    })?;
    Ok((Answer { body: body.into(), ..answer }, Some(salt)))
}

/// Checks whether the request is allowed, and then reads all of it.
async fn read(guard: &Guard, request: Request<Incoming>) -> Result<(Call, Option<EdgeCaller>), Refusal> {
    let (head, incoming) = request.into_parts();
    let caller = guard.admit(&head)?;
    let body = Limited::new(incoming, body::SIZE_MAX).collect();
    let body = match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let what = format!("the body is larger than {} bytes", body::SIZE_MAX);
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what, "make the app smaller"));
        }
        Ok(Err(error)) => {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                format!("the body ended early: {error}"),
                "try again",
            ));
        }
        Err(_) => {
            return Err(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
                "try again",
            ));
        }
    };
    let query = head.uri.query().unwrap_or_default().to_owned();
    Ok((Call { method: head.method, path: head.uri.path().to_owned(), query, body }, caller))
}

fn response(answer: Answer, salt: Option<Salt>) -> Response<Body> {
    let Answer { status, content_type, body } = answer;
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().extend(salt);
    response
}
