//! The body of `POST /v1/apps`: manifest and module in one, each behind its length.
//!
//! ```text
//! +-------------+----------+-------------+--------+
//! | len: u32 LE | manifest | len: u32 LE | module |
//! +-------------+----------+-------------+--------+
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of a whole body.
pub const SIZE_MAX: usize = 320 << 20;

/// An app on its way to an edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// The manifest's text.
    pub manifest: String,
    /// The module's bytes.
    pub module: Bytes,
}

impl Upload {
    /// The body to send.
    ///
    /// # Errors
    /// If it is larger than an edge takes.
    pub fn encode(&self) -> Result<Bytes, String> {
        let size = 8 + self.manifest.len() + self.module.len();
        if size > SIZE_MAX {
            return Err(format!("the app has {size} bytes; an edge takes at most {SIZE_MAX}"));
        }
        let mut out = BytesMut::with_capacity(size);
        for part in [self.manifest.as_bytes(), &self.module] {
            out.put_u32_le(u32::try_from(part.len()).expect("SIZE_MAX fits in 32 bits"));
            out.put_slice(part);
        }
        Ok(out.freeze())
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it is cut short, has a tail, or its manifest is no text.
    pub fn decode(mut body: Bytes) -> Result<Self, &'static str> {
        let manifest = part(&mut body).ok_or("the body ends within the manifest")?;
        let module = part(&mut body).ok_or("the body ends within the module")?;
        if !body.is_empty() {
            return Err("there are bytes behind the module");
        }
        let manifest = String::from_utf8(manifest.to_vec()).map_err(|_| "the manifest is not UTF-8")?;
        Ok(Self { manifest, module })
    }
}

fn part(body: &mut Bytes) -> Option<Bytes> {
    let len = body.try_get_u32_le().ok()? as usize;
    (len <= body.len()).then(|| body.split_to(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_survives_and_a_damaged_one_is_refused() {
        let upload = Upload { manifest: "name = \"a\"".into(), module: Bytes::from_static(b"\0asm") };
        let body = upload.encode().unwrap();
        assert_eq!(Upload::decode(body.clone()), Ok(upload));
        for len in 0..body.len() {
            assert!(Upload::decode(body.slice(..len)).is_err(), "{len} bytes");
        }
        assert!(Upload::decode([&body[..], b"x"].concat().into()).is_err());
    }
}
