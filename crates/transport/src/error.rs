//! Why a wire could not be connected or has ended, in words that help to fix it.

use super::preamble::PreambleAnswer;
use marram_wire::frame::ReadError;
use std::{fmt, io};

/// Why a wire ended. All but the first two are errors of configuration, of the peer or of load.
#[derive(Debug)]
pub enum WireError {
    /// The peer closed the wire.
    Closed,
    /// An error of the network or the operating system.
    Io(io::Error),
    /// The edge refused the connection, with this answer.
    Refused(PreambleAnswer),
    /// TLS negotiation failed or TLS was violated.
    Tls(rustls::Error),
    /// The edge does not know the agent's token.
    WrongToken,
    /// The agent's signature of this connection does not match the key that it presented.
    WrongSignature,
    /// At an edge: the agent presented no known credential.
    NoCredential(String),
    /// The peer uses another protocol.
    Garbage(&'static str),
    /// The peer sent an invalid frame.
    Frame(ReadError),
    /// The peer does not read what is sent to it.
    NotRead,
    /// The handshake took too long.
    Overdue,
    /// Too many other wires are in their handshake.
    TooMany,
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        // TLS errors are wrapped, because they occur during reads.
        match error.downcast::<rustls::Error>() {
            Ok(tls) => Self::Tls(tls),
            Err(error) => Self::Io(error),
        }
    }
}

impl From<rustls::Error> for WireError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

impl From<ReadError> for WireError {
    fn from(error: ReadError) -> Self {
        Self::Frame(error)
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the peer closed the connection"),
            Self::Io(error) => write!(f, "{error}"),
            Self::Refused(answer) => write!(f, "{answer}"),
            Self::Tls(error) => tls(error, f),
            Self::WrongToken => {
                f.write_str(
                    "agent and edge have different tokens: give the agent (`--token-file`, or `security.token_file`) one that the edge \
                     has (its `security.token_file`, or a [[credential]])",
                )
            }
            Self::WrongSignature => f.write_str(
                "the agent's signature does not match its key and this connection: it may claim another agent's id",
            ),
            Self::NoCredential(reason) => f.write_str(reason),
            Self::Garbage(what) => write!(
                f,
                "the peer does not use Marram's protocol: it sent {what}; compare the address with the edge's \
                 `listen` (the admin API and gates have other addresses)"
            ),
            Self::Frame(error) => write!(f, "{error}"),
            Self::NotRead => f.write_str("the peer does not read from the connection"),
            Self::Overdue => f.write_str("the handshake took too long"),
            Self::TooMany => {
                f.write_str("too many connections are in their handshake; try again")
            }
        }
    }
}

fn tls(error: &rustls::Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    use rustls::{AlertDescription, CertificateError, Error};
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => f.write_str(
            "the peer's certificate is not signed by the ca that is trusted here: compare the ca with the peer's certificate",
        ),
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => write!(
            f,
            "the edge's certificate does not contain the name that was dialled ({error}): add the name or address to \
             the certificate, or dial a name that it contains"
        ),
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => write!(
            f,
            "the peer's certificate has expired, by this machine's clock ({error}): give the peer a new one, or set the clock"
        ),
        Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => write!(
            f,
            "the peer's certificate is not valid yet, by this machine's clock ({error}): set the clock, of this machine or of \
             the one that made the certificate"
        ),
        Error::InvalidCertificate(why) => write!(f, "the peer's certificate was refused: {why}"),
        Error::NoCertificatesPresented => {
            f.write_str("the agent presented no certificate, and the edge requires one: give the agent certificate \
                and key")
        }
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            f.write_str("the edge requires a certificate: give this agent certificate and key")
        }
        Error::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate | AlertDescription::DecryptError) => f.write_str(
            "the peer does not trust this side's certificate: the `ca` that is configured at the peer must have \
             signed it",
        ),
        other => write!(f, "TLS: {other}"),
    }
}

impl std::error::Error for WireError {}
