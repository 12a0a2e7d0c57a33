//! Clients that send one image repeatedly, each over its own connection, and know the expected answer.
//!
//! ```text
//! request  3,072 bytes: an image          answer  41 bytes, the class first
//! ```
//! All connections are on one thread. In the closed loop each client has one image in flight; in
//! the open loop images are due at random times that are the same in every run, and wait at their
//! client if it still has one in flight.

use anyhow::Context;
use marram_wire::seeded::Seeded;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

/// Bytes of an image in the input format of `cells/services/classify`.
const IMAGE_BYTES: usize = 3_072;
/// Bytes of an answer.
const ANSWER_BYTES: usize = 41;
/// How long an answer may take before the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = [u8; ANSWER_BYTES];

/// Connected clients of one side.
pub(super) struct Clients {
    /// Dropped before the runtime with which they are registered.
    streams: Vec<TcpStream>,
    /// The first answer. The network has no state, so every later answer must be equal to it.
    answer: Answer,
    runtime: Runtime,
}

impl Clients {
    /// Connects them sequentially; each has received one answer.
    pub(super) fn connect(address: SocketAddr, count: usize) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut streams, mut answer) = (Vec::with_capacity(count), [0; ANSWER_BYTES]);
        runtime.block_on(async {
            for _ in 0..count {
                let mut stream = TcpStream::connect(address).await.context("a client cannot connect")?;
                stream.set_nodelay(true)?;
                answer = ask(&mut stream).await?;
                streams.push(stream);
            }
            anyhow::Ok(())
        })?;
        Ok(Self { streams, answer, runtime })
    }

    /// The answer to the image.
    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The class in the answer.
    pub(super) fn class(&self) -> u8 {
        self.answer[0]
    }

    /// Each client sends the next image when it has its answer. Returns the images a second, and each one's wait in milliseconds.
    pub(super) fn closed_loop(&mut self, time: Duration) -> anyhow::Result<(f64, Vec<f64>)> {
        let right = self.answer;
        let begun = Instant::now();
        let client = move |mut stream: TcpStream| async move {
            let mut waits = Vec::new();
            while begun.elapsed() < time {
                let asked = Instant::now();
                check(&mut stream, &right).await?;
                waits.push(asked.elapsed().as_secs_f64() * 1e3);
            }
            Ok((stream, waits))
        };
        let streams = std::mem::take(&mut self.streams);
        let waits = self.runtime.block_on(async {
            let tasks = streams.into_iter().map(|stream| tokio::spawn(client(stream))).collect();
            gather(tasks, &mut self.streams).await
        })?;
        let waits: Vec<f64> = waits.into_iter().flatten().collect();
        #[expect(clippy::cast_precision_loss, reason = "thousands")]
        Ok((waits.len() as f64 / begun.elapsed().as_secs_f64(), waits))
    }

    /// How long each image waited for its answer, in milliseconds from its due time. Due times are random, `rate` a second, and
    /// do not depend on earlier answers; clients take turns.
    pub(super) fn waits_ms(&mut self, rate: f64, time: Duration) -> anyhow::Result<Vec<f64>> {
        let right = self.answer;
        let streams = std::mem::take(&mut self.streams);
        let waits = self.runtime.block_on(async {
            let (mut queues, mut tasks) = (Vec::new(), Vec::new());
            for stream in streams {
                let (queue, due) = unbounded_channel();
                queues.push(queue);
                tasks.push(tokio::spawn(serve(stream, due, right)));
            }
            let begun = Instant::now();
            for (queue, after) in queues.iter().cycle().zip(arrivals(rate, time)) {
                tokio::time::sleep_until((begun + after).into()).await;
                // If a client has failed, its result below says so.
                let _ = queue.send(begun + after);
            }
            drop(queues);
            gather(tasks, &mut self.streams).await
        })?;
        Ok(waits.into_iter().flatten().collect())
    }
}

/// Serves one client: sends an image for each due time that it receives. The queue has due times,
/// oldest first: a client that is late has several.
async fn serve(
    mut stream: TcpStream,
    mut due: UnboundedReceiver<Instant>,
    right: Answer,
) -> anyhow::Result<(TcpStream, Vec<f64>)> {
    let mut waits = Vec::new();
    while let Some(at) = due.recv().await {
        check(&mut stream, &right).await?;
        waits.push(at.elapsed().as_secs_f64() * 1e3);
    }
    Ok((stream, waits))
}

/// Sends an image and compares the answer.
async fn check(stream: &mut TcpStream, right: &Answer) -> anyhow::Result<()> {
    let answer = ask(stream).await?;
    anyhow::ensure!(answer == *right, "the same image got another answer");
    Ok(())
}

/// The image is the same for all clients and both variants.
async fn ask(stream: &mut TcpStream) -> anyhow::Result<Answer> {
    let mut image = [0; IMAGE_BYTES];
    // A gradient in each colour: the network takes the same time for any image.
    image.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, level)| *byte = level);
    let mut answer = [0; ANSWER_BYTES];
    stream.write_all(&image).await?;
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.context("no answer in time")??;
    Ok(answer)
}

/// Collects the results of all clients and keeps their connections for the next block.
async fn gather<T>(
    tasks: Vec<JoinHandle<anyhow::Result<(TcpStream, T)>>>,
    streams: &mut Vec<TcpStream>,
) -> anyhow::Result<Vec<T>> {
    let mut found = Vec::with_capacity(tasks.len());
    for task in tasks {
        let (stream, what) = task.await??;
        streams.push(stream);
        found.push(what);
    }
    Ok(found)
}

/// Due times of images, with exponential gaps as of many independent clients; the same in each run.
///
/// A linear congruential generator with a fixed seed, so that both variants get the same arrivals.
/// `rate` is in images a second.
pub(in super::super) fn arrivals(rate: f64, time: Duration) -> impl Iterator<Item = Duration> {
    let (mut numbers, mut at) = (Seeded::new(1), 0.0);
    std::iter::from_fn(move || {
        let part = u32::try_from(numbers.word() >> 32).expect("32 bits");
        at -= (1.0 - f64::from(part) / (f64::from(u32::MAX) + 1.0)).ln() / rate;
        Some(Duration::from_secs_f64(at))
    })
    .take_while(move |at| *at < time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_images_are_due_as_the_rate_says() {
        let count = arrivals(1_000.0, Duration::from_secs(10)).count();
        assert!((9_500..10_500).contains(&count), "{count}");
    }
}
