//! What the reports of the agents say of each session: where it runs, and why it left or ended.
//!
//! A session that loses its owner is recovered, or ends if nothing protects it. Both are right only if an edge was killed that had it, or
//! to which it moved: a move alone does neither.

use marram_cluster::{AgentSide, LogEvent, TestCluster};
use std::collections::{BTreeMap, BTreeSet};

/// Why a session leaves an owner, if its other end has promised the next one.
const SUPERSEDED: &str = "a newer owner has the session";

/// A session that has an owner, or had one. Edges are known by their names: each life of one has its own.
struct Known {
    app: String,
    owner: String,
    /// The owner before: its standby may not know yet that the session has left, and takes it if that edge dies.
    former: Option<String>,
    /// Why it has no owner now.
    orphaned: Option<String>,
    /// The edge to which it moves, until it has an owner again.
    moves_to: Option<String>,
    /// The edges to which moves were given up since it came to its owner. One may have been told to take the session over before that. If it was
    /// not, and the session is unprotected, its owner opens a generation of its own, once for each move (docs/protocol.md, "Moves").
    given_up: BTreeSet<String>,
}

/// The sessions, and what happened to them.
#[derive(Default)]
pub(super) struct Ledger {
    /// Index of the first event that was not read.
    next: usize,
    sessions: BTreeMap<String, Known>,
    /// The apps that have no protection.
    unprotected: &'static [&'static str],
    /// The name of each edge, and the shards to which each agent has a wire in that life.
    names: BTreeMap<usize, String>,
    up: BTreeSet<(String, &'static str, u64)>,
    killed: BTreeSet<String>,
    /// Owners that came without any time without one.
    pub(super) handed_over: usize,
    /// Owners that came after an edge was killed.
    pub(super) recovered: usize,
    /// Unprotected sessions whose move was given up, and whose owner asked for promises again.
    pub(super) stayed: usize,
    /// Unprotected sessions that ended with an edge: how often, by reason.
    pub(super) ended: BTreeMap<String, usize>,
    /// Sessions that lost or changed their owner, or ended, without a cause.
    pub(super) unexplained: Vec<Unexplained>,
}

/// What nothing explains, and of which session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Unexplained {
    session: String,
    what: String,
}

/// Log lines of such a session that are shown.
const SHOWN: usize = 100;

impl Ledger {
    pub(super) fn new(unprotected: &'static [&'static str]) -> Self {
        Self { unprotected, ..Self::default() }
    }

    /// The name of an edge, if both agents have wires to all of its shards.
    pub(super) fn usable(&self, edge: usize, shards: u8) -> Option<&str> {
        let name = self.names.get(&edge).filter(|name| !self.killed.contains(&name[..]))?;
        let has = |side: AgentSide| {
            (0..u64::from(shards)).all(|shard| self.up.contains(&(name.clone(), side.agent(), shard)))
        };
        (has(AgentSide::Client) && has(AgentSide::Server)).then_some(name)
    }

    /// The edge of this name is about to be killed.
    pub(super) fn killed(&mut self, name: &str) {
        self.killed.insert(name.to_owned());
    }

    /// The sessions that run on the edge of this name, and do not move.
    pub(super) fn at(&self, name: &str) -> Vec<&str> {
        let is_here =
            |known: &&Known| known.owner == name && known.orphaned.is_none() && known.moves_to.is_none();
        self.sessions.iter().filter(|(_, known)| is_here(known)).map(|(session, _)| &session[..]).collect()
    }

    /// Whether a session has left the edge of this name for another one.
    pub(super) fn has_left(&self, session: &str, name: &str) -> bool {
        self.sessions.get(session).is_none_or(|known| known.owner != name)
    }

    /// A session moves to an edge, or stays after all.
    pub(super) fn moves(&mut self, session: &str, to: Option<&str>) {
        if let Some(known) = self.sessions.get_mut(session) {
            let before = std::mem::replace(&mut known.moves_to, to.map(str::to_owned));
            known.given_up.extend(before.filter(|_| to.is_none()));
        }
    }

    /// Reads what was reported since the last call.
    pub(super) fn read(&mut self, cluster: &TestCluster) {
        let mut read = 0;
        let is_wanted = |event: &LogEvent| match event.name() {
            "edge_up" => true,
            "owned" | "orphaned" | "ended" => *event.who == *AgentSide::Client.agent(),
            _ => false,
        };
        let reports = cluster.logs.all(self.next, |event| {
            read += 1;
            is_wanted(event)
        });
        self.next += read;
        for event in reports {
            match event.name() {
                "edge_up" => self.edge_up(&event, cluster),
                "owned" => self.owned(&event, cluster),
                "orphaned" => self.orphaned(&event),
                _ => self.ended(&event),
            }
        }
    }

    /// What nothing explains, with the log of each of these sessions.
    pub(super) fn unexplained(&self, cluster: &TestCluster) -> Vec<String> {
        let show = |Unexplained { session, what }: &Unexplained| {
            let of_it = |event: &LogEvent| event.text("session") == session;
            format!("{session}: {what}\n{}", cluster.logs.tail_of(SHOWN, of_it))
        };
        self.unexplained.iter().map(show).collect()
    }

    fn edge_up(&mut self, event: &LogEvent, cluster: &TestCluster) {
        let Some(side) =
            [AgentSide::Client, AgentSide::Server].into_iter().find(|side| *event.who == *side.agent())
        else {
            return;
        };
        let Some(edge) = cluster.edge_at(side, event.text("edge")) else { return };
        let name = event.text("name").to_owned();
        // Each agent reports in the order of its own events; owners are those of the client's.
        if side == AgentSide::Client {
            self.names.insert(edge, name.clone());
        }
        self.up.insert((name, side.agent(), event.number("shard")));
    }

    fn owned(&mut self, event: &LogEvent, cluster: &TestCluster) {
        let edge = cluster.edge_at(AgentSide::Client, event.text("edge")).expect("it is one of these");
        let owner = self.names[&edge].clone();
        let session = event.text("session").to_owned();
        let is_due_to_kill = self.sessions.get(&session).is_some_and(|known| self.met_kill(known));
        let Some(known) = self.sessions.get_mut(&session) else {
            let app = event.text("app").to_owned();
            let given_up = BTreeSet::new();
            let known = Known { app, owner, former: None, orphaned: None, moves_to: None, given_up };
            self.sessions.insert(session, known);
            return;
        };
        let before = std::mem::replace(&mut known.owner, owner.clone());
        known.former = Some(before.clone());
        let orphaned = known.orphaned.take();
        // The same owner once more: what was asked of it since goes on.
        let to = if before == owner { known.moves_to.clone() } else { known.moves_to.take() };
        // The move may be given up already, and its result not asked for yet.
        let has_moved = !known.given_up.is_empty() || to.is_some();
        // The former owner learns of the next one from the end that is asked first, and may tell the other end before that is asked.
        let is_handed_over = (to.as_ref() == Some(&owner) || known.given_up.contains(&owner))
            && orphaned.as_ref().is_none_or(|why| why == SUPERSEDED);
        if before != owner {
            known.given_up.clear();
        }
        let stays = has_moved && before == owner && self.unprotected.contains(&&known.app[..]);
        if is_due_to_kill {
            self.recovered += 1;
        } else if stays {
            self.stayed += 1;
        } else if is_handed_over {
            self.handed_over += 1;
        } else {
            let app = &known.app;
            let what = format!(
                "{app} went from {before} to {owner}, was to move to {to:?}, was lost because of {orphaned:?}: {}",
                event.fields
            );
            self.unexplained.push(Unexplained { session, what });
        }
    }

    fn orphaned(&mut self, event: &LogEvent) {
        if let Some(known) = self.sessions.get_mut(event.text("session")) {
            known.orphaned = Some(event.text("reason").to_owned());
        }
    }

    /// Whether an edge was killed that has the session, had it before, or is the one to which it moves.
    fn met_kill(&self, known: &Known) -> bool {
        let is_killed = |edge: &String| self.killed.contains(edge);
        let mut others = known.former.iter().chain(&known.moves_to).chain(&known.given_up);
        is_killed(&known.owner) || others.any(is_killed)
    }

    fn ended(&mut self, event: &LogEvent) {
        let (session, code) = (event.text("session"), event.text("code"));
        let known = self.sessions.remove(session);
        if code == "Finished" {
            return;
        }
        let Some(known) = known else {
            // Its client says so if it was protected.
            let why = format!("had no owner yet, {code}: {}", event.text("reason"));
            return *self.ended.entry(why).or_default() += 1;
        };
        if self.unprotected.contains(&&known.app[..]) && self.met_kill(&known) {
            let moved = if known.moves_to.is_some() { "moved" } else { "did not move" };
            let why = format!("{moved}, {code}: {}", event.text("reason"));
            return *self.ended.entry(why).or_default() += 1;
        }
        let Known { app, owner, moves_to, .. } = known;
        let what = format!("{app} at {owner}, to {moves_to:?}, ended: {}", event.fields);
        self.unexplained.push(Unexplained { session: session.to_owned(), what });
    }
}
