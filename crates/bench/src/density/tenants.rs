//! An edge that has a shared cell for each tenant, each behind its own gate, on the core that this thread runs on.
//!
//! No agent: the clients connect to gates of the edge, which run in its supervisor. That is what a
//! tenant without an agent would use, and it makes the path as long as that to a process: one
//! connection.

use crate::{Plan, memcached, memory};
use anyhow::Context;
use bytes::Bytes;
use hyper::Method;
use marram_cluster::TestCluster;
use std::fmt::Write;
use std::net::SocketAddr;

/// An edge and its cells.
pub(super) struct Cells {
    cluster: TestCluster,
    /// Address of each tenant's gate.
    pub(super) addresses: Vec<SocketAddr>,
}

impl Cells {
    pub(super) fn start(plan: &Plan, count: usize) -> anyhow::Result<Self> {
        let addresses = memcached::addresses(count)?;
        let mut layout = plan.layout("bench-density", 1, "");
        for (tenant, address) in addresses.iter().enumerate() {
            writeln!(layout.edge_tables, "[[gate]]\nlisten = \"{address}\"\napp = \"t{tenant}\"")?;
        }
        let mut cluster = TestCluster::new(layout, |_| Ok(Vec::new()))?;
        cluster.start_edges("")?;
        let cells = Self { cluster, addresses };
        cells.deploy(plan).with_context(|| format!("the last lines of the edge:\n{}", cells.said()))?;
        Ok(cells)
    }

    /// Deploys one app for each tenant. They share the module, so their images have the same code
    /// and state, but each has a cell of its own.
    fn deploy(&self, plan: &Plan) -> anyhow::Result<()> {
        let client = self.cluster.edges[0].client()?;
        for tenant in 0..self.addresses.len() {
            // The settings of cells/services/memcached/marram.toml.
            let rest = "cell = \"shared\"\n[quotas]\nmemory = \"64MiB\"\n";
            let manifest =
                plan.cells.manifest(&self.cluster.directory, &format!("t{tenant}"), "memcached", rest)?;
            let upload = marram_admin::load(&manifest)?;
            let body: Bytes = upload.encode()?;
            client.call(Method::POST, "/v1/apps", body)?;
        }
        Ok(())
    }

    /// Stops or continues the edge.
    pub(super) fn rest(&self, rests: bool) {
        let edge = &self.cluster.edges[0];
        if rests { edge.stop() } else { edge.wake() }
    }

    /// The last lines of the edge's log. With what it wrote to standard error: a panic does not
    /// reach the log.
    pub(super) fn said(&self) -> String {
        let errors =
            std::fs::read_to_string(self.cluster.directory.path().join("A-1.stderr")).unwrap_or_default();
        self.cluster.logs.tail(5) + &errors
    }

    /// Memory of the edge: supervisor, gates and shard.
    pub(super) fn memory_kib(&mut self) -> anyhow::Result<u64> {
        let edge = self.cluster.edges[0].process().context("it runs")?;
        Ok(memory::proportional_kib(edge.id()))
    }
}
