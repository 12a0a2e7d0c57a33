//! A cell that plays a turn-based game with one client, in lines: each is answered before the next is read. Knows no game's
//! rules.

use marram_sdk::{Cell, Context, Port, PortKind};

use crate::Lines;

/// Most bytes of the answer to one message. A client that asks for more at once is not playing.
const ANSWER_BYTES_MAX: usize = 256 << 10;

/// Most bytes of the answer to one line.
const LINE_ANSWER_BYTES_MAX: usize = 64 << 10;
const _: () = assert!(
    ANSWER_BYTES_MAX + LINE_ANSWER_BYTES_MAX < marram_sdk::MESSAGE_BYTES_MAX,
    "an answer is one message"
);

/// A turn-based game.
pub trait Turns: Default + 'static {
    /// The first line to a client, with its line feed.
    const HELLO: &'static str;

    /// The answer to a line, with its line feeds; an error is sent as `error` and the reason.
    ///
    /// # Errors
    /// If the line is invalid, or not allowed now.
    fn say(&mut self, context: &mut Context, line: &str) -> Result<String, String>;
}

/// The seed of the game if the line begins one: `start SEED`, or `start` for a random seed of the cell.
///
/// # Errors
/// If the seed is not a number.
pub fn seed(context: &mut Context, words: &[&str]) -> Result<Option<u64>, String> {
    Ok(match words {
        ["start"] => Some(context.random_u64()),
        ["start", seed] => Some(seed.parse().map_err(|_| "a seed is a number")?),
        _ => None,
    })
}

/// The cell.
#[derive(Default)]
pub struct Talk<T> {
    game: T,
    lines: Lines,
    is_over: bool,
}

impl<T> Talk<T> {
    /// A cell with a game that was not made by default.
    pub fn of(game: T) -> Self {
        Self { game, lines: Lines::default(), is_over: false }
    }

    /// The game.
    pub const fn game(&self) -> &T {
        &self.game
    }
}

impl<T: Turns> Cell for Talk<T> {
    fn opened(&mut self, context: &mut Context, port: Port, _: PortKind) {
        if port == Port::CLIENT {
            context.send_to_client(T::HELLO.as_bytes());
        } else {
            context.close(port);
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if self.is_over || port != Port::CLIENT {
            return;
        }
        let mut answer = String::new();
        for byte in payload {
            let said = match self.lines.take(*byte) {
                None => continue,
                Some(Ok(line)) if line.is_empty() => continue,
                Some(Ok(line)) if line == "quit" => {
                    self.is_over = true;
                    break;
                }
                Some(Ok(line)) => self.game.say(context, &line),
                Some(Err(())) => Err("that line is too long".to_owned()),
            };
            let said = said.unwrap_or_else(|why| format!("error {why}\n"));
            debug_assert!(said.ends_with('\n') && said.len() <= LINE_ANSWER_BYTES_MAX, "{said:?}");
            answer.push_str(&said);
            if answer.len() > ANSWER_BYTES_MAX {
                answer.push_str("error too much at once\n");
                self.is_over = true;
                break;
            }
        }
        if !answer.is_empty() {
            context.send_to_client(answer.as_bytes());
        }
        if self.is_over {
            context.close(Port::CLIENT);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if port == Port::CLIENT {
            self.is_over = true;
            context.close(port);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    /// Counts lines; `big` is answered with 60 kB.
    #[derive(Default)]
    struct Count(u32);

    impl Turns for Count {
        const HELLO: &'static str = "hello\n";

        fn say(&mut self, _: &mut Context, line: &str) -> Result<String, String> {
            self.0 += 1;
            match line {
                "big" => Ok(format!("{}\n", "x".repeat(60_000))),
                "bad" => Err("bad".to_owned()),
                _ => Ok(format!("{} {line}\n", self.0)),
            }
        }
    }

    fn client(text: &str) -> Output {
        Output::message(Port::CLIENT, text.as_bytes())
    }

    #[test]
    fn lines_are_answered_in_order_however_they_are_cut() {
        let mut session = Session::<Talk<Count>>::new();
        assert_eq!(session.open_client(), [client("hello\n")]);
        assert_eq!(session.message(Port::CLIENT, b"One\r\n\ntwo\nba"), [client("1 one\n2 two\n")]);
        assert_eq!(session.message(Port::CLIENT, b"d\n"), [client("error bad\n")]);
        let outputs = session.message(Port::CLIENT, b"x\nquit\nx\n");
        assert_eq!(outputs, [client("4 x\n"), Output::close(Port::CLIENT)]);
        assert_eq!(session.message(Port::CLIENT, b"x\n"), []);
    }

    #[test]
    fn what_is_said_at_once_is_bounded() {
        let mut session = Session::<Talk<Count>>::new();
        let outputs = session.message(Port::CLIENT, "big\n".repeat(200_000).as_bytes());
        let [Output::Message { payload, .. }, Output::Close { .. }] = &outputs[..] else {
            panic!("{} outputs", outputs.len());
        };
        assert!(payload.len() < ANSWER_BYTES_MAX + LINE_ANSWER_BYTES_MAX);
        assert!(payload.ends_with(b"\nerror too much at once\n"));
        assert_eq!(session.cell().game().0, 5);
    }
}
