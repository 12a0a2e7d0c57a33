//! A client's HTTP upgrade request, and the answer to it. Pure.
//!
//! ```text
//! GET /path HTTP/1.1                     must begin with an upper-case letter, else it is not HTTP
//! Host: play.example.org                 compared with the origin, if `origins` is empty
//! Origin: https://play.example.org       sent by browsers; a page cannot change it (RFC 6454)
//! Upgrade: websocket
//! Sec-WebSocket-Version: 13
//! Sec-WebSocket-Key: ...
//! ```
//!
//! A browser lets every page open a WebSocket to every host, with the user's network access. Only
//! the server can prevent that, by the origin (RFC 6455, 10.2).

use bytes::Bytes;
use marram_session::agent::routes::HELD_MAX;
use tungstenite::{
    Error,
    error::{CapacityError, ProtocolError},
    handshake::{
        machine::TryParse,
        server::{Request, create_response, write_response},
    },
    http::header::{HOST, ORIGIN},
};

/// Largest request, in bytes: as many as a route can examine.
pub const HEAD_MAX: usize = HELD_MAX;
/// The end of a request.
pub const END: &[u8] = b"\r\n\r\n";
/// Allows every page.
const ANY: &str = "*";

/// Why a request is refused: the HTTP status and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpgradeRefusal {
    status: &'static str,
    words: String,
}

impl UpgradeRefusal {
    fn new(status: &'static str, words: impl Into<String>) -> Self {
        Self { status, words: words.into() }
    }

    /// A routing rule refuses it.
    pub fn by_rule(reason: &str) -> Self {
        Self::new("403 Forbidden", reason)
    }

    /// It did not arrive in time.
    pub fn late() -> Self {
        Self::new("408 Request Timeout", "no request arrived in time")
    }

    /// The agent stops and admits no new clients.
    pub fn stopping() -> Self {
        Self::new("503 Service Unavailable", "this gate is shutting down; try another one, or later")
    }

    /// The complete HTTP answer.
    ///
    /// Always closes: after a refusal no second request is read.
    pub fn answer(&self) -> Bytes {
        let Self { status, words } = self;
        let upgrade = if status.starts_with("426") {
            "Upgrade: websocket\r\nConnection: Upgrade, close\r\nSec-WebSocket-Version: 13\r\n"
        } else {
            "Connection: close\r\n"
        };
        let len = words.len() + 1;
        format!(
            "HTTP/1.1 {status}\r\n{upgrade}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len}\r\n\r\n{words}\n"
        )
        .into()
    }
}

/// The length of the request in the first bytes, and the answer that grants it; `None` while it is incomplete. Its end is not
/// before `from`, as earlier calls found. `origins` are the pages that may connect; if empty, only pages from the request's own
/// host and port.
pub fn read(head: &[u8], from: usize, origins: &[String]) -> Option<Result<(usize, Bytes), UpgradeRefusal>> {
    if head.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
        return Some(Err(UpgradeRefusal::new("400 Bad Request", "this is not HTTP; connect to ws:// here")));
    }
    // Bytes behind HEAD_MAX do not count, so whether a request is too large does not depend on how
    // it was cut.
    let may_end = head.get(from..head.len().min(HEAD_MAX)).unwrap_or_default();
    let Some(at) = may_end.windows(END.len()).position(|end| end == END) else {
        return (head.len() >= HEAD_MAX).then(|| Err(too_large()));
    };
    let head = &head[..from + at + END.len()];
    Some(match Request::try_parse(head) {
        Ok(Some((len, request))) => grant(&request, origins).map(|answer| (len, answer)),
        Ok(None) => {
            Err(UpgradeRefusal::new("400 Bad Request", "the head of the request does not end properly"))
        }
        Err(error) => Err(refuse(&error)),
    })
}

fn too_large() -> UpgradeRefusal {
    let words = format!("the head of the request is longer than {HEAD_MAX} bytes, or has too many lines");
    UpgradeRefusal::new("431 Request Header Fields Too Large", words)
}

fn grant(request: &Request, origins: &[String]) -> Result<Bytes, UpgradeRefusal> {
    let answer = create_response(request).map_err(|error| refuse(&error))?;
    if let Some(origin) = forbidden_origin(request, origins) {
        let words = format!(
            "pages from {origin} are not allowed to connect; the operator of this gate can allow them with `origins \
             = [...]`"
        );
        return Err(UpgradeRefusal::new("403 Forbidden", words));
    }
    let mut bytes = Vec::new();
    write_response(&mut bytes, &answer).map_err(|error| refuse(&error))?;
    Ok(bytes.into())
}

/// The origin of the page, if that origin is not allowed. Programs other than browsers need not send an origin, and could send
/// any.
fn forbidden_origin(request: &Request, origins: &[String]) -> Option<String> {
    let headers = request.headers();
    let mut said = headers.get_all(ORIGIN).iter();
    let (origin, more) = (said.next()?, said.next());
    let origin = String::from_utf8_lossy(origin.as_bytes()).to_ascii_lowercase();
    let listed = origins.iter().any(|one| one == ANY || *one == origin);
    let own = || {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        origins.is_empty() && is_same(&origin, &host.to_ascii_lowercase())
    };
    (more.is_some() || !(listed || own())).then_some(origin)
}

/// Whether a page of this origin is from this host and port.
/// The scheme is not compared: a proxy in front terminates TLS, so the page's `https` arrives here
/// as `http`. A default port may be written or left out on either side.
fn is_same(origin: &str, host: &str) -> bool {
    let Some((scheme, place)) = origin.split_once("://") else { return false };
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let bare = |place: &str| place.strip_suffix(port).unwrap_or(place).to_owned();
    !place.is_empty() && bare(place) == bare(host)
}

fn refuse(error: &Error) -> UpgradeRefusal {
    match error {
        Error::Capacity(CapacityError::TooManyHeaders) => too_large(),
        Error::Protocol(
            ProtocolError::WrongHttpMethod
            | ProtocolError::MissingConnectionUpgradeHeader
            | ProtocolError::MissingUpgradeWebSocketHeader,
        ) => UpgradeRefusal::new(
            "426 Upgrade Required",
            "only WebSocket is supported here: connect to ws://, not to http://",
        ),
        Error::Protocol(ProtocolError::MissingSecWebSocketVersionHeader) => {
            UpgradeRefusal::new("426 Upgrade Required", "only version 13 of WebSocket is supported")
        }
        Error::Protocol(ProtocolError::MissingSecWebSocketKey | ProtocolError::InvalidSecWebSocketKey) => {
            UpgradeRefusal::new("400 Bad Request", "Sec-WebSocket-Key is not 16 bytes in base64")
        }
        Error::Protocol(ProtocolError::WrongHttpVersion) => {
            UpgradeRefusal::new("400 Bad Request", "WebSocket requires HTTP/1.1")
        }
        other => UpgradeRefusal::new("400 Bad Request", format!("this is not a valid HTTP request: {other}")),
    }
}

/// Whether a text is valid in a list of origins, in the form that browsers send.
#[must_use]
pub fn is_origin(text: &str) -> bool {
    let place = |rest: &str| !rest.is_empty() && !rest.contains(['/', '?', '#', '@', ' ']);
    let scheme = |scheme: &str| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
    };
    let written = || text.split_once("://").is_some_and(|(first, rest)| scheme(first) && place(rest));
    [ANY, "null"].contains(&text) || (text.to_ascii_lowercase() == text && written())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASK: &str = "GET /play?x HTTP/1.1\r\nHost: gate.example:8080\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

    fn status(text: &str, origins: &[&str]) -> String {
        let origins: Vec<_> = origins.iter().map(ToString::to_string).collect();
        match read(text.as_bytes(), 0, &origins) {
            None => "more".into(),
            Some(Ok((len, answer))) => {
                assert!(answer.starts_with(b"HTTP/1.1 101 "), "{answer:?}");
                assert_eq!(len, text.find("\r\n\r\n").unwrap() + 4);
                "101".into()
            }
            Some(Err(refusal)) => {
                let answer = String::from_utf8(refusal.answer().to_vec()).unwrap();
                let (head, words) = answer.split_once("\r\n\r\n").unwrap();
                assert!(head.contains(&format!("Content-Length: {}", words.len())), "{answer}");
                head[9..12].into()
            }
        }
    }

    #[test]
    fn a_request_is_granted_once_it_is_whole() {
        for end in 1..ASK.len() {
            assert_eq!(status(&ASK[..end], &[]), "more", "{end}");
        }
        assert_eq!(status(ASK, &[]), "101");
        assert_eq!(status(&format!("{ASK}\u{1}\u{2}"), &[]), "101", "what follows is not the request's");
        let (_, answer) = read(ASK.as_bytes(), 0, &[]).unwrap().unwrap();
        // The example of RFC 6455, section 1.3.
        let accept = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert!(String::from_utf8_lossy(&answer).contains(accept), "{answer:?}");
    }

    #[test]
    fn a_wrong_request_is_answered_in_words() {
        let without =
            |line: &str| ASK.split_inclusive("\r\n").filter(|l| !l.starts_with(line)).collect::<String>();
        for (text, expected) in [
            (without("Upgrade"), "426"),
            (without("Connection"), "426"),
            (without("Sec-WebSocket-Version"), "426"),
            (ASK.replace(": 13", ": 8"), "426"),
            (ASK.replace("GET", "POST"), "426"),
            (without("Sec-WebSocket-Key"), "400"),
            (ASK.replace("dGhl", "dGh"), "400"),
            (ASK.replace("HTTP/1.1", "HTTP/1.0"), "400"),
            (ASK.replace("HTTP/1.1", "HTTP/9"), "400"),
            ("\u{16}\u{3}\u{1}".into(), "400"),
            ("GET \0 HTTP/1.1\r\n\r\n".into(), "400"),
            (format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_MAX)), "431"),
            (ASK.replace("Upgrade: w", &format!("X: {}\r\nUpgrade: w", "x".repeat(HEAD_MAX))), "431"),
            (format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200)), "431"),
        ] {
            assert_eq!(status(&text, &[]), expected, "{text:?}");
        }
    }

    #[test]
    fn pages_of_unknown_peers_are_refused() {
        let from = |origin: &str| ASK.replace("Upgrade: w", &format!("Origin: {origin}\r\nUpgrade: w"));
        for (origin, origins, expected) in [
            ("http://gate.example:8080", &[][..], "101"),
            ("https://gate.example:8080", &[], "101"),
            ("HTTP://Gate.Example:8080", &[], "101"),
            ("http://gate.example", &[], "403"),
            ("http://evil.example:8080", &[], "403"),
            ("http://gate.example:8080.evil.example", &[], "403"),
            ("ftp://gate.example:8080", &[], "403"),
            ("null", &[], "403"),
            ("null", &["null"], "101"),
            ("https://play.example", &["https://play.example"], "101"),
            ("https://play.example:1", &["https://play.example"], "403"),
            ("http://gate.example:8080", &["https://play.example"], "403"),
            ("http://anywhere", &["*"], "101"),
            ("http://gate.example:8080\r\nOrigin: http://gate.example:8080", &[], "403"),
        ] {
            assert_eq!(status(&from(origin), origins), expected, "{origin} {origins:?}");
        }
        let plain = from("http://gate.example").replace("gate.example:8080", "gate.example:80");
        assert_eq!(status(&plain, &[]), "101", "80 is what http means");
    }

    #[test]
    fn origins_are_written_as_browsers_say_them() {
        for text in ["*", "null", "https://play.example", "http://127.0.0.1:8000", "chrome-extension://abc"] {
            assert!(is_origin(text), "{text}");
        }
        for text in
            ["", "play.example", "https://", "https://play.example/", "https://Play.example", "https://a b"]
        {
            assert!(!is_origin(text), "{text}");
        }
    }
}
