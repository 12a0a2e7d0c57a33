//! The oracle's cell for many clients: the hall of `marram-hall-algo`.
//!
//! Only the glue is here: the same machine runs natively in the simulator, where no Wasm is needed, and here as a cell.

use core::time::Duration;
use marram_hall_algo::{Hall, HallEvent, HallHost};
use marram_sdk::{Cell, Context, Port, PortKind, cell};

/// The hall as a cell.
#[derive(Default)]
pub struct HallCell(Hall);

cell!(HallCell);

impl Cell for HallCell {
    fn opened(&mut self, context: &mut Context, port: Port, _: PortKind) {
        self.0.input(HallEvent::Open(port.0), &mut HallContext(context));
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        self.0.input(HallEvent::Message(port.0, payload), &mut HallContext(context));
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        self.0.input(HallEvent::Timer(token), &mut HallContext(context));
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.0.input(HallEvent::Close(port.0), &mut HallContext(context));
    }
}

/// The machine's host is the cell's context. For the duration of one event.
struct HallContext<'a>(&'a mut Context);

impl HallHost for HallContext<'_> {
    fn now(&mut self) -> i64 {
        self.0.now().nanoseconds
    }

    fn random(&mut self, buffer: &mut [u8]) {
        self.0.fill_random(buffer);
    }

    fn send(&mut self, to: u32, payload: &[u8]) {
        self.0.send(Port(to), payload);
    }

    fn close(&mut self, to: u32) {
        self.0.close(Port(to));
    }

    fn set_timer(&mut self, delay_ns: i64, token: u64) {
        self.0.set_timer(Duration::from_nanos(u64::try_from(delay_ns).unwrap_or(0)), token);
    }

    fn cancel_timer(&mut self, token: u64) {
        self.0.cancel_timer(token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_hall_algo::HallRecord;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn every_client_gets_every_record_from_its_own_on() {
        let mut session = Session::<HallCell>::new();
        let mut outputs = Vec::new();
        for port in [0, 2, 3] {
            outputs.extend(session.open(Port(port), PortKind::Client));
            for n in 0..20_u8 {
                outputs.extend(session.message(Port(port), &[n]));
                outputs.extend(session.advance(Duration::from_millis(10)));
            }
        }
        outputs.extend(session.close(Port(2)));
        for port in [0, 2, 3] {
            let got = outputs.iter().filter_map(|output| match output {
                Output::Message { port: to, payload } if to.0 == port => {
                    HallRecord::from_bytes(payload.as_slice().try_into().ok()?)
                }
                _ => None,
            });
            let got: Vec<_> = got.collect();
            assert!(got.len() > 20 && got.windows(2).all(|pair| pair[1].previous == pair[0].digest()));
            assert_eq!(got[0].port, port);
        }
        assert_eq!(outputs.last(), Some(&Output::close(Port(2))));
    }
}
