//! The body of `POST /v1/apps`: encoding a decoded body gives the same bytes, and no part is larger than the body. A
//! truncated body is refused, or has fewer parts.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_admin::body::Upload;

fuzz_target!(|data: &[u8]| {
    let Ok(upload) = Upload::decode(data.to_vec().into()) else { return };
    assert_eq!(upload.encode().expect("it is no larger than it was"), data);
    let bytes: usize = upload.parts.iter().map(|part| part.len()).sum();
    assert!(bytes + upload.manifest.len() < data.len());
    let cut = usize::from(data[data.len() / 2]) * data.len() / 256;
    if let Ok(shorter) = Upload::decode(data[..cut].to_vec().into()) {
        assert!(shorter.manifest == upload.manifest && upload.parts.starts_with(&shorter.parts));
        assert!(shorter.parts.len() < upload.parts.len());
    }
});
