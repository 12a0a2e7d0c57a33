//! The owner of a session, and restarting edges, for every run with faults.

use super::cluster::{AgentSide, TestCluster};
use super::edge::TestEdge;
use super::log_collector::LogEvent;
use anyhow::Context;
use std::time::Duration;

/// How long any one step may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl TestCluster {
    /// Whether an event is the report `name` of one side's agent.
    #[must_use]
    pub fn is_report(side: AgentSide, name: &str, event: &LogEvent) -> bool {
        event.name() == name && *event.who == *side.agent()
    }

    /// The address and the shard that an event of an agent says are up: the report for programs or, at levels without it, the line
    /// for people.
    #[must_use]
    pub(super) fn edge_up(event: &LogEvent) -> Option<(&str, u64)> {
        let address = match (event.name(), event.text("message")) {
            ("edge_up", _) => event.text("edge"),
            (_, "edge up") => event.text("address"),
            _ => return None,
        };
        Some((address, event.number("shard")))
    }

    /// The edge that owns the only session now, as its client's agent sees it. Waits for the first report, since bytes may reach
    /// the client before the agent's lines reach the collected logs.
    ///
    /// # Errors
    /// If no edge owns it.
    pub fn owner(&self) -> anyhow::Result<usize> {
        self.wait_for_owner(0)?;
        let owned = self.logs.last(|event| Self::is_report(AgentSide::Client, "owned", event));
        let owned = owned.context("an owner was reported a moment ago")?;
        self.edge_at(AgentSide::Client, owned.text("edge")).with_context(|| {
            format!("the agent reports an owner at {}, where no edge is", owned.text("edge"))
        })
    }

    /// Waits until the client's agent reports an owner; `start` is the end of the collected logs when the fault happened.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn wait_for_owner(&self, start: usize) -> anyhow::Result<LogEvent> {
        let owned = |event: &LogEvent| Self::is_report(AgentSide::Client, "owned", event);
        let found = self.logs.wait(start, PATIENCE, owned);
        let found = found.with_context(|| {
            format!("no edge recovered the session; the last lines:\n{}", self.logs.tail(30))
        });
        found.map(|(_, event)| event)
    }

    /// Waits until the client's agent reports that this edge owns a session. An earlier report of the agent may be read only now.
    ///
    /// # Errors
    /// If it does not in time.
    pub fn wait_until_owned_by(&self, start: usize, index: usize) -> anyhow::Result<()> {
        let owned = |event: &LogEvent| {
            Self::is_report(AgentSide::Client, "owned", event)
                && self.edge_at(AgentSide::Client, event.text("edge")) == Some(index)
        };
        self.logs.wait(start, PATIENCE, owned).map(drop).with_context(|| {
            let who = self.edges[index].who();
            format!("{who} does not own the session; the last lines:\n{}", self.logs.tail(30))
        })
    }

    /// Restarts an edge with an empty directory, and waits until both agents have a wire to each of its shards: without one, a
    /// session is recovered at another shard than the one that stands by for it.
    ///
    /// # Errors
    /// If they do not in time.
    pub fn respawn(&mut self, index: usize) -> anyhow::Result<()> {
        self.respawn_with(index, "")
    }

    /// As [`TestCluster::respawn`], with additional fields of its configuration.
    ///
    /// # Errors
    /// If they do not in time.
    pub fn respawn_with(&mut self, index: usize, extra: &str) -> anyhow::Result<()> {
        let start = self.logs.end();
        self.start_edge(index, extra)?;
        let shards = u64::from(self.layout.shards);
        let all = |side| (0..shards).map(move |shard| (side, shard));
        for (side, shard) in [AgentSide::Client, AgentSide::Server].into_iter().flat_map(all) {
            let address = self.address_for(side, index);
            let up = |event: &LogEvent| {
                *event.who == *side.agent() && Self::edge_up(event) == Some((address.as_str(), shard))
            };
            let found = self.logs.wait(start, PATIENCE, up);
            found.with_context(|| {
                format!("the {} does not find shard {shard} of {}", side.agent(), self.edges[index].who())
            })?;
        }
        Ok(())
    }

    /// Waits until the latest report of both agents about an edge is that it is up.
    ///
    /// # Errors
    /// If it does not come in time.
    pub fn wait_until_usable(&self, index: usize) -> anyhow::Result<()> {
        for side in [AgentSide::Client, AgentSide::Server] {
            let address = self.address_for(side, index);
            let news = |event: &LogEvent| {
                event.text("edge") == address
                    && (Self::is_report(side, "edge_up", event) || Self::is_report(side, "edge_down", event))
            };
            let mut start = self.logs.end();
            let mut up = self.logs.last(news).is_some_and(|event| event.name() == "edge_up");
            while !up {
                let found = self.logs.wait(start, PATIENCE, news);
                let (next, event) =
                    found.with_context(|| format!("the {} does not reconnect", side.agent()))?;
                (start, up) = (next, event.name() == "edge_up");
            }
        }
        Ok(())
    }

    /// A running edge other than this one.
    #[must_use]
    pub fn other(&self, index: usize) -> Option<usize> {
        (0..self.edges.len()).find(|other| *other != index && self.edges[*other].is_running())
    }

    /// The process groups of all running agents and edges.
    pub fn groups(&mut self) -> Vec<u32> {
        let agents: Vec<u32> = self.agents().map(|process| process.id()).collect();
        let edges = self.edges.iter_mut().filter_map(TestEdge::process).map(|process| process.id());
        agents.into_iter().chain(edges).collect()
    }
}
