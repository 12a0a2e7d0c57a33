//! The channel of each frame, and the side that may send it.

use super::{Channel, Frame};

/// A side of a wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// An agent, for one of its ends; or a keeper.
    End,
    /// An edge.
    Edge,
}

impl Frame {
    /// The open channel that this frame belongs to. None for frames that concern the wire or open a channel, and for frames that
    /// `sender` must not send.
    #[must_use]
    pub fn channel(&self, sender: Sender) -> Option<Channel> {
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
            | Self::Edges(_)
            | Self::StoreSeen(_)
            | Self::Keep(_)
            | Self::KeepOn(_)
            | Self::AskMove(_)
            | Self::Epoch(_)
            | Self::Confirmed(_)
            | Self::Backup(_)
            | Self::HandGroup(_)
            | Self::ForgetCopy(_)
            | Self::Recall(_) => return None,

            Self::Promised(frame) => (Some(Sender::End), frame.channel),
            Self::Input(frame) => (Some(Sender::End), frame.channel),
            Self::Stored(frame) => (Some(Sender::End), frame.channel),
            Self::Allowance(frame) => (Some(Sender::End), frame.channel),
            Self::Protected(frame) => (Some(Sender::End), frame.channel),
            Self::Replayed(frame) => (Some(Sender::End), frame.channel),
            Self::Superseded(frame) => (Some(Sender::End), frame.channel),
            Self::Finished(frame) => (Some(Sender::End), frame.channel),
            Self::Kept(frame) => (Some(Sender::End), frame.channel),
            Self::Recalled(frame) => (Some(Sender::End), frame.channel),
            Self::CanMove(frame) => (Some(Sender::End), frame.channel),
            Self::AskHandOver(frame) => (Some(Sender::End), frame.channel),
            Self::KeptInput(frame) => (Some(Sender::End), frame.channel),

            Self::Chosen(frame) => (Some(Sender::Edge), frame.channel),
            Self::Output(frame) => (Some(Sender::Edge), frame.channel),
            Self::LogOnly(frame) => (Some(Sender::Edge), frame.channel),
            Self::Truncate(frame) => (Some(Sender::Edge), frame.channel),
            Self::Base(frame) => (Some(Sender::Edge), frame.channel),
            Self::Fed(frame) => (Some(Sender::Edge), frame.channel),
            Self::Acknowledged(frame) => (Some(Sender::Edge), frame.channel),
            Self::HandOver(frame) => (Some(Sender::Edge), frame.channel),
            Self::JoinGroup(frame) => (Some(Sender::Edge), frame.channel),
            Self::Renewed(frame) => (Some(Sender::Edge), frame.channel),
            Self::Standby(frame) => (Some(Sender::Edge), frame.channel),
            Self::Lead(frame) => (Some(Sender::Edge), frame.channel),
            Self::Failed(frame) => (Some(Sender::Edge), frame.channel),
            Self::Finish(frame) => (Some(Sender::Edge), frame.channel),
            Self::Fetch(frame) => (Some(Sender::Edge), frame.channel),
            Self::ProtectNow(frame) => (Some(Sender::Edge), frame.channel),
            Self::Unprotect(frame) => (Some(Sender::Edge), frame.channel),
            Self::RunsAhead(frame) => (Some(Sender::Edge), frame.channel),

            Self::LogPart(frame) => (None, frame.channel),
            Self::CheckpointBegin(frame) => (None, frame.channel),
            Self::CheckpointPart(frame) => (None, frame.channel),
            Self::Credit(frame) => (None, frame.channel),
            Self::Ended(frame) => (None, frame.channel),
            Self::Reject(frame) => (None, frame.channel),
        };
        only.is_none_or(|only| only == sender).then_some(channel)
    }
}
