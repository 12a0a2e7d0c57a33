//! Secrets that could leak to a client's machine: the memory of a real agent, its files and its log are searched for the domain's
//! keys and for the session's own, which only edges have (docs/protocol.md, "Secrets").

use crate::support::{self, counting::Client};
use marram_cluster::{AgentSide, TempDir, TestCluster};
use marram_wire::{
    id::SessionId,
    seal::{DomainSecret, SessionKeys},
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

/// Memory is read in pieces of this many bytes.
const PIECE: usize = 1 << 20;
/// The longest key, in bytes.
const KEY_BYTES_MAX: usize = 128;

/// A name, and the bytes to search.
type Needle = (&'static str, Vec<u8>);

fn found_in(text: &[u8], needles: &[Needle]) -> Vec<&'static str> {
    let has = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    needles.iter().filter(|(_, needle)| has(needle)).map(|(name, _)| *name).collect()
}

/// The names of the needles that are in a process's memory; it stops when all are found. If `parts` is not empty, only these
/// mappings are read.
fn found_in_memory(process: u32, parts: &[&str], needles: &[Needle]) -> Vec<&'static str> {
    let memory = File::open(format!("/proc/{process}/mem")).unwrap();
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let (mut found, mut read) = (Vec::new(), 0);
    let readable = |line: &&str| line.split(' ').nth(1).is_some_and(|it| it.starts_with('r'));
    for line in maps.lines().filter(readable) {
        if !parts.is_empty() && !parts.iter().any(|part| line.ends_with(part)) {
            continue;
        }
        let (from, to) = line.split(' ').next().and_then(|range| range.split_once('-')).unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        let (mut at, to) = (address(from), address(to));
        while at < to {
            let size = usize::try_from(to - at).unwrap().min(PIECE);
            let mut piece = vec![0; size];
            // Some mappings cannot be read, such as the kernel's own pages.
            let Ok(size) = memory.read_at(&mut piece, at) else { break };
            read += size;
            found.extend(found_in(&piece[..size], needles));
            if found.len() >= needles.len() {
                return found;
            }
            // A key may lie across the border between two pieces.
            let last = at + size as u64 >= to || size <= KEY_BYTES_MAX;
            at += if last { size } else { size - KEY_BYTES_MAX } as u64;
            if size == 0 {
                break;
            }
        }
    }
    assert!(read > 64 << 10, "only {read} bytes of the process could be read");
    found.sort_unstable();
    found.dedup();
    found
}

/// The child processes of an edge: its shards.
fn children(process: u32) -> Vec<u32> {
    let mut children = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let list = fs::read_to_string(thread.unwrap().path().join("children")).unwrap();
        children.extend(list.split_whitespace().map(|id| id.parse::<u32>().unwrap()));
    }
    children
}

/// The secrets of edges: the domain's secret, as text and as a key, the key that edges derive from it for each other, and the
/// session's keys as `marram_wire::seal` derives them.
fn secret(material: &str, session: SessionId) -> Vec<Needle> {
    let domain = blake3::derive_key("marram 2026 domain secret", material.as_bytes());
    let key = |purpose: u8| {
        let mut hasher = blake3::Hasher::new_keyed(&domain);
        hasher.update(&[purpose]).update(&session.0);
        *hasher.finalize().as_bytes()
    };
    let keys = SessionKeys::derive(&DomainSecret::from_material(material.as_bytes()), session);
    assert_eq!(key(0)[..16], keys.resume(), "keys are derived in another way than this test believes");
    let edges = blake3::derive_key("marram 2026 edge reads", &domain);
    vec![
        ("the secret's text", material.as_bytes().to_vec()),
        ("the domain's key", domain.to_vec()),
        ("the key between edges", edges.to_vec()),
        ("the key of the digests", key(1).to_vec()),
        ("the key of the log", key(2).to_vec()),
        ("the key of the checkpoints", key(3).to_vec()),
        ("the key of the payloads", key(4)[..16].to_vec()),
        ("the key of redacted records", keys.redaction().to_vec()),
    ]
}

#[test]
fn a_real_agent_has_no_key_but_its_session_s_own() {
    let layout = support::layout("secrets", |layout| layout.edges = 2);
    let app = |place: &TempDir| {
        Ok(vec![support::cells().manifest(place, "count", "counter", "[keep]\nlinger = \"2m\"\n")?])
    };
    let mut cluster = TestCluster::new(layout, app).unwrap();
    cluster.start_edges(support::UNSUSPECTING).unwrap();
    let mut client = Client::start(&mut cluster);
    (0..2).for_each(|_| client.count());
    // By then, the data that an agent keeps has been sent to another edge and come back.
    let owner = cluster.owner().unwrap();
    cluster.edges[owner].kill();
    client.count();
    let owned = cluster.logs.last(|event| event.name() == "owned").unwrap();
    let session: u128 = u128::from_str_radix(owned.text("session"), 16).unwrap();
    let session = SessionId(session.to_be_bytes());
    let material = fs::read_to_string(cluster.directory.path().join("secret")).unwrap();
    let secret = secret(material.trim(), session);
    let keys = SessionKeys::derive(&DomainSecret::from_material(material.trim().as_bytes()), session);
    let own = vec![("the key of resumption", keys.resume().to_vec())];

    let agent = cluster.agents().next().unwrap().id();
    assert_eq!(found_in_memory(agent, &[], &own), [own[0].0], "the search does not find what must be there");
    assert_eq!(found_in_memory(agent, &[], &secret), [""; 0]);
    let edge = cluster.edges[1 - owner].process().unwrap().id();
    let domain = &secret[1..2];
    // The shard also maps gigabytes for cells, so only the heap and the stack are searched.
    let has = |shard: &u32| !found_in_memory(*shard, &["[heap]", "[stack]"], domain).is_empty();
    let shard = children(edge).into_iter().find(has);
    assert!(shard.is_some(), "the search does not find what a shard must have");

    let needles: Vec<Needle> = secret.into_iter().chain(own).collect();
    for entry in fs::read_dir(cluster.directory.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("agent-") && path.is_file() {
            assert_eq!(found_in(&fs::read(&path).unwrap(), &needles), [""; 0], "{name}");
        }
    }
    for open in fs::read_dir(format!("/proc/{agent}/fd")).unwrap() {
        let path = open.unwrap().path();
        if fs::metadata(&path).is_ok_and(|file| file.is_file()) {
            assert_eq!(found_in(&fs::read(&path).unwrap(), &needles), [""; 0], "{}", path.display());
        }
    }
    let said = cluster.logs.tail_of(usize::MAX, |event| *event.who == *AgentSide::Client.agent());
    assert_eq!(found_in(said.as_bytes(), &needles), [""; 0]);
}
