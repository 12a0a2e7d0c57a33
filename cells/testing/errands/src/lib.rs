//! A test cell whose work takes several handlers: each byte of the client is an errand, which is a separate task and
//! holds a lock from its beginning to its end.
//!
//! Errands are numbered from 0. Errand `n` runs with lock `n % 3`. It sends `begin n` to the server, runs `n % 4` more handlers,
//! sends `work n`, and waits with its lock until the server sends `worked n`. Then it sends `end n` to the server and `done n` to
//! the client, and releases its lock. All are lines.
//!
//! ```text
//! byte --> Waits -- has its lock: "begin n" --> Goes(n % 4) -- n % 4 times --> Goes(0) -- "work n" --> Rests
//!                                                                                                        |
//!            "end n", "done n", unlock <-- server: "worked n" -------------------------------------------+
//! ```
//!
//! A task keeps its lock between its handlers, so errands of one lock never overlap, while those of
//! others may. The server sees from `begin` and `end` whether that held.

use std::collections::BTreeMap;

use marram_sdk::{Cell, Context, Port, cell};

/// Number of locks.
pub const LOCKS: u64 = 3;

/// The state of an errand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Errand {
    /// It does not have its lock yet.
    Waits,
    /// It runs this many more handlers before it asks the server.
    Goes(u64),
    /// It waits for the server's answer.
    Rests,
}

/// All errands that are not finished.
#[derive(Default)]
pub struct Errands {
    /// The number of the next errand.
    count: u64,
    /// By number.
    errands: BTreeMap<u64, Errand>,
    /// An incomplete line of the server.
    line: Vec<u8>,
}

impl Errands {
    /// The server's stream may be split anywhere.
    fn hear(&mut self, context: &mut Context, payload: &[u8]) {
        for byte in payload {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let number = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix("worked "));
            if let Some(number) = number.and_then(|number| number.parse().ok()) {
                context.spawn(number);
            }
        }
    }
}

impl Cell for Errands {
    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if port != Port::CLIENT {
            return self.hear(context, payload);
        }
        for _ in payload {
            let number = self.count;
            self.count += 1;
            self.errands.insert(number, Errand::Waits);
            context.lock(number % LOCKS, number);
        }
    }

    fn task(&mut self, context: &mut Context, number: u64) {
        let Some(errand) = self.errands.get_mut(&number) else { return };
        match *errand {
            Errand::Waits => {
                context.send_to_server(format!("begin {number}\n").as_bytes());
                *errand = Errand::Goes(number % 4);
                context.spawn(number);
            }
            Errand::Goes(0) => {
                context.send_to_server(format!("work {number}\n").as_bytes());
                *errand = Errand::Rests;
            }
            Errand::Goes(often) => {
                *errand = Errand::Goes(often - 1);
                context.spawn(number);
            }
            Errand::Rests => {
                context.send_to_server(format!("end {number}\n").as_bytes());
                context.send_to_client(format!("done {number}\n").as_bytes());
                self.errands.remove(&number);
                context.unlock(number % LOCKS);
            }
        }
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        context.close(if port == Port::CLIENT { Port::SERVER } else { Port::CLIENT });
    }
}

cell!(Errands);

#[cfg(test)]
mod tests {
    use super::*;
    use marram_sdk::double::{Output, Session};

    fn texts(outputs: &[Output]) -> Vec<String> {
        let text = |output: &Output| match output {
            Output::Message { port, payload } => format!("{} {}", port.0, String::from_utf8_lossy(payload)),
            Output::Close { port } => format!("{} close", port.0),
            Output::Connect { server, .. } => format!("connect {server}"),
        };
        outputs.iter().map(text).collect()
    }

    fn rest(session: &mut Session<Errands>) -> Vec<String> {
        let outputs = std::iter::from_fn(|| session.run_task()).flatten().collect::<Vec<_>>();
        texts(&outputs)
    }

    #[test]
    fn errands_of_one_lock_come_one_after_the_other() {
        let mut session = Session::<Errands>::new();
        session.open_client();
        session.open_server();
        assert_eq!(session.message(Port::CLIENT, b"....."), []);
        assert_eq!(session.tasks().collect::<Vec<_>>(), [0, 1, 2], "3 and 4 wait for 0 and 1");
        let begun = ["1 begin 0\n", "1 begin 1\n", "1 begin 2\n", "1 work 0\n", "1 work 1\n", "1 work 2\n"];
        assert_eq!(rest(&mut session), begun);
        session.message(Port::SERVER, b"worked 1\nwork");
        assert_eq!(rest(&mut session), ["1 end 1\n", "0 done 1\n", "1 begin 4\n", "1 work 4\n"]);
        session.message(Port::SERVER, b"ed 0\n");
        assert_eq!(rest(&mut session), ["1 end 0\n", "0 done 0\n", "1 begin 3\n", "1 work 3\n"]);
    }
}
