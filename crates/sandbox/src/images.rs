//! Keeps apps and their images in a directory, named by content. What is read back is checked before it is used. An
//! image that cannot be used is made again from its app.
//!
//! ```text
//! module, files, keys, quotas --App--> <hash>.app --deploy--> <hash>.image --Cells--> slots
//! stages' hashes ------------Chain---> <hash>.chain
//! ```
//! Apps and chains are the originals: other edges fetch them from here, and their digest proves
//! them. An image is a cache of the compiler's work, valid on this machine only, and any fault in
//! it is repaired by compiling again.
//!
//! This module does not know which images are in use; the shard removes those that no session
//! names.

use crate::app::{App, AppParts, ImageFile, hash_of};
use crate::chain::{self, Chain, Image, Stage};
use crate::deploy::{self, DeployError};
use crate::image::{ImageFault, ImageInfo, StageImage};
use crate::image_dir::{ImageWriteError, sweep, write_whole};
use crate::image_key::{self, ImageKey};
use crate::keys::KeyId;
use crate::limits::INITIALISE_MS_MAX;
use crate::quotas::Quotas;
use marram_wire::id::ImageHash;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The apps and images of one machine. Several processes may use one directory at once: files appear whole or not at
/// all, and the same name always means the same bytes.
#[derive(Debug)]
pub struct Images {
    /// Private to this user: see `image_key`.
    dir: PathBuf,
    /// Milliseconds for the start function and `_initialize` together.
    initialise_ms_max: u64,
    /// The engine version and settings that loadable code must have.
    compatibility: u64,
    /// Authenticates compiled code that was made here.
    key: ImageKey,
}

impl Images {
    /// Uses `dir`, and creates it if it is missing. From then on no other user can access it, and compiled code in it runs only
    /// if it was written with the key in that directory.
    ///
    /// # Errors
    /// If the directory cannot be created, another user owns it, or the machine cannot run the engine.
    pub fn open(dir: &Path) -> Result<Self, DeployError> {
        let key = image_key::private(dir).and_then(|()| ImageKey::of(dir));
        let key = key.map_err(|error| DeployError::Store(ImageWriteError::new(dir, &error)))?;
        let compatibility = deploy::base_compatibility()?;
        sweep(dir);
        Ok(Self { dir: dir.into(), initialise_ms_max: INITIALISE_MS_MAX, compatibility, key })
    }

    /// Bounds initialisation to `ms` milliseconds instead of [`INITIALISE_MS_MAX`].
    #[must_use]
    pub fn with_initialise_ms_max(mut self, ms: u64) -> Self {
        self.initialise_ms_max = ms;
        self
    }

    /// Makes an app's image and stores both. If the app is already stored, this costs only a read.
    ///
    /// # Errors
    /// With the reason and the fix, if the module cannot be an app or the disk is full.
    pub fn deploy(
        &self,
        module: &[u8],
        files: &[ImageFile],
        quotas: &Quotas,
    ) -> Result<ImageInfo, DeployError> {
        self.deploy_with_keys(module, files, &[], quotas)
    }

    /// As [`Self::deploy`], for an app that asks the host to sign with keys. This machine need not have the keys, but each
    /// machine that starts cells must.
    ///
    /// # Errors
    /// As above.
    pub fn deploy_with_keys(
        &self,
        module: &[u8],
        files: &[ImageFile],
        keys: &[KeyId],
        quotas: &Quotas,
    ) -> Result<ImageInfo, DeployError> {
        self.deploy_app(&AppParts { module, files, keys, quotas, slots: 0, servers: &[] })
    }

    /// As [`Self::deploy_with_keys`], with everything that an app may be made of.
    ///
    /// # Errors
    /// As above.
    pub fn deploy_app(&self, parts: &AppParts<'_>) -> Result<ImageInfo, DeployError> {
        let app = App::new(parts).map_err(DeployError::Files)?;
        let encoded = app.encode();
        let hash = hash_of(&encoded);
        let fault = match self.read_image(hash) {
            Ok(image) => {
                // Other machines fetch the app from here, so it is written again if its file is missing or damaged.
                if self.app(hash).is_err() {
                    self.write(&app_name(hash), &encoded).map_err(DeployError::Store)?;
                }
                return Ok(image.info());
            }
            Err(fault) => fault,
        };
        // Everything is checked by compiling before anything is written, so a refused app leaves no
        // file.
        let mut image = deploy::build(&app, self.initialise_ms_max)?;
        self.write(&app_name(hash), &encoded).map_err(DeployError::Store)?;
        self.write(&image_name(hash), &image.encode(&self.key)).map_err(DeployError::Store)?;
        // A new app has no image yet: that is not a fault.
        image.rebuilt = Some(fault).filter(|fault| *fault != ImageFault::Missing);
        Ok(image.info())
    }

    /// Stores a chain of apps that are already stored, under the hash that its sessions name it by.
    ///
    /// # Errors
    /// If a stage is not stored or is not an app, or the disk is full.
    ///
    /// The stages' images are not made here: each was made when its app was deployed or inserted.
    pub fn deploy_chain(&self, chain: &Chain) -> Result<ImageHash, LoadError> {
        for (_, stage) in chain.stages() {
            if Chain::is_chain(&self.app(*stage)?) {
                let why = "it is a chain, and a stage must be one app; name that chain's stages instead";
                return Err(LoadError::App { hash: *stage, why: why.into() });
            }
        }
        let encoded = chain.encode();
        let hash = chain::hash_of(&encoded);
        self.write(&chain_name(hash), &encoded)
            .map_err(|error| LoadError::Build(DeployError::Store(error)))?;
        Ok(hash)
    }

    /// Gives an image, with all of its stages, to start cells from. A stage that is damaged, or from another engine version,
    /// is made again; [`Image::rebuilt`] then says why.
    ///
    /// # Errors
    /// If the app, the chain or one of its stages is not stored here, or an image can no longer be made of it.
    pub fn load(&self, hash: ImageHash) -> Result<Arc<Image>, LoadError> {
        match self.chain(hash)? {
            Some(chain) => self.load_chain(hash, &chain).map(Arc::new),
            None => self.load_stage(hash).map(|image| Arc::new(Image::single(image))),
        }
    }

    /// A chain may have one app as several stages. They share the image, and so its code in memory.
    fn load_chain(&self, hash: ImageHash, chain: &Chain) -> Result<Image, LoadError> {
        let mut stages: Vec<Stage> = Vec::with_capacity(chain.stages().len());
        for (name, hash) in chain.stages() {
            let image = match stages.iter().find(|stage| stage.image.hash == *hash) {
                Some(twice) => Arc::clone(&twice.image),
                None => Arc::new(self.load_stage(*hash)?),
            };
            stages.push(Stage { name: name.as_str().into(), image });
        }
        Ok(Image { hash, stages, server: chain.has_server() })
    }

    /// Reads a stage's image, or makes it again from its app. Compiling takes up to seconds: a
    /// shard calls this on its worker thread.
    fn load_stage(&self, hash: ImageHash) -> Result<StageImage, LoadError> {
        let fault = match self.read_image(hash) {
            Ok(image) => return Ok(image),
            Err(fault) => fault,
        };
        let app = self.app(hash)?;
        let app = App::decode(&app).map_err(|why| LoadError::App { hash, why })?;
        let mut image = deploy::build(&app, self.initialise_ms_max).map_err(LoadError::Build)?;
        // The image can be used even if it cannot be stored; then the next load compiles it again.
        let kept = self.write(&image_name(hash), &image.encode(&self.key));
        image.rebuilt = Some(match kept {
            Ok(()) => fault,
            Err(error) => ImageFault::Unreadable(format!("{fault}; and it could not be kept: {error}")),
        });
        Ok(image)
    }

    /// The chain with this hash; `None` if there is no such chain.
    ///
    /// # Errors
    /// If its file cannot be read, or is damaged.
    pub fn chain(&self, hash: ImageHash) -> Result<Option<Chain>, LoadError> {
        let bad = |why: String| LoadError::App { hash, why };
        match fs::read(self.dir.join(chain_name(hash))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(bad(error.to_string())),
            Ok(bytes) if chain::hash_of(&bytes) != hash => {
                Err(bad("its bytes do not match its digest; check the disk".into()))
            }
            Ok(bytes) => Chain::decode(&bytes).map(Some).map_err(|why| bad(why.to_string())),
        }
    }

    /// The encoded app or chain of an image, for another machine's [`Images::insert`].
    ///
    /// # Errors
    /// If it is not stored here, or its bytes are damaged.
    pub fn app(&self, hash: ImageHash) -> Result<Vec<u8>, LoadError> {
        if let Some(chain) = self.chain(hash)? {
            return Ok(chain.encode());
        }
        let bytes = match fs::read(self.dir.join(app_name(hash))) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(LoadError::Unknown(hash)),
            Err(error) => return Err(LoadError::App { hash, why: error.to_string() }),
        };
        if hash_of(&bytes) != hash {
            return Err(LoadError::App {
                hash,
                why: "its bytes do not match its digest; check the disk".into(),
            });
        }
        Ok(bytes)
    }

    /// Whether this app, or a stage of this chain, was made for clients whose keys are spread over so many slots.
    ///
    /// # Errors
    /// If it is not stored here, or its bytes are damaged.
    pub fn has_slots(&self, hash: ImageHash, slots: u32) -> Result<bool, LoadError> {
        let stages = match self.chain(hash)? {
            Some(chain) => chain.stages().iter().map(|(_, stage)| *stage).collect(),
            None => vec![hash],
        };
        for hash in stages {
            let app = App::decode(&self.app(hash)?).map_err(|why| LoadError::App { hash, why })?;
            if app.slots == slots {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Stores an app from another machine and makes its image, or stores a chain whose stages are already here. The bytes need no
    /// other proof: their digest is `hash`.
    ///
    /// # Errors
    /// If the bytes have another digest, or no image can be made of them here. [`LoadError::Unknown`] names a stage of a chain
    /// that must be inserted first.
    ///
    /// Even if the app is already here this compiles it; the caller asks with [`Images::app`]
    /// first.
    pub fn insert(&self, hash: ImageHash, app: &[u8]) -> Result<Arc<Image>, LoadError> {
        if Chain::is_chain(app) {
            return self.insert_chain(hash, app);
        }
        if hash_of(app) != hash {
            return Err(LoadError::App {
                hash,
                why: "the received bytes are of another app; fetch it elsewhere".into(),
            });
        }
        let decoded = App::decode(app).map_err(|why| LoadError::App { hash, why })?;
        let image = deploy::build(&decoded, self.initialise_ms_max).map_err(LoadError::Build)?;
        self.write(&app_name(hash), app).map_err(|error| LoadError::Build(DeployError::Store(error)))?;
        self.write(&image_name(hash), &image.encode(&self.key))
            .map_err(|error| LoadError::Build(DeployError::Store(error)))?;
        Ok(Arc::new(Image::single(image)))
    }

    fn insert_chain(&self, hash: ImageHash, bytes: &[u8]) -> Result<Arc<Image>, LoadError> {
        let chain = Chain::decode(bytes).map_err(|why| LoadError::App { hash, why: why.to_string() })?;
        if chain.hash() != hash {
            let why = "the received bytes are of another chain; fetch it elsewhere".into();
            return Err(LoadError::App { hash, why });
        }
        self.deploy_chain(&chain)?;
        self.load(hash)
    }

    /// Removes a chain, or an app and its image, when no session names it any more. Unknown hashes are ignored. An app that is a
    /// stage of a stored chain stays.
    ///
    /// # Errors
    /// If an existing file cannot be removed.
    pub fn remove(&self, hash: ImageHash) -> Result<(), ImageWriteError> {
        if self.is_stage(hash).map_err(|error| ImageWriteError::new(&self.dir, &error))? {
            return Ok(());
        }
        for name in [chain_name(hash), image_name(hash), app_name(hash)] {
            let path = self.dir.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(ImageWriteError::new(&path, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a stored chain has this app as a stage. An unreadable chain does not count: it cannot be used.
    /// Reads every chain in the directory: they are few and small, and removing is rare.
    fn is_stage(&self, hash: ImageHash) -> io::Result<bool> {
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == CHAIN)
                && let Ok(Ok(chain)) = fs::read(&path).map(|bytes| Chain::decode(&bytes))
                && chain.stages().iter().any(|(_, stage)| *stage == hash)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Path of an image's compiled code, for an operator or a test.
    #[must_use]
    pub fn image_path(&self, hash: ImageHash) -> PathBuf {
        self.dir.join(image_name(hash))
    }

    /// All faults are returned as values: the caller compiles again and reports why.
    fn read_image(&self, hash: ImageHash) -> Result<StageImage, ImageFault> {
        let bytes = match fs::read(self.image_path(hash)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ImageFault::Missing),
            Err(error) => return Err(ImageFault::Unreadable(error.to_string())),
        };
        StageImage::decode(&bytes, hash, self.compatibility, &self.key)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ImageWriteError> {
        write_whole(&self.dir, name, |file| file.write_all(bytes))
    }
}

// The three names differ only in their extensions, so one hash can be looked for as a chain and as
// an app.
fn app_name(hash: ImageHash) -> String {
    format!("{hash}.app")
}

/// Extension of a chain's file name.
const CHAIN: &str = "chain";

fn chain_name(hash: ImageHash) -> String {
    format!("{hash}.{CHAIN}")
}

fn image_name(hash: ImageHash) -> String {
    format!("{hash}.image")
}

/// Why an image could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// No such app is stored here: fetch it from an edge that has it, or deploy it.
    Unknown(ImageHash),
    /// The app's own bytes are unusable: fetch it again.
    App {
        /// The app's hash.
        hash: ImageHash,
        /// What is wrong.
        why: String,
    },
    /// The app is stored here, but no image could be made of it.
    Build(DeployError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(hash) => {
                write!(
                    f,
                    "image {hash} is not on this machine; fetch it from an edge that has it, or deploy the app here"
                )
            }
            Self::App { hash, why } => write!(f, "the app of image {hash} cannot be used: {why}"),
            Self::Build(error) => write!(f, "the image cannot be created: {error}"),
        }
    }
}

impl std::error::Error for LoadError {}
