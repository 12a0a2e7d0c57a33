//! The end's behaviour, told by the frames that it is sent and the effects that come out.

mod bench;
mod keeping;
mod messages;
mod promising;
mod receiving;
