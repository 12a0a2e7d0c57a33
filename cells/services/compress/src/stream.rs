//! The mode `stream`: one side is plain, the other is one compressed stream in each direction, flushed at every message.

use crate::codec::{Decoder, Encoder};
use crate::config::{Config, Direction};
use crate::pipe::{Inbox, Out, Pipe, Side};

/// Decoded bytes per step.
const STEP_BYTES: usize = 64 << 10;

/// The conversation.
pub struct Stream {
    plain: Side,
    encoder: Encoder,
    decoder: Decoder,
    /// Input from the compressed side that is not decoded yet.
    inbox: Inbox,
    /// Whether the plain side has ended its stream.
    plain_ended: bool,
    /// Whether the end of the plain side, and of the compressed side, was passed on.
    is_told: [bool; 2],
    is_over: bool,
}

impl Stream {
    /// A conversation with this configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            plain: if config.direction == Direction::Compress { Side::Client } else { Side::Server },
            encoder: Encoder::new(config.format, config.level),
            decoder: Decoder::new(config.format),
            inbox: Inbox::default(),
            plain_ended: false,
            is_told: [false; 2],
            is_over: false,
        }
    }

    fn fail(&mut self, out: &mut Out, reason: String) {
        self.is_over = true;
        self.inbox.clear();
        out.end(Some(reason));
    }

    /// Ends the output to the plain side when everything from the compressed side is decoded.
    fn finish_plain(&mut self, out: &mut Out) {
        if self.inbox.is_ended && !self.is_told[1] {
            self.is_told[1] = true;
            if !self.decoder.is_whole() {
                out.reason = Some("the compressed stream was cut short".to_owned());
            }
            close(self.plain, out);
        }
    }
}

impl Pipe for Stream {
    fn receive(&mut self, side: Side, bytes: &[u8], out: &mut Out) {
        if self.is_over {
            return;
        }
        if side == self.plain {
            self.encoder.write(bytes, opposite(side, out));
        } else if let Err(reason) = self.inbox.push(bytes) {
            self.fail(out, reason);
        }
    }

    fn end(&mut self, side: Side) {
        if side == self.plain {
            self.plain_ended = true;
        } else {
            self.inbox.is_ended = true;
        }
    }

    fn step(&mut self, out: &mut Out) -> bool {
        if self.is_over {
            return false;
        }
        if self.plain_ended {
            if !self.is_told[0] {
                self.is_told[0] = true;
                self.encoder.finish(opposite(self.plain, out));
                close(other(self.plain), out);
            }
        } else {
            self.encoder.flush(opposite(self.plain, out));
        }
        let plain = opposite(other(self.plain), out);
        match self.decoder.read(self.inbox.rest(), plain, STEP_BYTES) {
            Ok(took) => self.inbox.take(took),
            Err(reason) => {
                self.fail(out, reason);
                return false;
            }
        }
        if self.decoder.is_overrun() {
            self.fail(out, "something came behind the end of the compressed stream".to_owned());
            return false;
        }
        let is_more = self.decoder.is_full();
        if !is_more {
            self.finish_plain(out);
        }
        is_more
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// The output to the side opposite to this one.
fn opposite(side: Side, out: &mut Out) -> &mut Vec<u8> {
    match side {
        Side::Client => &mut out.server,
        Side::Server => &mut out.client,
    }
}

fn close(side: Side, out: &mut Out) {
    match side {
        Side::Client => out.closes_client = true,
        Side::Server => out.closes_server = true,
    }
}
