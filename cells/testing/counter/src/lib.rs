//! A test cell that uses everything a cell may do, and everything that it may not.
//!
//! Each byte of a client's message is a command; the reply is one line of text, `count=N` followed by what the
//! commands add to it. Unknown bytes do nothing.
//!
//! | byte | does | adds |
//! |---|---|---|
//! | `f` | takes one step of a float accumulator | ` float=` and its bits |
//! | `n` | divides zero by zero | ` nan=` and its bits |
//! | `r` | draws eight random bytes | ` random=` and the bytes |
//! | `c` | reads the clock | ` now=` and nanoseconds |
//! | `t` | sets the timer 1 for 10 ms from now; each firing sends `tick=N` to the client | |
//! | `T` | the same, and again after each firing | |
//! | `x` | cancels the timer | |
//! | `s` | sends the reply to the server as well | |
//! | `p` | prints a line of 100 bytes | |
//! | `w` | reads the next line of the file `/etc/words`, which stays open | ` word=` and the line, or what went wrong |
//! | `m` | takes another MiB and keeps it | ` kept=` and MiB |
//! | `A` | asks what is known of the client | ` client=`, ` listener=` and ` identity=`, each with a `-` if it is not known |
//! | `q` | closes the client's port after the reply | |
//! | `!` | panics | |
//! | `@` | loops for ever | |
//! | `/` | recurses for ever | |
//!
//! Letters are what a cell may do, each with an effect that a recovery must reproduce: a float's
//! bits, an open file's position, a timer, the clock. The other signs are for the supervision of
//! cells: a trap, a handler without end, a stack without end.

use core::{fmt::Write, hint::black_box, time::Duration};
use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use marram_sdk::{Cell, Context, Level, Port, cell};

/// The only timer.
const TICK: u64 = 1;

/// A file that an app with this cell may contain.
const WORDS: &str = "/etc/words";

/// Less than most lines have, so that each line moves the file's position.
const WORDS_BUFFER: usize = 8;

/// Interval between ticks.
const TICK_EVERY: Duration = Duration::from_millis(10);

/// What the cell has counted.
pub struct Counter {
    /// From the client; those of the server are ignored.
    messages: u64,
    /// Firings of the timer so far.
    ticks: u64,
    /// Whether the timer is set again when it fires.
    ticking: bool,
    /// Depends on how `sqrt`, `mul_add` and a division round.
    float: f64,
    /// Memory that is never freed.
    kept: Vec<Vec<u8>>,
    /// Opened by the first `w`. A file that could not be opened is tried again by the next one.
    words: Option<BufReader<File>>,
}

impl Default for Counter {
    fn default() -> Self {
        Self { messages: 0, ticks: 0, ticking: false, float: 1.0, kept: Vec::new(), words: None }
    }
}

impl Counter {
    /// Carries out one byte, and adds to the reply.
    fn command(&mut self, command: u8, context: &mut Context, reply: &mut String) {
        match command {
            b'f' => {
                self.float = (self.float * 1.1 + 0.3).sqrt().mul_add(0.7, self.float / 3.0);
                add(reply, format_args!(" float={:016x}", self.float.to_bits()));
            }
            b'n' => {
                let (zero, other) = (black_box(0.0_f64), black_box(0.0));
                add(reply, format_args!(" nan={:016x}", (zero / other).to_bits()));
            }
            b'r' => add(reply, format_args!(" random={:016x}", context.random_u64().swap_bytes())),
            b'c' => add(reply, format_args!(" now={}", context.now().nanoseconds)),
            b't' => self.tick(context, false),
            b'T' => self.tick(context, true),
            b'x' => context.cancel_timer(TICK),
            b'p' => context.print(Level::Info, "counter ".repeat(13).split_at(100).0),
            b'A' => {
                let client = context.client_address(Port::CLIENT).map(|address| address.to_string());
                let (listener, identity) =
                    (context.client_listener(Port::CLIENT), context.client_identity(Port::CLIENT));
                for (name, known) in [("client", client), ("listener", listener), ("identity", identity)] {
                    add(reply, format_args!(" {name}={}", known.as_deref().unwrap_or("-")));
                }
            }
            b'm' => {
                self.kept.push(vec![command; 1 << 20]);
                add(reply, format_args!(" kept={}", self.kept.len()));
            }
            b'w' => match self.word() {
                Ok(word) => add(reply, format_args!(" word={}", word.trim_end())),
                Err(error) => add(reply, format_args!(" word={:?}", error.kind())),
            },
            b'!' => panic!("told to panic"),
            b'@' => loop {
                black_box(&mut self.float);
            },
            b'/' => add(reply, format_args!("{}", recurse(self.messages))),
            _ => {}
        }
    }

    /// The next line of [`WORDS`]; empty at the end of the file.
    fn word(&mut self) -> io::Result<String> {
        let file = match self.words.take() {
            Some(file) => file,
            None => BufReader::with_capacity(WORDS_BUFFER, File::open(WORDS)?),
        };
        let mut line = String::new();
        self.words.insert(file).read_line(&mut line)?;
        Ok(line)
    }

    /// Replaces a timer that is set: there is only one.
    fn tick(&mut self, context: &mut Context, again: bool) {
        self.ticking = again;
        context.set_timer(TICK_EVERY, TICK);
    }
}

impl Cell for Counter {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if port != Port::CLIENT {
            return;
        }
        self.messages += 1;
        let mut reply = format!("count={}", self.messages);
        payload.iter().for_each(|command| self.command(*command, context, &mut reply));
        reply.push('\n');
        context.send_to_client(reply.as_bytes());
        if payload.contains(&b's') {
            context.send_to_server(reply.as_bytes());
        }
        if payload.contains(&b'q') {
            context.close(Port::CLIENT);
        }
    }

    fn timer(&mut self, context: &mut Context, _: u64) {
        self.ticks += 1;
        context.send_to_client(format!("tick={}\n", self.ticks).as_bytes());
        if self.ticking {
            context.set_timer(TICK_EVERY, TICK);
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(port.opposite());
    }
}

cell!(Counter);

fn add(reply: &mut String, what: core::fmt::Arguments<'_>) {
    reply.write_fmt(what).expect("a string takes everything");
}

/// Grows the stack until the host stops it. Not a tail call: the result is used after it.
#[expect(unconditional_recursion, reason = "that is what it is for")]
fn recurse(depth: u64) -> u64 {
    let mut frame = black_box([depth; 32]);
    frame[0] = recurse(depth + 1);
    black_box(&frame).iter().fold(0, |sum, word| sum ^ word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    fn text(outputs: &[Output]) -> Vec<String> {
        outputs
            .iter()
            .map(|output| match output {
                Output::Message { port, payload } => {
                    format!("{}:{}", port.0, String::from_utf8_lossy(payload).trim_end())
                }
                Output::Close { port } => format!("{}:closed", port.0),
                Output::Connect { server, .. } => format!("connect {server}"),
            })
            .collect()
    }

    #[test]
    fn a_script_of_commands_gives_these_replies() {
        let script: [(&[u8], &[&str]); 8] = [
            (b"", &["0:count=1"]),
            (b"c", &["0:count=2 now=0"]),
            (b"r", &["0:count=3 random=c15c0289ec2d0a91"]),
            (b"rr", &["0:count=4 random=67ec8e65a18debbe random=5e5532fbeea293f8"]),
            (b"f", &["0:count=5 float=3ff295d9a1bc8edf"]),
            (b"s", &["0:count=6", "1:count=6"]),
            (b"m", &["0:count=7 kept=1"]),
            (b"q", &["0:count=8", "0:closed"]),
        ];
        let mut session = Session::<Counter>::new();
        for (message, expected) in script {
            assert_eq!(text(&session.message(Port::CLIENT, message)), expected);
        }
    }

    #[test]
    fn the_cell_reports_what_is_known_of_the_client() {
        let mut session = Session::<Counter>::new();
        session.message(Port::CLIENT, b"A");
        session.client(Port::CLIENT, ([192, 0, 2, 1], 40_000).into(), Some("web"), None);
        let expected = ["0:count=2 client=192.0.2.1:40000 listener=web identity=-"];
        assert_eq!(text(&session.message(Port::CLIENT, b"A")), expected);
    }

    #[test]
    fn a_timer_ticks_once_or_until_cancelled() {
        let mut session = Session::<Counter>::new();
        session.message(Port::CLIENT, b"t");
        assert_eq!(text(&session.advance(TICK_EVERY * 5)), ["0:tick=1"]);
        session.message(Port::CLIENT, b"T");
        assert_eq!(text(&session.advance(TICK_EVERY * 3)), ["0:tick=2", "0:tick=3", "0:tick=4"]);
        session.message(Port::CLIENT, b"x");
        assert_eq!(text(&session.advance(TICK_EVERY * 3)), [""; 0]);
    }

    #[test]
    fn printing_is_no_output() {
        let mut session = Session::<Counter>::new();
        assert_eq!(text(&session.message(Port::CLIENT, b"p")), ["0:count=1"]);
        assert_eq!(session.lines().iter().map(|(_, line)| line.len()).collect::<Vec<_>>(), [100]);
    }
}
