//! `marram demo`: an unmodified curl downloads from an unmodified nginx through a cell that keeps state over the whole
//! stream, while the edges that run the cell are killed, stopped and killed again. Every part is a real process.
//!
//! ```text
//! curl ─▶ client's agent ─┬─▶ edge A ─┬─▶ server's agent ─▶ nginx (file, scrambled with a running key)
//!  sha256                 └─▶ edge B ─┘
//! ```
//!
//! The cell unscrambles with a key that runs over the whole stream: a byte that is lost, repeated
//! or handled by a stale edge makes all that follow wrong. So the digest at curl's side proves the
//! recovery, without looking inside.

mod curl;
mod data;
mod faults;
mod report;
mod timeline;
mod web;

use crate::failure::Failure;
use anyhow::Context;
use curl::Curl;
use data::Data;
use marram_cluster::{self, CellFiles, Layout, TestCluster};
use report::Outcome;
use std::path::PathBuf;
use timeline::Timeline;
use web::Web;

/// The app; its manifest knows the server by the same name.
const APP: &str = "unscramble";
const SERVER: &str = "web";
/// With `--sabotage`: the number of the output, in each shard, in which one bit is flipped. It is after the response's head and
/// before the first kill.
///
/// Counted by each shard: the second edge would flip a bit too, if it got that far.
const SABOTAGED_OUTPUT: u64 = 50;

/// What the demo is asked to do.
#[derive(Clone, Debug, clap::Args)]
pub struct DemoOptions {
    /// Flip one bit inside an edge, to test the check: the run must fail.
    #[arg(long)]
    pub sabotage: bool,
    /// Size of the file, in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(8..=4096))]
    pub mebibytes: u64,
    /// curl's rate limit, in MiB per second: low enough that all faults occur during the download.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub rate: u64,
    /// Serve the file with the bundled server, even where nginx is installed.
    #[arg(long)]
    pub bundled_server: bool,
    /// Directory of the built cells.
    #[arg(long, value_name = "DIR")]
    pub cells: Option<PathBuf>,
}

/// Runs the demo.
///
/// # Errors
/// If a process cannot be started or a fault does not show its effect; [`Failure::Check`] if a byte was wrong.
pub(crate) fn run(options: &DemoOptions) -> Result<(), Failure> {
    marram_cluster::end_on_interrupt()?;
    let timeline = Timeline::start();
    let outcome = play(options, &timeline)?;
    print!("{}", outcome.table());
    match outcome.verdict() {
        Ok(()) => {
            println!("every byte was right");
            Ok(())
        }
        Err(wrong) if options.sabotage => Err(Failure::Check(anyhow::anyhow!(
            "the check works: a bit was flipped inside an edge on purpose, and the run failed as it must ({wrong})"
        ))),
        Err(wrong) => Err(Failure::Check(anyhow::anyhow!("{wrong}"))),
    }
}

///
/// Processes and the directory are removed when the cluster is dropped, also after an error.
fn play(options: &DemoOptions, timeline: &Timeline) -> anyhow::Result<Outcome> {
    let cells = CellFiles::find(options.cells.as_deref())?;
    let layout = Layout {
        purpose: "demo",
        program: std::env::current_exe().context("the program's own path is unknown")?,
        edges: 2,
        shards: 1,
        encrypted: true,
        namespaces: false,
        admin: String::new(),
        edge_tables: String::new(),
        agent_tables: String::new(),
        images: None,
    };
    let manifest = format!("server = \"{SERVER}\"\nprotect = \"endpoints\"\n");
    let mut cluster =
        TestCluster::new(layout, |place| Ok(vec![cells.manifest(place, APP, APP, &manifest)?]))?;
    let data = Data::write(&cluster.directory, options.mebibytes << 20)?;
    timeline.say(&format!("{} MiB of incompressible bytes, scrambled with a running key", options.mebibytes));
    let web = Web::start(options.bundled_server, &cluster.directory, &cluster.logs, timeline)?;
    if options.sabotage {
        cluster.edges.iter_mut().for_each(|edge| edge.sabotage(SABOTAGED_OUTPUT));
    }
    cluster.start_edges("")?;
    timeline.say("edges A and B are up, each with an empty directory");
    let addresses = cluster.edge_addresses();
    cluster.start_server_agent(&addresses, &[(SERVER, web.address())])?;
    let listens = cluster.start_client_agent(&addresses, &[APP])?;
    let address = listens.first().map(|listen| listen.address).context("one app has one listener")?;
    timeline.say(&format!("agents are up; the client's listens on {address}"));
    // It prints until it is dropped, before the table.
    let follower = timeline.follow(&cluster.logs);
    let curl = Curl::start(&format!("http://{address}/{}", data::FILE), options.rate)?;
    timeline.say(&format!("curl begins: {} MiB/s at most", options.rate));
    let faults = faults::play(&mut cluster, &curl, data.size, timeline);
    let faults = match faults {
        Ok(faults) => faults,
        // If the download has failed, that explains why a fault had no effect.
        Err(why) if curl.ended() || options.sabotage => faults::Faults::interrupted(&why),
        Err(why) => return Err(why.context(format!("the last lines:\n{}", cluster.logs.tail(30)))),
    };
    let download = curl.finish()?;
    timeline.say(&format!("curl ends: {}", download.status));
    drop(follower);
    Ok(Outcome { expected: data, download, requests: web.requests(), web: web.name(), faults })
}
