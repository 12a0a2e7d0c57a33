//! `[cache]`: the origin that an app's cells read objects from, and how long objects are fresh.
//!
//! ```text
//! age:   0 ........ ttl ................... ttl + stale
//!        fresh      asked again; if the     asked again; a failure is
//!                   origin is away, served  reported to the cell
//! ```
//!
//! The values become a `CachePolicy` in milliseconds. A cell waits for its fetch, and its session
//! with it, so the timeout has a small upper limit.

use crate::source::{Problem, Source};
use crate::units::{Size, Time};
use marram_shard::cache::{CachePolicy, ENTRY_CHARGE};
use serde::Deserialize;
use std::time::Duration;
use toml::Spanned;

/// How long an object is fresh if the answer does not say, unless the manifest says otherwise.
const TTL: Duration = Duration::from_secs(60);
/// The longest that an object is fresh, unless the manifest says otherwise.
const TTL_MAX: Duration = Duration::from_secs(3600);
/// How long the answer "no such object" is cached, unless the manifest says otherwise.
const NEGATIVE_TTL: Duration = Duration::from_secs(5);
/// How long a stale object is served while the origin is unreachable, unless the manifest says otherwise.
const STALE: Duration = Duration::from_secs(300);
/// How long a fetch may take, unless the manifest says otherwise.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest timeout of a fetch, since a session waits for it.
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
/// Bytes on an edge, unless the manifest says otherwise.
pub const BYTES: u64 = 64 << 20;
/// An upper limit, so that one app does not take most of a machine's memory.
pub const BYTES_MAX: u64 = 4 << 30;
/// A smaller cache is useless.
const BYTES_MIN: u64 = 64 << 10;
/// Longest URL of an origin, in bytes.
const ORIGIN_MAX: usize = 256;
const _: () = assert!(BYTES_MIN > 2 * ENTRY_CHARGE, "a few objects fit every cache");

/// The table as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    origin: Spanned<String>,
    ttl: Option<Time>,
    ttl_max: Option<Time>,
    negative_ttl: Option<Time>,
    stale: Option<Time>,
    timeout: Option<Spanned<Time>>,
    max_bytes: Option<Spanned<Size>>,
}

impl Written {
    pub(super) fn resolve(self, source: &Source) -> Result<CachePolicy, Problem> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let or = |time: Option<Time>, default: Duration| ms(time.map_or(default, |time| time.0));
        let bytes_max = self.max_bytes.as_ref().map_or(BYTES, |size| size.get_ref().0);
        if let Some(written) = self.max_bytes.filter(|_| !(BYTES_MIN..=BYTES_MAX).contains(&bytes_max)) {
            let what = "a cache has at least \"64KiB\" and at most \"4GiB\" of an edge's memory";
            return Err(source.problem(&written.span(), what));
        }
        let timeout = self.timeout.as_ref().map_or(TIMEOUT, |time| time.get_ref().0);
        let legal = Duration::from_millis(1)..=TIMEOUT_MAX;
        if let Some(written) = self.timeout.filter(|_| !legal.contains(&timeout)) {
            let what = "a session waits for a fetch; write a time of at least \"1ms\" and at most \"30s\"";
            return Err(source.problem(&written.span(), what));
        }
        let origin = self.origin.get_ref();
        if let Err(what) = check(origin) {
            return Err(source.problem(&self.origin.span(), what));
        }
        let slash = if origin.ends_with('/') { "" } else { "/" };
        Ok(CachePolicy {
            origin: format!("{origin}{slash}"),
            ttl_ms: or(self.ttl, TTL),
            ttl_max_ms: or(self.ttl_max, TTL_MAX),
            negative_ttl_ms: or(self.negative_ttl, NEGATIVE_TTL),
            stale_ms: or(self.stale, STALE),
            timeout_ms: ms(timeout),
            bytes_max,
        })
    }
}

/// Whether this is a URL that keys can be appended to.
///
/// A key is appended behind the last slash. It must not be able to become a query, a user or
/// another host, so an origin may contain none of these.
fn check(origin: &str) -> Result<(), &'static str> {
    if origin.starts_with("https://") {
        return Err(
            "origins are asked over plain HTTP in this build; write \"http://...\", of a server or a proxy on a \
                    network that you trust",
        );
    }
    let Some(rest) = origin.strip_prefix("http://") else {
        return Err("an origin is a URL such as \"http://origin.example.org:8080/objects/\"");
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&byte);
    if authority.contains('@') || !path.bytes().all(legal) {
        return Err("an origin has no user and no query: \"http://host:port/path/\"");
    }
    let host = authority.rsplit_once(':').filter(|_| !authority.ends_with(']'));
    let (host, port) = host.unwrap_or((authority, "80"));
    let name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[]:".contains(&byte);
    let fine = !host.is_empty() && host.bytes().all(name) && (host.starts_with('[') == host.contains(':'));
    if !fine || port.parse::<u16>().is_err() || origin.len() > ORIGIN_MAX {
        return Err("an origin is a URL such as \"http://origin.example.org:8080/objects/\"");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::manifest::Manifest;
    use crate::source::Source;
    use marram_shard::cache::CachePolicy;

    fn parse(cache: &str) -> Result<CachePolicy, String> {
        let text = format!("name = \"a\"\nmodule = \"a.wasm\"\n[cache]\n{cache}\n");
        let parsed = Manifest::parse(&Source::new("marram.toml", text));
        parsed.map(|manifest| manifest.cache.unwrap()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_cache_has_defaults_and_its_origin_ends_in_a_slash() {
        let policy = parse("origin = \"http://o:8080/x\"").unwrap();
        assert_eq!((policy.origin.as_str(), policy.timeout_ms), ("http://o:8080/x/", 2_000));
        assert_eq!((policy.ttl_ms, policy.bytes_max), (60_000, 64 << 20));
        let policy =
            parse("origin = \"http://[::1]\"\nstale = \"0s\"\nttl = \"5ms\"\nmax_bytes = \"1MiB\"").unwrap();
        assert_eq!((policy.origin.as_str(), policy.stale_ms), ("http://[::1]/", 0));
        assert_eq!((policy.ttl_ms, policy.bytes_max), (5, 1 << 20));
        assert!(parse("origin = \"http://o/\"\nmax_bytes = \"4GiB\"").is_ok());
    }

    #[test]
    fn every_error_names_line_field_and_fix() {
        for (text, words) in [
            ("ttl = \"1s\"", &["origin"][..]),
            (
                "origin = \"ftp://o/\"",
                &[":4", "`cache.origin`", "\"http://origin.example.org:8080/objects/\""],
            ),
            ("origin = \"https://o/\"", &[":4", "`cache.origin`", "plain HTTP"]),
            ("origin = \"http://o:99999/\"", &[":4", "`cache.origin`", "http://"]),
            ("origin = \"http:///x\"", &[":4", "`cache.origin`", "http://"]),
            ("origin = \"http://u:p@o/\"", &[":4", "`cache.origin`", "no user"]),
            ("origin = \"http://o/x?y=1\"", &[":4", "`cache.origin`", "no query"]),
            ("origin = \"http://o/\"\ntimeout = \"31s\"", &[":5", "`cache.timeout`", "30s"]),
            ("origin = \"http://o/\"\nmax_bytes = \"1KiB\"", &[":5", "`cache.max_bytes`", "64KiB"]),
            ("origin = \"http://o/\"\nmax_bytes = \"4097MiB\"", &[":5", "`cache.max_bytes`", "4GiB"]),
            ("origin = \"http://o/\"\nttl = 5", &[":5", "`cache.ttl`", "a time"]),
            ("origin = \"http://o/\"\nbytes = 5", &[":5", "bytes", "`max_bytes`"]),
        ] {
            let error = parse(text).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{text}: {error:?} does not say {word:?}");
            }
        }
    }
}
