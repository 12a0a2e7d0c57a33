//! The results of benchmarks, and one figure of them by its name. Does not know what the figures mean.
//!
//! ```text
//! forward.encrypted.added_p50_us    the benchmark; then, after each dot, a level of `metrics`
//! forward.added_ci95_us.0           or an index into a list
//! ```
//! A benchmark without a result has no figures; a result has every figure that is asked for.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The last result of each benchmark.
#[derive(Default)]
pub(super) struct Results {
    by_name: BTreeMap<String, Value>,
}

/// The aim of a figure.
pub(super) struct Bar {
    pub(super) limit: f64,
    pub(super) held: bool,
}

impl Results {
    /// In place of an earlier one.
    pub(super) fn insert(&mut self, name: &str, result: Value) {
        self.by_name.insert(name.to_owned(), result);
    }

    /// The benchmarks that have a result.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// A figure; `None` if its benchmark has no result.
    ///
    /// # Errors
    /// If the result has no such figure.
    pub(super) fn figure(&self, name: &str) -> Result<Option<f64>> {
        let Some((result, key)) = self.find(name)? else { return Ok(None) };
        let deeper = |level: &'_ Value, part: &str| match level {
            Value::Array(list) => list.get(part.parse::<usize>().ok()?).cloned(),
            level => level.get(part).cloned(),
        };
        let value = key.split('.').try_fold(result["metrics"].clone(), |level, part| deeper(&level, part));
        match value.as_ref().map(Value::as_f64) {
            Some(Some(value)) => Ok(Some(value)),
            Some(None) => bail!("`{name}` is no number"),
            None => bail!("there is no figure `{name}`"),
        }
    }

    /// The bar of a figure; `None` if its benchmark has no result.
    ///
    /// # Errors
    /// If the result has no such bar.
    pub(super) fn aim(&self, name: &str) -> Result<Option<Bar>> {
        let Some((result, key)) = self.find(name)? else { return Ok(None) };
        bar(result, key)?.with_context(|| format!("`{name}` has no bar")).map(Some)
    }

    /// Whether a figure has a bar and misses it.
    pub(super) fn misses(&self, name: &str) -> Result<bool> {
        let found = self.find(name)?.map(|(result, key)| bar(result, key)).transpose()?;
        Ok(found.flatten().is_some_and(|bar| !bar.held))
    }

    /// The result of a benchmark.
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.by_name.get(name)
    }

    /// The result that has a figure, and the figure's key in it.
    fn find<'a, 'n>(&'a self, name: &'n str) -> Result<Option<(&'a Value, &'n str)>> {
        let (bench, key) = name.split_once('.').with_context(|| format!("`{name}` is no figure"))?;
        Ok(self.by_name.get(bench).map(|result| (result, key)))
    }
}

/// The runs of a result, the newest first: several if its table has cells of several.
pub(super) fn parts(result: &Value) -> impl Iterator<Item = &Value> {
    std::iter::once(result).chain(result["earlier"].as_array().into_iter().flatten())
}

/// Date, commit and machine of a run; `None` if it was recorded by hand.
pub(super) fn run(result: &Value) -> Option<[String; 3]> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let machine = |field: &str| text(&result["machine"][field]);
    let what = format!("{} cores, {}, Linux {}", machine("cores"), machine("cpu"), machine("kernel"));
    result["date"].is_string().then(|| [text(&result["date"]), text(&result["commit"]), what])
}

/// The bar with this key, if there is one.
fn bar(result: &Value, key: &str) -> Result<Option<Bar>> {
    let bars = result["bars"].as_array().into_iter().flatten();
    let Some(found) = bars.into_iter().find(|bar| bar["metric"] == key) else { return Ok(None) };
    let limit = found["at_most"].as_f64().or_else(|| found["at_least"].as_f64());
    let limit = limit.with_context(|| format!("the bar of `{key}` has no limit"))?;
    Ok(Some(Bar { limit, held: found["held"] == true }))
}

#[cfg(test)]
impl Results {
    /// Adds a figure of a run with a bar that it holds.
    pub(super) fn measure(&mut self, name: &str, value: f64, limit: f64) {
        let (bench, key) = name.split_once('.').unwrap();
        let result = self.by_name.entry(bench.to_owned()).or_insert_with(
            || serde_json::json!({ "bench": bench, "metrics": {}, "bars": [], "date": "2026-01-02", "commit": "abc" }),
        );
        let level = key.split('.').fold(&mut result["metrics"], |level, part| &mut level[part]);
        *level = value.into();
        let bars = result["bars"].as_array_mut().unwrap();
        bars.push(serde_json::json!({ "metric": key, "at_most": limit, "held": value <= limit }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results() -> Results {
        let mut results = Results::default();
        let metrics = json!({ "a": { "b": 1.5, "list": [2, 3] }, "nothing": null });
        let bars = json!([{ "metric": "a.b", "at_least": 2.0, "held": false }]);
        results.insert("run", json!({ "metrics": metrics, "bars": bars }));
        results
    }

    #[test]
    fn a_figure_is_found_by_its_levels_or_an_index() {
        for (name, expected) in [("run.a.b", Some(1.5)), ("run.a.list.1", Some(3.0)), ("other.a.b", None)] {
            assert_eq!(results().figure(name).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn a_result_has_every_figure() {
        for name in ["run.a.c", "run.a", "run.a.list.2", "run.nothing", "run"] {
            let error = results().figure(name).unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn a_bar_has_a_limit_and_may_be_missed() {
        assert_eq!(results().aim("run.a.b").unwrap().unwrap().limit, 2.0);
        assert!(results().aim("run.a.list").is_err());
        assert!(results().aim("other.a.b").unwrap().is_none());
        for (name, expected) in [("run.a.b", true), ("run.a.list", false), ("other.a", false)] {
            assert_eq!(results().misses(name).unwrap(), expected, "{name}");
        }
    }
}
