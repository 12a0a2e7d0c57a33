//! Checks one direction of a session against its rules: which messages pass, which must wait for more data, which are refused
//! and why. Times are numbers here; does not know ports.
//!
//! Only the first [`WINDOW_BYTES`] of a direction are looked at, so the work and the memory for
//! rules are bounded; limits apply to all of it. In order: the limits of this message, then the
//! rules.

use marram_bucket::Bucket;

use crate::rules::{Action, Pattern, Rule, Side, WINDOW_BYTES};

/// The result for a message.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It passes, after the messages that were held.
    Pass(Vec<Box<[u8]>>),
    /// It is held until more of the stream has arrived.
    Hold,
    /// No more messages pass, for this reason.
    Refuse(String),
}

/// The state of a direction.
#[derive(Default)]
pub(crate) struct Lane {
    /// The first bytes, while any rule could still match. At most [`WINDOW_BYTES`]; empty once it
    /// is settled.
    start: Vec<u8>,
    /// No rule can match any more.
    is_settled: bool,
    /// Messages that wait for the rules. Once a message has passed, none waits.
    held: Vec<Box<[u8]>>,
    /// Full at the first message. `None` without a rate, or before that.
    bucket: Option<Bucket>,
    /// With the one that is being judged, and those that are refused.
    messages: u64,
    bytes: u64,
}

/// The result of the rules for the first bytes of a stream.
enum Decision {
    Allow,
    Deny(String),
    /// It is a prefix of a pattern.
    Open,
}

impl Lane {
    /// Messages and bytes that have arrived.
    pub(crate) const fn counts(&self) -> (u64, u64) {
        (self.messages, self.bytes)
    }

    /// Checks a message. `now_ns` is called only if a rate needs it, because reading the clock is logged.
    pub(crate) fn judge(&mut self, side: &Side, payload: &[u8], now_ns: impl FnOnce() -> i64) -> Verdict {
        self.messages += 1;
        self.bytes += payload.len() as u64;
        if let Some(reason) = self.beyond_limits(side, payload, now_ns) {
            return Verdict::Refuse(reason);
        }
        if !self.is_settled {
            let room = WINDOW_BYTES - self.start.len();
            self.start.extend_from_slice(&payload[..payload.len().min(room)]);
            match decide(side, &self.start, false) {
                Decision::Deny(reason) => return Verdict::Refuse(reason),
                Decision::Open => {
                    self.held.push(payload.into());
                    return Verdict::Hold;
                }
                Decision::Allow => {}
            }
            self.is_settled = self.start.len() == WINDOW_BYTES || !side.rules.iter().any(is_watching);
            if self.is_settled {
                self.start = Vec::new();
            }
        }
        Verdict::Pass(std::mem::take(&mut self.held))
    }

    /// The stream has ended: no more bytes follow those that were held. The rules behind the prefix that was waited for decide
    /// on what is held, since that prefix will not be completed.
    pub(crate) fn end(&mut self, side: &Side) -> Verdict {
        if self.held.is_empty() {
            return Verdict::Pass(Vec::new());
        }
        match decide(side, &self.start, true) {
            Decision::Deny(reason) => Verdict::Refuse(reason),
            Decision::Allow | Decision::Open => Verdict::Pass(std::mem::take(&mut self.held)),
        }
    }

    /// The reason for a refusal, if there is one. Limits come before rules, since they need no
    /// bytes of the message.
    fn beyond_limits(&mut self, side: &Side, payload: &[u8], now_ns: impl FnOnce() -> i64) -> Option<String> {
        if let Some(max) = side.message_bytes_max.filter(|max| payload.len() as u64 > *max) {
            return Some(format!("a message of {} bytes; {max} are allowed", payload.len()));
        }
        if let Some(max) = side.bytes_max.filter(|max| self.bytes > *max) {
            return Some(format!("more than {max} bytes in all"));
        }
        let rate = side.rate?;
        let now_ns = now_ns();
        let bucket = self.bucket.get_or_insert_with(|| Bucket::new(rate, now_ns));
        let is_fast = bucket.take(1, now_ns).is_err();
        is_fast.then(|| format!("more than {} messages a second, {} at once", rate.per_second, rate.burst))
    }
}

/// Whether a rule may still match after others have decided. A prefix is decided once enough bytes
/// are there; something contained may come until the window is full.
fn is_watching(rule: &Rule) -> bool {
    matches!(rule.pattern, Pattern::Contains(_))
}

/// The first rule that matches the beginning of a stream, unless an earlier rule could match with a
/// few more bytes. Nothing is held for the sake of a `contains`: when it is found, messages with
/// its first bytes may have passed. If the stream `is_over`, no prefix is waited for.
fn decide(side: &Side, start: &[u8], is_over: bool) -> Decision {
    for rule in &side.rules {
        match &rule.pattern {
            Pattern::Prefix(prefix) if start.starts_with(prefix) => {
                return match rule.action {
                    Action::Allow => Decision::Allow,
                    Action::Deny => Decision::Deny(rule.text.clone()),
                };
            }
            Pattern::Prefix(prefix) if !is_over && prefix.starts_with(start) => return Decision::Open,
            Pattern::Contains(part) if start.windows(part.len()).any(|window| window == part) => {
                return Decision::Deny(rule.text.clone());
            }
            Pattern::Prefix(_) | Pattern::Contains(_) => {}
        }
    }
    match side.default {
        Action::Allow => Decision::Allow,
        Action::Deny => Decision::Deny("no rule allows it, and the default denies".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::parse;

    /// The results for a client's stream in these pieces, a letter for each: passes, held, refused.
    fn verdicts(rules: &str, pieces: &[&str]) -> String {
        let rules = parse(rules).expect("the test's rules are right");
        let mut lane = Lane::default();
        let letter = |verdict| match verdict {
            Verdict::Pass(held) => format!("p{}", held.len()),
            Verdict::Hold => "h".to_owned(),
            Verdict::Refuse(_) => "r".to_owned(),
        };
        pieces.iter().map(|piece| letter(lane.judge(&rules.sides[0], piece.as_bytes(), || 0))).collect()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let rules =
            "deny client prefix \"GET /secret\"\nallow client prefix \"GET /\"\ndefault client deny\n";
        let cases: [(&[&str], &str); 8] = [
            (&["GET /index", "anything"], "p0p0"),
            (&["GET /secret/x"], "r"),
            (&["GET /sec", "ret"], "hr"),
            (&["G", "E", "T", " /", "s", "e", "x", "y"], "hhhhhhp6p0"),
            (&["", "GET /s", "x"], "hhp2"),
            (&["POST /"], "r"),
            (&["GEX"], "r"),
            (&["GET /x", "GET /secret"], "p0p0"),
        ];
        for (pieces, expected) in cases {
            assert_eq!(verdicts(rules, pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn what_is_contained_is_watched_for_in_the_first_bytes() {
        let rules = "deny client contains \"evil\"\nallow client prefix \"GET\"\n";
        let long = "x".repeat(2000);
        let cases: [(&[&str], &str); 5] = [
            (&["GET /", "ev", "il"], "p0p0r"),
            (&["GET /evil"], "r"),
            (&["an evil one"], "r"),
            (&[&long, "evil"], "p0p0"),
            (&["GET /", &long[..1016], "evil"], "p0p0p0"),
        ];
        for (pieces, expected) in cases {
            assert_eq!(verdicts(rules, pieces), expected, "{:.20}", pieces[0]);
        }
        // After a rule has matched, later bytes are not checked.
        assert_eq!(
            verdicts("allow client prefix \"GET\"\ndeny client contains \"evil\"\n", &["GET evil"]),
            "p0"
        );
    }

    #[test]
    fn limits_refuse() {
        assert_eq!(verdicts("limit client message 3\n", &["abc", "abcd"]), "p0r");
        assert_eq!(verdicts("limit client bytes 5\n", &["abc", "ab", "a"]), "p0p0r");
        assert_eq!(verdicts("limit client rate 1/s burst 2\n", &["a", "a", "a"]), "p0p0r");
    }

    #[test]
    fn a_stream_that_ends_undecided_gets_the_default() {
        for (default, passes) in [("allow", true), ("deny", false)] {
            let text = format!("deny client prefix \"long\"\ndefault client {default}\n");
            let rules = parse(&text).expect("the test's rules are right");
            let mut lane = Lane::default();
            assert_eq!(lane.judge(&rules.sides[0], b"lo", || 0), Verdict::Hold);
            assert_eq!(matches!(lane.end(&rules.sides[0]), Verdict::Pass(held) if held.len() == 1), passes);
        }
    }

    #[test]
    fn a_stream_that_ends_inside_a_prefix_gets_the_rules_behind_it() {
        let rules =
            "allow client prefix \"admin-ok\"\ndeny client prefix \"admin\"\ndeny client contains \"x\"\n";
        let rules = parse(rules).expect("the test's rules are right");
        for (held, passes) in [("admin", false), ("admin-", false), ("adm", true), ("", true)] {
            let mut lane = Lane::default();
            assert_eq!(lane.judge(&rules.sides[0], held.as_bytes(), || 0), Verdict::Hold, "{held:?}");
            assert_eq!(matches!(lane.end(&rules.sides[0]), Verdict::Pass(_)), passes, "{held:?}");
        }
    }
}
