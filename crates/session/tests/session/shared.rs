//! A cell that many sessions share: the port of each member, the order of inputs, and the receivers of outputs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bytes::Bytes;
use marram_session::{
    cell::{
        CellId, CellInput, CellOutput, CellStop, PortKind, Ran, Run, RunOutcome, TaskChange, TimerChange,
    },
    owner::Now,
    shared::{SharedCell, SharedEffect},
};
use marram_wire::id::Port;

const CELL: CellId = CellId(1);
const ANNA: CellId = CellId(10);
const BELA: CellId = CellId(11);
const CORA: CellId = CellId(12);

fn at(mono_ns: u64) -> Now {
    Now { mono_ns, unix_ns: 1_000 + i64::try_from(mono_ns).unwrap() }
}

/// A shared cell with its effects since the last look.
struct Bench {
    shared: SharedCell,
    out: Vec<SharedEffect>,
    now: u64,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self { shared: SharedCell::new(at(0), CELL), out: Vec::new(), now: 0 };
        bench.shared.started(at(0), &mut bench.out);
        bench
    }

    /// A shared cell with these members. Their ports are open.
    fn of(members: &[CellId]) -> Self {
        let mut bench = Self::new();
        for member in members {
            bench.shared.join(*member, &mut bench.out);
            bench.ask(*member, open());
            bench.answer(&[]);
        }
        bench.out.clear();
        bench
    }

    fn ask(&mut self, member: CellId, input: CellInput) {
        self.shared.run(at(self.now), Run { cell: member, input, now_ns: 0, logged: None }, &mut self.out);
    }

    fn say(&mut self, member: CellId, text: &'static str) {
        self.ask(member, message(Port::CLIENT, text));
    }

    fn answer(&mut self, outputs: &[CellOutput]) {
        self.answer_with(outputs, &[]);
    }

    fn answer_with(&mut self, outputs: &[CellOutput], timers: &[TimerChange]) {
        let ran = Ran { outputs: outputs.to_vec(), timers: timers.to_vec(), ..idle(CELL) };
        self.shared.ran(at(self.now), ran, &mut self.out);
    }

    fn seen(&mut self) -> Vec<SharedEffect> {
        std::mem::take(&mut self.out)
    }

    /// The inputs that the cell was given since the last look.
    fn inputs(&mut self) -> Vec<CellInput> {
        let run = |effect| if let SharedEffect::Run(run) = effect { Some(run.input) } else { None };
        self.seen().into_iter().filter_map(run).collect()
    }
}

fn open() -> CellInput {
    CellInput::Open { port: Port::CLIENT, kind: PortKind::Client, peer: None }
}

fn message(port: Port, text: &'static str) -> CellInput {
    CellInput::Message { port, payload: Bytes::from_static(text.as_bytes()) }
}

fn sent(port: Port, text: &'static str) -> CellOutput {
    CellOutput::Message { port, payload: Bytes::from_static(text.as_bytes()) }
}

fn idle(cell: CellId) -> Ran {
    let (outputs, timers, tasks) = (Vec::new(), Vec::new(), Vec::new());
    Ran {
        cell,
        outcome: RunOutcome::Idle,
        clock_read: false,
        outputs,
        timers,
        tasks,
        reads: Vec::new(),
        cost_ns: 0,
    }
}

#[test]
fn members_wait_for_the_cell_and_are_informed_when_it_runs() {
    let mut shared = SharedCell::new(at(0), CELL);
    let mut out = Vec::new();
    shared.join(ANNA, &mut out);
    assert_eq!(out, []);
    shared.started(at(1), &mut out);
    shared.join(BELA, &mut out);
    assert_eq!(out, [SharedEffect::Started(ANNA), SharedEffect::Started(BELA)]);
}

#[test]
fn each_member_has_a_port_of_its_own_and_none_is_the_server_s() {
    let mut bench = Bench::new();
    for member in [ANNA, BELA, CORA] {
        bench.shared.join(member, &mut Vec::new());
        bench.ask(member, open());
        bench.answer(&[]);
    }
    let ports: Vec<_> = bench
        .inputs()
        .into_iter()
        .map(|input| {
            if let CellInput::Open { port, kind, .. } = input { (port.0, kind) } else { panic!("{input:?}") }
        })
        .collect();
    assert_eq!(ports, [(0, PortKind::Client), (2, PortKind::Client), (3, PortKind::Client)]);
}

#[test]
fn one_handler_at_a_time_in_the_order_of_asking() {
    let mut bench = Bench::of(&[ANNA, BELA]);
    bench.say(ANNA, "a");
    bench.say(BELA, "b");
    assert_eq!(bench.inputs(), [message(Port(0), "a")]);
    bench.answer(&[]);
    assert_eq!(bench.inputs(), [message(Port(2), "b")]);
}

#[test]
fn outputs_go_to_their_ports_and_the_senders_are_its_answer() {
    let mut bench = Bench::of(&[ANNA, BELA]);
    bench.say(ANNA, "hello all");
    bench.seen();
    bench.answer(&[
        sent(Port(0), "ok"),
        sent(Port(2), "one"),
        sent(Port(2), "two"),
        sent(Port(9), "nothing"),
    ]);
    assert_eq!(
        bench.seen(),
        [
            SharedEffect::Ran(Ran { outputs: vec![sent(Port::CLIENT, "ok")], ..idle(ANNA) }),
            SharedEffect::Deliver(BELA, vec![sent(Port::CLIENT, "one"), sent(Port::CLIENT, "two")]),
        ]
    );
}

#[test]
fn a_member_that_leaves_is_announced_and_its_port_is_free_after_that() {
    let mut bench = Bench::of(&[ANNA, BELA]);
    bench.say(ANNA, "last words");
    bench.shared.leave(at(0), ANNA, &mut bench.out);
    assert_eq!(bench.inputs(), [message(Port(0), "last words")]);
    // The answer is dropped.
    bench.answer(&[sent(Port(0), "lost")]);
    assert_eq!(bench.inputs(), [CellInput::Close { port: Port(0) }]);
    bench.shared.join(CORA, &mut bench.out);
    bench.answer(&[]);
    assert_eq!(bench.inputs(), [CellInput::Gone { port: Port(0) }]);
    bench.answer(&[]);
    bench.ask(CORA, open());
    assert_eq!(bench.inputs(), [CellInput::Open { port: Port(3), kind: PortKind::Client, peer: None }]);
    bench.answer(&[]);
    bench.shared.join(ANNA, &mut bench.out);
    bench.ask(ANNA, open());
    assert_eq!(bench.inputs(), [CellInput::Open { port: Port(0), kind: PortKind::Client, peer: None }]);
}

#[test]
fn a_member_that_said_that_it_is_done_is_not_closed_twice() {
    let mut bench = Bench::of(&[ANNA]);
    bench.ask(ANNA, CellInput::Close { port: Port::CLIENT });
    bench.answer(&[]);
    bench.seen();
    bench.shared.leave(at(0), ANNA, &mut bench.out);
    assert_eq!(bench.inputs(), [CellInput::Gone { port: Port(0) }]);
}

#[test]
fn one_that_never_opened_leaves_without_a_trace() {
    let mut bench = Bench::new();
    bench.shared.join(ANNA, &mut bench.out);
    bench.seen();
    bench.shared.leave(at(0), ANNA, &mut bench.out);
    assert_eq!(bench.seen(), []);
    assert!(bench.shared.is_empty());
}

#[test]
fn timers_belong_to_the_cell_and_take_turns_with_members() {
    let mut bench = Bench::of(&[ANNA]);
    bench.say(ANNA, "set");
    let again = TimerChange::Set { stage: 0, token: 7, delay_ns: 0 };
    bench.answer_with(&[], &[TimerChange::Set { stage: 0, token: 7, delay_ns: 50 }]);
    bench.seen();
    assert_eq!(bench.shared.due_ns(), Some(50));
    bench.now = 50;
    bench.shared.tick(at(50), &mut bench.out);
    bench.say(ANNA, "x");
    bench.answer_with(&[], &[again]);
    bench.answer(&[]);
    // A cell with timers that are always due still gets its members' messages.
    let timer = || CellInput::Timer { stage: 0, token: 7 };
    assert_eq!(bench.inputs(), [timer(), message(Port(0), "x"), timer()]);
}

#[test]
fn the_cell_s_clock_never_runs_backwards() {
    let mut bench = Bench::of(&[ANNA]);
    let mut times = Vec::new();
    for mono_ns in [500, 200, 700] {
        bench.now = mono_ns;
        bench.say(ANNA, "x");
        times.extend(bench.seen().into_iter().filter_map(|effect| match effect {
            SharedEffect::Run(run) => Some(run.now_ns),
            _ => None,
        }));
        bench.answer(&[]);
    }
    assert_eq!(times, [1_500, 1_500, 1_700]);
}

#[test]
fn a_cell_that_is_stopped_takes_all_members_with_it() {
    let mut bench = Bench::of(&[ANNA, BELA]);
    bench.say(BELA, "poison");
    bench.seen();
    let outcome = RunOutcome::Stopped(CellStop::Trap("unreachable".into()));
    bench.shared.ran(at(0), Ran { outcome, ..idle(CELL) }, &mut bench.out);
    assert_eq!(bench.seen(), [SharedEffect::Stopped(vec![ANNA, BELA], "unreachable".into())]);
}

#[test]
fn tasks_of_a_shared_cell_run_in_turn_with_its_members() {
    let mut bench = Bench::of(&[ANNA]);
    let spawn = |token| TaskChange::Spawn { stage: 0, token };
    let task = |token| CellInput::Task { stage: 0, token };
    bench.say(ANNA, "a");
    let answer = |bench: &mut Bench, tasks: &[TaskChange]| {
        let ran = Ran { tasks: tasks.to_vec(), ..idle(CELL) };
        bench.shared.ran(at(bench.now), ran, &mut bench.out);
    };
    answer(&mut bench, &[spawn(7), spawn(8)]);
    bench.ask(ANNA, message(Port::CLIENT, "b"));
    answer(&mut bench, &[]);
    answer(&mut bench, &[]);
    answer(&mut bench, &[]);
    assert_eq!(bench.inputs(), [message(Port::CLIENT, "a"), task(7), message(Port::CLIENT, "b"), task(8)]);
    bench.say(ANNA, "c");
    answer(&mut bench, &[TaskChange::Lock { stage: 0, id: 1, token: 7 }]);
    answer(&mut bench, &[TaskChange::Unlock { stage: 0, id: 2, token: 7 }]);
    let stopped = bench.seen().into_iter().find(|effect| matches!(effect, SharedEffect::Stopped(..)));
    assert_eq!(
        stopped,
        Some(SharedEffect::Stopped(vec![ANNA], "unlock: task 7 does not hold lock 2".into()))
    );
}

fn pause(stage: u8, port: Port) -> CellOutput {
    CellOutput::Pause { stage, port }
}

fn resume(stage: u8, port: Port) -> CellOutput {
    CellOutput::Resume { stage, port }
}

#[test]
fn a_pause_applies_to_the_client_of_its_port() {
    let mut bench = Bench::of(&[ANNA, BELA]);
    bench.say(ANNA, "a");
    bench.answer(&[pause(0, Port(2)), pause(0, Port::CLIENT), resume(0, Port::CLIENT)]);
    let seen = bench.seen();
    let SharedEffect::Ran(ran) = &seen[1] else { panic!("{seen:?}") };
    assert_eq!(ran.outputs, [pause(0, Port::CLIENT), resume(0, Port::CLIENT)]);
    assert_eq!(seen[2..], [SharedEffect::Deliver(BELA, vec![pause(0, Port::CLIENT)])]);
}

#[test]
fn what_a_chain_pauses_between_its_stages_pauses_all_clients_and_those_that_come_later() {
    let mut bench = Bench::of(&[ANNA, BELA]);
    let inner = [pause(0, Port::SERVER), pause(1, Port::CLIENT)];
    bench.say(ANNA, "a");
    bench.answer(&inner);
    let to = |member: CellId, output: &CellOutput| SharedEffect::Deliver(member, vec![output.clone()]);
    let each = inner.iter().flat_map(|output| [to(ANNA, output), to(BELA, output)]);
    assert_eq!(bench.seen()[2..], each.collect::<Vec<_>>());
    bench.say(BELA, "b");
    bench.answer(&[resume(0, Port::SERVER)]);
    bench.seen();
    bench.shared.join(CORA, &mut bench.out);
    assert_eq!(
        bench.seen(),
        [SharedEffect::Started(CORA), SharedEffect::Deliver(CORA, vec![pause(1, Port::CLIENT)])]
    );
}
