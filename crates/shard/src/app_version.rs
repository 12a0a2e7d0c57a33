//! A version of an app: its name and its image. Two apps may have one image, each with settings of its own.

use alloc::string::String;
use core::fmt;
use marram_wire::{id::ImageHash, record};

record! {
    /// What a session names for its life, and what an edge needs to run it: the settings are those of this app with this image.
    #[derive(PartialOrd, Ord)]
    AppVersion {
        /// The app's name.
        app: String,
        /// The image.
        image: ImageHash,
    }
}

impl fmt::Display for AppVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "image {} of `{}`", self.image, self.app)
    }
}
