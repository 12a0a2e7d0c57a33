//! `marram dev`: runs a project on an edge of its own, rebuilds and redeploys it whenever it changes, and shows all logs.
//!
//! ```text
//! open, build ─▶ edge (1 shard), agents ─▶ deploy ─▶ loop every 200 ms: show log lines, look at the sources
//!                                            ▲                                 │ changed
//!                                            └───────── build, deploy ◀────────┘
//! ```
//!
//! It watches by comparing modification times, which works on every file system. Sessions that are
//! open keep the image that they began with; only new ones use the new one. Everything that it
//! starts ends with it.

use super::watch::Sources;
use anyhow::{Context, anyhow, bail};
use hyper::Method;
use marram_admin::{self, body::Upload};
use marram_cluster::{AgentSide, Layout, LogEvent, TestCluster};
use marram_config::manifest::Manifest;
use marram_config::source::Source;
use marram_config::units::{Address, ListenAddress};
use marram_session::agent::routes::RouteProtocol;
use marram_transport::cannot_listen;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How often the sources are checked for changes; new log lines are shown at least this often.
const LOOK: Duration = Duration::from_millis(200);

/// The options of `marram dev`.
#[derive(Clone, Debug)]
pub struct DevOptions {
    /// The project: the directory of `marram.toml`.
    pub directory: PathBuf,
    /// Where clients connect: at least one.
    pub listen: Vec<ListenAddress>,
    /// The server, if the app has one.
    pub server: Option<Address>,
    /// The shell command that builds it; if none is given, the project's files decide.
    pub build: Option<String>,
    /// Build, deploy and stop.
    pub once: bool,
}

/// Runs until it is interrupted.
///
/// # Errors
/// If there is no project, the first build fails, or the edge cannot be run.
pub fn run(options: &DevOptions) -> anyhow::Result<()> {
    let mut project = Project::open(options)?;
    // Checked here, since the agent would find out only after the build.
    for listen in options.listen.iter().filter(|listen| listen.protocol != RouteProtocol::Udp) {
        TcpListener::bind(listen.address).map_err(|error| {
            let why = cannot_listen(listen.address, "for clients", error);
            anyhow!("{why}; or `marram dev --listen ADDRESS`")
        })?;
    }
    // Before the build: a source that is saved during the build counts as changed after it.
    let mut seen = project.look();
    project.build()?;
    let upload = marram_admin::load(&project.directory)?;
    let cluster = start(options, &project, &upload)?;
    // Before the line that a script may wait for: it may change a source right after that.
    // `seen` is from before the last build, `built` from after it: a state that equals `built` was
    // made by the build.
    let mut built = project.look();
    say(&format!(
        "{} is ready: clients connect to {}; operators: --edge http://{}",
        project.name,
        options.listen.iter().map(clients).collect::<Vec<_>>().join(" and "),
        cluster.edges[0].admin()
    ));
    if options.once {
        return Ok(());
    }
    let mut shown = cluster.logs.end();
    // Whether the last build was triggered by what the build before it had written.
    let mut own = false;
    loop {
        shown = show_new_lines(&cluster, shown);
        let now = project.look();
        let Some(changed) = now.changed(&seen) else { continue };
        let by_the_build = now == built;
        if by_the_build && own {
            // Each build writes this file, so it is no source.
            seen = now;
            continue;
        }
        own = by_the_build;
        say(&format!("{} has changed", changed.display()));
        seen = now;
        let done = again(&mut project, options, &cluster);
        // Before the next line: a script that waits for it may change a source at once, which the build did not write.
        built = project.look();
        match done {
            Ok(()) => say("deployed: new sessions use it"),
            Err(error) => say(&format!("not deployed: {error:#}")),
        }
    }
}

/// Starts an edge with the app and, after it, agents for the app's clients and its server.
fn start(options: &DevOptions, project: &Project, upload: &Upload) -> anyhow::Result<TestCluster> {
    let layout = Layout {
        purpose: "dev",
        program: std::env::current_exe().context("the program's own path is unknown")?,
        edges: 1,
        shards: 1,
        encrypted: false,
        namespaces: false,
        admin: String::new(),
        edge_tables: String::new(),
        agent_tables: String::new(),
        images: None,
    };
    let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new()))?;
    cluster.start_edges("").with_context(|| errors(&cluster))?;
    let edges = cluster.edge_addresses();
    deploy(&cluster, upload)?;
    if let (Some(name), Some(server)) = (&project.server, &options.server) {
        cluster.start_agent_with(
            AgentSide::Server,
            &edges,
            &format!("[servers]\n{name:?} = {:?}\n", server.0),
        )?;
    }
    let listeners: String =
        options.listen.iter().map(|listen| listener(listen, &options.listen, &project.name)).collect();
    cluster.start_agent_with(AgentSide::Client, &edges, &listeners).with_context(|| errors(&cluster))?;
    Ok(cluster)
}

/// Where clients of a listener connect, and how to try it.
fn clients(listen: &ListenAddress) -> String {
    let address = listen.address;
    match listen.protocol {
        RouteProtocol::Tcp => format!("{address}, as in `curl -sN telnet://{address}`"),
        RouteProtocol::Udp => format!("udp://{address}"),
        RouteProtocol::WebSocket => format!("ws://{address}"),
    }
}

/// The agent's table for a listener. Pages that come from one of `all` may connect to it: a cell may serve the page of its app.
fn listener(listen: &ListenAddress, all: &[ListenAddress], app: &str) -> String {
    let ListenAddress { address, protocol } = listen;
    let name = match protocol {
        RouteProtocol::Tcp => "tcp",
        RouteProtocol::Udp => "udp",
        RouteProtocol::WebSocket => "websocket",
    };
    let mut table = format!("[[listen]]\naddress = \"{address}\"\nprotocol = \"{name}\"\napp = {app:?}\n");
    if *protocol == RouteProtocol::WebSocket {
        let served = |other: &ListenAddress| {
            [format!("http://{}", other.address), format!("http://localhost:{}", other.address.port())]
        };
        let origins: Vec<String> = all.iter().flat_map(served).collect();
        table += &format!("origins = {origins:?}\n");
    }
    table
}

/// Shows the log lines of the next 200 ms, and those that wait. Takes and returns the place in the log.
fn show_new_lines(cluster: &TestCluster, mut shown: usize) -> usize {
    let until = Instant::now() + LOOK;
    while let Some((next, event)) =
        cluster.logs.wait(shown, until.saturating_duration_since(Instant::now()), |_| true)
    {
        shown = next;
        show(&event);
        if Instant::now() >= until {
            break;
        }
    }
    shown
}

/// Reads the manifest again, builds and deploys.
///
/// # Errors
/// For the developer to read; the edge keeps what was deployed before.
fn again(project: &mut Project, options: &DevOptions, cluster: &TestCluster) -> anyhow::Result<()> {
    let now = Project::open(options)?;
    if (&now.name, &now.server) != (&project.name, &project.server) {
        bail!("the app's name or its server has changed: start `marram dev` again");
    }
    *project = now;
    project.build()?;
    deploy(cluster, &marram_admin::load(&project.directory)?)
}

/// Checks that there is a project to work on.
///
/// # Errors
/// If there is none, or the address of its server is missing.
pub fn check(options: &DevOptions) -> anyhow::Result<()> {
    Project::open(options).map(drop)
}

/// Read from the manifest again before each build, since the manifest may have changed.
struct Project {
    directory: PathBuf,
    name: String,
    server: Option<String>,
    /// The module files that the manifest names; the build writes them.
    modules: Vec<PathBuf>,
    build: Option<String>,
}

impl Project {
    fn open(options: &DevOptions) -> anyhow::Result<Self> {
        let directory = std::path::absolute(&options.directory)?;
        let path = directory.join("marram.toml");
        if !path.is_file() {
            bail!("there is no {}: run it in a project, or begin one with `marram new NAME`", path.display());
        }
        let source = Source::read(&path)?;
        let manifest = Manifest::parse(&source)?;
        if let (Some(name), None) = (&manifest.server, &options.server) {
            bail!("the app's sessions talk to the server `{name}`: give its address with --server HOST:PORT");
        }
        let build = match &options.build {
            Some(command) => Some(command.clone()),
            None => build_command(&directory).map(String::from),
        };
        let modules = manifest.stages.iter().map(|stage| stage.module.clone()).collect();
        Ok(Self { directory, name: manifest.name, server: manifest.server, modules, build })
    }

    fn look(&self) -> Sources {
        Sources::look(&self.directory, &self.modules)
    }

    /// Builds the project, with the compiler's output on the terminal.
    fn build(&self) -> anyhow::Result<()> {
        let Some(command) = &self.build else { return Ok(()) };
        say(command);
        let status = Command::new("sh").args(["-c", command]).current_dir(&self.directory).status();
        let status = status.context("there is no shell to build with")?;
        if !status.success() {
            bail!("`{command}` failed: {status}{}", missing(command, status.code()));
        }
        Ok(())
    }
}

/// What may be missing on this machine, as the cause of a failed build command.
/// A guess, to be appended to the shell's own message.
fn missing(command: &str, status: Option<i32>) -> String {
    /// A shell's exit status for an unknown program.
    const NOT_FOUND: i32 = 127;
    let program = command.split(' ').next().unwrap_or_default();
    match (program, status) {
        ("cargo", Some(NOT_FOUND)) => {
            "; there is no cargo: install Rust from https://rustup.rs, and open a new terminal".into()
        }
        (_, Some(NOT_FOUND)) => {
            format!("; there is no `{program}`: install it, or say how to build with --build")
        }
        ("cargo", _) if !has_target() => {
            format!("; Rust's target {TARGET} is not installed: `rustup target add {TARGET}`")
        }
        ("make", _) => {
            "; if it names a compiler that is missing: a cell in C needs clang with lld, and README.md \
            says what else"
                .into()
        }
        _ => String::new(),
    }
}

/// The target of cells in Rust.
const TARGET: &str = "wasm32-wasip1";

/// Whether Rust's libraries for the target are installed; true if that cannot be found out.
/// Asked only after a build has failed: it starts a process.
fn has_target() -> bool {
    let asked = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    let Ok(root) = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()) else {
        return true;
    };
    root.is_empty() || Path::new(&root).is_dir()
}

/// The command that builds a project, by its files; `None` if there is none to run.
fn build_command(directory: &Path) -> Option<&'static str> {
    let has = |name: &str| directory.join(name).is_file();
    if has("Cargo.toml") {
        return Some("cargo build --release --target wasm32-wasip1");
    }
    (has("Makefile") || has("makefile")).then_some("make")
}

/// Through the admin API, as `marram deploy` does.
fn deploy(cluster: &TestCluster, upload: &Upload) -> anyhow::Result<()> {
    let body = upload.encode()?;
    cluster.edges[0].client()?.call(Method::POST, "/v1/apps", body)?;
    Ok(())
}

/// The error text if a process did not start, with the last lines.
fn errors(cluster: &TestCluster) -> String {
    format!("its edge or agent on this machine has stopped; the last lines:\n{}", cluster.logs.tail(10))
}

fn say(what: &str) {
    println!("==> {what}");
}

/// Prints a log line for people, without the debug lines of agents and edges.
/// What cells print is shown at each level: that is what a developer looks for.
fn show(event: &LogEvent) {
    if event.name() == "process_ended" {
        return say(&format!("{} has ended", event.who));
    }
    let level = event.text("level");
    if matches!(level, "DEBUG" | "TRACE") && event.text("target") != "guest" {
        return;
    }
    let who = if event.text("target") == "guest" { "cell" } else { &event.who };
    let mut line = format!("{level:>5} {who}: {}", event.text("message"));
    for (name, value) in event.fields.as_object().into_iter().flatten() {
        if !matches!(name.as_str(), "timestamp" | "level" | "target" | "message") {
            line += &format!(" {name}={}", value.as_str().map_or_else(|| value.to_string(), String::from));
        }
    }
    println!("{line}");
}
