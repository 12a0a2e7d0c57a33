//! Time in the protocol: whole seconds, and the three ways to specify when an item expires. Reads no clock.

/// With the same origin as session time, which edges set to 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Seconds(pub u32);

/// A larger time to live, in seconds (30 days), is a date.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;

/// The second from which on an item has expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expiry(pub(crate) u32);

impl Expiry {
    /// The item stays until it is deleted or evicted. Not reachable by arithmetic:
    /// [`Expiry::from_protocol`] ends one second earlier, so that a date far away is not taken for
    /// no date.
    pub const NEVER: Self = Self(u32::MAX);

    /// The meaning of a client's number: 0 never, negative at once, up to 30 days relative to now, beyond that a Unix time.
    #[must_use]
    pub fn from_protocol(exptime: i64, now: Seconds) -> Self {
        let latest = u32::MAX - 1;
        match exptime {
            0 => Self::NEVER,
            ..0 => Self(0),
            1..=RELATIVE_MAX => {
                let seconds = u32::try_from(exptime).unwrap_or(latest);
                Self(now.0.saturating_add(seconds).min(latest))
            }
            date => Self(u32::try_from(date).unwrap_or(latest).min(latest)),
        }
    }

    /// Whether it has passed. In the very second that it names, an item is gone already.
    #[must_use]
    pub const fn is_past(self, now: Seconds) -> bool {
        self.0 <= now.0 && self.0 != Self::NEVER.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_number_says_when_an_item_goes() {
        const NOW: u32 = 1_800_000_000;
        // The number, and the first second in which the item has expired.
        let cases = [
            (0, None),
            (-1, Some(0)),
            (i64::MIN, Some(0)),
            (1, Some(NOW + 1)),
            (RELATIVE_MAX, Some(NOW + 2_592_000)),
            (RELATIVE_MAX + 1, Some(2_592_001)),
            (1_900_000_000, Some(1_900_000_000)),
            (i64::MAX, Some(u32::MAX - 1)),
        ];
        for (exptime, gone) in cases {
            let expiry = Expiry::from_protocol(exptime, Seconds(NOW));
            let past = |second: u32| expiry.is_past(Seconds(second));
            match gone {
                None => assert!(!past(u32::MAX)),
                Some(second) => assert!(past(second) && (second == 0 || !past(second - 1)), "{exptime}"),
            }
        }
    }
}
