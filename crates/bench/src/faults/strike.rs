//! Each fault: how it is applied to an edge, and how it is undone.
//!
//! | fault | made by | undone by |
//! |---|---|---|
//! | kill | SIGKILL to all processes of the edge, or of the coordinator | start, with an empty directory; the coordinator keeps its own |
//! | hang | SIGSTOP | SIGCONT |
//! | reset | the kernel closes the edge's connections | nothing to undo |
//! | one-way, two-way | rules that drop packets of one or both directions | removed |
//! | slow | a token bucket on the link | removed |
//! | full disk | a file of that size | deleted |
//! | clock | SIGTERM: the sessions leave for an edge with another clock | start |

use super::axes::Fault;
use super::scene::Scene;
use anyhow::Context;
use marram_cluster::TestStore;
use marram_testbed::Direction;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The rate of a slow link.
const SLOW_KBIT_PER_S: u32 = 4_000;
/// By how much the clocks of edges differ.
const CLOCK_S: u64 = 30 * 24 * 3600;
/// Name of the file that fills a disk.
const FILLER: &str = "filler";

/// A fault that is in effect until it is undone. A value of it must go to [`Scene::undo`]: dropping
/// it repairs nothing.
pub(super) struct Blow {
    /// Of no meaning if it is the coordinator's.
    pub(super) edge: usize,
    damage: Damage,
}

/// What has to be undone.
enum Damage {
    Dead,
    Hangs,
    Nothing,
    Parted(Vec<Direction>),
    Slow,
    Full(Vec<PathBuf>),
    Leaves,
    /// Of the coordinator.
    StoreDead,
    StoreHangs,
}

impl Scene {
    /// Applies a fault to an edge. `round` selects the variant where a fault has several.
    pub(super) fn strike(&mut self, fault: Fault, edge: usize, round: usize) -> anyhow::Result<Blow> {
        let damage = match fault {
            Fault::Kill => {
                self.cluster.edges[edge].kill();
                Damage::Dead
            }
            Fault::Hang => {
                self.cluster.edges[edge].stop();
                Damage::Hangs
            }
            Fault::Reset => {
                let port = self.cluster.edges[edge].address().port();
                self.machine(edge)?.reset_connections(port)?;
                Damage::Nothing
            }
            Fault::OneWay => self.part(edge, vec![[Direction::Out, Direction::In][round % 2]])?,
            Fault::TwoWay => self.part(edge, vec![Direction::Out, Direction::In])?,
            Fault::Slow => {
                self.machine(edge)?.slow_down(SLOW_KBIT_PER_S)?;
                Damage::Slow
            }
            Fault::FullDisk => Damage::Full(self.fill_disks(edge)?),
            Fault::Clock => {
                // It says good-bye; the edge that takes over its sessions has another clock.
                self.cluster.edges[edge].terminate();
                Damage::Leaves
            }
        };
        Ok(Blow { edge, damage })
    }

    /// Applies a fault to the coordinator.
    pub(super) fn strike_store(&mut self, fault: Fault) -> anyhow::Result<Blow> {
        let store = self.store.as_mut().context("the policy has a coordinator")?;
        let damage = match fault {
            Fault::Kill => {
                store.kill();
                Damage::StoreDead
            }
            Fault::Hang => {
                store.stop();
                Damage::StoreHangs
            }
            _ => anyhow::bail!("the coordinator is a process, and has no {}", fault.name()),
        };
        Ok(Blow { edge: 0, damage })
    }

    /// Drops the packets of these directions, seen from the edge.
    fn part(&self, edge: usize, ways: Vec<Direction>) -> anyhow::Result<Damage> {
        ways.iter().try_for_each(|way| self.machine(edge)?.part(*way))?;
        Ok(Damage::Parted(ways))
    }

    /// Undoes the faults: an edge that was killed is started again with an empty directory.
    ///
    /// Several edges are started together, since one waits for another to be ready.
    pub(super) fn undo(&mut self, blows: Vec<Blow>) -> anyhow::Result<()> {
        let mut dead = Vec::new();
        for blow in blows {
            if matches!(blow.damage, Damage::Dead | Damage::Leaves) {
                dead.push(blow.edge);
            }
            self.undo_one(blow)?;
        }
        self.start_edges(&dead)
    }

    /// Undoes one fault, without starting the edge.
    fn undo_one(&mut self, blow: Blow) -> anyhow::Result<()> {
        let edge = blow.edge;
        match blow.damage {
            Damage::Nothing | Damage::Dead => Ok(()),
            Damage::StoreDead => self.store.as_mut().map_or(Ok(()), TestStore::restart),
            Damage::StoreHangs => {
                self.store.iter().for_each(TestStore::wake);
                Ok(())
            }
            Damage::Hangs => {
                self.cluster.edges[edge].wake();
                Ok(())
            }
            Damage::Parted(ways) => ways.iter().try_for_each(|way| self.machine(edge)?.rejoin(*way)),
            Damage::Slow => self.machine(edge)?.speed_up(),
            Damage::Full(fillers) => fillers.iter().try_for_each(|filler| {
                fs::remove_file(filler).with_context(|| format!("cannot remove {}", filler.display()))
            }),
            Damage::Leaves => {
                if let Some(process) = self.cluster.edges[edge].process() {
                    // Its exit status says whether all its sessions left in time; the client's view shows that as well.
                    process.wait()?;
                }
                Ok(())
            }
        }
    }

    /// Sets different clocks: the second edge is ahead by [`CLOCK_S`], the third by half of it.
    pub(super) fn write_clocks(&self) -> anyhow::Result<()> {
        self.cluster.directory.write("B.clock", CLOCK_S.to_string())?;
        self.cluster.directory.write("C.clock", (CLOCK_S / 2).to_string()).map(drop)
    }

    /// Leaves no free byte on the disk of the edge, nor of the recorder where there is one.
    fn fill_disks(&mut self, edge: usize) -> anyhow::Result<Vec<PathBuf>> {
        let root = self.cluster.directory.path().to_owned();
        let directory = self.cluster.edges[edge].directory();
        let mut disks = Vec::new();
        let process = self.cluster.edges[edge].process().context("the edge runs")?.id();
        disks.push(within(process, &root.join(directory).join("state")));
        if let Some(recorder) = &mut self.cluster.recorder {
            disks.push(within(recorder.process().id(), &root.join("kept")));
        }
        let fillers: Vec<PathBuf> = disks.iter().map(|disk| disk.join(FILLER)).collect();
        fillers.iter().try_for_each(|filler| fill(filler))?;
        Ok(fillers)
    }
}

/// A path in the mount namespace of a process.
///
/// `/proc/PID/root` shows the files as that process sees them, with its own mounts.
fn within(process: u32, path: &Path) -> PathBuf {
    let inside = PathBuf::from(format!("/proc/{process}/root"));
    inside.join(path.strip_prefix("/").unwrap_or(path))
}

/// Writes until the disk is full. Large pieces first, then single bytes, so that really no byte is
/// free.
fn fill(path: &Path) -> anyhow::Result<()> {
    let mut file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    for piece in [&[7; 1 << 16][..], &[7]] {
        loop {
            match file.write_all(piece) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(error).with_context(|| format!("cannot fill {}", path.display())),
            }
        }
    }
    Ok(())
}
