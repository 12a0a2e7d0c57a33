//! The game `scrabble`: what protection adds to a move, and how a move at an edge near by stands to one at a server far away.
//!
//! The move is one that the cell checks against board, rack and word list and refuses, so that the game stays where it is.

use super::super::report::{Bar, Report};
use super::super::{Plan, stats};
use super::added;
use super::talk::Player;
use crate::harness::{Lab, Place, Relay};
use std::net::SocketAddr;
use std::time::Duration;

/// What of the far server's time a move near by may take.
const RATIO_MAX: f64 = 0.05;
/// To the far server, one way.
const FAR: Duration = Duration::from_millis(20);
const MOVE: &str = "play zzxq h8 across";
const REFUSED: &str = "error ";
const WORDS: &str = "able\nbone\ncane\ndune\nedge\ngull\nkelp\nlime\nreed\nsand\nsedge\ntide\nwave\n";

/// Adds what it found.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let (repeats, moves, far) = if plan.quick { (2, 200, 20) } else { (9, 3_000, 200) };
    let mut lab = Lab::new(plan.layout("bench-apps-scrabble", 1, ""), |place| {
        [("bare", "none"), ("guarded", "endpoints")]
            .into_iter()
            .map(|(name, protect)| {
                place.write(&format!("apps/{name}/words"), WORDS)?;
                let words = "[[files]]\npath = \"/etc/words\"\nsource = \"words\"\n";
                manifest(plan, place, name, &format!("protect = {protect:?}\n{words}"))
            })
            .collect()
    })?;
    lab.start_edges("")?;
    let edge = lab.edge_addresses();
    let near = lab.start_client_agent(&edge, &["bare", "guarded"])?;
    let mut players = [player(near[0].address)?, player(near[1].address)?];
    let ask = |index: usize| players[index].ask(MOVE, REFUSED);
    let [_, edge_us] = added::measure("scrabble", (repeats, moves), ask, report)?;
    report.metric("scrabble_edge_p50_us", edge_us);

    // The same cell where the server is: everything takes the long way.
    let relay = Relay::start(edge[0], FAR)?;
    let distant = lab.start_client_agent(&[relay.address()], &["bare"])?;
    let mut player = player(distant[0].address)?;
    let times: Vec<f64> = (0..far).map(|_| player.ask(MOVE, REFUSED)).collect::<anyhow::Result<_>>()?;
    let far_us = stats::median(&times);
    report.metric("scrabble_far_server_p50_us", far_us);
    report.metric_with_bar("scrabble_edge_vs_far_server", edge_us / far_us, Bar::Most(RATIO_MAX));
    report.baseline(
        "far server",
        "the same game with `protect = \"none\"`, its wire held back for 20 ms each way by a relay",
    );
    Ok(())
}

fn manifest(plan: &Plan, place: &Place, name: &str, rest: &str) -> anyhow::Result<std::path::PathBuf> {
    plan.cells.manifest(place, name, "scrabble", rest)
}

/// A player with a game before them.
fn player(address: SocketAddr) -> anyhow::Result<Player> {
    let mut player = Player::connect(address)?;
    player.say("start 7")?;
    while !player.hear()?.0.starts_with("score ") {}
    Ok(player)
}
