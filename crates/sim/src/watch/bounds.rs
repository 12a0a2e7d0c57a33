//! Limits that two machines agreed on, checked on the wire between them: bytes in flight, and bytes that an end keeps.
//!
//! Checked per channel, from what its sender knew when it sent (I24, I28, and the window of I10). A
//! message is charged more than its payload (`limits::charge`), so that many small messages are
//! bounded as well. A channel of a new attempt begins without bounds, until the frame arrives that
//! sets them.

use super::PeerSide;
use marram_chain_algo::Record;
use marram_wire::{
    frame::Frame,
    limits::{CHECKPOINT_AFTER_BYTES, CHECKPOINT_WINDOW, INPUT_WINDOW, OUTPUT_WINDOW, PART_SIZE, charge},
};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes in flight on one channel, as its sender knows them.
#[derive(Debug, Default)]
struct Flow {
    /// Bytes of messages that may still be sent to the edge; unknown until the log is chosen.
    credit: Option<i128>,
    /// Bytes of outputs that may still be sent to the end; unknown before its promise reached the edge.
    window: Option<i128>,
    /// Bytes of checkpoint parts that were sent to the end and are not stored.
    parts: u64,
    /// Whether the end has said that it may keep less than usual.
    is_short: bool,
}

/// The flows, by wire and channel.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    flows: BTreeMap<(usize, u32), Flow>,
    /// What an end may have in flight, if it is not [`INPUT_WINDOW`]: the edges have little memory.
    pub(super) window: Option<u64>,
    /// What an edge may be granted for outputs to an end, if it is not [`OUTPUT_WINDOW`]: the agents have little memory.
    pub(super) output_window: Option<u64>,
    /// Wires that are not checked.
    pub(super) ignored: BTreeSet<usize>,
    pub(super) broken: Option<String>,
    /// How often an end's window was full.
    pub(super) full: u64,
    /// How many checkpoints were sent to ends that may keep less than usual.
    pub(super) early: u64,
}

impl Bounds {
    ///
    /// A broken bound is kept in `broken` until the next arrival, which has a list of violations to
    /// add it to.
    pub(super) fn sent(&mut self, wire: usize, side: PeerSide, frame: &Frame) {
        if self.ignored.contains(&wire) {
            return;
        }
        match (side, frame) {
            (PeerSide::Agent, Frame::Input(input)) => {
                let flow = self.flows.entry((wire, input.channel)).or_default();
                let size = charge(input.payload.len());
                if let Some(credit) = &mut flow.credit {
                    // The mark that ends the stream needs no credit, and the last message may exceed it.
                    if *credit <= 0 && !input.close {
                        self.broken = Some(format!("{size} B sent with a credit of {credit} B"));
                    }
                    *credit -= i128::from(size);
                }
            }
            (PeerSide::Agent, Frame::Promised(promised)) => {
                // What is sent again before the log is chosen needs no credit.
                self.flows.entry((wire, promised.channel)).or_default().credit = None;
            }
            (PeerSide::Edge, Frame::Output(output)) => {
                let flow = self.flows.entry((wire, output.channel)).or_default();
                let size = charge(output.payload.len());
                if let Some(window) = &mut flow.window {
                    // The last output may exceed it.
                    if *window <= 0 {
                        self.broken = Some(format!("{size} B put out with a window of {window} B"));
                    }
                    *window -= i128::from(size);
                    self.full += u64::from(*window < i128::from(charge(Record::SIZE)));
                }
            }
            (PeerSide::Edge, Frame::CheckpointBegin(begin)) => {
                let flow = self.flows.entry((wire, begin.channel)).or_default();
                self.early += u64::from(flow.is_short);
            }
            (PeerSide::Edge, Frame::CheckpointPart(part)) => {
                let flow = self.flows.entry((wire, part.channel)).or_default();
                flow.parts += part.bytes.len() as u64;
                if flow.parts > CHECKPOINT_WINDOW + PART_SIZE as u64 {
                    self.broken = Some(format!("{} B of checkpoint parts on their way", flow.parts));
                }
            }
            _ => {}
        }
    }

    ///
    /// Only here the bounds grow: credit and stored bytes count when the sender has learned of
    /// them.
    pub(super) fn arrived(
        &mut self,
        wire: usize,
        side: PeerSide,
        frame: &Frame,
        violations: &mut Vec<String>,
    ) {
        violations.extend(self.broken.take());
        if self.ignored.contains(&wire) {
            return;
        }
        match (side, frame) {
            (PeerSide::Agent, Frame::Chosen(chosen)) => {
                self.flows.entry((wire, chosen.channel)).or_default().credit = Some(chosen.credit.into());
            }
            (PeerSide::Agent, Frame::Credit(more)) => {
                let flow = self.flows.entry((wire, more.channel)).or_default();
                if let Some(credit) = &mut flow.credit {
                    *credit += i128::from(more.bytes);
                    if *credit > i128::from(self.window.unwrap_or(INPUT_WINDOW)) {
                        violations.push(format!("an edge lets {credit} B come at once"));
                    }
                }
            }
            (PeerSide::Edge, Frame::Promised(promised)) => {
                let flow = self.flows.entry((wire, promised.channel)).or_default();
                flow.window = Some(promised.window.into());
                if promised.window > self.output_window.unwrap_or(OUTPUT_WINDOW) {
                    violations.push(format!("an end lets {} B come at first", promised.window));
                }
            }
            (PeerSide::Edge, Frame::Credit(more)) => {
                let flow = self.flows.entry((wire, more.channel)).or_default();
                if let Some(window) = &mut flow.window {
                    *window += i128::from(more.bytes);
                    if *window > i128::from(self.output_window.unwrap_or(OUTPUT_WINDOW)) {
                        violations.push(format!("an end lets {window} B come at once"));
                    }
                }
            }
            (PeerSide::Edge, Frame::Allowance(allowance)) => {
                let flow = self.flows.entry((wire, allowance.channel)).or_default();
                flow.is_short = allowance.bytes < CHECKPOINT_AFTER_BYTES;
            }
            (PeerSide::Edge, Frame::Stored(stored)) => {
                let flow = self.flows.entry((wire, stored.channel)).or_default();
                flow.parts = flow.parts.saturating_sub(stored.bytes);
            }
            _ => {}
        }
    }
}
