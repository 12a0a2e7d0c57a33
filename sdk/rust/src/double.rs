//! A scripted host, for native tests of a cell in microseconds and without an edge.
//!
//! [`Session`] creates the cell as deployment does and hands it inputs; each call returns the outputs
//! of that one handler. Time advances only with [`Session::advance`]; randomness comes from a seed. It has no quotas, logs or
//! recovery.

use core::{net::SocketAddr, time::Duration};

use alloc::{
    borrow::ToOwned,
    boxed::Box,
    collections::{BTreeMap, BTreeSet, VecDeque},
    string::{String, ToString},
    vec::Vec,
};

use crate::{Cell, Context, Level, Port, PortKind, Unread, context::PeerField};

/// A visible effect of a handler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output {
    /// [`Context::send`].
    Message {
        /// The receiving port.
        port: Port,
        /// Its bytes.
        payload: Vec<u8>,
    },
    /// [`Context::close`].
    Close {
        /// The closed port.
        port: Port,
    },
    /// [`Context::connect`].
    Connect {
        /// The port that will lead to the server.
        port: Port,
        /// The server's name.
        server: String,
    },
}

impl Output {
    /// An expected message.
    #[must_use]
    pub fn message(port: Port, payload: &[u8]) -> Self {
        Self::Message { port, payload: payload.to_owned() }
    }

    /// An expected close.
    #[must_use]
    pub const fn close(port: Port) -> Self {
        Self::Close { port }
    }

    /// An expected connection, the `nth` of the cell, counted from 0. Open it with [`Session::open`], or close it with [`Session::close`].
    #[must_use]
    pub fn connect(nth: u32, server: &str) -> Self {
        Self::Connect { port: Port(Port::FIRST_CONNECTED.0 + nth), server: server.to_owned() }
    }
}

/// A generator for tests, `SplitMix64`: any seed is good, and the sequences of adjacent seeds do not overlap.
#[derive(Clone, Default, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The same seed gives the same numbers.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// 64 random bits.
    pub const fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Less than `bound`.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.word() % bound as u64).expect("it is less than `bound`")
    }

    /// One of the choices.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// Signs for a cell under test.
pub type Signer = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// The host's side of the double: what has been scripted, and what the handler did.
#[derive(Default)]
pub(crate) struct Script {
    outputs: Vec<Output>,
    paused: BTreeSet<Port>,
    connects: u32,
    lines: Vec<(Level, String)>,
    /// Due time and, for equal times, the order in which they were set, by token.
    timers: BTreeMap<u64, (i64, u64)>,
    timers_set: u64,
    tasks: Tasks,
    now_ns: i64,
    random: Random,
    keys: Vec<Signer>,
    objects: BTreeMap<String, Result<Option<Vec<u8>>, Unread>>,
    peers: BTreeMap<(Port, PeerField), String>,
}

impl Script {
    pub(crate) fn send(&mut self, port: Port, payload: &[u8]) {
        self.outputs.push(Output::message(port, payload));
    }

    pub(crate) fn peer(&mut self, port: Port, field: PeerField) -> Option<String> {
        self.peers.get(&(port, field)).cloned()
    }

    pub(crate) fn now(&mut self) -> i64 {
        self.now_ns
    }

    pub(crate) fn random(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.random.word().to_le_bytes()[..chunk.len()]);
        }
    }

    pub(crate) fn sign(&mut self, key: u32, message: &[u8]) -> Vec<u8> {
        let signer = usize::try_from(key).ok().and_then(|key| self.keys.get(key));
        signer.expect("a cell signs with keys that it was given")(message)
    }

    pub(crate) fn cache(&mut self, key: &str) -> Result<Option<Vec<u8>>, Unread> {
        self.objects.get(key).cloned().unwrap_or(Ok(None))
    }

    pub(crate) fn timer(&mut self, delay_ns: i64, token: u64) {
        self.timers_set += 1;
        self.timers.insert(token, (self.now_ns.saturating_add(delay_ns.max(0)), self.timers_set));
    }

    pub(crate) fn timer_cancel(&mut self, token: u64) {
        self.timers.remove(&token);
    }

    pub(crate) fn spawn(&mut self, token: u64) {
        self.tasks.spawn(token);
    }

    pub(crate) fn lock(&mut self, id: u64, token: u64) {
        self.tasks.lock(id, token);
    }

    pub(crate) fn unlock(&mut self, id: u64) {
        self.tasks.unlock(id);
    }

    pub(crate) fn close(&mut self, port: Port) {
        self.outputs.push(Output::close(port));
    }

    pub(crate) fn connect(&mut self, server: &str) -> Port {
        let port = Port(Port::FIRST_CONNECTED.0 + self.connects);
        self.connects += 1;
        self.outputs.push(Output::Connect { port, server: server.to_owned() });
        port
    }

    pub(crate) fn pause(&mut self, port: Port) {
        self.paused.insert(port);
    }

    pub(crate) fn resume(&mut self, port: Port) {
        self.paused.remove(&port);
    }

    pub(crate) fn print(&mut self, level: Level, line: &str) {
        self.lines.push((level, line.to_owned()));
    }

    /// The timer that is due next and not after `limit_ns`.
    fn due(&self, limit_ns: i64) -> Option<(u64, i64)> {
        let (token, (at_ns, _)) = self.timers.iter().min_by_key(|(_, due)| **due)?;
        (*at_ns <= limit_ns).then_some((*token, *at_ns))
    }
}

/// Tasks and locks, with the host's rules.
#[derive(Default)]
struct Tasks {
    turns: VecDeque<u64>,
    /// The holder of each lock, followed by the waiting tasks.
    locks: BTreeMap<u64, VecDeque<u64>>,
    running: Option<u64>,
}

impl Tasks {
    /// The lock that a task waits for.
    fn awaited(&self, token: u64) -> Option<u64> {
        let waits = |queue: &VecDeque<u64>| queue.iter().skip(1).any(|waiting| *waiting == token);
        self.locks.iter().find(|(_, queue)| waits(queue)).map(|(id, _)| *id)
    }

    fn spawn(&mut self, token: u64) {
        if self.awaited(token).is_none() && !self.turns.contains(&token) {
            self.turns.push_back(token);
        }
    }

    fn lock(&mut self, id: u64, token: u64) {
        let awaited = self.awaited(token);
        assert!(awaited.is_none_or(|other| other == id), "task {token} waits for another lock");
        let queue = self.locks.entry(id).or_default();
        if queue.is_empty() {
            queue.push_back(token);
        }
        if queue.front() == Some(&token) {
            return self.spawn(token);
        }
        if awaited.is_none() {
            queue.push_back(token);
            self.turns.retain(|waiting| *waiting != token);
            assert!(!self.is_circle(token), "tasks wait for each other's locks");
        }
    }

    fn is_circle(&self, first: u64) -> bool {
        let mut token = first;
        while let Some(id) = self.awaited(token) {
            token = self.locks[&id][0];
            if token == first {
                return true;
            }
        }
        false
    }

    fn unlock(&mut self, id: u64) {
        let running = self.running.expect("only a task gives a lock back");
        let queue = self.locks.get_mut(&id).filter(|queue| queue.front() == Some(&running));
        let queue = queue.expect("a task gives back a lock that it holds");
        queue.pop_front();
        match queue.front().copied() {
            Some(next) => self.spawn(next),
            None => _ = self.locks.remove(&id),
        }
    }
}

/// One cell with a scripted host.
pub struct Session<T> {
    cell: T,
    context: Context,
}

impl<T: Cell> Default for Session<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Cell> Session<T> {
    /// A fresh cell, before any port is open; time is 0 and the random seed is 1.
    #[must_use]
    pub fn new() -> Self {
        Self::of(T::default())
    }

    /// As [`Session::new`], with a cell that was not created by `Default`.
    #[must_use]
    pub fn of(cell: T) -> Self {
        Self { cell, context: Context { host: Script { random: Random::new(1), ..Script::default() } } }
    }

    /// Seeds the values of [`Context::fill_random`] from now on.
    pub fn seed(&mut self, seed: u64) {
        self.context.host.random = Random::new(seed);
    }

    /// Adds the next key of [`Context::sign`].
    pub fn key(&mut self, signer: Signer) {
        self.context.host.keys.push(signer);
    }

    /// The result of [`Context::cache`] for a key from now on; no object for other keys.
    pub fn cached(&mut self, key: &str, object: Result<Option<&[u8]>, Unread>) {
        let object = object.map(|object| object.map(<[u8]>::to_vec));
        self.context.host.objects.insert(key.to_owned(), object);
    }

    /// The results of [`Context::client_address`], [`Context::client_listener`] and [`Context::client_identity`] for a client
    /// from now on; none for other clients.
    pub fn client(
        &mut self,
        port: Port,
        address: SocketAddr,
        listener: Option<&str>,
        identity: Option<&str>,
    ) {
        let address = Some(address.to_string());
        let texts = [
            (PeerField::Address, address),
            (PeerField::Listener, listener.map(ToString::to_string)),
            (PeerField::Identity, identity.map(ToString::to_string)),
        ];
        for (field, text) in texts {
            self.context.host.peers.remove(&(port, field));
            self.context.host.peers.extend(text.map(|text| ((port, field), text)));
        }
    }

    /// The cell's state.
    #[must_use]
    pub const fn cell(&self) -> &T {
        &self.cell
    }

    /// Everything printed so far.
    #[must_use]
    pub fn lines(&self) -> &[(Level, String)] {
        &self.context.host.lines
    }

    /// Tokens of the timers that are set, in order of token.
    pub fn timers(&self) -> impl Iterator<Item = u64> {
        self.context.host.timers.keys().copied()
    }

    /// Whether the cell has paused a port. The double delivers messages to it all the same: within the peer's credit, messages
    /// still arrive.
    #[must_use]
    pub fn is_paused(&self, port: Port) -> bool {
        self.context.host.paused.contains(&port)
    }

    /// Tokens of the queued tasks, in order.
    pub fn tasks(&self) -> impl Iterator<Item = u64> {
        self.context.host.tasks.turns.iter().copied()
    }

    /// Runs the first queued task; none if the queue is empty.
    pub fn run_task(&mut self) -> Option<Vec<Output>> {
        let token = self.context.host.tasks.turns.pop_front()?;
        self.context.host.tasks.running = Some(token);
        let outputs = self.handle(|cell, context| cell.task(context, token));
        self.context.host.tasks.running = None;
        Some(outputs)
    }

    /// Opens a peer on any port.
    pub fn open(&mut self, port: Port, kind: PortKind) -> Vec<Output> {
        self.handle(|cell, context| cell.opened(context, port, kind))
    }

    /// Opens the client.
    pub fn open_client(&mut self) -> Vec<Output> {
        self.open(Port::CLIENT, PortKind::Client)
    }

    /// Opens the server.
    pub fn open_server(&mut self) -> Vec<Output> {
        self.open(Port::SERVER, PortKind::Server)
    }

    /// A message from a peer.
    pub fn message(&mut self, port: Port, payload: &[u8]) -> Vec<Output> {
        self.handle(|cell, context| cell.message(context, port, payload))
    }

    /// A peer closes: it will send no more.
    pub fn close(&mut self, port: Port) -> Vec<Output> {
        self.handle(|cell, context| cell.closed(context, port))
    }

    /// Advances time. Timers that become due run at their time, also those that are set meanwhile.
    pub fn advance(&mut self, by: Duration) -> Vec<Output> {
        let by_ns = i64::try_from(by.as_nanos()).unwrap_or(i64::MAX);
        let limit_ns = self.context.host.now_ns.saturating_add(by_ns);
        let mut outputs = Vec::new();
        while let Some((token, at_ns)) = self.context.host.due(limit_ns) {
            self.context.host.timers.remove(&token);
            self.context.host.now_ns = self.context.host.now_ns.max(at_ns);
            outputs.append(&mut self.handle(|cell, context| cell.timer(context, token)));
        }
        self.context.host.now_ns = limit_ns;
        outputs
    }

    fn handle(&mut self, handler: impl FnOnce(&mut T, &mut Context)) -> Vec<Output> {
        handler(&mut self.cell, &mut self.context);
        core::mem::take(&mut self.context.host.outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each message with the time, sets the timer that the first byte names by the delay that the second
    /// names, and cancels the one that a third names.
    #[derive(Default)]
    struct Clock;

    impl Cell for Clock {
        fn message(&mut self, context: &mut Context, _: Port, payload: &[u8]) {
            if let [token, delay_ms, rest @ ..] = payload {
                context.set_timer(Duration::from_millis(u64::from(*delay_ms)), u64::from(*token));
                rest.iter().for_each(|token| context.cancel_timer(u64::from(*token)));
            }
        }

        fn timer(&mut self, context: &mut Context, token: u64) {
            let line = alloc::format!("{token}@{}", context.now().nanoseconds / 1_000_000);
            context.send_to_client(line.as_bytes());
            if token == 9 {
                context.set_timer(Duration::from_millis(10), 8);
            }
        }
    }

    fn fired(script: &[&[u8]], advance_ms: u64) -> Vec<String> {
        let mut session = Session::<Clock>::new();
        script.iter().for_each(|message| assert!(session.message(Port::CLIENT, message).is_empty()));
        let outputs = session.advance(Duration::from_millis(advance_ms));
        let text = |output: &Output| match output {
            Output::Message { payload, .. } => String::from_utf8_lossy(payload).into_owned(),
            Output::Close { port } => alloc::format!("close {}", port.0),
            Output::Connect { server, .. } => alloc::format!("connect {server}"),
        };
        outputs.iter().map(text).collect()
    }

    #[test]
    fn timers_fire_in_order_of_time_then_of_setting() {
        assert_eq!(fired(&[&[1, 30], &[2, 10], &[3, 10]], 30), ["2@10", "3@10", "1@30"]);
        assert_eq!(fired(&[&[1, 30]], 29), [""; 0]);
    }

    #[test]
    fn setting_again_replaces_and_cancelling_forgets() {
        assert_eq!(fired(&[&[1, 10], &[1, 20]], 100), ["1@20"]);
        assert_eq!(fired(&[&[1, 10], &[2, 20, 1]], 100), ["2@20"]);
    }

    #[test]
    fn a_timer_may_set_another_that_is_due_in_the_same_stretch() {
        assert_eq!(fired(&[&[9, 10]], 100), ["9@10", "8@20"]);
    }

    /// Answers with what is known of the sender.
    #[derive(Default)]
    struct Who;

    impl Cell for Who {
        fn message(&mut self, context: &mut Context, port: Port, _: &[u8]) {
            let known =
                (context.client_address(port), context.client_listener(port), context.client_identity(port));
            context.send(port, alloc::format!("{known:?}").as_bytes());
        }
    }

    #[test]
    fn a_cell_asks_for_its_clients_identities() {
        let mut session = Session::<Who>::new();
        let further = Port(2);
        session.client(further, ([192, 0, 2, 9], 4_000).into(), Some("web"), Some("a"));
        session.client(further, ([192, 0, 2, 9], 4_000).into(), Some("web"), None);
        let said = [Port::CLIENT, further].map(|port| session.message(port, b"who?"));
        let expected = ["(None, None, None)", "(Some(192.0.2.9:4000), Some(\"web\"), None)"];
        let expected = [Port::CLIENT, further].into_iter().zip(expected);
        let expected: Vec<_> =
            expected.map(|(port, text)| alloc::vec![Output::message(port, text.as_bytes())]).collect();
        assert_eq!(said.to_vec(), expected);
    }

    #[test]
    fn randomness_follows_the_seed() {
        let draw = |seed: u64| {
            let mut context = Context { host: Script { random: Random::new(seed), ..Script::default() } };
            let mut bytes = [0; 13];
            context.fill_random(&mut bytes);
            (bytes, context.random_u64())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
