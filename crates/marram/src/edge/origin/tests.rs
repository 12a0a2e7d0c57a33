//! Where a request goes. What comes back is tested with real processes.

use super::*;

#[test]
fn a_key_is_put_behind_the_origins_path_and_a_port_is_found() {
    for (origin, authority, host, path) in [
        ("http://o/", "o:80", "o", "/k/x"),
        ("http://o:8080/a/b/", "o:8080", "o:8080", "/a/b/k/x"),
        ("http://[::1]/", "[::1]:80", "[::1]", "/k/x"),
        ("http://[::1]:81/", "[::1]:81", "[::1]:81", "/k/x"),
    ] {
        let expected = (authority.to_owned(), host.to_owned(), path.to_owned());
        assert_eq!(target(origin, b"k/x"), expected, "{origin}");
    }
}
