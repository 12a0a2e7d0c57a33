//! Servers that an edge takes for another edge and that are none, as with a hostile entry in the coordinator's store: they learn
//! no secret and no app, and what they say themselves does not count.

use crate::support;
use marram_cluster::{LogEvent, TestCluster};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Serves each connection in a thread of its own, until the test ends.
fn serve(each: impl Fn(TcpStream) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let each = Arc::new(each);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let each = Arc::clone(&each);
            // A connection that breaks shows in what the edge says.
            thread::spawn(move || drop(each(stream)));
        }
    });
    address
}

/// Reads the head of a request.
fn head(stream: &mut TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Answers all requests with this JSON.
fn liar(json: String) -> SocketAddr {
    serve(move |mut stream| {
        head(&mut stream)?;
        let size = json.len();
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n\r\n{json}"
        )
    })
}

/// Passes requests on to a real edge, one a connection, and keeps what goes through it.
fn relay(to: SocketAddr) -> (SocketAddr, Arc<Mutex<Vec<Passed>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let address = serve(move |mut stream| {
        let request = head(&mut stream)?;
        let answer = ask(to, &request)?;
        kept.lock().unwrap().push(Passed { request, answer: answer.clone() });
        stream.write_all(&answer)?;
        stream.shutdown(Shutdown::Write)
    });
    (address, seen)
}

struct Passed {
    request: String,
    answer: Vec<u8>,
}

/// Sends a request as written, and returns the whole answer.
fn ask(to: SocketAddr, request: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(request.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_server_that_is_no_edge_learns_nothing_and_is_not_believed() {
    let mut first = support::cluster("peers-real", 1, 1);
    first.start_edges("").unwrap();
    let real = first.edges[0].admin();
    let apps = first.edges[0].client().unwrap().json(hyper::Method::GET, "/v1/apps").unwrap();
    assert_eq!(apps["apps"][0]["name"], "forward");

    // The first lies without a key; the second is honest, and listens.
    let liar = liar(apps.to_string());
    let (relay, seen) = relay(real);
    let peers = format!("peers = [\"http://{liar}\", \"http://{relay}\"]\n");
    let layout = support::layout("peers-new", |layout| layout.admin = peers);
    let mut second = TestCluster::new(layout, |_| Ok(Vec::new())).unwrap();
    support::same_domain(&second, &first);
    second.start_edges("").unwrap();
    let refused = |event: &LogEvent| event.text("message").contains("apps could not be fetched");
    let refused = second.logs.wait(0, PATIENCE, refused).expect("the lie is refused").1;
    assert!(refused.text("peer").contains(&liar.to_string()), "{}", refused.fields);
    assert!(refused.text("message").contains("not sealed"), "{}", refused.fields);
    let deployed = |event: &LogEvent| event.name() == "deployed" && event.text("app") == "forward";
    second.logs.wait(0, PATIENCE, deployed).expect("an honest relay does no harm");

    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 2, "the list and an image");
    for passed in seen.iter() {
        assert!(passed.request.contains("Marram-Edge "), "{}", passed.request);
        assert!(!has(&passed.answer, "forward") && !has(&passed.answer, "\0asm"), "an app in the clear");
        // The same request again gives the same edge's answer, sealed again; another one gives nothing.
        let again = ask(real, &passed.request).unwrap();
        assert!(again.starts_with(b"HTTP/1.1 200 ") && !has(&again, "forward"), "{}", passed.request);
        for other in ["GET /v1/apps?all HTTP", "GET /v1/sessions HTTP", "POST /v1/drain HTTP"] {
            let (_, rest) = passed.request.split_once(" HTTP").unwrap();
            let answer = ask(real, &format!("{other}{rest}")).unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 401 "), "{other}: {}", String::from_utf8_lossy(&answer));
        }
    }
}
