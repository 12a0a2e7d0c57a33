//! A stage of a chain that passes messages at a limited rate: messages above the rate wait, in order, for a timer; if many wait,
//! the sender is paused. Knows rates and queues, not the contents of messages.
//!
//! ```text
//! client --> lane 0: buckets, queue --> server        timer 0
//! client <-- lane 1: buckets, queue <-- server        timer 1
//!                      |
//!                      +-- above the limit: pause the sender; at half of it: resume
//! ```
//!
//! A lane and its timer have the number of the port that the messages come from. While messages
//! wait, the timer is set for the first of them, and later ones join the queue without asking the
//! buckets: so none overtakes another.

mod limits;

use std::{collections::VecDeque, time::Duration};

use limits::{Limits, Rates};
use marram_bucket::Bucket;
use marram_sdk::{Cell, Context, Level, Port, cell};

/// Bytes that may wait in one direction beyond the queue's limit. A paused peer stays far below it, since it has credit for
/// little more than 1 MiB; but an adjacent stage may turn little input into much output, and cannot be paused at once.
const EXCESS_BYTES_MAX: usize = 5 << 20;

/// The cell.
pub struct Limiter {
    limits: Limits,
    /// From the client, then from the server.
    lanes: [Lane; 2],
    /// Refused: what still arrives is dropped.
    is_closed: bool,
}

/// One direction.
#[derive(Default)]
struct Lane {
    /// Buckets for messages and bytes, full from the first message on.
    buckets: Option<[Option<Bucket>; 2]>,
    /// The timer is set for the first of them.
    waiting: VecDeque<Box<[u8]>>,
    waiting_bytes: usize,
    /// Whether the sender is paused.
    is_paused: bool,
    /// No more messages will come.
    is_ending: bool,
    /// For the line that is printed at the end.
    passed: u64,
    delayed: u64,
}

impl Default for Limiter {
    /// Reads the image's limits, so that deployment refuses invalid ones.
    fn default() -> Self {
        let text = std::fs::read_to_string(limits::PATH);
        let text = text.as_deref().unwrap_or(limits::DEFAULT);
        let limits = limits::parse(text).unwrap_or_else(|error| panic!("{error}"));
        Self { limits, lanes: Default::default(), is_closed: false }
    }
}

impl Lane {
    /// How long a message of this size must wait; `None` if it may pass, and its tokens are taken.
    /// With two rates, the longer wait counts. Tokens are taken from both buckets or from none.
    fn wait(&mut self, rates: Rates, bytes: usize, now_ns: i64) -> Option<Duration> {
        let new = || [rates.messages, rates.bytes].map(|rate| rate.map(|rate| Bucket::new(rate, now_ns)));
        let buckets = self.buckets.get_or_insert_with(new);
        let prices = [1, bytes as u64];
        let wait = |(bucket, price): (&Option<Bucket>, u64)| {
            bucket.as_ref().map_or(Duration::ZERO, |bucket| bucket.wait(price, now_ns))
        };
        let longest = buckets.iter().zip(prices).map(wait).max().filter(|wait| !wait.is_zero());
        if longest.is_none() {
            for (bucket, price) in buckets.iter_mut().zip(prices) {
                let paid = bucket.as_mut().map_or(Ok(()), |bucket| bucket.take(price, now_ns));
                debug_assert_eq!(paid, Ok(()), "no one has to wait");
            }
        }
        longest
    }
}

impl Lane {
    /// Pauses the sender while the queue is above its limit, until half of it is gone: the sender resumes before the queue is
    /// empty, so that the rate is kept.
    fn hold_back(&mut self, context: &mut Context, from: Port, limits: &Limits) {
        let share = if self.is_paused { 2 } else { 1 };
        let is_full = self.waiting.len() > limits.queue_messages / share
            || self.waiting_bytes > limits.queue_bytes / share;
        if is_full != self.is_paused {
            self.is_paused = is_full;
            if is_full { context.pause(from) } else { context.resume(from) }
        }
    }
}

impl Limiter {
    /// What limits the messages that come from this port.
    fn rates(&self, from: Port) -> Rates {
        if from == Port::CLIENT { self.limits.client } else { self.limits.server }
    }

    /// Sends the messages that may pass, and sets a timer for the rest. When the stream has ended
    /// and its last message has passed, closes the other side.
    fn advance(&mut self, context: &mut Context, from: Port) {
        let now_ns = context.now().nanoseconds;
        let rates = self.rates(from);
        let lane = &mut self.lanes[index(from)];
        while let Some(message) = lane.waiting.front() {
            if let Some(wait) = lane.wait(rates, message.len(), now_ns) {
                context.set_timer(wait, u64::from(from.0));
                break;
            }
            let message = lane.waiting.pop_front().expect("it was just looked at");
            lane.waiting_bytes -= message.len();
            lane.passed += 1;
            context.send(from.opposite(), &message);
        }
        lane.hold_back(context, from, &self.limits);
        if lane.is_ending && lane.waiting.is_empty() {
            context.close(from.opposite());
            let (passed, delayed) = (lane.passed, lane.delayed);
            context.print(
                Level::Info,
                format_args!("{}: {passed} messages passed, {delayed} of them delayed", name(from)),
            );
        }
    }

    /// Gives up. Frees what waits, and resumes both senders, so that neither stays paused on a
    /// closed port.
    fn refuse(&mut self, context: &mut Context, from: Port) {
        let bytes = self.lanes[index(from)].waiting_bytes;
        context.print(
            Level::Warn,
            format_args!(
                "closed: {bytes} bytes from the {}'s side wait, more than its stage has room for, and a stage beside it \
                 cannot be made to wait; lower `queue bytes`, or put `limiter` on the stage's other side",
                name(from)
            ),
        );
        self.is_closed = true;
        self.lanes = Default::default();
        for port in [Port::CLIENT, Port::SERVER] {
            context.cancel_timer(u64::from(port.0));
            context.resume(port);
            context.close(port);
        }
    }
}

impl Cell for Limiter {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if self.is_closed || index(port) >= self.lanes.len() {
            return;
        }
        let now_ns = context.now().nanoseconds;
        let rates = self.rates(port);
        let lane = &mut self.lanes[index(port)];
        if lane.waiting.is_empty() {
            let Some(wait) = lane.wait(rates, payload.len(), now_ns) else {
                lane.passed += 1;
                return context.send(port.opposite(), payload);
            };
            context.set_timer(wait, u64::from(port.0));
        }
        lane.delayed += 1;
        lane.waiting_bytes += payload.len();
        lane.waiting.push_back(payload.into());
        lane.hold_back(context, port, &self.limits);
        if lane.waiting_bytes > self.limits.queue_bytes.saturating_add(EXCESS_BYTES_MAX) {
            self.refuse(context, port);
        }
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        let from = if token == 0 { Port::CLIENT } else { Port::SERVER };
        self.advance(context, from);
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if !self.is_closed && index(port) < self.lanes.len() {
            self.lanes[index(port)].is_ending = true;
            if self.lanes[index(port)].waiting.is_empty() {
                self.advance(context, port);
            }
        }
    }
}

cell!(Limiter);

/// That of the lane; a further client's port lies beyond the lanes, which callers check.
const fn index(port: Port) -> usize {
    port.0 as usize
}

const fn name(port: Port) -> &'static str {
    if port.0 == Port::CLIENT.0 { "client" } else { "server" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    /// The default: 1,000 messages and a MiB a second from the client, 200 messages and a MiB at once.
    fn session() -> Session<Limiter> {
        Session::new()
    }

    fn sent(outputs: &[Output]) -> usize {
        outputs.iter().filter(|output| matches!(output, Output::Message { port: Port::SERVER, .. })).count()
    }

    #[test]
    fn what_comes_too_fast_waits_and_keeps_its_order() {
        let mut session = session();
        let outputs: Vec<_> = (0..210_u8).flat_map(|n| session.message(Port::CLIENT, &[n])).collect();
        assert_eq!(sent(&outputs), 200);
        let later = session.advance(Duration::from_millis(4));
        let expected: Vec<_> = (200..204).map(|n| Output::message(Port::SERVER, &[n])).collect();
        assert_eq!(later, expected);
        assert_eq!(sent(&session.advance(Duration::from_secs(1))), 6);
        assert_eq!(session.timers().count(), 0);
        // The other direction has its own buckets.
        assert_eq!(session.message(Port::SERVER, b"x"), [Output::message(Port::CLIENT, b"x")]);
    }

    #[test]
    fn bytes_count_too() {
        let mut session = session();
        let half = vec![0; 512 << 10];
        let sizes: Vec<_> = (0..4).map(|_| sent(&session.message(Port::CLIENT, &half))).collect();
        assert_eq!(sizes, [1, 1, 0, 0]);
        assert_eq!(sent(&session.advance(Duration::from_millis(500))), 1);
        assert_eq!(sent(&session.advance(Duration::from_millis(499))), 0);
        assert_eq!(sent(&session.advance(Duration::from_millis(1))), 1);
    }

    #[test]
    fn an_end_waits_for_what_was_sent_before_it() {
        let mut session = session();
        (0..=200_u8).for_each(|n| _ = session.message(Port::CLIENT, &[n]));
        assert_eq!(session.close(Port::CLIENT), []);
        let expected = [Output::message(Port::SERVER, &[200]), Output::close(Port::SERVER)];
        assert_eq!(session.advance(Duration::from_secs(1)), expected);
        assert_eq!(session.lines()[0].1, "client: 201 messages passed, 1 of them delayed");
        assert_eq!(session.close(Port::SERVER), [Output::close(Port::CLIENT)]);
    }

    #[test]
    fn a_sender_that_is_too_fast_waits_and_gets_on_before_the_queue_is_empty() {
        let mut session = session();
        // 200 pass at once, and 1,024 may wait.
        let outputs: Vec<_> = (0..1224).flat_map(|_| session.message(Port::CLIENT, b"x")).collect();
        assert_eq!((sent(&outputs), session.is_paused(Port::CLIENT)), (200, false));
        // Messages that it still sends are kept.
        (0..500).for_each(|_| assert_eq!(session.message(Port::CLIENT, b"x"), []));
        assert!(session.is_paused(Port::CLIENT) && !session.is_paused(Port::SERVER));
        assert_eq!(sent(&session.advance(Duration::from_millis(1011))), 1011);
        assert!(session.is_paused(Port::CLIENT));
        assert_eq!(sent(&session.advance(Duration::from_millis(1))), 1);
        assert!(!session.is_paused(Port::CLIENT), "512 wait");
        assert_eq!(session.close(Port::CLIENT), []);
        let rest = session.advance(Duration::from_secs(1));
        assert_eq!((sent(&rest), rest.last()), (512, Some(&Output::close(Port::SERVER))));
        assert_eq!(session.timers().count(), 0);
    }

    #[test]
    fn large_messages_make_a_sender_wait_by_their_bytes() {
        let mut session = session();
        let piece = vec![0; 64 << 10];
        // The burst is 16 pieces, and the queue holds another 16.
        (0..32).for_each(|_| _ = session.message(Port::CLIENT, &piece));
        assert!(!session.is_paused(Port::CLIENT));
        _ = session.message(Port::CLIENT, &piece);
        assert!(session.is_paused(Port::CLIENT));
        assert_eq!(sent(&session.advance(Duration::from_millis(562))), 8);
        assert!(session.is_paused(Port::CLIENT));
        assert_eq!(sent(&session.advance(Duration::from_millis(1))), 1);
        assert!(!session.is_paused(Port::CLIENT), "half of it waits");
    }

    #[test]
    fn what_no_pause_holds_back_closes_the_session_before_there_is_no_room() {
        let mut session = session();
        let big = vec![0; 1 << 20];
        let outputs: Vec<_> = (0..8).flat_map(|_| session.message(Port::CLIENT, &big)).collect();
        assert_eq!(sent(&outputs), 1);
        assert_eq!(outputs[1..], [Output::close(Port::CLIENT), Output::close(Port::SERVER)]);
        assert!(session.lines()[0].1.starts_with("closed: 7340032 bytes from the client's side wait"));
        assert_eq!(session.message(Port::SERVER, b"x"), []);
        assert_eq!(session.advance(Duration::from_secs(10)), []);
    }
}
