//! Clients of the services that ship, and of others that tests need. Each opens one session after another, does the same thing in
//! it many times, and knows every byte that it must get.

pub(crate) mod servers;
mod talk;

use crate::support;
use marram_cluster::TempDir;
use marram_wire::seeded::Seeded;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Most turns of a session.
const TURNS_MAX: u64 = 200;

/// The services.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    Forward,
    Limiter,
    Firewall,
    Monitor,
    Tls,
    Compress,
    Background,
    Memcached,
    Classify,
    /// `forward`, with datagrams.
    Datagrams,
    /// `forward` between two stages that delay some of what they pass on.
    Chain,
    /// A game with a clock. It ends by itself, or with its client.
    Snake,
    /// `forward` with `protect = "none"`: a session may end with its edge.
    Unprotected,
}

impl Service {
    /// Those that ship.
    pub(crate) const SHIPPED: [Self; 9] = [
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

    /// The name of its app; of those that ship, of module and directory, too.
    pub(crate) fn name(self) -> &'static str {
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
            Self::Datagrams => "datagrams",
            Self::Chain => "chain",
            Self::Snake => "snake",
            Self::Unprotected => "unprotected",
        }
    }

    /// Its server, if its manifest names one.
    pub(crate) fn server(self) -> &'static str {
        match self {
            Self::Compress => "web",
            Self::Background => "viewer",
            Self::Datagrams => "flows",
            _ => "echo",
        }
    }
}

impl Service {
    /// Writes its manifest. That of a service that ships is as it ships, except for the paths of its files, its server, and a cell
    /// for each client.
    pub(crate) fn manifest(self, place: &TempDir, site: &Site) -> anyhow::Result<PathBuf> {
        let (name, server) = (self.name(), format!("server = {:?}", self.server()));
        let cells = support::cells();
        match self {
            Self::Datagrams => {
                cells.manifest(place, name, "forward", &format!("{server}\nprotect = \"endpoints\"\n"))
            }
            Self::Unprotected => {
                cells.manifest(place, name, "forward", &format!("{server}\nprotect = \"none\"\n"))
            }
            Self::Snake => cells.manifest(place, name, "snake", "protect = \"endpoints\"\n"),
            Self::Chain => {
                let stage = |(name, cell)| {
                    format!("[[stage]]\nname = \"{name}\"\nmodule = {:?}\n", cells.module(cell))
                };
                let stages = [("upper", "delay"), ("middle", "forward"), ("lower", "delay")].map(stage);
                let text = format!("name = \"{name}\"\n{server}\n{}", stages.concat());
                place.write(&format!("apps/{name}/marram.toml"), text)
            }
            _ => {
                let certificate =
                    format!("source = {:?}\nabsolute = true", site.certificate.display().to_string());
                let text = support::shipped_manifest(name)
                    .replace("server = \"origin\"", &server)
                    .replace("cell = \"shared\"", "protect = \"endpoints\"")
                    .replace("source = \"certificate.pem\"", &certificate);
                place.write(&format!("apps/{name}/marram.toml"), text)
            }
        }
    }
}

/// A certificate for this machine, and its private key in a file that only this user can read.
pub(crate) struct Site {
    _directory: TempDir,
    certificate: PathBuf,
    key: PathBuf,
    tls: Arc<ClientConfig>,
}

impl Site {
    pub(crate) fn new() -> Self {
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
    pub(crate) fn table(&self, app: &str) -> String {
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
    /// Sessions that ended with their edges, which only unprotected ones may.
    broken: AtomicU64,
}

/// The same, when all have ended.
pub(crate) struct Counted {
    pub(crate) service: &'static str,
    pub(crate) ended: u64,
    pub(crate) answers: u64,
    pub(crate) longest_ms: u64,
    pub(crate) broken: u64,
}

/// What the clients do, and how many there are.
#[derive(Clone)]
pub(crate) struct Habits {
    /// Each service, and where it listens; equally many clients of each.
    pub(crate) services: Vec<(Service, SocketAddr)>,
    pub(crate) sessions: usize,
    /// The longest time between two turns.
    pub(crate) pace_ms_max: u64,
    /// How long any one answer may take.
    pub(crate) patience: Duration,
    pub(crate) seed: u64,
}

struct Shared {
    stop: AtomicBool,
    /// In the order of the services.
    counts: Vec<Count>,
    wrong: Mutex<Vec<String>>,
    habits: Habits,
    tls: Arc<ClientConfig>,
}

/// All clients, each in a thread of its own.
pub(crate) struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    pub(crate) fn start(habits: Habits, site: &Site) -> Self {
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            counts: habits.services.iter().map(|_| Count::default()).collect(),
            wrong: Mutex::default(),
            tls: Arc::clone(&site.tls),
            habits,
        });
        let client = |number: usize| {
            let kind = number % shared.habits.services.len();
            let shared = Arc::clone(&shared);
            let seed = shared.habits.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
            let run = move || {
                let mut random = Seeded::new(seed);
                while !shared.stop.load(Ordering::Relaxed) {
                    if let Err(why) = converse(kind, &mut random, &shared) {
                        let service = shared.habits.services[kind].0.name();
                        return shared
                            .wrong
                            .lock()
                            .unwrap()
                            .push(format!("client {number} of {service}: {why}"));
                    }
                }
            };
            thread::Builder::new().stack_size(512 << 10).spawn(run).unwrap()
        };
        let threads = (0..shared.habits.sessions).map(client).collect();
        Self { shared, threads }
    }

    /// Errors so far.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.shared.wrong.lock().unwrap().clone()
    }

    /// Answers so far, all of which were right.
    pub(crate) fn answers(&self) -> u64 {
        self.shared.counts.iter().map(|count| count.answers.load(Ordering::Relaxed)).sum()
    }

    /// Lets every client end its session; returns what each service's clients have counted.
    pub(crate) fn finish(mut self) -> Vec<Counted> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for client in self.threads.drain(..) {
            client.join().unwrap();
        }
        assert_eq!(self.wrong(), Vec::<String>::new());
        let count = |((service, _), count): (&(Service, SocketAddr), &Count)| {
            let [ended, answers, longest_ms, broken] =
                [&count.ended, &count.answers, &count.longest_ms, &count.broken]
                    .map(|count| count.load(Ordering::Relaxed));
            Counted { service: service.name(), ended, answers, longest_ms, broken }
        };
        self.shared.habits.services.iter().zip(&self.shared.counts).map(count).collect()
    }
}

/// One session: many turns, then its end.
fn converse(kind: usize, random: &mut Seeded, shared: &Shared) -> Result<(), String> {
    let ((service, address), count) = (shared.habits.services[kind], &shared.counts[kind]);
    let mut talk = talk::open(service, address, shared.habits.patience, &shared.tls, random)
        .map_err(|error| format!("connecting: {error}"))?;
    let turns = 1 + random.below(TURNS_MAX);
    // An image takes a thousand times as long as a message: its clients ask less often.
    let pace_ms = shared.habits.pace_ms_max * if service == Service::Classify { 10 } else { 1 };
    for turn in 0..turns {
        let asked = Instant::now();
        if let Err(why) = talk.turn(random) {
            if talk.may_have_ended() {
                count.broken.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            // The session stays as it is, to be looked at.
            std::mem::forget(talk);
            return Err(format!("turn {turn} of {turns}: {why}"));
        }
        let ms = asked.elapsed().as_millis();
        count.answers.fetch_add(1, Ordering::Relaxed);
        count.longest_ms.fetch_max(u64::try_from(ms).unwrap_or(u64::MAX), Ordering::Relaxed);
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(Duration::from_millis(random.below(pace_ms)));
    }
    let may_break = service == Service::Unprotected;
    match talk.end() {
        Err(_) if may_break => count.broken.fetch_add(1, Ordering::Relaxed),
        Err(why) => return Err(format!("ending after {turns} turns: {why}")),
        Ok(()) => count.ended.fetch_add(1, Ordering::Relaxed),
    };
    Ok(())
}
