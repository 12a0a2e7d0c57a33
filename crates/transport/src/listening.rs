//! The error when a listener cannot bind an address, and what to do about it.

use anyhow::anyhow;
use std::{fmt::Display, io};

/// The error for an address that cannot be bound. `whom` names the users of the listener, as in "for operators".
pub fn cannot_listen(address: impl Display, whom: &str, error: &io::Error) -> anyhow::Error {
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "stop the program that uses it (`ss -lntup` as root shows it; another Marram may be running), or choose \
             another port"
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
    anyhow!("cannot listen on {address} {whom}: {error}; {fix}")
}

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
            let message = cannot_listen("1.2.3.4:5", "for agents", &kind.into()).to_string();
            assert!(
                message.starts_with("cannot listen on 1.2.3.4:5 for agents: ") && message.contains(fix),
                "{message}"
            );
        }
    }
}
