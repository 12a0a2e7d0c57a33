//! The protected shared cells of this edge's apps, as the coordinator has them, and giving one up whose edges are gone
//! (docs/protocol-epochs.md, "Slots").
//!
//! To give a cell up is one claim of its group, by compare, for this edge and without a backup. The former edges can win no claim any
//! more, so they end the cell if they come back. This edge does not have the cell, and begins a new one for the next client.

use super::answer::Answer;
use super::asking::ask;
use super::coordination::{coordinator, no_answer};
use super::state::AdminState;
use hyper::StatusCode;
use marram_http::Refusal;
use marram_shard::api::App;
use marram_shard::control::{ControlAnswer, ControlRequest};
use marram_shard::coordinator::contents::{Claimed, Subject};
use marram_shard::coordinator::{Ask, AskAnswer, SlotHeld, SlotName};
use marram_wire::id::Generation;
use serde_json::{Value, json};

/// What may be done with the cell of a slot that is to be given up.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// No edge has one.
    None,
    /// This edge has it alone, or was given it before.
    Here,
    /// These of its edges are registered, and were not said to be dead.
    Alive(Vec<String>),
    /// Its group is to be claimed so.
    Claim(Ask),
}

/// Decides about a slot's cell that is to be given up to the edge `here`. `is_registered` says which edges are.
fn judge(
    held: Option<&SlotHeld>,
    here: &str,
    dead: &[&str],
    is_registered: impl Fn(&str) -> bool,
) -> Verdict {
    let Some(SlotHeld { record, holder }) = held else { return Verdict::None };
    if holder.as_ref().is_some_and(|holder| holder.primary == here && holder.backup.is_none()) {
        return Verdict::Here;
    }
    let edges = holder.iter().flat_map(edges_of);
    let alive = edges.filter(|edge| is_registered(edge) && !dead.contains(edge));
    let alive: Vec<String> = alive.map(str::to_owned).collect();
    if !alive.is_empty() {
        return Verdict::Alive(alive);
    }
    let count = holder.as_ref().map_or(0, |holder| holder.generation.count) + 1;
    let generation = Generation { count, opener: 0 };
    let to = Claimed { generation, primary: here.to_owned(), backup: None };
    let subject = Subject::of_slot_group(record.group);
    Verdict::Claim(Ask::Claim { subject, from: holder.clone(), to: Some(to) })
}

fn edges_of(holder: &Claimed) -> impl Iterator<Item = &str> {
    core::iter::once(holder.primary.as_str()).chain(holder.backup.as_deref())
}

/// The apps that are deployed here and whose clients share a protected cell.
fn apps(state: &AdminState) -> Result<Vec<App>, Refusal> {
    let ControlAnswer::Apps(apps) = ask(state, ControlRequest::Apps)? else {
        return Err(Refusal::bug("the control gave an unexpected answer"));
    };
    Ok(apps.into_iter().filter(App::shares_protected_cells).collect())
}

fn question(name: SlotName) -> Ask {
    Ask::Slot { name, take: None, from: None }
}

fn answered(answer: AskAnswer) -> Result<Option<SlotHeld>, Refusal> {
    match answer {
        AskAnswer::Slot(held) => Ok(held),
        other => Err(no_answer(other)),
    }
}

/// The cells of the apps that are deployed here, and which of their edges are not registered.
///
/// # Errors
/// With 404 if there is no coordinator, 503 if it is away.
pub(super) fn list(state: &AdminState) -> Result<Answer, Refusal> {
    let coordinator = coordinator(state)?;
    let view = coordinator.view();
    let is_registered = |edge: &str| view.edges.iter().any(|(name, ..)| name == edge);
    let mut cells = Vec::new();
    for app in apps(state)? {
        let (numbers, version) = (app.slot_numbers(), app.version());
        // An app may have very many.
        let asks = numbers.clone().map(|number| question(SlotName::of(&version, number)));
        for (number, answer) in numbers.zip(coordinator.ask_all(asks)) {
            let held = answered(answer)?;
            // Of many slots those are of interest that have cells.
            if held.is_some() || !app.has_keys() {
                cells.push(row((&app, number), held.as_ref(), is_registered));
            }
        }
    }
    Ok(Answer::json(&json!({ "edge": state.edge, "cells": cells })))
}

/// `away`: those of its edges that are not registered. `waits`: clients wait, since none of them is.
fn row((app, number): (&App, u32), held: Option<&SlotHeld>, is_registered: impl Fn(&str) -> bool) -> Value {
    let holder = held.and_then(|held| held.holder.as_ref());
    let away: Vec<&str> = holder.into_iter().flat_map(edges_of).filter(|edge| !is_registered(edge)).collect();
    let edges = holder.into_iter().flat_map(edges_of).count();
    json!({
        "app": app.name,
        "image": app.image.to_string(),
        "slot": app.has_keys().then_some(number),
        "begun": held.is_some(),
        "primary": holder.map(|holder| &holder.primary),
        "backup": holder.and_then(|holder| holder.backup.as_ref()),
        "away": away,
        "waits": edges > 0 && away.len() == edges,
    })
}

/// The slot with this number, as it is written, of an app with keys; of one without, the only slot.
fn slot_of(app: &App, number: Option<&str>) -> Result<SlotName, Refusal> {
    let refuse = |what: String, fix: &str| Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, what, fix));
    let number = match number {
        None if app.has_keys() => {
            let fix = "name the slot with `--slot`; `marram coordinator cells` lists them";
            return refuse(
                format!("app `{}` has one cell for each key, in {} slots", app.name, app.slots),
                fix,
            );
        }
        None => 0,
        Some(number) => match number.parse() {
            Ok(number) if app.has_keys() && app.slot_numbers().contains(&number) => number,
            _ => {
                let fix = "look with `marram coordinator cells`";
                return refuse(format!("app `{}` has no slot {number}", app.name), fix);
            }
        },
    };
    Ok(SlotName::of(&app.version(), number))
}

/// Gives up the cell of an app, or the cells in one of its slots, whose edges are gone or among those that are `dead`: the next client begins a new one, at this edge.
/// Asked again, it changes nothing.
///
/// # Errors
/// With 404 if there is no such app or no coordinator, 422 if it has no such slot, 409 if one of the cell's edges may be alive or has claimed the group meanwhile,
/// 503 if the coordinator is away.
pub(super) fn give_up(
    state: &AdminState,
    (app, number): (&str, Option<&str>),
    dead: &[&str],
) -> Result<Answer, Refusal> {
    let coordinator = coordinator(state)?;
    let found = apps(state)?.into_iter().find(|found| found.name == app);
    let Some(found) = found else {
        let what = format!("no app `{app}` with a protected shared cell is deployed at this edge");
        return Err(Refusal::new(StatusCode::NOT_FOUND, what, "deploy it here, or ask an edge that has it"));
    };
    let held = answered(coordinator.ask(question(slot_of(&found, number)?)))?;
    let view = coordinator.view();
    let is_registered = |edge: &str| view.edges.iter().any(|(name, ..)| name == edge);
    let given_up = |was: Option<&Claimed>, changed: bool| {
        Ok(Answer::json(&json!({
            "app": app,
            "slot": number,
            "given_up": changed,
            "primary": was.map(|was| &was.primary),
            "backup": was.and_then(|was| was.backup.as_ref()),
            "edge": state.edge,
        })))
    };
    match judge(held.as_ref(), &state.edge, dead, is_registered) {
        Verdict::None | Verdict::Here => given_up(None, false),
        Verdict::Alive(edges) => {
            let what = format!(
                "the cell may be at {}: registered at the coordinator, and connected or dead for less than its lease",
                edges.join(", ")
            );
            let fix = "if an edge is dead, or was started again and has lost the cell, say so with `--dead NAME`; if the cell runs there, \
                       its state is lost";
            Err(Refusal::new(StatusCode::CONFLICT, what, fix))
        }
        Verdict::Claim(claim) => match coordinator.ask(claim) {
            AskAnswer::Won | AskAnswer::WonIn(_) => {
                given_up(held.as_ref().and_then(|held| held.holder.as_ref()), true)
            }
            AskAnswer::Lost(holder) => {
                let edge =
                    holder.map_or_else(|| "no edge".to_owned(), |holder| format!("`{}`", holder.primary));
                let what = format!("the cell's group has changed meanwhile: {edge} has claimed it");
                Err(Refusal::new(StatusCode::CONFLICT, what, "look with `marram coordinator cells`"))
            }
            other => Err(no_answer(other)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_shard::coordinator::SlotRecord;

    fn held(primary: &str, backup: Option<&str>) -> SlotHeld {
        let generation = Generation { count: 7, opener: 5 };
        let holder = Claimed { generation, primary: primary.into(), backup: backup.map(Into::into) };
        let record = SlotRecord { incarnation: [1; 16], group: [2; 16] };
        SlotHeld { record, holder: Some(holder) }
    }

    fn claims(held: &SlotHeld) -> Verdict {
        let count = held.holder.as_ref().map_or(1, |holder| holder.generation.count + 1);
        let to = Claimed { generation: Generation { count, opener: 0 }, primary: "c".into(), backup: None };
        let subject = Subject::of_slot_group([2; 16]);
        Verdict::Claim(Ask::Claim { subject, from: held.holder.clone(), to: Some(to) })
    }

    #[test]
    fn a_cell_is_given_up_only_if_both_of_its_edges_are_gone_or_said_to_be_dead() {
        let (both, alone) = (held("a", Some("b")), held("a", None));
        let nothing = SlotHeld { holder: None, ..alone.clone() };
        let alive = |edges: &[&str]| Verdict::Alive(edges.iter().map(|edge| (*edge).to_owned()).collect());
        for (held, registered, dead, verdict) in [
            (None, &["a", "b", "c"][..], &[][..], Verdict::None),
            (Some(&both), &["a", "b", "c"], &[], alive(&["a", "b"])),
            (Some(&both), &["a", "b", "c"], &["a"], alive(&["b"])),
            (Some(&both), &["b", "c"], &[], alive(&["b"])),
            (Some(&both), &["b", "c"], &["b"], claims(&both)),
            (Some(&both), &["c"], &[], claims(&both)),
            (Some(&alone), &["b", "c"], &[], claims(&alone)),
            (Some(&alone), &["a"], &["b"], alive(&["a"])),
            (Some(&nothing), &["a", "c"], &[], claims(&nothing)),
            // Again, or of a cell that runs here alone.
            (Some(&held("c", None)), &["c"], &[], Verdict::Here),
            (Some(&held("c", Some("b"))), &["c"], &[], alive(&["c"])),
        ] {
            let is_registered = |edge: &str| registered.contains(&edge);
            assert_eq!(judge(held, "c", dead, is_registered), verdict, "{held:?} {registered:?} {dead:?}");
        }
    }
}
