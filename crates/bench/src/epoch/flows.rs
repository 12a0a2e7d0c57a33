//! Clients that ask over some connections, and the server that answers them. Each message says how long its answer is to be; each
//! answer is compared with the expected one.
//!
//! ```text
//! request, answer:  | length 4 | length of the answer 4 | number 8 | the number's lowest byte, again and again |
//! open loop:    requests are due at random times of an absolute schedule, and an answer's wait counts from then
//! closed loop:  each connection has one request under way
//! ```
//! They know nothing of edges. The server's answers may be delayed, as if it were far away.

use crate::{cpu, peer};
use anyhow::Context;
use marram_wire::seeded::Seeded;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

const HEADER: usize = 16;
/// Bytes of the longest message.
const LONGEST: u32 = 100 << 10;
/// Time between the making of a schedule and its first request, in which threads start.
const LEAD: Duration = Duration::from_millis(20);
const READ: usize = 64 << 10;

/// How long requests and answers are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sizes {
    /// All of them 1,400 bytes, as in chapter 4.5 of the paper.
    Fixed,
    /// Lognormal, 10 KB on average with a standard deviation of 1 KB, as in its 4.5.2.
    Http,
}

impl Sizes {
    fn next(self, numbers: &mut Seeded) -> u32 {
        match self {
            Self::Fixed => 1_400,
            Self::Http => lognormal(numbers),
        }
    }
}

fn lognormal(numbers: &mut Seeded) -> u32 {
    const MEAN: f64 = 10_240.0;
    const DEVIATION: f64 = 1_024.0;
    let variance = (1.0 + (DEVIATION / MEAN).powi(2)).ln();
    let (radius, angle) = ((-2.0 * unit(numbers).ln()).sqrt(), std::f64::consts::TAU * unit(numbers));
    let length = (MEAN.ln() - variance / 2.0 + variance.sqrt() * radius * angle.cos()).exp();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the limits")]
    let length = length.clamp(HEADER as f64, f64::from(LONGEST)) as u32;
    length
}

/// A random number above 0 and up to 1.
fn unit(numbers: &mut Seeded) -> f64 {
    let bits = u32::try_from(numbers.word() >> 33).expect("31 bits");
    (f64::from(bits) + 1.0) / f64::from(1_u32 << 31)
}

/// The server of all connections, until the program ends.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    delay_ns: Arc<AtomicU64>,
}

impl Server {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
        let server = Self { address: listener.local_addr()?, delay_ns: Arc::default() };
        let delay_ns = Arc::clone(&server.delay_ns);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let delay_ns = Arc::clone(&delay_ns);
                // The thread ends when its client disconnects.
                std::thread::spawn(move || serve(stream, &delay_ns));
            }
        });
        Ok(server)
    }

    /// Holds every answer back for so long from now on: this is how far away it is, there and back. Nothing may be under way.
    pub(crate) fn set_delay(&self, delay: Duration) {
        self.delay_ns.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

fn serve(stream: TcpStream, delay_ns: &AtomicU64) -> anyhow::Result<()> {
    cpu::run_first();
    stream.set_nodelay(true)?;
    let mut delayed = stream.try_clone()?;
    let (line, answers) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        cpu::run_first();
        for (due, answer) in answers {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if delayed.write_all(&answer).is_err() {
                return;
            }
        }
    });
    let mut reader = BufReader::with_capacity(READ, stream.try_clone()?);
    loop {
        let Message { answer, number } = read(&mut reader)?;
        let answer = message(number, answer, 0);
        match delay_ns.load(Ordering::Relaxed) {
            0 => (&stream).write_all(&answer)?,
            delay => line.send((Instant::now() + Duration::from_nanos(delay), answer))?,
        }
    }
}

struct Message {
    answer: u32,
    number: u64,
}

fn message(number: u64, length: u32, answer: u32) -> Vec<u8> {
    let mut bytes = vec![number.to_le_bytes()[0]; length as usize];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..8].copy_from_slice(&answer.to_le_bytes());
    bytes[8..HEADER].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Reads one message, and checks that it is one.
fn read(from: &mut impl Read) -> anyhow::Result<Message> {
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let (length, answer) = (word(0), word(4));
    let number = u64::from(word(8)) | u64::from(word(12)) << 32;
    let is_possible = |length: u32| (HEADER..=LONGEST as usize).contains(&(length as usize));
    anyhow::ensure!(is_possible(length) && (answer == 0 || is_possible(answer)), "no message: {header:?}");
    let mut rest = vec![0; length as usize - HEADER];
    from.read_exact(&mut rest)?;
    let filled = number.to_le_bytes()[0];
    anyhow::ensure!(rest.iter().all(|byte| *byte == filled), "message {number} is not what was sent");
    Ok(Message { answer, number })
}

/// A request that is due.
struct Exchange {
    due: Duration,
    length: u32,
    answer: u32,
}

/// An answer, by the time since the begin of its loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) due: Duration,
    pub(crate) at: Duration,
}

impl Answered {
    pub(crate) fn wait(self) -> Duration {
        self.at.saturating_sub(self.due)
    }
}

/// What one connection got in one loop.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) answered: Vec<Answered>,
    /// Why it broke, if it did.
    pub(crate) broken: Option<anyhow::Error>,
}

/// One connection.
struct Flow {
    stream: TcpStream,
    reader: Mutex<BufReader<TcpStream>>,
    asked: AtomicU64,
    /// The number of the next answer.
    next: AtomicU64,
}

impl Flow {
    fn ask(&self, length: u32, answer: u32) -> std::io::Result<()> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        (&self.stream).write_all(&message(number, length, answer))
    }
}

/// Some connections to one address.
pub(crate) struct Flows {
    flows: Vec<Flow>,
    lost: AtomicU64,
    repeated: AtomicU64,
}

impl Flows {
    /// Connects, and exchanges a message on each.
    pub(crate) fn connect(address: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let flow = |_| {
            let stream = peer::connect(address)?;
            let reader = Mutex::new(BufReader::with_capacity(READ, stream.try_clone()?));
            Ok(Flow { stream, reader, asked: AtomicU64::default(), next: AtomicU64::default() })
        };
        let flows = (0..count).map(flow).collect::<anyhow::Result<_>>()?;
        let flows = Self { flows, lost: AtomicU64::default(), repeated: AtomicU64::default() };
        for flow in &flows.flows {
            flow.ask(1_400, 1_400)?;
        }
        for flow in &flows.flows {
            flows.take(flow).context("a connection has no answer to its first request")?;
        }
        Ok(flows)
    }

    /// Reads the next answer of a connection.
    fn take(&self, flow: &Flow) -> anyhow::Result<()> {
        let mut reader = flow.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let number = read(&mut *reader)?.number;
        let expected = flow.next.swap(number + 1, Ordering::Relaxed);
        self.lost.fetch_add(number.saturating_sub(expected), Ordering::Relaxed);
        self.repeated.fetch_add(expected.saturating_sub(number), Ordering::Relaxed);
        Ok(())
    }

    /// How many answers did not come, and how many came twice.
    pub(crate) fn lost_and_repeated(&self) -> (u64, u64) {
        (self.lost.load(Ordering::Relaxed), self.repeated.load(Ordering::Relaxed))
    }

    /// Sends `per_s` requests a second, over all connections together, for this time; returns what each connection got.
    pub(crate) fn open_loop(&self, per_s: f64, time: Duration, sizes: Sizes, seed: u64) -> Vec<Heard> {
        let (order, of_flows) = self.schedule(per_s, time, sizes, seed);
        let begun = Instant::now() + LEAD;
        std::thread::scope(|scope| {
            let hears = |(flow, exchanges): (_, Vec<Exchange>)| {
                scope.spawn(move || self.hear(flow, begun, exchanges.iter().map(|it| it.due)))
            };
            let asks: Vec<(usize, Duration, u32, u32)> = {
                let mut at = vec![0; self.flows.len()];
                let ask = |flow: usize| {
                    let exchange = &of_flows[flow][at[flow]];
                    at[flow] += 1;
                    (flow, exchange.due, exchange.length, exchange.answer)
                };
                order.into_iter().map(ask).collect()
            };
            let readers: Vec<_> = self.flows.iter().zip(of_flows).map(hears).collect();
            scope.spawn(move || {
                cpu::run_first();
                for (flow, due, length, answer) in asks {
                    std::thread::sleep((begun + due).saturating_duration_since(Instant::now()));
                    // A connection that broke has its error at its reader.
                    let _ = self.flows[flow].ask(length, answer);
                }
            });
            let joined = readers.into_iter().map(|reader| reader.join().expect("a reader does not panic"));
            joined.collect()
        })
    }

    /// The connections in the order in which they ask, and what each of them asks.
    fn schedule(
        &self,
        per_s: f64,
        time: Duration,
        sizes: Sizes,
        seed: u64,
    ) -> (Vec<usize>, Vec<Vec<Exchange>>) {
        let mut numbers = Seeded::new(seed);
        let mut of_flows: Vec<Vec<Exchange>> = self.flows.iter().map(|_| Vec::new()).collect();
        let (mut order, mut due) = (Vec::new(), Duration::ZERO);
        while due < time {
            let flow = numbers.index(self.flows.len());
            let (length, answer) = (sizes.next(&mut numbers), sizes.next(&mut numbers));
            of_flows[flow].push(Exchange { due, length, answer });
            order.push(flow);
            due += Duration::from_secs_f64(-unit(&mut numbers).ln() / per_s);
        }
        (order, of_flows)
    }

    fn hear(&self, flow: &Flow, begun: Instant, due: impl Iterator<Item = Duration>) -> Heard {
        cpu::run_first();
        let mut answered = Vec::new();
        for due in due {
            if let Err(broken) = self.take(flow) {
                return Heard { answered, broken: Some(broken) };
            }
            answered.push(Answered { due, at: Instant::now().saturating_duration_since(begun) });
        }
        Heard { answered, broken: None }
    }

    /// Every connection asks again when it has its answer, for this time, and once at least; returns what each got.
    pub(crate) fn closed_loop(&self, time: Duration, sizes: Sizes, seed: u64) -> Vec<Heard> {
        let begun = Instant::now();
        let run = |flow: &Flow, seed: u64| {
            cpu::run_first();
            let (mut answered, mut numbers) = (Vec::new(), Seeded::new(seed));
            loop {
                let due = begun.elapsed();
                let asked = flow.ask(sizes.next(&mut numbers), sizes.next(&mut numbers));
                if let Err(broken) = asked.map_err(Into::into).and_then(|()| self.take(flow)) {
                    return Heard { answered, broken: Some(broken) };
                }
                let at = begun.elapsed();
                answered.push(Answered { due, at });
                if at >= time {
                    return Heard { answered, broken: None };
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (seed..).zip(&self.flows).map(|(seed, flow)| scope.spawn(move || run(flow, seed))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_as_the_paper_has_them() {
        let mut numbers = Seeded::new(1);
        let sizes: Vec<f64> = (0..20_000).map(|_| f64::from(Sizes::Http.next(&mut numbers))).collect();
        let mean = sizes.iter().sum::<f64>() / 20_000.0;
        let deviation = (sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / 20_000.0).sqrt();
        assert!((10_200.0..10_280.0).contains(&mean), "{mean}");
        assert!((980.0..1_070.0).contains(&deviation), "{deviation}");
        assert_eq!(Sizes::Fixed.next(&mut numbers), 1_400);
    }

    #[test]
    fn every_request_is_answered_in_both_loops() {
        let server = Server::start().unwrap();
        let flows = Flows::connect(server.address, 3).unwrap();
        for _ in 0..2 {
            let open = flows.open_loop(2_000.0, Duration::from_millis(100), Sizes::Http, 7);
            let closed = flows.closed_loop(Duration::from_millis(20), Sizes::Fixed, 7);
            for heard in open.iter().chain(&closed) {
                assert!(heard.broken.is_none() && !heard.answered.is_empty(), "{heard:?}");
            }
            server.set_delay(Duration::from_millis(5));
            let delayed = flows.closed_loop(Duration::from_millis(20), Sizes::Fixed, 7);
            let waits = delayed.iter().flat_map(|heard| &heard.answered).map(|answered| answered.wait());
            assert!(waits.min().unwrap() >= Duration::from_millis(5));
            server.set_delay(Duration::ZERO);
        }
        assert_eq!(flows.lost_and_repeated(), (0, 0));
    }

    #[test]
    fn what_is_not_a_message_is_noticed() {
        let mut bytes = message(300, 64, 32);
        assert_eq!(read(&mut &bytes[..]).unwrap().number, 300);
        bytes[63] ^= 1;
        assert!(read(&mut &bytes[..]).is_err());
        assert!(read(&mut &[0_u8; 64][..]).is_err());
    }
}
