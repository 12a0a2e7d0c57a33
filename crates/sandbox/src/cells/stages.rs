//! The stages of one cell, wired one behind the other: an input goes in at one end, and they run until all are quiet.
//!
//! What a stage sends to its server is the next stage's input from its client, and the other way round; only the first
//! stage reaches the client, and only the last one the server. Knows no peers but these: nothing but what passes through
//! here connects two stages.

use super::bound::Bound;
use super::bug;
use super::live::{Desk, Live, Task};
use super::ticker::Ticker;
use crate::chain::Image;
use crate::host::Print;
use crate::limits::{
    BETWEEN_STAGES_BYTES_MAX, HANDLERS_PER_INPUT_MAX, OUTPUT_BYTES_PER_HANDLER_MAX, OUTPUTS_PER_HANDLER_MAX,
    REASON_BYTES_MAX, SLICE_CHARGE_NS_MAX, TIMER_CHANGES_PER_HANDLER_MAX,
};
use marram_session::cell::{CellId, Input, Outcome, Output, PortKind, Ran, Run, Stop, TimerChange};
use marram_wire::{
    id::{ImageHash, Port},
    limits::charge,
};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Instant;

/// One stage.
pub(super) struct Stage {
    /// Before `live`: a handler that is under way lets go of the instance first.
    task: Task,
    pub(super) live: Rc<RefCell<Live>>,
    desk: Rc<Desk>,
    pub(super) bound: Rc<Bound>,
    name: Box<str>,
    /// Nanoseconds that it has run for the present input.
    spent_ns: u64,
    /// Whether it is in the middle of a handler.
    paused: bool,
}

impl Stage {
    pub(super) fn new(live: Live, bound: Rc<Bound>, name: &str) -> Self {
        let (live, desk) = (Rc::new(RefCell::new(live)), Rc::new(Desk::default()));
        let task = super::live::task(Rc::clone(&live), Rc::clone(&desk));
        Self { task, live, desk, bound, name: name.into(), spent_ns: 0, paused: false }
    }

    /// Runs its handler until it ends or a slice is used up; says whether it ended.
    fn run(&mut self, watch: &mut Watch<'_>) -> Result<bool, Stop> {
        // The task never ends; whether the handler did is on the desk. A panic in an import is our bug, found by one guest:
        // it ends that guest and not the process, or the message that found it would take one edge after another.
        let computed_before = self.paused.then(computed_ns);
        let resume = || self.task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(resume)) {
            return Err(Stop::Kill(bug(&*panic)));
        }
        let answer = self.desk.answer();
        let was_paused = std::mem::replace(&mut self.paused, answer.is_none());
        if answer != Some(Outcome::Idle) || was_paused || watch.is_due() {
            self.charge(watch, computed_before);
        }
        match answer {
            Some(Outcome::Idle) => Ok(true),
            Some(Outcome::Stopped(stop)) => Err(stop),
            None if self.spent_ns > self.bound.quotas.handler_time_ns => Err(self.too_long()),
            None => Ok(false),
        }
    }

    /// Charges it for the time since the clock was last read.
    fn charge(&mut self, watch: &mut Watch<'_>, computed_before: Option<u64>) {
        let slice_ns = watch.lap_ns();
        self.spent_ns += match computed_before {
            Some(before) if slice_ns > SLICE_CHARGE_NS_MAX => {
                slice_ns.min(computed_ns().saturating_sub(before))
            }
            _ => slice_ns.min(SLICE_CHARGE_NS_MAX),
        };
    }

    fn too_long(&self) -> Stop {
        let ms = self.bound.quotas.handler_time_ns / 1_000_000;
        Stop::Kill(format!("a handler ran longer than handler_time, {ms} ms"))
    }
}

/// A clock that is read when a slice ends and when stages come to rest, not for each handler between: reading it takes a tenth
/// of what a small handler does. What was spent since it was last read is charged to whichever stage runs then, which is each
/// in proportion to what it spends.
struct Watch<'a> {
    ticker: &'a Ticker,
    slice: u32,
    read: Instant,
}

impl<'a> Watch<'a> {
    fn start(ticker: &'a Ticker) -> Self {
        Self { ticker, slice: ticker.slice(), read: Instant::now() }
    }

    /// Whether the slice in which this was started is over.
    fn is_due(&self) -> bool {
        self.ticker.slice() != self.slice
    }

    fn lap_ns(&mut self) -> u64 {
        let before = std::mem::replace(&mut self.read, Instant::now());
        u64::try_from((self.read - before).as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Nanoseconds that this thread has computed: time in which the machine ran something else does not count. Costs a system
/// call, so it is asked only of handlers that have used up a slice already.
fn computed_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of our own. The standard library has no clock of a thread's time.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } != 0;
    debug_assert!(!failed, "every Linux has this clock");
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

/// The stages of one cell, and what is on its way between them.
pub(super) struct Stages {
    image: ImageHash,
    list: Vec<Stage>,
    /// Whether there is a server: then the stages meet when its port opens, else with the client's.
    server: bool,
    /// How the client and the server speak.
    kinds: [PortKind; 2],
    /// First in, first out: what stages wait to be given.
    waiting: VecDeque<(usize, Input)>,
    /// What that costs memory, in bytes.
    waiting_charge: u64,
    underway: Option<Underway>,
}

/// An input from outside that the stages are not done with.
struct Underway {
    cell: CellId,
    now_ns: i64,
    /// What goes out in answer, so far.
    outputs: Vec<Output>,
    output_bytes: usize,
    timers: Vec<TimerChange>,
    clock_read: bool,
    handlers: u32,
    /// The stage in the middle of a handler.
    at: Option<usize>,
}

/// Which stage a cell ends for, and why.
type Blamed = (usize, Stop);

/// Why the cell ends, and what it had cost until then.
pub(super) struct Failure {
    pub(super) stop: Stop,
    pub(super) spent_ns: u64,
}

impl Stages {
    pub(super) fn new(image: &Image, list: Vec<Stage>) -> Self {
        let (image, server) = (image.hash(), image.server);
        let kinds = [PortKind::Client, PortKind::Server];
        Self { image, list, server, kinds, waiting: VecDeque::new(), waiting_charge: 0, underway: None }
    }

    /// Whether no stage has anything to do.
    pub(super) fn are_quiet(&self) -> bool {
        self.underway.is_none()
    }

    /// What it was started from.
    pub(super) fn image(&self) -> ImageHash {
        self.image
    }

    pub(super) fn list(&self) -> &[Stage] {
        &self.list
    }

    /// Takes an input from outside; [`Self::resume`] runs it.
    pub(super) fn begin(&mut self, run: Run) {
        self.underway = Some(Underway {
            cell: run.cell,
            now_ns: run.now_ns,
            outputs: Vec::new(),
            output_bytes: 0,
            timers: Vec::new(),
            clock_read: false,
            handlers: 0,
            at: None,
        });
        self.list.iter_mut().for_each(|stage| stage.spent_ns = 0);
        self.accept(run.input);
    }

    /// Puts an input from outside to the stage that it is for.
    fn accept(&mut self, input: Input) {
        let last = self.list.len() - 1;
        let at = match &input {
            Input::Message { port, .. }
            | Input::Open { port, .. }
            | Input::Close { port }
            | Input::Gone { port } => {
                if *port == Port::SERVER {
                    last
                } else {
                    0
                }
            }
            Input::Timer { stage, .. } => usize::from(*stage),
        };
        let strangers = last > 0 && !self.neighbours_met();
        let client = matches!(input, Input::Open { kind, .. } if kind.is_client());
        self.note(&input);
        if strangers && !client {
            self.introduce();
        }
        self.wait(at, input);
        // Where there is a server, its port opens next: no stage is sent anything before all of its ports are there.
        if strangers && client && !self.server {
            self.introduce();
        }
    }

    fn wait(&mut self, at: usize, input: Input) {
        self.waiting_charge += charge_of(&input);
        self.waiting.push_back((at, input));
    }

    /// Whether the ports between stages are open: all are, or none.
    fn neighbours_met(&self) -> bool {
        let last = self.list.last().expect("there is a stage").live.borrow();
        last.store.data().ports.list().iter().any(|(port, _)| *port == Port::CLIENT)
    }

    /// Remembers how the peers speak, until the stages meet: that is within the session's first entry.
    fn note(&mut self, input: &Input) {
        if let Input::Open { kind, .. } = input {
            let [client, server] = &mut self.kinds;
            *(if kind.is_client() { client } else { server }) = *kind;
        }
    }

    /// Opens the ports between stages, stage after stage from the client on, before any of them is sent a message. A
    /// neighbour speaks as the peer on its side does, for all that the host knows.
    fn introduce(&mut self) {
        let [client, server] = self.kinds;
        for at in 1..self.list.len() {
            self.wait(at - 1, Input::Open { port: Port::SERVER, kind: server });
            self.wait(at, Input::Open { port: Port::CLIENT, kind: client });
        }
    }

    /// Runs handlers until all stages are quiet, or a slice is used up: then there is no answer yet.
    pub(super) fn resume(&mut self, ticker: &Ticker) -> Result<Option<Ran>, Failure> {
        match self.run_on(ticker) {
            Ok(false) => Ok(None),
            Ok(true) => {
                let cost_ns = self.spent_ns();
                Ok(self.underway.take().map(|underway| underway.ran(cost_ns)))
            }
            Err((at, stop)) => Err(Failure { stop: self.blame(at, stop), spent_ns: self.spent_ns() }),
        }
    }

    /// Whether all stages came to rest; else a slice was used up.
    fn run_on(&mut self, ticker: &Ticker) -> Result<bool, Blamed> {
        let mut watch = Watch::start(ticker);
        loop {
            let at = match self.underway.as_mut().and_then(|underway| underway.at.take()) {
                Some(at) => at,
                None => match self.hand_over()? {
                    Some(at) => at,
                    None => return Ok(true),
                },
            };
            if !self.list[at].run(&mut watch).map_err(|stop| (at, stop))? {
                self.underway.as_mut().expect("a handler runs").at = Some(at);
                return Ok(false);
            }
            self.pass_on(at)?;
            let quiet = self.waiting.is_empty();
            if quiet || watch.is_due() {
                self.list[at].charge(&mut watch, None);
                return Ok(quiet);
            }
        }
    }

    /// Gives the next waiting input to its stage; says which that is.
    fn hand_over(&mut self) -> Result<Option<usize>, Blamed> {
        let Some((at, input)) = self.waiting.pop_front() else { return Ok(None) };
        self.waiting_charge -= charge_of(&input);
        let underway = self.underway.as_mut().expect("what waits comes of an input from outside");
        underway.handlers += 1;
        if underway.handlers > HANDLERS_PER_INPUT_MAX {
            let why = format!("one input ran more than {HANDLERS_PER_INPUT_MAX} handlers of its chain");
            return Err((at, Stop::Kill(why)));
        }
        let Some(stage) = self.list.get_mut(at) else {
            return Err((at, Stop::Kill("a timer fired of a stage that the chain does not have".into())));
        };
        if stage.spent_ns > stage.bound.quotas.handler_time_ns {
            return Err((at, stage.too_long()));
        }
        let order = stage.live.borrow_mut().begin(input, underway.now_ns);
        stage.desk.put(order);
        Ok(Some(at))
    }

    /// Takes what a stage's handler did: on to its neighbours, or out.
    fn pass_on(&mut self, at: usize) -> Result<(), Blamed> {
        let (first, last) = (at == 0, at + 1 == self.list.len());
        let underway = self.underway.as_mut().expect("a handler ran");
        let mut live = self.list[at].live.borrow_mut();
        let host = live.store.data_mut();
        underway.clock_read |= host.clock_read;
        if first && last {
            // Everything goes out: the lists change hands instead of their items.
            underway.outputs = std::mem::take(&mut host.outputs);
            underway.timers = std::mem::take(&mut host.timers);
            return Ok(());
        }
        underway.timers.append(&mut host.timers);
        for output in host.outputs.drain(..) {
            let (Output::Message { port, .. } | Output::Close { port }) = &output;
            let (neighbour, port) = match *port {
                Port::SERVER if !last => (at + 1, Port::CLIENT),
                Port::CLIENT if !first => (at - 1, Port::SERVER),
                _ => {
                    underway.put_out(output);
                    continue;
                }
            };
            let input = match output {
                Output::Message { payload, .. } => Input::Message { port, payload },
                Output::Close { .. } => Input::Close { port },
            };
            self.waiting_charge += charge_of(&input);
            self.waiting.push_back((neighbour, input));
        }
        underway.excess(self.waiting_charge).map_or(Ok(()), |why| Err((at, Stop::Kill(why))))
    }

    fn spent_ns(&self) -> u64 {
        self.list.iter().map(|stage| stage.spent_ns).sum()
    }

    /// Says which stage it was, where there are several.
    fn blame(&self, at: usize, stop: Stop) -> Stop {
        if self.list.len() == 1 {
            return stop;
        }
        let name = self.list.get(at).map_or("", |stage| &stage.name);
        let blame = |why: String| {
            let mut text = format!("stage {at} ({name}): {why}");
            text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
            text
        };
        match stop {
            Stop::Trap(why) => Stop::Trap(blame(why)),
            Stop::Kill(why) => Stop::Kill(blame(why)),
        }
    }

    /// What the stages printed since this was last asked.
    pub(super) fn take_prints(&mut self) -> Vec<Print> {
        let mut prints = Vec::new();
        for stage in &self.list {
            prints.append(&mut stage.live.borrow_mut().store.data_mut().prints);
        }
        prints
    }

    /// Ends all handlers; what is left of the stages.
    pub(super) fn into_instances(self) -> impl Iterator<Item = Live> {
        self.list.into_iter().filter_map(|Stage { task, live, .. }| {
            // A handler that was under way lets go of the instance.
            drop(task);
            Rc::into_inner(live).map(RefCell::into_inner)
        })
    }
}

impl Underway {
    fn ran(self, cost_ns: u64) -> Ran {
        let Self { cell, outputs, timers, clock_read, .. } = self;
        Ran { cell, outcome: Outcome::Idle, clock_read, outputs, timers, cost_ns }
    }

    fn put_out(&mut self, output: Output) {
        if let Output::Message { payload, .. } = &output {
            self.output_bytes += payload.len();
        }
        self.outputs.push(output);
    }

    /// What one input has caused too much of, if it has: what bounds one handler bounds all of a chain's together.
    fn excess(&self, waiting_charge: u64) -> Option<String> {
        let why = if waiting_charge > BETWEEN_STAGES_BYTES_MAX {
            format!("more than {BETWEEN_STAGES_BYTES_MAX} bytes wait between stages")
        } else if self.outputs.len() > OUTPUTS_PER_HANDLER_MAX {
            format!("one input brought more than {OUTPUTS_PER_HANDLER_MAX} outputs out of its chain")
        } else if self.output_bytes > OUTPUT_BYTES_PER_HANDLER_MAX {
            format!("one input brought more than {OUTPUT_BYTES_PER_HANDLER_MAX} bytes out of its chain")
        } else if self.timers.len() > TIMER_CHANGES_PER_HANDLER_MAX {
            format!("one input changed more than {TIMER_CHANGES_PER_HANDLER_MAX} timers of its chain")
        } else {
            return None;
        };
        Some(why)
    }
}

/// What an input costs while it waits, in bytes.
fn charge_of(input: &Input) -> u64 {
    match input {
        Input::Message { payload, .. } => charge(payload.len()),
        _ => charge(0),
    }
}
