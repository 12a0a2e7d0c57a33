//! Images that sessions name and this edge does not have: requests them from peers, and tells the session what happens.

use super::state::{apps::Apps, missing::Verdict};
use crate::api::{Configure, FromShard, Now, ShardOutput, Want};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_wire::id::ImageHash;

/// Fetches an image that a session names, if it is time, and returns the answer to the session. The session tries again
/// by itself.
pub(super) fn want(
    (apps, config): (&mut Apps, &Configure),
    now: Now,
    app: &str,
    image: ImageHash,
    out: &mut Vec<ShardOutput>,
) -> String {
    let what = alloc::format!("the session runs image {image} of `{app}`, which this edge does not have");
    if !config.peers {
        return alloc::format!("{what}: `marram deploy` that version here too");
    }
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
