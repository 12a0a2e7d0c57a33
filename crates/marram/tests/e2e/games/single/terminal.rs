//! The games' own client, `cells/examples/play/terminal.py`, in a terminal: it sends keys to the game and shows pictures, also from
//! another edge, and restores the terminal.

use crate::support;
use marram_cluster::AgentSide;
use std::{
    io::{Read, Write},
    process::{ChildStdout, Command, Stdio},
};

const TERMINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../cells/examples/play/terminal.py");

/// Runs a Python program in a terminal: standard input is its keys, standard output its screen. At the end it prints whether the
/// terminal is as before, and the program's status.
const DRIVER: &str = r#"
import fcntl, os, pty, select, subprocess, sys, termios

master, slave = pty.openpty()
before = termios.tcgetattr(slave)
def own():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
child = subprocess.Popen([sys.executable] + sys.argv[1:], stdin=slave, stdout=slave, stderr=slave, preexec_fn=own)
sources = [0, master]
while child.poll() is None or select.select([master], [], [], 0)[0]:
    for source in select.select(sources, [], [], 0.1)[0]:
        got = os.read(source, 65536)
        if source == master:
            os.write(1, got)
        elif got:
            os.write(master, got)
        else:
            sources.remove(0)
print("left %s %s" % (termios.tcgetattr(slave) == before, child.returncode), flush=True)
"#;

/// Text on the screen during a game, and at its end.
const ON: &[u8] = b"Keys: arrows";
const OVER: &[u8] = b"Space plays again";

/// The output of a program so far.
struct Screen {
    output: ChildStdout,
    shown: Vec<u8>,
}

impl Screen {
    /// Waits until these words have appeared `times` times.
    fn until(&mut self, words: &[u8], times: usize) {
        let mut buffer = vec![0; 65_536];
        while self.shown.windows(words.len()).filter(|window| window == &words).count() < times {
            let len = self.output.read(&mut buffer).unwrap();
            let shown = String::from_utf8_lossy(&self.shown);
            assert_ne!(len, 0, "it ended before it showed {:?}: {shown}", String::from_utf8_lossy(words));
            self.shown.extend_from_slice(&buffer[..len]);
        }
    }
}

#[test]
fn snake_is_played_in_a_terminal_while_its_edge_dies() {
    let Some(python) = support::python_with("termios") else { return };
    let mut cluster = super::cluster("terminal", "snake");
    cluster.start_edges("").unwrap();
    let address = cluster.start_client_agent(&cluster.edge_addresses(), &["snake"]).unwrap()[0].address;
    // Both keys that quit.
    for key in [b"q", b"\x03"] {
        let start = cluster.logs.end();
        let mut driver = Command::new(python)
            .args(["-c", DRIVER, TERMINAL, &address.ip().to_string(), &address.port().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut keys = driver.stdin.take().unwrap();
        let mut screen = Screen { output: driver.stdout.take().unwrap(), shown: Vec::new() };
        screen.until(ON, 1);
        // Up, straight to the wall.
        keys.write_all(b"\x1b[A").unwrap();
        screen.until(OVER, 1);
        let owned = cluster.wait_for_owner(start).unwrap();
        let (owner, start) =
            (cluster.edge_at(AgentSide::Client, owned.text("edge")).unwrap(), cluster.logs.end());
        cluster.edges[owner].kill();
        keys.write_all(b" ").unwrap();
        screen.until(ON, 2);
        cluster.wait_for_owner(start).unwrap();
        cluster.start_edge(owner, "").unwrap();
        keys.write_all(key).unwrap();
        screen.until(b"left ", 1);
        assert!(driver.wait().unwrap().success());
        screen.output.read_to_end(&mut screen.shown).unwrap();
        let shown = String::from_utf8_lossy(&screen.shown);
        assert!(shown.trim_end().ends_with("left True 0"), "{shown}");
    }
}
