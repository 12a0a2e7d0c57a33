//! Many busy sessions of every service that ships, while edges are killed and stopped and every memory budget is full: nothing is
//! lost, repeated or changed, and the agents' memory stays flat. `cargo xtask soak busy` runs it for an hour.
//!
//! `MARRAM_BUSY_SESSIONS` is the number of sessions at a time (45 if not set), `MARRAM_BUSY_SECONDS` how long they are struck (8),
//! `MARRAM_BUSY_MIB` the budget of each agent and each edge (16), `MARRAM_SEED` selects sizes and faults.

use crate::support::{
    self,
    memory::resident_mib,
    services::{Clients, Habits, Service, Site, servers::Servers},
};
use hyper::Method;
use marram_cluster::{AgentSide, Layout, LogEvent, TempDir, TestCluster, TestEdge};
use marram_wire::seeded::Seeded;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt::Write,
    thread,
    time::{Duration, Instant},
};

/// How long any one answer may take. Edges that die faster than their sessions are recovered make a client wait for several of
/// them: how long is printed, and only what never comes is an error.
const PATIENCE: Duration = Duration::from_secs(600);
/// The longest time between two turns of a client.
const PACE_MS_MAX: u64 = 500;
/// Longest time between the repair of one fault and the next fault, and longest time that an edge is stopped.
const QUIET_MS_MAX: u64 = 4_000;
const STOPPED_MS_MAX: u64 = 1_000;
/// Longer than a client pauses between two turns.
const STILL: Duration = Duration::from_secs(20);
/// Sessions that are shown if one did not go on.
const SHOWN: usize = 12;
/// What an agent may hold beside its budget: the program, messages on their way, what the allocator keeps.
const BESIDE_BUDGET_MIB: u64 = 256;
/// What an agent's memory may grow by from the first half of a run to the second, beside a tenth: in a short run the first half
/// is while sessions begin.
const GROWTH_MIB: u64 = 32;

/// Counts of the faults.
#[derive(Default, Debug)]
struct Faults {
    kills: usize,
    stops: usize,
}

impl Faults {
    /// Kills one edge, two of them, or stops one for a while; all run again afterwards.
    fn strike(&mut self, cluster: &mut TestCluster, random: &mut Seeded) {
        let edges = cluster.edges.len() as u64;
        let first = usize::try_from(random.below(edges)).unwrap();
        let second = (first + 1) % cluster.edges.len();
        match random.below(4) {
            0 => {
                cluster.edges[first].stop();
                thread::sleep(Duration::from_millis(random.below(STOPPED_MS_MAX)));
                cluster.edges[first].wake();
                self.stops += 1;
            }
            1 => {
                cluster.edges[first].kill();
                thread::sleep(Duration::from_millis(random.below(QUIET_MS_MAX / 20)));
                cluster.edges[second].kill();
                cluster.respawn(first).unwrap();
                cluster.respawn(second).unwrap();
                self.kills += 2;
            }
            _ => {
                cluster.edges[first].kill();
                cluster.respawn(first).unwrap();
                self.kills += 1;
            }
        }
    }
}

/// The largest resident memory of an agent in each tenth of the run.
struct Memory {
    begun: Instant,
    length: Duration,
    most_mib: [u64; 10],
}

impl Memory {
    fn look(&mut self, cluster: &mut TestCluster) {
        let tenth = self.begun.elapsed().as_millis() * 10 / self.length.as_millis().max(1);
        let most = &mut self.most_mib[usize::try_from(tenth.min(9)).unwrap()];
        let now = cluster.agents().map(|agent| resident_mib(agent.id())).max().unwrap_or(0);
        *most = now.max(*most);
    }

    /// No more in the second half than in the first one, except for a tenth and [`GROWTH_MIB`]; and never much more than the budget.
    fn check(&self, budget_mib: u64) {
        let (first, last) = self.most_mib.split_at(5);
        let (before, after) = (first.iter().max().unwrap(), last.iter().max().unwrap());
        println!("largest agent in each tenth, MiB: {:?}", self.most_mib);
        assert!(*after <= before + before / 10 + GROWTH_MIB, "memory grows: {:?} MiB", self.most_mib);
        assert!(
            *after.max(before) <= budget_mib + BESIDE_BUDGET_MIB,
            "budget {budget_mib}: {:?} MiB",
            self.most_mib
        );
    }
}

/// The sessions of each edge, by name.
fn rows(cluster: &TestCluster) -> BTreeMap<String, Value> {
    let list = |edge: &TestEdge| edge.client().ok()?.json(Method::GET, "/v1/sessions").ok();
    let lists: Vec<Value> = cluster.edges.iter().filter_map(list).collect();
    let rows = lists.iter().flat_map(|list| list["sessions"].as_array()).flatten();
    rows.map(|row| (row["session"].as_str().unwrap_or_default().to_owned(), row.clone())).collect()
}

/// Sessions that have an owner and did nothing for longer than any client pauses, and what was logged of each.
fn stuck(cluster: &TestCluster) -> String {
    let before = rows(cluster);
    thread::sleep(STILL);
    let (mut said, after) = (String::new(), rows(cluster));
    let is_still = |(id, row): &(&String, &Value)| {
        before.get(*id).is_some_and(|then| then["consumed"] == row["consumed"] && row["phase"] != "detached")
    };
    let still: Vec<(&String, &Value)> = after.iter().filter(is_still).collect();
    let _ = writeln!(said, "{} of {} sessions did nothing for {STILL:?}", still.len(), after.len());
    for edge in &cluster.edges {
        let shown = edge.client().ok().and_then(|edge| edge.json(Method::GET, "/v1/edge").ok());
        let _ = writeln!(said, "{}: {}", edge.who(), shown.unwrap_or_default());
    }
    let is_lost = |event: &LogEvent| event.text("event") == "ended" && event.text("code") != "Finished";
    let _ =
        writeln!(said, "the last sessions that ended otherwise:\n{}", cluster.logs.tail_of(SHOWN, is_lost));
    for (id, row) in still.into_iter().take(SHOWN) {
        let of_it =
            |event: &LogEvent| event.text("session") == id || event.text("message").contains(id.as_str());
        let _ = writeln!(said, "{row}\n{}", cluster.logs.tail_of(12, of_it));
    }
    said
}

/// Three edges with all services, both agents, and the addresses for clients of each service.
fn start(
    servers: &Servers,
    site: &Site,
    sessions: usize,
    budget_mib: u64,
) -> (TestCluster, Vec<std::net::SocketAddr>) {
    let layout = support::layout("busy", |layout: &mut Layout| {
        (layout.edges, layout.namespaces) = (3, true);
        // The agents' default timeouts.
        layout.agent_tables = format!("[limits]\nmemory = \"{budget_mib}MiB\"\n");
        layout.edge_tables = format!(
            "{}[limits]\nmemory = \"{budget_mib}MiB\"\ncells = {}\n",
            site.table(Service::Tls.name()),
            sessions + 64
        );
    });
    let apps =
        |place: &TempDir| Service::SHIPPED.iter().map(|service| service.manifest(place, site)).collect();
    let mut cluster = TestCluster::new(layout, apps).unwrap();
    cluster.start_edges("").unwrap();
    let edges = cluster.edge_addresses();
    cluster.start_agent_with(AgentSide::Server, &edges, &servers.table()).unwrap();
    let names: Vec<&str> = Service::SHIPPED.iter().map(|service| service.name()).collect();
    let listens = cluster.start_client_agent(&edges, &names).unwrap();
    (cluster, listens.iter().map(|listen| listen.address).collect())
}

#[test]
fn all_services_stay_busy_through_kills_and_stops_with_full_budgets() {
    support::turns::alone();
    let sessions = support::amount("MARRAM_BUSY_SESSIONS", 45);
    let length = Duration::from_secs(support::amount("MARRAM_BUSY_SECONDS", 8) as u64);
    let budget_mib = support::amount("MARRAM_BUSY_MIB", 16) as u64;
    let seed = support::amount("MARRAM_SEED", 1) as u64;
    let (servers, site) = (Servers::start(), Site::new());
    let (mut cluster, addresses) = start(&servers, &site, sessions, budget_mib);
    let services = Service::SHIPPED.into_iter().zip(addresses).collect();
    let habits = Habits { services, sessions, pace_ms_max: PACE_MS_MAX, patience: PATIENCE, seed };
    let clients = Clients::start(habits, &site);
    let (mut random, mut faults) = (Seeded::new(seed), Faults::default());
    let mut memory = Memory { begun: Instant::now(), length, most_mib: [0; 10] };
    memory.look(&mut cluster);
    while memory.begun.elapsed() < length {
        thread::sleep(Duration::from_millis(random.below(QUIET_MS_MAX)));
        faults.strike(&mut cluster, &mut random);
        memory.look(&mut cluster);
        let wrong = clients.wrong();
        assert!(wrong.is_empty(), "{wrong:?}: seed {seed}, {faults:?}; {}", stuck(&cluster));
    }
    let counts = clients.finish();
    println!("seed {seed}: {faults:?}; sessions that ended in order, answers, and the longest wait:");
    for count in &counts {
        println!("  {}: {}, {}, {} ms", count.service, count.ended, count.answers, count.longest_ms);
    }
    let full = cluster.logs.count(0, |event| event.text("message").contains("limits.memory"));
    println!("{full} reports of a full memory");
    assert!(counts.iter().all(|count| count.ended > 0 && count.answers > 0), "each service ran");
    memory.check(budget_mib);
}
