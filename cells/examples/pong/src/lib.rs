//! Pong: one player against the edge, or in a shared cell two against each other; five points win. `marram_play`'s arcade
//! describes the lines of a client.
//!
//! `up` and `down` start the paddle, `left` and `right` stop it. The first client has the left paddle. The state is sent as
//! `ball X Y paddles TOP TOP points N N`; X counts columns from the left and Y and TOP rows from the top, all from 0.

mod world;

use marram_play::Arcade;
use marram_sdk::cell;

pub use world::World;

/// The cell.
pub type Pong = Arcade<World>;

cell!(Pong);

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use marram_sdk::{
        Port, PortKind,
        double::{Output, Session},
    };

    fn told(outputs: &[Output], to: Port) -> Vec<String> {
        let text = |output: &Output| match output {
            Output::Message { port, payload } if *port == to => String::from_utf8(payload.clone()).ok(),
            _ => None,
        };
        outputs.iter().filter_map(text).collect::<String>().lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_client_alone_plays_against_the_edge() {
        let mut session = Session::<Pong>::new();
        session.open_client();
        let first = told(&session.message(Port::CLIENT, b"start 966\n"), Port::CLIENT);
        assert_eq!(first, ["0 ball 30 10 paddles 8 8 points 0 0"]);
        let outputs = session.advance(Duration::from_secs(60));
        let lines = told(&outputs, Port::CLIENT);
        assert_eq!(lines.last().map(String::as_str), Some("over right wins 0 : 5"));
        // One line per change: fewer lines than ticks.
        let ticks = lines[lines.len() - 2].split(' ').next().and_then(|tick| tick.parse::<usize>().ok());
        assert!(ticks.is_some_and(|ticks| lines.len() < ticks), "{ticks:?} {}", lines.len());
    }

    #[test]
    fn two_clients_of_a_shared_cell_play_against_each_other() {
        const OTHER: Port = Port(2);
        let mut session = Session::<Pong>::new();
        session.open_client();
        session.open(OTHER, PortKind::Client);
        session.message(OTHER, b"start 1\nat 1 up\n");
        session.message(Port::CLIENT, b"at 1 down\n");
        let outputs = session.advance(Duration::from_millis(400));
        let last = "paddles 16 0 points 0 0";
        for port in [Port::CLIENT, OTHER] {
            let lines = told(&outputs, port);
            assert!(lines.last().is_some_and(|line| line.ends_with(last)), "{:?}", lines.last());
        }
    }
}
