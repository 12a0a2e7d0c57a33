//! AES-256-GCM (NIST SP 800-38D) with a tag of 16 bytes, by the fastest library for the build target. The libraries are
//! compatible: one opens what another seals.

#[cfg(target_arch = "wasm32")]
pub(crate) use portable::Cipher;
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use quick::Cipher;

/// Bytes of a key.
pub(crate) const KEY: usize = 32;
/// Bytes of a nonce. No nonce is used twice with one key.
pub(crate) const NONCE: usize = 12;
/// Bytes of the tag after a ciphertext.
pub(crate) const TAG: usize = 16;

#[cfg(not(target_arch = "wasm32"))]
mod quick {
    use super::{KEY, NONCE, TAG};
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    pub(crate) struct Cipher(LessSafeKey);

    impl Cipher {
        pub(crate) fn new(key: &[u8; KEY]) -> Self {
            Self(LessSafeKey::new(
                UnboundKey::new(&AES_256_GCM, key).expect("it is as long as the cipher's keys"),
            ))
        }

        /// Encrypts a text in place and returns its tag.
        ///
        /// # Panics
        /// If the text is longer than the cipher's limit of 64 GiB.
        pub(crate) fn seal(&self, nonce: [u8; NONCE], text: &mut [u8]) -> [u8; TAG] {
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = self.0.seal_in_place_separate_tag(nonce, Aad::empty(), text).expect("it is short");
            tag.as_ref().try_into().expect("a tag has 16 bytes")
        }

        /// Decrypts a text in place, with its tag after it, and returns the length of the text. None if a bit was altered.
        pub(crate) fn open(&self, nonce: [u8; NONCE], sealed: &mut [u8]) -> Option<usize> {
            let nonce = Nonce::assume_unique_for_key(nonce);
            self.0.open_in_place(nonce, Aad::empty(), sealed).ok().map(|text| text.len())
        }
    }
}

// Tests compile both.
#[cfg(any(test, target_arch = "wasm32"))]
mod portable {
    use super::{KEY, NONCE, TAG};
    use aes_gcm::{AeadInOut, Aes256Gcm, KeyInit};

    pub(crate) struct Cipher(Aes256Gcm);

    impl Cipher {
        pub(crate) fn new(key: &[u8; KEY]) -> Self {
            Self(Aes256Gcm::new(&(*key).into()))
        }

        /// Encrypts a text in place and returns its tag.
        pub(crate) fn seal(&self, nonce: [u8; NONCE], text: &mut [u8]) -> [u8; TAG] {
            self.0.encrypt_inout_detached(&nonce.into(), &[], text.into()).expect("it is short").into()
        }

        /// Decrypts a text in place, with its tag after it, and returns the length of the text. None if a bit was altered.
        pub(crate) fn open(&self, nonce: [u8; NONCE], sealed: &mut [u8]) -> Option<usize> {
            let (text, tag) = sealed.split_last_chunk_mut::<TAG>()?;
            let (tag, len) = ((*tag).into(), text.len());
            self.0.decrypt_inout_detached(&nonce.into(), &[], text.into(), &tag).ok().map(|()| len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn sealed(text: &[u8], seal: impl FnOnce(&mut [u8]) -> [u8; TAG]) -> Vec<u8> {
        let mut sealed = text.to_vec();
        let tag = seal(&mut sealed);
        sealed.extend_from_slice(&tag);
        sealed
    }

    #[test]
    fn what_one_library_seals_the_other_opens() {
        let key = [7; KEY];
        let (quick, portable) = (quick::Cipher::new(&key), portable::Cipher::new(&key));
        for len in [0, 1, 15, 16, 17, 4_096, 70_001] {
            let text: Vec<u8> = (0..len).map(|at: u32| at.to_le_bytes()[0]).collect();
            let nonce = [u8::try_from(len % 251).expect("small"); NONCE];
            let one = sealed(&text, |text| quick.seal(nonce, text));
            assert_eq!(one, sealed(&text, |text| portable.seal(nonce, text)), "{len}");
            for open in
                [&|sealed: &mut [u8]| quick.open(nonce, sealed) as Option<usize>, &|sealed: &mut [u8]| {
                    portable.open(nonce, sealed)
                }] as [&dyn Fn(&mut [u8]) -> Option<usize>; 2]
            {
                let mut opened = one.clone();
                assert_eq!(open(&mut opened), Some(text.len()));
                assert_eq!(opened[..text.len()], text);
                for at in [0, one.len() / 2, one.len() - 1] {
                    let mut altered = one.clone();
                    altered[at] ^= 1;
                    assert_eq!(open(&mut altered), None, "{len}: {at}");
                }
                assert_eq!(open(&mut [0; TAG - 1]), None);
            }
        }
    }

    #[test]
    fn it_is_the_cipher_of_the_standard() {
        // NIST's GCM test vectors, 256 bits, test case 14: zeros throughout.
        let expected = [
            0xce, 0xa7, 0x40, 0x3d, 0x4d, 0x60, 0x6b, 0x6e, 0x07, 0x4e, 0xc5, 0xd3, 0xba, 0xf3, 0x9d,
            0x18, //
            0xd0, 0xd1, 0xc8, 0xa7, 0x99, 0x99, 0x6b, 0xf0, 0x26, 0x5b, 0x98, 0xb5, 0xd4, 0x8a, 0xb9, 0x19,
        ];
        let cipher = Cipher::new(&[0; KEY]);
        assert_eq!(sealed(&[0; 16], |text| cipher.seal([0; NONCE], text)), expected);
    }
}
