//! What a benchmark is told of its run: the programs, the cells, the parts that are wanted, the wires.
//!
//! A benchmark gets everything that it may depend on from here. It reads no environment and no
//! flags, so that a run can be repeated from its report.

use super::report::Report;
use marram_cluster::{CellFiles, Layout};
use std::path::PathBuf;
use std::time::Duration;

/// Wires between agents and edges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wires {
    /// Not encrypted, as on loopback without a token.
    Plain,
    /// TLS, as between machines; users run this.
    Encrypted,
}

impl Wires {
    /// In this order, since the figures of plain wires have the bars.
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Encrypted];

    /// Prefix of the names of figures, and of parts for `--only`.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Encrypted => "encrypted.",
        }
    }
}

/// Options of a run, which every benchmark gets.
#[derive(Clone)]
pub(super) struct Plan {
    /// `marram`.
    pub(super) program: PathBuf,
    /// This program, for its workers.
    pub(super) own: PathBuf,
    pub(super) cells: CellFiles,
    /// Few repeats; nothing is left out, except where a benchmark says so.
    pub(super) quick: bool,
    /// The text of `--only`; `None` for everything.
    pub(super) only: Option<String>,
    pub(super) wires: Wires,
}

/// How much is measured, where blocks of several variants take turns.
pub(super) struct Amount {
    pub(super) rounds: usize,
    pub(super) block: Duration,
}

impl Plan {
    /// So many rounds of blocks of this length, or one short one.
    pub(super) fn amount(&self, rounds: usize, block: Duration) -> Amount {
        if self.quick {
            Amount { rounds: 1, block: Duration::from_millis(300) }
        } else {
            Amount { rounds, block }
        }
    }

    /// Whether a part is wanted, over this plan's wires.
    pub(super) fn wants(&self, part: &str) -> bool {
        let part = format!("{}{part}", self.wires.prefix());
        self.only.as_deref().is_none_or(|only| part.contains(only))
    }

    /// Measures over plain wires, then over encrypted ones: the same keys with the prefix `encrypted.`.
    ///
    /// Both have clusters of their own, one after the other: keys and connections differ from the
    /// first byte on.
    pub(super) fn over_all_wires(
        &self,
        report: &mut Report,
        mut measure: impl FnMut(&Self, &mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for wires in Wires::ALL {
            report.set_prefix(wires.prefix());
            measure(&Self { wires, ..self.clone() }, report)?;
        }
        report.set_prefix("");
        Ok(())
    }

    /// A cluster of some edges over these wires, one shard each.
    ///
    /// `agent_tables` are added to the configuration of each agent.
    pub(super) fn layout(&self, purpose: &'static str, edges: usize, agent_tables: &str) -> Layout {
        Layout {
            purpose,
            program: self.program.clone(),
            edges,
            shards: 1,
            encrypted: self.wires == Wires::Encrypted,
            namespaces: false,
            admin: String::new(),
            edge_tables: String::new(),
            agent_tables: agent_tables.to_owned(),
            images: None,
        }
    }

    /// Raises what ends and edges keep for a session, for states of so many bytes, of which the default has no room: a full checkpoint,
    /// and a merged delta that may be as large, stay while another one comes.
    pub(super) fn raise_limits(layout: &mut Layout, bytes: u64) {
        let checkpoints = ((bytes * 5 / 2) >> 30) + 1;
        let (memory, limits) = (2 * checkpoints, format!("checkpoints = \"{checkpoints}GiB\"\n"));
        // What is on its way counts for an edge: one checkpoint to the ends, and one to another edge.
        let edges = if checkpoints > 1 { format!("memory = \"{memory}GiB\"\n") } else { String::new() };
        layout.edge_tables = format!("[limits]\n{edges}{limits}");
        layout.agent_tables = format!("[limits]\nmemory = \"{memory}GiB\"\n{limits}");
    }
}

/// Prints progress to standard error.
pub(super) fn progress(text: &str) {
    eprintln!("marram bench: {text}");
}
