//! Routes: the app of a new connection, or of the first datagram from an address. The app then decides whether that is a cell
//! for each client, a cell that all share, or a chain.
//!
//! Rules are checked by priority, those of one priority in the order in which they were written. The first match decides;
//! without a match it is the listener's own app. Knows no socket: the caller passes a connection's first bytes and signals
//! their end. Known conversations ([`flows`]) are not routed again.

pub mod flows;
mod key;
mod rule;
#[cfg(test)]
mod tests;
mod tls;

pub use key::{BadSource, KeySource};
pub use rule::{BadPrefix, Prefix, RouteAction, RouteProtocol, RouteRule, ServerName};
pub use tls::{Sni, server_name};

use alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;
use key::KeyRead;
use marram_wire::key::CellKey;
use rule::Match;

/// Maximum number of rules of a table.
pub const RULES_MAX: usize = 1024;
/// Maximum of first bytes that a rule can ask for.
pub const FIRST_BYTES_MAX: usize = 64;
/// Bytes of a connection that are held while its route is undecided. A connection with more than that is decided without the
/// rest.
pub const HELD_MAX: usize = 16 << 10;

const _: () = assert!(FIRST_BYTES_MAX <= HELD_MAX, "what a rule asks for can be held");
const _: () = assert!(HELD_MAX <= marram_wire::limits::STREAM_CUT, "what was held is one cut of the stream");

/// A connection or datagram to route.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival<'a> {
    /// The listener's name.
    pub listener: &'a str,
    /// Where it listens.
    pub local: SocketAddr,
    /// The client's address.
    pub client: SocketAddr,
    /// The client's protocol.
    pub protocol: RouteProtocol,
    /// What the key of the listener's clients is, if its own app has one cell for each key.
    pub key: Option<&'a KeySource>,
}

/// The result of the rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision<'a> {
    /// It is routed to this app, and to the cell of this key, if the rule says what that is.
    App(&'a str, Option<CellKey>),
    /// It is refused: the name of the rule, and the reason, for people.
    Refuse(&'a str, &'a str),
    /// No rule matches: it is routed to the listener's own app, and to the cell of this key, if the listener says what that is.
    Default(Option<CellKey>),
    /// It has no key, and its app has one cell for each key: the reason, for people.
    NoKey(String),
    /// A rule needs more of its first bytes.
    More,
}

/// Why rules are invalid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteError {
    /// Index of the rule, in the order in which they were written.
    pub index: usize,
    /// The field's name in the configuration.
    pub field: &'static str,
    /// What is wrong and what to write instead.
    pub what: String,
}

/// Rules in the order in which they are checked, and how often each decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RouteTable {
    /// As written.
    rules: Vec<RouteRule>,
    hits: Vec<u64>,
    /// Indices of `rules`, in the order in which they are checked.
    order: Vec<usize>,
    defaults: u64,
}

impl RouteTable {
    /// A table of these rules.
    ///
    /// # Errors
    /// If there are too many, one is invalid, or two have the same name.
    pub fn new(rules: Vec<RouteRule>) -> Result<Self, RouteError> {
        let refused = |index, field, what: String| Err(RouteError { index, field, what });
        if rules.len() > RULES_MAX {
            return refused(RULES_MAX, "name", format!("exceeds the maximum of {RULES_MAX} rules"));
        }
        let mut names = BTreeSet::new();
        for (index, rule) in rules.iter().enumerate() {
            if !names.insert(rule.name.as_str()) {
                return refused(
                    index,
                    "name",
                    "is the name of another rule too; give each rule its own".to_string(),
                );
            }
            if let Some((field, what)) = rule.wrong() {
                return refused(index, field, what);
            }
        }
        let mut order: Vec<usize> = (0..rules.len()).collect();
        order.sort_by_key(|index| core::cmp::Reverse(rules[*index].priority));
        Ok(Self { hits: alloc::vec![0; rules.len()], rules, order, defaults: 0 })
    }

    /// Replaces the rules; unchanged rules keep their counts.
    ///
    /// # Errors
    /// As [`Self::new`]; the table is unchanged then.
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

    /// Checks the rules. `first` is what has arrived so far; `last` is set if no more will arrive: then a rule that needs more
    /// does not match. A decision does not change with the bytes that follow `first`.
    pub fn decide(&mut self, arrival: &Arrival<'_>, first: &[u8], last: bool) -> Decision<'_> {
        // Parsed once, and only if a rule asks for it.
        let mut sni = None;
        for index in &self.order {
            let index = *index;
            match self.rules[index].matches(arrival, first, &mut sni) {
                Match::No => {}
                Match::Undecided if last => {}
                Match::Undecided => return Decision::More,
                Match::Yes => {
                    let rule = &self.rules[index];
                    let key = key_of(rule.key.as_ref(), arrival, first, last);
                    self.hits[index] += u64::from(!matches!(key, Err(Decision::More)));
                    return match (&rule.action, key) {
                        (RouteAction::Refuse(reason), _) => Decision::Refuse(&rule.name, reason),
                        (RouteAction::App(app), Ok(key)) => Decision::App(app, key),
                        (RouteAction::App(_), Err(undecided)) => undecided,
                    };
                }
            }
        }
        let key = key_of(arrival.key, arrival, first, last);
        self.defaults += u64::from(!matches!(key, Err(Decision::More)));
        key.map_or_else(|undecided| undecided, Decision::Default)
    }
}

/// The key of a client whose app is known; none if nothing says what that is.
fn key_of(
    source: Option<&KeySource>,
    arrival: &Arrival<'_>,
    first: &[u8],
    last: bool,
) -> Result<Option<CellKey>, Decision<'static>> {
    match source.map(|source| source.read(arrival, first, last)) {
        None => Ok(None),
        Some(KeyRead::Key(key)) => Ok(Some(key)),
        Some(KeyRead::More) => Err(Decision::More),
        Some(KeyRead::None(why)) => Err(Decision::NoKey(why)),
    }
}
