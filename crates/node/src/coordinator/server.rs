//! The embedded store over HTTP, on its own port: watches last long, and must not use up the connections of operators.
//!
//! It speaks etcd's dialect (`protocol.rs`) so that one client serves both. Errors have etcd's form
//! and gRPC's codes. The token protects all of it: a client that can write here can make edges
//! believe in a witness or in other edges.

use super::keeping::{News, StoreHandle};
use super::protocol::{self, Asked};
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use marram_http::tls::Acceptor;
use marram_http::{
    self as http, Body, BodyStream, Refusal, Server, has_a_type, is_no_page, is_own_host, own_names,
};
use marram_shard::coordinator::VALUE_BYTES_MAX;
use serde_json::Value;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// Connections at a time, including watches; further ones wait to be accepted.
pub const CONNECTIONS_MAX: usize = 1_024;
/// Bytes of a request: a value in base64, with room to spare.
pub const REQUEST_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX;
/// How long a request may take to arrive.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// How long a client may read nothing of an answer or a watch.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(30);

/// Streams changes for as long as there are any.
struct Watch(mpsc::Receiver<News>);

impl BodyStream for Watch {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(context).map(|news| {
            news.map(|news| match news {
                News::Changes(changes) => protocol::line(&changes),
                News::Forgotten(oldest) => protocol::forgotten(oldest),
            })
        })
    }
}

/// Starts the thread that serves.
pub(super) fn start(
    listener: TcpListener,
    keeping: StoreHandle,
    token: Option<String>,
    tls: Option<Acceptor>,
) -> io::Result<()> {
    let server = Server {
        thread: "store-serve",
        what: "the coordinator's store",
        connections_max: CONNECTIONS_MAX,
        head_patience: REQUEST_PATIENCE,
        write_patience: ANSWER_PATIENCE,
        tls,
    };
    let token: Option<Arc<str>> = token.map(Into::into);
    server.start(listener, move |request| respond(keeping.clone(), token.clone(), request))
}

/// Checks run from cheap to expensive; the body is read only for a client with the token.
async fn respond(
    keeping: StoreHandle,
    token: Option<Arc<str>>,
    request: Request<Incoming>,
) -> Response<Body> {
    if let Err(refusal) = is_of_no_page(&request, token.is_some()) {
        return whole(protocol::error(403, 7, &refusal.to_string()));
    }
    if !http::shows(request.headers(), token.as_deref()) {
        return whole(protocol::error(401, 16, "the token is missing or wrong"));
    }
    let path = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
    let body = match tokio::time::timeout(REQUEST_PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            return whole(protocol::error(400, 3, &format!("the request cannot be read: {error}")));
        }
        Err(_) => return whole(protocol::error(408, 4, "the request did not arrive in time")),
    };
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    match protocol::asked(&path, &value) {
        None => whole(protocol::error(
            400,
            12,
            "this store does not know that request: docs/decisions/coordinator.md lists them",
        )),
        Some(Asked::Request(request)) => match keeping.ask(request.clone()).await {
            Some((revision, result)) => whole(protocol::answer(revision, &request, result)),
            None => whole(protocol::error(503, 14, "the store is overloaded or cannot be written")),
        },
        // The first line goes out at once, so that the client knows that the watch stands.
        Some(Asked::Watch(prefix, since)) => match keeping.watch(prefix, since) {
            Some(news) => Response::new(Body::Lines(Some(protocol::line(&[])), Box::new(Watch(news)))),
            None => whole(protocol::error(503, 14, "the store is overloaded")),
        },
    }
}

/// Refuses requests that a web page made a browser send, since a browser reaches servers on loopback. With a token, which a page
/// does not have, edges may use any name that leads here.
fn is_of_no_page(request: &Request<Incoming>, has_token: bool) -> Result<(), Refusal> {
    is_no_page(request.headers())?;
    has_a_type(request.method(), request.headers())?;
    if has_token {
        return Ok(());
    }
    is_own_host(request.headers(), request.uri(), &own_names())
}

fn whole((status, body): (u16, Value)) -> Response<Body> {
    let mut response = Response::new(Bytes::from(body.to_string()).into());
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}
