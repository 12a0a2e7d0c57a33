//! How time passes, and events are handled one after the other.

use super::{AgentInput, Event, MS, ShardInput, World};

impl World {
    /// Lets so much time pass.
    pub(crate) fn runs(&mut self, ms: u64) {
        let until_ns = self.now_ns + ms * MS;
        let mut wakes_at_once = 0;
        loop {
            self.settles();
            let next_ns = self.next_wake_ns().filter(|next_ns| *next_ns <= until_ns);
            let Some(next_ns) = next_ns else { break };
            wakes_at_once = if next_ns > self.now_ns { 0 } else { wakes_at_once + 1 };
            assert!(wakes_at_once < 100, "a machine asks to be woken again and again");
            self.wakes(next_ns);
        }
        self.now_ns = until_ns;
    }

    fn next_wake_ns(&self) -> Option<u64> {
        let edges = self.edges.iter().filter(|edge| edge.shard.is_some() && !edge.frozen);
        let wakes = edges.filter_map(|edge| edge.wake_ns);
        wakes.chain(self.clients.iter().filter_map(|client| client.wake_ns)).min()
    }

    /// Wakes what is to be woken at this time.
    fn wakes(&mut self, at_ns: u64) {
        self.now_ns = self.now_ns.max(at_ns);
        for number in 0..self.edges.len() {
            let edge = &mut self.edges[number];
            if !edge.frozen && edge.wake_ns.take_if(|wake_ns| *wake_ns <= self.now_ns).is_some() {
                self.events.push_back(Event::Edge(number, ShardInput::Wake));
            }
        }
        for number in 0..self.clients.len() {
            let client = &mut self.clients[number];
            if client.wake_ns.take_if(|wake_ns| *wake_ns <= self.now_ns).is_some() {
                self.events.push_back(Event::Agent(number, AgentInput::Wake));
            }
        }
    }

    /// Handles so many events. Where there is none, time passes until there is.
    pub(crate) fn steps(&mut self, events: usize) {
        for _ in 0..events {
            if self.events.is_empty()
                && let Some(next_ns) = self.next_wake_ns()
            {
                self.wakes(next_ns);
            }
            self.settles_some(1);
        }
    }

    /// Handles so many events, if there are as many.
    pub(crate) fn settles_some(&mut self, events: usize) {
        for _ in 0..events {
            match self.events.pop_front() {
                Some(Event::Edge(edge, input)) => self.edge_steps(edge, input),
                Some(Event::Agent(client, input)) => self.agent_steps(client, input),
                None => return,
            }
        }
    }

    pub(super) fn settles(&mut self) {
        if self.takes_batches {
            return self.settles_in_batches();
        }
        let mut handled = 0;
        while let Some(event) = self.events.pop_front() {
            handled += 1;
            assert!(handled < 100_000, "the machines never come to rest");
            match event {
                Event::Edge(edge, input) => self.edge_steps(edge, input),
                Event::Agent(client, input) => self.agent_steps(client, input),
            }
        }
    }
}
