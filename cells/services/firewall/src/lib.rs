//! A stage of a chain that forwards what its rules allow. At the first violation it closes the session, with a printed reason.
//! This file handles ports; the rules are in `rules`, their application to a stream in `lane`.
//!
//! ```text
//! message --> limits --> rules (until settled) --> Pass: held messages, then this one
//!                |         |      |
//!                |         |      +--> Hold: kept in the lane until more of the stream has arrived
//!                +---------+---------> Refuse: both ports are closed
//! ```
//!
//! A message passes as a whole, but rules match the stream: a pattern may be spread over messages.
//! So a message may have to wait for the next one, while it is the beginning of a prefix.

mod lane;
mod rules;

use lane::{Lane, Verdict};
use marram_sdk::{Cell, Context, Level, Port, cell};
use rules::Rules;

/// The cell.
pub struct Firewall {
    rules: Rules,
    /// From the client, then from the server.
    lanes: [Lane; 2],
    /// Refused: what still arrives on either side is dropped.
    is_closed: bool,
}

impl Default for Firewall {
    /// Reads the image's rules, so that deployment refuses invalid ones.
    fn default() -> Self {
        let text = std::fs::read_to_string(rules::PATH);
        let text = text.as_deref().unwrap_or(rules::DEFAULT);
        let rules = rules::parse(text).unwrap_or_else(|error| panic!("{error}"));
        Self { rules, lanes: Default::default(), is_closed: false }
    }
}

impl Firewall {
    /// Carries out a verdict; returns whether the session continues.
    fn obey(&mut self, context: &mut Context, from: Port, verdict: Verdict) -> bool {
        match verdict {
            Verdict::Pass(held) => held.iter().for_each(|message| context.send(from.opposite(), message)),
            Verdict::Hold => return false,
            Verdict::Refuse(reason) => {
                let who = if from == Port::CLIENT { "client" } else { "server" };
                context.print(
                    Level::Warn,
                    format_args!("closed because of the {who}: {reason}; {}", self.counts()),
                );
                self.is_closed = true;
                context.close(Port::CLIENT);
                context.close(Port::SERVER);
                return false;
            }
        }
        true
    }

    /// For the line that is printed at the end: they include what was refused or held.
    fn counts(&self) -> String {
        let [client, server] = [0, 1].map(|side: usize| self.lanes[side].counts());
        format!(
            "{} messages and {} bytes came from the client, {} and {} from the server",
            client.0, client.1, server.0, server.1
        )
    }
}

impl Cell for Firewall {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        let side = port.0 as usize;
        if self.is_closed || side >= self.lanes.len() {
            return;
        }
        let verdict = self.lanes[side].judge(&self.rules.sides[side], payload, || context.now().nanoseconds);
        if self.obey(context, port, verdict) {
            context.send(port.opposite(), payload);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        let side = port.0 as usize;
        if self.is_closed || side >= self.lanes.len() {
            return;
        }
        let verdict = self.lanes[side].end(&self.rules.sides[side]);
        if self.obey(context, port, verdict) {
            context.close(port.opposite());
            context.print(Level::Info, self.counts());
        }
    }
}

cell!(Firewall);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn what_is_allowed_passes_both_ways() {
        let mut session = Session::<Firewall>::new();
        // A prefix of `TRACE ` waits for a byte that makes it another word.
        assert_eq!(session.message(Port::CLIENT, b"T"), []);
        let passed = [Output::message(Port::SERVER, b"T"), Output::message(Port::SERVER, b"IME")];
        assert_eq!(session.message(Port::CLIENT, b"IME"), passed);
        assert_eq!(session.message(Port::SERVER, b"noon"), [Output::message(Port::CLIENT, b"noon")]);
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::SERVER)]);
        assert_eq!(session.close(Port::SERVER), [Output::close(Port::CLIENT)]);
        let counts = "2 messages and 4 bytes came from the client, 1 and 4 from the server";
        assert_eq!(session.lines(), [(Level::Info, counts.to_owned()), (Level::Info, counts.to_owned())]);
    }

    #[test]
    fn what_is_denied_closes_both_sides_with_a_reason() {
        let mut session = Session::<Firewall>::new();
        let closes = [Output::close(Port::CLIENT), Output::close(Port::SERVER)];
        assert_eq!(session.message(Port::CLIENT, b"GET /x/../etc"), closes);
        let reason = "closed because of the client: deny client contains \"/../\"; \
                      1 messages and 13 bytes came from the client, 0 and 0 from the server";
        assert_eq!(session.lines(), [(Level::Warn, reason.to_owned())]);
        assert_eq!(session.message(Port::SERVER, b"late"), []);
        assert_eq!(session.close(Port::SERVER), []);
    }

    #[test]
    fn a_stream_may_end_while_it_is_held() {
        let mut session = Session::<Firewall>::new();
        assert_eq!(session.message(Port::CLIENT, b"TRA"), []);
        let rest = [Output::message(Port::SERVER, b"TRA"), Output::close(Port::SERVER)];
        assert_eq!(session.close(Port::CLIENT), rest);
    }
}
