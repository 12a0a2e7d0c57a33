//! The protocol between an edge and its coordinator's store, embedded or etcd: a decoded reply means the same when the
//! embedded store gives it, a decoded request is encoded the same again, and so is a watch. The first byte selects the kind.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_node::coordinator::protocol::{self, Asked, Seen};
use marram_shard::coordinator::{Lease, StoreFailure, StoreReply, StoreRequest};
use serde_json::Value;

/// Paths of requests that the store supports, and one that it does not.
const PATHS: [&str; 7] = [
    "/v3/kv/range",
    "/v3/kv/txn",
    "/v3/lease/grant",
    "/v3/lease/keepalive",
    "/v3/lease/revoke",
    "/v3/watch",
    "/v3/kv/put",
];

fn requests() -> [StoreRequest; 6] {
    let key = || "edges/a".to_owned();
    [
        StoreRequest::Get { key: key() },
        StoreRequest::Range { prefix: key() },
        StoreRequest::Write { key: key(), expect: Some(3), value: None, lease: None },
        StoreRequest::Grant { ttl_s: 10 },
        StoreRequest::KeepAlive { lease: Lease(7) },
        StoreRequest::Revoke { lease: Lease(7) },
    ]
}

fn answers(request: &StoreRequest, said: &Value) {
    let Some(reply) = protocol::reply(request, said) else { return };
    let revision = match reply {
        StoreReply::Entries { revision, .. } | StoreReply::Written { revision } => revision,
        _ => 1,
    };
    let (status, again) = protocol::answer(revision, request, Ok(reply.clone()));
    assert_eq!((status, protocol::reply(request, &again)), (200, Some(reply)));
}

fn asks(path: &str, said: &Value) {
    let (path, body, asked) = match protocol::asked(path, said) {
        None => return,
        Some(Asked::Request(request)) => {
            let (path, body) = protocol::call(&request);
            (path, body, Asked::Request(request))
        }
        Some(Asked::Watch(prefix, since)) => {
            let (path, body) = protocol::watch_call(&prefix, since);
            (path, body, Asked::Watch(prefix, since))
        }
    };
    assert_eq!(protocol::asked(path, &body), Some(asked));
}

fn refuses(status: u16, said: &[u8]) {
    match protocol::failure(status, said) {
        Ok(reply) => assert_eq!(reply, StoreReply::NoLease, "an error is no success"),
        Err(StoreFailure::Unreachable(why) | StoreFailure::Refused(why)) => assert!(!why.is_empty()),
    }
}

fn watches(line: &[u8]) {
    if let Seen::Changes(changes) = protocol::seen(line)
        && !changes.is_empty()
    {
        let again = protocol::line(&changes);
        assert_eq!(protocol::seen(&again[..again.len() - 1]), Seen::Changes(changes));
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, said)) = data.split_first() else { return };
    let value: Value = serde_json::from_slice(said).unwrap_or_default();
    match usize::from(*kind) % 16 {
        kind @ 0..6 => answers(&requests()[kind], &value),
        kind @ 6..13 => asks(PATHS[kind - 6], &value),
        13 => watches(said),
        _ => {
            let Some((status, said)) = said.split_first_chunk() else { return };
            refuses(u16::from_le_bytes(*status), said);
        }
    }
});
