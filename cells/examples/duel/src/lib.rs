//! Scrabble for two: the cell of one of the players. It checks its player's words and moves, keeps the board and that player's
//! rack, and passes moves to a server, which keeps the bag and knows both players. It trusts neither: an invalid move of the
//! player is refused with the reason, and an impossible line of the server ends the game.
//!
//! | line of the player | does |
//! |---|---|
//! | `sit TABLE [SEED]` | sits down; the game begins when another names the same table. The first may name the bag's seed |
//! | `play`, `exchange`, `pass` | as in `scrabble`, in turn |
//! | `board` | shows it |
//!
//! A player gets `you` and its own move, `other` and the other's, `score MINE THEIRS bag N rack TILES` after each, and at last `over`.

mod game;

use game::{Answer, Game};
use marram_play::Lines;
use marram_scrabble::words::Words;
use marram_sdk::{Cell, Context, Port, PortKind, cell};

/// Most lines of one message; a player that sends more at once is not a person.
const LINES_MAX: usize = 256;

const HELLO: &str =
    "scrabble for two: sit TABLE, play WORD SQUARE across|down, exchange TILES, pass, board, quit\n";

/// The cell.
pub struct Duel {
    game: Game,
    player: Lines,
    server: Lines,
    is_over: bool,
}

impl Default for Duel {
    fn default() -> Self {
        Self::of(Words::from_image())
    }
}

impl Duel {
    fn of(words: Words) -> Self {
        Self { game: Game::new(words), player: Lines::default(), server: Lines::default(), is_over: false }
    }

    fn end(&mut self, context: &mut Context) {
        self.is_over = true;
        context.close(Port::CLIENT);
        context.close(Port::SERVER);
    }
}

impl Cell for Duel {
    fn opened(&mut self, context: &mut Context, port: Port, _: PortKind) {
        if port == Port::CLIENT {
            context.send_to_client(HELLO.as_bytes());
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if self.is_over {
            return;
        }
        let is_player = port == Port::CLIENT;
        let (mut tell, mut ask, mut count) = (String::new(), String::new(), 0);
        for byte in payload {
            let lines = if is_player { &mut self.player } else { &mut self.server };
            let Some(line) = lines.take(*byte) else { continue };
            count += 1;
            let answer = match line {
                _ if count > LINES_MAX => Answer::End("error too much at once\n".to_owned()),
                Ok(line) if line.is_empty() => continue,
                Ok(line) if is_player => self.game.hear_player(&line),
                Ok(line) => self.game.hear_server(&line),
                Err(()) if is_player => Answer::Tell("error that line is too long\n".to_owned()),
                Err(()) => Answer::End(game::impossible("a line that is too long")),
            };
            match answer {
                Answer::Tell(text) => tell += &text,
                Answer::Ask(line) => {
                    ask += &line;
                    ask.push('\n');
                }
                Answer::End(text) => {
                    tell += &text;
                    self.is_over = true;
                    break;
                }
            }
        }
        if !tell.is_empty() {
            context.send_to_client(tell.as_bytes());
        }
        if !ask.is_empty() && !self.is_over {
            context.send(Port::SERVER, ask.as_bytes());
        }
        if self.is_over {
            self.end(context);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if !self.is_over {
            if port == Port::SERVER {
                context.send_to_client(b"error the server of the table has gone\n");
            }
            self.end(context);
        }
    }
}

cell!(Duel);

#[cfg(test)]
mod tests;
