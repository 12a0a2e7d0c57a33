//! The handlers of the requests. Every function blocks until its answer is there; none of them uses a socket.
//!
//! They run on blocking threads, up to eight at a time: what the edge has is decided by the
//! control, in one loop, and of two replacements of the routes by a revision (`routing.rs`).

use super::answer::{Answer, Call};
use super::apps::{self, StageNames};
use super::asking::{ask, ask_patiently};
use super::body::Upload;
use super::cells;
use super::coordination;
use super::figures;
use super::kept;
use super::policies;
use super::routing;
use super::server::AdminApi;
use super::state::AdminState;
use super::view;
use bytes::Bytes;
use hyper::{Method, StatusCode};
use marram_http::Refusal;
use marram_node::edge::take_recording;
use marram_node::text::counted;
use marram_sandbox::{Images, LoadError};
use marram_shard::api::{App, DrainCancelled, MoveWish, NoDestination, SessionRow};
use marram_shard::control::{self, ControlRequest, MetricSample};
use marram_shard::shard::PLAN_NS;
use marram_wire::id::{ImageHash, SessionId};
use serde_json::{Value, json};
use std::time::Duration;

/// Timeout of a recording: its ends may be far away, and its checkpoints large.
const RECORD_PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of plans of moves: the shards wait for another edge.
const PLAN_PATIENCE: Duration = Duration::from_secs(6);
const _: () = assert!(PLAN_PATIENCE.as_nanos() > PLAN_NS as u128, "shards answer within it");

impl AdminApi for AdminState {
    fn answer(&self, _: &str, call: &Call) -> Result<Answer, Refusal> {
        answer(self, call)
    }
}

/// Handles a request of an edge.
/// Slashes at both ends of the path are ignored; all else is compared exactly.
fn answer(state: &AdminState, call: &Call) -> Result<Answer, Refusal> {
    let path: Vec<&str> = call.path.trim_matches('/').split('/').collect();
    let (get, delete, post) = (Method::GET, Method::DELETE, Method::POST);
    match (&call.method, path.as_slice()) {
        (method, ["healthz"]) if method == get => healthz(state),
        (method, ["metrics"]) if method == get => metrics(state),
        (method, ["v1", "edge"]) if method == get => edge(state),
        (method, ["v1", "apps"]) if method == get => list_apps(state),
        (method, ["v1", "apps"]) if method == post => deploy(state, &call.body),
        (method, ["v1", "apps", name]) if method == get => one_app(state, name),
        (method, ["v1", "apps", name]) if method == delete => undeploy(state, name),
        (method, ["v1", "sessions"]) if method == get => sessions(state),
        (method, ["v1", "sessions", id]) if method == get => inspect(state, id),
        (method, ["v1", "sessions", id]) if method == delete => kill(state, id),
        (method, ["v1", "sessions", id, "record"]) if method == post => record(state, id, false),
        (method, ["v1", "sessions", id, "record", "redacted"]) if method == post => record(state, id, true),
        (method, ["v1", "sessions", id, "move", how @ ..]) if method == post && !how.is_empty() => {
            move_session(state, id, wish(how)?)
        }
        (method, ["v1", "sessions", id, "move"]) if method == delete => cancel_move(state, id),
        (method, ["v1", "moves"]) if method == get => moves(state),
        (method, ["v1", "moves", how @ ..]) if method == get && !how.is_empty() => {
            move_plans(state, wish(how)?)
        }
        (method, ["v1", "routes"]) if method == get => Ok(Answer::json(&routing::list(state))),
        (method, ["v1", "routes"]) if method == Method::PUT => {
            routing::replace(state, &call.body).map(|routes| Answer::json(&routes))
        }
        (method, ["v1", "policies"]) if method == get => policies::list(state),
        (method, ["v1", "policies"]) if method == Method::PUT => policies::set(state, &call.body, false),
        (method, ["v1", "policies", "plan"]) if method == post => policies::set(state, &call.body, true),
        (method, ["v1", "policies"]) if method == delete => policies::reset(state),
        (method, ["v1", "policies", name]) if method == delete => policies::remove(state, name),
        (method, ["v1", "coordinator", "policies", rest @ ..]) => {
            domain_policies(state, (method, rest), call)
        }
        (method, ["v1", "coordinator"]) if method == get => Ok(Answer::json(&coordination::shown(state))),
        (method, ["v1", "coordinator", "accept"]) if method == post => coordination::accept(state),
        (method, ["v1", "coordinator", "cells"]) if method == get => cells::list(state),
        (method, ["v1", "coordinator", "cells", app, "give-up", dead @ ..]) if method == post => {
            cells::give_up(state, (app, None), dead)
        }
        (method, ["v1", "coordinator", "cells", app, "slots", slot, "give-up", dead @ ..])
            if method == post =>
        {
            cells::give_up(state, (app, Some(slot)), dead)
        }
        (method, ["v1", "standbys", id]) if method == get => coordination::stands_by(state, session(id)?),
        (method, ["v1", "drain"]) if method == get => drain_plan(state),
        (method, ["v1", "drain"]) if method == post => drain(state, false),
        (method, ["v1", "drain", "force"]) if method == post => drain(state, true),
        (method, ["v1", "drain", "cancel"]) if method == post => cancel_drain(state),
        (method, ["v1", "images", hash]) if method == get => image(state, hash),
        (method, ["v1", "images", hash, "app"]) if method == get => image_app(state, hash, &call.query),
        _ => Err(unknown(call)),
    }
}

fn unknown(call: &Call) -> Refusal {
    let what = format!("the admin API has no {} {}", call.method, call.path);
    Refusal::new(StatusCode::NOT_FOUND, what, "docs/operating-monitor.md lists the admin API")
}

fn domain_policies(
    state: &AdminState,
    (method, rest): (&Method, &[&str]),
    call: &Call,
) -> Result<Answer, Refusal> {
    match rest {
        [] if method == Method::PUT => policies::set_for_domain(state, &call.body),
        [] if method == Method::DELETE => policies::reset_for_domain(state),
        ["plan"] if method == Method::POST => policies::plan_for_domain(state, &call.body),
        [name] if method == Method::DELETE => policies::remove_for_domain(state, name),
        _ => Err(unknown(call)),
    }
}

fn unexpected() -> Refusal {
    Refusal::bug("the control gave an unexpected answer")
}

/// The answers that several requests have in common.
fn done(answer: control::ControlAnswer) -> Result<Answer, Refusal> {
    match answer {
        control::ControlAnswer::Done => Ok(Answer::json(&json!({ "done": true }))),
        control::ControlAnswer::NotFound => {
            Err(Refusal::new(StatusCode::NOT_FOUND, "there is no such session here", "look with `marram ps`"))
        }
        control::ControlAnswer::Refused(why) => {
            Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, why, "change the manifest and deploy again"))
        }
        _ => Err(unexpected()),
    }
}

/// Asks the control and not only this thread: a load balancer must not send clients to an edge
/// whose loop hangs. It does not depend on the coordinator, on peers, or on the number of sessions.
fn healthz(state: &AdminState) -> Result<Answer, Refusal> {
    match ask(state, ControlRequest::Apps)? {
        control::ControlAnswer::Apps(apps) => {
            Ok(Answer::json(&json!({ "edge": state.edge, "apps": apps.len() })))
        }
        _ => Err(unexpected()),
    }
}

fn figures(state: &AdminState) -> Result<Vec<MetricSample>, Refusal> {
    match ask(state, ControlRequest::Counters)? {
        control::ControlAnswer::Counters(figures) => Ok(figures),
        _ => Err(unexpected()),
    }
}

fn metrics(state: &AdminState) -> Result<Answer, Refusal> {
    let body = figures::prometheus(&state.edge, &figures(state)?);
    Ok(Answer::text(body + &routing::prometheus(state) + &coordination::prometheus(state)))
}

/// The whole edge: present figures of the edge, each shard and each app.
fn edge(state: &AdminState) -> Result<Answer, Refusal> {
    let figures = figures(state)?;
    let control::ControlAnswer::Apps(apps) = ask(state, ControlRequest::Apps)? else {
        return Err(unexpected());
    };
    let mut names = StageNames::new(state);
    let mut value = figures::edge(&figures, &apps);
    for (app, listed) in apps.iter().zip(value["apps"].as_array_mut().into_iter().flatten()) {
        listed["stages"] = json!(names.of(&app.name, app.image));
    }
    let control::ControlAnswer::Gate(gate) = ask(state, ControlRequest::Gate)? else {
        return Err(unexpected());
    };
    // By this, an operator finds the edge at whose gate the end of a session is that runs elsewhere.
    value["gate"] = json!(gate.map(|host| host.to_string()));
    value["edge"] = json!(state.edge);
    Ok(Answer::json(&value))
}

fn list_apps(state: &AdminState) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Apps(apps) = ask(state, ControlRequest::Apps)? else {
        return Err(unexpected());
    };
    let mut names = StageNames::new(state);
    let apps: Vec<Value> = apps.iter().map(|app| shown(state, &mut names, app)).collect();
    Ok(Answer::json(&json!({ "edge": state.edge, "apps": apps })))
}

fn one_app(state: &AdminState, name: &str) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Apps(apps) = ask(state, ControlRequest::Apps)? else {
        return Err(unexpected());
    };
    match apps.iter().find(|app| app.name == name) {
        Some(app) => Ok(Answer::json(&shown(state, &mut StageNames::new(state), app))),
        None => Err(no_app(name)),
    }
}

fn no_app(name: &str) -> Refusal {
    let what = format!("no app `{name}` is deployed here");
    Refusal::new(StatusCode::NOT_FOUND, what, "look with `marram apps`")
}

/// An app with its manifest, if that is stored, and the stages that its sessions have on this edge.
fn shown(state: &AdminState, names: &mut StageNames, app: &App) -> Value {
    let mut value = view::app(app);
    value["manifest"] = json!(kept::manifest(state, &app.name));
    value["stages"] = json!(names.of(&app.name, app.image));
    value
}

fn deploy(state: &AdminState, body: &Bytes) -> Result<Answer, Refusal> {
    let upload = Upload::decode(body.clone())
        .map_err(|why| Refusal::new(StatusCode::BAD_REQUEST, why, "send it with `marram deploy`"))?;
    let (mut deployed, need) = apps::deploy(state, &upload)?;
    if !deployed["server"].is_string() && !need.is_some() {
        return Ok(Answer::json(&deployed));
    }
    let figures = figures(state)?;
    let unreached = deployed["server"].as_str().and_then(|server| figures::unreached(server, &figures));
    let no_other = apps::no_other_edge(need, &figures);
    let only_store = apps::only_store(need, state.store_edge().as_ref());
    if let Some(notes) = deployed["notes"].as_array_mut() {
        notes.extend([unreached, no_other, only_store].into_iter().flatten().map(|note| json!(note)));
    }
    Ok(Answer::json(&deployed))
}

/// The control first: from then on the app gets no new sessions, even if its files cannot be
/// removed.
fn undeploy(state: &AdminState, name: &str) -> Result<Answer, Refusal> {
    let answer = match ask(state, ControlRequest::Undeploy(name.to_owned()))? {
        control::ControlAnswer::NotFound => return Err(no_app(name)),
        answer => done(answer)?,
    };
    kept::forget(state, name)?;
    Ok(answer)
}

fn sessions(state: &AdminState) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Sessions(rows, figures) = ask(state, ControlRequest::Sessions)? else {
        return Err(unexpected());
    };
    let mut names = StageNames::new(state);
    let rows: Vec<Value> = rows.iter().map(|row| session_row(&mut names, row)).collect();
    let waiting = figures.iter().filter(|figure| figure.counter.name == "sessions_waiting");
    let waiting: u64 = waiting.map(|figure| figure.counter.value).sum();
    Ok(Answer::json(&json!({ "edge": state.edge, "sessions": rows, "waiting": waiting })))
}

/// A session with the stages that its messages go through.
fn session_row(names: &mut StageNames, row: &SessionRow) -> Value {
    let mut value = view::row(row);
    value["stages"] = json!(names.of(&row.app, row.image));
    value
}

fn inspect(state: &AdminState, id: &str) -> Result<Answer, Refusal> {
    match ask(state, ControlRequest::Inspect(session(id)?, state.store_edge()))? {
        control::ControlAnswer::Session(row, survives) => {
            let mut value = session_row(&mut StageNames::new(state), &row);
            value["edge"] = json!(state.edge);
            value["survives"] = json!(survives);
            Ok(Answer::json(&value))
        }
        other => done(other),
    }
}

fn kill(state: &AdminState, id: &str) -> Result<Answer, Refusal> {
    done(ask(state, ControlRequest::Kill(session(id)?, "killed by the operator".into()))?)
}

/// How sessions are to move: the end of a path, `EDGE` or `EDGE/SHARD`, and `backup`, `replace` and `force` behind that, each of them or not.
fn wish(path: &[&str]) -> Result<MoveWish, Refusal> {
    let (path, force) = ends_with(path, "force");
    let (path, replace) = ends_with(path, "replace");
    let (path, backup) = ends_with(path, "backup");
    let to = path.join("/").parse().map_err(|error: NoDestination| {
        let fix =
            format!("{error}; behind it there may be `/backup`, `/replace` and `/force`, in this order");
        Refusal::new(StatusCode::BAD_REQUEST, "the session cannot be moved there".to_owned(), fix)
    })?;
    Ok(MoveWish { to, replace, force, backup })
}

/// The path without this last word, and whether that was there. It is not the only one: an edge may have that name.
fn ends_with<'a, 'b>(path: &'a [&'b str], word: &str) -> (&'a [&'b str], bool) {
    match path {
        [rest @ .., last] if *last == word && !rest.is_empty() => (rest, true),
        path => (path, false),
    }
}

/// Begins a move. Its result is among the moves.
fn move_session(state: &AdminState, id: &str, wish: MoveWish) -> Result<Answer, Refusal> {
    move_answer(ask(state, ControlRequest::Move(session(id)?, wish))?, "the session cannot be moved")
}

/// What the moves of this edge's sessions would be. Nothing is begun.
fn move_plans(state: &AdminState, wish: MoveWish) -> Result<Answer, Refusal> {
    let to = wish.to.to_string();
    match ask_patiently(state, ControlRequest::PlanMoves(wish), PLAN_PATIENCE)? {
        control::ControlAnswer::MovePlans(plans) => {
            let sessions: Vec<Value> = plans.iter().map(|plan| view::planned(plan, &to)).collect();
            Ok(Answer::json(&json!({ "edge": state.edge, "to": to, "sessions": sessions })))
        }
        _ => Err(unexpected()),
    }
}

fn cancel_move(state: &AdminState, id: &str) -> Result<Answer, Refusal> {
    move_answer(ask(state, ControlRequest::CancelMove(session(id)?))?, "the move cannot be cancelled")
}

fn move_answer(answer: control::ControlAnswer, what: &str) -> Result<Answer, Refusal> {
    match answer {
        control::ControlAnswer::Refused(why) => Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("{what}: {why}"),
            "`marram inspect` shows the session's state",
        )),
        other => done(other),
    }
}

/// Moves under way and past ones, in one list.
fn moves(state: &AdminState) -> Result<Answer, Refusal> {
    let control::ControlAnswer::Moves(moving, over) = ask(state, ControlRequest::Moves)? else {
        return Err(unexpected());
    };
    let moves: Vec<Value> =
        moving.iter().filter_map(view::moving).chain(over.iter().map(view::moved)).collect();
    Ok(Answer::json(&json!({ "edge": state.edge, "moves": moves })))
}

/// Whether the edge drains, and how each session would leave, if it stopped.
fn drain_plan(state: &AdminState) -> Result<Answer, Refusal> {
    let rows = sessions_here(state)?;
    let leaving: Vec<Value> = rows.iter().filter_map(view::leaving).collect();
    let control::ControlAnswer::Versions(_, draining) = ask(state, ControlRequest::Versions)? else {
        return Err(unexpected());
    };
    Ok(Answer::json(&json!({ "edge": state.edge, "draining": draining, "sessions": leaving })))
}

/// Begins to stop the edge. Not if sessions would have no standby afterwards, unless it is forced to.
fn drain(state: &AdminState, force: bool) -> Result<Answer, Refusal> {
    if !force {
        let rows = sessions_here(state)?;
        let unprotected = rows.iter().filter(|row| row.drain.as_ref().is_some_and(|drain| drain.unprotected));
        let (count, example) = unprotected.fold((0, None), |(count, _), row| (count + 1, Some(&row.app)));
        if let Some(app) = example {
            let count = counted(count, "session");
            let what = format!(
                "{count} would have no standby or backup when this edge stops, though the app asks for one (`{app}`): fewer than two other edges \
                 are connected to this one that can stand by"
            );
            let fix = "start another edge, or drain with `--force` (POST /v1/drain/force)";
            return Err(Refusal::new(StatusCode::CONFLICT, what, fix));
        }
    }
    done(ask(state, ControlRequest::Drain)?)
}

/// The edge goes on. What has left before does not come back.
fn cancel_drain(state: &AdminState) -> Result<Answer, Refusal> {
    match ask(state, ControlRequest::CancelDrain)? {
        control::ControlAnswer::DrainCancelled(DrainCancelled { tag: _, stay, moves, handed_over }) => {
            let counts = json!({ "stay": stay, "moves_cancelled": moves, "handed_over": handed_over });
            Ok(Answer::json(&json!({ "edge": state.edge, "sessions": counts })))
        }
        control::ControlAnswer::Refused(why) => {
            let what = format!("there is no drain to cancel: {why}");
            Err(Refusal::new(StatusCode::CONFLICT, what, "`marram ps` shows what the edge has"))
        }
        _ => Err(unexpected()),
    }
}

fn sessions_here(state: &AdminState) -> Result<Vec<SessionRow>, Refusal> {
    match ask(state, ControlRequest::Sessions)? {
        control::ControlAnswer::Sessions(rows, _) => Ok(rows),
        _ => Err(unexpected()),
    }
}

/// The shard writes the recording into a file, because it may be larger than a message between
/// processes can be; taking it removes the file.
fn record(state: &AdminState, id: &str, redact: bool) -> Result<Answer, Refusal> {
    match ask_patiently(state, ControlRequest::Record(session(id)?, redact), RECORD_PATIENCE)? {
        control::ControlAnswer::Recorded(name) => {
            let body = take_recording(&state.recordings, &name)
                .map_err(|error| Refusal::bug(&format!("the recording cannot be read back: {error}")))?;
            Ok(Answer::bytes(body.into()))
        }
        control::ControlAnswer::Refused(why) => Err(Refusal::new(
            StatusCode::CONFLICT,
            format!("the session cannot be recorded: {why}"),
            "`marram inspect` shows its state",
        )),
        other => done(other),
    }
}

/// For another edge. The image may belong to no deployed app: sessions that began under it still
/// need it.
fn image(state: &AdminState, hash: &str) -> Result<Answer, Refusal> {
    let hash = ImageHash(bytes_of(hash)?);
    let images = Images::open(&state.images).map_err(|error| Refusal::bug(&error.to_string()))?;
    match images.app(hash) {
        Ok(app) => Ok(Answer::bytes(app.into())),
        Err(error @ LoadError::Unknown(_)) => {
            Err(Refusal::new(StatusCode::NOT_FOUND, error.to_string(), "ask an edge that has it deployed"))
        }
        Err(error) => {
            Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), "deploy the app again"))
        }
    }
}

/// For another edge. Edges of before the parameter `name` take the settings of any app of that image, and use them only for that
/// app.
fn image_app(state: &AdminState, hash: &str, query: &str) -> Result<Answer, Refusal> {
    let name = match query.split_once('=') {
        None if query.is_empty() => None,
        Some(("name", name)) => Some(name),
        _ => {
            let what = "the only parameter is `name`, an app's";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, what, "ask with `?name=APP`, or without"));
        }
    };
    let control::ControlAnswer::Apps(apps) = ask(state, ControlRequest::OfImage(ImageHash(bytes_of(hash)?)))?
    else {
        return Err(unexpected());
    };
    match apps.iter().find(|app| name.is_none_or(|name| app.name == name)) {
        Some(app) => Ok(Answer::json(&view::app(app))),
        None => Err(Refusal::new(
            StatusCode::NOT_FOUND,
            format!(
                "no app{} of this edge runs or ran image {hash}",
                name.map_or(String::new(), |name| format!(" `{name}`"))
            ),
            "ask an edge that has it deployed",
        )),
    }
}

fn session(id: &str) -> Result<SessionId, Refusal> {
    bytes_of(id).map(SessionId)
}

/// Reads an identifier: two hexadecimal digits a byte.
fn bytes_of<const N: usize>(text: &str) -> Result<[u8; N], Refusal> {
    marram_wire::id::parse_hex(text).ok_or_else(|| {
        let what = format!("an identifier has {} hexadecimal digits here", 2 * N);
        Refusal::new(StatusCode::BAD_REQUEST, what, "copy it from `marram ps` or `marram apps`")
    })
}
