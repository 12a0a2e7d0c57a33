//! `marram exec`: runs a program and redirects its connections to configured destinations to an agent.
//!
//! The program loads `marram-preload` before its own libraries and is otherwise unchanged: nothing is between it and its
//! terminal, its signals or its exit status. Does not know what an agent does with a connection.
//!
//! ```text
//! marram exec ─ find, check, resolve, place the library ─▶ execve(program)
//!      LD_PRELOAD=.../preload-HASH.so:...      the loader loads it first
//!      MARRAM_...=RULE,RULE,...                its connect() compares destinations with these rules
//! ```
//!
//! What cannot be redirected so (static programs, Go, set-user-ID) is refused before it starts: a
//! program that silently connected past the agent would look protected and not be.

mod object;
mod program;
mod rules;

use anyhow::{Context, anyhow, bail};
use marram_config::agent::Redirect;
use marram_preload::VARIABLE;
use marram_preload::rules::{Protocol, Rule};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The loader's environment variable with the libraries that it loads first.
const PRELOAD: &str = "LD_PRELOAD";

/// Replaces this process with the program. Returns only if that fails.
///
/// # Errors
/// If a destination has no address, the program cannot be found, or the loader would not load the library into it.
pub fn exec(redirects: &[Redirect], program: &OsStr, arguments: &[OsString]) -> anyhow::Error {
    match prepare(redirects, program) {
        Ok(mut command) => {
            let error = command.args(arguments).exec();
            anyhow!(error).context(format!("{} cannot be started", program.display()))
        }
        Err(error) => error,
    }
}

fn prepare(redirects: &[Redirect], program: &OsStr) -> anyhow::Result<Command> {
    let path = program::find(program)?;
    program::check(&path)?;
    let rules = rules::resolve(redirects)?;
    // A warning only: the agent may be started later.
    for address in rules::idle(&rules) {
        eprintln!(
            "marram: no agent listens on {address} yet: connections that are redirected there are refused until one \
             does"
        );
    }
    let object = object::place()?;
    let mut command = Command::new(path);
    // The program sees the name that the user wrote, not the path that was found.
    command.arg0(program);
    command.env(PRELOAD, preload(object.as_os_str(), std::env::var_os(PRELOAD).as_deref()));
    command.env(VARIABLE, list(&rules)?);
    Ok(command)
}

/// Our library first, then those that the variable has already.
/// The loader takes the first definition of a function, so ours has to come first.
fn preload(object: &OsStr, others: Option<&OsStr>) -> OsString {
    let mut list = object.to_owned();
    if let Some(others) = others.filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

///
/// # Errors
/// If there are more rules than the library has room for.
fn list(rules: &[Rule]) -> anyhow::Result<String> {
    let list: Vec<String> = rules.iter().map(ToString::to_string).collect();
    // If `marram exec` runs inside another, the list has both: the rules of the inner command are first.
    let inherited = std::env::var(VARIABLE).unwrap_or_default();
    let list = list.join(",");
    let list = if inherited.is_empty() { list } else { format!("{list},{inherited}") };
    let count = list.split(',').count();
    if count > marram_preload::rules::RULES_MAX {
        bail!(
            "{count} destinations by address; the maximum is {}: name fewer, or hosts with fewer addresses",
            marram_preload::rules::RULES_MAX
        );
    }
    Ok(list)
}

/// Reads `DESTINATION=LISTENER`, the value of a flag.
///
/// # Errors
/// The text shows the expected form.
pub fn redirect(text: &str) -> anyhow::Result<Redirect> {
    let form = "write it as HOST:PORT=LISTENER, such as db.example.org:5432=127.0.0.1:7000, or udp://HOST:PORT=LISTENER";
    let (destination, via) = text.split_once('=').with_context(|| form)?;
    let (protocol, destination) = match destination.strip_prefix("udp://") {
        Some(rest) => (Protocol::Udp, rest),
        None => (Protocol::Tcp, destination),
    };
    let destination: marram_config::units::Address =
        destination.parse().map_err(|why| anyhow!("{destination:?}: {why}; {form}"))?;
    let via = via.parse().map_err(|_| anyhow!("{via:?} is not a numeric address and port; {form}"))?;
    Ok(Redirect { destination: destination.0, protocol, via })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_read_as_written() {
        let read = redirect("udp://dns.example.org:53=127.0.0.1:5353").unwrap();
        let via = "127.0.0.1:5353".parse().unwrap();
        assert_eq!(read, Redirect { destination: "dns.example.org:53".into(), protocol: Protocol::Udp, via });
        assert_eq!(redirect("[::1]:80=[::1]:81").unwrap().destination, "[::1]:80");
        for bad in ["", "a:1", "a=127.0.0.1:1", "a:1=localhost:1", "udp://=127.0.0.1:1"] {
            assert!(redirect(bad).unwrap_err().to_string().contains("HOST:PORT=LISTENER"), "{bad}");
        }
    }

    #[test]
    fn what_was_to_be_loaded_is_loaded_behind_ours() {
        let preload = |others: Option<&str>| preload(OsStr::new("/a.so"), others.map(OsStr::new));
        assert_eq!(preload(None), "/a.so");
        assert_eq!(preload(Some("")), "/a.so");
        assert_eq!(preload(Some("/b.so /c.so")), "/a.so:/b.so /c.so");
    }
}
