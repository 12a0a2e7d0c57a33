//! `marram policy`: how sessions under `protect = "epoch"` are replicated, changed while they run: at some edges, or for all edges of a
//! domain by their coordinator.

use super::{
    Failure,
    operate::{Edges, PATIENCE, text},
};
use anyhow::anyhow;
use bytes::Bytes;
use clap::{Args, Subcommand};
use hyper::Method;
use marram_config::{
    policies,
    source::Source,
    units::{Name, Size},
};
use marram_node::text::{counted, table};
use serde_json::Value;
use std::path::PathBuf;

/// The path of an edge's policies in the admin API.
const AT_EDGE: &str = "/v1/policies";
/// The same of the domain's.
const OF_DOMAIN: &str = "/v1/coordinator/policies";

/// `marram policy`
#[derive(Subcommand)]
pub(super) enum Policy {
    /// List the policies in force, where they come from, and how many sessions follow each.
    List(Edges),
    /// Replace all policies by those of a file (`[[policy]]` tables, as in a configuration).
    Set(Set),
    /// Remove a policy at edges, or of the domain.
    ///
    /// At an edge, the others become a list of its own, which is in force until `reset` or its next start.
    Remove {
        /// The policy's name.
        name: Name,
        /// Remove it for all edges of the domain: the coordinator of the edge that is asked keeps the others.
        #[arg(long)]
        domain: bool,
        #[command(flatten)]
        edges: Edges,
    },
    /// Undo what was set: edges follow the domain's policies or those of their configuration again.
    Reset {
        /// Undo what was set for the domain.
        #[arg(long)]
        domain: bool,
        #[command(flatten)]
        edges: Edges,
    },
}

/// `marram policy set`
#[derive(Args)]
pub(super) struct Set {
    /// The file; `policy = []` in it for none.
    file: PathBuf,
    /// Set them for all edges of the domain: the coordinator of the edge that is asked keeps them.
    #[arg(long)]
    domain: bool,
    /// Print what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    edges: Edges,
}

pub(super) fn run(command: &Policy) -> Result<(), Failure> {
    match command {
        Policy::List(edges) => edges.list(AT_EDGE, shown),
        Policy::Set(arguments) => set(arguments),
        Policy::Remove { name, domain: true, edges } => {
            of_one_domain(edges)?;
            let path = format!("{OF_DOMAIN}/{}", name.0);
            edges.ask_all((&Method::DELETE, &path, &Bytes::new()), 3 * PATIENCE, written)
        }
        Policy::Remove { name, domain: false, edges } => {
            let path = format!("{AT_EDGE}/{}", name.0);
            edges.ask_all((&Method::DELETE, &path, &Bytes::new()), PATIENCE, shown)
        }
        Policy::Reset { domain: false, edges } => {
            edges.ask_all((&Method::DELETE, AT_EDGE, &Bytes::new()), PATIENCE, shown)
        }
        Policy::Reset { domain: true, edges } => {
            of_one_domain(edges)?;
            edges.ask_all((&Method::DELETE, OF_DOMAIN, &Bytes::new()), 3 * PATIENCE, written)
        }
    }
}

/// The file is checked here first, so that its mistakes are named with its name, and no edge gets what another one would refuse.
fn set(Set { file, domain, dry_run, edges }: &Set) -> Result<(), Failure> {
    let source = Source::read(file).map_err(|problem| Failure::Usage(problem.into()))?;
    policies::read(&source).map_err(|problem| Failure::Usage(problem.into()))?;
    let body = std::fs::read(file).map_err(|error| Failure::Usage(anyhow!("{}: {error}", file.display())))?;
    let (body, base) = (Bytes::from(body), if *domain { OF_DOMAIN } else { AT_EDGE });
    if *dry_run {
        let path = format!("{base}/plan");
        return edges.ask_all((&Method::POST, &path, &body), PATIENCE, planned);
    }
    if *domain {
        of_one_domain(edges)?;
        return edges.ask_all((&Method::PUT, base, &body), 3 * PATIENCE, written);
    }
    edges.ask_all((&Method::PUT, base, &body), PATIENCE, shown)
}

/// Edges of two domains may be named by mistake, and those of one have the same coordinator.
fn of_one_domain(edges: &Edges) -> Result<(), Failure> {
    if edges.are_several() {
        let why =
            "the coordinator of one edge hands the policies on to all edges of the domain: name one edge";
        return Err(Failure::Usage(anyhow!(why)));
    }
    Ok(())
}

/// The answer about the domain's policies.
fn written(answers: &[Value]) -> String {
    match answers.first().and_then(|answer| answer["domain_policies"].as_u64()) {
        Some(count) => {
            let count = policies_of(count);
            format!(
                "the domain has {count} now; edges follow within seconds, unless they have their own: `marram policy list`\n"
            )
        }
        None => {
            "the domain has no policies of its own now; edges follow their configurations within seconds\n"
                .into()
        }
    }
}

fn policies_of(count: u64) -> String {
    if count == 1 { "1 policy".into() } else { format!("{count} policies") }
}

fn planned(answers: &[Value]) -> String {
    let one = |answer: &Value| {
        let edge = text(answer, "edge");
        let (changes, notes) = (changes(answer), notes(answer));
        if changes.is_empty() {
            return format!("{edge}: nothing would change\n{notes}");
        }
        let sessions = |name: &str| {
            let policies = answer["policies"].as_array().into_iter().flatten();
            let there = policies.filter(|policy| policy["name"] == name);
            there.filter_map(|policy| policy["sessions"].as_u64()).sum::<u64>()
        };
        let line = |(name, what): &(String, String)| {
            let what = match what.as_str() {
                "moved" => "tried in another order",
                what => what,
            };
            let now = match sessions(name) {
                0 => String::new(),
                count => format!(", {} now", counted(count, "session")),
            };
            format!("  {name}: {what}{now}\n")
        };
        format!("{edge}: would change\n") + &changes.iter().map(line).collect::<String>() + &notes
    };
    answers.iter().map(one).collect()
}

/// What an answer says of changes: policies' names, and what is different.
fn changes(answer: &Value) -> Vec<(String, String)> {
    let changes = answer["changes"].as_array().into_iter().flatten();
    changes.map(|change| (text(change, "policy"), text(change, "change"))).collect()
}

fn shown(answers: &[Value]) -> String {
    answers.iter().map(of_edge).collect::<Vec<_>>().join("\n")
}

fn of_edge(answer: &Value) -> String {
    let edge = text(answer, "edge");
    let policies = answer["policies"].as_array().map_or(&[][..], Vec::as_slice);
    let from = match (answer["origin"].as_str(), answer["revision"].as_u64()) {
        (Some("edge"), Some(revision)) => format!("set at this edge (change {revision})"),
        (Some("domain"), Some(revision)) => format!("set for the domain (revision {revision})"),
        _ => "from its configuration".into(),
    };
    let mut out = format!("{edge}: {}, {from}\n", policies_of(policies.len() as u64));
    let mut rows: Vec<Vec<String>> = policies.iter().map(row).collect();
    let unmatched =
        vec!["-", "anything else", "as the app says", "", "", "", ""].into_iter().map(str::to_owned);
    rows.push(unmatched.chain([text(answer, "unmatched")]).collect());
    let head = ["POLICY", "FOR", "EPOCHS", "TARGETS", "GROUPS", "REBALANCE", "OUTPUTS", "SESSIONS"];
    out += &table::format(&head, &rows);
    for pass in answer["rebalances"].as_array().into_iter().flatten() {
        let [sessions, left] = ["sessions", "left"].map(|name| pass[name].as_u64().unwrap_or(0));
        let done = sessions.saturating_sub(left);
        out += &format!(
            "{} has joined: {done} of {} that belong there are done with\n",
            text(pass, "edge"),
            counted(sessions, "session")
        );
    }
    match answer["former"].as_u64() {
        None | Some(0) => {}
        Some(count) => {
            let (count, keep) = (counted(count, "session"), if count == 1 { "keeps" } else { "keep" });
            out += &format!(
                "{count} {keep} the backup or the group of a former policy, until they move or their group looks for another backup\n"
            );
        }
    }
    if let (Some("edge"), Some(revision)) = (answer["origin"].as_str(), answer["domain_revision"].as_u64()) {
        out += &format!(
            "the policies that are set for the domain (revision {revision}) are not followed here; `marram policy reset` does that\n"
        );
    }
    out + &notes(answer)
}

/// A line for each policy that has no effect, or not the whole one.
fn notes(answer: &Value) -> String {
    let notes = answer["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    notes.map(|note| format!("{note}\n")).collect()
}

fn row(policy: &Value) -> Vec<String> {
    let conditions = ["app", "listener", "client", "client_port"].into_iter();
    let conditions =
        conditions.filter_map(|name| policy[name].as_str().map(|value| format!("{name}={value}")));
    let measured = [("min_rate", "/s"), ("max_rate", "/s"), ("min_bytes", "")].into_iter();
    let measured = measured
        .filter_map(|(name, per)| policy[name].as_u64().map(|bytes| format!("{name}={}{per}", Size(bytes))));
    let asks: Vec<String> = conditions.chain(measured).collect();
    let every = match policy["every_us"].as_u64() {
        None => "as the app says".into(),
        Some(0) => "each message".into(),
        Some(us) if us % 1_000 == 0 => format!("{}ms", us / 1_000),
        Some(us) => format!("{us}us"),
    };
    let targets: Vec<&str> =
        policy["targets"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    vec![
        text(policy, "name"),
        if asks.is_empty() { "any session".into() } else { asks.join(" ") },
        every,
        if targets.is_empty() { "the ring's".into() } else { targets.join(", ") },
        text(policy, "groups"),
        match policy["rebalance"].as_u64() {
            None | Some(0) => "no".into(),
            Some(per_s) => format!("{per_s}/s"),
        },
        if policy["waits"] == false { "at once" } else { "wait" }.into(),
        text(policy, "sessions"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer() -> Value {
        let policy = json!({
            "name": "calls", "app": "relay", "client": "10.1.0.0/16", "every_us": 1_500, "targets": ["b", "c"],
            "min_rate": 3 << 19, "max_rate": null, "min_bytes": 1 << 20, "groups": 2, "rebalance": 20, "waits": false, "sessions": 7,
        });
        json!({
            "edge": "a", "origin": "edge", "revision": 2, "domain_revision": 40, "policies": [policy],
            "unmatched": 1, "former": 3, "changes": [], "notes": [],
            "rebalances": [{ "edge": "e", "sessions": 9, "left": 2 }],
        })
    }

    #[test]
    fn a_list_says_where_it_comes_from_and_what_does_not_follow_it() {
        let text = shown(&[answer()]);
        for part in [
            "a: 1 policy, set at this edge (change 2)",
            "app=relay client=10.1.0.0/16 min_rate=1536KiB/s min_bytes=1MiB",
            "1500us",
            "b, c",
            "20/s",
            "e has joined: 7 of 9 sessions",
            "at once",
            "3 sessions keep",
            "revision 40",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_plan_names_what_would_change_and_how_many_sessions_follow_it_now() {
        let mut answer = answer();
        assert_eq!(planned(std::slice::from_ref(&answer)), "a: nothing would change\n");
        let of = |policy: &str, change: &str| json!({ "policy": policy, "change": change });
        answer["changes"] = json!([of("calls", "changed"), of("bulk", "new")]);
        let text = "a: would change\n  calls: changed, 7 sessions now\n  bulk: new\n";
        assert_eq!(planned(std::slice::from_ref(&answer)), text);
        let note = "policy `bulk`: no app `realy` is deployed here";
        answer["notes"] = json!([note]);
        assert_eq!(planned(&[answer]), format!("{text}{note}\n"));
    }
}
