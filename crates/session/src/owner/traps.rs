//! A handler of one client's input was stopped: a shared cell loses that client, and goes on as it was before (docs/protocol-epochs.md,
//! "Handlers that are stopped").
//!
//! The rebuild is as if a handler ran for long: messages wait, no copy is taken, and all else goes on.

use super::{
    Now, Owner, OwnerEffect, OwnerPhase,
    boundary::Boundary,
    client_port::{ClientPort, PortPhase},
    end_state::{EndState, Message},
    ends::Ends,
    marks::Mark,
    rebuild::Rebuild,
    runner::Running,
};
use crate::{
    bug,
    cell::{CellError, Ran, Run},
    replay::Handler,
    trace,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{Code, Ended},
    header::Header,
    id::{Generation, Port},
    limits::charge,
    log::{Event, PortEvent},
};

impl Owner {
    /// A handler was stopped, or did what is forbidden. If one client has caused it, that client is expelled; else the cell is over.
    pub(super) fn handler_stopped(&mut self, running: &Running, reason: String, out: &mut Vec<OwnerEffect>) {
        let (port, quietly) = match &running.event {
            Event::Message(port) => (Some(*port), false),
            // The cell was told already.
            Event::Port(PortEvent::Left { quietly: true, .. }) => (None, false),
            Event::Port(event @ PortEvent::Left { .. }) => (Some(event.port()), true),
            Event::Port(event) => (Some(event.port()), false),
            Event::Timer | Event::Task | Event::Start { .. } => (None, false),
        };
        let can = self.keep.as_ref().is_some_and(|keep| keep.has_base() || keep.is_copied());
        let Some(port) = port.filter(|_| can) else {
            return self.terminate(Code::Guest, reason, out);
        };
        // Its close handler would be stopped again.
        let quietly = quietly || running.message.as_ref().is_some_and(|message| message.close);
        trace!(self.context(), "expels the client at port {}, which has stopped the cell: {reason}", port.0);
        let client = self.client_of(port);
        out.extend(client.map(|(client, _)| OwnerEffect::Expelled(client, reason.clone())));
        self.tell_ended(port, Code::Guest, &reason, out);
        self.ends.undo_entry(self.epochs.last(), port, running.message.as_ref());
        self.expel(port, quietly, out);
        self.runner.rebuild = Some(Box::new(Rebuild::new(self.about.session, self.state.seed, reason)));
        self.begin_rebuild(out);
    }

    /// The log says that the client is expelled, if it knows it. It is to leave before anything else happens.
    fn expel(&mut self, port: Port, quietly: bool, out: &mut Vec<OwnerEffect>) {
        let client = self.ends.client_at(port).and_then(|side| side.client.as_mut());
        let Some(client) = client else { return };
        client.pending = Some(PortEvent::Left { port, quietly });
        if core::mem::replace(&mut client.expelled, true) {
            return;
        }
        let event = Event::Port(PortEvent::Expelled { port });
        // It reads nothing, so there is room for it.
        self.log_entry(Running::without_handler(event), out);
        self.totals.consumed += 1;
        self.entry_ended(out);
    }

    /// Begins to rebuild the cell as it was at the end of the last entry. A copy that was made of it is sealed first: a backup may begin with
    /// that one, and this owner too.
    pub(super) fn begin_rebuild(&mut self, out: &mut Vec<OwnerEffect>) {
        let (Some(rebuild), Some(keep)) = (&mut self.runner.rebuild, &self.keep) else { return };
        let Some(reason) = rebuild.waits().filter(|_| self.checkpointer.apart.is_none()) else { return };
        if !keep.has_base() {
            let reason = reason.into();
            return self.terminate(Code::Guest, reason, out);
        }
        out.extend(self.cell.take().map(OwnerEffect::Remove));
        rebuild.begin(keep.restore(self.about.image, self.state.seed, out));
    }

    /// The cell that is rebuilt can run: it is as at the start, or as in the checkpoint with this header.
    pub(super) fn rebuild_stands(
        &mut self,
        now: Now,
        result: Result<Option<Box<Header>>, CellError>,
        out: &mut Vec<OwnerEffect>,
    ) {
        let (Some(rebuild), Some(keep)) = (&mut self.runner.rebuild, &self.keep) else { return };
        let mut header = match result {
            Ok(header) => header,
            Err(error) => return self.terminate(error.code, error.reason, out),
        };
        let log = Bytes::copy_from_slice(keep.log_since(&self.log));
        let is_it = |header: &Header| header.session == self.about.session && keep.is_at(header.log_offset);
        if !header.as_deref().is_none_or(is_it) || !rebuild.stands(header.as_deref_mut(), log) {
            return self.tampered("a checkpoint is of another session or position", out);
        }
        self.rebuild_next(now, out);
    }

    /// Runs the next handler of the replay, or ends it.
    fn rebuild_next(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let (Some(rebuild), Some(cell)) = (&mut self.runner.rebuild, self.cell) else { return };
        match rebuild.next(&self.about) {
            Ok(Some(Handler { input, now_ns, reads })) => {
                out.push(OwnerEffect::Run(Run { cell, input, now_ns, logged: Some(reads) }));
            }
            Ok(None) => self.rebuilt(now, out),
            Err(_) => self.tampered("the log of the cell cannot be followed", out),
        }
    }

    /// A handler finished in the replay.
    pub(super) fn rebuild_ran(&mut self, now: Now, ran: &Ran, out: &mut Vec<OwnerEffect>) {
        let Some(rebuild) = &mut self.runner.rebuild else { return };
        if let Err(why) = rebuild.ran(&self.about, ran) {
            let reason =
                format!("a client's input has stopped the cell, which cannot be rebuilt: in replay: {why}");
            return self.terminate(Code::Guest, reason, out);
        }
        // A cell that is stopped again and again is copied in time.
        self.keep.iter_mut().for_each(|keep| keep.spent(ran.cost_ns));
        self.rebuild_next(now, out);
    }

    /// The cell is as it was.
    fn rebuilt(&mut self, now: Now, out: &mut Vec<OwnerEffect>) {
        let Some(rebuild) = self.runner.rebuild.take() else { return };
        if !rebuild.is_as(&self.ends) {
            let bug = bug!("a cell is rebuilt as it was", self.about.session, rebuild.entries());
            return self.end_for_bug(bug, out);
        }
        trace!(self.context(), "the cell is rebuilt: {} entries replayed", rebuild.entries());
        self.totals.replayed += rebuild.entries();
        self.state = rebuild.into_state();
        // The client leaves first.
        self.pump(now, out);
        if self.phase() == OwnerPhase::Running {
            self.checkpoint_if_due(out);
        }
    }

    /// A client's end is told that its session is over, on whatever channel it has.
    pub(super) fn tell_ended(&mut self, port: Port, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        self.ends.end_one(port, code, reason, out);
    }
}

impl Ends {
    /// The end at this port is told that its session is over, on whatever channel it has.
    pub(super) fn end_one(&mut self, port: Port, code: Code, reason: &str, out: &mut Vec<OwnerEffect>) {
        let Some(side) = self.client_at(port) else { return };
        let linked = side.channel.take();
        let Some(client) = side.client.as_mut() else { return };
        let channel = client.channel(linked);
        client.phase = PortPhase::Away;
        out.extend(
            channel.map(|channel| {
                OwnerEffect::Send(port, Ended { channel, code, reason: reason.into() }.into())
            }),
        );
    }
}

impl Ends {
    /// The entry that was begun did not happen. It was of the client at this port, and had consumed this message, if any; what waits of that
    /// client is dropped. `last` is the end of the entry before.
    fn undo_entry(&mut self, last: &Boundary, port: Port, message: Option<&Message>) {
        if let Some(list) = &mut self.ports {
            list.leaving = None;
        }
        self.undo_connections();
        // A client that was about to join has not.
        let has_joined = |side: &EndState| {
            let has = |client: &ClientPort| {
                client.connection.is_some() || client.client.generation != Generation::NONE
            };
            side.client.as_deref().is_none_or(has)
        };
        self.retain(has_joined);
        for side in self.iter_mut() {
            side.go_back(last.mark(side.port));
        }
        if let Some(index) = self.index(port) {
            let side = &mut self[index];
            side.drop_inputs();
            side.input_closed &= !message.is_some_and(|message| message.close);
        }
    }
}

impl EndState {
    /// What an entry did that is not logged is undone. None of it was sent.
    fn go_back(&mut self, mark: Mark) {
        (self.took, self.uncovered) = (mark.took, mark.uncovered);
        while self.produced > mark.produced
            && let Some(message) = self.outbox.pop_back()
        {
            let cost = charge(message.payload.len());
            self.outbox_charge -= cost;
            self.unsent_charge -= cost;
            self.produced -= 1;
            self.output_closed &= !message.close;
        }
    }

    /// What its end sent and the cell has not consumed is of no use.
    fn drop_inputs(&mut self) {
        self.inputs.clear();
        self.inputs_charge = 0;
    }
}
