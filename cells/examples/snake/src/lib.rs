//! Snake: one player, a field of 40 x 20 with walls, ten moves a second. `marram_play`'s arcade describes the lines of a
//! client.
//!
//! Each move is sent as `head X Y food X Y length N`; X counts from the left and Y from the top, both from 0.

mod world;

use marram_play::Arcade;
use marram_sdk::cell;

pub use world::World;

/// The cell.
pub type Snake = Arcade<World>;

cell!(Snake);

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use marram_play::double::text;
    use marram_sdk::{Port, double::Session};

    #[test]
    fn a_script_is_a_game() {
        let mut session = Session::<Snake>::new();
        session.open_client();
        let script = b"start 8641\nat 87 down\nat 93 left\nat 255 down\n";
        assert_eq!(text(&session.message(Port::CLIENT, script)), "0 head 20 10 food 25 10 length 4\n");
        let told = text(&session.advance(Duration::from_secs(10)));
        let lines: Vec<_> = told.lines().collect();
        assert_eq!(lines.first(), Some(&"6 head 21 10 food 25 10 length 4"));
        assert_eq!(lines.last(), Some(&"over length 7, hit the wall"));
        // 51 moves and the end, and nothing in between.
        assert_eq!(lines.len(), 52);
        assert_eq!(session.timers().count(), 0);
    }

    #[test]
    fn a_terminal_sees_a_field_and_steers_with_arrows() {
        let mut session = Session::<Snake>::new();
        session.open_client();
        let drawn = text(&session.message(Port::CLIENT, b"ansi\n"));
        assert!(drawn.contains("ooo@") && drawn.matches("\x1b[K").count() == 24, "{drawn:?}");
        session.message(Port::CLIENT, b"\x1b[A");
        let moved = text(&session.advance(Duration::from_millis(101)));
        // The rows of the head's old place and of its new one.
        assert_eq!(moved.matches("\x1b[K").count(), 2, "{moved:?}");
        assert!(text(&session.message(Port::CLIENT, b"q")).ends_with("closed"));
    }
}
