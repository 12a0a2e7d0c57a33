//! Servers: accepting connections up to a limit, checking tokens, and bodies that end or stream. Knows no request.
//!
//! ```text
//! thread NAME: accept ─▶ task of a connection ─▶ answer(request) ─▶ Body ─▶ WriteTimeout ─▶ socket
//! up to 8 threads NAME-answer: what an answer hands to `spawn_blocking`
//! ```
//!
//! All connections of a server share one thread, so `answer` must not block; what computes or reads
//! files goes to the blocking threads. What a peer can hold is limited: connections by number, a
//! head and a TLS handshake by `head_patience`, an answer that is not read by `write_patience`. A
//! request's body has no time limit here: its reader sets one.

use crate::tls::{Acceptor, Stream};
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::{HeaderMap, Request, Response, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use marram_transport::LogLimiter;
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
use tokio::time::Sleep;

/// Bytes of the largest body that the admin API takes or gives.
/// A limit of memory, since bodies are held whole.
pub const BODY_BYTES_MAX: usize = 384 << 20;
/// Blocking threads of a server. Answering a request may compute for a while.
const BLOCKING_MAX: usize = 8;

/// An answer's body.
pub enum Body {
    /// The whole answer at once.
    Whole(Option<Bytes>),
    /// First the bytes that are there already, then those of the stream.
    Lines(Option<Bytes>, Box<dyn BodyStream>),
}

/// A body that continues for as long as the client reads it.
///
/// It is polled on the server's thread and must not block. It is dropped when the client leaves,
/// and should then release what feeds it.
pub trait BodyStream: Send {
    /// The next lines; `None` if there are no more.
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
        // The bytes that were there first are taken, so the next poll finds `None` and asks the
        // stream.
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

/// A connection that fails if its peer reads none of the waiting bytes within the timeout.
///
/// Only writes are timed. A slow reader of a large answer is served for as long as it reads
/// anything; hyper has a timeout for heads alone, so without this a client could keep its place,
/// and what the answer holds, forever.
struct WriteTimeout {
    io: TokioIo<Stream>,
    timeout: Duration,
    /// The timeout's timer, while bytes wait to be written.
    waits: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    /// The timer starts with the first write that must wait and ends with the first that does not.
    fn written<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = None;
            return written;
        }
        let waits = self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.timeout)));
        waits.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Read for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl Write for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A plain socket has nothing to flush, but the TLS stream has.
        let flushed = Pin::new(&mut self.io).poll_flush(context);
        self.written(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, bytes);
        self.written(written, context)
    }
}

/// A server and its limits.
pub struct Server {
    /// The name of its thread.
    pub thread: &'static str,
    /// Its name in the log.
    pub what: &'static str,
    /// Most connections at a time; further ones wait to be accepted.
    pub connections_max: usize,
    /// How long a request's head may take.
    pub head_patience: Duration,
    /// How long a peer may read nothing of an answer that waits for it.
    pub write_patience: Duration,
    /// Its TLS settings, if it encrypts.
    pub tls: Option<Acceptor>,
}

impl Server {
    /// Starts the thread that serves.
    ///
    /// # Errors
    /// If the operating system has no thread or descriptor left.
    pub fn start<A, F>(self, listener: TcpListener, answer: A) -> io::Result<()>
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

    /// A place is taken before the connection is accepted: at the limit, clients wait in the
    /// kernel's backlog and no descriptor is used for them. The task returns it when the connection
    /// ends, however that happens.
    async fn accept<A, F>(&self, listener: TcpListener, answer: Arc<A>) -> io::Result<()>
    where
        A: Fn(Request<Incoming>) -> F + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send,
    {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let places = Arc::new(Semaphore::new(self.connections_max));
        let mut log_limiter = LogLimiter::new(Instant::now());
        let (head_patience, timeout) = (self.head_patience, self.write_patience);
        loop {
            let place = Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, or the peer has gone already: an immediate retry helps in neither case.
                    if let Some(suppressed) = log_limiter.pass(Instant::now()) {
                        tracing::warn!(suppressed, "{} could not accept: {error}", self.what);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            // Fails only if the connection has closed.
            let _ = stream.set_nodelay(true);
            let (answer, tls) = (Arc::clone(&answer), self.tls.clone());
            tokio::spawn(async move {
                let stream = match tls {
                    None => Stream::Plain(stream),
                    Some(tls) => match tokio::time::timeout(head_patience, tls.accept(stream)).await {
                        Ok(Ok(stream)) => stream,
                        Ok(Err(error)) => {
                            tracing::debug!("a handshake failed: {error}");
                            return;
                        }
                        Err(_) => return,
                    },
                };
                let service = hyper::service::service_fn(|request| {
                    let answered = answer(request);
                    async move { Ok::<_, Infallible>(answered.await) }
                });
                let io = WriteTimeout { io: TokioIo::new(stream), timeout, waits: None };
                // Ignore early disconnects.
                let _ = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(head_patience)
                    .serve_connection(io, service)
                    .await;
                drop(place);
            });
        }
    }
}

/// The bearer token of a request; empty if the request has another kind of authorization.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let shown = headers.get(header::AUTHORIZATION)?.as_bytes();
    Some(shown.strip_prefix(b"Bearer ").unwrap_or_default())
}

/// Whether a token is the right one. Compares digests, so that the time of the comparison does not reveal where the two differ.
/// Hashing first also makes tokens of any length comparable; a digest that matches up to some byte
/// tells nothing about the token.
pub fn is_same(shown: &[u8], token: &str) -> bool {
    blake3::hash(shown) == blake3::hash(token.as_bytes())
}

/// Whether a request has the token, if one is required.
pub fn shows(headers: &HeaderMap, token: Option<&str>) -> bool {
    token.is_none_or(|token| is_same(bearer(headers).unwrap_or_default(), token))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    /// More than socket buffers hold.
    const SIZE: usize = 64 << 20;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A body without an end.
    struct Endless;

    impl BodyStream for Endless {
        fn poll(&mut self, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
            Poll::Ready(Some(vec![b'\n'; 1 << 16].into()))
        }
    }

    #[test]
    fn a_client_that_does_not_read_its_answer_is_disconnected() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server {
            thread: "test",
            what: "the server",
            connections_max: 1,
            head_patience: PATIENCE,
            write_patience: Duration::from_secs(1),
            tls: None,
        };
        let answer = |request: Request<Incoming>| async move {
            Response::new(match request.uri().path() {
                "/endless" => Body::Lines(None, Box::new(Endless)),
                _ => Bytes::from(vec![b'x'; SIZE]).into(),
            })
        };
        server.start(listener, answer).unwrap();
        let ask = |path: &str| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
            stream
        };
        // Each request waits for the only connection slot, which the previous one occupies.
        let [_whole, _endless] = ["/whole", "/endless"].map(ask);
        let mut heard = Vec::new();
        ask("/whole").read_to_end(&mut heard).unwrap();
        assert!(
            heard.starts_with(b"HTTP/1.1 200 ") && heard[heard.len() - SIZE..].iter().all(|it| *it == b'x')
        );
    }
}
