//! A stage of a chain that forwards and counts everything: messages and bytes in each direction, rates, and message
//! sizes. Prints a line for every ten seconds with traffic, and the totals when a side closes. Does not read the
//! contents of messages.
//!
//! The timer is set by traffic and never by itself: a session without traffic runs no handler. So a
//! period begins with a message; rates are divided by the time that has really passed, also if the
//! timer fired late.

pub mod tally;

use std::time::Duration;

use marram_sdk::{Cell, Context, Level, Port, Time, cell};
use tally::Tally;

/// Interval between two lines.
const PERIOD: Duration = Duration::from_secs(10);

/// The only timer.
const REPORT: u64 = 1;

/// The cell.
#[derive(Default)]
pub struct Monitor {
    /// From the client, then from the server.
    passed: [Tally; 2],
    /// Start of the present period, and the counts at that time. `None` without traffic.
    period: Option<(Time, [Tally; 2])>,
    /// The time of the first message. `None` before it.
    began: Option<Time>,
}

impl Monitor {
    /// The counts from the client and from the server so far.
    #[must_use]
    pub const fn passed(&self) -> &[Tally; 2] {
        &self.passed
    }

    /// Begins a period if there is none, with the counts from before this message.
    fn count(&mut self, context: &mut Context, port: Port, len: usize) {
        if self.period.is_none() {
            let now = context.now();
            self.began.get_or_insert(now);
            self.period = Some((now, self.passed.clone()));
            context.set_timer(PERIOD, REPORT);
        }
        self.passed[usize::from(port == Port::SERVER)].count(len);
    }
}

impl Cell for Monitor {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        self.count(context, port, payload.len());
        context.send(port.opposite(), payload);
    }

    fn timer(&mut self, context: &mut Context, _: u64) {
        let Some((since, before)) = self.period.take() else { return };
        let ms = context.now().since(since).as_millis().max(1);
        let rate = |amount: u64| u128::from(amount) * 1000 / ms;
        let [client, server] = [0, 1].map(|side| self.passed[side].since(&before[side]));
        context.print(
            Level::Info,
            format_args!(
                "in {ms} ms, a second: client {} messages, {} bytes; server {} messages, {} bytes",
                rate(client.0),
                rate(client.1),
                rate(server.0),
                rate(server.1)
            ),
        );
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        let [client, server] = &self.passed;
        let lasted = self.began.map_or(Duration::ZERO, |began| context.now().since(began));
        let who = if port == Port::CLIENT { "client" } else { "server" };
        context.print(
            Level::Info,
            format_args!(
                "the {who} closed after {} ms; from the client {client}; from the server {server}",
                lasted.as_millis()
            ),
        );
        context.close(port.opposite());
    }
}

cell!(Monitor);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn everything_passes_and_is_counted() {
        let mut session = Session::<Monitor>::new();
        for (port, payload) in
            [(Port::CLIENT, &b"question"[..]), (Port::SERVER, b"answer"), (Port::SERVER, b"")]
        {
            assert_eq!(session.message(port, payload), [Output::message(port.opposite(), payload)]);
        }
        session.advance(Duration::from_millis(250));
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::SERVER)]);
        assert_eq!(session.close(Port::SERVER), [Output::close(Port::CLIENT)]);
        let totals = "from the client 1 messages, 8 bytes, longest 8, by size 8:1; \
                      from the server 2 messages, 6 bytes, longest 6, by size 0:1 4:1";
        let lines: Vec<_> = session.lines().iter().map(|(_, line)| line.as_str()).collect();
        let expected = ["client", "server"].map(|who| format!("the {who} closed after 250 ms; {totals}"));
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_line_is_printed_for_each_period_in_which_something_passed() {
        let mut session = Session::<Monitor>::new();
        assert_eq!(session.timers().count(), 0);
        for _ in 0..3 {
            (0..50).for_each(|_| _ = session.message(Port::CLIENT, &[0; 100]));
            session.message(Port::SERVER, &[0; 7000]);
            session.advance(PERIOD * 10);
            assert_eq!(session.timers().count(), 0, "while nothing passes, nothing is due");
        }
        let line = "in 10000 ms, a second: client 5 messages, 500 bytes; server 0 messages, 700 bytes";
        assert_eq!(session.lines().iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>(), [line; 3]);
    }
}
