//! Any manifest: accepted, or refused with a printable error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_config::{manifest::Manifest, source::Source};

fuzz_target!(|text: &str| {
    if let Err(problem) = Manifest::parse(&Source::new("marram.toml", text.to_owned())) {
        assert!(problem.to_string().starts_with("marram.toml"));
    }
});
