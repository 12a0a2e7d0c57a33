//! Ticks that do not drift: each is due at its own time after the first, even if the one before was late.

use core::time::Duration;

use marram_sdk::Context;

/// Speed of real-time games.
pub const TICKS_PER_S: i64 = 60;

/// A world that is further behind than this continues from now, instead of catching up: a player could not have played in
/// the lost time.
const LATE_NS_MAX: i64 = 250_000_000;

const NS_PER_S: i64 = 1_000_000_000;

/// A timer that is set repeatedly.
#[derive(Default, Debug)]
pub struct Beat {
    start_ns: i64,
    ticks: i64,
}

impl Beat {
    /// Starts: the first tick is due in 1/60 s, on the timer with this token.
    pub fn start(&mut self, context: &mut Context, token: u64) {
        *self = Self { start_ns: context.now().nanoseconds, ticks: 0 };
        self.next(context, token);
    }

    /// Sets the timer for the tick after the present one.
    pub fn next(&mut self, context: &mut Context, token: u64) {
        let now_ns = context.now().nanoseconds;
        self.ticks += 1;
        let mut late_ns = now_ns - self.due_ns();
        if late_ns > LATE_NS_MAX {
            *self = Self { start_ns: now_ns, ticks: 1 };
            late_ns = now_ns - self.due_ns();
        }
        context.set_timer(Duration::from_nanos(u64::try_from(-late_ns).unwrap_or(0)), token);
    }

    /// Rounded down for each tick separately, so that a second has exactly 60.
    const fn due_ns(&self) -> i64 {
        self.start_ns
            + self.ticks / TICKS_PER_S * NS_PER_S
            + self.ticks % TICKS_PER_S * NS_PER_S / TICKS_PER_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::{Cell, Port, double::Session};

    /// Begins at the first message, and counts.
    #[derive(Default)]
    struct Clock {
        beat: Beat,
        ticks: u32,
    }

    impl Cell for Clock {
        fn message(&mut self, context: &mut Context, _: Port, _: &[u8]) {
            self.beat.start(context, 1);
        }

        fn timer(&mut self, context: &mut Context, token: u64) {
            self.ticks += 1;
            self.beat.next(context, token);
        }
    }

    #[test]
    fn an_hour_has_60_ticks_a_second() {
        let mut session = Session::<Clock>::new();
        session.message(Port::CLIENT, b"go");
        session.advance(Duration::from_secs(3_600));
        assert_eq!(session.cell().ticks, 3_600 * 60);
    }

    #[test]
    fn a_late_tick_does_not_shift_the_next_and_a_very_late_one_does() {
        let mut beat = Beat { start_ns: 0, ticks: 5 };
        assert_eq!(beat.due_ns(), 83_333_333);
        beat.ticks = 60 * 7;
        assert_eq!(beat.due_ns(), 7 * NS_PER_S);
        // The test context's clock is at 0, which is late for a beat that began before.
        let delay_ns = |start_ns: i64| {
            let mut session = Session::of(Late { beat: Beat { start_ns, ticks: 0 } });
            session.message(Port::CLIENT, b"go");
            (0..20_000_000).step_by(1_000).find(|_| {
                session.advance(Duration::from_micros(1));
                session.timers().next().is_none()
            })
        };
        assert_eq!(delay_ns(-10_000_000), Some(6_666_000));
        assert_eq!(delay_ns(-100_000_000), Some(0));
        assert_eq!(delay_ns(-300_000_000), Some(16_666_000));
    }

    #[derive(Default)]
    struct Late {
        beat: Beat,
    }

    impl Cell for Late {
        fn message(&mut self, context: &mut Context, _: Port, _: &[u8]) {
            self.beat.next(context, 1);
        }
    }
}
