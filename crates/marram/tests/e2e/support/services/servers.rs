//! The servers behind the services: two that echo, a web server, and a viewer of video.

use crate::support::{
    serve::{self, serve},
    site,
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    process::{Command, Stdio},
    sync::Arc,
    thread,
};

/// Number of pages of the web server; page N has N + 1 times as many bytes as [`PAGE_BYTES`].
pub(crate) const PAGES: usize = 8;
const PAGE_BYTES: usize = 1_500;
/// Size of a frame of video: each pixel is one byte.
pub(crate) const WIDTH: usize = 64;
pub(crate) const HEIGHT: usize = 48;

/// A page's text.
pub(crate) fn page(number: usize) -> Vec<u8> {
    site::text((number + 1) * PAGE_BYTES)
}

/// A number that depends on every byte and on their order.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |all, byte| {
        (all ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(5)
    })
}

/// The addresses of all of them.
pub(crate) struct Servers {
    echo: SocketAddr,
    web: SocketAddr,
    viewer: SocketAddr,
    flows: SocketAddr,
}

impl Servers {
    pub(crate) fn start() -> Self {
        let pages: Arc<Vec<Vec<u8>>> = Arc::new((0..PAGES).map(|number| compressed(&page(number))).collect());
        Self {
            echo: serve::echo(),
            web: serve(move |stream| web(&stream, &pages)),
            viewer: serve(|stream| view(&stream)),
            flows: flows(),
        }
    }

    /// Their names in manifests, and their addresses in an agent's configuration.
    pub(crate) fn names(&self) -> [(&'static str, String); 4] {
        [
            ("echo", self.echo.to_string()),
            ("web", self.web.to_string()),
            ("viewer", self.viewer.to_string()),
            ("flows", format!("udp://{}", self.flows)),
        ]
    }

    /// The lines of an agent's configuration that name them.
    pub(crate) fn table(&self) -> String {
        let lines = self.names().map(|(name, address)| format!("{name} = {address:?}\n"));
        format!("[servers]\n{}", lines.concat())
    }
}

/// What `gzip` makes of a text.
fn compressed(text: &[u8]) -> Vec<u8> {
    let mut gzip = Command::new("gzip");
    let mut gzip = gzip.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, text) = (gzip.stdin.take().unwrap(), text.to_vec());
    let writer = thread::spawn(move || input.write_all(&text).unwrap());
    let output = gzip.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    output.stdout
}

/// Answers `GET /N` with page N, which is compressed: the service asks for that in place of its clients.
fn web(stream: &TcpStream, pages: &[Vec<u8>]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let (mut path, mut line, mut takes_gzip) = (String::new(), String::new(), false);
        if reader.read_line(&mut path)? == 0 {
            return Ok(());
        }
        while reader.read_line(&mut line)? > 2 {
            let field = line.to_ascii_lowercase();
            takes_gzip |= field.starts_with("accept-encoding:") && field.contains("gzip");
            line.clear();
        }
        let number = path.split(['/', ' ']).nth(2).and_then(|number| number.parse::<usize>().ok());
        let body = number.and_then(|number| pages.get(number)).filter(|_| takes_gzip);
        match body {
            None => writer.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?,
            Some(body) => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                writer.write_all(&[head.as_bytes(), body].concat())?;
            }
        }
    }
}

/// Answers each frame of video with the number that the service gave it, and its digest.
fn view(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    let (mut line, mut frame) = (String::new(), vec![0; WIDTH * HEIGHT]);
    // The stream's header.
    reader.read_line(&mut line)?;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        reader.read_exact(&mut frame)?;
        let number = line.split("XNUMBER=").nth(1).and_then(|rest| rest.split_whitespace().next());
        writeln!(writer, "{} {}", number.unwrap_or("none"), digest(&frame))?;
    }
}

/// Echoes each datagram, until the program ends.
fn flows() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = vec![0; 70_000];
        // A socket that a client has closed is reported as an error of the next call.
        loop {
            if let Ok((len, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..len], from);
            }
        }
    });
    address
}
