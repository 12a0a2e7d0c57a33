//! The minutes of a meeting: a shared cell that keeps what its clients say at a server, over one connection for all of them.
//!
//! ```text
//! client ──a line──▶ the cell ──"7 the line"──▶ store       keeps the line under its number, once
//! client ◀──"7"───── the cell ◀──"7"─────────── store
//! ```
//!
//! The connection outlives the cell's edge, so that each line is sent once. If the connection itself is lost (the server or its agent is
//! gone), the cell connects again, and sends again what was not answered: a server that knows the number answers again.

use marram_sdk::{Cell, Context, Level, Port, PortKind, cell};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

/// Longest line of a client or of the server, in bytes. A longer one closes its port.
const LINE_MAX: usize = 4_096;
/// Lines that wait for the server's answer; further clients' lines are refused.
const WAITING_MAX: usize = 10_000;
/// How long the cell waits before it connects again.
const AGAIN: Duration = Duration::from_secs(1);
/// The token of the timer for that.
const CONNECT: u64 = 0;

/// A line that the server has not answered.
struct Waiting {
    number: u64,
    speaker: Port,
    line: Vec<u8>,
}

/// The state of the cell.
#[derive(Default)]
struct Minutes {
    /// What each client, and the server, has said behind its last whole line.
    rest: BTreeMap<Port, Vec<u8>>,
    /// The connection to the server; it may not be open yet.
    store: Option<Port>,
    is_open: bool,
    waiting: VecDeque<Waiting>,
    numbers: u64,
}

impl Minutes {
    /// The whole lines that a port has said now; none if one is too long.
    fn lines(&mut self, port: Port, payload: &[u8]) -> Option<Vec<Vec<u8>>> {
        let rest = self.rest.entry(port).or_default();
        rest.extend_from_slice(payload);
        let mut lines: Vec<Vec<u8>> = rest.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        *rest = lines.pop().unwrap_or_default();
        let fits = rest.len() <= LINE_MAX && lines.iter().all(|line| line.len() <= LINE_MAX);
        fits.then_some(lines)
    }

    fn keep(&mut self, context: &mut Context, speaker: Port, line: Vec<u8>) {
        if self.waiting.len() >= WAITING_MAX {
            return context.send(speaker, b"too many lines wait\n");
        }
        self.numbers += 1;
        let waiting = Waiting { number: self.numbers, speaker, line };
        self.tell(context, &waiting);
        self.waiting.push_back(waiting);
        if self.store.is_none() {
            self.store = Some(context.connect("store"));
        }
    }

    /// Tells the server a line, if it is there.
    fn tell(&self, context: &mut Context, waiting: &Waiting) {
        if let Some(store) = self.store.filter(|_| self.is_open) {
            let number = waiting.number.to_string();
            context.send(store, &[number.as_bytes(), b" ", &waiting.line, b"\n"].concat());
        }
    }

    /// The server has the line of this number.
    fn kept(&mut self, context: &mut Context, answer: &[u8]) {
        let number = core::str::from_utf8(answer).ok().and_then(|number| number.parse().ok());
        while let Some(first) =
            self.waiting.front().filter(|first| number.is_some_and(|it| first.number <= it))
        {
            let (speaker, number) = (first.speaker, first.number);
            self.waiting.pop_front();
            // A client that is gone needs no answer.
            if self.rest.contains_key(&speaker) {
                context.send(speaker, format!("{number}\n").as_bytes());
            }
        }
    }
}

impl Cell for Minutes {
    fn opened(&mut self, context: &mut Context, port: Port, _kind: PortKind) {
        self.rest.insert(port, Vec::new());
        if Some(port) == self.store {
            self.is_open = true;
            self.waiting.iter().for_each(|waiting| self.tell(context, waiting));
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        let Some(lines) = self.lines(port, payload) else { return context.close(port) };
        for line in lines {
            if Some(port) == self.store {
                self.kept(context, &line);
            } else {
                self.keep(context, port, line);
            }
        }
    }

    fn timer(&mut self, context: &mut Context, _token: u64) {
        if self.store.is_none() && !self.waiting.is_empty() {
            self.store = Some(context.connect("store"));
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.rest.remove(&port);
        context.close(port);
        // Answers to its lines are not for the next client with this number.
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.speaker == port) {
            waiting.speaker = Port::SERVER;
        }
        if Some(port) == self.store {
            context.print(Level::Warn, "the store is gone");
            (self.store, self.is_open) = (None, false);
            context.set_timer(AGAIN, CONNECT);
        }
    }
}

cell!(Minutes);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    const FIRST: Port = Port::FIRST_CONNECTED;

    #[test]
    fn lines_are_kept_in_order_and_answered_to_the_one_who_spoke() {
        let (mut session, bob) = (Session::<Minutes>::new(), Port(2));
        session.open_client();
        session.open(bob, PortKind::Client);
        assert_eq!(session.message(Port::CLIENT, b"one\ntw"), [Output::connect(0, "store")]);
        assert_eq!(session.message(bob, b"two\n"), []);
        let waited = [Output::message(FIRST, b"1 one\n"), Output::message(FIRST, b"2 two\n")];
        assert_eq!(session.open(FIRST, PortKind::Server), waited);
        assert_eq!(session.message(Port::CLIENT, b"o\n"), [Output::message(FIRST, b"3 two\n".as_slice())]);
        let answers = [Output::message(Port::CLIENT, b"1\n"), Output::message(bob, b"2\n")];
        assert_eq!(session.message(FIRST, b"1\n2\n3"), answers);
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::CLIENT)]);
        assert_eq!(session.message(FIRST, b"\n"), [], "the one who spoke is gone");
    }

    #[test]
    fn what_was_not_answered_is_sent_again_over_the_next_connection() {
        let mut session = Session::<Minutes>::new();
        session.open_client();
        session.message(Port::CLIENT, b"one\ntwo\n");
        session.open(FIRST, PortKind::Server);
        session.message(FIRST, b"1\n");
        assert_eq!(session.close(FIRST), [Output::close(FIRST)]);
        assert_eq!(session.advance(AGAIN), [Output::connect(1, "store")]);
        let next = Port(FIRST.0 + 1);
        assert_eq!(session.open(next, PortKind::Server), [Output::message(next, b"2 two\n")]);
    }
}
