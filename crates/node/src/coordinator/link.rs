//! The thread that drives an edge's coordinator client: sends the client's requests to the store, and gives it the answers, the
//! time and what the edge has; and publishes what the client knows.
//!
//! ```text
//! "coordinator-news" ──Has, Listed, Sessions──┐
//! any thread ──Ask, Leave────────────────────▶│ events (4,096) ─▶ "coordinator": CoordinatorClient::step
//! tasks: store.ask, store.watch ──Answered───▶┘                     └─▶ view (mutex), answers, log lines
//! ```
//!
//! The client decides when to ask, repeat and give up; here are the clock, the tasks and the
//! limits. All tasks run on the one thread, so the client needs no lock. The view is copied out for
//! readers, which never wait for the store.

use super::http::Store;
use super::remembered::RememberedFile;
use super::{View, http};
use crate::edge::{AdminClient, Answered};
use marram_shard::api::{App, AppVersion, NoteLevel};
use marram_shard::control::{ControlAnswer, ControlRequest};
use marram_shard::coordinator::{
    Ask, AskAnswer, CoordinatorClient, CoordinatorConfig, CoordinatorInput, CoordinatorOutput, Parts,
    StoreChange, StoreFailure, StoreReply,
    contents::{HELD_MAX, Registration},
};
use marram_transport::LogLimiter;
use marram_wire::frame::{EdgeEntry, StoreMark};
use marram_wire::limits::{EDGE_ADDRESSES_MAX, EDGES_TOLD_MAX};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet};

/// How often the thread asks the edge's control which images it has.
pub const NEWS_INTERVAL: Duration = Duration::from_secs(1);
/// How often it asks for the number of sessions, which costs the control more.
pub const LOAD_INTERVAL: Duration = Duration::from_secs(10);
/// Events that may wait for the thread.
const EVENTS_MAX: usize = 4_096;
/// How long the control may take to answer.
const CONTROL_PATIENCE: Duration = Duration::from_secs(2);

/// Something for the thread.
pub(super) enum Event {
    /// A request from this edge.
    Ask(Ask, Answered),
    /// The edge stops, and asks to be deregistered.
    Leave(SyncSender<()>),
    /// The versions of apps that the edge has, and whether it drains.
    Has(Vec<AppVersion>, bool),
    /// The number of its sessions.
    Sessions(u64),
    /// The standbys of its sessions, for the parts of the list that changed.
    Listed(Parts),
    /// An answer of the store.
    Answered(u64, Result<StoreReply, StoreFailure>),
    /// Changes that a watch reported.
    Watched(u64, Vec<StoreChange>),
    /// A watch broke.
    WatchEnded(u64, String),
}

/// Starts the thread, and one that asks the edge's control.
///
/// # Errors
/// If the operating system has no thread left.
pub(super) fn start(
    config: CoordinatorConfig,
    here: Registration,
    store: Store,
    remembered: RememberedFile,
    control: AdminClient,
    began: Instant,
) -> io::Result<(mpsc::Sender<Event>, Arc<Mutex<View>>)> {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
    let client = CoordinatorClient::new(config, 0);
    let view = Arc::new(Mutex::new(view_of(&client, &store, remembered.mark())));
    let (asking, shown, seen) = (events.clone(), Arc::clone(&view), Arc::clone(&view));
    let ask = move || ask_control(&control, &asking, &seen);
    thread::Builder::new().name("coordinator-news".into()).spawn(ask)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sender = events.clone();
    let run = move || {
        let link = Link {
            client,
            here,
            store: Rc::new(store),
            events: sender,
            view: shown,
            remembered,
            began,
            waiting: BTreeMap::new(),
            tags: 0,
            watch: None,
            leaving: None,
            wake_ns: 0,
            changed: true,
            lines: [(); 3].map(|()| LogLimiter::new(began)),
        };
        LocalSet::new().block_on(&runtime, link.run(receiver));
    };
    thread::Builder::new().name("coordinator".into()).spawn(run)?;
    Ok((events, view))
}

/// Reports what the edge has, and tells it of the other edges, until the receiver is gone.
/// A thread of its own, because the control may take seconds to answer, and leases must be kept
/// alive meanwhile. A question without an answer is repeated with the next round.
fn ask_control(control: &AdminClient, events: &mpsc::Sender<Event>, view: &Mutex<View>) {
    let (mut load_at, mut listed) = (Instant::now(), 0);
    let (mut told, mut told_mark, mut told_policies) = (Vec::new(), None, None);
    loop {
        let (edges, mark, policies) = {
            let view = view.lock().expect("no holder panics");
            (entries(&view), view.remembered.clone(), view.policies.clone())
        };
        if policies != told_policies
            && control.ask(ControlRequest::DomainPolicies(policies.clone()), CONTROL_PATIENCE).is_ok()
        {
            told_policies = policies;
        }
        if mark != told_mark
            && let Some(mark) = mark
            && control.ask(ControlRequest::StoreSeen(mark.clone()), CONTROL_PATIENCE).is_ok()
        {
            told_mark = Some(mark);
        }
        // Repeated if there is no answer.
        if edges != told && control.ask(ControlRequest::Edges(edges.clone()), CONTROL_PATIENCE).is_ok() {
            told = edges;
        }
        if let Ok(ControlAnswer::Versions(apps, draining)) =
            control.ask(ControlRequest::Versions, CONTROL_PATIENCE)
        {
            let held = apps.iter().take(HELD_MAX).map(App::version).collect();
            if events.blocking_send(Event::Has(held, draining)).is_err() {
                return;
            }
        }
        if let Ok(ControlAnswer::Placements(version, parts)) =
            control.ask(ControlRequest::Placements(listed), CONTROL_PATIENCE)
            && version > listed
        {
            listed = version;
            if events.blocking_send(Event::Listed(parts)).is_err() {
                return;
            }
        }
        if Instant::now() >= load_at
            && let Ok(ControlAnswer::Counters(figures)) =
                control.ask(ControlRequest::Counters, CONTROL_PATIENCE)
        {
            load_at = Instant::now() + LOAD_INTERVAL;
            let of_shards = figures.iter().filter(|figure| figure.counter.name == "sessions");
            let sessions = of_shards.filter(|figure| figure.counter.label.is_none());
            let sessions = sessions.map(|figure| figure.counter.value).sum();
            if events.blocking_send(Event::Sessions(sessions)).is_err() {
                return;
            }
        }
        thread::sleep(NEWS_INTERVAL);
    }
}

/// The registered edges that others can reach, as agents are told of them.
fn entries(view: &View) -> Vec<EdgeEntry> {
    let reached = view.edges.iter().filter(|(_, registration, _)| !registration.addresses.is_empty());
    let entry = |name: &String, addresses: &[String]| EdgeEntry {
        name: name.clone(),
        addresses: addresses.iter().take(EDGE_ADDRESSES_MAX).cloned().collect(),
    };
    reached.take(EDGES_TOLD_MAX).map(|(name, registration, _)| entry(name, &registration.addresses)).collect()
}

fn view_of(client: &CoordinatorClient, store: &Store, remembered: Option<&StoreMark>) -> View {
    let known = client
        .edges()
        .map(|(name, registration, holds)| (name.to_owned(), registration.clone(), holds.to_vec()));
    View {
        state: client.state().clone(),
        cannot: client.cannot().to_vec(),
        store: store.current().to_owned(),
        edges: known.collect(),
        policies: client.policies().cloned(),
        figures: client.figures(),
        reports: client.reports(),
        shown: client.store_mark(),
        doubts: client.doubts().collect(),
        remembered: remembered.cloned(),
    }
}

struct Link {
    client: CoordinatorClient,
    /// What this edge says about itself; the control's news change it.
    here: Registration,
    store: Rc<Store>,
    events: mpsc::Sender<Event>,
    view: Arc<Mutex<View>>,
    remembered: RememberedFile,
    began: Instant,
    /// Callbacks that wait for an answer, by tag.
    waiting: BTreeMap<u64, Answered>,
    /// The tag of the last question.
    tags: u64,
    /// There is at most one; its number tells late events of an older one apart.
    watch: Option<AbortHandle>,
    leaving: Option<SyncSender<()>>,
    /// When the client wants to be woken, in nanoseconds since `began`.
    wake_ns: u64,
    /// Whether the list of edges in the view is out of date.
    changed: bool,
    /// One each for errors, warnings, news.
    lines: [LogLimiter; 3],
}

impl Link {
    async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        self.step(CoordinatorInput::Here(self.here.clone()));
        loop {
            let wait = Duration::from_nanos(self.wake_ns.saturating_sub(self.now_ns()));
            match tokio::time::timeout(wait, events.recv()).await {
                Ok(Some(event)) => self.on_event(event),
                Ok(None) => return,
                Err(_) => self.step(CoordinatorInput::Wake),
            }
        }
    }

    /// Publishes the view. The list of edges changes seldom and is expensive to copy.
    fn show(&mut self) {
        let mut view = self.view.lock().expect("no holder panics");
        if std::mem::take(&mut self.changed) {
            *view = view_of(&self.client, &self.store, self.remembered.mark());
        } else {
            view.state = self.client.state().clone();
            view.cannot = self.client.cannot().to_vec();
            view.store = self.store.current().to_owned();
            view.figures = self.client.figures();
            view.reports = self.client.reports();
            view.shown = self.client.store_mark();
            view.doubts = self.client.doubts().collect();
            view.remembered = self.remembered.mark().cloned();
        }
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// `AskAnswer::Done` at once for a report: the client keeps it until the store has it, and
    /// nothing waits for that.
    fn on_event(&mut self, event: Event) {
        match event {
            Event::Ask(ask, answered) => {
                self.tags += 1;
                match ask {
                    // Reports have no answer.
                    Ask::Witness { .. } | Ask::StoreSeen(_) => answered(AskAnswer::Done),
                    _ => drop(self.waiting.insert(self.tags, answered)),
                }
                self.step(CoordinatorInput::Ask { tag: self.tags, ask });
            }
            Event::Leave(done) => {
                self.leaving = Some(done);
                self.step(CoordinatorInput::Leave);
            }
            Event::Has(holds, draining) => {
                self.here.draining = draining;
                self.step(CoordinatorInput::Here(self.here.clone()));
                self.step(CoordinatorInput::Holds(holds));
            }
            Event::Sessions(sessions) => {
                self.here.sessions = sessions;
                self.step(CoordinatorInput::Here(self.here.clone()));
            }
            Event::Listed(parts) => self.step(CoordinatorInput::Listed(parts)),
            Event::Answered(tag, result) => self.step(CoordinatorInput::Answered { tag, result }),
            Event::Watched(watch, changes) => self.step(CoordinatorInput::Watched { watch, changes }),
            Event::WatchEnded(watch, why) => self.step(CoordinatorInput::WatchEnded { watch, why }),
        }
    }

    fn step(&mut self, input: CoordinatorInput) {
        // Without another timer it wakes after this, which is less than a third of the shortest lease.
        self.wake_ns = self.now_ns() + u64::try_from(NEWS_INTERVAL.as_nanos()).unwrap_or(u64::MAX);
        let (mut outs, mut lines) = (Vec::new(), Vec::new());
        self.remembered.save();
        self.client.step(self.now_ns(), input, &mut outs);
        for out in outs {
            match out {
                CoordinatorOutput::Send { tag, request } => {
                    let (store, events) = (Rc::clone(&self.store), self.events.clone());
                    tokio::task::spawn_local(async move {
                        let answer = store.ask(&request).await;
                        // Fails only when the thread has ended.
                        let _ = events.send(Event::Answered(tag, answer)).await;
                    });
                }
                CoordinatorOutput::Watch { watch, prefix, since } => self.watch(watch, prefix, since),
                CoordinatorOutput::Remember(mark) => self.remembered.remember(mark),
                CoordinatorOutput::Asked { tag, mut answer } => {
                    // The asker asks again, and then finds that it has won.
                    if answer.is_won() && !self.remembered.save() {
                        answer = AskAnswer::Away("this edge cannot write its state directory".into());
                    }
                    if let Some(answered) = self.waiting.remove(&tag) {
                        answered(answer);
                    }
                }
                CoordinatorOutput::Changed => self.changed = true,
                CoordinatorOutput::Log(level, text) => lines.push((level, text)),
                CoordinatorOutput::WakeAt { mono_ns } => self.wake_ns = mono_ns,
                CoordinatorOutput::Left => {
                    if let Some(done) = self.leaving.take() {
                        let _ = done.try_send(());
                    }
                }
            }
        }
        // Published before logging: a client that reads the line and then asks gets the state that it describes.
        self.show();
        for (level, text) in lines {
            // Edges or a store that come and go often could cause many lines.
            let limiter = self.lines.get_mut(level as usize);
            let passed = limiter.map_or(Some(None), |limiter| limiter.pass(Instant::now()));
            let Some(suppressed) = passed else { continue };
            match level {
                NoteLevel::Error => tracing::error!(suppressed, "{text}"),
                NoteLevel::Warning => tracing::warn!(suppressed, "{text}"),
                NoteLevel::Info => tracing::info!(suppressed, "{text}"),
                NoteLevel::Debug => tracing::debug!("{text}"),
            }
        }
    }

    fn watch(&mut self, watch: u64, prefix: String, since: u64) {
        if let Some(old) = self.watch.take() {
            old.abort();
        }
        let (store, events) = (Rc::clone(&self.store), self.events.clone());
        let task = tokio::task::spawn_local(async move {
            let telling = events.clone();
            let tell = |changes| telling.try_send(Event::Watched(watch, changes)).is_ok();
            let why = store.watch(&prefix, since, tell).await;
            let _ = events.send(Event::WatchEnded(watch, why)).await;
        });
        self.watch = Some(task.abort_handle());
    }
}

const _: () = assert!(
    2 * http::PATIENCE.as_secs() < super::CoordinatorOptions::LEASE_S_MIN as u64,
    "a lease outlives a slow answer"
);
