//! What a benchmark found: one JSON object, or a table for people.

use super::machine;
use crate::cli::table;
use serde_json::{Map, Value, json};

/// Which way a bar holds.
#[derive(Clone, Copy)]
pub(super) enum Bar {
    /// At most this.
    Most(f64),
    /// At least this.
    Least(f64),
}

/// The result of one benchmark.
pub(super) struct Report {
    bench: &'static str,
    metrics: Map<String, Value>,
    bars: Vec<(String, Bar)>,
    baselines: Vec<Value>,
    notes: Vec<String>,
    /// Lost and repeated answers, where they were counted.
    lost: Option<(u64, u64)>,
    /// A table of its own, for machines and, in Markdown, for people.
    body: Option<(Value, String)>,
}

impl Report {
    /// Nothing measured yet.
    #[must_use]
    pub(super) fn new(bench: &'static str) -> Self {
        Self {
            bench,
            metrics: Map::new(),
            bars: Vec::new(),
            baselines: Vec::new(),
            notes: Vec::new(),
            lost: None,
            body: None,
        }
    }

    /// Adds a figure; `name` may be `group.key`.
    pub(super) fn metric(&mut self, name: &str, value: impl Into<Value>) {
        let value = rounded(value.into());
        match name.split_once('.') {
            None => _ = self.metrics.insert(name.into(), value),
            Some((group, key)) => {
                let group = self.metrics.entry(group).or_insert_with(|| json!({}));
                group[key] = value;
            }
        }
    }

    /// Adds a figure and what it should be.
    pub(super) fn metric_with_bar(&mut self, name: &str, value: f64, bar: Bar) {
        self.metric(name, value);
        self.bars.push((name.into(), bar));
    }

    /// Adds what was measured against in the same run.
    pub(super) fn baseline(&mut self, name: &str, command: &str) {
        self.baselines.push(json!({ "name": name, "command": command }));
    }

    /// Adds to the answers that never came, and to those that came twice.
    pub(super) fn add_lost(&mut self, lost: u64, repeated: u64) {
        let sum = self.lost.unwrap_or_default();
        let (lost, repeated) = (sum.0 + lost, sum.1 + repeated);
        self.lost = Some((lost, repeated));
        self.metric("lost", lost);
        self.metric("repeated", repeated);
    }

    /// What no figure can excuse.
    #[must_use]
    pub(super) fn wrong(&self) -> Option<String> {
        let (lost, repeated) = self.lost?;
        (lost + repeated > 0).then(|| format!("{lost} answers were lost and {repeated} came twice"))
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

    /// Adds a sentence for people.
    pub(super) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// The whole as JSON.
    #[must_use]
    pub(super) fn json(&self) -> Value {
        let mut report = json!({
            "bench": self.bench,
            "metrics": self.metrics,
            "baselines": self.baselines,
            "machine": machine::describe(),
        });
        if let Some((rows, markdown)) = &self.body {
            report["table"] = rows.clone();
            report["markdown"] = markdown.as_str().into();
            report["notes"] = self.notes.clone().into();
        }
        report
    }

    /// The whole for people.
    #[must_use]
    pub(super) fn text(&self) -> String {
        let mut rows = Vec::new();
        for (name, value) in &self.metrics {
            match value {
                Value::Object(group) => {
                    rows.extend(group.iter().map(|(key, value)| self.row(&format!("{name}.{key}"), value)));
                }
                value => rows.push(self.row(name, value)),
            }
        }
        let mut out = format!("{}\n{}", self.bench, table::format(&["FIGURE", "VALUE", "BAR", ""], &rows));
        out += self.markdown().unwrap_or_default();
        for baseline in &self.baselines {
            out += &format!("baseline {}: {}\n", text(&baseline["name"]), text(&baseline["command"]));
        }
        for note in &self.notes {
            out += &format!("note: {note}\n");
        }
        out
    }

    fn row(&self, name: &str, value: &Value) -> Vec<String> {
        let bar = self.bars.iter().find(|(of, _)| of == name).map(|(_, bar)| *bar);
        let (wanted, held) = match (bar, value.as_f64()) {
            (Some(Bar::Most(most)), Some(value)) => (format!("<= {most}"), Some(value <= most)),
            (Some(Bar::Least(least)), Some(value)) => (format!(">= {least}"), Some(value >= least)),
            _ => (String::new(), None),
        };
        let held = held.map_or("", |held| if held { "held" } else { "MISSED" });
        vec![name.to_owned(), text(value), wanted, held.to_owned()]
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Three decimals are more than any of these measurements can tell.
fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            json!(number.as_f64().map(|value| (value * 1e3).round() / 1e3))
        }
        Value::Array(values) => Value::Array(values.into_iter().map(rounded).collect()),
        other => other,
    }
}
