//! The end's behaviour: the frames that it receives and the effects that it returns.

mod bench;
mod keeping;
mod messages;
mod promising;
mod receiving;
