//! An independent and simple model of which ports of a simulated cell are paused. It is part of every checkpoint, so that an
//! owner that forgot a pause is detected: that owner delivers messages for which it may not have given credit.
//!
//! The rule that is modelled (`owner::pauses`, docs/protocol.md, "Flow control", I24): while a
//! stage pauses a port, that end gets no credit. An end may still send what it had credit for, so a
//! message on a paused port is no fault by itself. Only after a recovery it is one: the new owner
//! chose the credit when it already knew of the pause.
//!
//! All pauses end when the cell could never resume by itself: no port can deliver, no timer is set
//! and no task is runnable.

use super::{Cell, Past};
use marram_session::cell::{CellInput, CellOutput, Ran, Run, TimerChange};
use marram_wire::id::Port;
use std::collections::BTreeSet;

/// The pauses, and what can end them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Pauses {
    /// Stage and port of each pause.
    paused: BTreeSet<(u8, u32)>,
    /// Timers that are set: stage and token.
    timers: BTreeSet<(u8, u64)>,
    /// Ports that are open.
    open: BTreeSet<u32>,
    /// Whether there is a server.
    server: bool,
    /// Pauses from before this instance of the cell, replayed or restored. Not saved: a loaded cell has no others.
    inherited: BTreeSet<(u8, u32)>,
}

impl Pauses {
    /// Whether messages of this port are stopped: by a pause of it in any stage or, without a
    /// server, by any pause.
    fn stops(&self, paused: &BTreeSet<(u8, u32)>, port: u32) -> bool {
        paused.iter().any(|(_, other)| *other == port || !self.server)
    }

    /// What is wrong with an input, if anything: on a port that was paused before this instance of the cell began, only its
    /// end may arrive until the port is resumed.
    ///
    /// Replayed messages are never wrong: the log says that they were consumed, by an owner that
    /// may have paused later.
    pub(super) fn judge(&self, run: &Run) -> Option<String> {
        let CellInput::Message { port, .. } = run.input else { return None };
        let wrong = run.logged.is_none() && self.stops(&self.inherited, port.0);
        wrong.then(|| format!("a message of {port:?} was handled without credit: the port is paused"))
    }

    /// Applies the effects of a handler.
    ///
    /// `is_quiet`: whether no task is runnable after this handler.
    pub(super) fn change(&mut self, run: &Run, ran: &Ran, is_quiet: bool) {
        match &run.input {
            CellInput::Open { port, .. } => {
                self.open.insert(port.0);
                self.server |= *port == Port::SERVER;
            }
            CellInput::Close { port } => _ = self.open.remove(&port.0),
            CellInput::Timer { stage, token } => _ = self.timers.remove(&(*stage, *token)),
            _ => {}
        }
        for change in &ran.timers {
            match *change {
                TimerChange::Set { stage, token, .. } => _ = self.timers.insert((stage, token)),
                TimerChange::Cancel { stage, token } => _ = self.timers.remove(&(stage, token)),
            }
        }
        for output in &ran.outputs {
            match *output {
                CellOutput::Pause { stage, port } => {
                    self.paused.insert((stage, port.0));
                    if run.logged.is_some() {
                        self.inherited.insert((stage, port.0));
                    }
                }
                CellOutput::Resume { stage, port } => {
                    self.paused.remove(&(stage, port.0));
                    self.inherited.remove(&(stage, port.0));
                }
                _ => {}
            }
        }
        // While ports are opening, the session's other port may also be about to open.
        let is_opening = matches!(run.input, CellInput::Open { .. });
        let can_run = self.open.iter().any(|port| !self.stops(&self.paused, *port));
        if !is_opening && is_quiet && self.timers.is_empty() && !can_run {
            self.paused.clear();
            self.inherited.clear();
        }
    }

    /// Encoded: counts, then each element.
    ///
    /// ```text
    /// | server 1 | paused: count 8, (stage 1, port 8)* | timers: count 8, (stage 1, token 8)* |
    /// | open: count 8, (0, port 8)* |
    /// ```
    pub(super) fn save(&self) -> Vec<u8> {
        let mut bytes = vec![u8::from(self.server)];
        let named = |(stage, name): (u8, u64)| [&[stage][..], &name.to_le_bytes()].concat();
        let lists: [Vec<(u8, u64)>; 3] = [
            self.paused.iter().map(|(stage, port)| (*stage, u64::from(*port))).collect(),
            self.timers.iter().copied().collect(),
            self.open.iter().map(|port| (0, u64::from(*port))).collect(),
        ];
        for list in lists {
            bytes.extend_from_slice(&(list.len() as u64).to_le_bytes());
            bytes.extend(list.into_iter().flat_map(named));
        }
        bytes
    }

    /// Decodes the result of [`Pauses::save`]; also returns the bytes after it.
    pub(super) fn load(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (server, mut rest) = bytes.split_first()?;
        let mut list = || {
            let (count, after) = rest.split_first_chunk::<8>()?;
            let size = usize::try_from(u64::from_le_bytes(*count)).ok()?.checked_mul(9)?;
            let (names, after) = after.split_at_checked(size)?;
            rest = after;
            let name = |name: &[u8; 9]| {
                let [stage, word @ ..] = name;
                (*stage, u64::from_le_bytes(*word))
            };
            Some(names.as_chunks::<9>().0.iter().map(name).collect::<Vec<(u8, u64)>>())
        };
        let (paused, timers, open) = (list()?, list()?, list()?);
        let port = |(stage, port): (u8, u64)| Some((stage, u32::try_from(port).ok()?));
        let paused: BTreeSet<_> = paused.into_iter().map(port).collect::<Option<_>>()?;
        let open = open.into_iter().map(|(_, port)| u32::try_from(port).ok()).collect::<Option<_>>()?;
        let timers = timers.into_iter().collect();
        let inherited = paused.clone();
        Some((Self { paused, timers, open, server: *server != 0, inherited }, rest))
    }
}

impl Cell {
    /// Applies a handler's pauses. A program with datagrams would lose those that arrive while its port is paused, which is
    /// not a fault: in seeds with such a program, cells pause nothing.
    pub(super) fn pause(&mut self, run: &Run, datagrams: [bool; 2], ran: &mut Ran, past: &mut Past) {
        if datagrams != [false; 2] {
            ran.outputs.retain(|output| !matches!(output, CellOutput::Pause { .. }));
        }
        // What an end sends without credit is bounded, not refused (docs/protocol.md, "Flow control").
        past.violations.extend(self.pauses.judge(run).filter(|_| !past.lied_to));
        self.pauses.change(run, ran, self.tasks.is_quiet());
    }
}
