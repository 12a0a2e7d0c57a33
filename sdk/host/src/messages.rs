//! Messages over a connection's stream, each after its length (`marram_agent::messages`): partly written and partly read
//! messages. Knows no session.

use marram_agent::messages::{HEAD, head, length};
use std::io::{self, ErrorKind, IoSlice};

/// The rest of a partly written message: it must be written before anything else.
#[derive(Debug, Default)]
pub(crate) struct Sending {
    rest: Vec<u8>,
    written: usize,
}

impl Sending {
    /// Writes the rest, if there is one.
    pub(crate) fn flush(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<usize>) -> io::Result<()> {
        while self.written < self.rest.len() {
            match write(&self.rest[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.rest.clear();
        self.written = 0;
        Ok(())
    }

    /// Writes a message after the rest of the last one. Once a byte of it is written, the message counts as taken, whether or not
    /// its rest can be written now.
    pub(crate) fn send(
        &mut self,
        message: &[u8],
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<()> {
        self.flush(|bytes| write(&[IoSlice::new(bytes)]))?;
        let head = head(message.len());
        let written = loop {
            match write(&[IoSlice::new(&head), IoSlice::new(message)]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if written == HEAD + message.len() {
            return Ok(());
        }
        self.rest.extend_from_slice(head.get(written..).unwrap_or_default());
        self.rest.extend_from_slice(&message[written.saturating_sub(HEAD)..]);
        match self.flush(|bytes| write(&[IoSlice::new(bytes)])) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            flushed => flushed,
        }
    }
}

/// A partly read message.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    head: [u8; HEAD],
    /// Bytes read of head and message together.
    read: usize,
    message: Vec<u8>,
}

impl Receiving {
    /// Reads the rest of a message; `None` at the end of the stream. No bytes of the next message are read, so that a poll of the
    /// descriptor reports it.
    pub(crate) fn receive(
        &mut self,
        mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<Option<Vec<u8>>> {
        loop {
            let count = match self.read.checked_sub(HEAD) {
                None => read(&mut self.head[self.read..]),
                Some(at) if at == self.message.len() => {
                    self.read = 0;
                    return Ok(Some(std::mem::take(&mut self.message)));
                }
                Some(at) => read(&mut self.message[at..]),
            };
            match count {
                Ok(0) if self.read == 0 => return Ok(None),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.read += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.read == HEAD {
                let len = length(self.head).ok_or(ErrorKind::InvalidData)?;
                self.message = vec![0; len];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Accepts and returns so many bytes at a time, and would block every other time.
    struct Narrow {
        bytes: VecDeque<u8>,
        width: usize,
        blocks: bool,
    }

    impl Narrow {
        fn new(width: usize) -> Self {
            Self { bytes: VecDeque::new(), width, blocks: false }
        }

        fn turn(&mut self) -> io::Result<()> {
            self.blocks = !self.blocks;
            if self.blocks { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
        }

        fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
            self.turn()?;
            let before = self.bytes.len();
            self.bytes.extend(slices.iter().flat_map(|slice| slice.iter()).take(self.width));
            Ok(self.bytes.len() - before)
        }

        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.turn()?;
            let count = buffer.len().min(self.width).min(self.bytes.len());
            buffer.iter_mut().zip(self.bytes.drain(..count)).for_each(|(to, byte)| *to = byte);
            Ok(count)
        }
    }

    #[test]
    fn messages_are_whole_however_little_is_taken_at_a_time() {
        let messages: Vec<Vec<u8>> = [0, 1, 300, 0, 5].iter().map(|size| vec![9; *size]).collect();
        for width in [1, 3, 4, 5, 7, 1_000] {
            let (mut narrow, mut sending) = (Narrow::new(width), Sending::default());
            for message in &messages {
                // Refused or taken, never partly.
                while let Err(error) = sending.send(message, |slices| narrow.write(slices)) {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                }
            }
            while sending.flush(|bytes| narrow.write(&[IoSlice::new(bytes)])).is_err() {}
            let (mut receiving, mut heard) = (Receiving::default(), Vec::new());
            loop {
                match receiving.receive(|buffer| narrow.read(buffer)) {
                    Ok(Some(message)) => heard.push(message),
                    Ok(None) => break,
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
            assert_eq!(heard, messages, "{width} bytes at a time");
        }
    }

    #[test]
    fn a_stream_that_ends_in_a_message_has_no_orderly_end() {
        let mut narrow = Narrow::new(1_000);
        let _ = Sending::default().send(b"hello", |slices| narrow.write(slices));
        narrow.bytes.pop_back();
        let mut receiving = Receiving::default();
        let error = loop {
            match receiving.receive(|buffer| narrow.read(buffer)) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                ended => break ended.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
