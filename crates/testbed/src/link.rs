//! Faults of the link between a namespace and the rest: partitions, slowness, resets. All changes are within the namespace or to
//! its own pair of devices, and disappear with it.

use anyhow::{Context, ensure};
use marram_cluster::{Namespace, ip};
use std::process::Command;

/// The direction in which a link passes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the namespace: it receives, and cannot send.
    Out,
    /// To the namespace: it sends, and cannot receive.
    In,
}

/// The link between a namespace and this one.
#[derive(Clone, Copy)]
pub struct Link<'a>(&'a Namespace);

impl<'a> Link<'a> {
    /// The link of a namespace.
    #[must_use]
    pub fn of(namespace: &'a Namespace) -> Self {
        Self(namespace)
    }

    /// Connects it with other namespaces, through this one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn reach_others(&self) -> anyhow::Result<()> {
        let forwarding = format!("/proc/sys/net/ipv4/conf/{}/forwarding", self.0.near());
        std::fs::write(&forwarding, "1").with_context(|| format!("cannot write {forwarding}"))?;
        ip(&["-n", self.0.name(), "route", "add", "default", "via", &self.0.gateway().to_string()])
    }

    /// Drops all packets in one direction from now on, without any error to a sender.
    ///
    /// # Errors
    /// If this is so already, or the kernel refuses.
    pub fn part(&self, way: Direction) -> anyhow::Result<()> {
        match way {
            Direction::Out => self
                .blackholes()
                .try_for_each(|to| ip(&["-n", self.0.name(), "route", "add", "blackhole", &to])),
            // The kernel drops a packet for an address that is not local, since the namespace does not forward.
            Direction::In => self.local("del"),
        }
    }

    /// Undoes [`Link::part`].
    ///
    /// # Errors
    /// If nothing was done, or the kernel refuses.
    pub fn rejoin(&self, way: Direction) -> anyhow::Result<()> {
        match way {
            Direction::Out => self
                .blackholes()
                .try_for_each(|to| ip(&["-n", self.0.name(), "route", "del", "blackhole", &to])),
            Direction::In => self.local("add"),
        }
    }

    /// Routes that are more specific than the device's own route and than the default route.
    fn blackholes(&self) -> impl Iterator<Item = String> {
        [format!("{}/32", self.0.gateway()), "0.0.0.0/1".into(), "128.0.0.0/1".into()].into_iter()
    }

    fn local(&self, change: &str) -> anyhow::Result<()> {
        let (name, address) = (self.0.name(), self.0.address().to_string());
        let route =
            ["local", &address, "dev", self.0.far(), "table", "local", "proto", "kernel", "scope", "host"];
        ip(&[&["-n", name, "route", change][..], &route, &["src", &address]].concat())
    }

    /// Limits the rate to `kbit_per_s` kilobits a second each way, with a queue of 50 ms.
    ///
    /// # Errors
    /// If the rate is limited already, or the kernel has no token bucket.
    pub fn slow_down(&self, kbit_per_s: u32) -> anyhow::Result<()> {
        let rate = format!("{kbit_per_s}kbit");
        let bucket = ["root", "tbf", "rate", &rate, "burst", "16kb", "latency", "50ms"];
        run("tc", &[&["qdisc", "add", "dev", self.0.near()][..], &bucket].concat())?;
        run("tc", &[&["-n", self.0.name(), "qdisc", "add", "dev", self.0.far()][..], &bucket].concat())
    }

    /// Undoes [`Link::slow_down`].
    ///
    /// # Errors
    /// If the rate was not limited.
    pub fn speed_up(&self) -> anyhow::Result<()> {
        run("tc", &["qdisc", "del", "dev", self.0.near(), "root"])?;
        run("tc", &["-n", self.0.name(), "qdisc", "del", "dev", self.0.far(), "root"])
    }

    /// Resets every connection to a port in the namespace, at both ends.
    ///
    /// # Errors
    /// If the program `ss` is not there, or the kernel cannot (`CONFIG_INET_DIAG_DESTROY`).
    pub fn reset_connections(&self, port: u16) -> anyhow::Result<()> {
        let (name, port) = (self.0.name(), format!(":{port}"));
        let filter = ["ss", "-K", "-t", "-n", "state", "established", "sport", "=", &port];
        let output = run_for("ip", &[&["netns", "exec", name][..], &filter].concat())?;
        ensure!(output.contains(&port), "no connection was reset: {output}");
        Ok(())
    }

    /// Bytes that the namespace has sent.
    ///
    /// # Errors
    /// If its device is gone.
    pub fn sent_bytes(&self) -> anyhow::Result<u64> {
        let path = format!("/sys/class/net/{}/statistics/rx_bytes", self.0.near());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        text.trim().parse().with_context(|| format!("{path} holds {text:?}"))
    }
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    run_for(program, arguments).map(drop)
}

fn run_for(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {program}; install iproute2"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), said.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
