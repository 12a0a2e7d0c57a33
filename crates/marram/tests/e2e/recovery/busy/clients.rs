//! Clients of all services. Each opens one session after another, does the same thing in it many times, and knows every byte
//! that it must get.

use super::servers::{self, HEIGHT, PAGES, WIDTH};
use crate::support::{caches, digits};
use marram_cluster::TempDir;
use marram_wire::seeded::Seeded;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long any one answer may take. Edges that die faster than their sessions are recovered make a client wait for several of
/// them: how long is printed, and only what never comes is an error.
const PATIENCE: Duration = Duration::from_secs(600);
/// Most turns of a session, and the longest time between two turns.
const TURNS_MAX: u64 = 200;
const PACE_MS_MAX: u64 = 500;
/// Most bytes of one message that is echoed.
const PIECE_MAX: u64 = 12_000;

/// The services that ship.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Forward,
    Limiter,
    Firewall,
    Monitor,
    Tls,
    Compress,
    Background,
    Memcached,
    Classify,
}

impl Service {
    pub(super) const ALL: [Self; 9] = [
        Self::Forward,
        Self::Limiter,
        Self::Firewall,
        Self::Monitor,
        Self::Tls,
        Self::Compress,
        Self::Background,
        Self::Memcached,
        Self::Classify,
    ];

    /// The name of its app, module and directory.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Limiter => "limiter",
            Self::Firewall => "firewall",
            Self::Monitor => "monitor",
            Self::Tls => "tls",
            Self::Compress => "compress",
            Self::Background => "background",
            Self::Memcached => "memcached",
            Self::Classify => "classify",
        }
    }

    /// Its server, if its manifest names one.
    pub(super) fn server(self) -> &'static str {
        match self {
            Self::Compress => "web",
            Self::Background => "viewer",
            _ => "echo",
        }
    }
}

/// A certificate for this machine, and its private key in a file that only this user can read.
pub(super) struct Site {
    _directory: TempDir,
    pub(super) certificate: PathBuf,
    key: PathBuf,
    tls: Arc<ClientConfig>,
}

impl Site {
    pub(super) fn new() -> Self {
        let directory = TempDir::new("busy-site").unwrap();
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let certificate =
            rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
        let mut tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let certificate = directory.write("certificate.pem", certificate).unwrap();
        let key = directory.write("site.key", key.serialize_pem()).unwrap();
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
        Self { _directory: directory, certificate, key, tls: Arc::new(tls) }
    }

    /// Part of an edge's configuration: the key, for this app.
    pub(super) fn table(&self, app: &str) -> String {
        format!("[[key]]\nname = \"site\"\nfile = {:?}\napps = [{app:?}]\n", self.key)
    }
}

/// What all clients of a service count.
#[derive(Default)]
struct Count {
    /// Sessions that ended as they should.
    ended: AtomicU64,
    /// Answers, all of which were right.
    answers: AtomicU64,
    /// The longest wait for one, in milliseconds.
    longest_ms: AtomicU64,
}

/// The same, when all have ended.
pub(super) struct Counted {
    pub(super) service: &'static str,
    pub(super) ended: u64,
    pub(super) answers: u64,
    pub(super) longest_ms: u64,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    counts: [Count; Service::ALL.len()],
    wrong: Mutex<Vec<String>>,
}

/// All clients, each in a thread of its own.
pub(super) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Starts this number of clients, equally many of each service; `addresses` are in the order of [`Service::ALL`].
    pub(super) fn start(addresses: &[SocketAddr], site: &Site, sessions: usize, seed: u64) -> Self {
        let shared = Arc::new(Shared::default());
        let client = |number: usize| {
            let kind = number % Service::ALL.len();
            let (service, address) = (Service::ALL[kind], addresses[kind]);
            let (shared, tls) = (Arc::clone(&shared), Arc::clone(&site.tls));
            let mut random = Seeded::new(seed.wrapping_mul(1_000_003).wrapping_add(number as u64));
            let run = move || {
                while !shared.stop.load(Ordering::Relaxed) {
                    if let Err(why) = converse(service, address, &tls, &mut random, &shared) {
                        shared
                            .wrong
                            .lock()
                            .unwrap()
                            .push(format!("client {number} of {}: {why}", service.name()));
                        return;
                    }
                    shared.counts[kind].ended.fetch_add(1, Ordering::Relaxed);
                }
            };
            thread::Builder::new().stack_size(512 << 10).spawn(run).unwrap()
        };
        let threads = (0..sessions).map(client).collect();
        Self { shared, threads }
    }

    /// Errors so far.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.shared.wrong.lock().unwrap().clone()
    }

    /// Lets every client end its session; returns what each service's clients have counted.
    pub(super) fn finish(mut self) -> Vec<Counted> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.threads.drain(..) {
            client.join().unwrap();
        }
        assert_eq!(self.wrong(), Vec::<String>::new());
        let count = |(service, count): (&Service, &Count)| {
            let [ended, answers, longest_ms] =
                [&count.ended, &count.answers, &count.longest_ms].map(|count| count.load(Ordering::Relaxed));
            Counted { service: service.name(), ended, answers, longest_ms }
        };
        Service::ALL.iter().zip(&self.shared.counts).map(count).collect()
    }
}

/// One session: many turns, then its end.
fn converse(
    service: Service,
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    random: &mut Seeded,
    shared: &Shared,
) -> Result<(), String> {
    let mut talk = open(service, address, tls, random).map_err(|error| format!("connecting: {error}"))?;
    let turns = 1 + random.below(TURNS_MAX);
    // An image takes a thousand times as long as a message: its clients ask less often.
    let pace_ms = PACE_MS_MAX * if service == Service::Classify { 10 } else { 1 };
    for turn in 0..turns {
        let asked = Instant::now();
        if let Err(why) = talk.turn(random) {
            // The session stays as it is, to be looked at.
            std::mem::forget(talk);
            return Err(format!("turn {turn} of {turns}: {why}"));
        }
        let (count, ms) = (&shared.counts[service as usize], asked.elapsed().as_millis());
        count.answers.fetch_add(1, Ordering::Relaxed);
        count.longest_ms.fetch_max(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Relaxed);
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(Duration::from_millis(random.below(pace_ms)));
    }
    talk.end().map_err(|why| format!("ending after {turns} turns: {why}"))
}

/// A session of one service.
trait Talk {
    /// Asks once, and compares the answer.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String>;
    /// Ends the session; where the server ends its side, too, that must come.
    fn end(self: Box<Self>) -> Result<(), String>;
}

fn open(
    service: Service,
    address: SocketAddr,
    tls: &Arc<ClientConfig>,
    random: &mut Seeded,
) -> std::io::Result<Box<dyn Talk>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(match service {
        Service::Forward | Service::Limiter | Service::Firewall | Service::Monitor => Box::new(Echo(stream)),
        Service::Tls => {
            let name = ServerName::try_from("localhost").expect("a valid name");
            let connection = ClientConnection::new(Arc::clone(tls), name).map_err(std::io::Error::other)?;
            Box::new(Tls(StreamOwned::new(connection, stream)))
        }
        Service::Compress => Box::new(Web(BufReader::new(stream))),
        Service::Background => {
            let mut stream = BufReader::new(stream);
            let header = format!("YUV4MPEG2 W{WIDTH} H{HEIGHT} F25:1 Ip A1:1 Cmono\n");
            stream.get_mut().write_all(header.as_bytes())?;
            Box::new(Camera { stream, frames: 0 })
        }
        Service::Memcached => {
            Box::new(Cache(caches::Client::new(stream, random.word()).map_err(std::io::Error::other)?))
        }
        Service::Classify => Box::new(Images(stream)),
    })
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Sends a piece of letters, and expects it back.
fn echoed(stream: &mut (impl Read + Write), random: &mut Seeded) -> Result<(), String> {
    let largest = if random.below(8) == 0 { PIECE_MAX } else { 200 };
    let len = usize::try_from(1 + random.below(largest)).expect("a piece fits in memory");
    let piece: Vec<u8> = (0..len).map(|_| b'a' + random.below(26).to_le_bytes()[0]).collect();
    stream.write_all(&piece).and_then(|()| stream.flush()).map_err(text)?;
    let mut back = vec![0; len];
    stream.read_exact(&mut back).map_err(text)?;
    let wrong = (0..len).find(|at| back[*at] != piece[*at]);
    wrong.map_or(Ok(()), |at| Err(format!("byte {at} of {len} is wrong")))
}

/// The other direction ends, with nothing more.
fn ended(mut stream: impl Read) -> Result<(), String> {
    match stream.read(&mut [0; 64]) {
        Ok(0) => Ok(()),
        Ok(more) => Err(format!("{more} bytes that were not expected")),
        Err(error) => Err(text(error)),
    }
}

struct Echo(TcpStream);

impl Talk for Echo {
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        echoed(&mut self.0, random)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.shutdown(Shutdown::Write).map_err(text)?;
        ended(&self.0)
    }
}

struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Talk for Tls {
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        echoed(&mut self.0, random)
    }

    fn end(mut self: Box<Self>) -> Result<(), String> {
        self.0.conn.send_close_notify();
        self.0.flush().map_err(text)?;
        self.0.sock.shutdown(Shutdown::Write).map_err(text)?;
        ended(&mut self.0)
    }
}

struct Web(BufReader<TcpStream>);

impl Web {
    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(text)?;
        line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| format!("a line ends early: {line:?}"))
    }
}

impl Talk for Web {
    /// The client takes no gzip, so the service decodes the page and sends it in chunks.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        let number = usize::try_from(random.below(PAGES as u64)).expect("few pages");
        let request = format!("GET /{number} HTTP/1.1\r\nHost: here\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).map_err(text)?;
        let status = self.line()?;
        if !status.starts_with("HTTP/1.1 200 ") {
            return Err(status);
        }
        while !self.line()?.is_empty() {}
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let len = usize::from_str_radix(&line, 16).map_err(|_| format!("no length: {line:?}"))?;
            let mut chunk = vec![0; len + 2];
            self.0.read_exact(&mut chunk).map_err(text)?;
            body.extend_from_slice(&chunk[..len]);
            if len == 0 {
                break;
            }
        }
        if body == servers::page(number) { Ok(()) } else { Err(format!("page {number} is wrong")) }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.get_ref().shutdown(Shutdown::Write).map_err(text)?;
        ended(self.0)
    }
}

struct Camera {
    stream: BufReader<TcpStream>,
    frames: u64,
}

impl Talk for Camera {
    /// A bright square is at another place in each frame, so each is forwarded, with its number.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        const SIDE: usize = 16;
        let mut place =
            |size: usize| usize::try_from(random.below((size - SIDE) as u64)).expect("it is small");
        let (left, top) = (place(WIDTH), place(HEIGHT));
        let mut frame = vec![60; WIDTH * HEIGHT];
        for row in frame.chunks_mut(WIDTH).skip(top).take(SIDE) {
            row[left..left + SIDE].fill(220);
        }
        self.stream.get_mut().write_all(&[&b"FRAME\n"[..], &frame].concat()).map_err(text)?;
        let (expected, mut answer) =
            (format!("{} {}\n", self.frames, servers::digest(&frame)), String::new());
        self.stream.read_line(&mut answer).map_err(text)?;
        self.frames += 1;
        if answer == expected { Ok(()) } else { Err(format!("{answer:?} in place of {expected:?}")) }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.stream.get_ref().shutdown(Shutdown::Write).map_err(text)?;
        ended(self.stream)
    }
}

struct Cache(caches::Client);

impl Talk for Cache {
    fn turn(&mut self, _: &mut Seeded) -> Result<(), String> {
        self.0.step()
    }

    fn end(mut self: Box<Self>) -> Result<(), String> {
        self.0.look_at_all()
    }
}

struct Images(TcpStream);

impl Talk for Images {
    /// The same image gets the same answer in every session, to the last bit.
    fn turn(&mut self, random: &mut Seeded) -> Result<(), String> {
        static ANSWERS: Mutex<BTreeMap<usize, [u8; digits::ANSWER_BYTES]>> = Mutex::new(BTreeMap::new());
        let number = usize::try_from(random.below(digits::IMAGES as u64)).expect("few images");
        self.0.write_all(&digits::image(number).1).map_err(text)?;
        let mut answer = [0; digits::ANSWER_BYTES];
        self.0.read_exact(&mut answer).map_err(text)?;
        let first = *ANSWERS.lock().expect("no one panics with it").entry(number).or_insert(answer);
        if answer == first {
            Ok(())
        } else {
            Err(format!("image {number}: {answer:?} in place of {first:?}"))
        }
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}
