//! A chat room: one cell for all clients of the app (`cell = "shared"` in the manifest), each with a port of its own.
//!
//! ```text
//! bytes of a port ──lines.rs──▶ a line ──▶ the room ──▶ Outbox ──▶ one message to each port that gets something
//!                                 │           ▲
//!   the first one asks for HTTP ──┘page.rs    └── one timer, for the member that is due first (member.rs)
//! ```
//!
//! A client is a browser with the room's page (over WebSocket, which ends in the agent or gate) or anything that speaks lines, as
//! `nc` does; the cell sees lines from both. To everyone in the room, lines go in one order, since handlers run one at a time.
//! A client can be slow or hostile: what it may cost is bounded, by lines.rs, member.rs and the manifest's `sessions`. A panic
//! would end the room for everyone, so nothing here indexes or unwraps what a client says.

mod lines;
mod member;
mod page;
#[cfg(test)]
mod tests;

use lines::LineError;
use marram_sdk::{Cell, Context, Level, Port, PortKind, Time, cell};
use member::{Member, Pace, check_name};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Lines that a client gets when it joins.
const HISTORY_MAX: usize = 50;

/// The token of the only timer.
const DUE: u64 = 0;

const HELP: &str =
    "* /name NAME joins, or changes your name; /who tells who is here; /quit leaves; all else is said\n";

/// What a handler sends: one message to each port, however many lines.
#[derive(Default)]
struct Outbox {
    texts: BTreeMap<Port, String>,
    /// Ports that are closed once their text is sent.
    closing: BTreeSet<Port>,
}

impl Outbox {
    fn send(&mut self, port: Port, text: &str) {
        self.texts.entry(port).or_default().push_str(text);
    }
}

/// The room: the state of the cell.
#[derive(Default)]
struct Room {
    /// Clients that are connected and were not disconnected by the room.
    members: BTreeMap<Port, Member>,
    /// What was said last.
    history: VecDeque<String>,
    out: Outbox,
    /// When the timer is set for.
    timer_at: Option<Time>,
}

impl Room {
    /// Members that have joined, with their names.
    fn named(&self) -> impl Iterator<Item = (Port, &Member, &str)> {
        self.members.iter().filter_map(|(port, member)| Some((*port, member, member.name.as_deref()?)))
    }

    /// Sends a line to everyone who has joined.
    fn tell_all(&mut self, line: &str) {
        let ports: Vec<Port> = self.named().map(|(port, ..)| port).collect();
        for port in ports {
            self.out.send(port, line);
        }
    }

    /// A client goes, or is disconnected for a reason that it is told.
    fn leave(&mut self, context: &mut Context, port: Port, why: Option<&str>) {
        let Some(member) = self.members.remove(&port) else { return };
        if let Some(why) = why {
            self.out.send(port, &format!("error {why}; goodbye\n"));
        }
        self.out.closing.insert(port);
        if let Some(name) = member.name {
            self.tell_all(&format!("* {name} has left\n"));
            context.print(Level::Info, format_args!("{name} has left, {} are here", self.named().count()));
        }
    }

    /// One line of a client. An error is told to that client alone.
    fn line(&mut self, context: &mut Context, port: Port, line: &str) -> Result<(), String> {
        let (word, rest) = line.split_once(' ').map_or((line, ""), |(word, rest)| (word, rest.trim_start()));
        match word {
            // A sign of life. The room's page sends it while its tab is visible.
            "" => {}
            "/name" => self.join(context, port, rest)?,
            "/who" => {
                let who = self.who();
                self.out.send(port, &format!("* here: {who}\n"));
            }
            "/help" => self.out.send(port, HELP),
            "/quit" => {
                self.out.send(port, "* goodbye\n");
                self.leave(context, port, None);
            }
            _ if word.starts_with('/') => {
                return Err(format!("there is no {word}; /help tells what there is"));
            }
            _ => self.say(port, line)?,
        }
        Ok(())
    }

    /// A client says its name, for the first time or another one.
    fn join(&mut self, context: &mut Context, port: Port, name: &str) -> Result<(), String> {
        check_name(name)?;
        let is_taken =
            |(other, _, theirs): (Port, _, &str)| other != port && theirs.eq_ignore_ascii_case(name);
        if self.named().any(is_taken) {
            return Err(format!("the name {name} is taken"));
        }
        let Some(member) = self.members.get_mut(&port) else { return Ok(()) };
        if let Some(before) = member.name.replace(name.to_owned()) {
            self.tell_all(&format!("* {before} is now {name}\n"));
            return Ok(());
        }
        for line in &self.history {
            self.out.send(port, line);
        }
        let who = self.who();
        self.out.send(port, &format!("* you are {name}; here: {who}\n"));
        let others: Vec<Port> =
            self.named().map(|(other, ..)| other).filter(|other| *other != port).collect();
        for other in others {
            self.out.send(other, &format!("* {name} has joined\n"));
        }
        context.print(Level::Info, format_args!("{name} has joined, {} are here", self.named().count()));
        Ok(())
    }

    fn say(&mut self, port: Port, text: &str) -> Result<(), String> {
        let Some(name) = self.members.get(&port).and_then(|member| member.name.as_deref()) else {
            return Err("say who you are first: /name NAME".to_owned());
        };
        let line = format!("{name}: {text}\n");
        self.tell_all(&line);
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(line);
        Ok(())
    }

    fn who(&self) -> String {
        let named = self.named().map(|(_, member, name)| match member.is_away {
            true => format!("{name} (away)"),
            false => name.to_owned(),
        });
        named.collect::<Vec<_>>().join(", ")
    }

    /// One line, or why it is none, from a client that is connected.
    fn take(&mut self, context: &mut Context, port: Port, line: Result<String, LineError>) {
        let Some(member) = self.members.get_mut(&port) else { return };
        let (is_first, now) = (!member.has_spoken, context.now());
        member.hears(now);
        let pace = member.pace(now);
        let back = member.name.clone().filter(|_| core::mem::take(&mut member.is_away));
        if let Some(name) = back {
            self.tell_all(&format!("* {name} is back\n"));
        }
        let done = match (pace, line) {
            (Pace::Flood, _) => return self.leave(context, port, Some("too many lines")),
            (_, Err(LineError::Endless)) => {
                return self.leave(context, port, Some(&LineError::Endless.to_string()));
            }
            (Pace::TooFast, _) => Err("too fast: that line is dropped".to_owned()),
            (Pace::Fine, Err(error)) => Err(error.to_string()),
            (Pace::Fine, Ok(line)) => match page::answer(&line).filter(|_| is_first) {
                Some(page) => {
                    self.out.send(port, &page);
                    return self.leave(context, port, None);
                }
                None => self.line(context, port, &line),
            },
        };
        if let Err(why) = done {
            self.out.send(port, &format!("error {why}\n"));
        }
    }

    /// A member was silent until it is due for something.
    fn silent(&mut self, context: &mut Context, port: Port) {
        let Some(member) = self.members.get_mut(&port) else { return };
        match (member.name.clone(), member.is_greeted, member.is_away) {
            (None, false, _) => {
                member.is_greeted = true;
                self.out.send(port, &format!("* welcome: say who you are\n{HELP}"));
            }
            (None, true, _) => self.leave(context, port, Some("you did not say who you are")),
            (Some(name), _, false) => {
                member.is_away = true;
                self.tell_all(&format!("* {name} is away\n"));
            }
            (Some(_), _, true) => self.leave(context, port, Some("you were silent for too long")),
        }
    }

    /// Ends a handler: sends what it has for each port, and sets the timer.
    fn settle(&mut self, context: &mut Context) {
        for (port, text) in core::mem::take(&mut self.out.texts) {
            context.send(port, text.as_bytes());
        }
        for port in core::mem::take(&mut self.out.closing) {
            context.close(port);
        }
        let due = self.members.values().map(Member::due).min();
        if due != self.timer_at {
            let now = context.now();
            match due {
                Some(due) => context.set_timer(due.since(now), DUE),
                None => context.cancel_timer(DUE),
            }
            self.timer_at = due;
        }
    }
}

impl Cell for Room {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        if kind == PortKind::Client {
            self.members.insert(port, Member::new(context.now()));
        } else {
            self.out.closing.insert(port);
        }
        self.settle(context);
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        for byte in payload {
            // Not in the room any more, perhaps since the byte before.
            let Some(member) = self.members.get_mut(&port) else { break };
            member.is_greeted = true;
            if let Some(line) = member.lines.take(*byte) {
                self.take(context, port, line);
            }
        }
        self.settle(context);
    }

    fn timer(&mut self, context: &mut Context, _: u64) {
        self.timer_at = None;
        let now = context.now();
        let due: Vec<Port> =
            self.members.iter().filter(|(_, member)| member.due() <= now).map(|(port, _)| *port).collect();
        for port in due {
            self.silent(context, port);
        }
        self.settle(context);
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        self.leave(context, port, None);
        self.settle(context);
    }
}

cell!(Room);
