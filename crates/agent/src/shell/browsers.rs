//! WebSocket clients: which route their requests take, and the outputs for their connections.
//!
//! A browser's request must be complete before a route can be chosen, so all rules see the whole
//! head at once and never ask for more. Unlike a stream, the client can get the reason of a refusal:
//! by HTTP before the upgrade, by a close frame after it.

use super::Shell;
use crate::{
    routing::{Arrived, Route},
    websocket::{UpgradeRefusal, WebSocketInput},
};
use marram_session::agent::{AgentInput, AgentOutput, ConnectionId};
use marram_transport::Socket;
use mio::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;

impl Shell {
    /// Accepts one more connection at a listener for WebSocket.
    pub(super) fn browser_accepted(&mut self, stream: TcpStream, arrived: Arrived) {
        let (registry, now) = (self.poll.registry(), self.clock.now());
        // Fails if the client is gone already, or the system is out of memory; the client sees its connection close.
        let accepted = Socket::tcp(stream);
        let proxied = self.routing.takes_proxies(arrived.listener);
        let _ = accepted.and_then(|socket| self.websockets.accept(registry, socket, (arrived, proxied), now));
    }

    /// The next input of a WebSocket client.
    pub(super) fn next_from_browsers(&mut self) -> Option<AgentInput> {
        loop {
            let now = self.clock.now();
            let routing = &self.routing;
            match self.websockets.next(now, |listener| routing.origins(listener))? {
                WebSocketInput::Input(input) => return Some(input),
                WebSocketInput::Asked { connection, .. } if self.stops > 0 => {
                    self.websockets.refuse(now, connection, &UpgradeRefusal::stopping());
                }
                WebSocketInput::Unproxied { arrived, error } => {
                    self.tell_unproxied(&arrived, &error.to_string())
                }
                WebSocketInput::Asked { connection, arrived, head } => {
                    let Arrived { listener, client, .. } = arrived;
                    match self.routing.decide(listener, client, &head, true) {
                        Route::App(app, key) => {
                            self.routing.counts(listener).begun.fetch_add(1, Relaxed);
                            self.websockets.grant(connection);
                            let origin = self.routing.origin(&arrived);
                            let (datagrams, messages) = (false, true);
                            self.step(AgentInput::Accepted {
                                connection,
                                app,
                                key,
                                datagrams,
                                messages,
                                origin,
                            });
                        }
                        Route::Refuse(rule, reason) => {
                            self.websockets.refuse(now, connection, &UpgradeRefusal::by_rule(&reason));
                            self.tell_refused(client, &rule, &reason);
                        }
                        Route::More => debug_assert!(false, "the routes know that no more bytes follow"),
                    }
                }
            }
        }
    }

    /// Carries out an output for a WebSocket connection.
    /// The connection exists: the caller has asked for it.
    pub(super) fn tell_browser(&mut self, connection: ConnectionId, out: AgentOutput) {
        match out {
            AgentOutput::Write { bytes, .. } => self.websockets.push(connection, bytes),
            AgentOutput::Shutdown { .. } => self.websockets.shutdown(connection),
            AgentOutput::Reading { on, .. } => self.websockets.set_reading(connection, on),
            AgentOutput::Close { failure: None, .. } => self.websockets.close(connection),
            AgentOutput::Close { failure: Some(failure), .. } => {
                self.websockets.fail(self.clock.now(), connection, failure.code, &failure.reason);
            }
            _ => {}
        }
    }
}
