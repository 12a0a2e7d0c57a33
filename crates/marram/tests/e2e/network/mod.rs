//! How connections come in and go out: which edge they lead to, sockets, datagrams, WebSocket, routes, the client's address,
//! and peers that are slow, gone, or speak something else.

mod address_change;
mod datagrams;
mod learning;
mod other_times;
mod peer;
mod peer_unreachable;
mod routes;
mod spread;
mod unreachable;
mod websocket;
mod wires;
mod wires_ends;
