//! The agents of clients, and of the servers to which cells connect.

#![allow(dead_code, reason = "tests with very many keys use none of it")]

use super::{Client, Event, MS, World, small};
use marram_session::agent::{Agent, AgentConfig, AgentInput, AgentServer, ConnectionId};

impl World {
    /// An agent of these servers that asks this edge first.
    pub(super) fn agent(&mut self, first: usize, servers: Vec<AgentServer>) -> usize {
        let number = self.clients.len();
        let edges = self.edges.len();
        let config = AgentConfig {
            servers,
            heartbeat_interval_ns: 50 * MS,
            heartbeat_timeout_ns: 200 * MS,
            backoff_min_ns: 10 * MS,
            backoff_max_ns: 100 * MS,
            spread: false,
            ..crate::support::agent_config(u16::from(small(edges)))
        };
        let agent = Agent::new(config, [small(number) + 60; 32]);
        self.clients.push(Client {
            agent,
            wake_ns: None,
            heard: String::new(),
            ended: None,
            closed: false,
            session: None,
            refused: Vec::new(),
            ends: 0,
            first,
            is_cut_off: false,
            connection: ConnectionId(1),
            connects: 0,
            refuses: false,
        });
        self.events.push_back(Event::Agent(number, AgentInput::Wake));
        self.runs(1);
        number
    }

    /// The agent of a server, `store`, that asks this edge first.
    pub(crate) fn serves(&mut self, first: usize) -> usize {
        let store = AgentServer { name: "store".into(), datagrams: false, messages: true };
        let number = self.agent(first, vec![store]);
        self.runs(100);
        number
    }

    /// How often a server was connected to, and whether it can be from now on.
    pub(crate) fn connects_to(&self, server: usize) -> usize {
        self.clients[server].connects
    }

    pub(crate) fn refuses(&mut self, server: usize) {
        self.clients[server].refuses = true;
    }

    /// The agent of a server is asked for a connection to it.
    pub(super) fn asked_for(&mut self, number: usize, connection: ConnectionId, server: &str) {
        let client = &mut self.clients[number];
        assert_eq!(server, "store");
        (client.connection, client.connects) = (connection, client.connects + 1);
        let input = match client.refuses {
            true => AgentInput::ConnectFailed { connection, reason: "it is refused".into() },
            false => AgentInput::Connected { connection },
        };
        self.events.push_back(Event::Agent(number, input));
    }
}
