//! Cargo's data about a workspace and its dependencies, as far as the checks need it.
//!
//! A few fields of `cargo metadata`'s JSON, whose format is stable. Read by `deny` and by
//! `tidy::graph`, which agree that way on what a package is.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{project, shell::capture};

/// A workspace with all of its dependencies on this platform.
pub(crate) struct Metadata {
    /// Every package that is built.
    pub(crate) packages: Vec<Package>,
}

/// One package.
#[derive(Default)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its version, for messages.
    pub(crate) version: String,
    /// Its licence as an SPDX expression, if it has one.
    pub(crate) license: Option<String>,
    /// Its source; `None` for a folder of this repository.
    pub(crate) source: Option<String>,
    /// Whether it is in this repository.
    pub(crate) ours: bool,
    /// Whether it is a member of the workspace.
    pub(crate) member: bool,
    /// The packages that its code uses, without those that only its tests use.
    pub(crate) uses: Vec<String>,
}

impl Metadata {
    /// Runs `cargo metadata`, which downloads missing packages.
    ///
    /// # Errors
    /// If cargo fails, for example because a lockfile is out of date, or if its answer has another
    /// shape.
    pub(crate) fn load(manifest: &str) -> Result<Self> {
        let version = capture(Command::new("rustc").arg("-vV"))?;
        let host =
            version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
        let mut command = project::cargo("metadata");
        command.args(["--format-version", "1", "--filter-platform", host, "--manifest-path", manifest]);
        // The fuzz targets' lockfile follows the crates of the main workspace, whose own lockfile is checked.
        if manifest != project::FUZZ_MANIFEST {
            command.arg("--locked");
        }
        let root: Value =
            serde_json::from_str(&capture(&mut command)?).context("cargo metadata is no JSON")?;
        Self::from_json(&root).context("cargo metadata has another shape than expected")
    }

    /// `None` if a field is missing or of another type.
    fn from_json(root: &Value) -> Option<Self> {
        let ids = |value: &Value| -> Option<Vec<String>> {
            value.as_array()?.iter().map(|id| Some(id.as_str()?.to_owned())).collect()
        };
        let members = ids(&root["workspace_members"])?;
        // With a platform, the resolve graph contains only what is built for it.
        let nodes = root["resolve"]["nodes"].as_array()?;
        let built: Vec<&str> = nodes.iter().map(|node| node["id"].as_str()).collect::<Option<_>>()?;
        let packages = root["packages"].as_array()?;
        let packages =
            packages.iter().filter(|package| package["id"].as_str().is_some_and(|id| built.contains(&id)));
        packages
            .map(|package| Package::from_json(package, &members))
            .collect::<Option<_>>()
            .map(|packages| Self { packages })
    }

    /// The members of the workspace.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.member)
    }

    /// Whether a package with this name is in this repository.
    pub(crate) fn is_ours(&self, name: &str) -> bool {
        self.packages.iter().any(|package| package.ours && package.name == name)
    }
}

impl Package {
    /// Uses of tests are left out: what a test uses does not reach a user.
    fn from_json(value: &Value, members: &[String]) -> Option<Self> {
        let text = |field: &str| value[field].as_str().map(str::to_owned);
        let uses = value["dependencies"].as_array()?.iter().filter(|used| used["kind"] != "dev");
        let source = text("source");
        Some(Self {
            name: text("name")?,
            version: text("version")?,
            license: text("license"),
            ours: source.is_none(),
            source,
            member: members.contains(&text("id")?),
            uses: uses.map(|used| used["name"].as_str().map(str::to_owned)).collect::<Option<_>>()?,
        })
    }
}
