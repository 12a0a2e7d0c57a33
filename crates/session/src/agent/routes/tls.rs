//! The server name that a TLS client asks for, read from its first bytes. Trusted only to choose a route.
//!
//! ```text
//! record    := 22 | version (2) | size (2) | part of a handshake message
//! handshake := 1 (client hello) | size (3) | version (2) | random (32) | session (1+) | suites (2+) | compression (1+)
//!              | extensions (2+)
//! extension := type (2) | size (2) | body            type 0: list (2+) of  0 | name (2+)
//! ```
//!
//! Reads nothing else, keeps nothing, and terminates nothing: the bytes go to the session unchanged.

use super::HELD_MAX;
use alloc::{string::String, vec::Vec};

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const RECORD_HEAD: usize = 5;
const MESSAGE_HEAD: usize = 4;
/// Maximum size of a record's body in bytes; a larger one is not TLS.
const RECORD_MAX: usize = 1 << 14;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;

/// The result of reading the first bytes of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sni {
    /// It asks for this server, in lower case.
    Name(String),
    /// It is TLS, without a server name.
    Nameless,
    /// It is not TLS, or invalid TLS.
    NotTls,
    /// The client hello is incomplete.
    More,
}

/// Reads the name of the server that a connection with these first bytes asks for. Only [`Sni::More`] changes with more bytes.
#[must_use]
pub fn server_name(first: &[u8]) -> Sni {
    let hello = match client_hello(first) {
        Ok(Some(hello)) => hello,
        Ok(None) => return Sni::More,
        Err(Strange) => return Sni::NotTls,
    };
    match name_in(&hello) {
        Ok(Some(name)) => Sni::Name(name),
        Ok(None) => Sni::Nameless,
        Err(Strange) => Sni::NotTls,
    }
}

/// The bytes are invalid.
struct Strange;

/// The body of the client hello, assembled from its records; none if a part has not arrived yet.
fn client_hello(mut first: &[u8]) -> Result<Option<Vec<u8>>, Strange> {
    let mut message = Vec::new();
    loop {
        // The part of a record's head that is here must be valid: do not wait for more of what is not TLS.
        let head = &first[..first.len().min(RECORD_HEAD)];
        let size = match head {
            [HANDSHAKE, 3, _, high, low] => usize::from(u16::from_be_bytes([*high, *low])),
            [] | [HANDSHAKE] | [HANDSHAKE, 3] | [HANDSHAKE, 3, _] | [HANDSHAKE, 3, _, _] => return Ok(None),
            _ => return Err(Strange),
        };
        if size == 0 || size > RECORD_MAX {
            return Err(Strange);
        }
        let rest = &first[RECORD_HEAD..];
        message.extend_from_slice(&rest[..rest.len().min(size)]);
        if let Some(whole) = whole(&message)? {
            message.truncate(whole);
            return Ok(Some(message.split_off(MESSAGE_HEAD)));
        }
        if rest.len() < size {
            return Ok(None);
        }
        first = &rest[size..];
    }
}

/// The size of the message, including its head, if all of it is here.
fn whole(message: &[u8]) -> Result<Option<usize>, Strange> {
    if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
        return Err(Strange);
    }
    let [_, a, b, c, ..] = message else { return Ok(None) };
    let whole = MESSAGE_HEAD + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c));
    if whole > HELD_MAX {
        // Exceeds what can be held.
        return Err(Strange);
    }
    Ok((message.len() >= whole).then_some(whole))
}

fn name_in(hello: &[u8]) -> Result<Option<String>, Strange> {
    let mut rest = Rest(hello);
    rest.take(2 + 32)?;
    rest.short_list()?;
    rest.list()?;
    rest.short_list()?;
    if rest.0.is_empty() {
        // An old client, without extensions.
        return Ok(None);
    }
    let mut extensions = Rest(rest.list()?);
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let body = extensions.list()?;
        if kind == SERVER_NAME {
            return host_name(Rest(body));
        }
    }
    Ok(None)
}

fn host_name(mut body: Rest<'_>) -> Result<Option<String>, Strange> {
    let mut names = Rest(body.list()?);
    while !names.0.is_empty() {
        let kind = names.take(1)?[0];
        let name = names.list()?;
        if kind == HOST_NAME {
            let name = core::str::from_utf8(name).map_err(|_| Strange)?;
            let name = name.strip_suffix('.').unwrap_or(name);
            return Ok((!name.is_empty()).then(|| name.to_ascii_lowercase()));
        }
    }
    Ok(None)
}

/// The unread bytes.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Strange> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Strange)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, Strange> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// A list after its two-byte size.
    fn list(&mut self) -> Result<&'a [u8], Strange> {
        let size = self.number()?;
        self.take(size.into())
    }

    /// A list after its one-byte size.
    fn short_list(&mut self) -> Result<&'a [u8], Strange> {
        let size = self.take(1)?[0];
        self.take(size.into())
    }
}
