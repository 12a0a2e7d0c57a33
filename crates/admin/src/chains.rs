//! Makes one image of a manifest's stages: their own images, connected in sequence, between the stages that this edge's
//! configuration adds to every app.
//!
//! ```text
//!            [chain] first        the manifest's stages       [chain] last
//! client ◀─▶ firewall        ◀─▶  stage 0 ◀─▶ stage 1    ◀─▶  limiter        ◀─▶ server
//!            └────────────────── one image, one cell, one log ──────────────┘
//! ```
//!
//! Each stage has an image of its own, named by the digest of module, files and quotas, so that
//! stages shared by several apps are compiled and stored once. The chain's image lists theirs.
//! The first one of an app with keys is also named by the number of its slots: two edges with another
//! number have other versions of the app, and no key has two cells of one version.
//! Since the digest of the whole names what a session runs, edges with different `[chain]` tables
//! could not recover each other's sessions; [`agrees`] refuses such a pair where an app is copied.

use super::body::Upload;
use super::kept;
use super::state::AdminState;
use bytes::Bytes;
use hyper::StatusCode;
use marram_config::manifest::{Manifest, Stage, StageQuotas, TreeFile};
use marram_http::Refusal;
use marram_node::keys;
use marram_sandbox::{
    AppParts, Chain, DeployError, ImageFault, ImageFile, Images, KeyId, LoadError, Quotas, reads_cache,
};
use marram_wire::id::ImageHash;

/// A stage's name and image.
type Named = (String, ImageHash);

/// Makes the image of an uploaded app.
pub(super) fn deploy(
    state: &AdminState,
    images: &Images,
    manifest: &Manifest,
    upload: &Upload,
) -> Result<ImageHash, Refusal> {
    let stages = own_stages(images, manifest, upload)?;
    let (first, last) = forced(state, images, manifest)?;
    wire(images, manifest, [first, stages, last].concat())
}

/// As [`deploy`], but without the stages that an edge adds and the keys that it grants.
pub(super) fn check(images: &Images, manifest: &Manifest, upload: &Upload) -> Result<ImageHash, Refusal> {
    let stages = own_stages(images, manifest, upload)?;
    wire(images, manifest, stages)
}

/// An image for each uploaded stage.
/// `upload.parts` is consumed in the order in which `Upload` documents it.
fn own_stages(images: &Images, manifest: &Manifest, upload: &Upload) -> Result<Vec<Named>, Refusal> {
    all_came(manifest, &upload.parts)?;
    let mut parts = &upload.parts[..];
    let mut stages = Vec::with_capacity(manifest.stages.len());
    for (number, stage) in manifest.stages.iter().enumerate() {
        let (own, rest) = parts.split_at(1 + stage.files.len());
        parts = rest;
        // Found here and not by the first session: a cell without a cache could only be stopped
        // when it calls the import.
        if manifest.cache.is_none() && reads_cache(&own[0]) {
            return Err(in_stage(manifest, stage, &no_cache()));
        }
        let files = tree(&stage.files, &own[1..]);
        let keys = named_keys(stage, &files)?;
        // Once in a chain is enough: its name covers those of its stages.
        let slots = if number == 0 { manifest.slots } else { 0 };
        let quotas = quotas(manifest, &stage.quotas);
        let info = images.deploy_app(&AppParts {
            module: &own[0],
            files: &files,
            keys: &keys,
            quotas: &quotas,
            slots,
            servers: &manifest.servers,
        });
        let info = info.map_err(|error| in_stage(manifest, stage, &error))?;
        was_rebuilt(info.hash, info.rebuilt.as_ref());
        stages.push((stage.name.clone(), info.hash));
    }
    Ok(stages)
}

/// Logs that compiled code was there and could not be used.
/// The image cache repairs itself; the line is for the operator of a failing disk.
fn was_rebuilt(image: ImageHash, fault: Option<&ImageFault>) {
    if let Some(fault) = fault {
        tracing::warn!(%image, "an image was compiled again: {fault}");
    }
}

fn no_cache() -> DeployError {
    DeployError::ImportForbidden {
        name: "marram_v1.cache_read".into(),
        reason: "the app has no cache; add `[cache]` with `origin = \"http://...\"`, where its objects are, to the manifest"
            .into(),
    }
}

fn all_came(manifest: &Manifest, parts: &[Bytes]) -> Result<(), Refusal> {
    let (modules, files) =
        (manifest.stages.len(), manifest.stages.iter().map(|stage| stage.files.len()).sum::<usize>());
    if parts.len() == modules + files {
        return Ok(());
    }
    let named = if modules == 1 { "".into() } else { format!("{modules} modules and ") };
    let came = parts.len().saturating_sub(modules);
    let what = format!("the manifest names {named}{files} files, and {came} were sent");
    Err(Refusal::new(StatusCode::BAD_REQUEST, what, "send the app with `marram deploy`"))
}

/// The files, at the paths in the manifest.
fn tree(files: &[TreeFile], contents: &[Bytes]) -> Vec<ImageFile> {
    let file = |(named, contents): (&TreeFile, &Bytes)| ImageFile {
        path: named.path.clone(),
        contents: contents.to_vec(),
    };
    files.iter().zip(contents).map(file).collect()
}

/// The ids of the keys of a stage's certificates.
/// They become part of the image: a replay must make the same signatures.
fn named_keys(stage: &Stage, files: &[ImageFile]) -> Result<Vec<KeyId>, Refusal> {
    let of = |path: &String| {
        let file = files.iter().find(|file| file.path == *path);
        let contents = file.map_or(&[][..], |file| &file.contents);
        keys::of_certificate(contents).map_err(|why| {
            let fix = "name in `keys` the stage's files that contain certificates, in PEM, and deploy again";
            Refusal::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("`keys` names /{path}, a file that {why}"),
                fix,
            )
        })
    };
    stage.keys.iter().map(of).collect()
}

/// Checks that this edge holds every key that an image signs with, and grants it to this app. Stages that the edge adds to every
/// app have the grants that they have as apps of their own.
///
/// # Errors
/// With 422 if a key is missing or not granted, or the image cannot be loaded.
pub(super) fn keys_are_granted(
    state: &AdminState,
    images: &Images,
    app: &str,
    image: ImageHash,
) -> Result<(), Refusal> {
    let refuse = |what: String, fix: String| Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, fix));
    let image = images.load(image).map_err(|error| {
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string(), "deploy the app again")
    })?;
    was_rebuilt(image.hash(), image.rebuilt());
    let forced = state.first.iter().chain(&state.last);
    // A stage is recognised as the edge's own by its image: the list of stages has no other mark.
    let forced: Vec<_> = forced.filter_map(|app| Some((kept::image(state, app)?, app.as_str()))).collect();
    for stage in image.info() {
        let owner = forced.iter().find(|(image, _)| *image == stage.hash).map_or(app, |(_, app)| app);
        for id in &stage.keys {
            let Some(key) = state.keys.iter().find(|key| key.id == *id) else {
                let what = format!(
                    "`{owner}` signs with the key {id} of a certificate, and this edge does not have it"
                );
                let fix = "give every edge of the domain the certificate's private key, as a [[key]] of its configuration";
                return refuse(what, fix.to_owned());
            };
            if !key.apps.iter().any(|granted| granted == owner) {
                let what =
                    format!("`{owner}` signs with the key `{}`, which this edge does not grant it", key.name);
                return refuse(
                    what,
                    format!("add \"{owner}\" to the key's `apps` in the edge's configuration"),
                );
            }
        }
    }
    Ok(())
}

/// Checks that an image which was not made from this manifest now is one of so many slots. The manifest may say another number than it did when
/// the image was made, if it does not say one: another version of Marram may have another default.
///
/// # Errors
/// With 422 if it is not, or the image cannot be read.
pub(super) fn was_made_for(images: &Images, app: &str, slots: u32, image: ImageHash) -> Result<(), Refusal> {
    let refuse = |what: String, fix: &str| Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, fix));
    if slots == 0 {
        // Most apps have no keys, and their modules are large.
        return Ok(());
    }
    match images.has_slots(image, slots) {
        Ok(true) => Ok(()),
        Ok(false) => refuse(
            format!(
                "the image {image} of `{app}` was made for another number of slots than {slots}, which the manifest asks for"
            ),
            "write `slots` in the manifest as it was, or deploy the app again: another number is another version of it",
        ),
        Err(error) => refuse(error.to_string(), "deploy the app again"),
    }
}

/// The session's limits are part of the image only if there is one stage: each of several may be a stage of other apps too.
fn quotas(manifest: &Manifest, stage: &StageQuotas) -> Quotas {
    let only = manifest.stages.len() == 1;
    let limit = |limit: u32| (only && limit > 0).then_some(limit);
    Quotas {
        memory_max: stage.memory,
        handler_time_ns: u64::try_from(stage.handler_time.as_nanos()).unwrap_or(u64::MAX),
        scratch_max: stage.scratch,
        nan_canonicalization: stage.nan_canonical,
        messages_per_s: limit(manifest.quotas.messages_per_s),
        log_bytes_per_s: limit(manifest.quotas.log_bytes_per_s).map(u64::from),
    }
}

/// What an operator is told of an app that cannot be deployed.
pub(super) fn refused(error: &DeployError) -> Refusal {
    match error {
        DeployError::Store(store) if store.is_full() => Refusal::new(
            StatusCode::INSUFFICIENT_STORAGE,
            error.to_string(),
            "free space in the edge's state directory and deploy again; sessions continue",
        ),
        DeployError::Store(_) => {
            let fix = "make the edge's state directory writable and deploy again; sessions continue";
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), fix)
        }
        _ => Refusal::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            error.to_string(),
            "change the app and deploy again",
        ),
    }
}

fn in_stage(manifest: &Manifest, stage: &Stage, error: &DeployError) -> Refusal {
    let refusal = refused(error);
    if manifest.stages.len() == 1 { refusal } else { refusal.about(&format!("stage `{}`", stage.name)) }
}

/// The stages that this edge puts before and after an app's own.
/// The apps that are themselves added get none, or they would contain themselves.
fn forced(
    state: &AdminState,
    images: &Images,
    manifest: &Manifest,
) -> Result<(Vec<Named>, Vec<Named>), Refusal> {
    if state.is_forced(&manifest.name) {
        return Ok((Vec::new(), Vec::new()));
    }
    let all = |apps: &[String]| -> Result<Vec<Named>, Refusal> {
        apps.iter().map(|app| forced_one(state, images, app)).collect()
    };
    Ok((all(&state.first)?, all(&state.last)?))
}

fn forced_one(state: &AdminState, images: &Images, app: &str) -> Result<Named, Refusal> {
    let unprocessable = |what: String, fix: String| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, fix);
    let Some(image) = kept::image(state, app) else {
        let what = format!(
            "this edge puts the app `{app}` before or after every other, and it is not deployed here"
        );
        let fix = format!("deploy `{app}` first, or remove it from [chain] in the edge's configuration");
        return Err(unprocessable(what, fix));
    };
    match images.chain(image) {
        Ok(None) => Ok((app.to_owned(), image)),
        Ok(Some(_)) => {
            let what =
                format!("`{app}` is a chain, and only an app of one stage can be put before or after others");
            let fix = format!(
                "name its stages one by one in [chain] in the edge's configuration instead of `{app}`"
            );
            Err(unprocessable(what, fix))
        }
        Err(error) => Err(unprocessable(error.to_string(), format!("deploy `{app}` again"))),
    }
}

/// A single stage is an image already; several are made into a chain.
fn wire(images: &Images, manifest: &Manifest, stages: Vec<Named>) -> Result<ImageHash, Refusal> {
    if let [(_, only)] = &stages[..] {
        return Ok(*only);
    }
    if !manifest.servers.is_empty() {
        let what = format!("`{}` may connect to servers, and would be a stage of a chain", manifest.name);
        let fix =
            "remove `servers` from its manifest, or the stages that the edge's [chain] adds to every app";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, fix));
    }
    let chain = Chain::new(manifest.server.is_some(), stages).map_err(|why| {
        let fix = "give the app fewer stages, with those that the edge's [chain] adds";
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why.to_string(), fix)
    })?;
    images.deploy_chain(&chain).map_err(|error| match error {
        LoadError::Build(error) => refused(&error),
        other => Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, other.to_string(), "deploy the app again"),
    })
}

/// Whether an image that another edge made has the stages that this edge adds to every app.
///
/// The app's own stages in the middle are not compared: the image's digest fixes them, and the peer
/// is trusted with the app.
pub(super) fn agrees(
    state: &AdminState,
    images: &Images,
    manifest: &Manifest,
    image: ImageHash,
) -> Result<(), Refusal> {
    let (first, last) = forced(state, images, manifest)?;
    let chain = images.chain(image);
    let stages = chain.map(|chain| chain.map_or_else(|| vec![image], |chain| hashes(chain.stages())));
    let agrees = stages.is_ok_and(|stages| {
        stages.len() == first.len() + manifest.stages.len() + last.len()
            && stages.starts_with(&hashes(&first))
            && stages.ends_with(&hashes(&last))
    });
    if agrees {
        return Ok(());
    }
    let what = format!("`{}` has other stages before or after its own there than here", manifest.name);
    let fix = "give all edges of a domain the same [chain] in their configurations, and the same version of the apps \
        in it";
    Err(Refusal::new(StatusCode::CONFLICT, what, fix))
}

fn hashes(stages: &[Named]) -> Vec<ImageHash> {
    stages.iter().map(|(_, hash)| *hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_config::manifest::FILE_NAME;
    use marram_config::source::Source;

    /// The smallest module that can be an app, with memory and the two functions that each needs, in the binary format.
    const MODULE: &[u8] = b"\0asm\x01\0\0\0\
        \x01\x0c\x02\x60\x01\x7f\x01\x7f\x60\x03\x7f\x7f\x7f\0\
        \x03\x03\x02\0\x01\
        \x05\x03\x01\0\x01\
        \x07\x27\x03\x06memory\x02\0\x0cmarram_alloc\0\0\x0bmarram_recv\0\x01\
        \x0a\x09\x02\x04\0\x41\0\x0b\x02\0\x0b";

    #[test]
    fn another_number_of_slots_is_another_image() {
        let dir = std::env::temp_dir().join(format!("marram-slots-{}", std::process::id()));
        let images = Images::open(&dir).expect("a place for images");
        let manifest = |stages: &str, slots| {
            let source = Source::new(FILE_NAME, format!("name = \"hall\"\n{stages}"));
            Manifest { slots, ..Manifest::parse(&source).expect("a manifest") }
        };
        let chain =
            "[[stage]]\nname = \"a\"\nmodule = \"a.wasm\"\n[[stage]]\nname = \"b\"\nmodule = \"a.wasm\"\n";
        for (stages, count) in [("module = \"a.wasm\"\n", 1), (chain, 2)] {
            let upload = Upload { manifest: String::new(), parts: vec![Bytes::from_static(MODULE); count] };
            let made = |slots| match check(&images, &manifest(stages, slots), &upload) {
                Ok(image) => image,
                Err(refusal) => panic!("{refusal:?}"),
            };
            let [none, some, more] = [0, 64, 128].map(made);
            assert!(none != some && none != more && some != more);
            for (slots, image) in [(0, none), (64, some), (128, more)] {
                assert!(was_made_for(&images, "hall", slots, image).is_ok());
            }
            let Err(refusal) = was_made_for(&images, "hall", 128, some) else { panic!("it has 64 slots") };
            assert!(format!("{refusal:?}").contains("128"), "{refusal:?}");
        }
        std::fs::remove_dir_all(&dir).expect("it is there");
    }
}
