//! The programs that run as services: `marram edge`, `marram agent`, `marram recorder`, `marram coordinator serve`, and the hidden
//! `marram shard`.
//!
//! ```text
//! configuration ─▶ log, warnings ─▶ descriptors ─▶ lock, listeners ─▶ helper threads ─▶ the main loop
//! ```
//!
//! What is wrong in the configuration itself fails with status 2 before anything is bound. The main
//! loop runs on the process's first thread and returns when a stop is complete.

use super::Failure;
use anyhow::Context;
use clap::{Args, Subcommand};
use marram_admin::{self, AdminState, AgentAdmin, RecorderAdmin};
use marram_config::agent::{AgentRole, Flags};
use marram_config::source::Source;
use marram_config::units::{Address, ListenAddress, Name, ServerAddress};
use marram_config::{self, environment};
use marram_node::coordinator::{Coordinator, ServedStore};
use marram_node::{edge, logging, recorder};
use marram_sandbox::set_latency_sensitive;
use marram_transport::{StopSignal, cannot_listen};
use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

/// `marram edge`
#[derive(Args)]
pub(super) struct Edge {
    /// Configuration; `marram config sample edge` prints one.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The format of log lines; overrides the configuration.
    #[arg(long, value_enum)]
    log: Option<logging::Format>,
}

/// `marram demo-edge`: an edge that makes a mistake on purpose, or is the baseline of a benchmark. It is a separate command, so that
/// no configuration and no environment variable of a production edge can turn this on.
#[derive(Args)]
pub(super) struct DemoEdge {
    #[command(flatten)]
    edge: Edge,
    /// Flip one bit of the N-th output of each shard.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), required_unless_present = "whole")]
    sabotage: Option<u64>,
    /// Copy all sessions that have one backup at one moment, where that gets pages, and release their outputs together.
    #[arg(long)]
    whole: bool,
}

pub(super) fn edge(arguments: &Edge) -> Result<(), Failure> {
    run_edge(arguments, (0, false))
}

pub(super) fn demo_edge(arguments: &DemoEdge) -> Result<(), Failure> {
    run_edge(&arguments.edge, (arguments.sabotage.unwrap_or(0), arguments.whole))
}

/// The parts of an edge know each other only through the handles and callbacks that are made here.
fn run_edge(arguments: &Edge, demonstrates: (u64, bool)) -> Result<(), Failure> {
    // The supervisor compiles modules.
    marram_node::memory::use_single_arena();
    let usage = |problem: marram_config::source::Problem| Failure::Usage(problem.into());
    let source = Source::read(&arguments.config).map_err(usage)?.with_own_environment();
    let mut config = marram_config::edge::EdgeSettings::parse(&source).map_err(usage)?;
    (config.edge.sabotage, config.edge.whole) = demonstrates;
    start_logging(&config.log, arguments.log)?;
    warn_of(&source, environment::EDGE);
    raise_descriptor_limit();
    // Held until the process ends. Before any other use of the directory.
    let _held = edge::lock(&config.admin.state).map_err(anyhow::Error::from)?;
    let (client, channel) = edge::admin_channel();
    let listen = config.admin.listen;
    let listener = listen_for_operators(listen)?;
    let coordinator = config.coordinator.as_ref().map(|options| {
        let shards = edge::shards(&config.edge);
        Coordinator::start(&config.edge.name, options, shards, client.clone())
    });
    let coordinator = coordinator.transpose().map_err(anyhow::Error::from)?;
    let state = Arc::new(AdminState::new(&config, client, coordinator.clone()));
    marram_admin::start(listener, Arc::clone(&state)).context("the admin API cannot start")?;
    tracing::info!(target: "marram_admin", address = %listen, "listening for operators");
    let fetch = (!state.peers.is_empty() || coordinator.is_some()).then(|| {
        let fetch: edge::Fetch =
            Arc::new(move |version| marram_admin::fetch(&state, version).map_err(edge::PeersError::from));
        fetch
    });
    let coordinating = coordinator.clone().map(|coordinator| {
        let coordinating: edge::Coordinating =
            Arc::new(move |ask, answered| coordinator.ask_then(ask, answered));
        coordinating
    });
    let ended = edge::run_supervisor(&config.edge, channel, fetch, coordinating);
    // Last: until now the edge had sessions, and others may fetch images from it.
    coordinator.iter().for_each(Coordinator::leave);
    Ok(ended.map_err(anyhow::Error::from)?)
}

/// `marram agent`
#[derive(Subcommand)]
pub(super) enum Agent {
    /// Beside clients: accepts their connections and forwards them to edges.
    Client(AgentArguments),
    /// Beside servers: connects to them for sessions on edges.
    Server(AgentArguments),
}

/// A file, or flags for the common case.
#[derive(Args)]
pub(super) struct AgentArguments {
    /// Configuration; `marram config sample agent-client` prints one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["edges", "listen", "servers", "token_file", "insecure_plain"])]
    config: Option<PathBuf>,
    /// An edge, preferred first; repeat it for several.
    #[arg(long = "edge", value_name = "HOST:PORT", required_unless_present = "config")]
    edges: Vec<Address>,
    /// Where local clients connect, and to which app.
    #[arg(long, value_name = "[udp://|ws://]ADDRESS=APP", value_parser = pair::<ListenAddress, Name>)]
    listen: Vec<(ListenAddress, Name)>,
    /// A server, by the name that manifests use.
    #[arg(long = "server", value_name = "NAME=[udp://]HOST:PORT", value_parser = pair::<Name, ServerAddress>)]
    servers: Vec<(Name, ServerAddress)>,
    /// File with the token that agents and edges share.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Never encrypt: everything can be read on the network.
    #[arg(long)]
    insecure_plain: bool,
    /// The format of log lines; overrides the configuration.
    #[arg(long, value_enum)]
    log: Option<logging::Format>,
}

/// Both kinds are the same program with another configuration.
pub(super) fn agent(arguments: &Agent) -> Result<(), Failure> {
    let (side, arguments) = match arguments {
        Agent::Client(arguments) => (AgentRole::Client, arguments),
        Agent::Server(arguments) => (AgentRole::Server, arguments),
    };
    let usage = |problem: marram_config::source::Problem| Failure::Usage(problem.into());
    let source = match &arguments.config {
        Some(path) => Source::read(path).map_err(usage)?.with_own_environment(),
        None => Source::new("the command line", String::new()).with_own_environment(),
    };
    let config = match &arguments.config {
        Some(_) => marram_config::agent::AgentSettings::parse(&source, side).map_err(usage)?,
        None => {
            marram_config::agent::AgentSettings::from_flags(&source, flags(arguments), side).map_err(usage)?
        }
    };
    start_logging(&config.log, arguments.log)?;
    warn_of(&source, environment::AGENT);
    raise_descriptor_limit();
    let stop = StopSignal::on_signals().context("signals cannot be caught")?;
    // Flags cannot be read again.
    if let Some(path) = &arguments.config {
        reload_on_hangup(path.clone(), side, config.agent.routing.clone())
            .context("SIGHUP cannot be caught")?;
    }
    if let Some(marram_config::agent::AgentAdminSettings { name, listen, access }) = config.admin {
        let listener = listen_for_operators(listen)?;
        marram_admin::serve(
            listener,
            name,
            &access,
            Arc::new(AgentAdmin { routing: config.agent.routing.clone() }),
        )
        .context("the admin API cannot start")?;
        tracing::info!(target: "marram_admin", address = %listen, "listening for operators");
    }
    set_latency_sensitive();
    Ok(marram_agent::run(&config.agent, stop).map_err(anyhow::Error::from)?)
}

/// Reads the configuration again at each SIGHUP and takes its routes; everything else does not change.
/// A thread of its own, because reading files may block, and the agent's loop must not.
fn reload_on_hangup(path: PathBuf, side: AgentRole, routing: marram_agent::Routing) -> anyhow::Result<()> {
    let (mut hangups, sender) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, sender)?;
    std::thread::Builder::new().name("reload".into()).spawn(move || {
        while hangups.read_exact(&mut [0]).is_ok() {
            match reload(&path, side, &routing) {
                Ok(count) => {
                    tracing::info!(event = "routes", count, "routes are those of the configuration now")
                }
                Err(why) => tracing::warn!(event = "routes_kept", "routes are unchanged: {why}"),
            }
        }
    })?;
    Ok(())
}

/// The whole file is parsed, so any error in it keeps the present routes. Sessions that are open
/// stay as they are.
fn reload(path: &std::path::Path, side: AgentRole, routing: &marram_agent::Routing) -> Result<usize, String> {
    let source = Source::read(path).map_err(|problem| problem.to_string())?.with_own_environment();
    let config =
        marram_config::agent::AgentSettings::parse(&source, side).map_err(|problem| problem.to_string())?;
    let rules: Vec<_> = config.agent.routing.rules().1.into_iter().map(|(rule, _)| rule).collect();
    let count = rules.len();
    match routing.replace(None, rules) {
        Ok(_) => Ok(count),
        Err(marram_agent::NotReplaced::Refused(refused)) => {
            Err(format!("`route.{}` {}; listeners are read at start only", refused.field, refused.what))
        }
        Err(marram_agent::NotReplaced::Moved(_)) => Err("they were replaced meanwhile".to_string()),
    }
}

fn flags(arguments: &AgentArguments) -> Flags {
    Flags {
        edges: arguments.edges.clone(),
        listen: arguments.listen.clone(),
        servers: arguments.servers.clone(),
        token_file: arguments.token_file.clone(),
        insecure_plain: arguments.insecure_plain,
    }
}

/// `marram recorder`
#[derive(Args)]
pub(super) struct Recorder {
    /// Configuration; `marram config sample recorder` prints one.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The format of log lines; overrides the configuration.
    #[arg(long, value_enum)]
    log: Option<logging::Format>,
}

/// The admin API answers as soon as its thread runs; questions to the recorder wait until its loop
/// does.
pub(super) fn recorder(arguments: &Recorder) -> Result<(), Failure> {
    let usage = |problem: marram_config::source::Problem| Failure::Usage(problem.into());
    let source = Source::read(&arguments.config).map_err(usage)?.with_own_environment();
    let config = marram_config::recorder::RecorderSettings::parse(&source).map_err(usage)?;
    start_logging(&config.log, arguments.log)?;
    warn_of(&source, environment::RECORDER);
    raise_descriptor_limit();
    let stop = StopSignal::on_signals().context("signals cannot be caught")?;
    let (client, questions) = recorder::questions();
    let listener = listen_for_operators(config.listen)?;
    let state = Arc::new(RecorderAdmin { client });
    marram_admin::serve(listener, config.recorder.name.clone(), &config.access, state)
        .context("the admin API cannot start")?;
    tracing::info!(target: "marram_admin", address = %config.listen, "listening for operators");
    Ok(recorder::run(&config.recorder, questions, stop).map_err(anyhow::Error::from)?)
}

/// `marram coordinator serve`
#[derive(Args)]
pub(super) struct StoreServer {
    /// Configuration; `marram config sample coordinator` prints one.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The format of log lines; overrides the configuration.
    #[arg(long, value_enum)]
    log: Option<logging::Format>,
}

/// Everything that was answered is on disk, so there is nothing to drain at a stop.
pub(super) fn store(arguments: &StoreServer) -> Result<(), Failure> {
    let usage = |problem: marram_config::source::Problem| Failure::Usage(problem.into());
    let source = Source::read(&arguments.config).map_err(usage)?.with_own_environment();
    let config = marram_config::store::StoreSettings::parse(&source).map_err(usage)?;
    start_logging(&config.log, arguments.log)?;
    warn_of(&source, environment::COORDINATOR);
    raise_descriptor_limit();
    let StopSignal { mut receiver } = StopSignal::on_signals().context("signals cannot be caught")?;
    // One process a directory: two would overwrite each other's decisions.
    let _held = config.serve.file.parent().map(edge::lock).transpose().map_err(anyhow::Error::from)?;
    let store = ServedStore::start(&config.serve, config.identity.as_ref()).map_err(anyhow::Error::from)?;
    receiver.set_nonblocking(false).context("signals cannot be awaited")?;
    StopSignal::take(&mut receiver, 0);
    tracing::info!(keys = store.figures().keys, "stopped; edges go on without a coordinator meanwhile");
    Ok(())
}

/// Bound before the logs say anything about it, and before the main loop starts: a wrong address
/// ends the program at once.
fn listen_for_operators(listen: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(listen).map_err(|error| {
        Failure::Other(cannot_listen(listen, "for operators (`admin.listen`)", error).into())
    })
}

/// Its setup comes over standard input, its log settings by the environment: it has no flags that
/// could be wrong.
pub(super) fn shard() -> Result<(), Failure> {
    logging::start_from_environment();
    Ok(edge::run_shard().map_err(anyhow::Error::from)?)
}

/// With fewer file descriptors, connections will soon be refused unexpectedly.
const DESCRIPTORS_FEW: u64 = 1_024;

/// Raises the limit of file descriptors to the hard limit: each session needs a socket, and there are others.
/// The soft limit is often 1,024 for the sake of `select`, which nothing here uses.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Fails only if something besides the hard limit forbids it; then the old limit remains.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    if let Some(maximum) = limit.maximum.filter(|maximum| *maximum < DESCRIPTORS_FEW) {
        tracing::warn!(
            maximum,
            "this process may open only few files, and a connection is one: raise the limit (`ulimit -Hn`, LimitNOFILE= in a unit)"
        );
    }
}

/// After the logs are started, so that warnings reach `marram logs` too. Values of variables are
/// not logged: they may be secrets.
fn warn_of(source: &Source, prefix: &str) {
    let chosen = environment::chosen(prefix, source.environment()).unwrap_or_default();
    if !chosen.is_empty() {
        let names: Vec<&str> = chosen.iter().map(|(name, _)| name.as_str()).collect();
        tracing::info!(variables = names.join(" "), "the environment overrides the configuration");
    }
    source.warnings().iter().for_each(|problem| tracing::warn!("{problem}"));
}

/// The flag decides the format, and `MARRAM_LOG` the levels: both are stronger than the file.
fn start_logging(configured: &logging::LogOptions, format: Option<logging::Format>) -> Result<(), Failure> {
    let format = format.unwrap_or(configured.format);
    logging::start(&logging::LogOptions { format, ..configured.clone() })
        .map_err(|why| Failure::Usage(why.into()))
}

/// `A=B`
/// Split at the first `=`: neither addresses nor names contain one.
fn pair<A, B>(text: &str) -> Result<(A, B), String>
where
    A: std::str::FromStr<Err: ToString>,
    B: std::str::FromStr<Err: ToString>,
{
    let (a, b) = text.split_once('=').ok_or("there is no `=` in it")?;
    Ok((
        a.parse().map_err(|error: A::Err| error.to_string())?,
        b.parse().map_err(|error: B::Err| error.to_string())?,
    ))
}
