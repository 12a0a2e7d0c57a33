//! What a user would put between client and server today, with as many hops as Marram has: HAProxy, or nginx's stream
//! module.

use crate::harness::{Journal, Place, Process, free_address};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// Client's agent, edge, server's agent.
const HOPS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(10);

/// A running chain of relays.
pub(super) struct Chain {
    /// Where clients connect.
    pub(super) address: SocketAddr,
    /// What it is.
    pub(super) name: String,
    /// How to start it.
    pub(super) command: String,
    _processes: Vec<Process>,
}

impl Chain {
    /// Starts a chain to `server`; nothing where neither program is installed.
    pub(super) fn start(
        server: SocketAddr,
        place: &Place,
        journal: &Journal,
    ) -> anyhow::Result<Option<Self>> {
        if runs("haproxy", "-v") {
            return Self::build(server, place, journal, "haproxy", haproxy).map(Some);
        }
        let nginx = ["nginx", "/usr/sbin/nginx"].into_iter().find(|program| runs(program, "-v"));
        match nginx {
            Some(program) if stream_module().is_some() => {
                Self::build(server, place, journal, program, nginx_config).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn build(
        server: SocketAddr,
        place: &Place,
        journal: &Journal,
        program: &str,
        config: impl Fn(&Place, usize, SocketAddr, SocketAddr) -> String,
    ) -> anyhow::Result<Self> {
        let (mut address, mut processes) = (server, Vec::new());
        let mut shown = String::new();
        for hop in 0..HOPS {
            let listen = free_address()?;
            let text = config(place, hop, listen, address);
            let file = place.write(&format!("relay-{hop}.conf"), text)?;
            let mut command = Command::new(program);
            if program == "haproxy" {
                command.arg("-db").arg("-f").arg(&file);
            } else {
                command.arg("-p").arg(place.path()).arg("-e").arg(place.path().join("relay.error"));
                command.arg("-c").arg(&file);
            }
            shown = format!("{HOPS} x {program} -f relay.conf (one thread, tcp, listen -> next hop)");
            let errors = place.path().join("relay.stderr");
            processes.push(Process::start(&format!("relay {hop}"), &mut command, journal, &errors)?);
            wait_for(listen)?;
            address = listen;
        }
        Ok(Self { address, name: program.to_owned(), command: shown, _processes: processes })
    }
}

fn runs(program: &str, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

fn wait_for(address: SocketAddr) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(address).is_err() {
        anyhow::ensure!(Instant::now() < deadline, "the relay at {address} does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn haproxy(_: &Place, _: usize, listen: SocketAddr, next: SocketAddr) -> String {
    format!(
        "global\n  nbthread 1\n  maxconn 2000\ndefaults\n  mode tcp\n  timeout connect 5s\n  timeout client 1h\n  \
         timeout server 1h\nlisten relay\n  bind {listen}\n  server next {next}\n"
    )
}

/// Debian keeps it apart from the program.
fn stream_module() -> Option<&'static str> {
    ["/usr/lib/nginx/modules/ngx_stream_module.so"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
}

fn nginx_config(place: &Place, hop: usize, listen: SocketAddr, next: SocketAddr) -> String {
    let (root, module) = (place.path().display(), stream_module().unwrap_or_default());
    format!(
        "load_module {module};\ndaemon off;\nmaster_process off;\npid {root}/relay-{hop}.pid;\n\
         error_log {root}/relay.error;\nevents {{ }}\nstream {{\n  \
         server {{ listen {listen}; proxy_pass {next}; tcp_nodelay on; }}\n}}\n"
    )
}
