//! The oracle's cell: connects the hash chain of `marram-chain-algo` to the SDK.

use core::time::Duration;

use marram_chain_algo::{Chain, Event, Host, Peer};
use marram_sdk::{Cell, Context, Port, PortKind, cell};

/// The chain as a cell.
#[derive(Default)]
pub struct ChainCell {
    chain: Chain,
}

impl ChainCell {
    /// Ignores events of ports that the chain does not know.
    fn input<'a>(&mut self, context: &mut Context, port: Port, event: impl FnOnce(Peer) -> Event<'a>) {
        if let Some(peer) = Peer::from_port(port.0) {
            self.chain.input(event(peer), &mut HostContext(context));
        }
    }
}

impl Cell for ChainCell {
    fn opened(&mut self, context: &mut Context, port: Port, _: PortKind) {
        self.input(context, port, Event::Open);
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        self.input(context, port, |peer| Event::Message(peer, payload));
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        self.chain.input(Event::Timer(token), &mut HostContext(context));
    }

    fn task(&mut self, context: &mut Context, token: u64) {
        self.chain.input(Event::Task(token), &mut HostContext(context));
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.input(context, port, Event::Close);
    }
}

cell!(ChainCell);

/// The chain's host is the cell's context.
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
    use marram_chain_algo::Record;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn what_both_peers_receive_is_one_chain() {
        let mut session = Session::<ChainCell>::new();
        let mut outputs = session.open_client();
        outputs.extend(session.open_server());
        for n in 0..50_u8 {
            outputs.extend(session.message(Port(u32::from(n % 2)), &[n]));
            outputs.extend(session.advance(Duration::from_millis(10)));
        }
        outputs.extend(session.close(Port::CLIENT));
        let mut previous = 0;
        let mut peers = [0; 2];
        for output in &outputs {
            if let Output::Message { port, payload } = output {
                let record = Record::from_bytes(payload.as_slice().try_into().unwrap());
                assert_eq!(record.previous, previous);
                previous = record.digest();
                peers[port.0 as usize] += 1;
            }
        }
        assert!(peers.iter().all(|count| *count > 10), "{peers:?}");
        assert_eq!(outputs.last(), Some(&Output::close(Port::SERVER)));
    }
}
