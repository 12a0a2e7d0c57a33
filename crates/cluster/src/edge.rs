//! One edge that can be killed, stopped, woken and restarted, mostly with an empty directory.

use super::log_collector::LogCollector;
use super::namespace::Namespace;
use super::process::TestProcess;
use super::shared_images::SharedImages;
use super::temp_dir::{TempDir, free_address};
use anyhow::Context;
use marram_admin::client::ApiClient;
use rustix::process::Signal;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long an edge may take to be ready.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Settings of an edge, apart from its addresses.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) program: PathBuf,
    /// Paths of the manifests.
    pub(super) apps: Vec<PathBuf>,
    pub(super) shards: u8,
    /// Additional lines of its configuration: one or more whole tables.
    pub(super) tables: String,
    /// Additional lines of the table `[admin]`.
    pub(super) admin: String,
    /// The operators' token for an edge in a namespace.
    pub(super) token: String,
    /// Images that were compiled before.
    pub(super) images: Option<SharedImages>,
}

/// An edge: its address never changes, its process can be replaced.
pub struct TestEdge {
    name: String,
    address: SocketAddr,
    admin: SocketAddr,
    settings: Settings,
    /// How often it was started.
    lives: u32,
    /// How often its power came back in this life.
    returns: usize,
    process: Option<TestProcess>,
    /// The output of each shard in which one bit is flipped in its next life.
    sabotage: Option<u64>,
    /// Whether all sessions with one backup are copied at one moment, where it gets pages.
    whole: bool,
    /// Its network namespace, if it is not beside its agents.
    namespace: Option<Namespace>,
}

impl TestEdge {
    pub(super) fn new(name: &str, settings: Settings, namespace: Option<Namespace>) -> anyhow::Result<Self> {
        let (mut address, mut admin) = (free_address()?, free_address()?);
        if let Some(namespace) = &namespace {
            address.set_ip(namespace.address().into());
            admin.set_ip(namespace.address().into());
        }
        Ok(Self {
            name: name.into(),
            address,
            admin,
            settings,
            lives: 0,
            returns: 0,
            process: None,
            sabotage: None,
            whole: false,
            namespace,
        })
    }

    /// The address for agents.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of its admin API.
    #[must_use]
    pub fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Its name in logs, with the number of its life. Each life has a unique name, so that the end of one process cannot be taken
    /// for the end of another.
    #[must_use]
    pub fn who(&self) -> String {
        let returns = "+".repeat(self.returns);
        match self.lives {
            lives @ ..=4 => format!("{}{}{returns}", self.name, "'".repeat(lives.saturating_sub(1) as usize)),
            lives => format!("{}'{lives}{returns}", self.name),
        }
    }

    /// A client of its admin API.
    ///
    /// # Errors
    /// Never, for an address that was free once.
    pub fn client(&self) -> anyhow::Result<ApiClient> {
        // On loopback the edge publishes its token to this user.
        let token = self.namespace.is_some().then(|| self.settings.token.clone());
        Ok(ApiClient::new(&self.admin.to_string(), token)?)
    }

    /// Its network namespace, if it has one.
    #[must_use]
    pub fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    /// From its next life on it runs no app: it only has gates, and their sessions run on other edges.
    pub fn run_no_apps(&mut self) {
        self.settings.apps.clear();
    }

    /// In its next life it flips one bit of output number `output` of each shard.
    pub fn sabotage(&mut self, output: u64) {
        self.sabotage = Some(output);
    }

    /// From its next life on it copies all sessions with one backup at one moment, where that gets pages, and releases their outputs
    /// together.
    pub fn copy_whole(&mut self) {
        self.whole = true;
    }

    /// The directory of its configuration and state in this life, relative to the run's.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}-{}", self.name, self.lives)
    }

    /// Whether it has a process.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Starts a new process with an empty directory, without waiting for it. `extra` contains additional fields before the first
    /// table of its configuration.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(&mut self, place: &TempDir, logs: &LogCollector, extra: &str) -> anyhow::Result<()> {
        self.kill();
        (self.lives, self.returns) = (self.lives + 1, 0);
        let directory = self.directory();
        if self.lives > 1 {
            let old = place.path().join(format!("{}-{}", self.name, self.lives - 1));
            std::fs::remove_dir_all(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
        place.write(&format!("{directory}/edge.toml"), self.config(place.path(), extra)?)?;
        if let Some(images) = &self.settings.images {
            images.lend(&self.images(place))?;
        }
        self.launch(place, logs)
    }

    /// Starts a process with the name, configuration and disk of the last one, without waiting for it: its power is back.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start_again(&mut self, place: &TempDir, logs: &LogCollector) -> anyhow::Result<()> {
        self.kill();
        self.returns += 1;
        self.launch(place, logs)
    }

    fn launch(&mut self, place: &TempDir, logs: &LogCollector) -> anyhow::Result<()> {
        let directory = self.directory();
        let config = place.path().join(&directory).join("edge.toml");
        let errors = place.path().join(format!("{directory}{}.stderr", "+".repeat(self.returns)));
        let program = &self.settings.program;
        let mut command = match &self.namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        };
        match self.sabotage.take() {
            None if self.whole => command.args(["demo-edge", "--whole"]),
            None => command.arg("edge"),
            Some(output) => command.args(["demo-edge", "--sabotage", &output.to_string()]),
        };
        command.arg("--config").arg(config);
        self.process = Some(TestProcess::start(&self.who(), &mut command, logs, &errors)?);
        Ok(())
    }

    fn config(&self, root: &Path, extra: &str) -> anyhow::Result<String> {
        let apps: Vec<String> = self.settings.apps.iter().map(|app| app.display().to_string()).collect();
        let mut text = String::new();
        writeln!(text, "name = {:?}\nstate = \"state\"\nlisten = [\"{}\"]", self.who_ascii(), self.address)?;
        writeln!(text, "secret_file = {:?}\napps = {apps:?}", root.join("secret").display().to_string())?;
        writeln!(text, "shards = {}\n{extra}", self.settings.shards)?;
        writeln!(text, "[admin]\nlisten = \"{}\"\n{}", self.admin, self.settings.admin)?;
        if self.namespace.is_some() {
            writeln!(text, "token_file = {:?}", root.join("token").display().to_string())?;
        }
        writeln!(text, "[log]\nformat = \"json\"\n{}", self.settings.tables)?;
        Ok(text)
    }

    /// A name in a configuration has no apostrophes.
    fn who_ascii(&self) -> String {
        format!("{}-{}", self.name, self.lives)
    }

    /// The directory of its images in this life.
    fn images(&self, place: &TempDir) -> PathBuf {
        place.path().join(self.directory()).join("state/images")
    }

    /// Waits until this life of the edge has its apps; wires may still have to wait for its shards.
    ///
    /// # Errors
    /// If it is not ready in time, or ends.
    pub fn wait_ready(&mut self, place: &TempDir, logs: &LogCollector, start: usize) -> anyhow::Result<()> {
        let process = self.process.as_ref().context("it was not started")?;
        let apps = self.settings.apps.len();
        let (mut listens, mut deployed) = (false, 0);
        process.wait_ready(logs, start, START_PATIENCE, |event| {
            listens |= event.text("message") == "listening for operators";
            deployed += usize::from(event.name() == "deployed");
            listens && deployed >= apps
        })?;
        self.settings.images.as_ref().map_or(Ok(()), |images| images.collect(&self.images(place)))
    }

    /// Kills supervisor and shards at once.
    pub fn kill(&mut self) {
        // Dropping a process kills its group and waits for it.
        self.process = None;
    }

    /// Stops all of its processes, as on a machine that hangs.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Wakes what [`TestEdge::stop`] stopped.
    pub fn wake(&self) {
        self.signal(Signal::CONT);
    }

    /// Asks it to shut down in order.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            process.signal(signal);
        }
    }

    /// Its process, if it has one.
    pub fn process(&mut self) -> Option<&mut TestProcess> {
        self.process.as_mut()
    }
}
