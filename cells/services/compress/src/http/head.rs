//! Parses the heads of requests and responses. Strict: a head that two parsers could read differently is refused, because the
//! server behind the cell is another parser. Does not know compression.

use super::body::Framing;
use super::list::{elements, has_token, is};
use httparse::Header;

/// Bytes of a head, with its empty line.
pub(super) const HEAD_BYTES_MAX: usize = 64 << 10;
/// Fields of a head.
pub(super) const FIELDS_MAX: usize = 128;

/// Searches for the end of a head while bytes arrive.
#[derive(Default)]
pub(super) struct Scan {
    scanned: usize,
}

impl Scan {
    /// The length of the head with its empty line; `None` if it is incomplete.
    ///
    /// # Errors
    /// If a line does not end in CR and LF.
    pub(super) fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let start = self.scanned.min(bytes.len());
        for (index, _) in bytes.iter().enumerate().skip(start).filter(|(_, byte)| **byte == b'\n') {
            let before = &bytes[..index];
            if !before.ends_with(b"\r") {
                return Err("a line ends in LF alone");
            }
            if before.ends_with(b"\r\n\r") {
                self.scanned = 0;
                return Ok(Some(index + 1));
            }
        }
        self.scanned = bytes.len();
        Ok(None)
    }
}

/// The fields of any message that the cell needs.
#[derive(Clone, Copy, Default)]
pub(super) struct Fields<'h> {
    length: Option<u64>,
    is_chunked: bool,
    /// `Connection: close`.
    pub(super) is_close: bool,
    pub(super) is_keep_alive: bool,
    pub(super) is_upgrade: bool,
    /// There is an `Upgrade` field.
    pub(super) names_protocol: bool,
    /// There is a `Range`, a `Content-Range` or a checksum of these exact bytes: the body must not be changed.
    pub(super) is_exact: bool,
    /// `Cache-Control: no-transform`.
    pub(super) is_fixed: bool,
    /// `Content-Encoding`, if it is not `identity`.
    pub(super) coding: Option<&'h [u8]>,
    /// `Content-Type`.
    pub(super) content_type: Option<&'h [u8]>,
    /// `Vary` already contains what the cell would add.
    pub(super) varies: bool,
    hosts: usize,
}

impl<'h> Fields<'h> {
    fn read(headers: &'h [Header<'h>]) -> Result<Self, &'static str> {
        let mut fields = Self::default();
        let mut codings = 0;
        for Header { name, value } in headers {
            match name.len() {
                4 if is(name, "Host") => fields.hosts += 1,
                4 if is(name, "Vary") => {
                    fields.varies |= has_token(value, "*") || has_token(value, "Accept-Encoding");
                }
                5 if is(name, "Range") => fields.is_exact = true,
                6 if is(name, "Digest") => fields.is_exact = true,
                7 if is(name, "Upgrade") => fields.names_protocol = true,
                10 if is(name, "Connection") => {
                    fields.is_close |= has_token(value, "close");
                    fields.is_keep_alive |= has_token(value, "keep-alive");
                    fields.is_upgrade |= has_token(value, "upgrade");
                }
                11 if is(name, "Repr-Digest") || is(name, "Content-MD5") => fields.is_exact = true,
                12 if is(name, "Content-Type") => fields.content_type = Some(value),
                13 if is(name, "Cache-Control") => fields.is_fixed |= has_token(value, "no-transform"),
                13 if is(name, "Content-Range") => fields.is_exact = true,
                14 if is(name, "Content-Length") => {
                    let earlier = fields.length.replace(number(value)?);
                    if earlier.is_some() {
                        return Err("there are two lengths");
                    }
                }
                14 if is(name, "Content-Digest") => fields.is_exact = true,
                16 if is(name, "Content-Encoding") => {
                    codings += 1;
                    let value = value.trim_ascii();
                    // Several codings count as one unknown coding.
                    fields.coding = if codings > 1 {
                        Some(b",")
                    } else {
                        Some(value).filter(|value| !value.eq_ignore_ascii_case(b"identity"))
                    };
                }
                17 if is(name, "Transfer-Encoding") => {
                    if fields.is_chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                        return Err("of transfer codings there is `chunked`, once");
                    }
                    fields.is_chunked = true;
                }
                _ => {}
            }
        }
        if fields.is_chunked && fields.length.is_some() {
            return Err("there is a length, and a transfer coding");
        }
        Ok(fields)
    }

    /// The framing of the body; `otherwise` if the head does not specify it.
    fn framing(&self, otherwise: Framing) -> Framing {
        match (self.is_chunked, self.length) {
            (true, _) => Framing::Chunked,
            (false, Some(length)) => Framing::Length(length),
            (false, None) => otherwise,
        }
    }
}

/// Decimal digits and nothing else.
fn number(digits: &[u8]) -> Result<u64, &'static str> {
    let digits = digits.trim_ascii();
    let text = str::from_utf8(digits).unwrap_or_default();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or("a length is no number")
}

/// The head of a request.
pub(super) struct Request<'h> {
    pub(super) method: &'h str,
    pub(super) target: &'h str,
    /// Minor version of HTTP/1: 0 or 1.
    pub(super) version: u8,
    pub(super) headers: &'h [Header<'h>],
    pub(super) fields: Fields<'h>,
    pub(super) framing: Framing,
}

impl<'h> Request<'h> {
    /// Parses a complete head.
    ///
    /// # Errors
    /// If it is invalid or ambiguous.
    pub(super) fn parse(bytes: &'h [u8], room: &'h mut [Header<'h>]) -> Result<Self, &'static str> {
        let mut request = httparse::Request::new(room);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if len == bytes.len() => {}
            Ok(_) => return Err("the head ends twice"),
            Err(error) => return Err(words(error)),
        }
        let (Some(method), Some(target), Some(version)) = (request.method, request.path, request.version)
        else {
            return Err("the first line is not whole");
        };
        let headers: &'h [Header<'h>] = request.headers;
        let fields = Fields::read(headers)?;
        if fields.is_chunked && version == 0 {
            return Err("HTTP/1.0 has no transfer codings");
        }
        if fields.hosts > 1 {
            return Err("there are two hosts");
        }
        let framing = fields.framing(Framing::Length(0));
        Ok(Self { method, target, version, headers, fields, framing })
    }

    /// Whether the client sends no more requests after this one.
    pub(super) fn is_last(&self) -> bool {
        self.fields.is_close || (self.version == 0 && !self.fields.is_keep_alive)
    }

    /// Whether it asks to switch to another protocol.
    pub(super) fn asks_upgrade(&self) -> bool {
        self.version == 1 && self.fields.is_upgrade && self.fields.names_protocol
    }

    /// The values of these fields.
    pub(super) fn values(&self, name: &'static str) -> impl Iterator<Item = &'h [u8]> + use<'h> {
        self.headers.iter().filter(move |header| is(header.name, name)).map(|header| header.value)
    }

    /// Whether the client forbids changes.
    pub(super) fn is_fixed(&self) -> bool {
        self.fields.is_fixed
    }
}

/// The head of a response.
pub(super) struct Response<'h> {
    pub(super) status: u16,
    pub(super) reason: &'h str,
    pub(super) version: u8,
    pub(super) headers: &'h [Header<'h>],
    pub(super) fields: Fields<'h>,
}

impl<'h> Response<'h> {
    /// Parses a complete head.
    ///
    /// # Errors
    /// If it is invalid or ambiguous.
    pub(super) fn parse(bytes: &'h [u8], room: &'h mut [Header<'h>]) -> Result<Self, &'static str> {
        let mut response = httparse::Response::new(room);
        match response.parse(bytes) {
            Ok(httparse::Status::Complete(len)) if len == bytes.len() => {}
            Ok(_) => return Err("the head ends twice"),
            Err(error) => return Err(words(error)),
        }
        let (Some(status), Some(version)) = (response.code, response.version) else {
            return Err("the first line is not whole");
        };
        if status < 100 {
            return Err("a status has three digits, the first of which is not 0");
        }
        let reason = response.reason.unwrap_or_default();
        let headers: &'h [Header<'h>] = response.headers;
        let fields = Fields::read(headers)?;
        if fields.is_chunked && version == 0 {
            return Err("HTTP/1.0 has no transfer codings");
        }
        Ok(Self { status, reason, version, headers, fields })
    }

    /// The framing of its body.
    pub(super) fn framing(&self, answers_head: bool) -> Framing {
        match self.status {
            100..=199 | 204 | 304 => Framing::Length(0),
            _ if answers_head => Framing::Length(0),
            _ => self.fields.framing(Framing::UntilClose),
        }
    }

    /// The length in its head, whether or not there is a body.
    pub(super) fn length(&self) -> Option<u64> {
        self.fields.length
    }

    /// Whether the server closes the connection after this one.
    pub(super) fn is_last(&self) -> bool {
        self.fields.is_close || (self.version == 0 && !self.fields.is_keep_alive)
    }
}

/// The text for a head that cannot be parsed.
fn words(error: httparse::Error) -> &'static str {
    match error {
        httparse::Error::HeaderName => "a field has no name, or one that is none",
        httparse::Error::HeaderValue => "a field's value holds what it must not",
        httparse::Error::NewLine => "a line ends where it must not",
        httparse::Error::Status => "the status is no number",
        httparse::Error::Token => "the first line holds what it must not",
        httparse::Error::TooManyHeaders => "there are too many fields",
        httparse::Error::Version => "it is not HTTP/1",
    }
}

/// The trailers that may pass: those that do not affect the message's framing or coding.
///
/// # Errors
/// If they are not valid fields.
pub(super) fn trailers(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    const KEPT_BACK: [&str; 12] = [
        "Content-Length",
        "Transfer-Encoding",
        "Host",
        "Content-Encoding",
        "Content-Type",
        "Content-Range",
        "Trailer",
        "Connection",
        "Content-Digest",
        "Content-MD5",
        "Digest",
        "Authorization",
    ];
    if bytes.is_empty() {
        return Ok(());
    }
    let mut room = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let whole = [bytes, b"\r\n"].concat();
    let Ok(httparse::Status::Complete((_, headers))) = httparse::parse_headers(&whole, &mut room) else {
        return Err("the trailers are no fields");
    };
    for header in headers.iter().filter(|header| !KEPT_BACK.iter().any(|name| is(header.name, name))) {
        field(out, header.name, header.value);
    }
    Ok(())
}

/// Writes a field.
pub(super) fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a list of tokens holds `gzip`, and nothing else.
pub(super) fn is_gzip(coding: &[u8]) -> bool {
    let mut codings = elements(coding);
    let first = codings.next().unwrap_or_default();
    (first.eq_ignore_ascii_case(b"gzip") || first.eq_ignore_ascii_case(b"x-gzip")) && codings.next().is_none()
}
