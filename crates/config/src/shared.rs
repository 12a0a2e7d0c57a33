//! The tables that edges and agents share: `[security]`, `[timeouts]`, `[admin]`, `[log]`; and files that hold secrets.
//!
//! Secrets are read once, at the start: a changed file needs a restart. An error names the file and
//! the length, never the contents.

use super::source::{Problem, Source, unreadable};
use super::units::{Name, Size, Time};
use marram_agent::Timeouts;
use marram_http::{Access, Metrics};
use marram_node::logging;
use marram_transport::{Identity, Security};
use marram_wire::limits::{CHECKPOINTS_SIZE, CHECKPOINTS_SIZE_MAX};
use serde::Deserialize;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use toml::Spanned;

/// Bytes of a secret, token, certificate or key file.
/// A path by mistake to something large must not fill the memory.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Within these limits the kernel can probe a peer: it counts in seconds, up to nine hours.
const PEER_UNREACHABLE_MIN: Duration = Duration::from_secs(2);
const PEER_UNREACHABLE_MAX: Duration = Duration::from_secs(8 * 3_600);
/// A shorter token or secret can be guessed.
/// 16 random bytes have 128 bits. Hexadecimal digits carry half as much each, so the advice is 64
/// of them.
const SECRET_BYTES_MIN: usize = 16;

/// `[log]`. `MARRAM_LOG` in the environment overrides `level`, in the code that starts the logs.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenLog {
    format: Option<logging::Format>,
    level: Option<logging::Levels>,
    /// Bytes of the latest lines that are kept in memory for `marram logs`.
    keep: Option<Spanned<Size>>,
}

/// The smallest limit of checkpoints that can be configured, in bytes: less would end sessions of small cells.
const CHECKPOINTS_SIZE_MIN: u64 = 1 << 20;

/// `limits.checkpoints` of an agent or an edge, in bytes.
pub(super) fn checkpoints_max(source: &Source, written: Option<&Spanned<Size>>) -> Result<u64, Problem> {
    let Some(written) = written else { return Ok(CHECKPOINTS_SIZE) };
    let bytes = written.get_ref().0;
    if (CHECKPOINTS_SIZE_MIN..=CHECKPOINTS_SIZE_MAX).contains(&bytes) {
        return Ok(bytes);
    }
    let (least, most) = (Size(CHECKPOINTS_SIZE_MIN), Size(CHECKPOINTS_SIZE_MAX));
    Err(source.problem(&written.span(), format!("must be from \"{least}\" to \"{most}\"")))
}

impl WrittenLog {
    /// For a program with an admin API, which gives the last lines to operators.
    pub(super) fn resolve(self, source: &Source) -> Result<logging::LogOptions, Problem> {
        let kept = match &self.keep {
            None => logging::RING_BYTES,
            Some(size) => usize::try_from(size.get_ref().0).unwrap_or(usize::MAX),
        };
        if let Some(size) = self.keep.filter(|_| kept < logging::RING_BYTES_MIN) {
            let what = format!("is too small; write \"{}\" or more", Size(logging::RING_BYTES_MIN as u64));
            return Err(source.problem(&size.span(), what));
        }
        Ok(logging::LogOptions {
            format: self.format.unwrap_or_default(),
            levels: self.level.unwrap_or_default(),
            kept: Some(kept),
        })
    }

    /// For a program without an admin API: it keeps no lines.
    pub(super) fn resolve_unasked(self, source: &Source) -> Result<logging::LogOptions, Problem> {
        if let Some(size) = &self.keep {
            source.warn(
                &size.span(),
                "keeps nothing, since it cannot be asked for; name an address with `admin.listen`",
            );
        }
        Ok(logging::LogOptions { kept: None, ..self.resolve(source)? })
    }
}

/// The `[admin]` table: where operators connect, and the tokens for it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenAdmin {
    pub(super) listen: Option<Spanned<String>>,
    pub(super) token_file: Option<Spanned<String>>,
    pub(super) metrics: Option<Spanned<String>>,
    pub(super) metrics_token_file: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) hosts: Vec<Spanned<Name>>,
    pub(super) certificate: Option<Spanned<String>>,
    pub(super) key: Option<Spanned<String>>,
}

impl WrittenAdmin {
    /// The address, if there is one, and the access rules. `can` says for error messages what a client without a token could do.
    pub(super) fn resolve(
        &self,
        source: &Source,
        can: &str,
    ) -> Result<(Option<SocketAddr>, Access), Problem> {
        let listen = self.listen.as_ref().map(|text| socket(source, text)).transpose()?;
        let token = self.token_file.as_ref().map(|path| token(source, path)).transpose()?;
        if let (Some(text), Some(address), None) = (&self.listen, listen, &token)
            && !address.ip().is_loopback()
        {
            let what = format!(
                "is not on loopback, and every program that reaches it can {can}; name a token with `token_file`"
            );
            return Err(source.problem(&text.span(), what));
        }
        let hosts = self.hosts.iter().map(|host| host.get_ref().0.clone()).collect();
        let identity = identity(source, self.certificate.as_ref(), self.key.as_ref())?;
        Ok((listen, Access { token, metrics: self.metrics(source)?, hosts, identity }))
    }

    fn metrics(&self, source: &Source) -> Result<Metrics, Problem> {
        match (&self.metrics, &self.metrics_token_file) {
            (None, None) => Ok(Metrics::Operators),
            (None, Some(path)) => token(source, path).map(Metrics::Token),
            (Some(written), None) => match written.get_ref().as_str() {
                "token" => Ok(Metrics::Operators),
                "open" => Ok(Metrics::Open),
                _ => Err(source.problem(&written.span(), "is neither \"token\" nor \"open\"")),
            },
            (Some(written), Some(path)) => match written.get_ref().as_str() {
                "token" => token(source, path).map(Metrics::Token),
                _ => {
                    let what = "needs no token; remove `metrics_token_file`, or write metrics = \"token\"";
                    Err(source.problem(&written.span(), what))
                }
            },
        }
    }
}

/// Parses an address to listen on: numeric, since a name could have several addresses.
pub(super) fn socket(source: &Source, text: &Spanned<String>) -> Result<SocketAddr, Problem> {
    text.get_ref().parse().map_err(|_| {
        let what =
            "is not an address to listen on; write numbers, such as \"127.0.0.1:7400\" or \"[::]:7400\"";
        source.problem(&text.span(), what)
    })
}

/// Checks the address of a store: only one that nothing else can reach may have no token.
pub(super) fn store_listen(
    source: &Source,
    text: &Spanned<String>,
    listen: SocketAddr,
    has_token: bool,
) -> Result<SocketAddr, Problem> {
    if has_token || listen.ip().is_loopback() {
        return Ok(listen);
    }
    let what = "is not on loopback, and every program that reaches it can take over sessions; name a token with `token_file`";
    Err(source.problem(&text.span(), what))
}

/// The default name of a program: different from the edge's name on the same machine.
pub(super) fn own_name(kind: &str) -> Name {
    name_on(host_name(), kind)
}

/// Truncates the host's name to fit and keeps its beginning, in which hosts differ.
/// A name has at most `Name::BYTES_MAX` bytes. Only ASCII is legal in it, so cutting cannot split a
/// character.
fn name_on(mut host: String, kind: &str) -> Name {
    host.truncate(Name::BYTES_MAX - kind.len() - 1);
    Name(format!("{host}-{kind}"))
}

/// The name of this machine, or "edge" where it has none that is legal here.
pub(super) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().parse::<Name>().map_or_else(|_| "edge".into(), |name| name.0)
}

/// `[security]`, of agents, edges and recorders. What an absent field means differs between the
/// sides (`Security` in `marram-transport`).
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenSecurity {
    token_file: Option<Spanned<String>>,
    ca: Option<Spanned<String>>,
    certificate: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    #[serde(default)]
    insecure_plain: bool,
}

impl WrittenSecurity {
    /// For an edge.
    pub(super) fn resolve_edge(&self, source: &Source) -> Result<Security, Problem> {
        let security = self.resolve(source)?;
        if let Some(ca) = self.ca.as_ref().filter(|_| security.insecure_plain) {
            let what = "requires certificates of agents, and `insecure_plain` allows agents without; remove one of \
                the two";
            return Err(source.problem(&ca.span(), what));
        }
        Ok(security)
    }

    /// For an agent or a recorder; the first step for an edge.
    pub(super) fn resolve(&self, source: &Source) -> Result<Security, Problem> {
        let identity = identity(source, self.certificate.as_ref(), self.key.as_ref())?;
        Ok(Security {
            token: self.token_file.as_ref().map(|path| token(source, path)).transpose()?,
            ca_pem: self.ca.as_ref().map(|path| pem(source, path)).transpose()?,
            identity,
            insecure_plain: self.insecure_plain,
            credentials: Vec::new(),
            identity_file: None,
        })
    }
}

/// Reads a certificate and its key, where both are named.
pub(super) fn identity(
    source: &Source,
    certificate: Option<&Spanned<String>>,
    key: Option<&Spanned<String>>,
) -> Result<Option<Identity>, Problem> {
    match (certificate, key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            warn_if_shown(source, key);
            Ok(Some(Identity { chain_pem: pem(source, certificate)?, key_pem: pem(source, key)? }))
        }
        (Some(alone), None) => {
            Err(source.problem(&alone.span(), "has no key; name its file with `key = \"...\"`"))
        }
        (None, Some(alone)) => {
            let what = "has no certificate; name its file with `certificate = \"...\"`";
            Err(source.problem(&alone.span(), what))
        }
    }
}

/// Reads a token: one line, without surrounding white space.
///
/// White space around it is removed: editors and `echo` end files with a new line, and the two
/// sides must agree.
pub(super) fn token(source: &Source, path: &Spanned<String>) -> Result<String, Problem> {
    let bytes = random_file(source, path)?;
    warn_if_shown(source, path);
    let text = std::str::from_utf8(&bytes)
        .map_err(|_| source.problem(&path.span(), "is not text; write one line"))?;
    let token = text.trim();
    if token.len() < SECRET_BYTES_MIN {
        return Err(too_short(source, &path.span(), token.len()));
    }
    Ok(token.to_owned())
}

/// Reads a secret: the file's bytes, without trailing white space.
///
/// It need not be text. Only ASCII white space at its end is removed, as an editor adds it; all
/// edges of a domain read it the same way.
pub(super) fn secret(source: &Source, path: &Spanned<String>) -> Result<Vec<u8>, Problem> {
    let bytes = random_file(source, path)?;
    warn_if_shown(source, path);
    let secret = bytes.trim_ascii_end();
    if secret.len() < SECRET_BYTES_MIN {
        return Err(too_short(source, &path.span(), secret.len()));
    }
    Ok(secret.to_vec())
}

/// Reads a file of random bytes; its errors say how to make one.
fn random_file(source: &Source, path: &Spanned<String>) -> Result<Vec<u8>, Problem> {
    let place = source.path(path.get_ref());
    let gone = std::fs::metadata(&place).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    file(source, path).map_err(|mut problem| {
        if gone {
            problem.what +=
                &format!("; or create one: `(umask 077; openssl rand -hex 32 > {})`", place.display());
        }
        problem
    })
}

/// Warns if a file with a secret is readable by every user.
///
/// Only a warning, and only about all users, not the group. For the files of an agent's key and of
/// a `[[key]]` it is an error.
pub(super) fn warn_if_shown(source: &Source, path: &Spanned<String>) {
    let place = source.path(path.get_ref());
    if std::fs::metadata(&place).is_ok_and(|file| file.permissions().mode() & 0o004 != 0) {
        let what =
            format!("names {0}, which every user of this machine can read; `chmod o= {0}`", place.display());
        source.warn(&path.span(), what);
    }
}

fn too_short(source: &Source, span: &Range<usize>, len: usize) -> Problem {
    let what = format!(
        "names a file that holds {len} bytes, which can be guessed; put at least {SECRET_BYTES_MIN} random ones there, \
         for instance with `openssl rand -hex 32`"
    );
    source.problem(span, what)
}

/// Reads a file that must contain at least one PEM block; what is in it is parsed where it is used.
pub(super) fn pem(source: &Source, path: &Spanned<String>) -> Result<Vec<u8>, Problem> {
    let bytes = file(source, path)?;
    if bytes.windows(11).any(|window| window == b"-----BEGIN ") {
        return Ok(bytes);
    }
    Err(source.problem(&path.span(), "names a file without a PEM block (\"-----BEGIN ...\")"))
}

/// Reads a file that the text names; blocks on the file system. The size is checked first, by the
/// metadata.
pub(super) fn file(source: &Source, path: &Spanned<String>) -> Result<Vec<u8>, Problem> {
    let place = source.path(path.get_ref());
    let problem = |what: String| source.problem(&path.span(), what);
    let size = std::fs::metadata(&place)
        .map_err(|error| problem(format!("names {}, which {}", place.display(), unreadable(&place, &error))))?
        .len();
    if size > FILE_BYTES_MAX {
        return Err(problem(format!("names a file of {size} bytes; at most {FILE_BYTES_MAX} are read")));
    }
    std::fs::read(&place)
        .map_err(|error| problem(format!("names {}, which {}", place.display(), unreadable(&place, &error))))
}

/// `[timeouts]`, of agents and of the parts of edges and recorders that dial. Absent fields take
/// `Timeouts::default`.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenTimeouts {
    /// Between two heartbeats to an edge.
    pub(super) heartbeat: Option<Spanned<Time>>,
    /// Silence after which another edge is asked at the latest; twice `heartbeat` at least.
    pub(super) suspect_after: Option<Spanned<Time>>,
    /// How long a client's connection waits for an edge that accepts its session.
    pub(super) edge_wait: Option<Spanned<Time>>,
    /// The first wait before an edge is dialled again; it doubles up to `backoff_max`.
    pub(super) backoff_min: Option<Spanned<Time>>,
    pub(super) backoff_max: Option<Spanned<Time>>,
    /// How long an end without an owner is kept before its terms are known, and tombstones at
    /// least.
    pub(super) linger: Option<Spanned<Time>>,
    /// How long a session's home must be well before the session returns to it.
    pub(super) failback_delay: Option<Spanned<Time>>,
    /// For a wire, up to the end of its handshake (`WireTable::new`).
    pub(super) dial: Option<Spanned<Time>>,
    /// For a connection to a server.
    pub(super) connect: Option<Spanned<Time>>,
    /// How long a client may be silent where a rule asks for its first bytes.
    pub(super) first_bytes: Option<Spanned<Time>>,
    /// For the hosts of clients and servers, not for edges; the kernel counts it.
    pub(super) peer_unreachable: Option<Spanned<Time>>,
    /// Between a request to stop and the end of the process.
    pub(super) drain: Option<Spanned<Time>>,
}

impl WrittenTimeouts {
    pub(super) fn resolve(&self, source: &Source) -> Result<Timeouts, Problem> {
        let default = Timeouts::default();
        let time = |written: &Option<Spanned<Time>>, default: Duration| match written {
            None => Ok(default),
            Some(written) if written.get_ref().0.is_zero() => {
                Err(source.problem(&written.span(), "must be more than zero; remove it for the default"))
            }
            Some(written) => Ok(written.get_ref().0),
        };
        let timeouts = Timeouts {
            heartbeat_interval: time(&self.heartbeat, default.heartbeat_interval)?,
            heartbeat_timeout: time(&self.suspect_after, default.heartbeat_timeout)?,
            edge_wait: time(&self.edge_wait, default.edge_wait)?,
            backoff_min: time(&self.backoff_min, default.backoff_min)?,
            backoff_max: time(&self.backoff_max, default.backoff_max)?,
            linger: time(&self.linger, default.linger)?,
            failback_delay: time(&self.failback_delay, default.failback_delay)?,
            dial: time(&self.dial, default.dial)?,
            connect: time(&self.connect, default.connect)?,
            first_bytes: time(&self.first_bytes, default.first_bytes)?,
            peer_unreachable: time(&self.peer_unreachable, default.peer_unreachable)?,
            drain: time(&self.drain, default.drain)?,
        };
        if let Some(written) =
            self.peer_unreachable.as_ref().filter(|_| timeouts.peer_unreachable < PEER_UNREACHABLE_MIN)
        {
            let what = "one lost packet would make a host count as unreachable; write \"2s\" or more";
            return Err(source.problem(&written.span(), what));
        }
        if let Some(written) =
            self.peer_unreachable.as_ref().filter(|_| timeouts.peer_unreachable > PEER_UNREACHABLE_MAX)
        {
            return Err(
                source.problem(&written.span(), "is more than the kernel can wait; write \"8h\" or less")
            );
        }
        // Relations between two fields are checked only if one of them is written: the defaults fit
        // each other. The message points at the one that is there.
        let heartbeat_span = self.suspect_after.as_ref().or(self.heartbeat.as_ref());
        if let Some(written) = heartbeat_span
            && timeouts.heartbeat_timeout < 2 * timeouts.heartbeat_interval
        {
            let what = "one late answer would make an edge suspected; set `suspect_after` to at least twice \
                `heartbeat`";
            return Err(source.problem(&written.span(), what));
        }
        let backoff_span = self.backoff_max.as_ref().or(self.backoff_min.as_ref());
        if let Some(written) = backoff_span
            && timeouts.backoff_max < timeouts.backoff_min
        {
            return Err(
                source.problem(&written.span(), "`backoff_max` is below `backoff_min`; swap or raise them")
            );
        }
        Ok(timeouts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_a_name_however_long_its_hosts_is() {
        for kind in ["recorder", "client-agent", "server-agent"] {
            assert_eq!(name_on("web-1".into(), kind).0, format!("web-1-{kind}"));
            for len in 1..=Name::BYTES_MAX {
                let Name(name) = name_on("h".repeat(len), kind);
                let host = name.strip_suffix(&format!("-{kind}"));
                assert!(
                    host.is_some_and(|host| host.len() == len || name.len() == Name::BYTES_MAX),
                    "{name}"
                );
                assert_eq!(name.parse(), Ok(Name(name.clone())));
            }
        }
    }
}
