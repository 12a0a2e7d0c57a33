//! Parses the limits: one per line, the last of a kind counts. Does not know what they are applied to.
//!
//! ```text
//! client messages 100/s burst 20      at most 100 a second from the client, 20 of them at once
//! server bytes 1000000/s              the burst is one second's bytes
//! queue messages 1024                 then the sender is paused
//! queue bytes 1048576                 (the two lines of the queue show the defaults)
//! ```
//!
//! What follows a `#` is a comment.

use marram_bucket::Rate;

/// Path of the limits in an image.
pub(crate) const PATH: &str = "/etc/limits";

/// The default limits.
pub(crate) const DEFAULT: &str = include_str!("../limits");

/// The rates of one direction.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Rates {
    /// One token for each message. `None`: no limit.
    pub(crate) messages: Option<Rate>,
    /// One token for each byte of payload. `None`: no limit.
    pub(crate) bytes: Option<Rate>,
}

/// All limits. Without a limit everything passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Rates of the client's messages.
    pub(crate) client: Rates,
    /// Rates of the server's messages.
    pub(crate) server: Rates,
    /// Messages that may wait in one direction before their sender is paused.
    pub(crate) queue_messages: usize,
    /// Bytes that may wait.
    pub(crate) queue_bytes: usize,
}

/// Reads the limits.
///
/// # Errors
/// The first invalid line, and what a line may contain.
pub(crate) fn parse(text: &str) -> Result<Limits, String> {
    let mut limits = Limits {
        client: Rates::default(),
        server: Rates::default(),
        queue_messages: 1024,
        queue_bytes: 1 << 20,
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if !line.is_empty() {
            apply(&mut limits, line).ok_or_else(|| {
                format!(
                    "{PATH}: `{line}` is no limit; write `client messages 100/s burst 20`, with `client` or `server`, \
                     `messages` or `bytes`, or `queue messages 100`, or `queue bytes 100000`"
                )
            })?;
        }
    }
    Ok(limits)
}

/// `None` if the line is no limit; `limits` is unchanged then.
fn apply(limits: &mut Limits, line: &str) -> Option<()> {
    let (direction, rest) = line.split_once(' ')?;
    let (what, amount) = rest.trim_start().split_once(' ')?;
    let amount = amount.trim();
    let number = || amount.parse().ok();
    match (direction, what) {
        ("client", "messages") => limits.client.messages = Some(Rate::parse(amount)?),
        ("client", "bytes") => limits.client.bytes = Some(Rate::parse(amount)?),
        ("server", "messages") => limits.server.messages = Some(Rate::parse(amount)?),
        ("server", "bytes") => limits.server.bytes = Some(Rate::parse(amount)?),
        ("queue", "messages") => limits.queue_messages = number()?,
        ("queue", "bytes") => limits.queue_bytes = number()?,
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_can_be_read_and_the_last_line_of_a_kind_counts() {
        assert!(parse(DEFAULT).is_ok());
        let text =
            "client messages 5/s\nclient  bytes  10/s burst 3 # a comment\n\nqueue bytes 7\nqueue bytes 8\n";
        let rate = |per_second, burst| Some(Rate { per_second, burst });
        let expected = Limits {
            client: Rates { messages: rate(5, 5), bytes: rate(10, 3) },
            server: Rates::default(),
            queue_messages: 1024,
            queue_bytes: 8,
        };
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn a_line_that_is_no_limit_is_named() {
        for line in ["client", "client messages", "client messages 0/s", "both bytes 1/s", "queue time 1"] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(&format!("`{line}`")), "{error}");
        }
    }
}
