//! Clients on one thread, each of which repeatedly connects, does a handshake, sends a request and reads the page to its end.
//!
//! One thread, because the clients have one core: handshakes cost them time as well, and
//! `clients_busy` shows when they were the limit. Sessions are never resumed, so each page has a
//! full handshake.

use super::PAGE_BYTES;
use anyhow::Context;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{ClientConfig, ClientConnection, RootCertStore, client::Resumption};
use std::io::Read;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::unbounded_channel;
use tokio::task::JoinSet;

/// How long a page may take before the measurement fails.
const PATIENCE: Duration = Duration::from_secs(60);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The clients of one variant. They connect for each page, so there is no connection to keep.
pub(super) struct Clients {
    to: To,
    count: usize,
    runtime: Runtime,
}

/// The address and the TLS configuration, which every client needs.
#[derive(Clone)]
struct To {
    address: SocketAddr,
    config: Arc<ClientConfig>,
}

impl Clients {
    /// Clients that trust this certificate; one page has been fetched.
    pub(super) fn new(address: SocketAddr, certificate_pem: &str, count: usize) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(certificate_pem.as_bytes())?)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every connection is that of a new client.
        config.resumption = Resumption::disabled();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let to = To { address, config: Arc::new(config) };
        runtime.block_on(to.fetch())?;
        Ok(Self { to, count, runtime })
    }

    /// Pages a second, if every client requests the next page as soon as it has one.
    pub(super) fn throughput(&self, time: Duration) -> anyhow::Result<f64> {
        let begun = Instant::now();
        let pages = self.runtime.block_on(async {
            let mut clients = JoinSet::new();
            for _ in 0..self.count {
                let to = self.to.clone();
                clients.spawn(async move {
                    let mut pages = 0.0;
                    while begun.elapsed() < time {
                        to.fetch().await?;
                        pages += 1.0;
                    }
                    anyhow::Ok(pages)
                });
            }
            let mut sum = 0.0;
            while let Some(pages) = clients.join_next().await {
                sum += pages??;
            }
            anyhow::Ok(sum)
        })?;
        Ok(pages / begun.elapsed().as_secs_f64())
    }

    /// How long each page took, in milliseconds from its due time. Due times are random, `rate` a second, and do not depend on
    /// earlier pages; clients take turns.
    pub(super) fn waits_ms(&self, rate: f64, time: Duration) -> anyhow::Result<Vec<f64>> {
        self.runtime.block_on(async {
            let (mut queues, mut clients) = (Vec::new(), JoinSet::new());
            for _ in 0..self.count {
                let (queue, mut due) = unbounded_channel::<Instant>();
                queues.push(queue);
                let to = self.to.clone();
                clients.spawn(async move {
                    let mut waits = Vec::new();
                    while let Some(at) = due.recv().await {
                        to.fetch().await?;
                        waits.push(at.elapsed().as_secs_f64() * 1e3);
                    }
                    anyhow::Ok(waits)
                });
            }
            let begun = Instant::now();
            for (queue, after) in queues.iter().cycle().zip(super::super::classify::arrivals(rate, time)) {
                tokio::time::sleep_until((begun + after).into()).await;
                // If a client has failed, its result below says so.
                let _ = queue.send(begun + after);
            }
            drop(queues);
            let mut all = Vec::new();
            while let Some(waits) = clients.join_next().await {
                all.extend(waits??);
            }
            Ok(all)
        })
    }
}

/// One page, or an error if it does not come in time.
impl To {
    async fn fetch(&self) -> anyhow::Result<()> {
        tokio::time::timeout(PATIENCE, self.page()).await.context("no page in time")?
    }

    /// Fetches a page on its own connection. The server closes it first, so that no port of a client stays in use.
    ///
    /// # Errors
    /// If the connection ends without TLS's own close: a page that was cut off must not count.
    async fn page(&self) -> anyhow::Result<()> {
        let mut stream = TcpStream::connect(self.address).await.context("a client cannot connect")?;
        stream.set_nodelay(true)?;
        let mut tls = ClientConnection::new(Arc::clone(&self.config), ServerName::try_from("localhost")?)?;
        std::io::Write::write_all(&mut tls.writer(), REQUEST)?;
        let (mut wire, mut page, mut buffer) = (Vec::new(), Vec::new(), vec![0; 16 << 10]);
        loop {
            wire.clear();
            while tls.wants_write() {
                tls.write_tls(&mut wire)?;
            }
            stream.write_all(&wire).await?;
            let len = stream.read(&mut buffer).await?;
            let mut rest = &buffer[..len];
            while !rest.is_empty() {
                tls.read_tls(&mut rest)?;
                tls.process_new_packets()?;
            }
            match tls.reader().read_to_end(&mut page) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && len > 0 => {}
                read => {
                    read.context("a connection ended without the server's close")?;
                    break;
                }
            }
        }
        anyhow::ensure!(page.len() > PAGE_BYTES, "a page of {} bytes", page.len());
        Ok(())
    }
}
