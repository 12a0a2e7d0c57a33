//! A stage of a chain that inspects flows, as the middlebox MBServ of Pico Replication does (its chapter 4.5): it follows each flow with
//! a state machine, refuses what does not fit it, and searches the payload for forbidden strings. Its state changes with every
//! message, so it is what replication has most to do with.
//!
//! ```text
//! message --> flow (state machine) --> forbidden strings --> passes unchanged
//!                    |                        |
//!                    +------------------------+--> refused: both ports are closed, with a printed reason
//! ```
//!
//! A string may be spread over messages. Its beginning may pass before it is complete; the message that completes it does not.

mod flow;
mod rules;

use flow::{Flow, Side, State};
use marram_sdk::{Cell, Context, Level, Port, cell};
use rules::Rules;

/// The only timer.
const IDLE: u64 = 1;

/// The cell.
pub struct Inspector {
    rules: Rules,
    flow: Flow,
}

impl Default for Inspector {
    /// Reads the image's rules, so that deployment refuses invalid ones.
    fn default() -> Self {
        let text = std::fs::read_to_string(rules::PATH);
        let text = text.as_deref().unwrap_or(rules::DEFAULT);
        let rules = rules::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let flow = Flow::new(&rules);
        Self { rules, flow }
    }
}

fn side(port: Port) -> Option<Side> {
    match port {
        Port::CLIENT => Some(Side::Client),
        Port::SERVER => Some(Side::Server),
        _ => None,
    }
}

impl Inspector {
    /// For the line that is printed at the end.
    fn counts(&self) -> String {
        let [(asked, out), (answered, back)] = self.flow.counts();
        format!("client {asked} messages, {out} bytes; server {answered} messages, {back} bytes")
    }

    fn refuse(&mut self, context: &mut Context, why: &str) {
        context.print(Level::Warn, format_args!("refused: {why}; {}", self.counts()));
        context.cancel_timer(IDLE);
        context.close(Port::CLIENT);
        context.close(Port::SERVER);
    }

    /// The flow is not silent.
    fn is_heard(&self, context: &mut Context) {
        if let Some(idle) = self.rules.idle {
            context.set_timer(idle, IDLE);
        }
    }
}

impl Cell for Inspector {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        let Some(side) = side(port).filter(|_| self.flow.state() != State::Refused) else { return };
        match self.flow.message(&self.rules, side, payload) {
            Ok(()) => {
                self.is_heard(context);
                context.send(port.opposite(), payload);
            }
            Err(why) => self.refuse(context, &format!("{}: {why}", side.name())),
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        let Some(side) = side(port).filter(|_| self.flow.state() != State::Refused) else { return };
        if self.flow.closed(side) {
            context.close(port.opposite());
        }
        if self.flow.state() == State::Closed {
            context.cancel_timer(IDLE);
            context.print(Level::Info, self.counts());
        }
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        if token == IDLE && self.flow.state() != State::Refused {
            self.flow.refuse();
            self.refuse(context, "silent for too long");
        }
    }
}

cell!(Inspector);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};
    use std::time::Duration;

    const CLOSES: [Output; 2] = [Output::close(Port::CLIENT), Output::close(Port::SERVER)];

    fn refused(session: &Session<Inspector>) -> String {
        let (level, line) = session.lines().last().expect("it printed a reason");
        assert_eq!(*level, Level::Warn);
        line.clone()
    }

    #[test]
    fn a_flow_that_fits_passes_unchanged_and_is_counted() {
        let mut session = Session::<Inspector>::new();
        assert_eq!(session.message(Port::CLIENT, b"ask"), [Output::message(Port::SERVER, b"ask")]);
        assert_eq!(session.message(Port::SERVER, b"answer"), [Output::message(Port::CLIENT, b"answer")]);
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::SERVER)]);
        assert_eq!(session.message(Port::SERVER, b"more"), [Output::message(Port::CLIENT, b"more")]);
        assert_eq!(session.close(Port::SERVER), [Output::close(Port::CLIENT)]);
        let counts = "client 1 messages, 3 bytes; server 2 messages, 10 bytes".to_owned();
        assert_eq!(session.lines(), [(Level::Info, counts)]);
        assert_eq!(session.timers().count(), 0, "it does not wait for a closed flow");
    }

    #[test]
    fn a_server_that_speaks_first_does_not_fit() {
        let mut session = Session::<Inspector>::new();
        assert_eq!(session.message(Port::SERVER, b"220 hello"), CLOSES);
        let why = "refused: server: it spoke before it was asked; client 0 messages, 0 bytes; server 1 messages, 9 bytes";
        assert_eq!(refused(&session), why);
        assert_eq!(session.message(Port::CLIENT, b"late"), []);
        assert_eq!(session.close(Port::CLIENT), []);
    }

    #[test]
    fn a_forbidden_string_is_found_over_the_cuts_of_messages() {
        let mut session = Session::<Inspector>::new();
        assert_eq!(
            session.message(Port::CLIENT, b"GET /etc/pa"),
            [Output::message(Port::SERVER, b"GET /etc/pa")]
        );
        assert_eq!(session.message(Port::CLIENT, b"sswd HTTP/1.1"), CLOSES);
        assert!(
            refused(&session).starts_with("refused: client: \"/etc/passwd\" is forbidden; client 2 messages")
        );
        // What the client may not send, the server may.
        let mut session = Session::<Inspector>::new();
        session.message(Port::CLIENT, b"ask");
        assert_eq!(
            session.message(Port::SERVER, b"/etc/passwd"),
            [Output::message(Port::CLIENT, b"/etc/passwd")]
        );
        assert_eq!(session.message(Port::SERVER, b"\x00\xde\xad\xbe\xef"), CLOSES);
    }

    #[test]
    fn a_silent_flow_is_closed_and_one_that_speaks_is_not() {
        let mut session = Session::<Inspector>::new();
        session.message(Port::CLIENT, b"ask");
        assert_eq!(session.advance(Duration::from_secs(3_599)), []);
        session.message(Port::SERVER, b"answer");
        assert_eq!(session.advance(Duration::from_secs(3_599)), []);
        assert_eq!(session.advance(Duration::from_secs(1)), CLOSES);
        assert!(refused(&session).starts_with("refused: silent for too long"));
        assert_eq!(session.message(Port::CLIENT, b"late"), []);
    }
}
