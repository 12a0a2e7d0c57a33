//! Encrypts and decrypts records: one implementation for any AEAD cipher with a nonce of 12 bytes and a tag of 16 bytes.
//!
//! ```text
//! plaintext   payload | type:1
//! sent        header:5 | encrypted(payload, type) | tag:16        nonce = iv XOR record number
//! ```
//!
//! RFC 8446, section 5.2. The library counts the records. A replay after a recovery counts the same
//! records, so it uses the same nonces for the same plaintext, which reveals nothing.

use aes_gcm::Aes128Gcm;
use aes_gcm::aead::{AeadInOut, KeyInit};
use chacha20poly1305::ChaCha20Poly1305;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, InboundPlainMessage, Iv, MessageDecrypter, MessageEncrypter, Nonce,
    OutboundOpaqueMessage, OutboundPlainMessage, PrefixedPayload, Tls13AeadAlgorithm,
    UnsupportedOperationError, make_tls13_aad,
};
use rustls::{ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion};
use std::marker::PhantomData;

/// In bytes, for both ciphers.
const TAG_LEN: usize = 16;

pub(super) static CHACHA20_POLY1305: Algorithm<ChaCha20Poly1305> =
    Algorithm { key_len: 32, cipher: PhantomData };
pub(super) static AES_128_GCM: Algorithm<Aes128Gcm> = Algorithm { key_len: 16, cipher: PhantomData };

/// A cipher by its name.
pub(super) struct Algorithm<C> {
    /// In bytes.
    key_len: usize,
    cipher: PhantomData<fn() -> C>,
}

/// A cipher from a crate.
pub(super) trait Cipher: KeyInit + Send + Sync + 'static {
    /// Encrypts in place.
    fn seal(&self, nonce: &Nonce, associated: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]>;
    /// Decrypts in place; false if it is not authentic.
    fn open(&self, nonce: &Nonce, associated: &[u8], text: &mut [u8], tag: [u8; TAG_LEN]) -> bool;
}

macro_rules! cipher {
    ($name:ty) => {
        impl Cipher for $name {
            fn seal(&self, nonce: &Nonce, associated: &[u8], text: &mut [u8]) -> Option<[u8; TAG_LEN]> {
                self.encrypt_inout_detached(&nonce.0.into(), associated, text.into()).ok().map(Into::into)
            }

            fn open(&self, nonce: &Nonce, associated: &[u8], text: &mut [u8], tag: [u8; TAG_LEN]) -> bool {
                self.decrypt_inout_detached(&nonce.0.into(), associated, text.into(), &tag.into()).is_ok()
            }
        }
    };
}

cipher!(ChaCha20Poly1305);
cipher!(Aes128Gcm);

impl<C: Cipher> Algorithm<C> {
    /// One direction of a connection, with its key.
    fn keyed(&self, key: &AeadKey, iv: Iv) -> Box<Keyed<C>> {
        let cipher = C::new_from_slice(key.as_ref()).expect("the library gives keys of `key_len` bytes");
        Box::new(Keyed { cipher, iv })
    }
}

impl<C: Cipher> Tls13AeadAlgorithm for Algorithm<C> {
    fn encrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageEncrypter> {
        self.keyed(&key, iv)
    }

    fn decrypter(&self, key: AeadKey, iv: Iv) -> Box<dyn MessageDecrypter> {
        self.keyed(&key, iv)
    }

    fn key_len(&self) -> usize {
        self.key_len
    }

    /// Keys do not leave the connection.
    fn extract_keys(&self, _: AeadKey, _: Iv) -> Result<ConnectionTrafficSecrets, UnsupportedOperationError> {
        Err(UnsupportedOperationError)
    }
}

/// One direction of a connection.
struct Keyed<C> {
    cipher: C,
    /// XORed with each record's number.
    iv: Iv,
}

impl<C: Cipher> MessageEncrypter for Keyed<C> {
    fn encrypt(
        &mut self,
        message: OutboundPlainMessage<'_>,
        number: u64,
    ) -> Result<OutboundOpaqueMessage, Error> {
        let len = self.encrypted_payload_len(message.payload.len());
        let mut payload = PrefixedPayload::with_capacity(len);
        payload.extend_from_chunks(&message.payload);
        payload.extend_from_slice(&message.typ.to_array());
        let nonce = Nonce::new(&self.iv, number);
        let tag =
            self.cipher.seal(&nonce, &make_tls13_aad(len), payload.as_mut()).ok_or(Error::EncryptError)?;
        payload.extend_from_slice(&tag);
        // Every TLS 1.3 record looks like application data of TLS 1.2.
        Ok(OutboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, payload))
    }

    /// Of the payload, its content type and the tag; the header is not counted.
    fn encrypted_payload_len(&self, len: usize) -> usize {
        len + 1 + TAG_LEN
    }
}

impl<C: Cipher> MessageDecrypter for Keyed<C> {
    fn decrypt<'a>(
        &mut self,
        mut message: InboundOpaqueMessage<'a>,
        number: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let len = message.payload.len();
        let Some((text, tag)) = message.payload.split_last_chunk_mut::<TAG_LEN>() else {
            return Err(Error::DecryptError);
        };
        let nonce = Nonce::new(&self.iv, number);
        if !self.cipher.open(&nonce, &make_tls13_aad(len), text, *tag) {
            return Err(Error::DecryptError);
        }
        message.payload.truncate(len - TAG_LEN);
        message.into_tls13_unpadded_message()
    }
}
