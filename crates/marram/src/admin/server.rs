//! HTTP in and out: who may ask, and how much at a time. Knows no route.

use super::desk::Desk;
use super::logs;
use super::routes::{Answer, Call, Refusal};
use super::{body, boot};
use crate::http::{self, Body, Server};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Operators' connections at a time; more wait to be accepted.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a request's head may take.
pub const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// How long a request's body may take.
pub const BODY_PATIENCE: Duration = Duration::from_secs(120);
/// How long an operator may take nothing of an answer. Who follows a log and was away for longer asks again.
pub const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// Whoever has an admin API.
pub trait Site: Send + Sync + 'static {
    /// Does what is asked, under the name that it is served by. May block.
    fn answer(&self, name: &str, call: &Call) -> Result<Answer, Refusal>;
}

/// One that is served.
struct Served {
    name: String,
    token: Option<String>,
    site: Arc<dyn Site>,
}

/// Starts an edge's API, and a thread that deploys what is to be deployed at start.
///
/// # Errors
/// If the operating system has no thread or descriptor left.
pub fn start(listener: TcpListener, desk: Arc<Desk>) -> io::Result<()> {
    let booting = Arc::clone(&desk);
    thread::Builder::new().name("admin-boot".into()).spawn(move || boot::deploy_all(&booting))?;
    serve(listener, desk.edge.clone(), desk.token.clone(), desk)
}

/// Starts the thread of an API that is called so, and where that must be shown as `Authorization: Bearer ...`, if anything.
///
/// # Errors
/// If the operating system has no thread or descriptor left.
pub fn serve(
    listener: TcpListener,
    name: String,
    token: Option<String>,
    site: Arc<dyn Site>,
) -> io::Result<()> {
    let served = Arc::new(Served { name, token, site });
    let server = Server {
        thread: "admin",
        what: "the admin API",
        connections_max: CONNECTIONS_MAX,
        head_patience: HEAD_PATIENCE,
        write_patience: WRITE_PATIENCE,
    };
    server.start(listener, move |request| respond(Arc::clone(&served), request))
}

async fn respond(served: Arc<Served>, request: Request<Incoming>) -> Response<Body> {
    let answer = match read(served.token.as_deref(), request).await {
        Ok(call) if logs::is_asked_for(&call) => logs::answer(&served.name, &call),
        Ok(call) => tokio::task::spawn_blocking(move || served.site.answer(&served.name, &call))
            .await
            .unwrap_or_else(|_| Err(Refusal::bug("answering panicked"))),
        Err(refusal) => Err(refusal),
    };
    response(answer.unwrap_or_else(Refusal::into_answer))
}

/// Whether the asker may ask, and then all of what is asked.
async fn read(token: Option<&str>, request: Request<Incoming>) -> Result<Call, Refusal> {
    // `/healthz` is for load balancers, which have no token.
    if request.uri().path() != "/healthz" && !http::shows(request.headers(), token) {
        let what = match request.headers().get(header::AUTHORIZATION) {
            None => "the admin token is missing",
            Some(_) => "the admin token is wrong: another one was shown than the edge has",
        };
        let fix = "show that of `admin.token_file`: --token-file, or `Authorization: Bearer ...`";
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, what, fix));
    }
    let (head, incoming) = request.into_parts();
    let body = Limited::new(incoming, body::SIZE_MAX).collect();
    let body = match tokio::time::timeout(BODY_PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let what = format!("the body is larger than {} bytes", body::SIZE_MAX);
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, what, "make the app smaller"));
        }
        Ok(Err(error)) => {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                format!("the body broke off: {error}"),
                "try again",
            ));
        }
        Err(_) => {
            return Err(Refusal::new(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time",
                "try again",
            ));
        }
    };
    let query = head.uri.query().unwrap_or_default().to_owned();
    Ok(Call { method: head.method, path: head.uri.path().to_owned(), query, body })
}

fn response(answer: Answer) -> Response<Body> {
    let Answer { status, content_type, body } = answer;
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
