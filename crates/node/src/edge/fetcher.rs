//! Fetches apps and their images from peers, in threads beside the supervisor's, which never blocks. Knows no HTTP and no peer: the caller
//! passes a function that fetches.
//!
//! A version of an app that a session needs and this edge does not have is fetched while the session's end
//! waits and asks again. A thread for each fetch is wasteful but simple: fetches are rare, and the
//! function blocks on sockets.

use marram_shard::api::{App, AppVersion};
use std::{
    error::Error,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
};

/// Fetches an app's image into the image cache and returns the app's settings; or the reason why no peer has this version of it. May
/// take long.
pub type Fetch = Arc<dyn Fn(&AppVersion) -> Result<App, PeersError> + Send + Sync>;

/// Why no peer has sent an image: an error of the function that asks them.
pub type PeersError = Box<dyn Error + Send + Sync>;

/// The result of a fetch.
pub(super) type Fetched = (AppVersion, Result<App, FetchFailure>);

/// Why an image was not fetched.
#[derive(Debug)]
pub(super) enum FetchFailure {
    /// The edge has no peers.
    NoPeers,
    /// None of them has sent it.
    Peers(PeersError),
    /// There is a bug: the function that asks them has panicked.
    Panicked,
    /// There is no thread for the fetch.
    Thread(io::Error),
}

impl fmt::Display for FetchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPeers => f.write_str("this edge has no peers"),
            Self::Peers(error) => write!(f, "{error}"),
            Self::Panicked => f.write_str("asking its peers failed; the edge's log says why"),
            Self::Thread(error) => write!(f, "its peers cannot be asked: {error}"),
        }
    }
}

/// Fetches in progress, each in a thread that mostly waits. The control limits their number.
pub(super) struct Fetcher {
    /// None without peers; the control then does not ask.
    fetch: Option<Fetch>,
    sender: Sender<Fetched>,
    fetched: Receiver<Fetched>,
    waker: Arc<OnceLock<mio::Waker>>,
}

impl Fetcher {
    /// `waker` is woken for each result; `fetch` does the fetching, if there are peers.
    pub(super) fn new(fetch: Option<Fetch>, waker: Arc<OnceLock<mio::Waker>>) -> Self {
        let (sender, fetched) = channel();
        Self { fetch, sender, fetched, waker }
    }

    /// Whether there are peers to ask.
    pub(super) fn has_peers(&self) -> bool {
        self.fetch.is_some()
    }

    /// Starts a fetch. Each one has a result.
    pub(super) fn start(&self, version: AppVersion) {
        let (fetch, wanted) = (self.fetch.clone(), version.clone());
        let (sender, waker) = (self.sender.clone(), Arc::clone(&self.waker));
        let answer = move |result| {
            // Fails only when the supervisor has stopped.
            let _ = sender.send((version, result));
            if let Some(waker) = waker.get() {
                let _ = waker.wake();
            }
        };
        let unasked = answer.clone();
        let thread = thread::Builder::new().name("fetch".into()).spawn(move || {
            let ask = |fetch: Fetch| fetch(&wanted).map_err(FetchFailure::Peers);
            // The control counts fetches in progress: one without a result would stay counted.
            let asked = catch_unwind(AssertUnwindSafe(|| fetch.map_or(Err(FetchFailure::NoPeers), ask)));
            answer(asked.unwrap_or(Err(FetchFailure::Panicked)));
        });
        if let Err(error) = thread {
            unasked(Err(FetchFailure::Thread(error)));
        }
    }

    /// The next result, if one is there.
    pub(super) fn take(&self) -> Option<Fetched> {
        self.fetched.try_recv().ok()
    }
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fetcher").field("has_peers", &self.has_peers()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_wire::id::ImageHash;

    #[test]
    fn every_ask_is_answered_even_one_that_panics() {
        let fetch: Fetch = Arc::new(|version| {
            assert_ne!(version.app, "b", "this one is to fail");
            Err(format!("no peer has {}", version.app).into())
        });
        let fetcher = Fetcher::new(Some(fetch), Arc::default());
        let version = |app: &str| AppVersion { app: app.into(), image: ImageHash([1; 32]) };
        let failures = [("no peer has a", "a"), ("asking its peers failed; the edge's log says why", "b")];
        for (failure, app) in failures {
            fetcher.start(version(app));
            let (about, result) = fetcher.fetched.recv().unwrap();
            assert_eq!(about, version(app));
            assert_eq!(result.unwrap_err().to_string(), failure);
        }
        let alone = Fetcher::new(None, Arc::default());
        alone.start(version("c"));
        assert!(matches!(alone.fetched.recv().unwrap().1, Err(FetchFailure::NoPeers)));
    }
}
