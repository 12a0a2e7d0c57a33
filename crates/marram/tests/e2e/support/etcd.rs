//! Real etcd, in a directory of its own and on loopback.

use marram_cluster::{LogCollector, TempDir, TestProcess, free_address};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// The members of one cluster.
pub(crate) struct Etcd {
    members: Vec<Member>,
    directory: TempDir,
    logs: LogCollector,
}

struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    process: Option<TestProcess>,
}

impl Etcd {
    /// Starts a cluster and waits until it has a leader.
    pub(crate) fn start(logs: &LogCollector, members: usize) -> Self {
        let address = || free_address().unwrap();
        let member = |_| Member { client: address(), peer: address(), process: None };
        let members = (0..members).map(member).collect();
        let mut etcd = Self { members, directory: TempDir::new("etcd").unwrap(), logs: logs.clone() };
        let start = logs.end();
        (0..etcd.members.len()).for_each(|index| etcd.spawn(index));
        for index in 0..etcd.members.len() {
            etcd.wait_ready(index, start);
        }
        etcd
    }

    /// The members' URLs, as a list for a configuration.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<String> =
            self.members.iter().map(|member| format!("http://{}", member.client)).collect();
        format!("{urls:?}")
    }

    /// One member's address.
    pub(crate) fn address(&self, index: usize) -> SocketAddr {
        self.members[index].client
    }

    pub(crate) fn signal(&self, index: usize, signal: Signal) {
        self.members[index].process.as_ref().unwrap().signal(signal);
    }

    pub(crate) fn kill(&mut self, index: usize) {
        self.members[index].process = None;
    }

    /// Starts a member again, with its data on disk.
    pub(crate) fn restart(&mut self, index: usize) {
        let start = self.logs.end();
        self.spawn(index);
        self.wait_ready(index, start);
    }

    fn spawn(&mut self, index: usize) {
        let cluster: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(index, member)| format!("m{index}=http://{}", member.peer))
            .collect();
        let (client, peer) = (self.members[index].client, self.members[index].peer);
        let program =
            ["/usr/bin/etcd", "/usr/local/bin/etcd"].into_iter().find(|path| Path::new(path).is_file());
        let program = program.expect("`cargo xtask setup` installs etcd");
        let mut command = Command::new(program);
        command
            .arg("--name")
            .arg(format!("m{index}"))
            .arg("--data-dir")
            .arg(self.directory.path().join(format!("m{index}")))
            .arg("--listen-client-urls")
            .arg(format!("http://{client}"))
            .arg("--advertise-client-urls")
            .arg(format!("http://{client}"))
            .arg("--listen-peer-urls")
            .arg(format!("http://{peer}"))
            .arg("--initial-advertise-peer-urls")
            .arg(format!("http://{peer}"))
            .arg("--initial-cluster")
            .arg(cluster.join(","))
            .args(["--logger", "zap", "--log-outputs", "stdout"]);
        let errors = self.directory.path().join(format!("m{index}.stderr"));
        let process = TestProcess::start(&format!("etcd {index}"), &mut command, &self.logs, &errors);
        self.members[index].process = Some(process.unwrap());
    }

    fn wait_ready(&self, index: usize, start: usize) {
        let who = format!("etcd {index}");
        let ready = self.logs.wait(start, PATIENCE, |event| {
            *event.who == *who && event.text("msg").contains("serving client traffic")
        });
        assert!(ready.is_some(), "{}", self.logs.tail(20));
    }
}
