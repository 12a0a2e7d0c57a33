//! What keeps a session beside its two ends: recorders, standbys, and the coordinator as a witness.
//! Each of them is killed or stopped, too.

mod recorder;
mod standby;
mod witness;
