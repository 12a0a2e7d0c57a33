//! Asking origins for the objects of apps' caches, over HTTP/1.1: a thread of the shard that waits for answers, and that
//! is not there where no app has a cache.
//!
//! Decides nothing but what an answer is: how long it is good and who gets it is the cache's business (`edge::cache`).

mod names;

pub use names::LOOKUPS_MAX;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Empty};
use hyper::{HeaderMap, Request, Response, body::Incoming, header};
use hyper_util::rt::TokioIo;
use marram_edge::cache::{Freshness, OriginAnswer, Validators, freshness};
use marram_sandbox::reset_scheduling;
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

/// Longest `ETag` or `Last-Modified` that is kept, in bytes: a longer one is not shown again.
const VALIDATOR_MAX: usize = 256;

/// What to fetch.
#[derive(Clone, Debug)]
pub(super) struct FetchRequest {
    /// Whose cache, and which of its lives.
    pub(super) app: String,
    pub(super) life: u64,
    pub(super) key: Bytes,
    /// `http://host[:port]/path/`.
    pub(super) origin: String,
    /// Only if it is not as these say.
    pub(super) validators: Validators,
    /// Largest object, in bytes.
    pub(super) bytes_max: usize,
    pub(super) timeout: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) fetch: FetchRequest,
    pub(super) answer: OriginAnswer,
    /// What is wrong, if something is.
    pub(super) why: Option<String>,
}

/// The thread.
pub(super) struct Origins {
    fetches: mpsc::UnboundedSender<FetchRequest>,
    fetched: Receiver<Fetched>,
}

impl Origins {
    /// Starts it; `waker` is told of each answer. Caches bound what it has to do at a time.
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
            // A lookup that hangs is not waited for.
            runtime.shutdown_background();
        })?;
        Ok(Self { fetches, fetched })
    }

    /// Begins to fetch. Every wish is answered, within its time.
    pub(super) fn fetch(&self, fetch: FetchRequest) {
        // The thread ends with this.
        let _ = self.fetches.send(fetch);
    }

    /// Takes an answer.
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
    /// Another time there may be.
    Away(String),
    /// There is none to be had so.
    Refused(String),
}

fn away(why: impl fmt::Display) -> Unusable {
    Unusable::Away(why.to_string())
}

fn refused(why: impl fmt::Display) -> Unusable {
    Unusable::Refused(why.to_string())
}

/// Host and port, and the path, of an object.
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
    // Ends with the answer, or when it is waited for no more.
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
        return Err(refused(format_args!("it is encoded ({encoding:?}), which nobody asked for")));
    }
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let chunked = headers.get(header::TRANSFER_ENCODING).is_some();
    if length.is_none() && !chunked {
        return Err(refused("it has no length: whether all of it arrived cannot be told"));
    }
    let large =
        || refused(format_args!("it is larger than {} bytes, which is the most here", fetch.bytes_max));
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
        let frame =
            frame.map_err(|error| away(format_args!("it broke off after {} bytes: {error}", bytes.len())))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > fetch.bytes_max {
            return Err(large());
        }
        bytes.extend_from_slice(&data);
    }
    // Its own buffer has room for more than that.
    Ok(OriginAnswer::Object(Bytes::copy_from_slice(&bytes), validators, fresh))
}

fn lasts(headers: &HeaderMap) -> Freshness {
    let control = headers.get_all(header::CACHE_CONTROL).into_iter().filter_map(|line| line.to_str().ok());
    freshness(control, headers.get(header::AGE).and_then(|age| age.to_str().ok()))
}

#[cfg(test)]
mod tests;
