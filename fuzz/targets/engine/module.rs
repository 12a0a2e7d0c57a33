//! Any deployed module: refused with a reason, or made into an image; never a panic of the host.
#![no_main]

use std::{path::Path, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use marram_sandbox::{Images, Quotas};

/// Initialisation that takes longer is refused.
const INITIALISE_MS_MAX: u64 = 20;

static IMAGES: LazyLock<Images> = LazyLock::new(|| {
    // In memory: thousands of files a second are written.
    let folder = Path::new("/dev/shm/marram-fuzz-module");
    Images::open(folder).expect("the folder can be written").with_initialise_ms_max(INITIALISE_MS_MAX)
});

fuzz_target!(|data: &[u8]| {
    let quotas = Quotas { memory_max: 1 << 20, ..Quotas::default() };
    if let Ok(info) = IMAGES.deploy(data, &[], &quotas) {
        IMAGES.load(info.hash).expect("what was deployed can be loaded");
        IMAGES.remove(info.hash).expect("and removed");
    }
});
