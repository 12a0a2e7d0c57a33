//! What this binary's HTTP servers have in common: connections and how many, who may ask, and answers that end or go on. Knows no
//! request.

use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use marram_agent::net::Limiter;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Threads of a server for answers that block; answering may compute.
const BLOCKING_MAX: usize = 8;

/// An answer's body.
pub(crate) enum Body {
    /// All of it.
    Whole(Option<Bytes>),
    /// What there is first, then what comes.
    Lines(Option<Bytes>, Box<dyn Tail>),
}

/// What comes, for as long as somebody reads it.
pub(crate) trait Tail: Send {
    /// The next lines; nothing if there will be no more.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>>;
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes))
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let bytes = match &mut *self {
            Self::Whole(bytes) | Self::Lines(bytes @ Some(_), _) => Poll::Ready(bytes.take()),
            Self::Lines(None, tail) => tail.poll(context),
        };
        bytes.map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Lines(..) => SizeHint::default(),
        }
    }
}

/// A server, and what it allows.
pub(crate) struct Server {
    /// What its thread is called.
    pub(crate) thread: &'static str,
    /// What it is called in the log.
    pub(crate) what: &'static str,
    /// At a time; more wait to be accepted.
    pub(crate) connections_max: usize,
    /// How long a request's head may take.
    pub(crate) head_patience: Duration,
}

impl Server {
    /// Starts the thread that serves.
    ///
    /// # Errors
    /// If the operating system has no thread or descriptor left.
    pub(crate) fn start<A, F>(self, listener: TcpListener, answer: A) -> io::Result<()>
    where
        A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send,
    {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(BLOCKING_MAX)
            .thread_name(format!("{}-answer", self.thread))
            .build()?;
        thread::Builder::new().name(self.thread.into()).spawn(move || {
            if let Err(error) = runtime.block_on(self.accept(listener, Arc::new(answer))) {
                tracing::error!("{} stopped: {error}", self.what);
            }
        })?;
        Ok(())
    }

    async fn accept<A, F>(&self, listener: TcpListener, answer: Arc<A>) -> io::Result<()>
    where
        A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send,
    {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let places = Arc::new(Semaphore::new(self.connections_max));
        let mut complaints = Limiter::new(Instant::now());
        let head_patience = self.head_patience;
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, or the peer is gone already: neither goes away by trying again at once.
                    if let Some(swallowed) = complaints.pass(Instant::now()) {
                        tracing::warn!(swallowed, "{} could not accept: {error}", self.what);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Refused only of a connection that is gone.
            let _ = stream.set_nodelay(true);
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let service = hyper::service::service_fn(|request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                // Who hangs up early is no news.
                let _ = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(head_patience)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
                drop(place);
            });
        }
    }
}

/// Whether a request shows the token, if one must be shown.
pub(crate) fn shows(headers: &HeaderMap, token: Option<&str>) -> bool {
    let shown = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let shown = shown.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    // Digests compare in a time that says nothing about where the two differ.
    token.is_none_or(|token| blake3::hash(shown) == blake3::hash(token.as_bytes()))
}
