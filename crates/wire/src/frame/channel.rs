//! Which channel a frame is said on, and which side may say it there.

use super::{Channel, Frame};

/// A side of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaker {
    /// An agent, for one of its ends; or a keeper.
    End,
    /// An edge.
    Edge,
}

impl Frame {
    /// The open channel that this frame is said on. None for frames that are about the wire or open a channel, and for
    /// those that `speaker` never says.
    #[must_use]
    pub fn channel(&self, speaker: Speaker) -> Option<Channel> {
        let (only, channel) = match self {
            Self::Greet(_)
            | Self::Welcome(_)
            | Self::Goodbye(_)
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::Drain(_)
            | Self::Hello(_)
            | Self::Promise(_)
            | Self::Keeper(_)
            | Self::Keep(_)
            | Self::Recall(_) => return None,

            Self::Promised(frame) => (Some(Speaker::End), frame.channel),
            Self::Input(frame) => (Some(Speaker::End), frame.channel),
            Self::Stored(frame) => (Some(Speaker::End), frame.channel),
            Self::Replayed(frame) => (Some(Speaker::End), frame.channel),
            Self::Superseded(frame) => (Some(Speaker::End), frame.channel),
            Self::Finished(frame) => (Some(Speaker::End), frame.channel),
            Self::Kept(frame) => (Some(Speaker::End), frame.channel),
            Self::Recalled(frame) => (Some(Speaker::End), frame.channel),
            Self::KeptInput(frame) => (Some(Speaker::End), frame.channel),

            Self::Chosen(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Output(frame) => (Some(Speaker::Edge), frame.channel),
            Self::LogOnly(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Truncate(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Base(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Fed(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Acknowledged(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Renewed(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Standby(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Failed(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Finish(frame) => (Some(Speaker::Edge), frame.channel),
            Self::Fetch(frame) => (Some(Speaker::Edge), frame.channel),

            Self::LogPart(frame) => (None, frame.channel),
            Self::CheckpointBegin(frame) => (None, frame.channel),
            Self::CheckpointPart(frame) => (None, frame.channel),
            Self::Credit(frame) => (None, frame.channel),
            Self::Ended(frame) => (None, frame.channel),
            Self::Reject(frame) => (None, frame.channel),
        };
        only.is_none_or(|only| only == speaker).then_some(channel)
    }
}
