//! The two sides that serve all tenants, each on the core that this thread runs on when it starts them: an edge with a
//! shared cell a tenant, and a memcached process a tenant.

use crate::bench::{Plan, memory};
use crate::harness::{Journal, Lab, Place, Process};
use anyhow::Context;
use bytes::Bytes;
use hyper::Method;
use std::fmt::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long processes may take until they listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses on loopback that nobody uses, all different.
fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let listener = |_| TcpListener::bind(("127.0.0.1", 0)).context("no free port on loopback");
    let listeners = (0..count).map(listener).collect::<anyhow::Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

/// An edge and its cells.
pub(super) struct Cells {
    lab: Lab,
    /// A gate a tenant.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Cells {
    pub(super) fn start(plan: &Plan, count: usize) -> anyhow::Result<Self> {
        let addresses = free_addresses(count)?;
        let mut layout = plan.layout("bench-density", 1, "");
        for (tenant, address) in addresses.iter().enumerate() {
            writeln!(layout.edge_tables, "[[gate]]\nlisten = \"{address}\"\napp = \"t{tenant}\"")?;
        }
        let mut lab = Lab::new(layout, |_| Ok(Vec::new()))?;
        lab.start_edges("")?;
        let cells = Self { lab, addresses };
        cells.deploy(plan).with_context(|| format!("what the edge said last:\n{}", cells.said()))?;
        Ok(cells)
    }

    fn deploy(&self, plan: &Plan) -> anyhow::Result<()> {
        let client = self.lab.edges[0].client()?;
        for tenant in 0..self.addresses.len() {
            // As cells/memcached/marram.toml has it.
            let rest = "cell = \"shared\"\n[quotas]\nmemory = \"64MiB\"\n";
            let manifest = plan.cells.manifest(&self.lab.place, &format!("t{tenant}"), "memcached", rest)?;
            let upload = crate::admin::load(&manifest).map_err(anyhow::Error::msg)?;
            let body: Bytes = upload.encode().map_err(anyhow::Error::msg)?;
            client.call(Method::POST, "/v1/apps", body)?;
        }
        Ok(())
    }

    /// The last lines of the edge's log.
    pub(super) fn said(&self) -> String {
        let errors = std::fs::read_to_string(self.lab.place.path().join("A-1.stderr")).unwrap_or_default();
        self.lab.journal.tail(5) + &errors
    }

    /// Of the edge: supervisor, gates and shard.
    pub(super) fn memory_kib(&mut self) -> anyhow::Result<u64> {
        let edge = self.lab.edges[0].process().context("it runs")?;
        Ok(memory::proportional_kib(edge.id()))
    }
}

/// A process a tenant.
pub(super) struct Processes {
    all: Process,
    pub(super) addresses: Vec<SocketAddr>,
    _place: Place,
}

impl Processes {
    /// How each is started, but for its port.
    pub(super) const COMMAND: &str = "memcached -l 127.0.0.1 -t 1 -m 64 -u nobody";

    pub(super) fn start(count: usize) -> anyhow::Result<Self> {
        let (place, addresses) = (Place::new("bench-density-processes")?, free_addresses(count)?);
        let mut script = String::new();
        for (tenant, address) in addresses.iter().enumerate() {
            // The last takes the shell's place, so that there are as many processes as tenants.
            let (before, after) = if tenant + 1 < count { ("", " &") } else { ("exec ", "") };
            writeln!(script, "{before}{} -p {}{after}", Self::COMMAND, address.port())?;
        }
        let script = place.write("start.sh", script)?;
        let mut command = Command::new("sh");
        command.arg(script);
        let errors = place.path().join("stderr");
        let mut all = Process::start("memcached", &mut command, &Journal::default(), &errors)?;
        let deadline = Instant::now() + PATIENCE;
        for address in &addresses {
            while TcpStream::connect(address).is_err() {
                let said = || std::fs::read_to_string(&errors).unwrap_or_default();
                let ended = all.ended() || Instant::now() >= deadline;
                anyhow::ensure!(!ended, "memcached does not listen; is it installed? {}", said());
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Self { all, addresses, _place: place })
    }

    pub(super) fn memory_kib(&self) -> u64 {
        memory::proportional_kib(self.all.id())
    }
}
