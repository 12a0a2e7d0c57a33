//! Compresses traffic. In the mode `http` it is an intermediary between any browser and any web server: it asks the server for
//! gzip, decodes it for clients that did not ask for gzip, and compresses for clients that want gzip what the server did not.
//! In the mode `stream` one side is plain, and the other side is one continuous compressed stream in each direction. The image's
//! `/etc/compress` selects the mode.
//!
//! This module handles ports. The modes are `http` and `stream`, pure like the shared `codec`, `config` and `pipe`.

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

/// Bytes of one message, if there are as many.
const MESSAGE_BYTES: usize = 64 << 10;
/// Most output bytes of one handler, well below the host's limit; further handlers send the rest.
const HANDLER_BYTES: usize = 32 << 20;
/// The task that continues the work.
const GO_ON: u64 = 0;

const _: () = assert!(MESSAGE_BYTES <= MESSAGE_BYTES_MAX);

/// The cell.
pub struct Compress {
    pipe: Box<dyn Pipe>,
    /// Pending output; empty between handlers.
    out: Out,
    /// Whether the client's port, and whether the server's, was closed.
    is_closed: [bool; 2],
}

impl Default for Compress {
    /// Reads the image's configuration, so that deployment refuses an invalid one.
    fn default() -> Self {
        let text = std::fs::read_to_string(config::PATH);
        Self::with(text.as_deref().unwrap_or(config::DEFAULT)).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Compress {
    /// With the contents of a configuration, for tests.
    ///
    /// # Errors
    /// In words, if the configuration is invalid.
    pub fn with(text: &str) -> Result<Self, String> {
        let config = Config::parse(text)?;
        let pipe: Box<dyn Pipe> = match config.mode {
            Mode::Http => Box::new(Mediator::new(config)),
            Mode::Stream => Box::new(Stream::new(&config)),
        };
        Ok(Self { pipe, out: Out::default(), is_closed: [false; 2] })
    }

    /// Does pending work, and sends the output.
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
