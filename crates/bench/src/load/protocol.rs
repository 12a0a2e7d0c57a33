//! Requests of a client of memcached and the expected answers: 95 of 100 requests get a key, the others set one. All keys of a
//! tenant have one value, which names the tenant, so a value that another tenant stored is recognised.
//!
//! ```text
//! get k0042\r\n                        -> VALUE k0042 0 135\r\n<135 bytes>\r\nEND\r\n
//! set k0042 0 0 135\r\n<135 bytes>\r\n -> STORED\r\n
//! ```
//! All answers have one of two lengths, so that an answer is checked by comparing bytes, without a
//! parser that would cost the client's core.

/// Number of keys of a tenant.
pub(super) const KEYS: u32 = 100;
/// Percentage of requests that get a key.
pub(super) const GETS: u32 = 95;
/// Bytes of a value.
const VALUE: usize = 135;
/// Digits of a key.
const DIGITS: usize = 4;
/// The answer to a set.
const STORED: &[u8] = b"STORED\r\n";

/// One request that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    /// Whether it sets the key; else it gets it.
    pub(super) sets: bool,
    /// The key's number.
    pub(super) key: u32,
}

/// The requests and answers of a tenant's clients, except for the key.
pub(super) struct Phrases {
    /// Eight digits of the tenant's number, repeated.
    value: [u8; VALUE],
    /// The answer to a get of key 0.
    found: Vec<u8>,
}

/// The beginning of an answer that has a value.
const FOUND: &[u8] = b"VALUE k";

impl Phrases {
    /// The phrases of the tenant with this number.
    pub(super) fn new(tenant: usize) -> Self {
        let mut value = [0; VALUE];
        let name = format!("{tenant:08}");
        value.iter_mut().zip(name.bytes().cycle()).for_each(|(byte, letter)| *byte = letter);
        let mut found = format!("VALUE k{:0DIGITS$} 0 {VALUE}\r\n", 0).into_bytes();
        found.extend_from_slice(&value);
        found.extend_from_slice(b"\r\nEND\r\n");
        Self { value, found }
    }

    /// Appends a request to `out`.
    pub(super) fn ask(&self, request: Request, out: &mut Vec<u8>) {
        out.extend_from_slice(if request.sets { b"set k" } else { b"get k" });
        out.extend_from_slice(&digits(request.key));
        if request.sets {
            out.extend_from_slice(b" 0 0 135\r\n");
            out.extend_from_slice(&self.value);
        }
        out.extend_from_slice(b"\r\n");
    }

    /// The length of the answer at the beginning of `bytes`; `None` if it is incomplete.
    ///
    /// A get of a key differs from `found` in the key's digits only.
    ///
    /// # Errors
    /// If it is not the expected answer.
    pub(super) fn answer(&self, request: Request, bytes: &[u8]) -> Result<Option<usize>, String> {
        let expected = if request.sets { STORED } else { &self.found };
        let Some(bytes) = bytes.get(..expected.len()) else { return Ok(None) };
        let right = if request.sets {
            bytes == expected
        } else {
            let key = FOUND.len()..FOUND.len() + DIGITS;
            bytes[..key.start] == expected[..key.start]
                && bytes[key.clone()] == digits(request.key)
                && bytes[key.end..] == expected[key.end..]
        };
        if right {
            return Ok(Some(bytes.len()));
        }
        Err(format!("{request:?} was answered {:?}", String::from_utf8_lossy(bytes)))
    }
}

const _: () = assert!(VALUE == 135, "as `ask` writes it");

/// The key's number in decimal, with leading zeros.
fn digits(key: u32) -> [u8; DIGITS] {
    let mut digits = [b'0'; DIGITS];
    let mut left = key;
    for digit in digits.iter_mut().rev() {
        *digit += u8::try_from(left % 10).unwrap_or(0);
        left /= 10;
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_memcached_reads_them() {
        let (phrases, mut out) = (Phrases::new(7), Vec::new());
        phrases.ask(Request { sets: false, key: 42 }, &mut out);
        assert_eq!(out, b"get k0042\r\n");
        out.clear();
        phrases.ask(Request { sets: true, key: 9 }, &mut out);
        assert!(out.starts_with(b"set k0009 0 0 135\r\n0000000700000007"));
        assert_eq!(out.len(), b"set k0009 0 0 135\r\n".len() + VALUE + 2);
    }

    #[test]
    fn answers_are_known_by_key_and_tenant() {
        let (ours, theirs) = (Phrases::new(7), Phrases::new(8));
        let get = |key| Request { sets: false, key };
        let answer = |phrases: &Phrases| phrases.found.clone();
        assert_eq!(ours.answer(get(0), &answer(&ours)), Ok(Some(ours.found.len())));
        assert_eq!(ours.answer(get(0), &answer(&ours)[..20]), Ok(None));
        assert!(ours.answer(get(1), &answer(&ours)).is_err());
        assert!(ours.answer(get(0), &answer(&theirs)).is_err());
        let set = Request { sets: true, key: 0 };
        assert_eq!(ours.answer(set, b"STORED\r\nVALUE"), Ok(Some(8)));
        assert!(ours.answer(set, b"ERROR\r\n\r\n").is_err());
    }
}
