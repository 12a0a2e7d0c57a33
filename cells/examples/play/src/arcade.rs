//! A cell that plays a real-time game, alone or with as many clients as the game has seats.
//!
//! A client sends and receives lines:
//!
//! | line | does |
//! |---|---|
//! | `start [SEED]` | begins a game; the same seed gives the same random numbers |
//! | `up`, `down`, `left`, `right` (or `w s a d`) | presses that key now |
//! | `at TICK KEY` | presses it at that tick; ticks are a sixtieth of a second apart |
//! | `ansi` | from here on each byte is a terminal's key, and the answers are pictures |
//! | `quit` | ends the connection |
//!
//! Each change of the world is sent as `TICK` and the game's own line, the end as `over` and the result, a wrong line as `error`
//! and the reason. Nothing is sent while nothing changes, and no timer is set while there is no game.

use std::fmt::Write;

use marram_sdk::{Cell, Context, Port, PortKind};

use crate::{Beat, Key, Keys, Lines, Press, Screen};

/// The only timer.
const TICK: u64 = 0;

/// Most keys of one client that wait for their ticks.
const WAITING_MAX: usize = 1_024;

/// A client that makes more errors within one game is disconnected.
const ERRORS_MAX: u32 = 100;

/// A world with its rules. It knows neither clients nor clocks: it is a function of its seed and the keys between its steps.
pub trait Game: 'static {
    /// Name of the game.
    const NAME: &'static str;

    /// Most players.
    const SEATS: usize;

    /// A world before its first tick. `players` says which seats are taken.
    fn new(seed: u64, players: &[bool]) -> Self;

    /// A player presses a key. A key that the rules do not allow has no effect.
    fn press(&mut self, seat: usize, key: Key);

    /// Advances by one tick.
    fn step(&mut self);

    /// The world as a line.
    fn line(&self) -> String;

    /// The world as a picture.
    fn rows(&self) -> Vec<String>;

    /// The result, when the game is over.
    fn result(&self) -> Option<String>;
}

/// The cell.
pub struct Arcade<G> {
    game: Option<G>,
    tick: u64,
    beat: Beat,
    /// The line that the clients received last.
    told: String,
    seats: Vec<Option<Seat>>,
}

/// A client.
struct Seat {
    port: Port,
    lines: Lines,
    /// Set after `ansi`.
    terminal: Option<(Keys, Screen)>,
    /// In order of tick, then of arrival.
    waiting: Vec<(u64, Key)>,
    errors: u32,
    /// It sends no more, and stays until the game is over.
    is_leaving: bool,
    /// Its output at the end of the handler.
    answer: String,
}

impl Seat {
    fn new(port: Port) -> Self {
        Self {
            port,
            lines: Lines::default(),
            terminal: None,
            waiting: Vec::new(),
            errors: 0,
            is_leaving: false,
            answer: String::new(),
        }
    }

    fn tell(&mut self, text: core::fmt::Arguments<'_>) {
        self.answer.write_fmt(text).expect("a string takes everything");
    }

    fn wait(&mut self, tick: u64, key: Key) -> Result<(), &'static str> {
        if self.waiting.len() == WAITING_MAX {
            return Err("too many keys wait already");
        }
        let at = self.waiting.partition_point(|(other, _)| *other <= tick);
        self.waiting.insert(at, (tick, key));
        Ok(())
    }
}

impl<G: Game> Default for Arcade<G> {
    fn default() -> Self {
        let seats = core::iter::repeat_with(|| None).take(G::SEATS).collect();
        Self { game: None, tick: 0, beat: Beat::default(), told: String::new(), seats }
    }
}

impl<G: Game> Arcade<G> {
    /// The world, if there is one.
    pub const fn game(&self) -> Option<&G> {
        self.game.as_ref()
    }

    fn is_on(&self) -> bool {
        self.game.as_ref().is_some_and(|game| game.result().is_none())
    }

    fn seat_of(&self, port: Port) -> Option<usize> {
        self.seats.iter().position(|seat| seat.as_ref().is_some_and(|seat| seat.port == port))
    }

    fn start(&mut self, context: &mut Context, seed: Option<u64>) -> Result<(), &'static str> {
        if self.is_on() {
            return Err("a game is on");
        }
        let seed = seed.unwrap_or_else(|| context.random_u64());
        let players: Vec<bool> = self.seats.iter().map(Option::is_some).collect();
        self.game = Some(G::new(seed, &players));
        self.tick = 0;
        self.told.clear();
        for seat in self.seats.iter_mut().flatten() {
            seat.waiting.clear();
            seat.errors = 0;
        }
        self.beat.start(context, TICK);
        self.show();
        Ok(())
    }

    /// Sends all changes to all clients.
    fn show(&mut self) {
        let Some(game) = &self.game else { return };
        let result = game.result();
        let mut line = game.line();
        if let Some(result) = &result {
            write!(line, "\nover {result}").expect("a string takes everything");
        }
        for seat in self.seats.iter_mut().flatten() {
            if let Some((_, screen)) = &mut seat.terminal {
                let mut rows = game.rows();
                rows.push(match &result {
                    Some(result) => format!("{result}. Space plays again, q ends."),
                    None => "Keys: arrows or w a s d; q ends.".to_owned(),
                });
                let bytes = screen.draw(rows);
                seat.answer.push_str(&bytes);
            } else if line != self.told {
                seat.tell(format_args!("{} {line}\n", self.tick));
            }
        }
        self.told = line;
    }

    /// Executes one line.
    fn command(&mut self, context: &mut Context, index: usize, line: &str) -> Result<(), &'static str> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [] => Ok(()),
            ["start"] => self.start(context, None),
            ["start", seed] => {
                let seed = seed.parse().map_err(|_| "a seed is a number")?;
                self.start(context, Some(seed))
            }
            ["ansi"] => {
                if let Some(seat) = &mut self.seats[index] {
                    seat.terminal = Some(Default::default());
                }
                if self.game.is_none() {
                    return self.start(context, None);
                }
                self.show();
                Ok(())
            }
            ["at", tick, key] => {
                let tick = tick.parse().map_err(|_| "a tick is a number")?;
                let key = Key::from_word(key).ok_or("a key is up, down, left or right")?;
                if !self.is_on() {
                    return Err("no game is on");
                }
                if tick <= self.tick {
                    return Err("that tick is past");
                }
                self.seats[index].as_mut().map_or(Ok(()), |seat| seat.wait(tick, key))
            }
            [word] => {
                let key = Key::from_word(word).ok_or("say start, up, down, left, right, at, ansi or quit")?;
                self.press(index, key);
                Ok(())
            }
            _ => Err("say start, up, down, left, right, at, ansi or quit"),
        }
    }

    fn press(&mut self, index: usize, key: Key) {
        if self.is_on()
            && let Some(game) = &mut self.game
        {
            game.press(index, key);
        }
    }

    /// Takes one byte of a client; false if it must be disconnected.
    fn take(&mut self, context: &mut Context, index: usize, byte: u8) -> bool {
        let Some(seat) = &mut self.seats[index] else { return false };
        if let Some((keys, _)) = &mut seat.terminal {
            match keys.take(byte) {
                Some(Press::Quit) => return false,
                Some(Press::Key(key)) => self.press(index, key),
                // Held keys repeat: a start key during a game is not an error.
                Some(Press::Start) => _ = self.start(context, None),
                None => {}
            }
            return true;
        }
        let done = match seat.lines.take(byte) {
            None => return true,
            Some(Ok(line)) if line == "quit" => return false,
            Some(Ok(line)) => self.command(context, index, &line),
            Some(Err(())) => Err("that line is too long"),
        };
        let Some(seat) = &mut self.seats[index] else { return false };
        if let Err(why) = done {
            seat.tell(format_args!("error {why}\n"));
            seat.errors += 1;
        }
        seat.errors < ERRORS_MAX
    }

    /// Sends the pending output.
    fn send(&mut self, context: &mut Context) {
        for seat in self.seats.iter_mut().flatten() {
            if !seat.answer.is_empty() {
                context.send(seat.port, core::mem::take(&mut seat.answer).as_bytes());
            }
        }
    }

    fn leave(&mut self, context: &mut Context, index: usize) {
        self.send(context);
        if let Some(seat) = self.seats[index].take() {
            if let Some((_, screen)) = &seat.terminal {
                context.send(seat.port, screen.leave().as_bytes());
            }
            context.close(seat.port);
        }
        if self.seats.iter().all(Option::is_none) {
            self.game = None;
            context.cancel_timer(TICK);
        }
    }
}

impl<G: Game> Cell for Arcade<G> {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        if !kind.is_client() {
            return;
        }
        // In a shared cell, the port may belong to another client by now.
        let free = self.seat_of(port).or_else(|| self.seats.iter().position(Option::is_none));
        let Some(index) = free else {
            context.send(port, b"error all seats are taken\n");
            return context.close(port);
        };
        let seat = self.seats[index].insert(Seat::new(port));
        let name = G::NAME;
        seat.tell(format_args!("{name}: start [SEED], up, down, left, right, at TICK KEY, ansi, quit\n"));
        self.send(context);
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        let Some(index) = self.seat_of(port) else { return };
        if !payload.iter().all(|byte| self.take(context, index, *byte)) {
            return self.leave(context, index);
        }
        self.send(context);
    }

    fn timer(&mut self, context: &mut Context, token: u64) {
        let Some(game) = &mut self.game else { return };
        self.tick += 1;
        for (index, seat) in self.seats.iter_mut().enumerate() {
            let Some(seat) = seat else { continue };
            let due = seat.waiting.partition_point(|(tick, _)| *tick <= self.tick);
            seat.waiting.drain(..due).for_each(|(_, key)| game.press(index, key));
        }
        game.step();
        self.show();
        self.send(context);
        if self.is_on() {
            return self.beat.next(context, token);
        }
        for index in 0..self.seats.len() {
            if self.seats[index].as_ref().is_some_and(|seat| seat.is_leaving) {
                self.leave(context, index);
            }
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        let Some(index) = self.seat_of(port) else { return };
        if !self.is_on() {
            return self.leave(context, index);
        }
        if let Some(seat) = &mut self.seats[index] {
            seat.is_leaving = true;
        }
    }
}

#[cfg(test)]
mod tests;
