//! The cell `background`: how long a camera's frame is delayed when the edge that has learned the scene dies.
//!
//! ```text
//! camera --frame k, 25 a second--> edge: mean of 98 frames --frames with motion--> viewer
//! gap = time of the frame that is sent at the kill - what a frame takes otherwise
//! ```
//! The state is large and changes with every frame: the case in which a recovery has most to move.
//! Frames are of 768 x 576 grey pixels, and every frame after the learning phase has motion in it,
//! so that the viewer must get each.

use super::super::report::{Bar, Report};
use super::super::{Plan, ballast, progress, standby, stats};
use anyhow::Context;
use marram_cluster::TestCluster;
use marram_wire::seeded::Seeded;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The most that a kill may delay a frame.
const GAP_MS_MAX: f64 = 60.0;
const WIDTH: usize = 768;
const HEIGHT: usize = 576;
const PIXELS: usize = WIDTH * HEIGHT;
/// Number of frames in the cell's mean: with their sums, an incoming frame and its mask, 43 MiB of state.
const FRAMES: usize = 98;
/// Frames between kills; their median is the delay without a fault.
const BETWEEN: usize = 20;
/// Interval between frames: a camera's 25 a second.
const PACE: Duration = Duration::from_millis(40);
/// Number of pictures with different noise. More than one, so that noise is not part of the learned
/// scene.
const PICTURES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures and adds the figures to the report.
pub(super) fn run(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let kills = if plan.quick { 3 } else { 20 };
    let (gaps, typical) = watch(plan, "protect = \"endpoints\"\n", None, kills)?;
    report.metric_with_bar("background_recover_gap_ms", stats::median(&gaps), Bar::Most(GAP_MS_MAX));
    report.tail("background_recover_gap_p99_ms", &stats::Tail::of(&gaps));
    report.metric("background_frame_p50_ms", stats::median(&typical));
    let standby = "protect = \"standby\"\nstandby = \"warm\"\n";
    let (gaps, _) = watch(plan, standby, Some("warm"), kills.div_ceil(2))?;
    report.metric("background_standby_gap_ms", stats::median(&gaps));
    report.note(
        "background: 25 frames a second; from the kill of the edge to the frame that is sent at that moment, less what a frame takes \
         otherwise; the state is at the ends alone, or also at the other edge, which stands by warm",
    );
    report.baseline("CESSNA", "the paper's figure: 83 ms to restore 43 MB from a file on the same machine");
    Ok(())
}

/// Kills the edge repeatedly, each time once the session is protected and has a ready keeper of the kind `keeper`. Returns the
/// gaps, and the delays of the frames between kills, in milliseconds.
///
/// `keeper` is the kind of standby that the policy has, if it has one.
fn watch(
    plan: &Plan,
    protect: &str,
    keeper: Option<&str>,
    kills: usize,
) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let rest = format!(
        "server = \"viewer\"\n{protect}[quotas]\nmemory = \"96MiB\"\n[[files]]\npath = \"/etc/background\"\nsource = \"settings\"\n"
    );
    let mut cluster = TestCluster::new(plan.layout("bench-apps-background", 2, ""), |place| {
        place.write("apps/background/settings", format!("frames = {FRAMES}\n"))?;
        Ok(vec![plan.cells.manifest(place, "background", "background", &rest)?])
    })?;
    let extra = if keeper.is_some() { standby::stand_by(&cluster) } else { String::new() };
    cluster.start_edges(&extra)?;
    let edges = cluster.edge_addresses();
    let (viewer, seen) = viewer()?;
    cluster.start_server_agent(&edges, &[("viewer", viewer)])?;
    let address =
        cluster.start_client_agent(&edges, &["background"])?.first().context("one listener")?.address;
    let mut camera = Camera::new(address, seen)?;
    // The cell forwards every frame while it learns the scene, so the camera can wait for each of them.
    for _ in 0..FRAMES {
        camera.show(false)?;
    }
    let (mut gaps, mut typical) = (Vec::new(), Vec::new());
    for kill in 0..kills {
        progress(&format!("apps: background, kill {} of {kills}", kill + 1));
        wait_until_kept(&cluster, &mut camera, keeper)?;
        let mut usual = Vec::new();
        for _ in 0..BETWEEN {
            let next = Instant::now() + PACE;
            usual.push(camera.show(true)?);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        let (owner, start) = (cluster.owner()?, cluster.logs.end());
        let begun = Instant::now();
        cluster.edges[owner].kill();
        let died = begun.elapsed().as_secs_f64() * 1e3;
        // `kill` returns when the process is gone; the time that this takes is part of the wait.
        let waited = died + camera.show(true)?;
        gaps.push((waited - stats::median(&usual)).max(0.0));
        typical.extend(usual);
        cluster.wait_for_owner(start)?;
        cluster.respawn_with(owner, &extra)?;
    }
    Ok((gaps, typical))
}

/// Shows frames until the new owner's first checkpoint is stored at the ends, and at the keeper if there is one.
///
/// The camera goes on, since an owner takes checkpoints only while messages arrive.
fn wait_until_kept(cluster: &TestCluster, camera: &mut Camera, keeper: Option<&str>) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        for _ in 0..3 {
            camera.show(true)?;
        }
        let session = ballast::session(&cluster.edges[cluster.owner()?].client()?)?;
        let stored = session["checkpoints"].as_u64().unwrap_or(0) > 1;
        if stored && keeper.is_none_or(|kind| standby::is_kept(&session, kind)) {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "no checkpoint is kept: {session}");
    }
}

/// A server that reports how many bytes it has received.
///
/// Only the total matters: the cell forwards frames whole and in order.
fn viewer() -> anyhow::Result<(SocketAddr, Receiver<usize>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("no free port for a server")?;
    let address = listener.local_addr()?;
    let (sender, seen) = channel();
    thread::spawn(move || {
        let (Ok((mut stream, _)), mut piece, mut total) = (listener.accept(), vec![0; 1 << 18], 0) else {
            return;
        };
        while let Ok(count @ 1..) = stream.read(&mut piece) {
            total += count;
            if sender.send(total).is_err() {
                return;
            }
        }
    });
    Ok((address, seen))
}

/// Sends frames and waits until they arrive at the server.
struct Camera {
    stream: TcpStream,
    /// Bytes that the viewer has received, after each of its reads.
    seen: Receiver<usize>,
    /// The last of them that was read.
    total: usize,
    /// Frames so far: selects the picture.
    shown: usize,
    /// Encoded frames of the empty scene, and with an object.
    still: Vec<Vec<u8>>,
    moving: Vec<Vec<u8>>,
}

impl Camera {
    fn new(address: SocketAddr, seen: Receiver<usize>) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.write_all(format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 Cmono\n").as_bytes())?;
        let pictures = |is_moving| (0..PICTURES).map(|noise| picture(noise, is_moving)).collect();
        Ok(Self { stream, seen, total: 0, shown: 0, still: pictures(false), moving: pictures(true) })
    }

    /// Sends a frame; returns the milliseconds until all of it has arrived.
    fn show(&mut self, is_moving: bool) -> anyhow::Result<f64> {
        let pictures = if is_moving { &self.moving } else { &self.still };
        let picture = &pictures[self.shown % PICTURES];
        self.shown += 1;
        let begun = Instant::now();
        self.stream.write_all(picture)?;
        // A frame takes a few bytes more than its pixels; any excess in the count belongs to this frame.
        let target = self.total + PIXELS;
        while self.total < target {
            self.total = self.seen.recv_timeout(PATIENCE).context("a frame did not arrive")?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}

/// A frame: a wall with light from the left, noise and, if `is_moving`, an object in front of it.
///
/// `noise` selects the picture, and with it the place of the object.
fn picture(noise: usize, is_moving: bool) -> Vec<u8> {
    let mut random = Seeded::new(noise as u64);
    let mut frame = b"FRAME\n".to_vec();
    for at in 0..PIXELS {
        let (x, y) = (at % WIDTH, at / WIDTH);
        // At another place in each picture, so that the object never becomes part of the background.
        let left = 80 * noise;
        let is_thing = is_moving && (left..left + 64).contains(&x) && (200..315).contains(&y);
        let light = if is_thing { 230 } else { 60 + x * 90 / WIDTH };
        frame.push(u8::try_from(light + random.index(9)).unwrap_or(u8::MAX));
    }
    frame
}
