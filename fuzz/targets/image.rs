//! An image file as a disk may give it back: damaged anywhere, and yet with the right checksum. It is refused or read,
//! and never runs.
#![no_main]

use std::{fs, path::Path, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use marram_sandbox::{Images, Quotas};
use marram_wire::id::ImageHash;

/// Magic, version, length, checksum; then the compatibility of this engine, which no input would guess.
const HEADER_SIZE: usize = 4 + 4 + 8 + 32;
const COMPATIBILITY_SIZE: usize = 8;

/// Exports what a cell must and does nothing.
const MODULE: &[u8] = include_bytes!("../seeds/module/smallest.wasm");

struct Store {
    images: Images,
    /// What every file of this engine begins with after its header.
    compatibility: Vec<u8>,
}

static STORE: LazyLock<Store> = LazyLock::new(|| {
    // In memory: thousands of files a second are written.
    let folder = Path::new("/dev/shm/marram-fuzz-image");
    let images = Images::open(folder).expect("the folder can be written");
    let info = images.deploy(MODULE, &[], &Quotas::default()).expect("the module is a cell");
    let file = fs::read(images.image_path(info.hash)).expect("the image was written");
    let compatibility = file[HEADER_SIZE..HEADER_SIZE + COMPATIBILITY_SIZE].to_vec();
    Store { images, compatibility }
});

fuzz_target!(|data: &[u8]| {
    let hash = ImageHash([7; 32]);
    let body = [&STORE.compatibility[..], &hash.0, data].concat();
    let checksum = blake3::hash(&body);
    let length = (body.len() as u64).to_le_bytes();
    let file = [&b"MRIM"[..], &1_u32.to_le_bytes(), &length, checksum.as_bytes(), &body].concat();
    fs::write(STORE.images.image_path(hash), file).expect("the folder can be written");
    if let Ok(image) = STORE.images.load(hash) {
        assert_eq!(image.hash(), hash);
    }
});
