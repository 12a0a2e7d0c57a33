//! The apps of a shard: what new sessions run, what older sessions may still run, and the versions that are missing.

use super::missing::{MissingVersions, Verdict};
use crate::api::{App, AppVersion, Missing, Protect};
use alloc::{collections::BTreeMap, string::String};
use marram_session::{holds, invariant::BrokenInvariant, owner::Owner};
use marram_wire::id::ImageHash;

/// All apps and images that control has named.
#[derive(Debug, Default)]
pub(crate) struct Apps {
    /// The image and settings of new sessions, by app.
    by_name: BTreeMap<String, App>,
    /// The settings of sessions by version; kept after the app was redeployed, since a session keeps its image for life.
    versions: BTreeMap<AppVersion, App>,
    /// Versions that sessions named and that are not in `versions`.
    missing: MissingVersions,
}

impl Apps {
    /// New sessions of the app run this image.
    pub(crate) fn deploy(&mut self, app: App) {
        self.by_name.insert(app.name.clone(), app.clone());
        self.know(app);
    }

    /// Sessions may run this version.
    pub(crate) fn know(&mut self, app: App) {
        self.missing.found(&app.version());
        self.versions.insert(app.version(), app);
    }

    /// The app begins no new session. Its sessions go on.
    pub(crate) fn undeploy(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// The image of new sessions of an app.
    pub(crate) fn image(&self, name: &str) -> Option<ImageHash> {
        self.by_name.get(name).map(|app| app.image)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The app of this name and image. Two apps may run one image, and be protected differently: a session gets the settings of its own
    /// app, or none.
    pub(crate) fn of_image(&self, name: &str, image: ImageHash) -> Option<&App> {
        let deployed = self.by_name.get(name).filter(|app| app.image == image);
        deployed.or_else(|| self.versions.get(&AppVersion { app: name.into(), image }))
    }

    /// The app of a session, of the version that the session runs.
    pub(crate) fn of_image_of(&self, owner: &Owner) -> Option<&App> {
        self.of_image(&owner.policy().app, owner.image())
    }

    /// The settings that hold for a session now: those of its app as it is deployed, else those of its app and image.
    pub(crate) fn of_owner(&self, owner: &Owner) -> Option<&App> {
        self.by_name.get(&owner.policy().app).or_else(|| self.of_image_of(owner))
    }

    /// How a session is protected now.
    pub(crate) fn protect(&self, owner: &Owner) -> Protect {
        match self.of_owner(owner) {
            _ if !owner.policy().keeps.anything() => Protect::None,
            Some(app) => app.protect,
            None => Protect::Endpoints,
        }
    }

    /// A session names a version that is not here: whether to fetch it now, and the answer to the session.
    pub(crate) fn miss(&mut self, now_ns: u64, version: &AppVersion) -> (bool, Verdict) {
        self.missing.miss(now_ns, version)
    }

    /// A fetch failed.
    pub(crate) fn fetch_failed(&mut self, now_ns: u64, missing: Missing) {
        self.missing.failed(now_ns, &missing.version, missing.why);
    }

    /// Whether the first fetch of a version is in flight, so that it may arrive soon.
    pub(crate) fn is_being_fetched(&self, version: &AppVersion) -> bool {
        self.missing.asks_first(version)
    }

    /// Checks I39 of docs/protocol.md, as far as it concerns apps and images.
    pub(crate) fn invariants(&self) -> Result<(), BrokenInvariant> {
        for (name, app) in &self.by_name {
            holds!("I39", app.name == *name && self.versions.contains_key(&app.version()));
        }
        self.missing.invariants(|version| self.versions.contains_key(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_gets_the_settings_of_its_own_app_or_none() {
        let image = ImageHash([7; 32]);
        let app = |name: &str, protect| App {
            name: name.into(),
            image,
            protect,
            ..crate::api::tests::app(name, 0)
        };
        let mut apps = Apps::default();
        apps.deploy(app("careless", Protect::None));
        assert!(apps.of_image("careful", image).is_none());
        // The image is here, and this app's settings are not.
        let careful = AppVersion { app: "careful".into(), image };
        assert_eq!(apps.miss(0, &careful), (true, Verdict::Asked));
        assert!(apps.invariants().is_ok() && apps.is_being_fetched(&careful));
        apps.deploy(app("careful", Protect::Endpoints));
        // After another deployment older sessions keep the settings of their image.
        let newer = App { image: ImageHash([8; 32]), ..app("careful", Protect::Hot) };
        apps.deploy(newer);
        assert_eq!(apps.of_image("careful", image).map(|app| app.protect), Some(Protect::Endpoints));
        assert_eq!(apps.of_image("careless", image).map(|app| app.protect), Some(Protect::None));
        assert!(!apps.is_being_fetched(&careful));
        assert!(apps.invariants().is_ok());
    }
}
