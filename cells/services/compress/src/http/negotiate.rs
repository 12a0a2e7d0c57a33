//! Which peer accepts gzip, and how a body is changed because of that. Knows heads, not bodies.

use super::body::Framing;
use super::head::{Request, Response, is_gzip};
use super::list::{elements, weighted};
use crate::config::Config;

/// The codings that a client accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Accepts {
    /// gzip, with at least the weight of no coding.
    pub(super) gzip: bool,
    /// No coding.
    pub(super) plain: bool,
}

impl Accepts {
    /// Reads `Accept-Encoding`. Without the field, a client gets no coding, although all would be allowed.
    pub(super) fn read<'h>(values: impl Iterator<Item = &'h [u8]>) -> Self {
        let (mut gzip, mut plain, mut any) = (None, None, None);
        for element in values.flat_map(elements) {
            let (name, weight) = weighted(element);
            if is_gzip(name) {
                gzip = Some(weight);
            } else if name.eq_ignore_ascii_case(b"identity") {
                plain = Some(weight);
            } else if name == b"*" {
                any = Some(weight);
            }
        }
        let gzip = gzip.or(any).unwrap_or(0);
        Self { gzip: gzip > 0 && plain.is_none_or(|plain| gzip >= plain), plain: plain.or(any) != Some(0) }
    }
}

/// Facts about a request that are needed when its response arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) is_head: bool,
    /// Minor version of HTTP/1.
    pub(super) version: u8,
    pub(super) accepts_gzip: bool,
    /// The cell asked for gzip on behalf of the client.
    pub(super) for_client: bool,
    pub(super) upgrade: bool,
}

impl Asked {
    pub(super) fn of(request: &Request<'_>) -> Self {
        let accepts = Accepts::read(request.values("Accept-Encoding"));
        let upgrade = request.asks_upgrade();
        // A range of compressed bytes could not be decoded.
        let is_free = !upgrade && !request.fields.is_exact && !request.is_fixed();
        Self {
            is_head: request.method == "HEAD",
            version: request.version,
            accepts_gzip: accepts.gzip && !request.is_fixed(),
            for_client: !accepts.gzip && accepts.plain && is_free,
            upgrade,
        }
    }
}

/// The `Accept-Encoding` that the cell sends for a client that does not accept gzip.
pub(super) fn ask_for_gzip<'h>(values: impl Iterator<Item = &'h [u8]>) -> Vec<u8> {
    let mut list = Vec::new();
    for element in values.flat_map(elements).filter(|element| !is_gzip(weighted(element).0)) {
        list.extend_from_slice(element);
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(b"gzip");
    list
}

/// How a body is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// Not at all.
    Pass,
    /// Not at all, although another client would get a changed body.
    PassVaried,
    Encode,
    Decode,
}

/// How this response's body is changed.
pub(super) fn of_response(config: &Config, asked: &Asked, response: &Response<'_>) -> Change {
    let fields = &response.fields;
    if let Some(coding) = fields.coding {
        let is_ours = asked.for_client && is_gzip(coding) && !matches!(response.status, 204..=206 | 304);
        return if is_ours { Change::Decode } else { Change::Pass };
    }
    let can_change = matches!(response.status, 200 | 201 | 203 | 400..=415 | 417..=599)
        && !fields.is_exact
        && !fields.is_fixed
        && response.length().is_none_or(|length| length >= config.length_min.max(1))
        && is_listed(config, fields.content_type);
    match (can_change, asked.accepts_gzip && asked.version == 1) {
        (false, _) => Change::Pass,
        (true, false) => Change::PassVaried,
        (true, true) => Change::Encode,
    }
}

/// How this request's body is changed.
pub(super) fn of_request(config: &Config, request: &Request<'_>) -> Change {
    use crate::config::Requests;
    let fields = &request.fields;
    let is_free = !fields.is_exact && !request.is_fixed() && !request.asks_upgrade() && request.version == 1;
    let has_body = request.framing != Framing::Length(0);
    match (config.requests, fields.coding) {
        _ if !is_free || !has_body => Change::Pass,
        (Requests::Compress, None) if is_listed(config, fields.content_type) => match request.framing {
            Framing::Length(length) if length < config.length_min => Change::Pass,
            _ => Change::Encode,
        },
        (Requests::Decompress, Some(coding)) if is_gzip(coding) => Change::Decode,
        _ => Change::Pass,
    }
}

/// Whether content of this type must be compressed.
fn is_listed(config: &Config, content_type: Option<&[u8]>) -> bool {
    let Some(value) = content_type else { return false };
    let kind = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    config.types.iter().any(|listed| listed == "*" || kind.eq_ignore_ascii_case(listed.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_accept_gzip() {
        // Whether gzip is accepted, whether no coding is, and what the server is asked for if gzip is not.
        let cases: [(&[&str], bool, bool, &str); 12] = [
            (&[], false, true, "gzip"),
            (&[""], false, true, "gzip"),
            (&["gzip, deflate, br"], true, true, "deflate, br, gzip"),
            (&["x-gzip"], true, true, "gzip"),
            (&["*"], true, true, "*, gzip"),
            (&["gzip;q=0"], false, true, "gzip"),
            (&["gzip;q=0, *"], false, true, "*, gzip"),
            (&["br", "deflate"], false, true, "br, deflate, gzip"),
            (&["br, identity;q=0"], false, false, "br, identity;q=0, gzip"),
            (&["*;q=0"], false, false, "*;q=0, gzip"),
            (&["gzip;q=0.5, identity"], false, true, "identity, gzip"),
            (&["GZIP;q=0.001"], true, true, "gzip"),
        ];
        for (values, gzip, plain, asks) in cases {
            let bytes = || values.iter().map(|value| value.as_bytes());
            assert_eq!(Accepts::read(bytes()), Accepts { gzip, plain }, "{values:?}");
            assert_eq!(String::from_utf8(ask_for_gzip(bytes())).unwrap(), asks, "{values:?}");
        }
    }
}
