//! `marram bench log_or_pages`: how many bytes an epoch is at the backup as log, as pages, and as whichever the edge chooses, by the size of
//! messages and the number of pages that each of them writes. Pico Replication's 4.3.
//!
//! ```text
//! a round:   10 messages, a millisecond apart: size bytes that the cell drops, then one word in each of so many pages, and an answer
//!            an epoch ends every 20 ms; the next round begins when all answers are here
//! ```
//! Bytes are counted where they are sent to the backup, with their seals; times do not matter. The messages' bytes are random, and so is the
//! cell's state: neither log nor whole pages compress.

use crate::ballast::xorshift;
use crate::epoch::scene::{Owner, figures, start_owner, wait_until};
use crate::pinger::{self, Pinger};
use crate::report::{Bar, Report};
use crate::{Plan, progress};
use anyhow::Context;
use hyper::Method;
use marram_cluster::{TestCluster, TestStore};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// What the backup gets, as manifests say it, and the app of each.
const FORMS: [&str; 3] = ["log", "pages", "auto"];
const LOG: usize = 0;
const PAGES: usize = 1;
const AUTO: usize = 2;
const SERVER: &str = "echo";
/// Of the cell. A tenth of it is more than the pages that are written.
const STATE_BYTES: u64 = 4 << 20;
const SIZES: [u64; 3] = [16, 256, 4096];
const DIRTY_PAGES: [u64; 3] = [1, 16, 64];
const PAGE: u64 = 4096;
/// Messages of a round, and the time from one to the next.
const MESSAGES: u64 = 10;
const APART: Duration = Duration::from_millis(1);
/// Rounds after which every page that a message writes has gone to the backup once.
const WARM_ROUNDS: u64 = 6;
/// Log after which the edge tries pages for the first time, if it is to choose.
const TRIED_BYTES: u64 = 20 * (16 << 10);
/// And after so many rounds at the latest.
const TRIED_ROUNDS: u64 = 1_000;
/// Where the edge chooses, so many times as many rounds are measured: it tries the other form now and then.
const AUTO_ROUNDS: u64 = 4;
/// Bytes of an answer.
const ANSWER: usize = 17;

/// What was sent to the backup.
#[derive(Clone, Copy)]
struct Sent {
    log: u64,
    page_bytes: u64,
    written: u64,
    whole: u64,
    differences: u64,
}

impl Sent {
    fn since(self, before: Self) -> Self {
        Self {
            log: self.log - before.log,
            page_bytes: self.page_bytes - before.page_bytes,
            written: self.written - before.written,
            whole: self.whole - before.whole,
            differences: self.differences - before.differences,
        }
    }

    fn bytes(self) -> u64 {
        self.log + self.page_bytes
    }
}

/// The owner, its backup, and an app for each form.
struct Scene {
    cluster: TestCluster,
    listens: Vec<SocketAddr>,
    _store: TestStore,
}

impl Scene {
    fn start(plan: &Plan) -> anyhow::Result<Self> {
        let mut cluster = TestCluster::new(plan.layout("bench-forms", 2, ""), |place| {
            let manifest = |form: &&str| {
                let rest = format!(
                    "server = \"{SERVER}\"\nprotect = \"epoch\"\n[epoch]\nevery = \"20ms\"\nform = \"{form}\"\n"
                );
                plan.cells.manifest(place, form, "ballast", &rest)
            };
            FORMS.iter().map(manifest).collect()
        })?;
        let Owner { extra, listens, store } = start_owner(plan, &mut cluster, SERVER, &FORMS)?;
        cluster.start_edge(1, &extra)?;
        let scene = Self { cluster, listens, _store: store };
        let owner = scene.cluster.edges[0].client()?;
        wait_until(|| Ok(figures(&owner, ["other_edges"])? == [1]), "the edges do not reach each other")?;
        Ok(scene)
    }

    /// A new session of this form, with its state, which its backup has.
    fn session(&self, form: usize) -> anyhow::Result<Client> {
        let owner = self.cluster.edges[0].client()?;
        let stream = Pinger::fill(self.listens[form], STATE_BYTES)?;
        // The one before has ended.
        let is_backed = || {
            let list = owner.json(Method::GET, "/v1/sessions")?;
            let rows = list["sessions"].as_array().context("it lists sessions")?;
            Ok(rows.len() == 1 && rows[0]["backup"] == "backed")
        };
        wait_until(is_backed, "the session has no backup").with_context(|| self.cluster.logs.tail(20))?;
        Ok(Client { stream, random: 0x5eed })
    }

    fn sent(&self) -> anyhow::Result<Sent> {
        let names = [
            "epoch_log_bytes_total",
            "epoch_page_bytes_total",
            "epoch_pages_written_total",
            "epoch_pages_whole_total",
            "epoch_pages_difference_total",
        ];
        let [log, page_bytes, written, whole, differences] =
            figures(&self.cluster.edges[0].client()?, names)?;
        Ok(Sent { log, page_bytes, written, whole, differences })
    }

    /// What so many rounds send.
    fn rounds(&self, client: &mut Client, count: u64, message: Message) -> anyhow::Result<Sent> {
        let before = self.sent()?;
        for _ in 0..count {
            client.round(message).with_context(|| self.cluster.logs.tail(20))?;
        }
        Ok(self.sent()?.since(before))
    }

    /// Rounds until the edge has tried pages. Before that it may have sent some, to bound what its backup would replay.
    fn until_tried(&self, client: &mut Client, message: Message) -> anyhow::Result<()> {
        let mut log = 0;
        for _ in 0..TRIED_ROUNDS {
            log += self.rounds(client, 1, message)?.log;
            if log >= TRIED_BYTES {
                return Ok(());
            }
        }
        anyhow::bail!("the edge has not tried pages in {TRIED_ROUNDS} rounds")
    }
}

/// What each message does.
#[derive(Clone, Copy)]
struct Message {
    size: u64,
    /// `T` changes a word in each page, `W` changes it and then writes what it was.
    op: u8,
    pages: u64,
}

struct Client {
    stream: TcpStream,
    random: u64,
}

impl Client {
    /// Sends the messages of a round, and takes their answers.
    fn round(&mut self, message: Message) -> anyhow::Result<()> {
        let begun = Instant::now();
        for number in 0..MESSAGES {
            let due = begun + APART * u32::try_from(number).unwrap_or(u32::MAX);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let mut bytes = pinger::command(b'D', message.size, 0).to_vec();
            bytes.extend((0..message.size).map(|_| {
                self.random = xorshift(self.random);
                self.random.to_le_bytes()[0]
            }));
            bytes.extend(pinger::command(message.op, message.pages, 0));
            self.stream.write_all(&bytes)?;
        }
        for _ in 0..MESSAGES {
            let mut answer = [0; ANSWER];
            self.stream.read_exact(&mut answer).context("the cell did not answer")?;
            let changed = answer[1..9].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
            anyhow::ensure!(
                (answer[0], changed) == (message.op, message.pages),
                "the cell answered {answer:?} instead of {} pages",
                message.pages
            );
        }
        Ok(())
    }
}

/// Runs the benchmark.
pub(super) fn run(plan: &Plan) -> anyhow::Result<Report> {
    let mut report = Report::new("log_or_pages");
    let scene = Scene::start(plan)?;
    let rounds = if plan.quick { 5 } else { 50 };
    if plan.wants("forms") {
        forms(plan, &scene, rounds, &mut report)?;
    }
    if plan.wants("written") {
        written(&scene, rounds, &mut report)?;
    }
    report.note(format!(
        "bytes of an epoch of {MESSAGES} messages that reached the backup, with their seals; `whole` counts 4 KiB for each page that was \
         written, since none of them compresses. `auto` is measured after its first trial of pages"
    ));
    Ok(report)
}

/// Bytes of each form, by size and pages.
fn forms(plan: &Plan, scene: &Scene, rounds: u64, report: &mut Report) -> anyhow::Result<()> {
    let (mut worst, mut log_wins, mut pages_win, mut of_whole) = (0.0_f64, 0_u32, 0_u32, 0.0_f64);
    for size in SIZES {
        for pages in DIRTY_PAGES {
            progress(&format!("log_or_pages: messages of {size} B, each writes to {pages} pages"));
            let message = Message { size, op: b'T', pages };
            let mut bytes = [0.0; FORMS.len()];
            for (form, name) in FORMS.iter().enumerate() {
                let mut client = scene.session(form)?;
                let chooses = form == AUTO && !plan.quick;
                if chooses {
                    scene.until_tried(&mut client, message)?;
                }
                scene.rounds(&mut client, WARM_ROUNDS, message)?;
                let rounds = rounds * if chooses { AUTO_ROUNDS } else { 1 };
                let sent = scene.rounds(&mut client, rounds, message)?;
                bytes[form] = ratio(sent.bytes(), rounds);
                report.metric(&format!("size{size}.dirty{pages}.{name}_bytes"), bytes[form]);
                // Where messages are long, their own pages are new each time.
                if form == PAGES && size == SIZES[0] {
                    of_whole = of_whole.max(ratio(sent.page_bytes, sent.written * PAGE));
                }
            }
            worst = worst.max(bytes[AUTO] / bytes[LOG].min(bytes[PAGES]));
            log_wins += u32::from(bytes[LOG] < bytes[PAGES]);
            pages_win += u32::from(bytes[PAGES] < bytes[LOG]);
        }
    }
    if plan.quick {
        report.metric("worst_vs_cheaper", worst);
    } else {
        report.metric_with_bar("worst_vs_cheaper", worst, Bar::Most(1.1));
    }
    report.metric_with_bar("log_wins", log_wins.into(), Bar::Least(1.0));
    report.metric_with_bar("pages_win", pages_win.into(), Bar::Least(1.0));
    report.metric_with_bar("xor_vs_whole_pages", of_whole, Bar::Most(0.2));
    Ok(())
}

/// Pages that were written once, and pages that are written back to what they were.
fn written(scene: &Scene, rounds: u64, report: &mut Report) -> anyhow::Result<()> {
    progress("log_or_pages: pages that are not written, or written back");
    let mut client = scene.session(PAGES)?;
    let most = DIRTY_PAGES[DIRTY_PAGES.len() - 1];
    let plain = Message { size: SIZES[0], op: b'T', pages: 0 };
    let once = Message { pages: most, ..plain };
    // The state of a flow, written once; messages that only read it follow.
    scene.rounds(&mut client, 1, once)?;
    scene.rounds(&mut client, WARM_ROUNDS, plain)?;
    let after = scene.rounds(&mut client, rounds, plain)?;
    report.metric_with_bar("written_once_pages", ratio(after.whole, rounds), Bar::Most(0.0));
    let back = Message { op: b'W', ..once };
    scene.rounds(&mut client, WARM_ROUNDS, back)?;
    let written = scene.rounds(&mut client, rounds, back)?;
    // The pages of the messages themselves are sent with and without.
    let sent = (written.whole + written.differences).saturating_sub(after.whole + after.differences);
    report.metric("written_back.written", ratio(written.written, rounds));
    report.metric("written_back.sent", ratio(sent, rounds));
    report.metric_with_bar("written_back_pages", ratio(sent, rounds).floor(), Bar::Most(0.0));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "counts of one benchmark")]
fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}
