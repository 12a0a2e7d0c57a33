//! A network namespace for a process, joined to this one by a pair of virtual devices: for addresses it is another machine.
//! Requires the right to make one.

use super::interrupt;
use anyhow::{Context, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

/// The numbers of this process's namespaces that are in use, as bits: tests of one process run in parallel.
static TAKEN: Mutex<u64> = Mutex::new(0);

/// The number of a namespace within this process; dropping it frees the number.
struct Number(u8);

impl Number {
    fn take() -> anyhow::Result<Self> {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        let free = taken.trailing_ones();
        ensure!(
            free < u64::BITS,
            "this process has {free} network namespaces, and no addresses for another one"
        );
        *taken |= 1 << free;
        Ok(Self(u8::try_from(free)?))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.0);
    }
}

/// A namespace; removed when dropped.
pub struct Namespace {
    name: String,
    address: Ipv4Addr,
    gateway: Ipv4Addr,
    /// The device on this side.
    near: String,
    /// The device in the namespace.
    far: String,
    /// Freed after the devices, since their names contain it.
    _number: Number,
}

impl Namespace {
    /// Whether this process may make namespaces, and the program `ip` exists.
    #[must_use]
    pub fn possible() -> bool {
        // Only once: two tests of one process that check at the same time would conflict.
        static POSSIBLE: OnceLock<bool> = OnceLock::new();
        *POSSIBLE.get_or_init(|| {
            let name = format!("marram-{}-probe", std::process::id());
            let made = ip(&["netns", "add", &name]).is_ok();
            made && ip(&["netns", "del", &name]).is_ok()
        })
    }

    /// Makes a namespace.
    ///
    /// # Errors
    /// If this process may not make one or has 64 of them, or the program `ip` does not exist.
    pub fn new() -> anyhow::Result<Self> {
        let number = Number::take()?;
        let (id, index) = (std::process::id(), number.0);
        let name = format!("marram-{id}-{index}");
        // 10.N.M.0/24 with N and M from the process id: two concurrent runs have different networks.
        let [_, _, high, low] = id.to_be_bytes();
        let network =
            |host: u8| Ipv4Addr::new(10, 64 | (high & 0x3f), low, index.wrapping_mul(4).wrapping_add(host));
        let (near, far) = (format!("mn{id}x{index}"), format!("mf{id}x{index}"));
        ip(&["netns", "add", &name])?;
        interrupt::joined(&name);
        let made = Self {
            name,
            address: network(2),
            gateway: network(1),
            near: near.clone(),
            far: far.clone(),
            _number: number,
        };
        ip(&["link", "add", &near, "type", "veth", "peer", "name", &far])?;
        ip(&["link", "set", &far, "netns", &made.name])?;
        ip(&["addr", "add", &format!("{}/30", network(1)), "dev", &near])?;
        ip(&["link", "set", &near, "up"])?;
        ip(&["-n", &made.name, "addr", "add", &format!("{}/30", network(2)), "dev", &far])?;
        ip(&["-n", &made.name, "link", "set", &far, "up"])?;
        ip(&["-n", &made.name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// Its name, as the program `ip` takes it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device on this side.
    #[must_use]
    pub fn near(&self) -> &str {
        &self.near
    }

    /// The device in the namespace.
    #[must_use]
    pub fn far(&self) -> &str {
        &self.far
    }

    /// The address in the namespace, reachable from this side.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The address of this side, reachable from the namespace.
    #[must_use]
    pub fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }

    /// Connects from the namespace to an address on this side.
    ///
    /// # Errors
    /// If no process listens there, or this process may not enter the namespace.
    pub fn connect(&self, to: SocketAddr) -> anyhow::Result<TcpStream> {
        let file = File::open(format!("/var/run/netns/{}", self.name))
            .context("the namespace does not exist any more")?;
        // On a new thread: a thread that enters a namespace stays in it. The socket stays in it too.
        let connected = thread::spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .context("cannot enter the namespace")?;
            TcpStream::connect(to).context("cannot connect from the namespace")
        });
        connected.join().map_err(|_| anyhow!("connecting panicked"))?
    }

    /// Drops all packets in both directions from now on, without any error to a sender: as when a machine loses its network, or
    /// its power.
    ///
    /// # Errors
    /// If the device cannot be taken down.
    pub fn cut(&self) -> anyhow::Result<()> {
        ip(&["-n", &self.name, "link", "set", &self.far, "down"])
    }

    /// A command that runs a program in the namespace.
    #[must_use]
    pub fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The kernel removes a namespace's devices later, and their names are needed again, so they are deleted first.
        let _ = ip(&["link", "del", &self.near]);
        // A namespace that cannot be removed has the name of this process, so that people can find it.
        let _ = ip(&["netns", "del", &self.name]);
        interrupt::left(&self.name);
    }
}

/// Runs the program `ip`.
///
/// # Errors
/// If it does not exist or fails, with what it said.
pub fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run ip; install iproute2")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}
