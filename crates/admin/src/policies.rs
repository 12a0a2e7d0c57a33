//! Replication policies, for operators: those in force at this edge and how many sessions follow each, and changes of them, here or for
//! the domain.
//!
//! ```text
//! PUT, DELETE /v1/policies                 this edge: until its next start, before those of the domain
//! PUT, DELETE /v1/coordinator/policies     one key of the store: each edge reads it, and follows it unless it has its own
//! DELETE .../NAME                          one of them
//! POST .../plan                            what a PUT of the same text would change at this edge
//! ```
//!
//! A text has the `[[policy]]` tables of a configuration and is checked as they are. A list with a mistake changes nothing.

use super::answer::Answer;
use super::asking::ask;
use super::coordination;
use super::state::AdminState;
use bytes::Bytes;
use hyper::StatusCode;
use marram_config::policies;
use marram_config::source::Source;
use marram_http::Refusal;
use marram_shard::api::ReplicationPolicy;
use marram_shard::control::{ControlAnswer, ControlRequest, PolicyChange, PolicyOrigin, PolicyReport};
use marram_shard::coordinator::{Ask, AskAnswer};
use serde_json::{Value, json};

/// The policies in force.
pub(super) fn list(state: &AdminState) -> Result<Answer, Refusal> {
    shown(state, ControlRequest::Policies)
}

/// Puts those of a text into force at this edge, or finds what that would change.
///
/// # Errors
/// With 422 if the text has a mistake.
pub(super) fn set(state: &AdminState, body: &Bytes, dry_run: bool) -> Result<Answer, Refusal> {
    change(state, PolicyChange::Set(read(body)?), dry_run)
}

/// Takes one away at this edge.
///
/// # Errors
/// With 404 if it is not in force.
pub(super) fn remove(state: &AdminState, name: &str) -> Result<Answer, Refusal> {
    change(state, PolicyChange::Remove(name.to_owned()), false)
}

/// Lets this edge follow those of the domain or of its configuration again.
pub(super) fn reset(state: &AdminState) -> Result<Answer, Refusal> {
    change(state, PolicyChange::Reset, false)
}

/// Writes those of a text to the coordinator, for all edges of the domain.
///
/// # Errors
/// With 404 if there is no coordinator, 422 if the text has a mistake, 503 if the coordinator is away.
pub(super) fn set_for_domain(state: &AdminState, body: &Bytes) -> Result<Answer, Refusal> {
    write(state, Some(read(body)?))
}

/// Removes the domain's policies from the coordinator: each edge follows its configuration again.
///
/// # Errors
/// As [`set_for_domain`].
pub(super) fn reset_for_domain(state: &AdminState) -> Result<Answer, Refusal> {
    write(state, None)
}

/// Takes one of the domain's policies away. The coordinator's client reads them, and writes the others if the list is still the same then:
/// what another operator sets meanwhile is not lost.
///
/// # Errors
/// With 404 if there is no coordinator or no such policy, 503 if the coordinator is away.
pub(super) fn remove_for_domain(state: &AdminState, name: &str) -> Result<Answer, Refusal> {
    match coordination::coordinator(state)?.ask(Ask::RemovePolicy(name.to_owned())) {
        AskAnswer::PoliciesLeft(Some(left)) => Ok(of_domain(state, Some(left))),
        AskAnswer::PoliciesLeft(None) => {
            let what = format!("the domain has no policy `{name}`");
            let fix = "look with `marram policy list`; what an edge has set for itself, or its configuration, is removed without `--domain`";
            Err(Refusal::new(StatusCode::NOT_FOUND, what, fix))
        }
        other => Err(coordination::no_answer(other)),
    }
}

/// What [`set_for_domain`] would change at this edge.
pub(super) fn plan_for_domain(state: &AdminState, body: &Bytes) -> Result<Answer, Refusal> {
    coordination::coordinator(state)?;
    change(state, PolicyChange::Domain(Some(read(body)?)), true)
}

fn read(body: &Bytes) -> Result<Vec<ReplicationPolicy>, Refusal> {
    let refuse = |what: String| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, "correct it");
    let text =
        str::from_utf8(body).map_err(|error| refuse(format!("the policies are not UTF-8: {error}")))?;
    policies::read(&Source::new("policies", text.to_owned())).map_err(|problem| refuse(problem.to_string()))
}

fn change(state: &AdminState, change: PolicyChange, dry_run: bool) -> Result<Answer, Refusal> {
    shown(state, ControlRequest::ChangePolicies { change, dry_run })
}

fn shown(state: &AdminState, request: ControlRequest) -> Result<Answer, Refusal> {
    match ask(state, request)? {
        ControlAnswer::Policies(report) => Ok(Answer::json(&view(&state.edge, &report))),
        ControlAnswer::Refused(why) => {
            Err(Refusal::new(StatusCode::NOT_FOUND, why, "look with `marram policy list`"))
        }
        _ => Err(Refusal::bug("the control gave an unexpected answer")),
    }
}

/// Edges see the change when the store tells them of it: the answer says only that it is written.
fn write(state: &AdminState, to: Option<Vec<ReplicationPolicy>>) -> Result<Answer, Refusal> {
    let count = to.as_ref().map(Vec::len);
    match coordination::coordinator(state)?.ask(Ask::SetPolicies(to)) {
        AskAnswer::Done => Ok(of_domain(state, count)),
        other => Err(coordination::no_answer(other)),
    }
}

/// How many policies the domain has; none if edges follow their own.
fn of_domain(state: &AdminState, count: Option<usize>) -> Answer {
    Answer::json(&json!({ "edge": state.edge, "domain_policies": count }))
}

fn view(edge: &str, report: &PolicyReport) -> Value {
    let (origin, revision) = match report.origin {
        PolicyOrigin::Configuration => ("configuration", None),
        PolicyOrigin::Operator { revision } => ("edge", Some(revision)),
        PolicyOrigin::Domain { revision } => ("domain", Some(revision)),
    };
    let policies = report.policies.iter().map(|(policy, sessions)| {
        json!({
            "name": policy.name,
            "app": policy.app,
            "listener": policy.listener,
            "client": policy.client.map(|prefix| prefix.to_string()),
            "client_port": policy.client_port.map(|ports| format!("{}-{}", ports.from, ports.to)),
            "min_rate": policy.traffic.rate_min,
            "max_rate": policy.traffic.rate_max,
            "min_bytes": policy.traffic.bytes_min,
            "every_us": policy.every_us,
            "targets": policy.targets,
            "groups": policy.groups.max(1),
            "rebalance": policy.rebalance,
            "waits": !policy.runs_ahead,
            "sessions": sessions,
        })
    });
    let rebalances = report.rebalances.iter();
    let rebalances =
        rebalances.map(|it| json!({ "edge": it.edge, "sessions": it.sessions, "left": it.left }));
    let changes = report.differences.iter().map(|it| json!({ "policy": it.name, "change": it.what }));
    json!({
        "edge": edge,
        "origin": origin,
        "revision": revision,
        "domain_revision": report.domain,
        "policies": policies.collect::<Vec<_>>(),
        "unmatched": report.unmatched,
        "former": report.former,
        "changes": changes.collect::<Vec<_>>(),
        "notes": report.notes,
        "rebalances": rebalances.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_a_mistake_is_refused_with_its_place() {
        for (text, said) in [
            ("[[policy]]\nname = \"p\"\nevery = \"1us\"\n", "policies:3"),
            ("[[policy]]\nname = \"p\"\n", "changes nothing"),
            ("", "policy = []"),
        ] {
            let refused = read(&Bytes::from(text)).expect_err(text);
            assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
            assert!(refused.error().contains(said), "{text}: {}", refused.error());
        }
        assert_eq!(read(&Bytes::from("policy = []")).map(|policies| policies.len()).ok(), Some(0));
    }
}
