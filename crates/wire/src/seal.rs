//! Keys of a session, the seal on its log and checkpoints, and its running digest (docs/protocol.md, "Secrets").
//!
//! All keys are derived from one secret that the edges of a domain share. So an edge with an empty directory can open what any
//! other edge sealed, and can check a session's key without a request to others. Ends outside the domain hold only sealed bytes.
//!
//! - The **log** is encrypted with ChaCha20 under a separate key for each generation, at the log's own offset. An owner's log
//!   only grows, so no keystream byte is ever used for two texts, although a later owner may reorder what was not committed.
//! - The **running digest** is a keyed BLAKE3 over every entry and the message that it consumed; a long message is first reduced
//!   to 32 bytes by AEGIS-128X4 as a MAC (RFC 10032). Eight bytes of the digest travel with each increment. It makes the log
//!   authentic: a forger has one guess in 2^64 per recovery.
//! - A **checkpoint** is encrypted and authenticated with AES-256-GCM in chunks, under a separate key for each generation. The
//!   nonce contains the chunk's number and a mark on the last chunk.

use crate::{
    cipher::{Cipher, NONCE, TAG},
    id::{Generation, Hex, SessionId, parse_hex},
    limits::SEAL_CHUNK,
};
use aegis::aegis128x4::Aegis128X4Mac;
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use chacha20::{
    ChaCha20,
    cipher::{KeyIvInit, StreamCipher, StreamCipherSeek},
};
use core::fmt;

/// A payload of at least this many bytes goes into the running digest by its MAC.
const LONG: usize = 256;
/// Log offsets stay below what one keystream covers.
pub const LOG_OFFSET_MAX: u64 = 1 << 37;

/// The secret that the edges of one domain share. It opens every session of the domain.
#[derive(Clone)]
pub struct DomainSecret([u8; 32]);

impl DomainSecret {
    /// Derives the secret from key material of any length, such as a key file's contents.
    #[must_use]
    pub fn from_material(material: &[u8]) -> Self {
        Self(blake3::derive_key("marram 2026 domain secret", material))
    }

    /// Identifies the domain without revealing its secret: edges with the same fingerprint share it.
    #[must_use]
    pub fn fingerprint(&self) -> [u8; 8] {
        let hash = blake3::derive_key("marram 2026 domain name", &self.0);
        core::array::from_fn(|index| hash[index])
    }

    /// A key for one purpose. It reveals neither the secret nor another purpose's key.
    pub(crate) fn key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}

impl fmt::Debug for DomainSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DomainSecret")
    }
}

/// The key with which a keeper proves that it belongs to the domain. A keeper that has it receives messages in the clear; it
/// gives no other access.
#[derive(Clone)]
pub struct KeeperKey([u8; 32]);

impl KeeperKey {
    /// Derives the domain's key.
    #[must_use]
    pub fn derive(secret: &DomainSecret) -> Self {
        Self(secret.key("marram 2026 keeper"))
    }

    /// The key as the text of a file: 64 hexadecimal digits. It is a secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        Hex(&self.0).to_string()
    }

    /// Reads what [`Self::to_text`] writes.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        parse_hex(text).map(Self)
    }

    /// Proves knowledge of the key on a wire with this challenge, under this name.
    #[must_use]
    pub fn proof(&self, challenge: &[u8; 16], name: &str) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(challenge).update(name.as_bytes());
        let mut proof = [0; 16];
        proof.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        proof
    }
}

impl fmt::Debug for KeeperKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeeperKey")
    }
}

/// The keys of one session.
#[derive(Clone)]
pub struct SessionKeys {
    resume: [u8; 16],
    digest: [u8; 32],
    payload: [u8; 16],
    log: [u8; 32],
    checkpoint: [u8; 32],
}

impl fmt::Debug for SessionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKeys")
    }
}

impl SessionKeys {
    /// The keys of `session` in the domain of `secret`.
    #[must_use]
    pub fn derive(secret: &DomainSecret, session: SessionId) -> Self {
        let key = |purpose: u8| {
            let mut hasher = blake3::Hasher::new_keyed(&secret.0);
            hasher.update(&[purpose]).update(&session.0);
            *hasher.finalize().as_bytes()
        };
        let short = |purpose: u8| {
            let mut short = [0; 16];
            short.copy_from_slice(&key(purpose)[..16]);
            short
        };
        Self { resume: short(0), digest: key(1), log: key(2), checkpoint: key(3), payload: short(4) }
    }

    /// The session's key, as its ends know it: required to resume the session.
    #[must_use]
    pub fn resume(&self) -> [u8; 16] {
        self.resume
    }

    /// The key of the digests that replace messages in a redacted record.
    #[must_use]
    pub fn redaction(&self) -> [u8; 32] {
        blake3::derive_key("marram 2026 redaction", &self.digest)
    }

    /// The seal of one generation.
    #[must_use]
    pub fn seal(&self, generation: Generation) -> Seal {
        let key = |purpose: &[u8; 32]| {
            let mut hasher = blake3::Hasher::new_keyed(purpose);
            hasher.update(&generation.count.to_le_bytes()).update(&generation.opener.to_le_bytes());
            *hasher.finalize().as_bytes()
        };
        Seal { log: key(&self.log), checkpoint: key(&self.checkpoint) }
    }
}

/// Proves knowledge of a session's key on a wire with this challenge.
#[must_use]
pub fn proof(resume: &[u8; 16], challenge: &[u8; 16], session: SessionId) -> [u8; 16] {
    let key = blake3::derive_key("marram 2026 resumption proof", resume);
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(challenge).update(&session.0);
    let mut proof = [0; 16];
    proof.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    proof
}

/// Compares two proofs in time that does not depend on where they differ.
#[must_use]
pub fn same(a: &[u8; 16], b: &[u8; 16]) -> bool {
    a.iter().zip(b).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0
}

/// The running digest of a session: covers every log entry and every consumed message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub [u8; 32]);

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest")
    }
}

impl Digest {
    /// The digest of a session that has consumed nothing.
    #[must_use]
    pub fn start(session: SessionId) -> Self {
        let mut head = [0; 32];
        head[..16].copy_from_slice(&session.0);
        Self(head)
    }

    /// Adds one encoded entry and the message that it consumed, if any.
    pub fn absorb(&mut self, keys: &SessionKeys, entry: &[u8], message: Option<(bool, &[u8])>) {
        let (what, payload) = message.map_or((0, &[][..]), |(close, payload)| (1 + u8::from(close), payload));
        let mut hasher = blake3::Hasher::new_keyed(&keys.digest);
        if payload.len() < LONG {
            hasher.update(payload);
        } else {
            let mut nonce = [0; 16];
            nonce.copy_from_slice(&self.0[..16]);
            let mut mac = Aegis128X4Mac::<32>::new_with_nonce(&keys.payload, &nonce);
            mac.update(payload);
            hasher.update(&mac.finalize());
        }
        // The size has a fixed width. It shows whether the payload or its MAC was hashed, and where it ends.
        hasher.update(&self.0).update(entry);
        hasher.update(&(payload.len() as u64).to_le_bytes()).update(&[what]);
        self.0 = *hasher.finalize().as_bytes();
    }

    /// The part of the digest that travels with an increment.
    #[must_use]
    pub fn tag(&self) -> [u8; 8] {
        let mut tag = [0; 8];
        tag.copy_from_slice(&self.0[..8]);
        tag
    }
}

/// Why a sealed checkpoint was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealError;

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the checkpoint was altered, or sealed for another session or domain")
    }
}

impl core::error::Error for SealError {}

/// Seals the log and the checkpoints of one generation.
#[derive(Clone)]
pub struct Seal {
    log: [u8; 32],
    checkpoint: [u8; 32],
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

impl Seal {
    /// Encrypts or decrypts log bytes that begin at `offset`.
    ///
    /// # Panics
    /// If `offset` is [`LOG_OFFSET_MAX`] or more; callers check offsets that come from a peer.
    pub fn log(&self, offset: u64, bytes: &mut [u8]) {
        assert!(offset < LOG_OFFSET_MAX, "log offset {offset} is beyond one keystream");
        let mut cipher = ChaCha20::new(&self.log.into(), &[0; 12].into());
        cipher.seek(offset);
        cipher.apply_keystream(bytes);
    }

    fn nonce(number: u32, chunk: usize, last: bool) -> [u8; NONCE] {
        let mut nonce = [0; NONCE];
        nonce[..4].copy_from_slice(&number.to_le_bytes());
        nonce[4..11].copy_from_slice(&(chunk as u64).to_le_bytes()[..7]);
        nonce[11] = u8::from(last);
        nonce
    }

    /// Seals a checkpoint, in its own buffer, which moves unless it has room for [`sealed_size`] bytes. `number` must be
    /// unique within the generation.
    #[must_use]
    pub fn seal_checkpoint(&self, number: u32, mut plain: Vec<u8>) -> Vec<u8> {
        let cipher = Cipher::new(&self.checkpoint);
        let plain_len = plain.len();
        let chunks = plain_len.div_ceil(SEAL_CHUNK).max(1);
        plain.resize(sealed_size(plain_len), 0);
        // From the last one: each moves towards the end, over what was moved before.
        for chunk in (0..chunks).rev() {
            let from = chunk * SEAL_CHUNK;
            let text = from..plain_len.min(from + SEAL_CHUNK);
            let (start, len) = (from + chunk * TAG, text.len());
            plain.copy_within(text, start);
            let nonce = Self::nonce(number, chunk, chunk + 1 == chunks);
            let tag = cipher.seal(nonce, &mut plain[start..start + len]);
            plain[start + len..start + len + TAG].copy_from_slice(&tag);
        }
        plain
    }

    /// Opens a sealed checkpoint.
    ///
    /// # Errors
    /// If a bit differs from what [`Self::seal_checkpoint`] made with this key and number.
    pub fn open_checkpoint(&self, number: u32, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut plain = Vec::with_capacity(sealed.len());
        let mut opener = self.opener(number, sealed.len() as u64);
        opener.push(sealed, |text| plain.extend_from_slice(&text))?;
        opener.finish()?;
        Ok(plain)
    }

    /// Opens a sealed checkpoint of `size` bytes as it arrives.
    #[must_use]
    pub fn opener(&self, number: u32, size: u64) -> Opener {
        let cipher = Cipher::new(&self.checkpoint);
        Opener { cipher, number, missing: size, chunk: 0, buffer: Vec::new(), refused: false }
    }
}

/// Bytes of a sealed checkpoint of so many bytes.
#[must_use]
pub const fn sealed_size(plain: usize) -> usize {
    let chunks = plain.div_ceil(SEAL_CHUNK);
    plain + TAG * if chunks == 0 { 1 } else { chunks }
}

/// Opens a sealed checkpoint chunk by chunk as it arrives. Each returned chunk is verified: it was sealed for this checkpoint and
/// this position. Only [`Opener::finish`] verifies that no chunk is missing at the end.
pub struct Opener {
    cipher: Cipher,
    number: u32,
    /// Sealed bytes that are still to come.
    missing: u64,
    /// Chunks opened.
    chunk: usize,
    /// The received bytes of the next chunk.
    buffer: Vec<u8>,
    refused: bool,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("missing", &self.missing).finish_non_exhaustive()
    }
}

impl Opener {
    /// Adds the next bytes; `text` gets the text of each complete, verified chunk, in order.
    ///
    /// # Errors
    /// If the bytes are not what was sealed, or too many. All later calls fail too.
    pub fn push(&mut self, mut sealed: &[u8], mut text: impl FnMut(Vec<u8>)) -> Result<(), SealError> {
        while !sealed.is_empty() && !self.refused {
            let room = SEAL_CHUNK + TAG - self.buffer.len();
            let (now, later) = sealed.split_at(sealed.len().min(room));
            // Counts as refused until it is verified.
            self.refused = true;
            let missing = self.missing.checked_sub(now.len() as u64).ok_or(SealError)?;
            if self.buffer.is_empty() {
                let size = usize::try_from(self.missing).unwrap_or(usize::MAX).min(SEAL_CHUNK + TAG);
                self.buffer.reserve_exact(size);
            }
            self.missing = missing;
            self.buffer.extend_from_slice(now);
            sealed = later;
            if now.len() == room || missing == 0 {
                text(self.open_chunk()?);
            }
            self.refused = false;
        }
        if self.refused { Err(SealError) } else { Ok(()) }
    }

    /// Whether all bytes have arrived.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    fn open_chunk(&mut self) -> Result<Vec<u8>, SealError> {
        let nonce = Seal::nonce(self.number, self.chunk, self.missing == 0);
        let mut chunk = core::mem::take(&mut self.buffer);
        let len = self.cipher.open(nonce, &mut chunk).ok_or(SealError)?;
        chunk.truncate(len);
        self.chunk += 1;
        Ok(chunk)
    }

    /// Whether the returned chunks are the whole text.
    ///
    /// # Errors
    /// If a chunk was refused, or has not arrived.
    pub fn finish(self) -> Result<(), SealError> {
        if self.missing == 0 && self.chunk > 0 && !self.refused { Ok(()) } else { Err(SealError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn keys() -> SessionKeys {
        SessionKeys::derive(&DomainSecret::from_material(b"test"), SessionId([1; 16]))
    }

    #[test]
    fn a_domain_is_named_by_its_secret_alone() {
        let name = |material: &[u8]| DomainSecret::from_material(material).fingerprint();
        assert_eq!(name(b"one"), name(b"one"));
        assert_ne!(name(b"one"), name(b"two"));
        let secret = DomainSecret::from_material(b"one");
        assert_ne!(secret.fingerprint()[..], secret.0[..8], "the name does not tell of the secret");
    }

    #[test]
    fn a_keeper_key_is_written_and_read_without_the_secret() {
        let secret = DomainSecret::from_material(b"one");
        let key = KeeperKey::derive(&secret);
        let text = key.to_text();
        assert_eq!(text.len(), 64);
        let read = KeeperKey::from_text(&text).expect("it is a key");
        assert_eq!(read.proof(&[1; 16], "a"), key.proof(&[1; 16], "a"));
        assert!(KeeperKey::from_text(&text[1..]).is_none() && KeeperKey::from_text("").is_none());
        assert_ne!(key.0, secret.0, "it tells nothing of the secret");
    }

    #[test]
    fn a_log_is_opened_at_any_offset() {
        let seal = keys().seal(Generation { count: 1, opener: 2 });
        let plain: Vec<u8> = (0..=255).collect();
        let mut sealed = plain.clone();
        seal.log(1_000, &mut sealed);
        let mut part = sealed[70..].to_vec();
        seal.log(1_070, &mut part);
        assert_eq!(part, plain[70..]);
        let mut other = sealed;
        keys().seal(Generation { count: 1, opener: 3 }).log(1_000, &mut other);
        assert_ne!(other, plain);
    }

    #[test]
    fn a_checkpoint_is_opened_only_unaltered() {
        let seal = keys().seal(Generation { count: 1, opener: 2 });
        for len in [0, 1, SEAL_CHUNK - 1, SEAL_CHUNK, SEAL_CHUNK + 1, 3 * SEAL_CHUNK] {
            let plain = vec![7; len];
            let sealed = seal.seal_checkpoint(4, plain.clone());
            assert_eq!(seal.open_checkpoint(4, &sealed), Ok(plain));
            assert_eq!(seal.open_checkpoint(5, &sealed), Err(SealError));
            for position in [0, sealed.len() / 2, sealed.len() - 1] {
                let mut altered = sealed.clone();
                altered[position] ^= 1;
                assert_eq!(seal.open_checkpoint(4, &altered), Err(SealError));
            }
            // Without whole chunks at its end, the checkpoint is refused because of the last chunk's mark.
            let cut = sealed.len().saturating_sub(SEAL_CHUNK + TAG);
            assert_eq!(seal.open_checkpoint(4, &sealed[..cut]), Err(SealError));
        }
    }

    #[test]
    fn a_checkpoint_is_opened_as_it_arrives() {
        let seal = keys().seal(Generation { count: 1, opener: 2 });
        let plain: Vec<u8> = (0..2 * SEAL_CHUNK + 100).map(|at| at.to_le_bytes()[0]).collect();
        let sealed = seal.seal_checkpoint(4, plain.clone());
        let opener = || seal.opener(4, sealed.len() as u64);
        for piece in [1_000, TAG, SEAL_CHUNK, SEAL_CHUNK + TAG, sealed.len()] {
            let (mut whole, mut given) = (opener(), Vec::new());
            for bytes in sealed.chunks(piece) {
                assert_eq!(whole.push(bytes, |text| given.extend_from_slice(&text)), Ok(()));
            }
            assert_eq!((whole.finish(), &given), (Ok(()), &plain), "pieces of {piece}");
        }
        for len in [0, 1, SEAL_CHUNK + TAG, sealed.len() - 1] {
            let mut short = opener();
            assert_eq!(short.push(&sealed[..len], |_| ()), Ok(()));
            assert_eq!(short.finish(), Err(SealError), "only {len} bytes");
        }
        // A refused chunk is not returned, nor is what follows it.
        for at in [SEAL_CHUNK, SEAL_CHUNK + TAG, sealed.len() - 1] {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            let (mut refused, mut given) = (opener(), Vec::new());
            assert_eq!(refused.push(&altered, |text| given.extend_from_slice(&text)), Err(SealError));
            let before = at / (SEAL_CHUNK + TAG) * SEAL_CHUNK;
            assert_eq!(given, plain[..before]);
            assert_eq!(refused.push(&[], |_| panic!("nothing is to be given out")), Err(SealError));
            assert_eq!(refused.push(&sealed, |_| panic!("nothing is to be given out")), Err(SealError));
            assert_eq!(refused.finish(), Err(SealError));
        }
        let mut more = opener();
        assert_eq!(more.push(&sealed, |_| ()), Ok(()));
        assert_eq!(more.push(&[0], |_| ()), Err(SealError));
        assert_eq!(more.finish(), Err(SealError));
    }

    #[test]
    fn the_digest_depends_on_order_and_content() {
        let keys = keys();
        let digest = |inputs: &[&[u8]]| {
            let mut digest = Digest::start(SessionId([1; 16]));
            inputs.iter().for_each(|payload| digest.absorb(&keys, &[0], Some((false, payload))));
            digest.tag()
        };
        assert_eq!(digest(&[b"a", b"b"]), digest(&[b"a", b"b"]));
        assert_ne!(digest(&[b"a", b"b"]), digest(&[b"b", b"a"]));
        assert_ne!(digest(&[b"ab"]), digest(&[b"a", b"b"]));
    }

    #[test]
    fn the_digest_distinguishes_inputs_with_the_same_concatenation() {
        let keys = keys();
        let start = Digest::start(SessionId([1; 16]));
        let digest = |entry: &[u8], message: Option<(bool, &[u8])>| {
            let mut digest = start;
            digest.absorb(&keys, entry, message);
            digest.tag()
        };
        // The same bytes in the same order, but with another boundary between message and entry.
        let row: Vec<u8> = start.0.iter().copied().chain([0]).collect();
        let [first, second] = [[&b"x"[..], &row].concat(), [&row[..], &row].concat()];
        let digests = [
            digest(&[0], None),
            digest(&[0], Some((false, b""))),
            digest(&[0], Some((true, b""))),
            digest(&[0], Some((false, b"x"))),
            digest(&[0], Some((false, &first))),
            digest(&row, Some((false, b"x"))),
            digest(&row, None),
            digest(&[0], Some((false, &second))),
        ];
        for (index, one) in digests.iter().enumerate() {
            assert!(!digests[index + 1..].contains(one), "{index}");
        }
    }

    #[test]
    fn the_digest_covers_every_byte_of_short_and_long_messages() {
        let keys = keys();
        let digest = |payload: &[u8]| {
            let mut digest = Digest::start(SessionId([1; 16]));
            digest.absorb(&keys, &[0], Some((false, payload)));
            digest.0
        };
        for len in [1, LONG - 1, LONG, LONG + 1, 5_000] {
            let plain: Vec<u8> = (0..len).map(|at| at.to_le_bytes()[0]).collect();
            let right = digest(&plain);
            for position in 0..len {
                let mut altered = plain.clone();
                altered[position] ^= 0x80;
                assert_ne!(digest(&altered), right, "byte {position} of {len}");
            }
            assert_ne!(digest(&[&plain[..], &[0]].concat()), right);
            assert_ne!(digest(&plain[1..]), right);
        }
    }

    #[test]
    fn the_digest_is_the_same_on_every_machine() {
        let keys = keys();
        let mut digest = Digest::start(SessionId([1; 16]));
        let tags = [0, 100, LONG, 5_000].map(|len| {
            digest.absorb(&keys, &[0], Some((false, &vec![7; len])));
            u64::from_le_bytes(digest.tag())
        });
        assert_eq!(
            tags,
            [13608777261928935885, 16293418982150941853, 17914958590899072146, 18084260691706412622]
        );
    }
}
