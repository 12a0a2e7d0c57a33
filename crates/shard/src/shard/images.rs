//! Versions of apps that sessions name and this edge does not have: requests them from peers, and tells the session what happens.

use super::state::{apps::Apps, missing::Verdict};
use crate::api::{AppVersion, Configure, FromShard, Now, ShardOutput};
use alloc::{string::String, vec::Vec};

/// Why a session cannot run here whose version this edge does not have. It would be requested from peers, if there are some.
pub(super) fn missing(config: &Configure, version: &AppVersion) -> String {
    let what = lacks(config, version);
    if config.peers {
        alloc::format!(
            "{what}: it requests it from its peers when a session needs it, and can take the session after that"
        )
    } else {
        alloc::format!("{what}: `marram deploy` that version there too")
    }
}

/// With the edge's name: the other side logs it.
fn lacks(config: &Configure, version: &AppVersion) -> String {
    alloc::format!("the session runs {version}, which the edge `{}` does not have", config.edge)
}

/// Fetches a version that a session names, if it is time, and returns the answer to the session. The session tries again
/// by itself.
pub(super) fn want(
    (apps, config): (&mut Apps, &Configure),
    now: Now,
    version: AppVersion,
    out: &mut Vec<ShardOutput>,
) -> String {
    if !config.peers {
        return missing(config, &version);
    }
    let what = lacks(config, &version);
    let (ask, verdict) = apps.miss(now.mono_ns, &version);
    if ask {
        out.push(ShardOutput::Control(FromShard::Want(version)));
    }
    match verdict {
        Verdict::Asked => alloc::format!("{what} yet: it is requesting it from its peers"),
        Verdict::Failed(why) => {
            alloc::format!("{what}: {why}; deploy that version there, or at a peer of it")
        }
        Verdict::Full => {
            alloc::format!("{what}, and it is requesting too many others from its peers: try again")
        }
    }
}
