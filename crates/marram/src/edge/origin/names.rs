//! Looking up origins' names. The machine's resolver blocks its caller for as long as it likes, also when nobody waits any more: so
//! an app has one lookup under way, which all its fetches share, and one whose name hangs is in nobody else's way.

use std::{
    collections::BTreeMap,
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::{Arc, Mutex},
};
use tokio::sync::watch;

/// Names that are looked up at a time, of all apps of a shard: each has a thread. Further ones are not, for now.
pub const LOOKUPS_MAX: usize = 32;

/// How a name with its port becomes addresses: blocks.
pub(super) type Resolve = Arc<dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync>;

type Result = std::result::Result<Vec<SocketAddr>, String>;

/// One lookup, and what came of it once something did.
struct Lookup {
    authority: String,
    result: watch::Receiver<Option<Result>>,
}

/// The lookups of a shard.
pub(super) struct Names {
    resolve: Resolve,
    /// By app. A lookup leaves when its thread is free again.
    underway: Mutex<BTreeMap<String, Lookup>>,
}

/// The machine's own resolver.
pub(super) fn system() -> Resolve {
    Arc::new(|authority| authority.to_socket_addrs().map(Iterator::collect))
}

impl Names {
    pub(super) fn new(resolve: Resolve) -> Arc<Self> {
        Arc::new(Self { resolve, underway: Mutex::default() })
    }

    /// The addresses of an app's origin. Whoever waits no longer than this may leave: the lookup goes on without.
    pub(super) async fn look_up(self: &Arc<Self>, app: &str, authority: &str) -> Result {
        if let Ok(address) = authority.parse() {
            return Ok(vec![address]);
        }
        let mut result = self.begin(app, authority)?;
        let said = result.wait_for(Option::is_some).await.map_err(|_| "the lookup broke off".to_owned())?;
        said.clone().unwrap_or_else(|| Err("nothing came of it".into()))
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
        let lookup = Lookup { authority: authority.to_owned(), result: result.clone() };
        underway.insert(app.to_owned(), lookup);
        let (names, app, authority) = (Arc::clone(self), app.to_owned(), authority.to_owned());
        tokio::task::spawn_blocking(move || {
            let said = (names.resolve)(&authority).map_err(|error| error.to_string());
            names.underway.lock().expect("no holder panics").remove(&app);
            // Perhaps nobody waits any more.
            let _ = sender.send(Some(said));
        });
        Ok(result)
    }
}
