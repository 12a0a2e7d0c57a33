//! The oracle. It does not know the protocol, only what programs wrote and what they received.
//!
//! Every output of the cell is a record. It contains its index among all outputs of its session, the digest of the record
//! before it, how many bytes of each program were consumed, and their hash. So what two programs received shows whether they
//! talked to *one* machine, which lost nothing, repeated nothing and contradicted nothing, independent of what happened to the
//! edges in between.
//!
//! ```text
//! record k:  | index k | digest of record k-1 | client: bytes consumed, hash | server: bytes, hash | ... |
//! ```
//! The records of one session form a chain, and each program sees a part of it. From both parts
//! together follows the claim that the product makes (I14, and CESSNA's output message consistency,
//! section 3 of the paper):
//!
//! - one history: two records with one index, or a record that does not follow the one before it,
//!   are a contradiction (`judge_chain`);
//! - no loss and no repeat of inputs: the bytes that a record says were consumed are a prefix of
//!   what the program wrote, by their hash (`judge_alone`);
//! - nothing missing: a session that ended in order has every record from 0 on, and consumed
//!   everything (`judge_whole`, I26).
//!
//! Where outputs do not wait for a backup, a program may have received some of a history that was given up since (`world::ahead`). Then
//! the last history of each end is judged like this, as if it had received nothing else, and what the program got must be one
//! output of each number.
//!
//! Which server belongs to which client is not told to the oracle either: it infers that from the
//! records.

use crate::{
    plan::Service,
    program::{LiedTo, Program, RanAhead},
};
use marram_chain_algo::{Peer, Record, Stream};
use std::collections::{BTreeMap, BTreeSet};

/// What may have become of the halls of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HallsLost {
    /// Each is the only one of its key.
    No,
    /// One that is lost may begin again, as another one.
    BeginAgain,
    /// Its edge ran alone and died, and the store has lost that it did: a former backup may have gone on with an older copy. What each
    /// client has received is of one history; two clients may have seen two.
    PutBack,
}

/// The records that one program received. Records have a fixed size, so a stream of them can be cut
/// after the fact. `records` is in the order of arrival.
struct Received<'a> {
    program: &'a Program,
    index: usize,
    records: Vec<Record>,
}

/// Checks what all programs of a seed received.
///
/// `violations` gets at most a few texts per session: after the first contradiction the rest of a
/// chain says nothing. Programs whose own agent lied are left out, since a lying agent can give its
/// program anything.
pub(crate) fn judge(programs: &[Program], halls_lost: HallsLost, violations: &mut Vec<String>) {
    let (guests, programs): (Vec<_>, Vec<_>) =
        programs.iter().enumerate().partition(|(_, program)| program.service == Some(Service::Hall));
    hall::judge_each(&guests, halls_lost, violations);
    let received: Vec<_> = programs
        .into_iter()
        .filter(|(_, program)| program.lied_to != LiedTo::ByOwnAgent)
        .map(|(index, program)| {
            if let Some(RanAhead { given, .. }) = &program.ran_ahead {
                // No number twice, and none left out.
                let is_whole = !program.end_received || program.received.len() == given.len();
                if !given.starts_with(&program.received) || !is_whole {
                    violations.push(format!("program {index} did not receive each output once"));
                }
            }
            let received = program.ran_ahead.as_ref().map_or(&program.received, |ahead| &ahead.history);
            let (records, rest) = received.as_chunks::<{ Record::SIZE }>();
            let torn = !rest.is_empty();
            if torn {
                violations.push(format!("program {index} received {} B of a record", rest.len()));
            }
            Received { program, index, records: records.iter().map(Record::from_bytes).collect() }
        })
        .collect();
    for one in &received {
        one.judge_alone(violations);
    }
    let (received, alone): (Vec<_>, Vec<_>) =
        received.into_iter().partition(|one| one.program.lied_to == LiedTo::No);
    // The docs (protocol.md, "Failure model") promise an honest end nothing about how far its session gets if the other end
    // lies, for an end can always end its session. What the honest end has received until then is still of one history (I14).
    for one in alone {
        let records: Vec<&Record> = one.records.iter().collect();
        judge_chain(&format!("the honest end of program {}", one.index), &records, violations);
    }
    let pairs = pairs(&received);
    let of = |index: usize| received.iter().find(|one| one.index == index);
    for client in received.iter().filter(|one| one.program.peer == Peer::Client) {
        let server = pairs.get(&client.index).and_then(|server| of(*server));
        judge_session(client, server, violations);
    }
}

/// How many clients of halls got the number of a former one.
pub(crate) fn numbers_reused(programs: &[Program]) -> u64 {
    hall::numbers_reused(programs.iter().filter(|program| program.service == Some(Service::Hall)))
}

/// How many halls of a key began after another one of that key.
pub(crate) fn halls_in_turn(programs: &[Program]) -> u64 {
    hall::halls_in_turn(programs.iter().filter(|program| program.key.is_some()))
}

/// Matches each server to the client whose cell it talked to, by their indices: the strongest evidence first, each program once.
// By brute force: a seed has a handful of programs.
fn pairs(received: &[Received<'_>]) -> BTreeMap<usize, usize> {
    let mut evidence = Vec::new();
    for client in received.iter().filter(|one| one.program.service.is_some_and(Service::has_server)) {
        for server in received.iter().filter(|one| one.program.peer == Peer::Server) {
            evidence.push((client.evidence(server), client.index, server.index));
        }
    }
    evidence.sort_unstable_by(|a, b| b.cmp(a));
    let mut pairs = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for (strength, client, server) in evidence {
        if strength > 0 && !pairs.contains_key(&client) && taken.insert(server) {
            pairs.insert(client, server);
        }
    }
    pairs
}

/// Whether the program's output begins with a prefix of this length and hash.
pub(crate) fn is_valid_prefix(stream: &Stream, program: &Program) -> bool {
    let Ok(size) = usize::try_from(stream.bytes) else { return false };
    let Some(prefix) = program.written.get(..size) else { return false };
    let mut own = Stream::EMPTY;
    own.consume(prefix);
    own == *stream
}

impl Received<'_> {
    /// The state of a peer's stream as the last record knows it; `None` if the peer has said
    /// nothing, which proves nothing.
    fn last_stream(&self, peer: Peer) -> Option<&Stream> {
        self.records.last().map(|record| &record.streams[peer as usize]).filter(|stream| stream.bytes > 0)
    }

    /// How strongly the records suggest that both received from one cell: the bytes of either program that the other's records
    /// name, and, with more weight, records that follow one another. Short streams may match by chance.
    fn evidence(&self, server: &Self) -> u64 {
        let named = |by: &Self, of: &Self| match by.last_stream(of.program.peer) {
            Some(stream) if is_valid_prefix(stream, of.program) => stream.bytes,
            _ => 0,
        };
        let follows = |one: &Self, other: &Self| {
            let digests: BTreeSet<u64> = one.records.iter().map(Record::digest).collect();
            other.records.iter().any(|next| digests.contains(&next.previous))
        };
        let linked = follows(self, server) || follows(server, self);
        named(server, self) + named(self, server) + if linked { 1 << 40 } else { 0 }
    }

    /// Records arrive in order, and each describes a prefix of what this program really wrote, in order.
    fn judge_alone(&self, violations: &mut Vec<String>) {
        let mut own = Stream::EMPTY;
        let peer = self.program.peer;
        let mut last_index = None;
        for record in &self.records {
            if last_index.is_some_and(|last| last >= record.index) {
                violations.push(format!(
                    "program {} received record {} after {last_index:?}",
                    self.index, record.index
                ));
                return;
            }
            last_index = Some(record.index);
            let named = record.streams[peer as usize];
            let fresh = usize::try_from(own.bytes)
                .ok()
                .zip(usize::try_from(named.bytes).ok())
                .and_then(|(from, to)| self.program.written.get(from..to));
            if let Some(fresh) = fresh {
                own.consume(fresh);
            }
            if own != named {
                violations.push(format!(
                    "program {} wrote something else than record {} says was consumed: {named:?}",
                    self.index, record.index
                ));
                return;
            }
        }
    }
}

/// Judges two programs that talked to one cell, or a client without a server. A program that saw a
/// reset must be excused by a fault (`Program::excused`).
fn judge_session(client: &Received<'_>, server: Option<&Received<'_>>, violations: &mut Vec<String>) {
    let name = format!("session of programs {} and {:?}", client.index, server.map(|server| server.index));
    let mut records: Vec<&Record> = client.records.iter().collect();
    records.extend(server.iter().flat_map(|server| &server.records));
    records.sort_by_key(|record| record.index);
    judge_chain(&name, &records, violations);
    let ordered = |received: &Received<'_>| received.program.closed == Some(false);
    if !ordered(client) || server.is_some_and(|server| !ordered(server)) {
        let both = [Some(client), server];
        if both.into_iter().flatten().any(|one| !ordered(one) && !one.program.excused) {
            violations.push(format!("{name} ended by a reset"));
        }
        return;
    }
    // All was received of a history that was given up since.
    let is_former =
        |received: &Received<'_>| received.program.ran_ahead.as_ref().is_some_and(|ahead| !ahead.is_closed);
    if is_former(client) || server.is_some_and(is_former) {
        return;
    }
    judge_whole(&name, client, server, &records, violations);
}

/// One chain: each record follows the one before it, and no two have the same index.
///
/// `records` are sorted by index, from one or both programs. A gap is legal here: the records in it
/// may have gone to a program that was reset, or be lost with a session that ended early.
fn judge_chain(name: &str, records: &[&Record], violations: &mut Vec<String>) {
    for pair in records.windows(2) {
        let [before, after] = pair else { continue };
        if before.index == after.index {
            violations.push(format!("{name}: two records {}: {before:?} and {after:?}", after.index));
            return;
        }
        let adjacent = before.index + 1 == after.index;
        if adjacent && after.previous != before.digest() {
            violations.push(format!("{name}: record {} does not follow upon the one before", after.index));
            return;
        }
        let grows = (0..2).all(|peer| before.streams[peer].bytes <= after.streams[peer].bytes);
        if !grows || before.events > after.events {
            violations.push(format!("{name}: record {} knows less than the one before", after.index));
            return;
        }
    }
}

/// A session that ended normally has delivered everything, in both directions.
///
/// Only here a gap is a violation: both programs have seen the end, so together they have received
/// every record.
fn judge_whole(
    name: &str,
    client: &Received<'_>,
    server: Option<&Received<'_>>,
    records: &[&Record],
    violations: &mut Vec<String>,
) {
    for (place, record) in (0..).zip(records) {
        if record.index != place {
            violations.push(format!("{name}: record {place} was received by no peer"));
            return;
        }
    }
    let Some(last) = records.last() else {
        violations.push(format!("{name} ended in order and said nothing"));
        return;
    };
    let both = [Some(client), server];
    for (received, stream) in both.iter().zip(&last.streams) {
        let Some(received) = received else { continue };
        let written = received.program.written.len() as u64;
        let whole = received.program.end_taken && received.program.end_received && stream.bytes == written;
        if !whole {
            violations.push(format!(
                "{name} ended in order, but of {written} B by program {} {} B were consumed (ended {}, told of the end {})",
                received.index, stream.bytes, received.program.end_taken, received.program.end_received
            ));
        }
    }
}

mod hall;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use store::StoreJudge;
