//! Many sessions lose one edge at once: how long the slowest of their clients wait.
//!
//! The clients are tasks on one thread, and all of them ask at the moment of the kill, so every
//! recovery is waited for. The second edge has started after all sessions were opened, so it knows
//! none of them: it gets each from the session's ends.

use super::ballast::{self, APP};
use super::report::Report;
use super::{Plan, peer, pinger, progress, stats};
use anyhow::Context;
use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long any client may wait. Longer than any recovery; it ends a measurement that hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures with `sessions` sessions.
pub(super) fn run(plan: &Plan, sessions: usize, report: &mut Report) -> anyhow::Result<()> {
    progress(&format!("recover: {sessions} sessions at once"));
    let mut cluster = ballast::cluster(plan, "")?;
    // The second edge starts when all sessions are at the first.
    cluster.start_edge(0, "")?;
    let edges = cluster.edge_addresses();
    cluster.start_server_agent(&edges, &[("echo", peer::echo_server()?)])?;
    let listens = cluster.start_client_agent(&edges, &[APP])?;
    let address = listens.first().context("one app has one listener")?.address;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut clients = runtime.block_on(connect(address, sessions))?;
    cluster.respawn(1)?;
    let start = cluster.logs.end();
    let waits = runtime.block_on(lose(&mut cluster, &mut clients))?;
    let answered = waits.iter().flatten().count();
    let waits: Vec<f64> = waits.into_iter().flatten().collect();
    report.metric("mass_1000_p50_ms", stats::median(&waits));
    report.tail("mass_1000_p99_ms", &stats::Tail::of(&waits));
    report.metric("mass_sessions", sessions);
    report.metric("mass_recovered", answered);
    let owned = cluster
        .logs
        .count(start, |event: &LogEvent| TestCluster::is_report(AgentSide::Client, "owned", event));
    report.note(format!("mass: {owned} recoveries were reported for {sessions} sessions"));
    report.add_lost((sessions - answered) as u64, 0);
    Ok(())
}

/// Opens the sessions; each has received one answer.
async fn connect(address: SocketAddr, sessions: usize) -> anyhow::Result<Vec<TcpStream>> {
    let mut clients = Vec::with_capacity(sessions);
    for number in 0..sessions {
        let mut stream =
            TcpStream::connect(address).await.context("the client's agent takes no connection")?;
        stream.set_nodelay(true)?;
        ask(&mut stream, number as u64).await?;
        clients.push(stream);
    }
    Ok(clients)
}

/// Sends a numbered command and waits for its echo. The number is the client's, so an answer of
/// another session is noticed.
async fn ask(stream: &mut TcpStream, number: u64) -> anyhow::Result<()> {
    let question = pinger::command(b'E', 0, number);
    stream.write_all(&question).await?;
    let mut answer = question;
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.context("no answer in time")??;
    anyhow::ensure!(answer == question, "the answer is not what was asked");
    Ok(())
}

/// Kills the edge; all clients ask at once. Returns the wait of each client in milliseconds, where an answer came.
async fn lose(cluster: &mut TestCluster, clients: &mut Vec<TcpStream>) -> anyhow::Result<Vec<Option<f64>>> {
    cluster.edges[0].kill();
    let killed = Instant::now();
    let mut tasks = Vec::new();
    for (number, mut stream) in clients.drain(..).enumerate() {
        tasks.push(tokio::task::spawn(async move {
            let answered = ask(&mut stream, number as u64).await;
            answered.ok().map(|()| killed.elapsed().as_secs_f64() * 1e3)
        }));
    }
    let mut waits = Vec::new();
    for task in tasks {
        waits.push(task.await?);
    }
    Ok(waits)
}
