//! The results of a benchmark, as one JSON object or as a table for people; and whether its bars held.
//!
//! ```text
//! metric("c100.p99_ms", 4.2)  -->  { "metrics": { "c100": { "p99_ms": 4.2 } } }
//! with set_prefix("encrypted.") -> { "metrics": { "encrypted": { "c100": ... } } }
//! ```
//! A name is either a figure or a level of others; to use one as both is a mistake of the benchmark
//! and panics. Bars are compared with the value as it was measured; only what is printed is
//! rounded.

use super::machine;
use super::stats::Tail;
use marram_node::text::table;
use serde_json::{Map, Value, json};

/// The direction of a bar.
#[derive(Clone, Copy)]
pub(super) enum Bar {
    /// At most this.
    Most(f64),
    /// At least this.
    Least(f64),
}

impl Bar {
    /// A value that is not a number does not hold any bar.
    fn holds(self, value: f64) -> bool {
        match self {
            Self::Most(most) => value <= most,
            Self::Least(least) => value >= least && value.is_finite(),
        }
    }
}

/// A figure with a bar, as it was measured: not rounded.
struct Barred {
    name: String,
    bar: Bar,
    value: f64,
}

impl Barred {
    fn holds(&self) -> bool {
        self.bar.holds(self.value)
    }

    fn json(&self) -> Value {
        let (kind, limit) = match self.bar {
            Bar::Most(most) => ("at_most", most),
            Bar::Least(least) => ("at_least", least),
        };
        json!({ "metric": self.name, kind: limit, "value": rounded(self.value.into()), "held": self.holds() })
    }

    fn miss(&self) -> String {
        let (name, value) = (&self.name, self.value);
        match self.bar {
            Bar::Most(most) => format!("{name} is {value:.4}, more than {most}"),
            Bar::Least(least) => format!("{name} is {value:.4}, less than {least}"),
        }
    }
}

/// The result of one benchmark.
pub(super) struct Report {
    /// The name in the output, and of the bars that are missed.
    bench: &'static str,
    /// Prefix of the name of every figure that is added: empty, or some levels, each with a dot behind it.
    prefix: String,
    metrics: Map<String, Value>,
    bars: Vec<Barred>,
    baselines: Vec<Value>,
    notes: Vec<String>,
    /// The number of lost and of repeated answers, where they were counted.
    lost: Option<(u64, u64)>,
    /// The parts that were wanted and not measured, and why.
    not_run: Vec<String>,
    /// A table of its own, for machines and, in Markdown, for people.
    body: Option<(Value, String)>,
}

impl Report {
    /// An empty report.
    #[must_use]
    pub(super) fn new(bench: &'static str) -> Self {
        Self {
            bench,
            prefix: String::new(),
            metrics: Map::new(),
            bars: Vec::new(),
            baselines: Vec::new(),
            notes: Vec::new(),
            lost: None,
            not_run: Vec::new(),
            body: None,
        }
    }

    /// Sets the prefix of the name of every figure that is added from now on.
    pub(super) fn set_prefix(&mut self, prefix: &str) {
        prefix.clone_into(&mut self.prefix);
    }

    /// Adds a figure. Each dot in `name` begins a level of it.
    pub(super) fn metric(&mut self, name: &str, value: impl Into<Value>) {
        let name = format!("{}{name}", self.prefix);
        insert(&mut self.metrics, &name, rounded(value.into()));
    }

    /// Adds a figure with a bar. The bar applies to plain names only: under a prefix the figure is added without it.
    ///
    /// Encrypted wires have no bars: they are measured to show what encryption costs.
    pub(super) fn metric_with_bar(&mut self, name: &str, value: f64, bar: Bar) {
        self.metric(name, value);
        if self.prefix.is_empty() {
            self.bars.push(Barred { name: name.into(), bar, value });
        }
    }

    /// Adds a 99th percentile, or the maximum under a name that says that it is one.
    pub(super) fn tail(&mut self, p99: &str, tail: &Tail) {
        self.metric(&tail.name(p99), tail.value());
    }

    /// Adds a baseline that was measured in the same run, once.
    pub(super) fn baseline(&mut self, name: &str, command: &str) {
        let baseline = json!({ "name": name, "command": command });
        if !self.baselines.contains(&baseline) {
            self.baselines.push(baseline);
        }
    }

    /// Adds to the counts of lost and of repeated answers. From then on the two sums are figures of
    /// the report.
    pub(super) fn add_lost(&mut self, lost: u64, repeated: u64) {
        let sum = self.lost.unwrap_or_default();
        let (lost, repeated) = (sum.0 + lost, sum.1 + repeated);
        self.lost = Some((lost, repeated));
        insert(&mut self.metrics, "lost", lost.into());
        insert(&mut self.metrics, "repeated", repeated.into());
    }

    /// Adds a part that was wanted and not measured.
    ///
    /// The report is printed, and the exit status says that it is incomplete.
    pub(super) fn add_not_run(&mut self, why: impl Into<String>) {
        self.not_run.push(why.into());
    }

    /// Why the result is void: a part could not be run; `None` if all parts ran.
    #[must_use]
    pub(super) fn not_run(&self) -> Option<String> {
        let (first, others) = self.not_run.split_first()?;
        let more = if others.is_empty() { String::new() } else { format!(" (and {} more)", others.len()) };
        Some(format!("not everything could be run: {first}{more}"))
    }

    /// Lost or repeated answers; with them the benchmark fails, for any figures.
    #[must_use]
    pub(super) fn wrong(&self) -> Option<String> {
        let (lost, repeated) = self.lost?;
        (lost + repeated > 0).then(|| format!("{lost} answers were lost and {repeated} arrived twice"))
    }

    /// The bars that do not hold, if there are any.
    #[must_use]
    pub(super) fn missed(&self) -> Option<String> {
        let missed: Vec<String> = self.bars.iter().filter(|it| !it.holds()).map(Barred::miss).collect();
        (!missed.is_empty()).then(|| format!("{}: {}", self.bench, missed.join("; ")))
    }

    /// Adds a table, for machines and in Markdown.
    pub(super) fn body(&mut self, rows: Value, markdown: String) {
        self.body = Some((rows, markdown));
    }

    /// The table in Markdown, if there is one.
    #[must_use]
    pub(super) fn markdown(&self) -> Option<&str> {
        self.body.as_ref().map(|(_, markdown)| markdown.as_str())
    }

    /// Adds a sentence for people, once.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// The whole report as JSON.
    #[must_use]
    pub(super) fn json(&self) -> Value {
        let mut report = json!({
            "bench": self.bench,
            "metrics": self.metrics,
            "bars": self.bars.iter().map(Barred::json).collect::<Vec<_>>(),
            "all_held": self.missed().is_none() && self.wrong().is_none() && self.not_run().is_none(),
            "not_run": self.not_run,
            "baselines": self.baselines,
            "notes": self.notes,
            "machine": machine::describe(),
        });
        if let Some((rows, markdown)) = &self.body {
            report["table"] = rows.clone();
            report["markdown"] = markdown.as_str().into();
        }
        report
    }

    /// The whole report for people.
    #[must_use]
    pub(super) fn text(&self) -> String {
        let mut rows = Vec::new();
        self.rows("", &self.metrics, &mut rows);
        let mut out = format!("{}\n{}", self.bench, table::format(&["FIGURE", "VALUE", "BAR", ""], &rows));
        out += self.markdown().unwrap_or_default();
        for baseline in &self.baselines {
            out += &format!("baseline {}: {}\n", text(&baseline["name"]), text(&baseline["command"]));
        }
        for note in &self.notes {
            out += &format!("note: {note}\n");
        }
        for why in &self.not_run {
            out += &format!("NOT RUN: {why}\n");
        }
        out
    }

    /// A row for each figure below `prefix`.
    fn rows(&self, prefix: &str, metrics: &Map<String, Value>, rows: &mut Vec<Vec<String>>) {
        for (name, value) in metrics {
            let name = format!("{prefix}{name}");
            match value {
                Value::Object(group) => self.rows(&format!("{name}."), group, rows),
                value => rows.push(self.row(&name, value)),
            }
        }
    }

    fn row(&self, name: &str, value: &Value) -> Vec<String> {
        let barred = self.bars.iter().find(|it| it.name == name);
        let wanted = match barred.map(|it| it.bar) {
            Some(Bar::Most(most)) => format!("<= {most}"),
            Some(Bar::Least(least)) => format!(">= {least}"),
            None => String::new(),
        };
        let held = barred.map_or("", |it| if it.holds() { "held" } else { "MISSED" });
        vec![name.to_owned(), text(value), wanted, held.to_owned()]
    }
}

/// Inserts a figure at the level that its name gives.
///
/// # Panics
/// If the name is used both as a figure and as a level.
fn insert(metrics: &mut Map<String, Value>, name: &str, value: Value) {
    match name.split_once('.') {
        None => {
            assert!(!metrics.get(name).is_some_and(Value::is_object), "`{name}` is a level of other figures");
            metrics.insert(name.into(), value);
        }
        Some((level, rest)) => {
            let group = metrics.entry(level).or_insert_with(|| json!({}));
            let Value::Object(group) = group else { panic!("`{level}` is a figure, and no level of others") };
            insert(group, rest, value);
        }
    }
}

/// A text without its quotes; other values as JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Rounds to three decimals, which is more than the precision of any of these measurements.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            json!(number.as_f64().map(|value| (value * 1e3).round() / 1e3))
        }
        Value::Array(values) => Value::Array(values.into_iter().map(rounded).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("sample");
        report.metric_with_bar("c100.p99_vs_processes", 0.5, Bar::Most(0.6));
        report.metric_with_bar("per_s", 7.0, Bar::Least(5.0));
        report
    }

    #[test]
    fn each_dot_of_a_name_is_a_level() {
        let mut report = report();
        report.metric("a.b.c", 1);
        report.metric("a.b.d", 2.000_4);
        report.set_prefix("encrypted.");
        report.metric("a.b.c", 3);
        let metrics = report.json()["metrics"].clone();
        assert_eq!(metrics["a"], json!({ "b": { "c": 1, "d": 2.0 } }));
        assert_eq!(metrics["encrypted"], json!({ "a": { "b": { "c": 3 } } }));
        assert_eq!(metrics["c100"]["p99_vs_processes"], 0.5);
        assert!(report.text().lines().any(|line| line.starts_with("encrypted.a.b.c ")));
    }

    #[test]
    #[should_panic(expected = "no level of others")]
    fn a_figure_is_no_level() {
        let mut report = Report::new("sample");
        report.metric("a", 1);
        report.metric("a.b", 1);
    }

    #[test]
    fn bars_are_reported_and_a_missed_one_is_found() {
        let mut report = report();
        let json = report.json();
        let bars = json!([
            { "metric": "c100.p99_vs_processes", "at_most": 0.6, "value": 0.5, "held": true },
            { "metric": "per_s", "at_least": 5.0, "value": 7.0, "held": true },
        ]);
        assert_eq!((&json["bars"], &json["all_held"]), (&bars, &json!(true)));
        assert_eq!(report.missed(), None);
        report.metric_with_bar("x.y", 3.0, Bar::Most(2.5));
        assert_eq!(report.missed().as_deref(), Some("sample: x.y is 3.0000, more than 2.5"));
        assert_eq!(report.json()["all_held"], false);
        assert!(report.text().lines().any(|line| line.starts_with("x.y ") && line.contains("MISSED")));
    }

    #[test]
    fn what_is_no_number_misses_its_bar() {
        for (bar, nothing) in
            [(Bar::Most(1.0), f64::NAN), (Bar::Least(1.0), f64::NAN), (Bar::Least(1.0), f64::INFINITY)]
        {
            let mut report = Report::new("sample");
            report.metric_with_bar("ratio", nothing, bar);
            assert!(report.missed().is_some(), "{nothing}");
            assert_eq!(report.json()["bars"][0]["held"], false);
            assert_eq!(report.json()["metrics"]["ratio"], Value::Null);
        }
    }

    #[test]
    fn a_bar_is_not_held_by_rounding() {
        let mut report = Report::new("sample");
        report.metric_with_bar("ratio", 0.600_4, Bar::Most(0.6));
        assert_eq!(report.json()["metrics"]["ratio"], 0.6);
        assert!(report.missed().is_some());
    }

    #[test]
    fn a_bar_is_for_the_name_without_a_prefix() {
        let mut report = Report::new("sample");
        report.set_prefix("encrypted.");
        report.metric_with_bar("ratio", 9.0, Bar::Most(1.0));
        assert_eq!(report.missed(), None);
        assert_eq!(report.json()["bars"], json!([]));
    }

    #[test]
    fn notes_and_baselines_are_said_once() {
        let mut report = report();
        for _ in 0..2 {
            report.note("said");
            report.baseline("other", "a command");
        }
        let json = report.json();
        assert_eq!(json["notes"], json!(["said"]));
        assert_eq!(json["baselines"], json!([{ "name": "other", "command": "a command" }]));
    }

    #[test]
    fn what_was_lost_or_not_run_is_no_success() {
        let mut report = report();
        report.add_lost(0, 0);
        assert_eq!((report.wrong(), &report.json()["all_held"]), (None, &json!(true)));
        report.set_prefix("encrypted.");
        report.add_lost(1, 0);
        assert!(report.wrong().is_some());
        assert_eq!(
            (&report.json()["metrics"]["lost"], &report.json()["all_held"]),
            (&json!(1), &json!(false))
        );
        let mut report = Report::new("sample");
        report.add_not_run("a needs b");
        report.add_not_run("c needs d");
        assert_eq!(report.not_run().as_deref(), Some("not everything could be run: a needs b (and 1 more)"));
        assert_eq!(report.json()["all_held"], false);
    }

    #[test]
    fn a_short_tail_is_called_a_maximum() {
        let mut report = Report::new("sample");
        report.tail("gap_p99_ms", &Tail::of(&[4.0, 5.0]));
        assert_eq!(report.json()["metrics"], json!({ "gap_max_ms": 5.0 }));
    }
}
