//! Another client of the cell that a conversation is with, where clients share it: it says nothing and hears what the talking one has
//! forwarded, which must be the same stream.
//!
//! It is where the talking client is not: behind the gate if that one has an agent, and the reverse.

use super::model::{Wrong, compare};
use crate::{peer, pinger};
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long it may take until all has arrived.
const PATIENCE: Duration = Duration::from_secs(60);

/// What it has heard.
#[derive(Default)]
struct Heard {
    /// Position in the stream.
    at: u64,
    wrong: Wrong,
    /// Why its connection is over.
    over: Option<String>,
}

/// The client that listens.
pub(super) struct Listener {
    stream: TcpStream,
    heard: Arc<(Mutex<Heard>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Connects, and is in the cell when this returns: it hears all that is forwarded from then on.
    pub(super) fn join(address: SocketAddr) -> anyhow::Result<Self> {
        let mut stream = peer::connect(address)?;
        pinger::ask(&mut stream, b'S', 0, 0)?;
        // It waits as long as the talking client is idle.
        stream.set_read_timeout(None)?;
        let (reading, heard) = (stream.try_clone()?, Arc::default());
        let shared = Arc::clone(&heard);
        let thread = Some(std::thread::spawn(move || listen(reading, &shared)));
        Ok(Self { stream, heard, thread })
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was wrong with what it has heard.
    pub(super) fn wrong(&self) -> Wrong {
        self.lock().wrong
    }

    /// Why its connection is over, once it is.
    pub(super) fn why(&self) -> Option<String> {
        self.lock().over.clone()
    }

    /// Waits until it has heard all up to this position, or its connection is over. Bytes that do not come are lost.
    pub(super) fn wait_for(&self, at: u64) {
        let is_missing = |heard: &mut Heard| heard.at < at && heard.over.is_none();
        let waited = self.heard.1.wait_timeout_while(self.lock(), PATIENCE, is_missing);
        let (mut heard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if heard.at < at && heard.over.is_none() {
            heard.wrong.lost += at - heard.at;
            heard.over = Some("it hears nothing any more".into());
        }
    }

    /// Waits until its connection is over; returns whether it is.
    pub(super) fn wait_for_end(&self) -> bool {
        let waited = self.heard.1.wait_timeout_while(self.lock(), PATIENCE, |heard| heard.over.is_none());
        let (heard, _) = waited.unwrap_or_else(PoisonError::into_inner);
        heard.over.is_some()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be over already.
        _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // It has said what it heard.
            _ = thread.join();
        }
    }
}

/// Compares what comes, until the connection is over.
fn listen(mut stream: TcpStream, shared: &(Mutex<Heard>, Condvar)) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let read = stream.read(&mut buffer);
        let mut heard = shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(0) => heard.over = Some("it was closed".into()),
            Err(error) => heard.over = Some(error.to_string()),
            Ok(len) => {
                let wrong = compare(heard.at, &buffer[..len]);
                heard.wrong.add(wrong.unwrap_or_default());
                heard.at += len as u64;
            }
        }
        shared.1.notify_all();
        if heard.over.is_some() {
            return;
        }
    }
}
