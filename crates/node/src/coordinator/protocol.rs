//! The protocol between an edge and a store: the part of etcd's JSON gateway (version 3) that the coordinator needs. The
//! embedded store answers as etcd does, so that an edge does not have to know which of the two it talks to.
//!
//! | path | request |
//! |---|---|
//! | `/v3/kv/range` | one key, or all with a prefix |
//! | `/v3/kv/txn` | one write, under one condition or none; or a decision |
//! | `/v3/lease/grant`, `/v3/lease/keepalive`, `/v3/lease/revoke` | leases |
//! | `/v3/watch` | changes under a prefix, as lines until the connection ends |
//!
//! Keys and values are base64, numbers are strings.
//!
//! ```text
//! POST /v3/kv/txn
//! {"compare": [{"key": K, "target": "MOD", "result": "EQUAL", "mod_revision": "7"}],
//!  "success": [{"request_put": {"key": K, "value": V, "lease": "9"}}],
//!  "failure": [{"request_range": {"key": K}}]}
//! ```
//!
//! That is a write: compare the revision of one key (0: it must not exist), then put or delete it; otherwise tell what is there.
//! A decision also compares value and version of the store's own record, and writes that one again, so that its version counts
//! decisions:
//!
//! ```text
//! {"compare": [{"key": K, "target": "MOD", ...}, {"key": STORE, "target": "VALUE", "result": "EQUAL", "value": S},
//!              {"key": STORE, "target": "VERSION", "result": "GREATER", "version": "41"}],
//!  "success": [PUT OR DELETE K, {"request_put": {"key": STORE, "value": S}}, {"request_range": {"key": STORE}}],
//!  "failure": [{"request_range": {"key": K}}, {"request_range": {"key": STORE}}]}
//! ```
//!
//! There is no other transaction. Readers ignore fields that they do not know, as newer versions of etcd may add some; a field
//! that is missing where it is needed makes the whole answer unreadable.

use bytes::Bytes;
use data_encoding::BASE64;
use marram_shard::coordinator::{
    Lease, StoreChange, StoreEntry, StoreFailure, StoreRefusal, StoreReply, StoreRequest,
    contents::{STORE, range_end},
};
use serde_json::{Value, json};

/// One request: path and body.
pub type Call = (&'static str, Value);

/// etcd's error codes, which are gRPC's.
const NOT_FOUND: u64 = 5;
const INVALID: u64 = 3;
const EXHAUSTED: u64 = 8;
const NO_LEASE: &str = "requested lease not found";
/// The error text if the peer is no store.
const NO_STORE: &str = "the server there is neither etcd 3.4 or newer nor an edge with `coordinator.serve`: correct \
    `coordinator.urls`";

/// RFC 4648, section 4, with padding. Here, because the two functions are smaller than a
/// dependency.
pub(super) fn base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// `None` for anything but canonical length and digits; bits behind the last byte are not checked.
pub(super) fn unbase64(text: &str) -> Option<Bytes> {
    BASE64.decode(text.as_bytes()).ok().map(Bytes::from)
}

/// A number, which etcd writes as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// A number that etcd leaves out where it is 0.
/// Protocol Buffers leave out fields with the default value, and the JSON gateway does so too.
fn number_or_0(value: &Value) -> Option<u64> {
    if value.is_null() { Some(0) } else { number(value) }
}

fn key_of(value: &Value) -> Option<String> {
    String::from_utf8(unbase64(value.as_str()?)?.into()).ok()
}

fn value_of(value: &Value) -> Option<Bytes> {
    if value.is_null() { Some(Bytes::new()) } else { unbase64(value.as_str()?) }
}

// What an edge sends, and how it reads the answer.

/// The call for a request.
pub fn call(request: &StoreRequest) -> Call {
    let text = |number: u64| number.to_string();
    match request {
        StoreRequest::Get { key } => ("/v3/kv/range", json!({ "key": base64(key.as_bytes()) })),
        StoreRequest::Range { prefix } => ("/v3/kv/range", range(prefix)),
        StoreRequest::Write { key, expect, value, lease } => {
            let compare: Vec<Value> = expect.iter().map(|expect| compare_revision(key, *expect)).collect();
            let success = [write_op(key, value.as_ref(), *lease)];
            ("/v3/kv/txn", json!({ "compare": compare, "success": success, "failure": [look_op(key)] }))
        }
        StoreRequest::Decide { key, expect, value, store, least } => {
            let record = base64(STORE.as_bytes());
            let is_store =
                json!({ "key": record, "target": "VALUE", "result": "EQUAL", "value": base64(store) });
            let above = text(least.saturating_sub(1));
            let has_all =
                json!({ "key": record, "target": "VERSION", "result": "GREATER", "version": above });
            let compare = [compare_revision(key, *expect), is_store, has_all];
            let success =
                [write_op(key, value.as_ref(), None), write_op(STORE, Some(store), None), look_op(STORE)];
            let failure = [look_op(key), look_op(STORE)];
            ("/v3/kv/txn", json!({ "compare": compare, "success": success, "failure": failure }))
        }
        StoreRequest::Grant { ttl_s } => ("/v3/lease/grant", json!({ "TTL": ttl_s.to_string() })),
        StoreRequest::KeepAlive { lease } => ("/v3/lease/keepalive", json!({ "ID": text(lease.0) })),
        StoreRequest::Revoke { lease } => ("/v3/lease/revoke", json!({ "ID": text(lease.0) })),
    }
}

fn compare_revision(key: &str, expect: u64) -> Value {
    let (key, revision) = (base64(key.as_bytes()), expect.to_string());
    json!({ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision })
}

fn write_op(key: &str, value: Option<&Bytes>, lease: Option<Lease>) -> Value {
    let key = base64(key.as_bytes());
    let lease = lease.map_or(0, |lease| lease.0).to_string();
    match value {
        Some(value) => json!({ "request_put": { "key": key, "value": base64(value), "lease": lease } }),
        None => json!({ "request_delete_range": { "key": key } }),
    }
}

fn look_op(key: &str) -> Value {
    json!({ "request_range": { "key": base64(key.as_bytes()) } })
}

fn range(prefix: &str) -> Value {
    json!({ "key": base64(prefix.as_bytes()), "range_end": base64(&range_end(prefix)) })
}

/// The call that begins a watch.
///
/// `since` is the last revision that the caller knows: the watch begins with the one after it.
pub fn watch_call(prefix: &str, since: u64) -> Call {
    let mut create = range(prefix);
    create["start_revision"] = json!((since + 1).to_string());
    ("/v3/watch", json!({ "create_request": create }))
}

/// Reads an answer with status 200.
///
/// `None` if it is not the answer to this request, so the peer is no store of a known version.
pub fn reply(request: &StoreRequest, body: &Value) -> Option<StoreReply> {
    let revision = || number(&body["header"]["revision"]);
    Some(match request {
        StoreRequest::Get { .. } | StoreRequest::Range { .. } => {
            StoreReply::Entries { revision: revision()?, entries: entries(body)? }
        }
        StoreRequest::Write { .. } => {
            if has_succeeded(body) {
                StoreReply::Written { revision: revision()? }
            } else {
                StoreReply::Conflict { entry: found(body, 0)? }
            }
        }
        StoreRequest::Decide { .. } => {
            if has_succeeded(body) {
                StoreReply::Decided { revision: revision()?, decisions: found(body, 2)??.version }
            } else {
                StoreReply::Undecided { entry: found(body, 0)?, store: found(body, 1)? }
            }
        }
        StoreRequest::Grant { .. } => {
            let ttl_s = u32::try_from(number(&body["TTL"])?).ok()?;
            StoreReply::Granted { lease: Lease(number(&body["ID"])?), ttl_s }
        }
        StoreRequest::KeepAlive { .. } => {
            number(&body["result"]["ID"])?;
            if number_or_0(&body["result"]["TTL"])? > 0 { StoreReply::Kept } else { StoreReply::NoLease }
        }
        StoreRequest::Revoke { .. } => {
            revision()?;
            StoreReply::Kept
        }
    })
}

fn has_succeeded(transaction: &Value) -> bool {
    transaction["succeeded"].as_bool().unwrap_or(false)
}

/// What a transaction found where it looked. The inner `None`: there is no such key.
fn found(transaction: &Value, index: usize) -> Option<Option<StoreEntry>> {
    let found = &transaction["responses"][index]["response_range"];
    found.as_object()?;
    Some(entries(found)?.pop())
}

fn entries(body: &Value) -> Option<Vec<StoreEntry>> {
    let entry = |kv: &Value| {
        let (revision, version) = (number(&kv["mod_revision"])?, number(&kv["version"])?);
        Some(StoreEntry { key: key_of(&kv["key"])?, value: value_of(&kv["value"])?, revision, version })
    };
    body["kvs"].as_array().map_or(Some(Vec::new()), |kvs| kvs.iter().map(entry).collect())
}

/// Reads an answer with another status.
///
/// An absent lease is an ordinary answer. A refusal is for the operator, and its text says what to
/// correct; `Unreachable` is retried.
pub fn failure(status: u16, body: &[u8]) -> Result<StoreReply, StoreFailure> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = body["message"].as_str().or(body["error"].as_str()).unwrap_or_default();
    let code = number(&body["code"]);
    match (status, code) {
        (_, Some(NOT_FOUND)) if said.contains(NO_LEASE) => Ok(StoreReply::NoLease),
        // Only an admin API adds this field.
        (401 | 403, _) if body["fix"].is_string() => Err(StoreFailure::Refused(NO_STORE.into())),
        (401 | 403, _) => Err(StoreFailure::Refused(format!(
            "it refuses this edge's credentials ({said}): correct `coordinator.token_file`, or `user` and \
             `password_file`"
        ))),
        (404, None) => Err(StoreFailure::Refused(NO_STORE.into())),
        (429 | 500..600, _) => {
            Err(StoreFailure::Unreachable(format!("it cannot decide now ({status}: {said})")))
        }
        _ if said.contains("user name is empty") || said.contains("auth") => Err(StoreFailure::Refused(
            format!("it requires a user ({said}): write `coordinator.user` and `password_file`"),
        )),
        _ => Err(StoreFailure::Refused(format!("it refused the request ({status}: {said})"))),
    }
}

/// One line of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// Nothing new.
    Nothing,
    /// These changes.
    Changes(Vec<StoreChange>),
    /// The watch has ended, and why.
    Over(String),
}

/// Reads one line of a watch.
///
/// After `Over` the watch is of no use: the caller lists everything and begins another one.
pub fn seen(line: &[u8]) -> Seen {
    let Ok(line) = serde_json::from_slice::<Value>(line) else {
        return Seen::Over("a line of the watch is not JSON".into());
    };
    let result = &line["result"];
    if result["canceled"].as_bool().unwrap_or(false) {
        return match number(&result["compact_revision"]) {
            Some(revision) => {
                Seen::Over(format!("changes before revision {revision} are no longer available"))
            }
            None => Seen::Over(result["cancel_reason"].as_str().unwrap_or("it was cancelled").into()),
        };
    }
    if !line["error"].is_null() {
        return Seen::Over(line["error"].to_string());
    }
    let change = |event: &Value| {
        let kv = &event["kv"];
        let gone = event["type"].as_str() == Some("DELETE");
        let value = if gone { None } else { Some(value_of(&kv["value"])?) };
        let (revision, version) = (number(&kv["mod_revision"])?, number_or_0(&kv["version"])?);
        Some(StoreChange { key: key_of(&kv["key"])?, value, revision, version })
    };
    match result["events"].as_array() {
        None => Seen::Nothing,
        Some(events) => match events.iter().map(change).collect() {
            Some(changes) => Seen::Changes(changes),
            None => Seen::Over("an event of the watch cannot be read".into()),
        },
    }
}

// What the embedded store reads, and how it answers.

/// A request to the store, or the beginning of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Asked {
    /// A request.
    Request(StoreRequest),
    /// A watch: prefix, and the revision after which it begins.
    Watch(String, u64),
}

/// Reads a request. The store supports the calls in this file and no others of etcd's.
///
/// `None` for everything else, also for a transaction in a form that etcd would accept and an edge
/// never sends.
pub fn asked(path: &str, body: &Value) -> Option<Asked> {
    let lease = |value: &Value| number(value).map(Lease);
    Some(Asked::Request(match path {
        "/v3/kv/range" => match prefix(body) {
            Some(prefix) => StoreRequest::Range { prefix: prefix? },
            None => StoreRequest::Get { key: key_of(&body["key"])? },
        },
        "/v3/kv/txn" => return write(body).map(Asked::Request),
        "/v3/lease/grant" => StoreRequest::Grant { ttl_s: u32::try_from(number(&body["TTL"])?).ok()? },
        "/v3/lease/keepalive" => StoreRequest::KeepAlive { lease: lease(&body["ID"])? },
        "/v3/lease/revoke" => StoreRequest::Revoke { lease: lease(&body["ID"])? },
        "/v3/watch" => {
            let create = &body["create_request"];
            let since = number(&create["start_revision"])?.checked_sub(1)?;
            return Some(Asked::Watch(prefix(create)??, since));
        }
        _ => return None,
    }))
}

/// The prefix that a range is for. The outer `None`: it is a single key. The inner `None`: the range is not a prefix.
fn prefix(range: &Value) -> Option<Option<String>> {
    let end = unbase64(range["range_end"].as_str()?);
    Some(key_of(&range["key"]).filter(|prefix| end.is_some_and(|end| end == range_end(prefix))))
}

fn write(body: &Value) -> Option<StoreRequest> {
    let success = body["success"].as_array()?.as_slice();
    let compares = body["compare"].as_array().map_or(&[][..], Vec::as_slice);
    if let ([write, again, look], [revision, record, version]) = (success, compares) {
        return decision([write, again, look], [revision, record, version]);
    }
    let ([write], [] | [_]) = (success, compares) else { return None };
    let (key, value, lease) = written(write)?;
    let expect = match compares.first() {
        Some(compare) => Some(revision_of(compare, &key)?),
        None => None,
    };
    Some(StoreRequest::Write { key, expect, value, lease })
}

/// Key, value and lease of a put; no value: of a delete.
fn written(write: &Value) -> Option<(String, Option<Bytes>, Option<Lease>)> {
    match (&write["request_put"], &write["request_delete_range"]) {
        (Value::Object(put), Value::Null) => {
            let lease = put.get("lease").map_or(Some(0), number_or_0)?;
            let value = value_of(put.get("value").unwrap_or(&Value::Null))?;
            Some((key_of(put.get("key")?)?, Some(value), (lease > 0).then_some(Lease(lease))))
        }
        (Value::Null, Value::Object(delete)) if !delete.contains_key("range_end") => {
            Some((key_of(delete.get("key")?)?, None, None))
        }
        _ => None,
    }
}

/// The revision that this key must have.
fn revision_of(compare: &Value, key: &str) -> Option<u64> {
    let is_it = compare["target"].as_str() == Some("MOD")
        && compare["result"].as_str() == Some("EQUAL")
        && key_of(&compare["key"])? == key;
    number_or_0(&compare["mod_revision"]).filter(|_| is_it)
}

fn decision(
    [write, again, look]: [&Value; 3],
    [revision, record, version]: [&Value; 3],
) -> Option<StoreRequest> {
    let (key, value, lease) = written(write)?;
    let expect = revision_of(revision, &key)?;
    let store = value_of(&record["value"])?;
    let least = number_or_0(&version["version"])?.checked_add(1)?;
    let compares = |compare: &Value, target, result| {
        compare["target"].as_str() == Some(target)
            && compare["result"].as_str() == Some(result)
            && key_of(&compare["key"]).as_deref() == Some(STORE)
    };
    let is_record = compares(record, "VALUE", "EQUAL")
        && compares(version, "VERSION", "GREATER")
        && written(again)? == (STORE.to_owned(), Some(store.clone()), None)
        && key_of(&look["request_range"]["key"])? == STORE;
    (is_record && lease.is_none() && key != STORE).then_some(StoreRequest::Decide {
        key,
        expect,
        value,
        store,
        least,
    })
}

/// The store's answer: status and body.
pub fn answer(
    revision: u64,
    request: &StoreRequest,
    result: Result<StoreReply, StoreRefusal>,
) -> (u16, Value) {
    let header = json!({ "revision": revision.to_string() });
    let reply = match result {
        Ok(reply) => reply,
        Err(refused) => {
            let full = matches!(refused, StoreRefusal::Full | StoreRefusal::Leases);
            return error(400, if full { EXHAUSTED } else { INVALID }, &refused.to_string());
        }
    };
    let body = match (reply, request) {
        (StoreReply::NoLease, StoreRequest::KeepAlive { lease }) => {
            json!({ "result": { "header": header, "ID": lease.0.to_string() } })
        }
        (StoreReply::NoLease, _) => return error(404, NOT_FOUND, NO_LEASE),
        (StoreReply::Kept, StoreRequest::KeepAlive { lease }) => {
            json!({ "result": { "header": header, "ID": lease.0.to_string(), "TTL": "1" } })
        }
        (StoreReply::Kept, _) => json!({ "header": header }),
        (StoreReply::Granted { lease, ttl_s }, _) => {
            json!({ "header": header, "ID": lease.0.to_string(), "TTL": ttl_s.to_string() })
        }
        (StoreReply::Written { .. }, _) => json!({ "header": header, "succeeded": true }),
        (StoreReply::Conflict { entry }, _) => {
            json!({ "header": header, "responses": [found_op(entry.as_ref())] })
        }
        (StoreReply::Decided { decisions, .. }, StoreRequest::Decide { store, .. }) => {
            let record = StoreEntry { key: STORE.into(), value: store.clone(), revision, version: decisions };
            let responses = [json!({}), json!({}), found_op(Some(&record))];
            json!({ "header": header, "succeeded": true, "responses": responses })
        }
        (StoreReply::Decided { .. }, _) => json!({ "header": header, "succeeded": true }),
        (StoreReply::Undecided { store, entry }, _) => {
            json!({ "header": header, "responses": [found_op(entry.as_ref()), found_op(store.as_ref())] })
        }
        (StoreReply::Entries { entries, .. }, _) => {
            json!({ "header": header, "kvs": entries.iter().map(kv).collect::<Vec<_>>() })
        }
    };
    (200, body)
}

/// An error, as status and body.
pub fn error(status: u16, code: u64, message: &str) -> (u16, Value) {
    (status, json!({ "error": message, "message": message, "code": code }))
}

fn found_op(entry: Option<&StoreEntry>) -> Value {
    json!({ "response_range": { "kvs": entry.into_iter().map(kv).collect::<Vec<_>>() } })
}

fn kv(entry: &StoreEntry) -> Value {
    json!({
        "key": base64(entry.key.as_bytes()),
        "value": base64(&entry.value),
        "mod_revision": entry.revision.to_string(),
        "version": entry.version.to_string(),
    })
}

/// Changes, as a line of a watch.
///
/// Without changes it is the line that says that the watch has begun.
pub fn line(changes: &[StoreChange]) -> Bytes {
    let event = |change: &StoreChange| {
        let (key, revision) = (base64(change.key.as_bytes()), change.revision.to_string());
        match &change.value {
            Some(value) => {
                let (value, version) = (base64(value), change.version.to_string());
                json!({ "kv": { "key": key, "value": value, "mod_revision": revision, "version": version } })
            }
            None => json!({ "type": "DELETE", "kv": { "key": key, "mod_revision": revision } }),
        }
    };
    let events: Vec<Value> = changes.iter().map(event).collect();
    let created = events.is_empty();
    let result = if created { json!({ "created": true }) } else { json!({ "events": events }) };
    format!("{}\n", json!({ "result": result })).into()
}

/// The last line of a watch if its first revision is no longer kept.
pub fn forgotten(oldest: u64) -> Bytes {
    let result = json!({ "canceled": true, "compact_revision": oldest.to_string() });
    format!("{}\n", json!({ "result": result })).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_everywhere() {
        for (plain, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("\u{ff}\u{3bf}~", "w7/Ov34="),
        ] {
            assert_eq!(base64(plain.as_bytes()), text);
            assert_eq!(unbase64(text).as_deref(), Some(plain.as_bytes()));
        }
        for text in ["Z", "Zg=", "Z===", "Zm9*", "Zm9v="] {
            assert_eq!(unbase64(text), None, "{text}");
        }
    }

    fn requests() -> Vec<StoreRequest> {
        let (key, value) = (String::from("/marram/v1/k"), Some(Bytes::from_static(b"\0\xffv")));
        let write = |expect, value, lease| StoreRequest::Write { key: key.clone(), expect, value, lease };
        vec![
            StoreRequest::Get { key: key.clone() },
            StoreRequest::Range { prefix: "/marram/v1/".into() },
            write(None, value.clone(), None),
            write(Some(0), value.clone(), Some(Lease(u64::MAX >> 1))),
            write(Some(7), None, None),
            write(Some(7), Some(Bytes::new()), None),
            StoreRequest::Grant { ttl_s: 10 },
            StoreRequest::KeepAlive { lease: Lease(9) },
            StoreRequest::Revoke { lease: Lease(9) },
            StoreRequest::Decide {
                key: key.clone(),
                expect: 7,
                value: value.clone(),
                store: STORE.into(),
                least: 1,
            },
            StoreRequest::Decide { key, expect: 7, value: None, store: STORE.into(), least: 9 },
        ]
    }

    #[test]
    fn the_store_reads_what_an_edge_asks() {
        for request in requests() {
            let (path, body) = call(&request);
            assert_eq!(asked(path, &body), Some(Asked::Request(request)));
        }
        let (path, body) = watch_call("/a/", 41);
        assert_eq!(asked(path, &body), Some(Asked::Watch("/a/".into(), 41)));
    }

    #[test]
    fn an_edge_reads_what_the_store_answers() {
        let (key, value) = ("/marram/v1/k".into(), Bytes::from_static(b"\0v"));
        let entry = StoreEntry { key, value, revision: 12, version: 3 };
        let other = Some(entry.clone());
        let requests = requests();
        let entries = |entries| StoreReply::Entries { revision: 12, entries };
        for (request, replies) in [
            (&requests[0], vec![entries(vec![]), entries(vec![entry.clone()])]),
            (&requests[1], vec![entries(vec![entry.clone(), entry.clone()])]),
            (
                &requests[4],
                vec![
                    StoreReply::Written { revision: 12 },
                    StoreReply::Conflict { entry: None },
                    StoreReply::Conflict { entry: Some(entry) },
                ],
            ),
            (&requests[6], vec![StoreReply::Granted { lease: Lease(3), ttl_s: 10 }]),
            (&requests[7], vec![StoreReply::Kept, StoreReply::NoLease]),
            (&requests[8], vec![StoreReply::Kept]),
            (
                &requests[9],
                vec![
                    StoreReply::Decided { revision: 12, decisions: 5 },
                    StoreReply::Undecided { store: None, entry: other.clone() },
                    StoreReply::Undecided { store: other, entry: None },
                ],
            ),
        ] {
            for told in replies {
                let (status, body) = answer(12, request, Ok(told.clone()));
                assert_eq!((status, reply(request, &body)), (200, Some(told)));
            }
        }
        let (status, body) = answer(12, &requests[2], Ok(StoreReply::NoLease));
        assert_eq!(failure(status, body.to_string().as_bytes()), Ok(StoreReply::NoLease));
        let (status, body) = answer(12, &requests[2], Err(StoreRefusal::Full));
        let why = failure(status, body.to_string().as_bytes()).unwrap_err().to_string();
        assert!(why.contains("use etcd"), "{why}");
    }

    #[test]
    fn a_watch_s_lines_are_read_as_they_are_written() {
        let change = |value: Option<&'static [u8]>| StoreChange {
            key: "/k".into(),
            value: value.map(Bytes::from_static),
            revision: 4,
            version: value.map_or(0, |_| 2),
        };
        let changes = vec![change(Some(b"v")), change(None), change(Some(b""))];
        assert_eq!(seen(&line(&changes)), Seen::Changes(changes));
        assert_eq!(seen(&line(&[])), Seen::Nothing);
        assert!(matches!(seen(&forgotten(9)), Seen::Over(why) if why.contains('9')));
        for odd in ["", "x", r#"{"result":{"events":[{}]}}"#, r#"{"error":{"message":"no"}}"#] {
            assert!(matches!(seen(odd.as_bytes()), Seen::Over(_)), "{odd}");
        }
    }

    #[test]
    fn what_etcd_says_is_understood() {
        // As etcd 3.4.23 answers.
        let txn = json!({ "header": { "revision": "2" }, "responses": [{ "response_range": { "header": { "revision": "2" },
            "kvs": [{ "key": "L20vYQ==", "create_revision": "2", "mod_revision": "2", "version": "1", "value": "djE=",
            "lease": "2324035531311724039" }], "count": "1" } }] });
        let request = StoreRequest::Write { key: "/m/a".into(), expect: Some(0), value: None, lease: None };
        let entry =
            StoreEntry { key: "/m/a".into(), value: Bytes::from_static(b"v1"), revision: 2, version: 1 };
        assert_eq!(reply(&request, &txn), Some(StoreReply::Conflict { entry: Some(entry) }));
        let refused = |status, body: &str| failure(status, body.as_bytes());
        let unreachable = |result| matches!(result, Err(StoreFailure::Unreachable(_)));
        assert!(unreachable(refused(503, r#"{"error":"etcdserver: no leader","code":14}"#)));
        assert!(unreachable(refused(504, r#"{"error":"etcdserver: request timed out","code":14}"#)));
        let said = |result: Result<StoreReply, StoreFailure>| result.unwrap_err().to_string();
        assert!(said(refused(404, "Not Found\n")).contains("neither etcd"));
        assert!(
            said(refused(401, r#"{"error":"etcdserver: invalid auth token","code":16}"#))
                .contains("token_file")
        );
        assert!(
            said(refused(400, r#"{"error":"etcdserver: user name is empty","code":3}"#)).contains("user")
        );
    }

    #[test]
    fn the_store_takes_no_call_that_it_does_not_know() {
        let decide =
            StoreRequest::Decide { key: "k".into(), expect: 1, value: None, store: "s".into(), least: 4 };
        let (txn, good) = call(&decide);
        let changed = |change: &dyn Fn(&mut Value)| {
            let mut body = good.clone();
            change(&mut body);
            (txn, body)
        };
        let odd = [
            changed(&|body| body["compare"][1]["value"] = json!("eA==")),
            changed(&|body| body["compare"][1]["key"] = json!("eA==")),
            changed(&|body| body["compare"][2]["key"] = json!("eA==")),
            changed(&|body| body["compare"][2]["result"] = json!("LESS")),
            changed(&|body| body["compare"][0]["key"] = json!("eA==")),
            changed(&|body| body["success"][1]["request_put"]["key"] = json!("eA==")),
            changed(&|body| drop(body["success"].as_array_mut().map(Vec::pop))),
            ("/v3/kv/compaction", json!({ "revision": "3" })),
            ("/v3/kv/range", json!({ "key": "*" })),
            ("/v3/kv/range", json!({ "key": "YQ==", "range_end": "YWI=" })),
            ("/v3/kv/txn", json!({ "success": [] })),
            ("/v3/kv/txn", json!({ "success": [{ "request_put": { "key": "YQ==" } }, {}] })),
            (
                "/v3/kv/txn",
                json!({ "success": [{ "request_put": { "key": "YQ==" } }],
                "compare": [{ "key": "Yg==", "target": "MOD", "result": "EQUAL", "mod_revision": "1" }] }),
            ),
            (
                "/v3/kv/txn",
                json!({ "success": [{ "request_put": { "key": "YQ==" } }],
                "compare": [{ "key": "YQ==", "target": "VALUE", "result": "EQUAL" }] }),
            ),
            ("/v3/lease/grant", json!({ "TTL": "-1" })),
            ("/v3/watch", json!({ "create_request": { "key": "YQ==", "range_end": "Yg==" } })),
            ("/v3/watch", json!([])),
        ];
        for (path, body) in odd {
            assert_eq!(asked(path, &body), None, "{path} {body}");
        }
    }
}
