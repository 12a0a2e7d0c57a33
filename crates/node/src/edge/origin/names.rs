//! Looks up origins' names. The system's resolver blocks its thread for an unlimited time, also after the caller's timeout. So
//! each app has at most one lookup in progress, which all its fetches share, and a name that hangs delays only its own app.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex},
};
use tokio::sync::watch;

/// Most lookups at a time, over all apps of a shard: each has a thread. Further ones fail at once.
pub const LOOKUPS_MAX: usize = 32;

/// Resolves a name with its port to addresses; blocks.
pub(super) type Resolve = Arc<dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

type Result = std::result::Result<Vec<SocketAddr>, String>;

/// A lookup, and its result when there is one.
struct Lookup {
    authority: String,
    result: watch::Receiver<Option<Result>>,
}

/// The lookups of a shard.
pub(super) struct Names {
    resolve: Resolve,
    /// By app. A lookup is removed when its thread is free again.
    underway: Mutex<BTreeMap<String, Lookup>>,
}

/// The system's resolver.
pub(super) fn system() -> Resolve {
    Arc::new(|authority| authority.to_socket_addrs().map(Iterator::collect))
}

impl Names {
    pub(super) fn new(resolve: Resolve) -> Arc<Self> {
        Arc::new(Self { resolve, underway: Mutex::default() })
    }

    /// The addresses of an app's origin. A caller may stop waiting: the lookup then continues without it.
    pub(super) async fn look_up(self: &Arc<Self>, app: &str, authority: &str) -> Result {
        if let Ok(address) = authority.parse() {
            return Ok(vec![address]);
        }
        let mut result = self.begin(app, authority)?;
        let said =
            result.wait_for(Option::is_some).await.map_err(|_| "the lookup was cancelled".to_owned())?;
        said.clone().unwrap_or_else(|| Err("it gave no result".into()))
    }

    fn begin(
        self: &Arc<Self>,
        app: &str,
        authority: &str,
    ) -> std::result::Result<watch::Receiver<Option<Result>>, String> {
        let mut underway = self.underway.lock().expect("no holder panics");
        match underway.get(app) {
            Some(lookup) if lookup.authority == authority => return Ok(lookup.result.clone()),
            Some(lookup) => {
                return Err(format!(
                    "the app's former origin `{}` is still being looked up",
                    lookup.authority
                ));
            }
            None if underway.len() >= LOOKUPS_MAX => {
                return Err(format!("{LOOKUPS_MAX} names of other apps are being looked up"));
            }
            None => {}
        }
        let (sender, result) = watch::channel(None);
        // Under the lock until it is inserted, so two fetches of one app never start two lookups.
        let lookup = Lookup { authority: authority.to_owned(), result: result.clone() };
        underway.insert(app.to_owned(), lookup);
        let (names, app, authority) = (Arc::clone(self), app.to_owned(), authority.to_owned());
        // Removed before the result is sent: a fetch that begins from now on starts a new lookup,
        // so nothing is cached longer than it takes.
        tokio::task::spawn_blocking(move || {
            let said = (names.resolve)(&authority).map_err(|error| error.to_string());
            names.underway.lock().expect("no holder panics").remove(&app);
            // Fails if no fetch waits any more.
            let _ = sender.send(Some(said));
        });
        Ok(result)
    }
}
