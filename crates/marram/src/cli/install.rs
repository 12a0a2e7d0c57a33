//! Files for packagers: manual pages, completions for shells, units for systemd. All of them are generated from the command
//! line's definitions, so they are always up to date.
//!
//! The unit is hardened as far as the program allows; each right that it keeps has its reason here
//! or beside it. `marram unit ROLE > /etc/systemd/system/...` is how it is meant to be used.

use super::{Arguments, Failure, emit};
use anyhow::Context;
use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// `marram completions`
#[derive(Args)]
pub(super) struct Completions {
    /// The shell.
    shell: Shell,
}

/// `marram man`
#[derive(Args)]
pub(super) struct Manual {
    /// The directory for the pages, one for each command, such as /usr/local/share/man/man1; made if it is missing.
    directory: PathBuf,
}

/// `marram unit`
#[derive(Args)]
pub(super) struct Unit {
    /// The program that the unit runs.
    #[arg(value_enum)]
    role: Role,
    /// The path of the marram binary.
    #[arg(long, value_name = "FILE", default_value = "/usr/local/bin/marram")]
    program: PathBuf,
}

/// A program that runs as a service.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub(super) enum Role {
    /// `marram edge`
    Edge,
    /// `marram agent client`
    AgentClient,
    /// `marram agent server`
    AgentServer,
    /// `marram recorder`
    Recorder,
    /// `marram coordinator serve`
    Coordinator,
}

pub(super) fn completions(arguments: &Completions) -> Result<(), Failure> {
    let mut out = Vec::new();
    clap_complete::generate(arguments.shell, &mut Arguments::command(), "marram", &mut out);
    emit(&String::from_utf8_lossy(&out));
    Ok(())
}

pub(super) fn manual(arguments: &Manual) -> Result<(), Failure> {
    let directory = &arguments.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("{} cannot be created", directory.display()))?;
    clap_mangen::generate_to(Arguments::command(), directory)
        .with_context(|| format!("manual pages cannot be written to {}", directory.display()))?;
    emit(&format!("manual pages are in {}\n", directory.display()));
    Ok(())
}

pub(super) fn unit(arguments: &Unit) -> Result<(), Failure> {
    emit(&unit_of(arguments.role, &arguments.program));
    Ok(())
}

/// How long systemd waits for sessions to move away, in seconds: the default of `timeouts.drain` and `limits.drain`, plus a
/// reserve.
///
/// After that systemd kills it; if those limits are raised, this one must be raised too.
const STOP_S: u32 = 45;

fn unit_of(role: Role, program: &Path) -> String {
    let (what, command, file) = match role {
        Role::Edge => ("edge", "edge", "edge.toml"),
        Role::AgentClient => ("agent beside clients", "agent client", "agent-client.toml"),
        Role::AgentServer => ("agent beside servers", "agent server", "agent-server.toml"),
        Role::Recorder => ("recorder", "recorder", "recorder.toml"),
        Role::Coordinator => ("coordinator's store", "coordinator serve", "coordinator.toml"),
    };
    // `KillMode=mixed` below: SIGTERM goes to the main process alone. An edge's supervisor decides
    // when its shards stop.
    let program = program.display();
    // Only a client agent has a configuration that it reads again.
    let reload = match role {
        Role::AgentClient => "ExecReload=/bin/kill -HUP $MAINPID\n",
        Role::Edge | Role::AgentServer | Role::Recorder | Role::Coordinator => "",
    };
    // The kernel reports changed pages only to a process with this right; each cell takes some memory mappings and a descriptor
    // or two.
    let rights = match role {
        Role::Edge => "AmbientCapabilities=CAP_SYS_PTRACE\nCapabilityBoundingSet=CAP_SYS_PTRACE\n",
        Role::AgentClient | Role::AgentServer | Role::Recorder | Role::Coordinator => {
            "CapabilityBoundingSet=\n"
        }
    };
    format!(
        "# /etc/systemd/system/marram-{name}.service
# The user `marram` must be able to read what {file} names: useradd --system marram
[Unit]
Description=Marram {what}
Documentation=man:marram-{page}(1)
After=network-online.target
Wants=network-online.target

[Service]
Type=exec
User=marram
ExecStartPre={program} config check {kind} /etc/marram/{file}
ExecStart={program} {command} --config /etc/marram/{file}
{reload}# SIGTERM has sessions moved away first.
TimeoutStopSec={STOP_S}
KillMode=mixed
Restart=on-failure
RestartSec=1
# A restart does not repair a wrong configuration.
RestartPreventExitStatus=2
LimitNOFILE=1048576
StateDirectory=marram
# Where root's commands find the admin token, if none is configured. Units share it; it stays while one runs.
RuntimeDirectory=marram
RuntimeDirectoryMode=0700
RuntimeDirectoryPreserve=yes
WorkingDirectory=/var/lib/marram
{rights}NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK

[Install]
WantedBy=multi-user.target
",
        name = file.trim_end_matches(".toml"),
        page = command.replace(' ', "-"),
        kind = file.trim_end_matches(".toml"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn units_start_what_the_command_line_takes() {
        for role in Role::value_variants() {
            let unit = unit_of(*role, Path::new("/usr/bin/marram"));
            let commands: Vec<&str> = unit
                .lines()
                .filter_map(|line| {
                    line.strip_prefix("ExecStart=").or_else(|| line.strip_prefix("ExecStartPre="))
                })
                .collect();
            assert_eq!(commands.len(), 2, "{unit}");
            for command in commands {
                let parsed = Arguments::try_parse_from(command.split(' '));
                assert!(parsed.is_ok(), "{command}: {}", parsed.err().unwrap());
            }
        }
    }

    #[test]
    fn every_command_has_a_page_and_every_shell_its_completions() {
        let directory = std::env::temp_dir().join(format!("marram-man-{}", std::process::id()));
        manual(&Manual { directory: directory.clone() }).unwrap();
        let page = |name: &str| std::fs::read_to_string(directory.join(name)).unwrap();
        assert!(page("marram.1").contains("marram\\-edge(1)"));
        assert!(page("marram-route-add.1").contains("marram\\-route\\-add"));
        assert!(!directory.join("marram-shard.1").exists(), "what is hidden is no one's business");
        std::fs::remove_dir_all(directory).unwrap();
        for shell in Shell::value_variants() {
            let mut out = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "marram", &mut out);
            assert!(String::from_utf8(out).unwrap().contains("recorder"), "{shell}");
        }
    }
}
