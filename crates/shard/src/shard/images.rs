//! Images that sessions name and this edge does not have: requests them from peers, and tells the session what happens.

use super::state::{apps::Apps, missing::Verdict};
use crate::api::{Configure, FromShard, Now, ShardOutput, Want};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::id::ImageHash;

/// Why a session cannot run here whose image this edge does not have. It would be requested from peers, if there are some.
pub(super) fn missing(config: &Configure, app: &str, image: ImageHash) -> String {
    let what = lacks(app, image);
    if config.peers {
        alloc::format!(
            "{what}: it requests it from its peers when a session needs it, and can take the session after that"
        )
    } else {
        alloc::format!("{what}: `marram deploy` that version here too")
    }
}

fn lacks(app: &str, image: ImageHash) -> String {
    alloc::format!("the session runs image {image} of `{app}`, which this edge does not have")
}

/// Fetches an image that a session names, if it is time, and returns the answer to the session. The session tries again
/// by itself.
pub(super) fn want(
    (apps, config): (&mut Apps, &Configure),
    now: Now,
    app: &str,
    image: ImageHash,
    out: &mut Vec<ShardOutput>,
) -> String {
    if !config.peers {
        return missing(config, app, image);
    }
    let what = lacks(app, image);
    let (ask, verdict) = apps.miss(now.mono_ns, image);
    if ask {
        out.push(ShardOutput::Control(FromShard::Want(Want { image, app: app.to_string() })));
    }
    match verdict {
        Verdict::Asked => alloc::format!("{what} yet: it is requesting it from its peers"),
        Verdict::Failed(why) => alloc::format!("{what}: {why}; deploy that version here, or at a peer"),
        Verdict::Full => {
            alloc::format!("{what}, and it is requesting too many others from its peers: try again")
        }
    }
}
