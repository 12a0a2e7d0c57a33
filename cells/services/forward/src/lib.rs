//! A blind forwarder: passes messages and half-closes from each side to the other. Does not read contents.
//!
//! The smallest useful stage, and what `marram bench forward` measures the platform with: each
//! message is an input, a log entry and an output, and the cell adds nothing to that.

use marram_sdk::{Cell, Context, Port, cell};

/// Has no state: all that must survive is in flight.
#[derive(Default)]
pub struct Forward;

impl Cell for Forward {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        context.send(port.opposite(), payload);
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port.opposite());
    }
}

cell!(Forward);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    #[test]
    fn each_side_receives_what_the_other_sends() {
        let mut session = Session::<Forward>::new();
        assert_eq!(session.open_client(), []);
        assert_eq!(session.open_server(), []);
        assert_eq!(session.message(Port::CLIENT, b"ask"), [Output::message(Port::SERVER, b"ask")]);
        assert_eq!(session.message(Port::SERVER, b"answer"), [Output::message(Port::CLIENT, b"answer")]);
    }

    #[test]
    fn a_half_close_leaves_the_other_direction_open() {
        let mut session = Session::<Forward>::new();
        assert_eq!(session.close(Port::CLIENT), [Output::close(Port::SERVER)]);
        assert_eq!(session.message(Port::SERVER, b"late"), [Output::message(Port::CLIENT, b"late")]);
        assert_eq!(session.close(Port::SERVER), [Output::close(Port::CLIENT)]);
    }
}
