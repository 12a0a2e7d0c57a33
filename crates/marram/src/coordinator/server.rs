//! The embedded store over HTTP, on a port of its own: watches last, and operators' connections are counted apart.

use super::keeping::{Keeping, News};
use super::protocol::{self, Asked};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use marram_agent::net::Limiter;
use marram_edge::coordinator::VALUE_BYTES_MAX;
use serde_json::Value;
use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};

/// Connections at a time, watches among them; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Bytes of a request: a value in base64, with room.
pub const REQUEST_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX;
/// How long a request may take to arrive.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// An answer's body: all of it, or news for as long as there are any.
enum Answer {
    Whole(Option<Bytes>),
    News(Option<Bytes>, mpsc::Receiver<News>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let line = match &mut *self {
            Self::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::News(first @ Some(_), _) => first.take(),
            Self::News(None, news) => match news.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(news) => news.map(|news| match news {
                    News::Changes(changes) => protocol::line(&changes),
                    News::Forgotten(oldest) => protocol::forgotten(oldest),
                }),
            },
        };
        Poll::Ready(line.map(|line| Ok(Frame::data(line))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::News(..) => SizeHint::default(),
        }
    }
}

/// Starts the thread that serves.
pub(super) fn start(listener: TcpListener, keeping: Keeping, token: Option<String>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("store-serve".into()).spawn(move || {
        if let Err(error) = runtime.block_on(accept(listener, keeping, token.map(Into::into))) {
            tracing::error!("the coordinator's store is not served any more: {error}");
        }
    })?;
    Ok(())
}

async fn accept(listener: TcpListener, keeping: Keeping, token: Option<Arc<str>>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut complaints = Limiter::new(Instant::now());
    loop {
        let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(swallowed) = complaints.pass(Instant::now()) {
                    tracing::warn!(swallowed, "the coordinator's store could not accept: {error}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (keeping, token) = (keeping.clone(), token.clone());
        tokio::spawn(async move {
            let service = hyper::service::service_fn(|request| {
                let (keeping, token) = (keeping.clone(), token.clone());
                async move { Ok::<_, Infallible>(respond(&keeping, token.as_deref(), request).await) }
            });
            // Who hangs up early is no news.
            let _ = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_PATIENCE)
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(place);
        });
    }
}

async fn respond(keeping: &Keeping, token: Option<&str>, request: Request<Incoming>) -> Response<Answer> {
    let shown = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    // Digests compare in a time that says nothing about where the two differ.
    if token.is_some_and(|token| blake3::hash(shown) != blake3::hash(token.as_bytes())) {
        return whole(protocol::error(401, 16, "the token is missing or wrong"));
    }
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let body = match tokio::time::timeout(REQUEST_PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            return whole(protocol::error(400, 3, &format!("the request cannot be read: {error}")));
        }
        Err(_) => return whole(protocol::error(408, 4, "the request did not arrive in time")),
    };
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    match protocol::asked(&path, &value) {
        None => whole(protocol::error(
            400,
            12,
            "this store knows no such request: docs/decisions/coordinator.md lists them",
        )),
        Some(Asked::Request(request)) => match keeping.ask(request.clone()).await {
            Some((revision, result)) => whole(protocol::answer(revision, &request, result)),
            None => whole(protocol::error(503, 14, "the store is overloaded or cannot be written")),
        },
        Some(Asked::Watch(prefix, since)) => match keeping.watch(prefix, since) {
            Some(news) => Response::new(Answer::News(Some(protocol::line(&[])), news)),
            None => whole(protocol::error(503, 14, "the store is overloaded")),
        },
    }
}

fn whole((status, body): (u16, Value)) -> Response<Answer> {
    let mut response = Response::new(Answer::Whole(Some(body.to_string().into())));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
