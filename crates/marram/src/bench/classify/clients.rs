//! Clients that send one image again and again, each over a connection of its own, and know what must come back.

use anyhow::Context;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

/// Bytes of an image, as `cells/classify` takes it.
const IMAGE_BYTES: usize = 3_072;
/// Bytes of what it answers.
const ANSWER_BYTES: usize = 41;
/// How long an answer may take before the measurement is given up.
const PATIENCE: Duration = Duration::from_secs(60);

type Answer = [u8; ANSWER_BYTES];

/// Connected clients of one side.
pub(super) struct Clients {
    /// Before the runtime that they are registered with.
    streams: Vec<TcpStream>,
    answer: Answer,
    runtime: Runtime,
}

impl Clients {
    /// Connects them, one after the other; each has been answered once.
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

    /// What the image is answered.
    pub(super) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// What it is seen to be.
    pub(super) fn class(&self) -> u8 {
        self.answer[0]
    }

    /// Every client sends the next image when it has its answer. The images a second, and how long each waited, in milliseconds.
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

    /// How long each image waited for its answer, in milliseconds from when it was due. They are due `rate` times a second,
    /// at random, whether or not those before were answered; clients have their turns one after the other.
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
                // A client that has failed says so below.
                let _ = queue.send(begun + after);
            }
            drop(queues);
            gather(tasks, &mut self.streams).await
        })?;
        Ok(waits.into_iter().flatten().collect())
    }
}

/// One client: asks when it is told to.
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

async fn check(stream: &mut TcpStream, right: &Answer) -> anyhow::Result<()> {
    let answer = ask(stream).await?;
    anyhow::ensure!(answer == *right, "the same image got another answer");
    Ok(())
}

async fn ask(stream: &mut TcpStream) -> anyhow::Result<Answer> {
    let mut image = [0; IMAGE_BYTES];
    // A slope in each colour: any image takes the network the same time.
    image.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(byte, level)| *byte = level);
    let mut answer = [0; ANSWER_BYTES];
    stream.write_all(&image).await?;
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.context("no answer in time")??;
    Ok(answer)
}

/// What each client found; their connections are kept for the next block.
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

/// When images are due: with exponential gaps, as of many clients that know nothing of one another, the same in each run.
pub(in super::super) fn arrivals(rate: f64, time: Duration) -> impl Iterator<Item = Duration> {
    let (mut state, mut at) = (1_u32, 0.0);
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        at -= (1.0 - f64::from(state) / (f64::from(u32::MAX) + 1.0)).ln() / rate;
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
