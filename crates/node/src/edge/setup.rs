//! The messages between the supervisor and shard processes, as bodies of [`marram_transport::IpcChannel`] messages.
//!
//! ```text
//! to a shard   := 0 | setup, with where its log lines go   or   1 | marram_shard's ToShard   or   2 | TLS (1) | id of the gate or shard of this edge that it comes from, if any (1 or 17), with a descriptor
//! from a shard := 1 | marram_shard's FromShard   or   2 | number of the shard to which this wire leads (1), with a descriptor
//! ```
//!
//! Both sides are one program started from one file, so nothing is negotiated and anything else is a bug.
//!
//! Secrets travel here and not in arguments or the environment, which other processes of the user
//! can read. Strings that may not be UTF-8 (paths) are bytes.

use super::{
    EdgeOptions,
    recordings::{Recordings, Stops},
};
use crate::keys::{self, SigningKeyError};
use bytes::{BufMut, Bytes, BytesMut};
use marram_sandbox::Keyring;
use marram_shard::api::{FromShard, ToShard};
use marram_transport::{Credential, Identity, Security};
use marram_wire::{
    codec::{self, Field},
    id::HostId,
    record,
    rights::Rights,
};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path, time::Duration};

const SETUP: u8 = 0;
const CONTROL: u8 = 1;
const WIRE: u8 = 2;

record! {
    /// The first message to a shard process. It holds secrets, so it is only sent over a socket pair.
    Setup {
        /// The number of this shard.
        shard: u8,
        /// The number of shards.
        shards: u8,
        /// Key material of the domain.
        secret: Bytes,
        /// See [`Security::token`].
        token: Option<Bytes>,
        /// See [`Security::credentials`].
        credentials: Vec<SetupCredential>,
        /// See [`EdgeOptions::standby_token`].
        standby_token: Option<Bytes>,
        /// See [`Security::ca_pem`].
        ca: Option<Bytes>,
        /// The certificate chain in PEM; together with `key`.
        chain: Option<Bytes>,
        /// The private key in PEM.
        key: Option<Bytes>,
        /// See [`Security::insecure_plain`].
        insecure_plain: bool,
        /// The image cache.
        images: Bytes,
        /// The directory of recordings that an operator asked for.
        recordings: Bytes,
        /// Where recordings of stopped handlers are kept, if they are made.
        stops: Option<KeptStops>,
        /// Cells at a time.
        cells_max: u32,
        /// Private keys that cells may have it sign with, as PEM.
        keys: Vec<Bytes>,
        /// Edges that this edge is a standby of, `host:port` each.
        standby: Vec<String>,
        /// See [`EdgeOptions::standby_learns`].
        standby_learns: bool,
        /// How long a handshake may take, in milliseconds.
        handshake_ms: u64,
    }
}

record! {
    /// See [`Credential`].
    SetupCredential {
        /// The credential's name.
        name: String,
        /// The token, if there is one.
        token: Option<Bytes>,
        /// The certificate's name, if there is one.
        certificate: Option<String>,
        /// What it allows.
        rights: Rights,
    }
}

record! {
    /// See [`Stops`].
    KeptStops {
        /// The directory of the recordings.
        directory: Bytes,
        /// Most files.
        files_max: u32,
        /// Most bytes of all files.
        bytes_max: u64,
        /// Whether messages are left out.
        redact: bool,
        /// The arguments with which `marram replay` fetches the app.
        from: String,
    }
}

impl Setup {
    /// For one shard of this edge. `security` is complete: it has a certificate, from the configuration or made at start.
    pub(super) fn new(options: &EdgeOptions, security: &Security, shard: u8) -> Self {
        let bytes = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        Self {
            shard,
            shards: super::shards(options),
            secret: bytes(&options.secret),
            token: security.token.as_ref().map(|token| bytes(token.as_bytes())),
            credentials: security
                .credentials
                .iter()
                .map(|credential| SetupCredential {
                    name: credential.name.clone(),
                    token: credential.token.as_ref().map(|token| bytes(token.as_bytes())),
                    certificate: credential.certificate.clone(),
                    rights: credential.rights.clone(),
                })
                .collect(),
            standby_token: options.standby_token.as_ref().map(|token| bytes(token.as_bytes())),
            ca: security.ca_pem.as_deref().map(bytes),
            chain: security.identity.as_ref().map(|identity| bytes(&identity.chain_pem)),
            key: security.identity.as_ref().map(|identity| bytes(&identity.key_pem)),
            insecure_plain: security.insecure_plain,
            images: bytes(options.images.as_os_str().as_bytes()),
            recordings: bytes(options.recordings.as_os_str().as_bytes()),
            stops: options.stops.as_ref().map(|stops| KeptStops {
                directory: bytes(stops.directory.as_os_str().as_bytes()),
                files_max: stops.files_max,
                bytes_max: stops.bytes_max,
                redact: stops.redact,
                from: stops.from.clone(),
            }),
            cells_max: options.limits.cells_max,
            keys: options.keys.iter().map(|key| bytes(&key.pem)).collect(),
            standby: options.standby.clone(),
            standby_learns: options.standby_learns,
            handshake_ms: u64::try_from(options.limits.handshake.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// How wires are protected.
    pub(super) fn security(&self) -> Security {
        let identity =
            |(chain, key): (&Bytes, &Bytes)| Identity { chain_pem: chain.to_vec(), key_pem: key.to_vec() };
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let credential = |credential: &SetupCredential| Credential {
            name: credential.name.clone(),
            token: credential.token.as_ref().map(text),
            certificate: credential.certificate.clone(),
            rights: credential.rights.clone(),
        };
        Security {
            token: self.token.as_ref().map(text),
            credentials: self.credentials.iter().map(credential).collect(),
            identity_file: None,
            ca_pem: self.ca.as_ref().map(|ca| ca.to_vec()),
            identity: self.chain.as_ref().zip(self.key.as_ref()).map(identity),
            insecure_plain: self.insecure_plain,
        }
    }

    /// The security of wires to edges that it is a standby of.
    pub(super) fn standby_security(&self) -> Security {
        let security = self.security();
        let own = self.standby_token.as_ref().map(|token| String::from_utf8_lossy(token).into_owned());
        Security { token: own.or(security.token), ..security }
    }

    /// The keys that cells may sign with.
    ///
    /// # Errors
    /// Only if the two processes are of different builds: the configuration has read the same keys.
    pub(super) fn keyring(&self) -> Result<Keyring, SigningKeyError> {
        let mut keyring = Keyring::default();
        for pem in &self.keys {
            let (id, signer) = keys::read(pem)?;
            keyring.add(id, signer);
        }
        Ok(keyring)
    }

    /// The directory of images.
    pub(super) fn images(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.images))
    }

    /// Where recordings go.
    pub(super) fn recordings(&self) -> Recordings {
        let path = |bytes: &Bytes| Path::new(OsStr::from_bytes(bytes)).to_path_buf();
        let stops = self.stops.as_ref().map(|stops| Stops {
            directory: path(&stops.directory),
            files_max: stops.files_max,
            bytes_max: stops.bytes_max,
            redact: stops.redact,
            from: stops.from.clone(),
        });
        Recordings::new(path(&self.recordings), stops)
    }

    /// How long a handshake may take.
    pub(super) fn handshake(&self) -> Duration {
        Duration::from_millis(self.handshake_ms)
    }
}

/// A message from the supervisor to a shard process.
#[derive(Debug)]
pub(super) enum ToProcess {
    /// The first message.
    Setup(Box<Setup>),
    /// For the pure shard.
    Control(Box<ToShard>),
    /// A connection with an answered preamble, passed as a descriptor.
    /// Not an owned message: the descriptor is sent beside it, and may be lost if the receiver is
    /// out of descriptors.
    Wire {
        /// Whether a TLS handshake follows.
        tls: bool,
        /// The other side's id, if that is this edge's own gate, or another shard: then it need not authenticate.
        own: Option<HostId>,
    },
}

impl ToProcess {
    /// Encodes it.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Setup(setup) => {
                out.put_u8(SETUP);
                setup.put(&mut out);
            }
            Self::Control(message) => {
                out.put_u8(CONTROL);
                out.put_slice(&message.to_bytes());
            }
            Self::Wire { tls, own } => {
                out.put_u8(WIRE);
                tls.put(&mut out);
                own.put(&mut out);
            }
        }
        out.freeze()
    }

    /// Decodes a message.
    pub(super) fn decode(mut body: Bytes) -> Result<Self, codec::Error> {
        match u8::take(&mut body)? {
            SETUP => Setup::take(&mut body).map(|setup| Self::Setup(Box::new(setup))),
            CONTROL => ToShard::decode(body).map(|message| Self::Control(Box::new(message))),
            WIRE => Ok(Self::Wire { tls: bool::take(&mut body)?, own: Field::take(&mut body)? }),
            _ => Err(codec::Error::Unknown),
        }
    }
}

/// A message from a shard process to the supervisor.
#[derive(Debug)]
pub(super) enum FromProcess {
    /// For the control.
    Control(Box<FromShard>),
    /// One end of a socket pair, passed as a descriptor: the other one is the sending shard's wire to this shard of the edge.
    Wire {
        /// The shard.
        shard: u8,
    },
}

impl FromProcess {
    /// Encodes a message for the control.
    pub(super) fn control(message: &FromShard) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(CONTROL);
        out.put_slice(&message.to_bytes());
        out.freeze()
    }

    /// Encodes what comes beside one end of a wire to a shard.
    pub(super) fn wire(shard: u8) -> [u8; 2] {
        [WIRE, shard]
    }

    /// Decodes a message.
    pub(super) fn decode(mut body: Bytes) -> Result<Self, codec::Error> {
        match u8::take(&mut body)? {
            CONTROL => FromShard::decode(body).map(|message| Self::Control(Box::new(message))),
            WIRE => Ok(Self::Wire { shard: u8::take(&mut body)? }),
            _ => Err(codec::Error::Unknown),
        }
    }
}
