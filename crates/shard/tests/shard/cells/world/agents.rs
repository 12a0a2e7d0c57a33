//! The agents of clients, and of the servers to which cells connect.

#![allow(dead_code, reason = "tests with very many keys use none of it")]

use super::{Client, Event, MS, Party, World, small};
use marram_session::agent::{Agent, AgentConfig, AgentInput, AgentServer, ConnectionId};
use marram_wire::frame::{Code, Ended, Frame};

/// What a server's agent does when a cell asks for its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Manner {
    Takes,
    /// It has no room now.
    IsBusy,
    /// It reads the question later.
    IsSilent,
    /// Its server takes nothing of what the cell says.
    IsFull,
}

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
            manner: Manner::Takes,
            unread: Vec::new(),
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

    pub(crate) fn behaves(&mut self, server: usize, manner: Manner) {
        self.clients[server].manner = manner;
    }

    /// How many questions an agent has not read yet, which it reads now.
    pub(crate) fn reads_late(&mut self, server: usize) -> usize {
        self.behaves(server, Manner::Takes);
        let unread = core::mem::take(&mut self.clients[server].unread);
        let count = unread.iter().filter(|(_, frame)| matches!(frame, Frame::Promise(_))).count();
        for (wire, frame) in unread {
            let wire = super::AgentWire(wire);
            self.events.push_back(Event::Agent(server, AgentInput::Frame { wire, frame }));
        }
        count
    }

    /// The frame, if it is read as it comes.
    pub(super) fn is_read(&mut self, to: Party, wire: u64, frame: Frame) -> Option<Frame> {
        let Party::Agent(agent) = to else { return Some(frame) };
        let is_asked = matches!(&frame, Frame::Promise(ask) if !ask.server.is_empty());
        match (&frame, self.clients[agent].manner) {
            (Frame::Promise(ask), Manner::IsBusy) if is_asked => {
                let (channel, code, reason) = (ask.channel, Code::Busy, "it has no room".into());
                self.sends(to, wire, Ended { channel, code, reason }.into());
                None
            }
            (Frame::Promise(_) | Frame::Reject(_), Manner::IsSilent) => {
                self.clients[agent].unread.push((wire, frame));
                None
            }
            (Frame::Output(_), Manner::IsFull) => None,
            _ => Some(frame),
        }
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
