//! Connections: HTTP in and out, who may ask, and how much at a time. Knows no route.

use super::desk::Desk;
use super::logs::{self, Body};
use super::routes::{Answer, Call, Refusal};
use super::{body, boot};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use marram_agent::net::Limiter;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Operators' connections at a time; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// Threads that answer; answering blocks on the control, and deploying computes.
const ANSWERS_MAX: usize = 8;
/// How long a request's head may take.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a request's body may take.
pub const BODY_PATIENCE: Duration = Duration::from_secs(120);

/// Whoever has an admin API.
pub trait Site: Send + Sync + 'static {
    /// What it is called.
    fn name(&self) -> &str;
    /// What must be shown, if anything.
    fn token(&self) -> Option<&str>;
    /// Does what is asked. May block.
    fn answer(&self, call: &Call) -> Result<Answer, Refusal>;
}

/// Starts an edge's API, and a thread that deploys what is to be deployed at start.
///
/// # Errors
/// If the operating system has no thread or descriptor left.
pub fn start(listener: TcpListener, desk: Arc<Desk>) -> io::Result<()> {
    let booting = Arc::clone(&desk);
    thread::Builder::new().name("admin-boot".into()).spawn(move || boot::deploy_all(&booting))?;
    serve(listener, desk)
}

/// Starts an API's thread.
///
/// # Errors
/// If the operating system has no thread or descriptor left.
pub fn serve(listener: TcpListener, site: Arc<dyn Site>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(ANSWERS_MAX)
        .thread_name("admin-answer")
        .build()?;
    thread::Builder::new().name("admin".into()).spawn(move || {
        if let Err(error) = runtime.block_on(accept(listener, site)) {
            tracing::error!("the admin API stopped: {error}");
        }
    })?;
    Ok(())
}

async fn accept(listener: TcpListener, site: Arc<dyn Site>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut complaints = Limiter::new(Instant::now());
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, or the peer is gone already: neither goes away by trying again at once.
                if let Some(swallowed) = complaints.pass(Instant::now()) {
                    tracing::warn!(swallowed, "the admin API could not accept: {error}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let site = Arc::clone(&site);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| respond(Arc::clone(&site), request));
            // An operator who hangs up early is no news.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_PATIENCE)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(place);
        });
    }
}

async fn respond(site: Arc<dyn Site>, request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let answer = match read(&*site, request).await {
        Ok(call) if logs::is_asked_for(&call) => logs::answer(site.name(), &call),
        Ok(call) => tokio::task::spawn_blocking(move || site.answer(&call))
            .await
            .unwrap_or_else(|_| Err(Refusal::bug("answering panicked"))),
        Err(refusal) => Err(refusal),
    };
    Ok(response(answer.unwrap_or_else(Refusal::into_answer)))
}

/// Whether the asker may ask, and then all of what is asked.
async fn read(site: &dyn Site, request: Request<Incoming>) -> Result<Call, Refusal> {
    let shown = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    if !may_ask(site, shown, request.uri().path()) {
        let what = match shown {
            None => "the admin token is missing",
            Some(_) => "the admin token is wrong: another one was shown than the edge has",
        };
        let fix = "show that of `admin.token_file`: --token-file, or `Authorization: Bearer ...`";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, what, fix));
    }
    let (head, incoming) = request.into_parts();
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
                format!("the body broke off: {error}"),
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
    Ok(Call { method: head.method, path: head.uri.path().to_owned(), query, body })
}

/// `/healthz` is for load balancers, which have no token.
fn may_ask(site: &dyn Site, shown: Option<&[u8]>, path: &str) -> bool {
    let Some(token) = site.token() else { return true };
    let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    // Digests compare in a time that says nothing about where the two differ.
    path == "/healthz" || blake3::hash(shown) == blake3::hash(token.as_bytes())
}

fn response(answer: Answer) -> Response<Body> {
    let Answer { status, content_type, body } = answer;
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
