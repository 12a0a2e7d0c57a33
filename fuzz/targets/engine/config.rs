//! Configurations of edges and agents: accepted, or refused with a printable error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use marram_config::{agent, edge, source::Source};

fuzz_target!(|text: &str| {
    let source = Source::new("config.toml", text.to_owned());
    let problems = [
        edge::EdgeSettings::parse(&source).err(),
        agent::AgentSettings::parse(&source, agent::AgentRole::Client).err(),
        agent::AgentSettings::parse(&source, agent::AgentRole::Server).err(),
    ];
    for problem in problems.into_iter().flatten() {
        assert!(problem.to_string().starts_with("config.toml"));
    }
});
