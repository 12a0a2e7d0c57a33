//! The state machine of one flow, and the search for forbidden strings over the cuts of its messages.
//!
//! ```text
//!            first message          the other side's first
//! Opened ───────────────▶ Asked ─────────────────────────▶ Established ─▶ HalfClosed ─▶ Closed
//!    └── anything that does not fit the state ─▶ Refused ◀──┴── a forbidden string; silence
//! ```

use crate::rules::{First, Forbidden, Rules};
use aho_corasick::{
    Anchored,
    automaton::{Automaton, StateID},
};

/// One of the two sides of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

impl Side {
    fn index(self) -> usize {
        usize::from(self == Self::Server)
    }

    pub(crate) fn name(self) -> &'static str {
        ["client", "server"][self.index()]
    }
}

/// Where a flow is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Neither side has sent anything.
    Opened,
    /// This side has.
    Asked(Side),
    /// Both have.
    Established,
    /// This side has ended its stream.
    HalfClosed(Side),
    /// Both have.
    Closed,
    /// Nothing passes any more.
    Refused,
}

/// What was counted of one side, and where the search for forbidden strings stands in its bytes.
#[derive(Clone, Copy, Debug)]
struct Direction {
    messages: u64,
    bytes: u64,
    search: StateID,
}

/// One flow.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    state: State,
    directions: [Direction; 2],
}

impl Flow {
    pub(crate) fn new(rules: &Rules) -> Self {
        let begun = |forbidden: &Forbidden| Direction { messages: 0, bytes: 0, search: start(forbidden) };
        Self { state: State::Opened, directions: [begun(&rules.forbidden[0]), begun(&rules.forbidden[1])] }
    }

    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// A message of this side.
    ///
    /// # Errors
    /// Why it does not pass; then nothing passes any more.
    pub(crate) fn message(&mut self, rules: &Rules, side: Side, payload: &[u8]) -> Result<(), String> {
        let next = match (self.state, rules.first) {
            (State::Opened, First::Client) if side == Side::Server => Err("it spoke before it was asked"),
            (State::Opened, First::Server) if side == Side::Client => Err("it spoke before it was greeted"),
            (State::Opened, _) => Ok(State::Asked(side)),
            (State::Asked(by), _) if by == side => Ok(self.state),
            (State::Asked(_), _) => Ok(State::Established),
            (State::Established, _) => Ok(State::Established),
            (State::HalfClosed(by), _) if by != side => Ok(self.state),
            (State::HalfClosed(_) | State::Closed, _) => Err("it sent after it had ended its stream"),
            (State::Refused, _) => Err("the flow is refused"),
        };
        let direction = &mut self.directions[side.index()];
        direction.messages += 1;
        direction.bytes += payload.len() as u64;
        let forbidden = &rules.forbidden[side.index()];
        let found = search(forbidden, &mut direction.search, payload);
        let judged = match (next, found) {
            (Err(why), _) => Err(why.to_owned()),
            (Ok(_), Some(index)) => {
                Err(format!("\"{}\" is forbidden", forbidden.strings[index].escape_ascii()))
            }
            (Ok(next), None) => {
                self.state = next;
                Ok(())
            }
        };
        if judged.is_err() {
            self.state = State::Refused;
        }
        judged
    }

    /// This side ends its stream. False if nothing passes any more.
    pub(crate) fn closed(&mut self, side: Side) -> bool {
        self.state = match self.state {
            State::Refused => return false,
            State::HalfClosed(by) if by != side => State::Closed,
            State::Closed => State::Closed,
            _ => State::HalfClosed(side),
        };
        true
    }

    /// Nothing passes any more.
    pub(crate) fn refuse(&mut self) {
        self.state = State::Refused;
    }

    /// Messages and bytes of the client, then of the server.
    pub(crate) fn counts(&self) -> [(u64, u64); 2] {
        self.directions.map(|direction| (direction.messages, direction.bytes))
    }
}

fn start(forbidden: &Forbidden) -> StateID {
    forbidden.automaton.start_state(Anchored::No).expect("it searches anywhere")
}

/// Goes on with the search; the index of the first string that is complete.
fn search(forbidden: &Forbidden, state: &mut StateID, payload: &[u8]) -> Option<usize> {
    let automaton = &forbidden.automaton;
    for byte in payload {
        *state = automaton.next_state(Anchored::No, *state, *byte);
        if automaton.is_special(*state) && automaton.is_match(*state) {
            return Some(automaton.match_pattern(*state, 0).as_usize());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::parse;

    fn rules(text: &str) -> Rules {
        parse(text).unwrap()
    }

    #[test]
    fn each_state_takes_what_fits_it() {
        use Side::{Client, Server};
        for (first, sides, end) in [
            ("any", &[Server, Client][..], Some(State::Established)),
            ("any", &[Server, Server], Some(State::Asked(Server))),
            ("client", &[Client, Client, Server, Client], Some(State::Established)),
            ("client", &[Server], None),
            ("server", &[Client], None),
            ("server", &[Server, Client], Some(State::Established)),
        ] {
            let rules = rules(&format!("first {first}"));
            let mut flow = Flow::new(&rules);
            let passed = sides.iter().all(|side| flow.message(&rules, *side, b"x").is_ok());
            assert_eq!(passed.then(|| flow.state()), end, "{first} {sides:?}");
            assert_eq!(flow.state() == State::Refused, end.is_none());
        }
        let rules = rules("");
        let mut flow = Flow::new(&rules);
        assert!(flow.closed(Client) && flow.message(&rules, Server, b"x").is_ok());
        assert!(flow.message(&rules, Client, b"x").unwrap_err().contains("ended its stream"));
        assert!(!flow.closed(Server), "nothing passes any more");
    }

    /// Whatever the cuts, a string is found with its last byte, and nothing else is.
    #[test]
    fn the_search_does_not_depend_on_the_cuts() {
        let rules = rules("forbid client \"aab\"\nforbid client \"abba\"\nforbid client \"bbbb\"");
        let mut seed = 1_u64;
        let mut below = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(seed >> 33).expect("31 bits") % bound
        };
        let (mut found, mut passed) = (0, 0);
        for _ in 0..2_000 {
            let text: Vec<u8> = (0..below(12)).map(|_| if below(2) == 0 { b'a' } else { b'b' }).collect();
            let holds = |string: &[u8]| {
                text.windows(string.len()).position(|at| at == string).map(|at| at + string.len())
            };
            let first = rules.forbidden[0].strings.iter().filter_map(|string| holds(string)).min();
            let (mut flow, mut at) = (Flow::new(&rules), 0);
            let mut refused = None;
            while at < text.len() && refused.is_none() {
                let end = (at + 1 + below(4)).min(text.len());
                if flow.message(&rules, Side::Client, &text[at..end]).is_err() {
                    refused = Some(at..end);
                }
                at = end;
            }
            match (first, refused) {
                (Some(end), Some(message)) => {
                    assert!(message.start < end && end <= message.end, "{}", text.escape_ascii());
                    found += 1;
                }
                (None, None) => passed += 1,
                (first, refused) => panic!("{}: {first:?} {refused:?}", text.escape_ascii()),
            }
        }
        assert!(found > 200 && passed > 200, "{found} {passed}");
    }
}
