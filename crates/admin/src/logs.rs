//! Recent and future log lines, for operators.
//!
//! ```text
//! GET /v1/logs ? app=NAME & session=ID & level=LEAST & since_ms=AGE & last=COUNT & follow=1 & run=RUN & after=NUMBER
//! ```
//!
//! The answer has one JSON object on each line. First `{"edge", "run", "missing"}`: `missing` is how many dropped lines may have
//! matched. Then the matching lines, with `number`, `at_us` (microseconds since 1970) and `shard`; then `{"caught_up": true}`.
//! With `follow`, new lines come after that, `{"gone": COUNT}` where the reader was too slow for some, and an empty line in a
//! silence. A request with `run` and `after` gets the lines after that number if the program is still in the same run.
//!
//! ```text
//! {"edge":"edge-a","run":17283,"missing":0}
//! {"number":41,"at_us":1790000000000000,"shard":1,"level":"INFO",...}
//! {"caught_up":true}
//! ```
//!
//! `run` differs between two starts of a program, so a reader that lost its connection knows
//! whether the numbers still mean the same lines. The lines are kept in memory by
//! `marram_node::logging`; a slow reader delays no writer, it misses lines.

use super::answer::{Answer, Call};
use bytes::{BufMut, Bytes, BytesMut};
use hyper::{Method, StatusCode};
use marram_config::units::Name;
use marram_http::Refusal;
use marram_http::{Body, BodyStream};
use marram_node::logging::{self, Level, LogBuffer, LogLine};
use serde_json::Value;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Operators that can follow at a time; further ones are refused, so that others still get connections.
pub const FOLLOWERS_MAX: usize = 16;
/// After a silence of this length, an empty line is sent.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// Present followers of this process. Each is counted before its answer begins and released when
/// its stream is dropped, which happens when the client leaves or the server stops.
static FOLLOWERS: AtomicUsize = AtomicUsize::new(0);

/// A stream of new lines.
///
/// Polled on the server's thread. The buffer wakes it when a line is added; the timer wakes it in a
/// silence.
struct Follower {
    kept: &'static LogBuffer,
    wanted: Wanted,
    /// The number of the last line that was examined.
    after: u64,
    /// Fires `HEARTBEAT` after the last bytes. The empty line makes a vanished reader show itself
    /// as a write that fails, and tells a live one that nothing was lost.
    silence: Pin<Box<tokio::time::Sleep>>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        FOLLOWERS.fetch_sub(1, Relaxed);
    }
}

impl BodyStream for Follower {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let taken = self.kept.take(self.after, Some(context.waker()));
            let mut out = BytesMut::new();
            // Without lines `gone` is not reported yet: it would be counted again with the next ones,
            // as `after` does not move.
            if taken.gone > 0 && !taken.lines.is_empty() {
                out.put_slice(format!("{{\"gone\":{}}}\n", taken.gone).as_bytes());
            }
            for line in &taken.lines {
                self.after = line.number;
                if self.wanted.fits(line) {
                    put(line, &mut out);
                }
            }
            if !out.is_empty() {
                self.silence.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                return Poll::Ready(Some(out.freeze()));
            }
            if taken.lines.is_empty() {
                return self.silence.as_mut().poll(context).map(|()| {
                    self.silence.as_mut().reset(tokio::time::Instant::now() + HEARTBEAT);
                    Some(Bytes::from_static(b"\n"))
                });
            }
        }
    }
}

/// The filter for lines.
///
/// Conditions that are absent hold. The cheap ones come first: most lines never get parsed.
#[derive(Default)]
struct Wanted {
    app: Option<String>,
    session: Option<String>,
    level: Option<Level>,
    /// Microseconds since 1970; 0 for all.
    since_us: u64,
}

impl Wanted {
    fn fits(&self, line: &LogLine) -> bool {
        if line.at_us < self.since_us {
            return false;
        }
        if self.app.is_none() && self.session.is_none() && self.level.is_none() {
            return true;
        }
        // A session's identifier is unique, so it is searched in the whole text; some lines have it only there.
        if self.session.as_ref().is_some_and(|session| !line.text.contains(session.as_str())) {
            return false;
        }
        let Ok(fields) = serde_json::from_str::<Value>(&line.text) else { return false };
        let level = fields["level"].as_str().and_then(Level::read).unwrap_or_default();
        self.level.is_none_or(|least| level <= least)
            && self.app.as_ref().is_none_or(|app| fields["app"].as_str() == Some(app))
    }
}

/// The parameters of a request.
///
/// Values are not percent-decoded: none of the legal ones contains a character that needs it.
#[derive(Default)]
struct Asked {
    wanted: Wanted,
    /// How many of the existing lines.
    last: Option<usize>,
    follow: bool,
    run: Option<u64>,
    /// The number of the last line that the reader has; counts only within the same `run`.
    after: u64,
}

impl Asked {
    fn read(query: &str, now_us: u64) -> Result<Self, String> {
        let mut asked = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let number = || value.parse::<u64>().map_err(|_| format!("`{name}` is a number"));
            match name {
                "app" => asked.wanted.app = Some(value.parse::<Name>().map_err(|error| error.to_string())?.0),
                "session" if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    asked.wanted.session = Some(value.to_ascii_lowercase());
                }
                "session" => return Err("a session's identifier has hexadecimal digits".into()),
                "level" => {
                    let level = Level::read(value);
                    asked.wanted.level = Some(level.ok_or_else(|| format!("there is no level `{value}`"))?);
                }
                "since_ms" => {
                    asked.wanted.since_us = now_us.saturating_sub(number()?.saturating_mul(1_000));
                }
                "last" => asked.last = Some(usize::try_from(number()?).unwrap_or(usize::MAX)),
                "follow" => asked.follow = value == "1",
                "run" => asked.run = Some(number()?),
                "after" => asked.after = number()?,
                _ => return Err(format!("there is no parameter `{name}`")),
            }
        }
        Ok(asked)
    }
}

/// Whether a request is for log lines.
pub(super) fn is_asked_for(call: &Call) -> bool {
    call.method == Method::GET && call.path.trim_end_matches('/') == "/v1/logs"
}

/// Answers a request for lines.
pub(super) fn answer(edge: &str, call: &Call) -> Result<Answer, Refusal> {
    let Some(kept) = logging::kept() else {
        let fix = "read the output of the process that embeds it";
        return Err(Refusal::new(StatusCode::NOT_FOUND, "this process keeps no log lines", fix));
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let asked = Asked::read(&call.query, u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
    let fix = "ask with `marram logs` of this version";
    let asked = asked.map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why, fix))?;
    if asked.follow && FOLLOWERS.fetch_add(1, Relaxed) >= FOLLOWERS_MAX {
        FOLLOWERS.fetch_sub(1, Relaxed);
        let what = format!("{FOLLOWERS_MAX} operators follow this log already");
        let fix = "end one of them, or ask without -f";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, what, fix));
    }
    let (first, after) = beginning(edge, kept, &asked);
    let body = if asked.follow {
        let silence = Box::pin(tokio::time::sleep(HEARTBEAT));
        Body::Lines(Some(first), Box::new(Follower { kept, wanted: asked.wanted, after, silence }))
    } else {
        first.into()
    };
    Ok(Answer { status: StatusCode::OK, content_type: "application/x-ndjson", body })
}

/// The lines that exist now, and the number of the last line that was examined.
/// Takes the buffer's lines in pieces, and does not hold its lock in between.
fn beginning(edge: &str, kept: &LogBuffer, asked: &Asked) -> (Bytes, u64) {
    let mut after = if asked.run == Some(kept.run()) { asked.after } else { 0 };
    let last = asked.last.unwrap_or(usize::MAX);
    let (mut fit, mut end) = (VecDeque::new(), None);
    // Number of dropped lines, and of matches after the last of them: lines may be dropped while others are taken.
    let (mut gone, mut found, mut oldest_us) = (0, 0, 0);
    loop {
        let taken = kept.take(after, None);
        // Lines that are logged from now on are not included, since that might never end.
        let end = *end.get_or_insert(taken.last);
        if taken.gone > 0 {
            gone += taken.gone;
            (found, oldest_us) = (0, taken.lines.first().map_or(0, |line| line.at_us));
        }
        let Some(looked_at) = taken.lines.last() else { break };
        after = looked_at.number;
        for line in taken.lines.into_iter().filter(|line| asked.wanted.fits(line)) {
            found += 1;
            fit.push_back(line);
            if fit.len() > last {
                fit.pop_front();
            }
        }
        if after >= end {
            break;
        }
    }
    // No dropped line would have been in the answer if enough lines are left, or if the dropped ones are too old.
    let enough = found >= last || oldest_us < asked.wanted.since_us;
    let missing = if enough { 0 } else { gone };
    let mut out = BytesMut::new();
    let head = serde_json::json!({ "edge": edge, "run": kept.run(), "missing": missing });
    out.put_slice(format!("{head}\n").as_bytes());
    fit.iter().for_each(|line| put(line, &mut out));
    out.put_slice(b"{\"caught_up\":true}\n");
    (out.freeze(), after)
}

/// A line with its number, time and shard.
/// The line's text is a JSON object already; its first brace is replaced, so that it need not be
/// parsed.
fn put(line: &LogLine, out: &mut BytesMut) {
    let shard = line.shard.map_or_else(String::new, |shard| format!("\"shard\":{shard},"));
    let rest = line.text.strip_prefix('{').unwrap_or("}");
    // Some lines of a shard have the shard's number already.
    let shard = if rest.contains("\"shard\":") { "" } else { shard.as_str() };
    let head = format!("{{\"number\":{},\"at_us\":{},{shard}", line.number, line.at_us);
    out.put_slice(head.as_bytes());
    out.put_slice(rest.as_bytes());
    out.put_u8(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &Bytes) -> Vec<Value> {
        let text = std::str::from_utf8(bytes).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn told(kept: &LogBuffer, query: &str) -> (u64, Vec<String>) {
        let all = lines(&beginning("A", kept, &Asked::read(query, 1).unwrap()).0);
        let [head, lines @ .., end] = &all[..] else { panic!("{all:?}") };
        assert_eq!((&head["edge"], &end["caught_up"]), (&Value::from("A"), &Value::from(true)));
        let text = |line: &Value| line["message"].as_str().unwrap().to_owned();
        (head["missing"].as_u64().unwrap(), lines.iter().map(text).collect())
    }

    #[test]
    fn lines_are_found_by_app_session_and_level() {
        let kept = LogBuffer::new(logging::RING_BYTES);
        for (shard, line) in [
            (None, r#"{"level":"INFO","message":"one","app":"a"}"#),
            (Some(0), r#"{"level":"WARN","message":"two: session 00ff: gone"}"#),
            (Some(1), r#"{"level":"DEBUG","message":"three","app":"a","session":"00ff"}"#),
        ] {
            kept.add(shard, line.as_bytes());
        }
        let two = "two: session 00ff: gone";
        for (query, expected) in [
            ("", &["one", two, "three"][..]),
            ("app=a", &["one", "three"]),
            ("session=00FF", &[two, "three"]),
            ("session=00ff&app=a", &["three"]),
            ("level=warn", &[two]),
            ("level=debug&last=2", &[two, "three"]),
            ("app=b", &[]),
            ("after=2", &["one", two, "three"]),
            (&format!("after=2&run={}", kept.run()), &["three"]),
            (&format!("after=3&run={}", kept.run()), &[]),
        ] {
            assert_eq!(
                told(&kept, query),
                (0, expected.iter().map(ToString::to_string).collect()),
                "{query}"
            );
        }
        for query in ["app=a%20b", "session=x", "level=loud", "last=many", "nonsense=1"] {
            assert!(Asked::read(query, 1).is_err(), "{query}");
        }
    }

    #[test]
    fn dropped_lines_are_reported_to_readers_that_missed_them() {
        let kept = LogBuffer::new(200);
        for count in 0..9 {
            kept.add(None, format!("{{\"level\":\"INFO\",\"message\":\"{count}\"}}").as_bytes());
        }
        assert_eq!(told(&kept, "last=1"), (0, vec!["8".into()]));
        let (missing, rest) = told(&kept, "last=9");
        assert_eq!(missing, 9 - rest.len() as u64);
        // Only lines of the last microsecond match: no dropped line is that new.
        let asked = Asked { wanted: Wanted { since_us: u64::MAX, ..Wanted::default() }, ..Asked::default() };
        assert_eq!(lines(&beginning("A", &kept, &asked).0)[0]["missing"], 0);
    }

    #[test]
    fn all_lines_are_shown_or_missed_while_others_are_logged() {
        const COUNT: u64 = 20_000;
        let kept = LogBuffer::new(logging::RING_BYTES);
        let add = |count: u64| (0..count).for_each(|_| kept.add(None, b"{\"message\":\"\"}"));
        add(COUNT / 2);
        let check = |all_there: bool| {
            let (bytes, end) = beginning("A", &kept, &Asked::default());
            let all = lines(&bytes);
            let numbers: Vec<u64> = all.iter().filter_map(|line| line["number"].as_u64()).collect();
            let missing = all[0]["missing"].as_u64().unwrap();
            assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
            assert_eq!((numbers.len() as u64 + missing, numbers.last()), (end, Some(&end)));
            assert!(!all_there || end == COUNT && missing > 0, "{end} {missing}");
        };
        std::thread::scope(|scope| {
            let adding = scope.spawn(|| add(COUNT / 2));
            while !adding.is_finished() {
                check(false);
            }
        });
        check(true);
    }

    #[test]
    fn a_line_says_once_of_which_shard_it_is() {
        let mut out = BytesMut::new();
        for text in [r#"{"shard":4,"message":"up"}"#, r#"{"message":"up"}"#] {
            put(&LogLine { number: 1, at_us: 2, shard: Some(4), text: text.into() }, &mut out);
        }
        assert!(lines(&out.freeze()).iter().all(|line| line["shard"] == 4 && line["number"] == 1));
    }
}
