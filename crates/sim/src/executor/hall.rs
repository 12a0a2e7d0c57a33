//! The hall as a simulated cell: the only stage of its cell, with any number of ports.

use super::{cache::Reader, stages::random};
use bytes::Bytes;
use marram_hall_algo::{Hall, HallEvent, HallHost};
use marram_session::cell::{CellInput, CellOutput, Ran, Run, Seed, TimerChange};
use marram_wire::id::Port;

/// Runs an input from outside; the effects are collected in `ran`. `generator` is the seed and the number of bytes drawn.
pub(super) fn run(
    hall: &mut Hall,
    generator: (Seed, &mut u64),
    run: &Run,
    reader: &mut Reader<'_>,
    ran: &mut Ran,
) {
    let event = match &run.input {
        CellInput::Open { port, .. } => HallEvent::Open(port.0),
        CellInput::Message { port, payload } => HallEvent::Message(port.0, payload),
        CellInput::Close { port } => HallEvent::Close(port.0),
        CellInput::Timer { token, .. } => HallEvent::Timer(*token),
        // It has no tasks, and is not told who is gone.
        CellInput::Task { .. } | CellInput::Gone { .. } => return,
    };
    hall.input(event, &mut HallContext { now_ns: run.now_ns, generator, reader, ran });
}

/// The functions that the hall may call, with the results of one run.
struct HallContext<'a, 'r> {
    now_ns: i64,
    generator: (Seed, &'a mut u64),
    reader: &'a mut Reader<'r>,
    ran: &'a mut Ran,
}

impl HallHost for HallContext<'_, '_> {
    fn now(&mut self) -> i64 {
        self.ran.clock_read = true;
        self.now_ns
    }

    fn random(&mut self, buffer: &mut [u8]) {
        let (seed, drawn) = &mut self.generator;
        random(*seed, drawn, buffer);
        self.reader.mix(buffer.first().copied().unwrap_or(0), self.ran, buffer);
    }

    fn send(&mut self, to: u32, payload: &[u8]) {
        let payload = Bytes::copy_from_slice(payload);
        self.ran.outputs.push(CellOutput::Message { port: Port(to), payload });
    }

    fn close(&mut self, to: u32) {
        self.ran.outputs.push(CellOutput::Close { port: Port(to) });
    }

    fn set_timer(&mut self, delay_ns: i64, token: u64) {
        self.ran.clock_read = true;
        self.ran.timers.push(TimerChange::Set { stage: 0, token, delay_ns });
    }

    fn cancel_timer(&mut self, token: u64) {
        self.ran.timers.push(TimerChange::Cancel { stage: 0, token });
    }
}
