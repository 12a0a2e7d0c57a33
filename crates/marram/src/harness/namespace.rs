//! A network namespace of its own for a process, joined to this one by a pair of virtual devices: another machine, as far
//! as addresses go. Needs the right to make one.

use anyhow::{Context, ensure};
use std::net::Ipv4Addr;
use std::process::Command;

/// A namespace; removed when dropped.
pub(super) struct Namespace {
    name: String,
    address: Ipv4Addr,
}

impl Namespace {
    /// Whether this process may make namespaces, and the program `ip` is there.
    pub(super) fn possible() -> bool {
        let name = format!("marram-{}-probe", std::process::id());
        let made = ip(&["netns", "add", &name]).is_ok();
        made && ip(&["netns", "del", &name]).is_ok()
    }

    /// Makes the namespace number `index` of this process.
    pub(super) fn new(index: u8) -> anyhow::Result<Self> {
        let id = std::process::id();
        let name = format!("marram-{id}-{index}");
        // 10.N.M.0/24 with N and M from the process: two runs at a time have different networks.
        let [_, _, high, low] = id.to_be_bytes();
        let network =
            |host: u8| Ipv4Addr::new(10, 64 | (high & 0x3f), low, index.wrapping_mul(4).wrapping_add(host));
        let (near, far) = (format!("mn{id}x{index}"), format!("mf{id}x{index}"));
        ip(&["netns", "add", &name])?;
        let made = Self { name, address: network(2) };
        ip(&["link", "add", &near, "type", "veth", "peer", "name", &far])?;
        ip(&["link", "set", &far, "netns", &made.name])?;
        ip(&["addr", "add", &format!("{}/30", network(1)), "dev", &near])?;
        ip(&["link", "set", &near, "up"])?;
        ip(&["-n", &made.name, "addr", "add", &format!("{}/30", network(2)), "dev", &far])?;
        ip(&["-n", &made.name, "link", "set", &far, "up"])?;
        ip(&["-n", &made.name, "link", "set", "lo", "up"])?;
        Ok(made)
    }

    /// The address within, reachable from outside.
    pub(super) fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// What runs a program within.
    pub(super) fn command(&self, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its devices go with it; what cannot be removed is named after this process, for people to find.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

fn ip(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments).output().context("cannot run ip; install iproute2")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", arguments.join(" "), said.trim());
    Ok(())
}
