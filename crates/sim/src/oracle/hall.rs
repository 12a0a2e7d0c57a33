//! The oracle of halls: cells that many clients share, and of which there is one for the app. It knows what clients wrote and what they
//! received, and neither edges nor which port a client has: its first record tells that.
//!
//! ```text
//! client x:  joined 0 | x spoke 1 | joined 2 | y spoke 3 | x left 4          record k: | index k | digest of record k-1 |
//! client y:                         joined 2 | y spoke 3 | x left 4 | ...              | whose input, all that this one has said |
//! ```
//! - one client receives every record from that of its own joining on, without a gap or a repeat, each upon the one before it
//!   (`judge_alone`);
//! - all clients are in one history: at an index all have the same record (`History`, I14);
//! - where there is one hall for each key, a key's clients are in no other key's hall, and its halls are there one after the other
//!   (`judge_each`, `judge_turns`);
//! - what a record says of its speaker is true of what that client wrote: each byte was consumed once, in order
//!   (`judge_speakers`);
//! - a client that ended in order has received the record of that, which has all that it wrote (`judge_end`, I26); another one has
//!   a reason ([`Program::excused`]).

use super::HallsLost;
use crate::program::{LiedTo, Program};
use marram_chain_algo::{Peer, Stream};
use marram_hall_algo::{Deed, HallRecord};
use std::collections::{BTreeMap, BTreeSet};

/// A client of the hall.
struct Guest<'a> {
    program: &'a Program,
    /// The number of the program, for texts.
    index: usize,
    /// In the order of arrival.
    records: Vec<HallRecord>,
}

/// The place of a record: the life of its hall, and its index.
type Place = (u64, u64);

/// What all clients together have received.
#[derive(Default)]
struct History(BTreeMap<Place, HallRecord>);

/// Checks what the clients of all halls received, each key's for itself.
pub(super) fn judge_each(clients: &[(usize, &Program)], lost: HallsLost, violations: &mut Vec<String>) {
    let mut by_key: BTreeMap<Option<u8>, Vec<_>> = BTreeMap::new();
    let is_server = |program: &Program| program.peer == Peer::Server;
    for (index, program) in clients.iter().filter(|(_, program)| !is_server(program)) {
        by_key.entry(program.key).or_default().push((*index, *program));
    }
    // Of which key the hall of a server is, its clients tell.
    for (index, server) in clients.iter().filter(|(_, program)| is_server(program)) {
        let is_same = |(_, client): &&(usize, &Program)| !is_server(client) && life(client) == life(server);
        if let Some((_, client)) = clients.iter().find(is_same).filter(|_| life(server).is_some()) {
            by_key.entry(client.key).or_default().push((*index, *server));
        }
    }
    // One that received nothing may be of any hall.
    let silent = clients.iter().filter(|(_, program)| is_server(program) && program.received.is_empty());
    let silent: Vec<&Program> = silent.map(|(_, program)| *program).collect();
    let mut lives: BTreeMap<u64, Option<u8>> = BTreeMap::new();
    for (key, clients) in &by_key {
        judge(clients, &silent, lost, violations);
        for life in clients.iter().filter_map(|(_, program)| life(program)) {
            let other = *lives.entry(life).or_insert(*key);
            if other != *key {
                violations.push(format!("clients of the keys {other:?} and {key:?} are in hall {life:x}"));
            }
        }
    }
}

/// The hall in which a client is.
fn life(program: &Program) -> Option<u64> {
    let honest = program.lied_to != LiedTo::ByOwnAgent;
    records(&program.received).ok().filter(|_| honest)?.first().map(|first| first.life)
}

/// Checks what the clients of a hall received; they are given with their numbers. Texts go to `violations`, a few at most.
///
/// A client whose own agent lied may have received anything, and what its records name need not be what it wrote.
/// `silent` ones, which received nothing, may have spoken in it, too.
fn judge(clients: &[(usize, &Program)], silent: &[&Program], lost: HallsLost, violations: &mut Vec<String>) {
    let mut guests = Vec::new();
    for (index, program) in clients.iter().filter(|(_, program)| program.lied_to != LiedTo::ByOwnAgent) {
        match records(&program.received) {
            Ok(records) => guests.push(Guest { program, index: *index, records }),
            Err(what) => violations.push(format!("client {index} of the hall received {what}")),
        }
    }
    let before = violations.len();
    guests.iter().for_each(|guest| guest.judge_alone(violations));
    if violations.len() > before || lost == HallsLost::PutBack {
        return;
    }
    let history = History::of(&guests, violations);
    let has_keys = clients.iter().any(|(_, program)| program.key.is_some());
    history.judge(lost == HallsLost::BeginAgain || has_keys, violations);
    if has_keys && lost == HallsLost::No {
        // What a server receives last may come late: a hall does not wait for it.
        let clients = clients.iter().map(|(_, program)| *program);
        judge_turns(clients.filter(|program| program.peer == Peer::Client), violations);
    }
    if violations.len() == before {
        let is_known = clients.len() == guests.len();
        judge_speakers(&guests, &history, (is_known, silent), violations);
    }
    guests.iter().for_each(|guest| guest.judge_end(&history, violations));
}

/// The records in what a client received, and otherwise what is wrong.
fn records(received: &[u8]) -> Result<Vec<HallRecord>, String> {
    let (records, rest) = received.as_chunks::<{ HallRecord::SIZE }>();
    if !rest.is_empty() {
        return Err(format!("{} B of a record", rest.len()));
    }
    let decoded = records.iter().map(HallRecord::from_bytes).collect::<Option<_>>();
    decoded.ok_or_else(|| "what is no record".into())
}

impl Guest<'_> {
    fn join(&self) -> Option<Place> {
        self.records.first().map(place)
    }

    fn judge_alone(&self, violations: &mut Vec<String>) {
        let Some(first) = self.records.first() else { return };
        let name = format!("client {} of the hall", self.index);
        if first.deed != Deed::Joined {
            return violations.push(format!("{name} received record {} first: {first:?}", first.index));
        }
        for pair in self.records.windows(2) {
            let [before, after] = pair else { continue };
            if after.life != before.life || after.index != before.index + 1 {
                return violations.push(format!(
                    "{name} received record {} of hall {:x} after {} of {:x}",
                    after.index, after.life, before.index, before.life
                ));
            }
            if after.port == first.port && after.deed == Deed::Joined {
                return violations.push(format!(
                    "{name} has port {}, and so has who joined at {}",
                    first.port, after.index
                ));
            }
            if before.port == first.port && before.deed == Deed::Left {
                return violations.push(format!("{name} left, and received record {}", after.index));
            }
        }
    }

    /// One that ended in order has received the record of its own end last, and that has all that it wrote.
    ///
    /// A server's connection ends with the hall. If the hall has said that it left and went on, something must explain that.
    fn judge_end(&self, history: &History, violations: &mut Vec<String>) {
        let name = format!("client {} of the hall", self.index);
        let port = self.records.first().map(|first| first.port);
        if self.program.closed != Some(false) {
            let is_server = self.program.peer == Peer::Server;
            let own = self.records.first().map(|first| (first.life, first.port));
            let has_left =
                |record: &HallRecord| record.deed == Deed::Left && Some((record.life, record.port)) == own;
            let ends_with_hall = is_server && !history.0.values().any(has_left);
            if !self.program.excused && !ends_with_hall {
                violations.push(format!("{name} was reset"));
            }
            return;
        }
        let last = self.records.last().filter(|last| last.deed == Deed::Left && Some(last.port) == port);
        let said = last.map(|last| last.speaker.bytes);
        let written = self.program.written.len() as u64;
        let (ended, told) = (self.program.end_taken, self.program.end_received);
        if said != Some(written) || !ended || !told {
            violations.push(format!(
                "{name} ended in order, but of {written} B it received {said:?} B (ended {ended}, told of the end {told})"
            ));
        }
    }
}

fn place(record: &HallRecord) -> Place {
    (record.life, record.index)
}

impl History {
    /// At an index, all clients have received the same record.
    fn of(guests: &[Guest<'_>], violations: &mut Vec<String>) -> Self {
        let mut history = Self::default();
        for guest in guests {
            for record in &guest.records {
                let first = history.0.entry(place(record)).or_insert(*record);
                if first != record {
                    violations.push(format!(
                        "client {} of the hall received another record {} than others: {record:?} and {first:?}",
                        guest.index, record.index
                    ));
                    break;
                }
            }
        }
        history
    }

    /// One hall, and each record follows upon the one before it, if the two went to different clients, too. A gap is legal: no client was there.
    fn judge(&self, begins_again: bool, violations: &mut Vec<String>) {
        let lives: BTreeSet<u64> = self.0.keys().map(|(life, _)| *life).collect();
        if lives.len() > 1 && !begins_again {
            violations.push(format!("there were {} halls", lives.len()));
        }
        for (before, after) in self.0.values().zip(self.0.values().skip(1)) {
            if before.life != after.life {
                continue;
            }
            let adjacent = before.index + 1 == after.index;
            if adjacent && after.previous != before.digest() {
                violations
                    .push(format!("record {} of the hall does not follow upon the one before", after.index));
                return;
            }
            if after.events - before.events.min(after.events) != after.index - before.index {
                violations.push(format!("record {} of the hall is not one of each input", after.index));
                return;
            }
        }
    }
}

/// A hall with a key is over when its last client has left, and the next one begins another hall: so no client receives anything from
/// the former one when another has received something from the next one.
fn judge_turns<'a>(programs: impl Iterator<Item = &'a Program>, violations: &mut Vec<String>) {
    let mut turns: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for (life, (first_ns, last_ns)) in programs.filter_map(|program| life(program).zip(program.received_ns)) {
        let turn = turns.entry(life).or_insert((first_ns, last_ns));
        *turn = (turn.0.min(first_ns), turn.1.max(last_ns));
    }
    let mut turns: Vec<_> = turns.into_iter().map(|(life, turn)| (turn, life)).collect();
    turns.sort_unstable();
    for pair in turns.windows(2) {
        let [((_, last_ns), former), ((first_ns, _), next)] = *pair else { continue };
        if last_ns >= first_ns {
            violations.push(format!(
                "hall {former:x} spoke at {last_ns} ns, and hall {next:x} of the same key from {first_ns} ns on"
            ));
        }
    }
}

/// How many halls began after another one of their key.
pub(super) fn halls_in_turn<'a>(programs: impl Iterator<Item = &'a Program>) -> u64 {
    let mut lives: BTreeMap<Option<u8>, BTreeSet<u64>> = BTreeMap::new();
    for (key, life) in programs.filter_map(|program| Some((program.key, life(program)?))) {
        lives.entry(key).or_default().insert(life);
    }
    lives.values().map(|lives| lives.len() as u64 - 1).sum()
}

/// Who has a port: the number of the guest in the list, if it received the record of its joining.
struct Speaker {
    guest: Option<usize>,
    /// What it has said, as the last record knows.
    said: Stream,
}

/// What a record says of its speaker is a prefix of what that client wrote, and never less than before. `is_known`: all clients of the
/// hall are in the list.
///
/// A client that received nothing is not known by its port: then any such client may be the speaker.
fn judge_speakers(
    guests: &[Guest<'_>],
    history: &History,
    (is_known, silent): (bool, &[&Program]),
    violations: &mut Vec<String>,
) {
    let mut joins = BTreeMap::new();
    for (number, guest) in guests.iter().enumerate() {
        let Some(join) = guest.join() else { continue };
        if let Some(other) = joins.insert(join, number) {
            let (one, other) = (guest.index, guests[other].index);
            return violations
                .push(format!("clients {other} and {one} of the hall joined with record {}", join.1));
        }
    }
    let mut speakers: BTreeMap<(u64, u32), Speaker> = BTreeMap::new();
    let mut before: Option<Place> = None;
    for (at, record) in &history.0 {
        if before.is_some_and(|before| (before.0, before.1 + 1) != *at) {
            // Where no client received anything, a number may have been given to another one.
            speakers.clear();
        }
        before = Some(*at);
        let key = (record.life, record.port);
        match record.deed {
            Deed::Waited => continue,
            Deed::Joined => {
                let speaker = Speaker { guest: joins.get(at).copied(), said: Stream::EMPTY };
                speakers.insert(key, speaker);
            }
            Deed::Spoke | Deed::Left => {}
        }
        let speaker = speakers.entry(key).or_insert(Speaker { guest: None, said: Stream::EMPTY });
        let grows = record.speaker.bytes >= speaker.said.bytes;
        let is_true = match speaker.guest {
            Some(guest) => wrote(guests[guest].program, &record.speaker),
            None => {
                let mut some = guests.iter().map(|guest| guest.program).chain(silent.iter().copied());
                !is_known || some.any(|program| wrote(program, &record.speaker))
            }
        };
        if !grows || !is_true {
            let who = speaker.guest.map(|guest| guests[guest].index);
            return violations.push(format!(
                "client {who:?} of the hall wrote something else than record {} says: {:?} at port {}",
                record.index, record.speaker, record.port
            ));
        }
        speaker.said = record.speaker;
    }
}

/// How many clients got the number of a former one, as far as clients have seen it.
pub(super) fn numbers_reused<'a>(programs: impl Iterator<Item = &'a Program>) -> u64 {
    let mut joined: BTreeMap<(u64, u32), BTreeSet<u64>> = BTreeMap::new();
    for record in programs.filter_map(|program| records(&program.received).ok()).flatten() {
        if record.deed == Deed::Joined {
            joined.entry((record.life, record.port)).or_default().insert(record.index);
        }
    }
    joined.values().map(|indices| indices.len() as u64 - 1).sum()
}

/// Whether what a program wrote begins with this.
fn wrote(program: &Program, stream: &Stream) -> bool {
    super::is_valid_prefix(stream, program)
}

#[cfg(test)]
mod tests;
