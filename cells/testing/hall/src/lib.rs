//! The oracle's cell for many clients: the hall of `marram-hall-algo`.
//!
//! Only the glue is here, and two words for what no machine does by itself: a handler that is stopped, and a client for which much
//! waits. The same machine runs natively in the simulator, where no Wasm is needed, and here as a cell.

use core::time::Duration;
use marram_hall_algo::{Hall, HallEvent, HallHost, STOP, TELL_MORE};
use marram_sdk::{Cell, Context, Port, PortKind, cell};

/// The hall as a cell.
#[derive(Default)]
pub struct HallCell {
    hall: Hall,
    /// The client that gets this beside each record.
    more: Option<(Port, Vec<u8>)>,
}

cell!(HallCell);

impl HallCell {
    fn input(&mut self, event: HallEvent<'_>, context: &mut Context) {
        self.hall.input(event, &mut HallContext(context));
        if let Some((port, bytes)) = &self.more {
            context.send(*port, bytes);
        }
    }
}

impl Cell for HallCell {
    fn opened(&mut self, context: &mut Context, port: Port, _: PortKind) {
        self.input(HallEvent::Open(port.0), context);
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        assert_ne!(payload, STOP, "a client asks for this");
        if let Some(Ok(size)) = payload.strip_prefix(TELL_MORE).map(TryInto::try_into) {
            self.more = Some((port, vec![0; u32::from_le_bytes(size) as usize]));
        }
        self.input(HallEvent::Message(port.0, payload), context);
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        self.input(HallEvent::Timer(token), context);
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.more.take_if(|(to, _)| *to == port);
        self.input(HallEvent::Close(port.0), context);
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

    #[test]
    fn a_client_that_asks_for_it_gets_more_until_it_leaves() {
        let mut session = Session::<HallCell>::new();
        let (one, other) = (Port(0), Port(2));
        session.open(one, PortKind::Client);
        session.open(other, PortKind::Client);
        let asked = session.message(other, &[TELL_MORE, &100_u32.to_le_bytes()].concat());
        let said = session.message(one, b"hello");
        for outputs in [asked, said] {
            let sizes = |to: Port| -> Vec<usize> {
                let payload = |output: &Output| match output {
                    Output::Message { port, payload } if *port == to => Some(payload.len()),
                    _ => None,
                };
                outputs.iter().filter_map(payload).collect()
            };
            assert_eq!((sizes(one), sizes(other)), (vec![HallRecord::SIZE], vec![HallRecord::SIZE, 100]));
        }
        session.close(other);
        assert_eq!(session.message(one, b"hello").len(), 1);
    }

    #[test]
    #[should_panic(expected = "a client asks for this")]
    fn a_handler_is_stopped_by_its_word() {
        let mut session = Session::<HallCell>::new();
        session.open(Port(0), PortKind::Client);
        session.message(Port(0), STOP);
    }
}
