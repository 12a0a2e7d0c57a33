//! The body of `POST /v1/apps`: manifest, module and the files that the manifest names, in its order, each behind its
//! length.
//!
//! ```text
//! +-------------+----------+-------------+--------+   +-------------+------+
//! | len: u32 LE | manifest | len: u32 LE | module | ( | len: u32 LE | file | )*
//! +-------------+----------+-------------+--------+   +-------------+------+
//! ```

use crate::config::source::TEXT_BYTES_MAX;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use marram_sandbox::limits::{IMAGE_FILES_BYTES_MAX, IMAGE_FILES_MAX, MODULE_BYTES_MAX};

/// Bytes of a whole body. An app as one edge gives it to another is as large: its files' paths are in the manifest.
pub const SIZE_MAX: usize = 384 << 20;

const _: () = assert!(
    SIZE_MAX >= MODULE_BYTES_MAX + IMAGE_FILES_BYTES_MAX + 4 * IMAGE_FILES_MAX + 2 * TEXT_BYTES_MAX as usize,
    "the largest app fits"
);

/// An app on its way to an edge.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Upload {
    /// The manifest's text.
    pub manifest: String,
    /// The module's bytes.
    pub module: Bytes,
    /// The contents of the files that the manifest names, in its order.
    pub files: Vec<Bytes>,
}

impl Upload {
    /// The body to send.
    ///
    /// # Errors
    /// If it is larger than an edge takes.
    pub fn encode(&self) -> Result<Bytes, String> {
        let parts =
            || [self.manifest.as_bytes(), &self.module].into_iter().chain(self.files.iter().map(|f| &f[..]));
        let size = parts().map(|part| 4 + part.len()).sum();
        if size > SIZE_MAX {
            return Err(format!("the app has {size} bytes; an edge takes at most {SIZE_MAX}"));
        }
        let mut out = BytesMut::with_capacity(size);
        for part in parts() {
            out.put_u32_le(u32::try_from(part.len()).expect("SIZE_MAX fits in 32 bits"));
            out.put_slice(part);
        }
        Ok(out.freeze())
    }

    /// Reads a body.
    ///
    /// # Errors
    /// If it is cut short, has more files than an app can have, or its manifest is no text. Whether they are as many as the
    /// manifest names is not known here.
    pub fn decode(mut body: Bytes) -> Result<Self, &'static str> {
        let manifest = part(&mut body).ok_or("the body ends within the manifest")?;
        let module = part(&mut body).ok_or("the body ends within the module")?;
        let mut files = Vec::new();
        while !body.is_empty() {
            if files.len() == IMAGE_FILES_MAX {
                return Err("there are more files than an app can have");
            }
            files.push(part(&mut body).ok_or("the body ends within a file")?);
        }
        let manifest = String::from_utf8(manifest.to_vec()).map_err(|_| "the manifest is not UTF-8")?;
        Ok(Self { manifest, module, files })
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
        let upload = |files: &[&'static [u8]]| Upload {
            manifest: "name = \"a\"".into(),
            module: Bytes::from_static(b"\0asm"),
            files: files.iter().copied().map(Bytes::from_static).collect(),
        };
        for (files, without_last) in [(&[][..], None), (&[&b"one"[..], b""], Some(&[&b"one"[..]]))] {
            let body = upload(files).encode().unwrap();
            assert_eq!(Upload::decode(body.clone()), Ok(upload(files)));
            let cut: Vec<_> =
                (0..body.len()).filter_map(|len| Upload::decode(body.slice(..len)).ok()).collect();
            // Cut between two files, it is an upload of fewer, which the manifest betrays.
            let fewer: Vec<_> =
                without_last.map(|files| [upload(&[]), upload(files)]).into_iter().flatten().collect();
            assert_eq!(cut, fewer);
            assert!(Upload::decode([&body[..], b"x"].concat().into()).is_err());
        }
        let many = vec![&b""[..]; IMAGE_FILES_MAX + 1];
        assert!(Upload::decode(upload(&many).encode().unwrap()).is_err());
    }
}
