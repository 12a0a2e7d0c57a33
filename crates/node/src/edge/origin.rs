//! Fetches objects for apps' caches from their origins, over HTTP/1.1, in a thread of the shard. The thread exists only if an
//! app has a cache.
//!
//! Only classifies answers: how long an object is fresh and which cells get it is decided in `shard::cache`.
//!
//! ```text
//! 200             object, if its length is known and not too large
//! 304             unchanged, if validators were sent
//! 404, 410        there is no such object (cached as well)
//! 408, 429, 5xx   away: may work later; a stale object is served meanwhile
//! anything else   refused: the cell's read fails
//! ```
//!
//! The request carries nothing of the client. Compressed answers are refused: cells get objects as
//! they are.

mod names;

pub use names::LOOKUPS_MAX;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty};
use hyper::{HeaderMap, Request, Response, body::Incoming, header};
use hyper_util::rt::TokioIo;
use marram_sandbox::reset_scheduling;
use marram_shard::cache::{Freshness, OriginAnswer, Validators, freshness};
use names::{Names, Resolve};
use std::{
    fmt, io,
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};
use tokio::{net::TcpStream, sync::mpsc};

/// Longest `ETag` or `Last-Modified` that is kept, in bytes; a longer one is not sent back.
const VALIDATOR_MAX: usize = 256;

/// A request for an object.
#[derive(Clone, Debug)]
pub(super) struct FetchRequest {
    /// The app of the cache, and the cache's number.
    pub(super) app: String,
    /// See `AppCache`: an answer for an earlier cache is dropped.
    pub(super) life: u64,
    pub(super) key: Bytes,
    /// `http://host[:port]/path/`.
    pub(super) origin: String,
    /// Makes the request conditional: the object only if it has changed.
    pub(super) validators: Validators,
    /// Largest object, in bytes.
    pub(super) bytes_max: usize,
    pub(super) timeout: Duration,
}

/// The result of a fetch.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) fetch: FetchRequest,
    pub(super) answer: OriginAnswer,
    /// The error, if there was one.
    pub(super) why: Option<String>,
}

/// A handle to the thread.
pub(super) struct Origins {
    fetches: mpsc::UnboundedSender<FetchRequest>,
    fetched: Receiver<Fetched>,
}

// The channel to the thread is not bounded here: a shard's caches have at most a fixed number of
// fetches under way.
impl Origins {
    /// Starts the thread, which wakes `waker` for each answer. The caches limit how much it has to do at a time.
    pub(super) fn start(waker: Arc<mio::Waker>) -> io::Result<Self> {
        Self::start_with(waker, names::system())
    }

    fn start_with(waker: Arc<mio::Waker>, resolve: Resolve) -> io::Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(LOOKUPS_MAX).build()?;
        let (fetches, mut to_do) = mpsc::unbounded_channel::<FetchRequest>();
        let (sender, fetched) = channel();
        thread::Builder::new().name("origins".into()).spawn(move || {
            reset_scheduling();
            let names = Names::new(resolve);
            runtime.block_on(async move {
                while let Some(fetch) = to_do.recv().await {
                    tokio::spawn(fulfil(fetch, Arc::clone(&names), sender.clone(), Arc::clone(&waker)));
                }
            });
            // Does not wait for a lookup that hangs.
            runtime.shutdown_background();
        })?;
        Ok(Self { fetches, fetched })
    }

    /// Starts a fetch. Each one has an answer, within its timeout.
    pub(super) fn fetch(&self, fetch: FetchRequest) {
        // The thread runs until `self` is dropped.
        let _ = self.fetches.send(fetch);
    }

    /// The next answer, if one is there.
    pub(super) fn next(&self) -> Option<Fetched> {
        self.fetched.try_recv().ok()
    }
}

async fn fulfil(fetch: FetchRequest, names: Arc<Names>, sender: Sender<Fetched>, waker: Arc<mio::Waker>) {
    let (answer, why) = match tokio::time::timeout(fetch.timeout, get(&fetch, &names)).await {
        Ok(Ok(answer)) => (answer, None),
        Ok(Err(Unusable::Away(why))) => (OriginAnswer::Away, Some(why)),
        Ok(Err(Unusable::Refused(why))) => (OriginAnswer::Refused, Some(why)),
        Err(_) => {
            (OriginAnswer::Away, Some(format!("no whole answer in {:?} (cache.timeout)", fetch.timeout)))
        }
    };
    // Fails only when the shard has stopped.
    if sender.send(Fetched { fetch, answer, why }).is_ok() {
        let _ = waker.wake();
    }
}

/// Why there is no object.
enum Unusable {
    /// It may be available later.
    Away(String),
    /// The origin has no usable object for this request.
    Refused(String),
}

fn away(why: impl fmt::Display) -> Unusable {
    Unusable::Away(why.to_string())
}

fn refused(why: impl fmt::Display) -> Unusable {
    Unusable::Refused(why.to_string())
}

/// An object's host and port, and path.
fn target(origin: &str, key: &[u8]) -> (String, String, String) {
    let rest = origin.strip_prefix("http://").unwrap_or(origin);
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let has_port =
        host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) && !host.ends_with(']');
    let authority = if has_port { host.to_owned() } else { format!("{host}:80") };
    (authority, host.to_owned(), format!("{path}{}", String::from_utf8_lossy(key)))
}

async fn get(fetch: &FetchRequest, names: &Arc<Names>) -> Result<OriginAnswer, Unusable> {
    let (authority, host, path) = target(&fetch.origin, &fetch.key);
    let addresses = names.look_up(&fetch.app, &authority).await.map_err(away)?;
    let stream = TcpStream::connect(&addresses[..]).await.map_err(away)?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(away)?;
    // The task ends with the answer, or is aborted when the fetch is over.
    let connection = tokio::spawn(connection);
    let mut request = Request::get(path)
        .header(header::HOST, host)
        .header(header::CONNECTION, "close")
        .header(header::ACCEPT_ENCODING, "identity")
        .header(header::USER_AGENT, "marram");
    if let Some(tag) = &fetch.validators.tag {
        request = request.header(header::IF_NONE_MATCH, tag);
    }
    if let Some(modified) = &fetch.validators.modified {
        request = request.header(header::IF_MODIFIED_SINCE, modified);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(refused)?;
    // One connection for each fetch, so no request meets one that the origin has just closed.
    let answered = match sender.send_request(request).await {
        Ok(response) => read(fetch, response).await,
        Err(error) => Err(away(error)),
    };
    connection.abort();
    answered
}

async fn read(fetch: &FetchRequest, response: Response<Incoming>) -> Result<OriginAnswer, Unusable> {
    let headers = response.headers();
    let fresh = lasts(headers);
    match response.status().as_u16() {
        200 => {}
        304 if fetch.validators != Validators::default() => return Ok(OriginAnswer::Unchanged(fresh)),
        404 | 410 => return Ok(OriginAnswer::Nothing(fresh)),
        status @ (408 | 429 | 500..) => return Err(away(format_args!("status {status}"))),
        status @ 300..400 => {
            return Err(refused(format_args!(
                "status {status}: redirections are not followed, give the origin's own URL"
            )));
        }
        status => return Err(refused(format_args!("status {status}"))),
    }
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        return Err(refused(format_args!("it is encoded ({encoding:?}), which was not asked for")));
    }
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let chunked = headers.get(header::TRANSFER_ENCODING).is_some();
    // RFC 9112, 6.3: such a body ends with the connection, so a truncated one looks whole.
    if length.is_none() && !chunked {
        return Err(refused("it has no length, so it cannot be checked whether all of it arrived"));
    }
    let large =
        || refused(format_args!("it is larger than {} bytes, which is the maximum here", fetch.bytes_max));
    if length.is_some_and(|length| length > fetch.bytes_max as u64) {
        return Err(large());
    }
    let text = |name| {
        let value = headers.get(name)?.to_str().ok()?;
        (value.len() <= VALIDATOR_MAX).then(|| value.to_owned())
    };
    let validators = Validators { tag: text(header::ETAG), modified: text(header::LAST_MODIFIED) };
    let mut body = response.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| away(format_args!("it ended early, after {} bytes: {error}", bytes.len())))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > fetch.bytes_max {
            return Err(large());
        }
        bytes.extend_from_slice(&data);
    }
    // A copy: the buffer that the bytes came in has a larger allocation.
    Ok(OriginAnswer::Object(Bytes::copy_from_slice(&bytes), validators, fresh))
}

/// `Cache-Control` and `Age`; how they count is decided by the pure cache.
fn lasts(headers: &HeaderMap) -> Freshness {
    let control = headers.get_all(header::CACHE_CONTROL).into_iter().filter_map(|line| line.to_str().ok());
    freshness(control, headers.get(header::AGE).and_then(|age| age.to_str().ok()))
}

#[cfg(test)]
mod tests;
