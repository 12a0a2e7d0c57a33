//! Reports the client's address to the server: `X-Forwarded-For`, and `Forwarded` of RFC 7239.

use super::head::{Request, field};
use super::list::elements;
use crate::config::Forwarded;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

/// The fields, in the order in which they are written.
const FIELDS: [&str; 2] = ["X-Forwarded-For", "Forwarded"];

/// Adds the fields to requests.
pub(super) struct Teller {
    mode: Forwarded,
    client: Option<IpAddr>,
}

impl Teller {
    /// For a client whose address is not known yet.
    pub(super) fn new(mode: Forwarded) -> Self {
        Self { mode, client: None }
    }

    /// Sets the client's address.
    pub(super) fn meet(&mut self, client: Option<SocketAddr>) {
        self.client = client.map(|client| client.ip());
    }

    /// Whether a request's field is not passed on unchanged.
    pub(super) fn replaces(&self, name: &str) -> bool {
        match self.mode {
            Forwarded::Off => false,
            // A client without a known address must not forge one either.
            Forwarded::Set => FIELDS.iter().any(|field| is_like(name, field)),
            Forwarded::Append => {
                self.client.is_some() && FIELDS.iter().any(|field| name.eq_ignore_ascii_case(field))
            }
        }
    }

    /// The allowed part of a request's `Connection`: a server drops the fields that it lists, so a client must not list these
    /// fields.
    pub(super) fn for_this_connection<'v>(&self, value: &'v [u8]) -> Cow<'v, [u8]> {
        let is_ours = |element: &&[u8]| {
            str::from_utf8(element).is_ok_and(|name| FIELDS.iter().any(|field| is_like(name, field)))
        };
        if self.mode == Forwarded::Off || !elements(value).any(|element| is_ours(&element)) {
            return value.into();
        }
        let kept: Vec<&[u8]> = elements(value).filter(|element| !is_ours(element)).collect();
        kept.join(&b", "[..]).into()
    }

    /// Writes the fields.
    pub(super) fn tell(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        let Some(client) = self.client.filter(|_| self.mode != Forwarded::Off) else { return };
        let node = match client {
            IpAddr::V4(ip) => format!("for={ip}"),
            // Brackets are not allowed in a token.
            IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
        };
        for (name, own) in FIELDS.into_iter().zip([client.to_string(), node]) {
            let mut value = Vec::new();
            if self.mode == Forwarded::Append {
                for earlier in request.values(name).map(<[u8]>::trim_ascii).filter(|value| !value.is_empty())
                {
                    value.extend_from_slice(earlier);
                    value.extend_from_slice(b", ");
                }
            }
            value.extend_from_slice(own.as_bytes());
            field(out, name, &value);
        }
    }
}

/// Whether a name equals this one for a server that treats `_` as `-`, as servers do that turn names into variables.
fn is_like(name: &str, wanted: &str) -> bool {
    let same =
        |(byte, wanted): (u8, u8)| byte.eq_ignore_ascii_case(&wanted) || (byte == b'_' && wanted == b'-');
    name.len() == wanted.len() && name.bytes().zip(wanted.bytes()).all(same)
}
