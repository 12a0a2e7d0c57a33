//! Access control of an admin API: decides by a request's head, before its body is read. Knows no socket and no route's work.
//!
//! A browser on an operator's machine can reach what the operator can, so a web page must get nothing. A request is refused,
//! whatever token it has, if it names a host that is no name of this machine (DNS rebinding), comes from another origin, or has a
//! body of a type that pages may send without a preflight request.
//!
//! The checks run in the order of [`Guard::admit`], cheapest and most general first. What a token
//! allows:
//!
//! ```text
//! token            allows
//! operators'       everything
//! metrics'         GET /metrics
//! an edge's proof   GET /v1/apps, /v1/images/ID, /v1/images/ID/app; the answer is sealed (`edges.rs`)
//! none             /healthz; with `Metrics::Open` also GET /metrics
//! ```
//!
//! A token that is right but allows too little is answered with 403, a wrong or missing one with
//! 401, so that an operator knows whether to give another token or to correct this one.

use crate::Refusal;
use crate::edges::{self, EdgeCaller};
use crate::server::{bearer, is_same};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, StatusCode, Uri, header};
use marram_transport::Identity;
use marram_wire::edge_key::EdgeKey;
use std::net::IpAddr;

/// Content types of bodies: a page of another origin needs a preflight request to send one.
const CONTENT_TYPES: [&str; 2] = ["application/json", "application/octet-stream"];

/// Access settings of an admin API.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Access {
    /// The operators' token, if the configuration names its file; else one is made at start.
    pub token: Option<String>,
    /// Access to `/metrics`.
    pub metrics: Metrics,
    /// Names under which clients address this machine, besides its addresses, its own host name and `localhost`.
    pub hosts: Vec<String>,
    /// Certificate and key, if the API is encrypted.
    pub identity: Option<Identity>,
}

/// Access to `/metrics`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Metrics {
    /// Only with the admin token.
    #[default]
    Operators,
    /// Also with this token.
    Token(String),
    /// Without a token.
    Open,
}

/// Decides whether requests are allowed.
///
/// Built once when the server starts and shared by all its connections: a new host name of the
/// machine, or another token, needs a restart.
#[derive(Debug)]
pub struct Guard {
    token: String,
    metrics: Metrics,
    hosts: Vec<String>,
    /// What other edges of the domain prove to have, if this is an edge.
    edges: Option<EdgeKey>,
}

impl Guard {
    /// `token` is the operators' token, `edges` the key of the domain's edges.
    pub fn new(access: &Access, token: String, edges: Option<EdgeKey>) -> Self {
        let mut hosts = access.hosts.clone();
        hosts.extend(own_names());
        Self { token, metrics: access.metrics.clone(), hosts, edges }
    }

    /// Allows or refuses a request. The answer to another edge must be sealed for it.
    ///
    /// # Errors
    /// With the status and text for the client. A path that does not exist passes: routing is the
    /// caller's, and without a token nothing can be learned about which paths exist.
    pub fn admit(&self, head: &Parts) -> Result<Option<EdgeCaller>, Refusal> {
        let path = head.uri.path().trim_matches('/');
        is_own_host(&head.headers, &head.uri, &self.hosts)?;
        is_no_page(&head.headers)?;
        // Load balancers have no token.
        let caller = if path == "healthz" { None } else { self.shows_a_token(head, path)? };
        has_a_type(&head.method, &head.headers)?;
        Ok(caller)
    }

    /// The operators' token is compared first, since it allows everything, also if it is configured
    /// as another one at the same time.
    fn shows_a_token(&self, head: &Parts, path: &str) -> Result<Option<EdgeCaller>, Refusal> {
        let get = head.method == Method::GET;
        let shown = bearer(&head.headers);
        if shown.is_some_and(|shown| is_same(shown, &self.token)) {
            return Ok(None);
        }
        match &self.metrics {
            Metrics::Open if get && path == "metrics" => return Ok(None),
            Metrics::Token(token) if shown.is_some_and(|shown| is_same(shown, token)) => {
                return if get && path == "metrics" { Ok(None) } else { Err(too_little("/metrics")) };
            }
            Metrics::Open | Metrics::Token(_) | Metrics::Operators => {}
        }
        if let Some(caller) = self.edges.as_ref().and_then(|key| edges::caller(key, &head.headers, &head.uri))
        {
            let caller = caller.ok_or_else(not_of_this_domain)?;
            return if get && is_for_edges(path) {
                Ok(Some(caller))
            } else {
                Err(too_little("apps and images"))
            };
        }
        let what = match shown {
            None => "the admin token is missing",
            Some(_) => "the admin token is wrong: another one is expected here",
        };
        let fix = "run the command as the same user and on the same machine as the process that it asks, or give the \
                   token: --token-file, or `Authorization: Bearer ...`; it is in the file that `admin.token_file` \
                   names, or, where none is named, in `admin-token` in an edge's state directory";
        Err(Refusal::new(StatusCode::UNAUTHORIZED, what, fix))
    }
}

/// Names of this machine that need no configuration.
pub fn own_names() -> Vec<String> {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let names = ["localhost", own.trim()].into_iter().filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}

/// Whether it is a path that edges fetch from each other.
/// Names of images are not checked here: the handler that looks them up parses them.
fn is_for_edges(path: &str) -> bool {
    let path: Vec<&str> = path.split('/').collect();
    matches!(path.as_slice(), ["v1", "apps"] | ["v1", "images", _] | ["v1", "images", _, "app"])
}

fn not_of_this_domain() -> Refusal {
    Refusal::new(
        StatusCode::UNAUTHORIZED,
        "the request is not proved with the key of this domain's edges",
        "give both edges the same `secret_file`",
    )
}

fn too_little(what: &str) -> Refusal {
    let error = format!("this token allows reading {what} and nothing else");
    Refusal::new(StatusCode::FORBIDDEN, error, "give the admin token")
}

/// Refuses a request that names another host, as a page does if its own host name resolves to this machine. A request without a
/// host is from no browser.
///
/// An address always passes: a page's name must resolve to this machine to reach it, and then the
/// browser sends that name and no address. Both the `Host` header and the request's target are
/// compared, since a proxy may use either (RFC 9110, 7.2).
///
/// # Errors
/// With 403. A header that is not text counts as another name.
pub fn is_own_host(headers: &HeaderMap, uri: &Uri, hosts: &[String]) -> Result<(), Refusal> {
    let named = headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or("?"));
    match named.chain(uri.host()).find(|named| !is_name_of_this(named, hosts)) {
        None => Ok(()),
        Some(named) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!(
                "the request is for a host `{}`, which is not a name of this one",
                named.escape_default()
            ),
            "use its address, or add the name to `admin.hosts`",
        )),
    }
}

/// A port, the brackets of an IPv6 address and the dot of a fully qualified name are no part of the
/// comparison.
fn is_name_of_this(named: &str, hosts: &[String]) -> bool {
    let Ok(authority) = named.parse::<Authority>() else { return false };
    let name = authority.host();
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let plain = name.strip_suffix('.').unwrap_or(name);
    bare.parse::<IpAddr>().is_ok() || hosts.iter().any(|host| host.eq_ignore_ascii_case(plain))
}

/// Refuses what a browser sends on behalf of any page: this API has no pages.
///
/// `Sec-Fetch-Site: none` is a request that the user made, for example in the address bar. All
/// others that a browser sends name their site, `same-origin` included: no page is ever served from
/// this origin, so such a request can only come from one that does not belong here.
///
/// # Errors
/// With 403.
pub fn is_no_page(headers: &HeaderMap) -> Result<(), Refusal> {
    let site = headers.get("sec-fetch-site").map_or(&b"none"[..], |site| site.as_bytes());
    let origin = headers.get(header::ORIGIN);
    if origin.is_none() && site == b"none" {
        return Ok(());
    }
    let origin = origin.and_then(|origin| origin.to_str().ok()).unwrap_or("another origin");
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        format!("requests of web pages ({}) are not allowed", origin.escape_default()),
        "use `marram`, or a program that sends no `Origin`",
    ))
}

/// Refuses a content type, or the lack of one, that a page could send without a preflight request.
///
/// Requests without a preflight may have only the three types of HTML forms (Fetch standard,
/// "CORS-safelisted request-header"), none of which is allowed here; and this API never allows a
/// preflight.
///
/// # Errors
/// With 415. Methods without a body are not checked.
pub fn has_a_type(method: &Method, headers: &HeaderMap) -> Result<(), Refusal> {
    if matches!(*method, Method::GET | Method::HEAD | Method::DELETE) {
        return Ok(());
    }
    let written = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = written.split(';').next().unwrap_or_default().trim();
    if CONTENT_TYPES.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let what = format!("{method} needs a content type of {}", CONTENT_TYPES.join(" or "));
    let fix = "send the header `Content-Type: application/json`, also without a body";
    Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what, fix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edges::EdgeRequest;
    use bytes::Bytes;
    use hyper::Request;
    use marram_wire::seal::DomainSecret;

    const JSON: (&str, &str) = ("content-type", "application/json");

    fn key(secret: &[u8]) -> EdgeKey {
        EdgeKey::derive(&DomainSecret::from_material(secret))
    }

    fn guard(metrics: Metrics) -> Guard {
        let access =
            Access { token: None, metrics, hosts: vec!["edge-a.example.org".into()], identity: None };
        Guard::new(&access, "operator".into(), Some(key(b"domain")))
    }

    /// The status of the refusal; 200 if the request is allowed.
    fn status(guard: &Guard, request: &str, token: &str, headers: &[(&str, &str)]) -> u16 {
        let (method, uri) = request.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(uri);
        let shown = match token.strip_prefix("edge of ") {
            Some(secret) => EdgeRequest::new(&key(secret.as_bytes()), uri).unwrap().authorization(),
            None => format!("Bearer {token}"),
        };
        if !token.is_empty() {
            request = request.header("authorization", shown);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        guard.admit(&head).map_or_else(|refusal| refusal.status().as_u16(), |_| 200)
    }

    #[test]
    fn each_token_opens_what_it_is_for() {
        let (closed, open) = (guard(Metrics::Token("metrics".into())), guard(Metrics::Open));
        for (request, [none, wrong, metrics, edge]) in [
            ("GET /healthz", [200, 200, 200, 200]),
            ("GET /metrics", [401, 401, 200, 403]),
            ("GET /v1/apps", [401, 401, 403, 200]),
            ("GET /v1/images/00", [401, 401, 403, 200]),
            ("GET /v1/images/00/app", [401, 401, 403, 200]),
            ("GET /v1/images/00/app?name=a", [401, 401, 403, 200]),
            ("GET /v1/images/00/app/x", [401, 401, 403, 403]),
            ("GET /v1/sessions", [401, 401, 403, 403]),
            ("DELETE /v1/apps", [401, 401, 403, 403]),
            ("POST /v1/apps", [401, 401, 403, 403]),
            ("POST /v1/drain", [401, 401, 403, 403]),
            ("POST /v1/drain/cancel", [401, 401, 403, 403]),
            ("POST /metrics", [401, 401, 403, 403]),
        ] {
            for (token, expected) in
                [("", none), ("operatos", wrong), ("metrics", metrics), ("operator", 200)]
                    .into_iter()
                    .chain([("edge of domain", edge), ("edge of another", wrong)])
            {
                assert_eq!(status(&closed, request, token, &[JSON]), expected, "{request} with {token:?}");
            }
        }
        assert_eq!(status(&open, "GET /metrics", "", &[]), 200);
        assert_eq!(status(&open, "GET /v1/edge", "", &[]), 401);
    }

    #[test]
    fn a_proof_of_an_edge_is_for_one_target_and_its_answer_for_one_request() {
        let guard = guard(Metrics::Operators);
        let asked = EdgeRequest::new(&key(b"domain"), "/v1/images/00").unwrap();
        let admit = |uri: &str, shown: &str| {
            let request = Request::builder().uri(uri).header("authorization", shown);
            guard.admit(&request.body(()).unwrap().into_parts().0)
        };
        let shown = asked.authorization();
        let caller = admit("/v1/images/00", &shown).unwrap().expect("it is from an edge");
        let (body, (name, salt)) = caller.seal(Bytes::from_static(b"image")).unwrap();
        let headers = HeaderMap::from_iter([(name, salt)]);
        assert_eq!(asked.open(&headers, body.clone()).as_deref(), Some(&b"image"[..]));
        assert_eq!(asked.open(&HeaderMap::new(), body.clone()), None, "without its salt");
        assert_eq!(asked.open(&headers, Bytes::from_static(b"image")), None, "in the clear");
        let other = EdgeRequest::new(&key(b"domain"), "/v1/images/00").unwrap();
        assert_eq!(other.open(&headers, body), None, "the answer to another request");
        for (uri, shown) in [
            ("/v1/images/01", shown.clone()),
            ("/v1/images/00?x", shown.clone()),
            ("/v1/images/00", shown.replace('.', "")),
            ("/v1/images/00", shown[..shown.len() - 1].into()),
            ("/v1/images/00", "Marram-Edge ".into()),
            ("/v1/images/00", shown.replace("Marram-Edge", "Bearer")),
        ] {
            let refusal = admit(uri, &shown).expect_err("it is not proved");
            assert_eq!(refusal.status(), StatusCode::UNAUTHORIZED, "{uri} with {shown}");
        }
    }

    #[test]
    fn a_web_page_gets_nothing_with_any_credentials() {
        let guard = guard(Metrics::Open);
        for host in [
            "evil.example:7401",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "edge-a.example.org.evil",
            "user@evil.example",
        ] {
            for request in ["GET /v1/sessions", "GET /metrics", "GET /healthz", "POST /v1/drain"] {
                assert_eq!(status(&guard, request, "operator", &[("host", host), JSON]), 403, "{host:?}");
            }
        }
        assert_eq!(
            status(&guard, "GET http://evil.example/v1/edge", "operator", &[("host", "[::1]:1")]),
            403
        );
        let two = [("host", "127.0.0.1"), ("host", "evil.example")];
        assert_eq!(status(&guard, "GET /v1/edge", "operator", &two), 403);
        for own in ["127.0.0.1:7401", "[::1]:7401", "10.0.0.1", "LocalHost:1", "edge-a.Example.org.:7401"] {
            assert_eq!(status(&guard, "GET /v1/edge", "operator", &[("host", own)]), 200, "{own}");
        }
        for page in [("origin", "http://evil.example"), ("origin", "null"), ("sec-fetch-site", "cross-site")]
        {
            assert_eq!(status(&guard, "GET /v1/edge", "operator", &[page]), 403, "{page:?}");
            assert_eq!(status(&guard, "POST /v1/drain", "operator", &[page, JSON]), 403, "{page:?}");
        }
    }

    #[test]
    fn what_changes_something_has_a_type_that_pages_must_ask_for() {
        let guard = guard(Metrics::Operators);
        for request in ["POST /v1/drain", "POST /v1/apps", "PUT /v1/routes"] {
            assert_eq!(status(&guard, request, "operator", &[]), 415, "{request}");
            for simple in ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", ""] {
                assert_eq!(status(&guard, request, "operator", &[("content-type", simple)]), 415, "{simple}");
            }
            for kind in ["application/json", "application/octet-stream", "Application/JSON; charset=utf-8"] {
                assert_eq!(status(&guard, request, "operator", &[("content-type", kind)]), 200, "{kind}");
            }
        }
        assert_eq!(status(&guard, "DELETE /v1/apps/a", "operator", &[]), 200);
    }
}
