//! Metrics of an edge, in Prometheus' format and as a summary for people.
//!
//! A sample has the shard it comes from (none: the edge itself), a name and at most one label.
//! Prometheus gets sums over shards, since each label multiplies the series; `GET /v1/edge` shows
//! shards apart.

use marram_shard::api::{App, Counter, Label};
use marram_shard::control::MetricSample;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The key of a sum: a counter's name, and its label's name and value.
type Series<'a> = (&'a str, Option<(&'a str, &'a str)>);

/// Counters in Prometheus' format, summed over all shards: one family for each name, one line for each label.
///
/// The map is ordered by name, so all lines of a family stand together, as the format requires.
/// Gauges are summed as well, so a gauge must be something that can be added; but of a name that ends in `_max` the largest counts.
pub(super) fn prometheus(edge: &str, figures: &[MetricSample]) -> String {
    let mut sums: BTreeMap<Series<'_>, (u64, bool)> = BTreeMap::new();
    for MetricSample { counter: Counter { name, label, value, gauge }, .. } in figures {
        let label = label.as_ref().map(|Label { name, value }| (name.as_str(), value.as_str()));
        let sum = &mut sums.entry((name, label)).or_insert((0, *gauge)).0;
        *sum = merged(name, *sum, *value);
    }
    let (mut out, mut family) = (String::new(), "");
    let edge = escaped(edge);
    for ((name, label), (value, gauge)) in sums {
        if family != name {
            family = name;
            let kind = if gauge { "gauge" } else { "counter" };
            writeln!(out, "# TYPE marram_{name} {kind}").expect("writing to a string never fails");
        }
        let label = label.map_or_else(String::new, |(name, of)| format!(",{name}=\"{}\"", escaped(of)));
        writeln!(out, "marram_{name}{{edge=\"{edge}\"{label}}} {value}")
            .expect("writing to a string never fails");
    }
    out
}

/// What two shards make of one name together.
fn merged(name: &str, one: u64, other: u64) -> u64 {
    if name.ends_with("_max") { one.max(other) } else { one + other }
}

/// A label's value, escaped as the format requires.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// An edge's summary: its own figures, those of each shard, and those of each app over all shards, in the order of `apps`.
///
/// A counter with the label `app` counts for that app only; one with another label is not in the
/// summary.
pub(super) fn edge(figures: &[MetricSample], apps: &[App]) -> Value {
    let (mut own, mut shards) = (Map::new(), BTreeMap::<u8, Map<String, Value>>::new());
    let mut of_apps: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for MetricSample { shard, counter } in figures {
        let all = match &counter.label {
            None => &mut own,
            Some(label) if label.name == "app" => of_apps.entry(&label.value).or_default(),
            Some(_) => continue,
        };
        add(all, counter);
        if let (Some(shard), None) = (shard, &counter.label) {
            add(shards.entry(*shard).or_default(), counter);
        }
    }
    let shards: Vec<Value> =
        shards.into_iter().map(|(shard, figures)| json!({ "shard": shard, "figures": figures })).collect();
    let app = |app: &App| {
        let figures = of_apps.remove(app.name.as_str()).unwrap_or_default();
        json!({ "name": app.name, "image": app.image.to_string(), "tenant": app.tenant, "figures": figures })
    };
    let apps: Vec<Value> = apps.iter().map(app).collect();
    json!({ "figures": own, "shards": shards, "apps": apps })
}

/// The message about this server if no connected agent reaches it; else `None`.
///
/// It is a note beside a successful deployment, not an error: the server's agent may come later.
pub(super) fn unreached(server: &str, figures: &[MetricSample]) -> Option<String> {
    let labels = figures.iter().filter(|figure| figure.counter.value > 0).flat_map(|it| &it.counter.label);
    let names: BTreeSet<&str> =
        labels.filter(|label| label.name == "server").map(|label| label.value.as_str()).collect();
    if names.contains(server) {
        return None;
    }
    let connected = match names.len() {
        0 => "no agent of any server is connected".to_owned(),
        _ => {
            let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("connected agents reach {}", quoted.join(", "))
        }
    };
    Some(format!(
        "no agent that reaches the server `{server}` is connected yet, and sessions wait for one; {connected}"
    ))
}

fn add(sums: &mut Map<String, Value>, counter: &Counter) {
    let before = sums.get(&counter.name).and_then(Value::as_u64).unwrap_or(0);
    sums.insert(counter.name.clone(), json!(merged(&counter.name, before, counter.value)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use marram_shard::api::{CheckpointHolder, Protect, WitnessMode};
    use marram_wire::id::ImageHash;

    fn figure(shard: impl Into<Option<u8>>, counter: Counter) -> MetricSample {
        MetricSample { shard: shard.into(), counter }
    }

    fn figures() -> Vec<MetricSample> {
        vec![
            figure(0, Counter::gauge("sessions", 3)),
            figure(0, Counter::gauge("app_sessions", 1).of(Label::app("b"))),
            figure(0, Counter::gauge("app_sessions", 2).of(Label::app("a\"\\\n"))),
            figure(1, Counter::gauge("sessions", 4)),
            figure(1, Counter::gauge("app_sessions", 4).of(Label::app("b"))),
            figure(1, Counter::gauge("tenant_sessions", 4).of(Label::tenant("b"))),
            figure(None, Counter::count("recoveries", 9)),
            figure(0, Counter::gauge("pause_us_max", 5)),
            figure(1, Counter::gauge("pause_us_max", 3)),
        ]
    }

    #[test]
    fn counters_are_prometheus_text_with_one_type_a_family() {
        assert_eq!(
            prometheus("e", &figures()),
            "# TYPE marram_app_sessions gauge\n\
             marram_app_sessions{edge=\"e\",app=\"a\\\"\\\\\\n\"} 2\n\
             marram_app_sessions{edge=\"e\",app=\"b\"} 5\n\
             # TYPE marram_pause_us_max gauge\nmarram_pause_us_max{edge=\"e\"} 5\n\
             # TYPE marram_recoveries counter\nmarram_recoveries{edge=\"e\"} 9\n\
             # TYPE marram_sessions gauge\nmarram_sessions{edge=\"e\"} 7\n\
             # TYPE marram_tenant_sessions gauge\nmarram_tenant_sessions{edge=\"e\",tenant=\"b\"} 4\n"
        );
    }

    #[test]
    fn a_server_without_an_agent_is_reported_with_the_servers_that_have_one() {
        let wires =
            |server: &str, wires| figure(0, Counter::gauge("server_wires", wires).of(Label::server(server)));
        let figures = [figures(), vec![wires("web", 1), wires("db", 2), wires("gone", 0)]].concat();
        assert_eq!(unreached("web", &figures), None);
        for (server, figures, words) in [
            ("wbe", &figures[..], ["`wbe`", "reach `db`, `web`"]),
            ("gone", &figures, ["`gone`", "reach `db`, `web`"]),
            ("web", &[], ["`web`", "no agent of any server"]),
        ] {
            let told = unreached(server, figures).expect("it cannot be reached");
            assert!(words.iter().all(|word| told.contains(word)), "{told}");
        }
    }

    #[test]
    fn an_edge_shows_itself_its_shards_and_its_apps() {
        let app = |name: &str| App {
            name: name.into(),
            image: ImageHash([7; 32]),
            protect: Protect::None,
            server: None,
            keep: CheckpointHolder::Client,
            recovery_target_ns: 0,
            linger_ms: 0,
            messages_per_s: 0,
            log_bytes_per_s: 0,
            sessions_max: 0,
            shared: false,
            tenant: "t".into(),
            priority: 0,
            cache: None,
            witness: WitnessMode::None,
            epoch: None,
            slots: 0,
        };
        let shown = edge(&figures(), &[app("b"), app("new")]);
        assert_eq!(shown["figures"], json!({ "sessions": 7, "recoveries": 9, "pause_us_max": 5 }));
        let shard = |shard: u8, sessions: u64, pause: u64| json!({ "shard": shard, "figures": { "sessions": sessions, "pause_us_max": pause } });
        assert_eq!(shown["shards"], json!([shard(0, 3, 5), shard(1, 4, 3)]));
        assert_eq!(shown["apps"][0]["figures"], json!({ "app_sessions": 5 }));
        assert_eq!((&shown["apps"][1]["name"], &shown["apps"][1]["figures"]), (&json!("new"), &json!({})));
    }
}
