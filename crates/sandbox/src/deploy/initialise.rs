//! Runs a module's initialisation, once for its image, and records the resulting state.

use super::check::Facts;
use super::error::DeployError;
use crate::app::App;
use crate::cells::reason;
use crate::files::Files;
use crate::globals::{GlobalValue, global_name};
use crate::host::{Host, Hosts, Phase, Print, PrintLevel, linker};
use crate::image::InitialMemory;
use crate::limits::IMAGE_SPAN_MAX;
use crate::watch::Watch;
use marram_session::cell::Seed;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use wasmtime::{Engine, Instance, Module, Store};

/// The state after initialisation.
pub(super) struct Frozen {
    pub(super) memory: InitialMemory,
    pub(super) globals: Vec<GlobalValue>,
    pub(super) files: Files,
    pub(super) prints: Vec<Print>,
}

/// Instantiates the module, runs its start function and `_initialize`, and freezes the result.
pub(super) fn initialise(
    engine: &Engine,
    module: &Module,
    facts: &Facts,
    app: &App,
    ms_max: u64,
) -> Result<Frozen, DeployError> {
    // The generator is never used: initialisation that draws from it is refused.
    let files = Files::new(app.files.clone().into(), app.quotas.scratch_max);
    let mut hosts = Hosts::new(1, false, Watch::default());
    hosts.add(Host::new(Phase::Initialising, Seed([0; 32]), files, &app.quotas));
    let mut store = Store::new(engine, hosts);
    store.limiter(|hosts| hosts);
    store.set_epoch_deadline(1);
    store.epoch_deadline_trap();
    let pre = linker(engine, false).and_then(|linker| linker.instantiate_pre(module)).map_err(|error| {
        DeployError::ImportForbidden { name: "a function".into(), reason: format!("{error:#}") }
    })?;

    let run = |store: &mut Store<Hosts>| -> wasmtime::Result<Instance> {
        let instance = pre.instantiate(&mut *store)?;
        store.data_mut().running().memory = instance.get_memory(&mut *store, "memory");
        if facts.initialize {
            instance.get_typed_func::<(), ()>(&mut *store, "_initialize")?.call(&mut *store, ())?;
        }
        Ok(instance)
    };
    let instance = within(engine, ms_max, || run(&mut store)).map_err(|error| {
        DeployError::Initialisation(match error.downcast_ref::<wasmtime::Trap>() {
            Some(wasmtime::Trap::Interrupt) => {
                format!(
                    "it ran for more than {ms_max} ms; move the work into a handler, or do it when building"
                )
            }
            _ => with_errors(reason(&error), &store.data().runs().prints),
        })
    })?;
    freeze(&mut store, &instance, facts)
}

/// Why a guest stopped, after the errors that it printed, such as a panic message or a complaint about a file.
fn with_errors(reason: String, prints: &[Print]) -> String {
    let errors = prints.iter().filter(|print| print.level == PrintLevel::Error);
    let mut words: Vec<&str> = errors.map(|print| print.text.as_str()).collect();
    words.push(&reason);
    words.join("; ")
}

/// Runs `work`, and stops the engine's guests if it takes longer than `ms_max`.
fn within<R>(engine: &Engine, ms_max: u64, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (done, timer) = channel::<()>();
        scope.spawn(move || {
            if timer.recv_timeout(Duration::from_millis(ms_max)) == Err(RecvTimeoutError::Timeout) {
                engine.increment_epoch();
            }
        });
        let result = work();
        drop(done);
        result
    })
}

fn freeze(store: &mut Store<Hosts>, instance: &Instance, facts: &Facts) -> Result<Frozen, DeployError> {
    let memory = store.data().runs().memory.ok_or(DeployError::ExportMissing("memory"))?;
    let memory = InitialMemory::scan(memory.data(&mut *store));
    if memory.span() > IMAGE_SPAN_MAX {
        return Err(DeployError::Initialisation(format!(
            "it left data spread over {} bytes of memory and the maximum is {IMAGE_SPAN_MAX}; allocate large buffers \
             in a handler instead",
            memory.span()
        )));
    }
    let globals = (0..facts.globals.len())
        .map(|n| {
            let global = instance.get_global(&mut *store, &global_name(n));
            global.and_then(|global| GlobalValue::from_val(&global.get(&mut *store)))
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| DeployError::Unsavable("a mutable global is not a number".into()))?;
    let host = store.data_mut().running();
    let files = host.files.freeze();
    Ok(Frozen { memory, globals, files, prints: std::mem::take(&mut host.prints) })
}
