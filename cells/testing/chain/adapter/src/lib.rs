//! Connects the machines of `marram-chain-algo` to the SDK: handlers become events, and what a machine calls goes to the context.
//! Does not know what the machines do.
//!
//! The dependency goes one way: the machines know only their trait [`Host`], so that the simulator
//! can implement it as well.
#![no_std]

use core::time::Duration;

use marram_chain_algo::{Chain, Event, Host, Peer, delay_stage::DelayStage};
use marram_sdk::{Cell, Context, Port, PortKind};

/// A machine of `marram-chain-algo`.
pub trait Machine: Default + 'static {
    /// The next port of this peer uses datagrams. Does nothing if the machine treats streams and datagrams alike.
    fn speaks_in_datagrams(&mut self, _peer: Peer) {}

    /// Consumes one event and produces its effects.
    fn input(&mut self, event: Event<'_>, host: &mut impl Host);
}

impl Machine for Chain {
    fn input(&mut self, event: Event<'_>, host: &mut impl Host) {
        Self::input(self, event, host);
    }
}

impl Machine for DelayStage {
    fn speaks_in_datagrams(&mut self, peer: Peer) {
        Self::speaks_in_datagrams(self, peer);
    }

    fn input(&mut self, event: Event<'_>, host: &mut impl Host) {
        Self::input(self, event, host);
    }
}

/// A machine as a cell.
#[derive(Default)]
pub struct MachineCell<M> {
    /// Created at deployment, like every cell's state; its randomness comes with the first event.
    machine: M,
}

impl<M: Machine> MachineCell<M> {
    /// Ignores events of ports that the machine does not know.
    fn input<'a>(&mut self, context: &mut Context, port: Port, event: impl FnOnce(Peer) -> Event<'a>) {
        if let Some(peer) = Peer::from_port(port.0) {
            self.machine.input(event(peer), &mut HostContext(context));
        }
    }
}

impl<M: Machine> Cell for MachineCell<M> {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        if let (PortKind::ClientDatagrams | PortKind::ServerDatagrams, Some(peer)) =
            (kind, Peer::from_port(port.0))
        {
            self.machine.speaks_in_datagrams(peer);
        }
        self.input(context, port, Event::Open);
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        self.input(context, port, |peer| Event::Message(peer, payload));
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        self.machine.input(Event::Timer(token), &mut HostContext(context));
    }

    fn task(&mut self, context: &mut Context, token: u64) {
        self.machine.input(Event::Task(token), &mut HostContext(context));
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.input(context, port, Event::Close);
    }
}

/// The machine's host is the cell's context. For the duration of one event.
struct HostContext<'a>(&'a mut Context);

impl Host for HostContext<'_> {
    fn now(&mut self) -> i64 {
        self.0.now().nanoseconds
    }

    fn random(&mut self, buffer: &mut [u8]) {
        self.0.fill_random(buffer);
    }

    fn send(&mut self, to: Peer, payload: &[u8]) {
        self.0.send(Port(to as u32), payload);
    }

    fn close(&mut self, to: Peer) {
        self.0.close(Port(to as u32));
    }

    fn set_timer(&mut self, delay_ns: i64, token: u64) {
        self.0.set_timer(Duration::from_nanos(u64::try_from(delay_ns).unwrap_or(0)), token);
    }

    fn cancel_timer(&mut self, token: u64) {
        self.0.cancel_timer(token);
    }

    fn spawn(&mut self, token: u64) {
        self.0.spawn(token);
    }

    fn lock(&mut self, id: u64, token: u64) {
        self.0.lock(id, token);
    }

    fn unlock(&mut self, id: u64) {
        self.0.unlock(id);
    }

    fn pause(&mut self, peer: Peer) {
        self.0.pause(Port(peer as u32));
    }

    fn resume(&mut self, peer: Peer) {
        self.0.resume(Port(peer as u32));
    }
}
