//! What handlers read from their edge's cache. The log contains the bytes, once since the last entry that forgets. So a replay
//! never asks a cache, wherever it runs, and each copy of the log contains everything that was read.

use crate::{
    codec::{Error, Field},
    limits::{CACHED_SIZE_MAX, READS_MAX, READS_SIZE_MAX},
};
use alloc::{collections::BTreeMap, vec::Vec};
use bytes::{Bytes, BytesMut};
use core::cmp::Ordering;

/// The result of a read. Two results that share the bytes of one object, as those of a cache do, are equal without a comparison
/// of the bytes: an input may read 512 KiB a thousand times.
#[derive(Clone, Debug)]
pub enum Found {
    /// The origin has no such object.
    Nothing,
    /// It could not be fetched in time; a later read may succeed.
    Away,
    /// It cannot be read: the key is invalid, or the origin's answer cannot be used.
    Refused,
    /// The bytes of the object.
    Object(Bytes),
}

impl Ord for Found {
    fn cmp(&self, other: &Self) -> Ordering {
        let kind = |found: &Self| match found {
            Self::Nothing => 0,
            Self::Away => 1,
            Self::Refused => 2,
            Self::Object(_) => 3,
        };
        match (self, other) {
            (Self::Object(a), Self::Object(b)) if core::ptr::eq(&raw const a[..], &raw const b[..]) => {
                Ordering::Equal
            }
            (Self::Object(a), Self::Object(b)) => a.cmp(b),
            _ => kind(self).cmp(&kind(other)),
        }
    }
}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Found {
    fn eq(&self, other: &Self) -> bool {
        self.size() == other.size() && self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Found {}

impl Found {
    /// Bytes of the object; 0 if there is none.
    #[must_use]
    pub fn size(&self) -> usize {
        if let Self::Object(bytes) = self { bytes.len() } else { 0 }
    }
}

impl Field for Found {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Nothing => 0u8.put(out),
            Self::Away => 1u8.put(out),
            Self::Refused => 2u8.put(out),
            Self::Object(bytes) => {
                3u8.put(out);
                bytes.put(out);
            }
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Error> {
        Ok(match u8::take(from)? {
            0 => Self::Nothing,
            1 => Self::Away,
            2 => Self::Refused,
            3 => Self::Object(Bytes::take(from).and_then(|bytes| {
                if bytes.len() > CACHED_SIZE_MAX { Err(Error::TooLarge) } else { Ok(bytes) }
            })?),
            _ => return Err(Error::Unknown),
        })
    }
}

/// A read from the cache.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Read {
    /// The first bytes of the key's BLAKE3: detects a replay that reads something else.
    pub key: [u8; 8],
    /// The result.
    pub found: Found,
}

/// A read in its logged form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Logged {
    /// The first read of this result since the log last forgot.
    New(Read),
    /// The same result as the new read of this number, from 0.
    Again(u64),
}

/// The reads of one entry, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reads {
    /// Whether numbering restarts with this entry: it can be decoded without earlier entries.
    pub forgets: bool,
    /// The reads, in order.
    pub list: Vec<Logged>,
}

impl Field for Reads {
    fn put(&self, out: &mut BytesMut) {
        (((self.list.len() as u64) << 1) | u64::from(self.forgets)).put(out);
        for logged in &self.list {
            match logged {
                Logged::New(read) => {
                    0u64.put(out);
                    read.key.put(out);
                    read.found.put(out);
                }
                Logged::Again(number) => (number + 1).put(out),
            }
        }
    }

    fn take(from: &mut Bytes) -> Result<Self, Error> {
        let head = u64::take(from)?;
        let count = usize::try_from(head >> 1).ok().filter(|count| *count <= READS_MAX);
        let count = count.ok_or(Error::TooLarge)?;
        if count == 0 {
            return Err(Error::Unknown);
        }
        let mut list = Vec::new();
        let mut size = 0;
        for _ in 0..count {
            list.push(match u64::take(from)? {
                0 => {
                    let read = Read { key: Field::take(from)?, found: Field::take(from)? };
                    size += read.found.size();
                    Logged::New(read)
                }
                number => Logged::Again(number - 1),
            });
        }
        if size > READS_SIZE_MAX {
            return Err(Error::TooLarge);
        }
        Ok(Self { forgets: head & 1 != 0, list })
    }
}

impl Reads {
    /// Whether it is within the limits: at most [`READS_MAX`] reads, and [`READS_SIZE_MAX`] bytes of objects that were not logged
    /// before.
    #[must_use]
    pub fn is_in_bounds(&self) -> bool {
        let new = self.list.iter().map(|logged| match logged {
            Logged::New(read) => read.found.size(),
            Logged::Again(_) => 0,
        });
        self.list.len() <= READS_MAX && new.sum::<usize>() <= READS_SIZE_MAX
    }
}

/// The reads in the log since it last forgot. The writer need not log their bytes again; the reader resolves numbers with it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Known {
    reads: Vec<Read>,
    numbers: BTreeMap<Read, u64>,
    /// Bytes of objects in these reads.
    size: u64,
}

impl Known {
    /// Bytes of objects that are in the log since it last forgot.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Forgets all earlier reads: the next entry with reads says so.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// The logged form of an entry's reads.
    #[must_use]
    pub fn write(&mut self, reads: Vec<Read>) -> Reads {
        let forgets = self.reads.is_empty() && !reads.is_empty();
        // Objects of this entry by address: an object that was fetched again without a change is compared only once.
        let mut seen = BTreeMap::new();
        let list = reads.into_iter().map(|read| {
            let place = match &read.found {
                Found::Object(bytes) => Some((read.key, bytes.as_ptr().addr(), bytes.len())),
                _ => None,
            };
            if let Some(number) = place.and_then(|place| seen.get(&place)) {
                return Logged::Again(*number);
            }
            let known = self.numbers.get(&read).copied();
            let number = known.unwrap_or(self.reads.len() as u64);
            seen.extend(place.map(|place| (place, number)));
            if known.is_some() {
                return Logged::Again(number);
            }
            self.numbers.insert(read.clone(), number);
            self.note(read.clone());
            Logged::New(read)
        });
        Reads { forgets, list: list.collect() }
    }

    /// The reads of a logged entry.
    ///
    /// # Errors
    /// If it refers to a number that does not exist.
    pub fn read(&mut self, reads: Reads) -> Result<Vec<Read>, Error> {
        if reads.forgets {
            self.forget();
        }
        let list = reads.list.into_iter().map(|logged| match logged {
            Logged::New(Read { key, found }) => {
                // A slice would keep the log's whole buffer alive, which is many times as large.
                let found = match found {
                    Found::Object(bytes) => Found::Object(Bytes::copy_from_slice(&bytes)),
                    other => other,
                };
                let read = Read { key, found };
                self.note(read.clone());
                Ok(read)
            }
            Logged::Again(number) => {
                let known = usize::try_from(number).ok().and_then(|number| self.reads.get(number));
                known.cloned().ok_or(Error::Unknown)
            }
        });
        list.collect()
    }

    fn note(&mut self, read: Read) {
        self.size += read.found.size() as u64;
        self.reads.push(read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn read(key: u8, found: Found) -> Read {
        Read { key: [key; 8], found }
    }

    fn object(bytes: &'static [u8]) -> Found {
        Found::Object(Bytes::from_static(bytes))
    }

    fn through(reads: &Reads) -> Result<Reads, Error> {
        let mut out = BytesMut::new();
        reads.put(&mut out);
        let mut bytes = out.freeze();
        let taken = Reads::take(&mut bytes)?;
        assert!(bytes.is_empty());
        Ok(taken)
    }

    #[test]
    fn bytes_are_logged_once_until_the_log_forgets() {
        let inputs = [
            vec![read(1, object(b"one")), read(1, object(b"one")), read(2, Found::Nothing)],
            vec![read(2, Found::Nothing), read(1, object(b"other")), read(1, object(b"one"))],
            vec![read(2, Found::Away), read(2, Found::Refused)],
        ];
        let (mut writer, mut reader) = (Known::default(), Known::default());
        let mut sizes = Vec::new();
        for round in 0..2 {
            for reads in &inputs {
                let logged = writer.write(reads.clone());
                assert_eq!(logged.forgets, reads == &inputs[0]);
                let mut out = BytesMut::new();
                logged.put(&mut out);
                sizes.push(out.len());
                assert_eq!(reader.read(through(&logged).unwrap()).as_ref(), Ok(reads));
                assert_eq!((reader.size(), reader.reads.len()), (writer.size(), writer.reads.len()));
            }
            if round == 0 {
                writer.forget();
            }
        }
        assert_eq!(sizes[..3], [1 + (9 + 1 + 1 + 3) + 1 + 10, 1 + 1 + (9 + 1 + 1 + 5) + 1, 1 + 10 + 10]);
        assert_eq!(sizes[..3], sizes[3..]);
        // A reader that starts where the log forgets.
        let mut late = Known::default();
        writer.forget();
        assert_eq!(late.read(writer.write(inputs[1].clone())).as_ref(), Ok(&inputs[1]));
    }

    #[test]
    fn an_object_is_the_same_wherever_it_lies_and_once_in_the_log() {
        let cached = Bytes::from(vec![7; 1_000]);
        let fetched_again = Bytes::from(vec![7; 1_000]);
        let of = |bytes: &Bytes| read(1, Found::Object(bytes.clone()));
        let mut other = vec![7; 1_000];
        other[999] = 8;
        let other = Bytes::from(other);
        assert!(
            of(&cached) == of(&fetched_again) && of(&cached) < of(&other) && of(&other) > of(&fetched_again)
        );
        assert_ne!(of(&cached), read(1, Found::Object(cached.slice(1..))));
        assert_ne!(of(&cached), read(2, Found::Object(cached.clone())));
        let kinds = [Found::Nothing, Found::Away, Found::Refused, object(b"")];
        assert!(kinds.iter().is_sorted() && kinds.windows(2).all(|pair| pair[0] != pair[1]));
        let mut writer = Known::default();
        let list = |reads: Reads| -> Vec<Option<u64>> {
            let number = |logged| if let Logged::Again(number) = logged { Some(number) } else { None };
            reads.list.into_iter().map(number).collect()
        };
        let first = vec![
            of(&cached),
            of(&fetched_again),
            of(&other),
            of(&cached),
            read(2, Found::Object(cached.clone())),
        ];
        assert_eq!(list(writer.write(first)), [None, Some(0), None, Some(0), None]);
        assert_eq!(
            list(writer.write(vec![of(&fetched_again), of(&fetched_again), of(&other)])),
            [Some(0), Some(0), Some(1)]
        );
    }

    #[test]
    fn what_was_read_holds_no_more_of_the_log_than_itself() {
        let mut out = BytesMut::new();
        Known::default().write(vec![read(1, object(b"object"))]).put(&mut out);
        out.extend_from_slice(&[0; 1_000]);
        let mut log = out.freeze();
        let whole = log.clone();
        let mut reader = Known::default();
        let reads = reader.read(Reads::take(&mut log).unwrap()).unwrap();
        drop(log);
        assert!(whole.is_unique() && reads == [read(1, object(b"object"))] && reader.size() == 6);
    }

    #[test]
    fn what_was_never_logged_and_what_is_too_much_is_refused() {
        let again = Reads { forgets: false, list: vec![Logged::Again(0)] };
        assert_eq!(Known::default().read(again), Err(Error::Unknown));
        let large = |size: usize| read(1, Found::Object(Bytes::from(vec![0; size])));
        let reads =
            |list: Vec<Read>| Reads { forgets: true, list: list.into_iter().map(Logged::New).collect() };
        assert!(through(&reads(vec![large(CACHED_SIZE_MAX); 2])).is_ok());
        assert_eq!(through(&reads(vec![large(CACHED_SIZE_MAX + 1)])), Err(Error::TooLarge));
        assert_eq!(through(&reads(vec![large(CACHED_SIZE_MAX); 3])), Err(Error::TooLarge));
        assert!(through(&reads(vec![large(0); READS_MAX])).is_ok());
        assert_eq!(through(&reads(vec![large(0); READS_MAX + 1])), Err(Error::TooLarge));
        assert_eq!(through(&reads(vec![])), Err(Error::Unknown));
    }
}
