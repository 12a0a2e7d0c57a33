//! An image file as a disk may return it: damaged anywhere, but authenticated with the directory's key. It is refused or
//! read, and never runs. A file that is not authenticated is never read.
#![no_main]

use std::{fs, path::Path, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use marram_sandbox::{Images, Quotas};
use marram_wire::id::ImageHash;

/// Magic and version, length, authentication code; then the compatibility of this engine, which no input would guess.
const VERSION_END: usize = 4 + 4;
const HEADER_SIZE: usize = VERSION_END + 8 + 32;
const COMPATIBILITY_SIZE: usize = 8;

/// Has the required exports and does nothing.
const MODULE: &[u8] = include_bytes!("../../seeds/module/smallest.wasm");

struct Store {
    images: Images,
    key: [u8; 32],
    /// The first bytes of every file: magic and version.
    beginning: [u8; VERSION_END],
    /// The first bytes after the header in every file of this engine.
    compatibility: Vec<u8>,
    /// An undamaged file.
    whole: Vec<u8>,
    hash: ImageHash,
}

static STORE: LazyLock<Store> = LazyLock::new(|| {
    // In memory: thousands of files a second are written.
    let folder = Path::new("/dev/shm/marram-fuzz-image");
    let images = Images::open(folder).expect("the folder can be written");
    let info = images.deploy(MODULE, &[], &Quotas::default()).expect("the module is a cell");
    let file = fs::read(images.image_path(info.hash)).expect("the image was written");
    let compatibility = file[HEADER_SIZE..HEADER_SIZE + COMPATIBILITY_SIZE].to_vec();
    let beginning = file[..VERSION_END].try_into().expect("as long");
    let key = fs::read(folder.join("key")).expect("the folder has a key").try_into().expect("32 bytes");
    Store { images, key, beginning, compatibility, whole: file, hash: info.hash }
});

fuzz_target!(|data: &[u8]| {
    let hash = ImageHash([7; 32]);
    let body = [&STORE.compatibility[..], &hash.0, data].concat();
    let mut hasher = blake3::Hasher::new_keyed(&STORE.key);
    hasher.update(&STORE.beginning[4..]).update(&body);
    let length = (body.len() as u64).to_le_bytes();
    let file = [&STORE.beginning[..], &length, hasher.finalize().as_bytes(), &body].concat();
    fs::write(STORE.images.image_path(hash), file).expect("the folder can be written");
    if let Ok(image) = STORE.images.load(hash) {
        assert_eq!(image.hash(), hash);
    }
    // One changed byte makes the image be built again, which takes time: only some inputs do it.
    let [at, .., change] = data else { return };
    if !change.is_multiple_of(16) {
        return;
    }
    let mut altered = STORE.whole.clone();
    let at = usize::from(*at) * altered.len() / 256;
    altered[at] ^= (*change).max(1);
    fs::write(STORE.images.image_path(STORE.hash), altered).expect("the folder can be written");
    let image = STORE.images.load(STORE.hash).expect("it is made again");
    assert!(image.rebuilt().is_some(), "byte {at} was changed");
});
