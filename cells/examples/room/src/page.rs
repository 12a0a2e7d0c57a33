//! The room's page, for a browser that connects to a plain listener: its first line is a request of HTTP.

/// The page. It connects to a listener for WebSocket, at its own path, and speaks in lines, as `nc` does.
const PAGE: &str = include_str!("room.html");

/// The answer to a first line, if it is a request of HTTP. The connection ends with it.
pub(crate) fn answer(line: &str) -> Option<String> {
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    if words.next().is_some() || !version.starts_with("HTTP/1.") {
        return None;
    }
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        // Of several rooms, each has a path. Browsers ask for files, too: `/favicon.ico`.
        ("GET", path) if !path.contains('.') => ("200 OK", "text/html", PAGE),
        ("GET", _) => {
            ("404 Not Found", "text/plain", "The room's page is at /, and at paths without a dot.\n")
        }
        _ => ("405 Method Not Allowed", "text/plain", "The room's page can be read, with GET.\n"),
    };
    let len = body.len();
    Some(format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len}\r\nConnection: close\r\n\
         Cache-Control: no-cache\r\nContent-Security-Policy: frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n\r\n{body}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_answered_and_a_line_is_none() {
        let status = |line: &str| answer(line).map(|answer| answer.lines().next().unwrap().to_owned());
        assert_eq!(status("GET / HTTP/1.1").as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(status("GET /?gate=ws://a:1 HTTP/1.0").as_deref(), Some("HTTP/1.1 200 OK"));
        assert_eq!(
            status("GET /rooms/chess?gate=ws://a.example:1 HTTP/1.1").as_deref(),
            Some("HTTP/1.1 200 OK")
        );
        assert_eq!(status("GET /favicon.ico HTTP/1.1").as_deref(), Some("HTTP/1.1 404 Not Found"));
        assert_eq!(status("POST / HTTP/1.1").as_deref(), Some("HTTP/1.1 405 Method Not Allowed"));
        for line in ["", "GET", "GET /", "/name ann", "get up now", "GET / HTTP/1.1 now", "GET / HTTP/2"] {
            assert_eq!(status(line), None, "{line}");
        }
        let page = answer("GET / HTTP/1.1").unwrap();
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
        assert!(body.starts_with("<!doctype html>") && body.ends_with("</html>\n"));
    }
}
