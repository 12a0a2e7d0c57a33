//! The coordinator's store comes back without its file, or with an older copy of it (I50).
//!
//! Each edge's disk holds what it remembers, and edges tell each other over their wires, as real ones do. Judged is what an edge asks
//! of the store: no decision under a record and a count that lack anything which this edge remembers or was told. After a while an
//! operator looks at each edge, and accepts the loss.

use super::{
    Event, World,
    coordinator::{QueryPurpose, StoreNode},
};
use crate::{
    oracle::StoreJudge,
    plan::{FaultKind, FaultTarget, Losses, MS, Service, StoreLoss},
    watch::Rare,
};
use bytes::Bytes;
use marram_shard::{
    control::{ControlInput, ControlRequest},
    coordinator::{
        Ask, Store, StoreRequest,
        contents::{EdgeStoreSeen, StoreRecord, decode},
    },
};
use marram_wire::frame::StoreMark;
use std::collections::BTreeMap;

/// A store's file, and what the oracle knew of it at that time.
pub(super) type Copied = (Bytes, StoreJudge);

/// The tag of requests to the control that nothing waits for.
const UNHEARD: u64 = u64::MAX;

/// What each other edge said last that it remembers.
pub(super) type Known = BTreeMap<String, StoreMark>;

impl StoreNode {
    /// A dead store starts again: with what it should have, or less.
    pub(super) fn come_back(&mut self) {
        let (disk, judge) = match (self.loses.take(), &self.copied) {
            (None, _) => return,
            (Some(StoreLoss::PutBack), Some(copied)) => copied.clone(),
            (Some(_), _) => (Store::new().snapshot(), StoreJudge::gone()),
        };
        self.losses += 1;
        self.replace(disk, judge);
    }
}

impl World {
    /// Losses are planned where no session has a witness.
    pub(crate) fn plan_losses(&mut self, losses: Option<Losses>) {
        let has_witness = self.plan.visits.iter().any(|visit| visit.service == Service::Alone);
        let Some(losses) = losses.filter(|_| !has_witness) else { return };
        self.queue.at(losses.copied_ns, Event::StoreCopied);
        for (at_ns, for_ns, loss) in losses.lost {
            self.queue.at(at_ns, Event::StoreLost(loss, for_ns));
        }
    }

    /// What is on an edge's disk.
    pub(super) fn remembered(&self, edge: usize) -> Option<StoreMark> {
        self.coordinator.as_ref()?.remembered.get(&edge).cloned()
    }

    pub(super) fn random_identity(&mut self) -> [u8; 16] {
        let mut identity = [0; 16];
        for half in identity.chunks_mut(8) {
            half.copy_from_slice(&self.store_chance.below(u64::MAX).to_le_bytes());
        }
        identity
    }

    /// An edge starts again after a crash, in some seeds with an empty disk.
    pub(crate) fn restart_disk(&mut self, edge: usize) {
        let loses = self.plan.witness.as_ref().is_some_and(|witness| witness.losses.is_some());
        if loses
            && self.store_chance.percent(60)
            && let Some(node) = &mut self.coordinator
        {
            node.remembered.remove(&edge);
        }
    }

    /// An edge remembers this: it is on its disk, and its other edges are told.
    pub(super) fn remember_store(&mut self, edge: usize, mark: StoreMark) {
        if let Some(node) = &mut self.coordinator {
            node.remembered.insert(edge, mark.clone());
        }
        self.give_control(
            edge,
            ControlInput::Request { tag: UNHEARD, request: ControlRequest::StoreSeen(mark) },
        );
    }

    /// Another edge has told this one what it remembers.
    pub(crate) fn store_seen(&mut self, edge: usize, seen: EdgeStoreSeen) {
        if let Some(node) = &mut self.edges[edge].client {
            node.told.insert(seen.edge.clone(), seen.mark.clone());
            self.ask(edge, QueryPurpose::Unused, Ask::StoreSeen(seen));
        }
    }

    /// An edge asks the store for something. A decision only of a store that has all that the edge knows of.
    pub(super) fn judge_asked(&mut self, edge: usize, request: &StoreRequest) {
        let StoreRequest::Decide { store, least, .. } = request else { return };
        let Some(node) = &self.edges[edge].client else { return };
        let Ok(record) = decode::<StoreRecord>(store) else {
            return self.violations.push(format!("E{edge} asks a store with an unreadable record"));
        };
        let remembered = self.remembered(edge);
        let mut known = node.told.values().chain(&remembered);
        let has = |mark: &StoreMark| {
            let there = StoreMark { identity: record.identity, decisions: *least };
            let mut marks = record.accepted.iter().chain([&there]);
            marks.any(|at| at.identity == mark.identity && at.decisions >= mark.decisions)
        };
        if let Some(lost) = known.find(|mark| !has(mark)) {
            self.violations.push(format!("E{edge} asks for {request:?}, and knows of {lost:?} (I50)"));
        }
    }

    /// An operator copies the store's file.
    pub(crate) fn copy_store(&mut self) {
        if let Some(node) = &mut self.coordinator {
            node.copied = Some(node.copy());
        }
    }

    /// The store dies and comes back with less than it had. Soon after, operators look at the edges.
    pub(crate) fn lose_store(&mut self, loss: StoreLoss, for_ns: u64) {
        let Some(node) = self.coordinator.as_mut().filter(|node| node.may_lose()) else { return };
        node.loses = Some(loss);
        self.watch.count_if(Rare::StoreLoss, true);
        self.trace.say(self.queue.now_ns(), || format!("store: loses its file ({loss:?})"));
        self.store_away(crate::plan::Absence::Dead, for_ns);
        if self.store_chance.percent(70) {
            let place = FaultTarget::Edge(self.store_chance.index(self.edges.len()));
            let for_ns = self.store_chance.magnitude(MS, 300 * MS);
            self.inject_fault(FaultKind::CrashEdge { place, loud: true, for_ns }, None);
        }
        for edge in 0..self.edges.len() {
            let mut after_ns = for_ns + self.store_chance.magnitude(MS, 1_000 * MS);
            for _ in 0..3 {
                let group = u8::from(self.store_chance.percent(30));
                self.queue.after(after_ns, Event::Claim(edge, group));
                after_ns += self.store_chance.magnitude(MS, 1_000 * MS);
            }
            self.queue.after(after_ns, Event::LossChecked(edge));
        }
    }

    /// An operator looks at an edge, and accepts what it doubts. Later losses, or edges that were away, make others necessary.
    pub(crate) fn check_loss(&mut self, edge: usize) {
        let doubts = self.edges[edge].client.iter().flat_map(|node| node.client.doubts());
        let lost: Vec<StoreMark> = doubts.map(|doubt| doubt.mark).collect();
        if !lost.is_empty() {
            let identity = self.random_identity();
            self.ask(edge, QueryPurpose::Accept, Ask::Accept { identity, lost });
        }
        // Sessions may wait for decisions until each edge has been looked at.
        if self.plan.has_epochs() || self.coordinator.as_ref().is_some_and(StoreNode::is_settling) {
            self.queue.after(1_000 * MS, Event::LossChecked(edge));
        }
    }
}
