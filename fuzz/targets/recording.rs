//! Any record file: what decodes must encode to a file that decodes to the same. Length and
//! checksums are made valid first, since no input would guess them.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use marram_wire::recording::Recording;

/// Bytes before the first section, and of a section before its payload.
const HEAD: usize = 16;
const SECTION_HEAD: usize = 25;

fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut file = data.to_vec();
    if file.len() < HEAD {
        return file;
    }
    let length = (file.len() - HEAD) as u64;
    file[8..HEAD].copy_from_slice(&length.to_le_bytes());
    let mut at = HEAD;
    while let Some(head) = file[at..].first_chunk::<9>() {
        let length = u64::from_le_bytes(head[1..].try_into().expect("8 bytes"));
        let end = usize::try_from(length).ok().and_then(|length| length.checked_add(at + SECTION_HEAD));
        let Some(end) = end.filter(|end| *end <= file.len()) else { return file };
        let mut hasher = blake3::Hasher::new();
        hasher.update(head).update(&file[at + SECTION_HEAD..end]);
        file[at + 9..at + SECTION_HEAD].copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        at = end;
    }
    file
}

fuzz_target!(|data: &[u8]| {
    let file = Bytes::from(with_checksums(data));
    if let Ok(recording) = Recording::decode(&file) {
        assert_eq!(Recording::decode(&recording.encode()), Ok(recording.clone()));
        let redacted = recording.redacted(&[1; 32]);
        assert_eq!(Recording::decode(&redacted.encode()), Ok(redacted));
    } else {
        let _ = Recording::decode(&Bytes::copy_from_slice(data)).map_err(|broken| broken.to_string());
    }
});
