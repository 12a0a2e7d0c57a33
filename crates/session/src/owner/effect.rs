//! What an owner gets and asks for at each step: the time, and actions for the shard.

use super::{ClientProgress, KeeperId, RecordRequest};
use crate::{
    cell::{CellId, CellImage, CheckpointBase, Run, Seed},
    replay::Gathered,
};
use alloc::{boxed::Box, string::String, vec::Vec};
use bytes::Bytes;
use marram_wire::{
    frame::{CheckpointMeta, Code, Frame},
    header::Header,
    id::{Generation, Port, SessionId},
    seal::Seal,
};

/// Both clocks of the machine, read once a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Monotonic, in nanoseconds from any origin.
    pub mono_ns: u64,
    /// Since the Unix epoch, in nanoseconds; may jump.
    pub unix_ns: i64,
}

/// An action for the shard to carry out.
#[derive(Clone, Debug)]
pub enum OwnerEffect {
    /// Send this to the end at this port, if it is linked.
    Send(Port, Frame),
    /// Start a cell.
    Start(CellImage, Seed),
    /// Start a cell from checkpoints: a full one and its deltas. Their bytes follow. The cell runs only after this is
    /// answered and a log is chosen. It is removed if no log is chosen.
    Restore(CellImage, Vec<CheckpointMeta>),
    /// The next bytes of the checkpoints that [`OwnerEffect::Restore`] named, sealed. No part contains bytes of two of
    /// them.
    Part(Bytes),
    /// The next checkpoint of a cell that was restored and has not run: a delta on the last one. Its bytes follow.
    /// Answered as [`OwnerEffect::Restore`].
    Advance(CellId, CheckpointMeta),
    /// Run a handler.
    Run(Run),
    /// Copy most of the cell's state while it runs, so that [`OwnerEffect::Copy`] on this base takes a short time. Answered
    /// by [`super::Owner::prepared`].
    Prepare(CellId, CheckpointBase),
    /// Copy the cell's state, as it is now.
    Copy(CellId, CheckpointBase),
    /// No checkpoint is taken, for this reason. Reported once, until one is taken.
    NoCheckpoint(String),
    /// Deltas are merged because no full checkpoint fits, for this reason. Reported once, until one is
    /// held.
    MergesDeltas(String),
    /// Encode the last copy and seal it after this header.
    Checkpoint(CellId, Box<Header>, Seal),
    /// Hash the cell's state, as it is now, for the recording that follows.
    Hash(CellId),
    /// The session as it was when the ends were asked, or the reason why there is no recording of it.
    Recorded(RecordRequest, Result<Box<Gathered>, String>),
    /// Send this to a keeper.
    ToKeeper(KeeperId, Frame),
    /// A keeper stopped keeping the session, for this reason. Nothing waits for it.
    KeeperLost(KeeperId, Code, String),
    /// Something happened that no epoch of the session's group has yet: end one, and call [`super::Owner::end_epoch`].
    EpochDue,
    /// A hot standby replays too slowly; [`OwnerEffect::KeeperLost`] follows.
    StandbySlow(KeeperId),
    /// Send this to the owner or recorder that feeds this standby.
    ToFeeder(Frame),
    /// The owner that feeds this standby has handed the session over, everything that was fed is replayed, and a strict witness has
    /// answered: open a generation.
    TakeOver,
    /// Ask the witness what the client has acknowledged; answered by [`super::Owner::witnessed`] with this generation. Of a standby it is
    /// the one that it follows.
    AskWitness(Generation),
    /// Report to the witness what the client has. Nothing waits for it.
    Report(ClientProgress),
    /// The session continues although the witness is unavailable.
    WitnessMissing,
    /// The cell is not needed any more.
    Remove(CellId),
    /// Open another generation, newer than this count: another attempt interfered, or the cell cannot be kept.
    Reopen(u64),
    /// Ask the end of the shared cell's client, or server, with this session for its promise, if it can be reached, under a generation that is newer than
    /// this count.
    AskPort(SessionId, u64),
    /// The shared cell is not connected to this server any more, or has not reached it, for this reason. The code is `Finished` if that is as
    /// the cell and the server wanted it.
    ConnectionOver(String, Code, String),
    /// The shared cell's client with this session has stopped the cell, for this reason, and is expelled. The cell goes on.
    Expelled(SessionId, String),
    /// The owner no longer has the session. The next request for the session opens a new generation.
    Done(Code, String),
}
