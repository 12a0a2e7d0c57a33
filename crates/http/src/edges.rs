//! How edges of a domain ask one another, as headers of HTTP. [`EdgeKey`] says what it is worth.
//!
//! ```text
//! GET /v1/images/ID                     ─▶
//! Authorization: Marram-Edge NONCE.MAC      Guard::admit ─▶ EdgeCaller
//!                                       ◀─
//!                                           200, Marram-Salt: SALT, the body sealed
//!                                           an error is not sealed: it makes the asking edge do nothing but ask elsewhere
//! ```

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{HeaderMap, Uri};
use marram_transport::random;
use marram_wire::edge_key::{EdgeKey, EdgeProof};
use marram_wire::id::{Hex, parse_hex};
use std::io;

/// Of the `Authorization` header (RFC 9110, 11.4).
const SCHEME: &str = "Marram-Edge ";
/// Names the salt of a sealed answer.
const SALT: HeaderName = HeaderName::from_static("marram-salt");

/// A request that another edge of the domain has made.
#[derive(Debug)]
pub struct EdgeCaller {
    key: EdgeKey,
    proof: EdgeProof,
}

impl EdgeCaller {
    /// Seals the body of a successful answer; the second value is the header to send with it.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn seal(&self, body: Bytes) -> io::Result<(Bytes, (HeaderName, HeaderValue))> {
        let salt = random()?;
        let sealed = self.key.seal_answer(&self.proof, salt, body.into());
        let salt = HeaderValue::from_str(&Hex(&salt).to_string()).map_err(io::Error::other)?;
        Ok((sealed.into(), (SALT, salt)))
    }
}

/// A request that this edge makes of another.
#[derive(Debug)]
pub struct EdgeRequest {
    key: EdgeKey,
    proof: EdgeProof,
}

impl EdgeRequest {
    /// A request for `target`: path and query.
    ///
    /// # Errors
    /// If the operating system has no random bytes.
    pub fn new(key: &EdgeKey, target: &str) -> io::Result<Self> {
        Ok(Self { key: key.clone(), proof: key.proof(random()?, target.as_bytes()) })
    }

    /// The value of its `Authorization` header.
    #[must_use]
    pub fn authorization(&self) -> String {
        format!("{SCHEME}{}", self.proof)
    }

    /// The body of the answer with these headers; `None` if no edge of the domain sealed it for this request.
    #[must_use]
    pub fn open(&self, headers: &HeaderMap, body: Bytes) -> Option<Bytes> {
        let salt = parse_hex(headers.get(SALT)?.to_str().ok()?)?;
        self.key.open_answer(&self.proof, salt, body.into()).ok().map(Bytes::from)
    }
}

/// Whether a request claims to be from an edge; and if so, whether it is from one of this domain.
pub(crate) fn caller(key: &EdgeKey, headers: &HeaderMap, uri: &Uri) -> Option<Option<EdgeCaller>> {
    let shown = headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix(SCHEME)?;
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let proof = EdgeProof::parse(shown).filter(|proof| key.verify(proof, target.as_bytes()));
    Some(proof.map(|proof| EdgeCaller { key: key.clone(), proof }))
}
