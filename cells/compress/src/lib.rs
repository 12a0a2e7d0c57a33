//! Compresses what passes. In the mode `http` a mediator between any browser and any web server: it asks the server for gzip and
//! decodes that for clients who did not, and compresses for clients who want it what the server did not. In the mode `stream` one
//! side of it speaks plain and the other one continuous compressed stream each way. The image's `/etc/compress` says which.
//!
//! Knows ports. The modes are `http`'s and `stream`'s, pure like what they share: `codec`, `config`, `pipe`.

pub mod codec;
pub mod config;
pub mod http;
pub mod pipe;
pub mod stream;

use config::{Config, Mode};
use http::Mediator;
use marram_sdk::{Cell, Context, Level, MESSAGE_BYTES_MAX, Port, PortKind, cell};
use pipe::{Out, Pipe, Side};
use stream::Stream;

/// What is sent as one message, if there is so much.
const MESSAGE_BYTES: usize = 64 << 10;
/// What one handler may bring out, well below what the host allows; the rest has turns of its own.
const HANDLER_BYTES: usize = 32 << 20;
/// The task that goes on.
const GO_ON: u64 = 0;

const _: () = assert!(MESSAGE_BYTES <= MESSAGE_BYTES_MAX);

/// The cell.
pub struct Compress {
    pipe: Box<dyn Pipe>,
    /// What is on its way out; empty between handlers.
    out: Out,
    /// What was closed: the client's port, the server's.
    is_closed: [bool; 2],
}

impl Default for Compress {
    /// Reads the image's configuration, so that a wrong one is refused at deployment.
    fn default() -> Self {
        let text = std::fs::read_to_string(config::PATH);
        Self::with(text.as_deref().unwrap_or(config::DEFAULT)).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Compress {
    /// With the contents of a configuration, for tests.
    ///
    /// # Errors
    /// In words, if it makes no sense.
    pub fn with(text: &str) -> Result<Self, String> {
        let config = Config::parse(text)?;
        let pipe: Box<dyn Pipe> = match config.mode {
            Mode::Http => Box::new(Mediator::new(config)),
            Mode::Stream => Box::new(Stream::new(&config)),
        };
        Ok(Self { pipe, out: Out::default(), is_closed: [false; 2] })
    }

    /// Does what there is to do, and sends what comes of it.
    fn work(&mut self, context: &mut Context) {
        let mut sent = 0;
        loop {
            let is_more = self.pipe.step(&mut self.out);
            if self.out.len() >= MESSAGE_BYTES || !is_more {
                sent += self.out.len();
                self.send(context);
            }
            if !is_more {
                return;
            }
            if sent >= HANDLER_BYTES {
                context.spawn(GO_ON);
                return;
            }
        }
    }

    fn send(&mut self, context: &mut Context) {
        let out = &mut self.out;
        let [client, server] = self.is_closed;
        for (port, bytes, is_closed) in
            [(Port::CLIENT, &mut out.client, client), (Port::SERVER, &mut out.server, server)]
        {
            if !is_closed {
                bytes.chunks(MESSAGE_BYTES).for_each(|chunk| context.send(port, chunk));
            }
            bytes.clear();
            bytes.shrink_to(4 * MESSAGE_BYTES);
        }
        if let Some(reason) = out.reason.take() {
            context.print(Level::Info, format_args!("closed: {reason}"));
        }
        for (side, port, closes) in
            [(0, Port::CLIENT, &mut out.closes_client), (1, Port::SERVER, &mut out.closes_server)]
        {
            if std::mem::take(closes) && !std::mem::replace(&mut self.is_closed[side], true) {
                context.close(port);
            }
        }
    }
}

fn side(port: Port) -> Option<Side> {
    match port {
        Port::CLIENT => Some(Side::Client),
        Port::SERVER => Some(Side::Server),
        _ => None,
    }
}

impl Cell for Compress {
    fn opened(&mut self, context: &mut Context, port: Port, kind: PortKind) {
        let wrong = match (side(port), kind) {
            (Some(_), PortKind::Server) => return,
            (Some(_), PortKind::Client) => return self.pipe.meet(context.client_address(port)),
            (Some(_), _) => "datagrams are no stream",
            (None, _) => "each client needs a cell of its own; write `cell = \"client\"`",
        };
        context.print(Level::Error, format_args!("closed: {wrong}"));
        context.close(port);
        if let Some(side) = side(port) {
            self.is_closed[side as usize] = true;
        }
    }

    fn message(&mut self, context: &mut Context, port: Port, payload: &[u8]) {
        if let Some(side) = side(port) {
            self.pipe.receive(side, payload, &mut self.out);
            self.work(context);
        }
    }

    fn task(&mut self, context: &mut Context, _: u64) {
        self.work(context);
    }

    fn closed(&mut self, context: &mut Context, port: Port) {
        if let Some(side) = side(port) {
            self.pipe.end(side);
            self.work(context);
        }
    }
}

cell!(Compress);
