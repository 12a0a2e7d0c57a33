//! Writes heads. Fields that are not changed stay as they were, in the same order.

use super::forwarded::Teller;
use super::head::{Request, Response, field};
use super::list::{elements, is};
use super::negotiate::{Asked, Change, ask_for_gzip};
use super::pump::Wrap;

/// Writes a request's head.
pub(super) fn request(
    request: &Request<'_>,
    asked: &Asked,
    change: Change,
    teller: &Teller,
    out: &mut Vec<u8>,
) {
    line(out, &[request.method, request.target, &format!("HTTP/1.{}", request.version)]);
    let is_changed = matches!(change, Change::Encode | Change::Decode);
    for header in request.headers {
        let (name, value) = (header.name, header.value);
        match name.len() {
            _ if teller.replaces(name) => {}
            // Only the value `trailers` is supported here.
            2 if is(name, "TE") => {
                if elements(value).any(|element| element.eq_ignore_ascii_case(b"trailers")) {
                    field(out, name, b"trailers");
                }
            }
            10 if is(name, "Connection") => {
                let value = teller.for_this_connection(value);
                if !value.is_empty() {
                    field(out, name, &value);
                }
            }
            15 if asked.for_client && is(name, "Accept-Encoding") => {}
            14 if is_changed && is(name, "Content-Length") => {}
            16 if is_changed && is(name, "Content-Encoding") => {}
            17 if is_changed && is(name, "Transfer-Encoding") => {}
            _ => field(out, name, value),
        }
    }
    if asked.for_client {
        field(out, "Accept-Encoding", &ask_for_gzip(request.values("Accept-Encoding")));
    }
    teller.tell(request, out);
    if change == Change::Encode {
        field(out, "Content-Encoding", b"gzip");
    }
    if is_changed {
        field(out, "Transfer-Encoding", b"chunked");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the head of an interim (1xx) response.
pub(super) fn interim(response: &Response<'_>, out: &mut Vec<u8>) {
    line(out, &["HTTP/1.1", &response.status.to_string(), response.reason]);
    response.headers.iter().for_each(|header| field(out, header.name, header.value));
    out.extend_from_slice(b"\r\n");
}

/// Writes a response's head. `ends`: the connection is closed after its body.
pub(super) fn response(
    response: &Response<'_>,
    asked: &Asked,
    change: Change,
    wrap: Wrap,
    ends: bool,
    out: &mut Vec<u8>,
) {
    // An HTTP/1.0 server closes without announcing it.
    let closes = ends || response.is_last();
    line(out, &["HTTP/1.1", &response.status.to_string(), response.reason]);
    let is_changed = matches!(change, Change::Encode | Change::Decode);
    for header in response.headers {
        let (name, value) = (header.name, header.value);
        match name.len() {
            4 if is_changed && is(name, "ETag") => {
                // The content is the same, the bytes are not.
                let strong = !value.starts_with(b"W/");
                field(out, name, &[if strong { &b"W/"[..] } else { b"" }, value].concat());
            }
            10 if closes && is(name, "Connection") => {}
            10 if closes && is(name, "Keep-Alive") => {}
            13 if is_changed && is(name, "Accept-Ranges") => {}
            14 if is_changed && is(name, "Content-Length") => {}
            16 if is_changed && is(name, "Content-Encoding") => {}
            17 if is(name, "Transfer-Encoding") => {}
            6 if is_changed && is(name, "Digest") => {}
            11 if is_changed && (is(name, "Repr-Digest") || is(name, "Content-MD5")) => {}
            14 if is_changed && is(name, "Content-Digest") => {}
            _ => field(out, name, value),
        }
    }
    if change != Change::Pass && !response.fields.varies {
        field(out, "Vary", b"Accept-Encoding");
    }
    if change == Change::Encode {
        field(out, "Content-Encoding", b"gzip");
    }
    if wrap == Wrap::Chunked && asked.version == 1 {
        field(out, "Transfer-Encoding", b"chunked");
    }
    if closes {
        field(out, "Connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes an error response of the cell itself.
pub(super) fn refusal(status: u16, reason: &str, out: &mut Vec<u8>) {
    let name = match status {
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        _ => "Bad Request",
    };
    line(out, &["HTTP/1.1", &status.to_string(), name]);
    if status == 405 {
        field(out, "Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    }
    field(out, "Content-Type", b"text/plain; charset=utf-8");
    field(out, "Content-Length", (reason.len() + 1).to_string().as_bytes());
    field(out, "Connection", b"close");
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(reason.as_bytes());
    out.push(b'\n');
}

fn line(out: &mut Vec<u8>, words: &[&str]) {
    out.extend_from_slice(words.join(" ").as_bytes());
    out.extend_from_slice(b"\r\n");
}
