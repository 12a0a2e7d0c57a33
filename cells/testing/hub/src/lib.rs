//! A cell of many clients for benchmarks: what one of them says goes to all.
//!
//! Nothing else costs time: it has no timers and no history, and looks at no byte.

use marram_sdk::{Cell, Context, Port, PortKind, cell};
use std::collections::BTreeSet;

/// The clients that are here.
#[derive(Default)]
struct Hub(BTreeSet<Port>);

cell!(Hub);

impl Cell for Hub {
    fn opened(&mut self, _: &mut Context, port: Port, _: PortKind) {
        self.0.insert(port);
    }

    fn message(&mut self, context: &mut Context, _: Port, payload: &[u8]) {
        for port in &self.0 {
            context.send(*port, payload);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.0.remove(&port);
        context.close(port);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn all_who_are_here_get_what_one_says() {
        let mut session = Session::<Hub>::new();
        for port in [0, 2, 3] {
            session.open(Port(port), PortKind::Client);
        }
        session.close(Port(2));
        let outputs = session.message(Port(3), b"hello");
        let expected = [0, 3].map(|port| Output::Message { port: Port(port), payload: b"hello".to_vec() });
        assert_eq!(outputs, expected);
    }
}
