//! A stage for chains around the oracle's cell: passes streams on, some data later. Connects the delay stage of
//! `marram-chain-algo` to the SDK.

use core::time::Duration;

use marram_chain_algo::{Event, Host, Peer, delay_stage::DelayStage};
use marram_sdk::{Cell, Context, Port, PortKind, cell};

/// The delay stage as a cell.
#[derive(Default)]
pub struct DelayCell {
    stage: DelayStage,
}

impl DelayCell {
    /// Ignores events of ports that the stage does not know.
    fn input<'a>(&mut self, context: &mut Context, port: Port, event: impl FnOnce(Peer) -> Event<'a>) {
        if let Some(peer) = Peer::from_port(port.0) {
            self.stage.input(event(peer), &mut HostContext(context));
        }
    }
}

impl Cell for DelayCell {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        if let (PortKind::ClientDatagrams | PortKind::ServerDatagrams, Some(peer)) =
            (kind, Peer::from_port(port.0))
        {
            self.stage.speaks_in_datagrams(peer);
        }
        self.input(context, port, Event::Open);
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        self.input(context, port, |peer| Event::Message(peer, payload));
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        self.stage.input(Event::Timer(token), &mut HostContext(context));
    }

    fn task(&mut self, context: &mut Context, token: u64) {
        self.stage.input(Event::Task(token), &mut HostContext(context));
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.input(context, port, Event::Close);
    }
}

cell!(DelayCell);

/// The stage's host is the cell's context.
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

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn what_goes_in_comes_out_at_the_other_side_at_the_latest_when_it_ends() {
        let mut session = Session::<DelayCell>::new();
        session.open_client();
        session.open_server();
        let mut came = Vec::new();
        for n in 0..100_u8 {
            let outputs =
                [session.message(Port::CLIENT, &[n; 100]), session.advance(Duration::from_millis(3))];
            came.extend(outputs.concat());
        }
        came.extend(session.close(Port::CLIENT));
        let payload = |output: &Output| match output {
            Output::Message { port: Port::SERVER, payload } => payload.clone(),
            _ => Vec::new(),
        };
        let bytes: Vec<u8> = came.iter().flat_map(payload).collect();
        let expected: Vec<u8> = (0..100).flat_map(|n| [n; 100]).collect();
        assert_eq!(bytes, expected);
        assert_eq!(came.last(), Some(&Output::close(Port::SERVER)));
    }
}
