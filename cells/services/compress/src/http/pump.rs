//! Passes a body on: reads its framing, decodes or encodes it if necessary, and frames it again. Does not know heads.

use super::body::{Framing, Look, Reader};
use super::head;
use super::negotiate::Change;
use crate::codec::{Decoder, Encoder, Format};
use crate::pipe::Inbox;

/// Output bytes per step.
const STEP_BYTES: usize = 64 << 10;

/// Shared by the bodies of one direction. It is part of the image, and each body reuses it after the one before.
pub(super) struct Codecs {
    encoder: Encoder,
    decoder: Decoder,
    /// Output that is not framed yet; empty between steps.
    scratch: Vec<u8>,
}

impl Codecs {
    pub(super) fn new(level: u32) -> Self {
        Self {
            encoder: Encoder::new(Format::Gzip, level),
            decoder: Decoder::new(Format::Gzip),
            scratch: Vec::new(),
        }
    }
}

/// The framing of a body on output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrap {
    /// None: its head gives the length, or the end of the connection ends it.
    Bare,
    Chunked,
}

/// The result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pumped {
    /// There is more to do.
    More,
    /// It waits for more input.
    Waits,
    /// The body has ended.
    Done,
}

/// One body.
pub(super) struct Pump {
    reader: Reader,
    coding: Change,
    wrap: Wrap,
}

impl Pump {
    pub(super) fn new(framing: Framing, coding: Change, wrap: Wrap, codecs: &mut Codecs) -> Self {
        match coding {
            Change::Encode => codecs.encoder.reset(),
            Change::Decode => codecs.decoder.reset(),
            Change::Pass | Change::PassVaried => {}
        }
        Self { reader: Reader::new(framing), coding, wrap }
    }

    /// Processes the available input.
    ///
    /// # Errors
    /// If the body is invalid. Earlier output was already passed on.
    pub(super) fn step(
        &mut self,
        inbox: &mut Inbox,
        codecs: &mut Codecs,
        out: &mut Vec<u8>,
    ) -> Result<Pumped, String> {
        let mut scratch = std::mem::take(&mut codecs.scratch);
        let result = self.fill(inbox, codecs, &mut scratch);
        self.frame(&scratch, out);
        scratch.clear();
        scratch.shrink_to(2 * STEP_BYTES);
        codecs.scratch = scratch;
        if matches!(result, Ok(Pumped::Done)) && self.wrap == Wrap::Chunked {
            out.extend_from_slice(b"0\r\n");
            head::trailers(self.reader.trailers(), out)?;
            out.extend_from_slice(b"\r\n");
        }
        result
    }

    fn fill(
        &mut self,
        inbox: &mut Inbox,
        codecs: &mut Codecs,
        scratch: &mut Vec<u8>,
    ) -> Result<Pumped, String> {
        loop {
            if scratch.len() >= STEP_BYTES {
                return Ok(Pumped::More);
            }
            if self.coding == Change::Decode && codecs.decoder.is_full() {
                codecs.decoder.read(&[], scratch, STEP_BYTES)?;
                continue;
            }
            match self.reader.look(inbox.rest(), inbox.is_ended)? {
                Look::Framing(len) => inbox.take(len),
                Look::Data(len) => {
                    let took = self.code(&inbox.rest()[..len], codecs, scratch)?;
                    self.reader.took(took);
                    inbox.take(took);
                }
                Look::Wait => {
                    if self.coding == Change::Encode {
                        codecs.encoder.flush(scratch);
                    }
                    return Ok(Pumped::Waits);
                }
                Look::End => {
                    match self.coding {
                        Change::Encode => codecs.encoder.finish(scratch),
                        Change::Decode if !codecs.decoder.is_whole() => {
                            return Err("a compressed body was cut short".to_owned());
                        }
                        _ => {}
                    }
                    return Ok(Pumped::Done);
                }
            }
        }
    }

    /// Takes some of the data; returns how much.
    fn code(&self, data: &[u8], codecs: &mut Codecs, scratch: &mut Vec<u8>) -> Result<usize, String> {
        match self.coding {
            Change::Pass | Change::PassVaried => {
                let took = data.len().min(STEP_BYTES);
                scratch.extend_from_slice(&data[..took]);
                Ok(took)
            }
            Change::Encode => {
                let took = data.len().min(STEP_BYTES);
                codecs.encoder.write(&data[..took], scratch);
                Ok(took)
            }
            Change::Decode => codecs.decoder.read(data, scratch, STEP_BYTES),
        }
    }

    fn frame(&self, data: &[u8], out: &mut Vec<u8>) {
        // An empty chunk would end the body.
        if self.wrap == Wrap::Chunked && !data.is_empty() {
            out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
            out.extend_from_slice(data);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(data);
        }
    }
}
