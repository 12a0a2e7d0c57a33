//! The owner's behaviour: the frames and effects that go in and come out.

mod allowance;
mod apart;
mod bench;
mod budget;
mod covering;
mod ending;
mod keeping;
mod kept;
mod leaving;
mod live;
mod opening;
mod pages;
mod pausing;
mod protecting;
mod quotas;
mod reads;
mod recording;
mod recovery;
mod restoring;
mod room;
mod running;
mod share;
mod show;
mod taking;
mod tasks;
mod witness;
