//! Routes: which app a new connection, or the first datagram from an address, is for. The app then says whether that is a
//! cell a client, a cell that all share, or a chain.
//!
//! Rules are asked by priority, those of one priority as they were written; the first that matches decides, and where none
//! does, the listener's own app. Knows no socket: whoever holds a connection brings its first bytes and says when there will
//! be no more of them. Conversations that are known already ([`flows`]) are not asked about again.

pub mod flows;
mod rule;
#[cfg(test)]
mod tests;
mod tls;

pub use rule::{BadPrefix, Prefix, RouteAction, RouteProtocol, RouteRule, ServerName};
pub use tls::{Sni, server_name};

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;
use rule::Match;

/// Most rules of a table.
pub const RULES_MAX: usize = 1024;
/// Longest beginning that a rule can ask for, in bytes.
pub const FIRST_BYTES_MAX: usize = 64;
/// Bytes of a connection that are held while its route is undecided; with more than that it is decided without them.
pub const HELD_MAX: usize = 16 << 10;

const _: () = assert!(FIRST_BYTES_MAX <= HELD_MAX, "what a rule asks for can be held");
const _: () = assert!(HELD_MAX <= marram_wire::limits::STREAM_CUT, "what was held is one cut of the stream");

/// Something that wants to know its route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival<'a> {
    /// The listener's name.
    pub listener: &'a str,
    /// Where it listens.
    pub local: SocketAddr,
    /// Where the client is.
    pub client: SocketAddr,
    /// How it speaks.
    pub protocol: RouteProtocol,
}

/// What is to be done with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision<'a> {
    /// It is for this app.
    App(&'a str),
    /// It is refused: by which rule, and why, for people.
    Refuse(&'a str, &'a str),
    /// No rule matches: it is for its listener's own app.
    Default,
    /// A rule needs more of its first bytes.
    More,
}

/// Why rules cannot be a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteError {
    /// Which of them, in the order in which they were written.
    pub index: usize,
    /// Which of its fields, as people write it.
    pub field: &'static str,
    /// What is wrong and what to write instead.
    pub what: String,
}

/// Rules in the order in which they are asked, and how often each decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteTable {
    /// As written.
    rules: Vec<RouteRule>,
    hits: Vec<u64>,
    /// Places in `rules`, first asked first.
    order: Vec<usize>,
    defaults: u64,
}

impl RouteTable {
    /// A table of these rules.
    ///
    /// # Errors
    /// If there are too many, or one is wrong in itself or has another's name.
    pub fn new(rules: Vec<RouteRule>) -> Result<Self, RouteError> {
        let refused = |index, field, what: String| Err(RouteError { index, field, what });
        if rules.len() > RULES_MAX {
            return refused(
                RULES_MAX,
                "name",
                format!("is one more than the {RULES_MAX} rules that there can be"),
            );
        }
        let mut names = BTreeSet::new();
        for (index, rule) in rules.iter().enumerate() {
            if !names.insert(rule.name.as_str()) {
                return refused(index, "name", "is another rule's; give each its own".to_string());
            }
            if let Some((field, what)) = rule.wrong() {
                return refused(index, field, what);
            }
        }
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_by_key(|index| core::cmp::Reverse(rules[*index].priority));
        Ok(Self { hits: alloc::vec![0; rules.len()], rules, order, defaults: 0 })
    }

    /// Takes other rules; those that stay as they were keep their counts.
    ///
    /// # Errors
    /// As [`Self::new`]; nothing has changed then.
    pub fn replace(&mut self, rules: Vec<RouteRule>) -> Result<(), RouteError> {
        let mut new = Self::new(rules)?;
        for (rule, hits) in new.rules.iter().zip(&mut new.hits) {
            *hits = self.rules().find(|(old, _)| *old == rule).map_or(0, |(_, hits)| hits);
        }
        new.defaults = self.defaults;
        *self = new;
        Ok(())
    }

    /// The rules as they were written, and how often each decided.
    pub fn rules(&self) -> impl Iterator<Item = (&RouteRule, u64)> {
        self.rules.iter().zip(self.hits.iter().copied())
    }

    /// How often no rule matched.
    #[must_use]
    pub fn defaults(&self) -> u64 {
        self.defaults
    }

    /// Asks the rules. `first` is what has come so far, `last` whether no more of it will: a rule that would need more does
    /// not match then. What is decided stays so whatever comes behind `first`.
    pub fn decide(&mut self, arrival: &Arrival<'_>, first: &[u8], last: bool) -> Decision<'_> {
        // Looked for once, and only if a rule asks.
        let mut sni = None;
        for index in &self.order {
            let index = *index;
            match self.rules[index].matches(arrival, first, &mut sni) {
                Match::No => {}
                Match::Undecided if last => {}
                Match::Undecided => return Decision::More,
                Match::Yes => {
                    self.hits[index] += 1;
                    let rule = &self.rules[index];
                    return match &rule.action {
                        RouteAction::App(app) => Decision::App(app),
                        RouteAction::Refuse(reason) => Decision::Refuse(&rule.name, reason),
                    };
                }
            }
        }
        self.defaults += 1;
        Decision::Default
    }
}
