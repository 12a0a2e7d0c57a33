//! A test bench for an end: a test plays the owner and the program, and reads the end's effects as lines of text.

use bytes::Bytes;
use marram_session::end::{End, EndEffect, PromiseRefusal};
use marram_wire::{
    codec::Last,
    frame::{
        CheckpointBegin, CheckpointKind, CheckpointMeta, CheckpointPart, Chosen, Credit, Frame, Increment,
        Keeps, LogOnly, LogPart, Output, Promise, Truncate,
    },
    id::{Generation, HostId, ImageHash, SessionId},
};

pub(crate) const SESSION: SessionId = SessionId([7; 16]);
pub(crate) const KEY: [u8; 16] = [3; 16];
pub(crate) const TAG: [u8; 8] = [1; 8];
/// The channel of the generation opened last.
pub(crate) const CHANNEL: u32 = 4;

pub(crate) fn generation(count: u64) -> Generation {
    Generation { count, opener: 40 }
}

pub(crate) fn promise(count: u64) -> Promise {
    Promise {
        channel: CHANNEL,
        session: SESSION,
        generation: generation(count),
        app: "app".into(),
        image: ImageHash([8; 32]),
        server: String::new(),
        peer: Some(HostId([2; 16])),
        key: KEY,
        fresh: count == 1,
        proven: count > 1,
        keeps: Keeps::All,
        shared: false,
        assigned: false,
        linger_ms: 77,
        live: None,
        origin: None,
        promoted: Last(None),
    }
}

pub(crate) fn meta(count: u64, number: u32, full: bool, log_offset: u64, size: u64) -> CheckpointMeta {
    let kind = if full { CheckpointKind::Full } else { CheckpointKind::Delta };
    CheckpointMeta { generation: generation(count), number, kind, log_offset, size }
}

pub(crate) fn increment(entries: &'static [u8]) -> Option<Increment> {
    Some(Increment { entries: entries.into(), tag: TAG })
}

/// One end.
pub(crate) struct Bench {
    pub(crate) end: End,
    /// The time of its machine.
    pub(crate) now_ns: u64,
    lines: Vec<String>,
}

impl Bench {
    /// A client's end that has not promised any generation.
    pub(crate) fn new() -> Self {
        Self { end: End::new(SESSION, false, "app".into()), now_ns: 1_000, lines: Vec::new() }
    }

    /// An end with a first owner that has chosen a log, and with this much credit.
    pub(crate) fn owned(credit: u64) -> Self {
        let mut bench = Self::new();
        bench.promise(&promise(1)).expect("the first promise");
        bench.chosen(0, "", credit);
        bench.look();
        bench
    }

    pub(crate) fn look(&mut self) -> Vec<String> {
        core::mem::take(&mut self.lines)
    }

    pub(crate) fn step<T>(&mut self, does: impl FnOnce(&mut End, &mut Vec<EndEffect>) -> T) -> T {
        let mut effects = Vec::new();
        let result = does(&mut self.end, &mut effects);
        self.lines.extend(effects.iter().map(show));
        result
    }

    pub(crate) fn promise(&mut self, ask: &Promise) -> Result<(), PromiseRefusal> {
        let now_ns = self.now_ns;
        self.step(|end, out| end.promise(now_ns, ask, out))
    }

    /// A frame of the owner; returns the violation that the end finds.
    pub(crate) fn try_frame(&mut self, frame: impl Into<Frame>) -> Result<(), &'static str> {
        let now_ns = self.now_ns;
        self.step(|end, out| end.receive(now_ns, frame.into(), out)).map_err(|violation| violation.0)
    }

    pub(crate) fn frame(&mut self, frame: impl Into<Frame>) {
        self.try_frame(frame).expect("the owner keeps to the protocol");
    }

    pub(crate) fn chosen(&mut self, log_offset: u64, log: impl Into<Bytes>, credit: u64) {
        self.frame(Chosen {
            channel: CHANNEL,
            log_offset,
            log: log.into(),
            tag: TAG,
            credit,
            session_ns: 0,
            runs_ahead: Last(None),
        });
    }

    pub(crate) fn say(&mut self, payload: impl Into<Bytes>) {
        self.step(|end, out| end.send(payload.into(), out));
    }

    pub(crate) fn close(&mut self) {
        self.step(End::close);
    }

    /// An output without log.
    pub(crate) fn output(&mut self, payload: impl Into<Bytes>) {
        self.frame(Output { channel: CHANNEL, increment: None, close: false, payload: payload.into() });
    }

    pub(crate) fn output_close(&mut self) {
        self.frame(Output { channel: CHANNEL, increment: None, close: true, payload: Bytes::new() });
    }

    pub(crate) fn credit(&mut self, bytes: u64) {
        self.frame(Credit { channel: CHANNEL, received: 0, bytes });
    }

    /// Log without an output.
    pub(crate) fn log(&mut self, entries: impl Into<Bytes>) {
        self.frame(LogOnly { channel: CHANNEL, entries: entries.into(), tag: TAG });
    }

    pub(crate) fn log_part(&mut self, offset: u64, bytes: &'static [u8]) -> Result<(), &'static str> {
        self.try_frame(LogPart { channel: CHANNEL, generation: generation(2), offset, bytes: bytes.into() })
    }

    pub(crate) fn checkpoint(&mut self, meta: CheckpointMeta) -> Result<(), &'static str> {
        self.try_frame(CheckpointBegin { channel: CHANNEL, meta })
    }

    pub(crate) fn part(&mut self, bytes: impl Into<Bytes>) -> Result<(), &'static str> {
        self.try_frame(CheckpointPart { channel: CHANNEL, bytes: bytes.into() })
    }

    pub(crate) fn truncate(&mut self, log_offset: u64, sent: u64) -> Result<(), &'static str> {
        self.try_frame(Truncate { channel: CHANNEL, log_offset, tag: [9; 8], sent })
    }

    pub(crate) fn taken(&mut self, charge: u64) {
        self.step(|end, out| end.taken(charge, out));
    }
}

/// Short text as it is, otherwise the size.
fn payload(bytes: &Bytes) -> String {
    match core::str::from_utf8(bytes) {
        Ok(text) if text.len() <= 20 => text.into(),
        _ => format!("{} bytes", bytes.len()),
    }
}

fn show(effect: &EndEffect) -> String {
    let frame = match effect {
        EndEffect::Deliver(bytes) => return format!("deliver {}", payload(bytes)),
        EndEffect::DeliverClose => return "deliver close".into(),
        EndEffect::Free(bytes) => return format!("free {} bytes", bytes.len()),
        EndEffect::Send(frame) => frame,
    };
    match frame {
        Frame::Promised(promised) => {
            let live = if promised.live { " live" } else { "" };
            let failed = if promised.failed.is_some() { " failed" } else { "" };
            let numbers = promised.checkpoints.iter().map(|meta| format!(" checkpoint {}", meta.number));
            let partial = promised.partial.as_ref();
            let partial =
                partial.map(|part| format!(" {} bytes of checkpoint {}", part.bytes, part.meta.number));
            format!(
                "promised after {}{live} log {}..{} received {} window {} sent {}..{}{}{}{failed}",
                promised.previous.count,
                promised.log_start,
                promised.log_end,
                promised.received,
                promised.window,
                promised.sent_start,
                promised.sent_end,
                numbers.collect::<String>(),
                partial.unwrap_or_default(),
            )
        }
        Frame::Kept(kept) => {
            let numbers = kept.checkpoints.iter().map(|meta| format!(" checkpoint {}", meta.number));
            format!("kept sent {}..{}{}", kept.sent_start, kept.sent_end, numbers.collect::<String>())
        }
        Frame::KeptInput(input) if input.close => "kept close".into(),
        Frame::KeptInput(input) => format!("kept {}", payload(&input.payload)),
        Frame::CheckpointBegin(begin) => format!("checkpoint {} of {}", begin.meta.number, begin.meta.size),
        Frame::CheckpointPart(part) => format!("part {}", payload(&part.bytes)),
        Frame::LogPart(part) => {
            format!("log of {} at {} {}", part.generation.count, part.offset, payload(&part.bytes))
        }
        Frame::Input(input) => {
            let what =
                if input.close { "close".into() } else { format!("input {}", payload(&input.payload)) };
            if input.ack > 0 { format!("{what} ack {}", input.ack) } else { what }
        }
        Frame::Credit(credit) => format!("credit received {} bytes {}", credit.received, credit.bytes),
        Frame::Stored(stored) => match stored.complete {
            Some(number) => format!("stored {} complete {number}", stored.bytes),
            None => format!("stored {}", stored.bytes),
        },
        Frame::Finished(_) => "finished".into(),
        other => panic!("an end does not send {other:?}"),
    }
}
