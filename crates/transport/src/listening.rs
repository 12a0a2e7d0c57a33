//! The error when a listener cannot bind an address, and what to do about it.

use std::{
    fmt::{self, Display},
    io,
};

/// Why an address cannot be bound, and what the operator can do about it.
#[derive(Debug)]
pub struct ListenError {
    /// The address and its users, as in "1.2.3.4:5 for operators".
    address: String,
    error: io::Error,
}

/// The error for an address that cannot be bound. `whom` names the users of the listener, as in "for operators".
pub fn cannot_listen(address: impl Display, whom: &str, error: io::Error) -> ListenError {
    ListenError { address: format!("{address} {whom}"), error }
}

impl Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fix = match self.error.kind() {
            io::ErrorKind::AddrInUse => {
                "stop the program that uses it (`ss -lntup` as root shows it; another Marram may be running), or \
                 choose another port"
            }
            io::ErrorKind::AddrNotAvailable => {
                "this machine does not have that address; `ip address` lists its addresses"
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 require a capability: choose a higher one, or grant CAP_NET_BIND_SERVICE \
                 (AmbientCapabilities= in a unit)"
            }
            _ => "choose another address",
        };
        write!(f, "cannot listen on {}: {}; {fix}", self.address, self.error)
    }
}

impl std::error::Error for ListenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_fix() {
        for (kind, fix) in [
            (io::ErrorKind::AddrInUse, "stop the program"),
            (io::ErrorKind::AddrNotAvailable, "does not have that address"),
            (io::ErrorKind::PermissionDenied, "CAP_NET_BIND_SERVICE"),
            (io::ErrorKind::OutOfMemory, "choose another address"),
        ] {
            let message = cannot_listen("1.2.3.4:5", "for agents", kind.into()).to_string();
            assert!(
                message.starts_with("cannot listen on 1.2.3.4:5 for agents: ") && message.contains(fix),
                "{message}"
            );
        }
    }
}
