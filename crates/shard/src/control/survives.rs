//! Which failures a session survives, in words for operators.

use super::Control;
use crate::api::{Protect, SessionRow, WitnessMode};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::OwnerPhase;

impl Control {
    /// Which failures a session survives, given where its ends run (docs/protocol.md, "Failure model").
    pub(super) fn survives(&self, row: &SessionRow) -> Vec<String> {
        if row.protect == Protect::None {
            return alloc::vec![
                "ends with: the failure of this edge or of a connection: protect = \"none\" keeps nothing"
                    .into()
            ];
        }
        if row.phase == OwnerPhase::Following {
            return alloc::vec![
                "note: this edge stands by for the session; its owner shows what it survives".into()
            ];
        }
        let mut lines = alloc::vec![
            "survives: any number of edges and whole sites: log, messages and checkpoints are at its ends; one edge \
             that both ends reach is enough to continue"
                .to_string(),
            "survives: lost connections between its ends and edges".to_string(),
        ];
        if matches!(row.protect, Protect::Warm | Protect::Hot) {
            lines.push(match row.keepers.iter().find(|keeper| keeper.can_take_over()) {
                Some(keeper) => alloc::format!(
                    "survives: the failure of this edge, without a rebuild: {keeper} \
                    continues it"
                ),
                None => {
                    "note: no edge stands by now; if this edge fails, the session is rebuilt from its ends"
                        .into()
                }
            });
        }
        if row.client_in_gate || row.server_in_gate {
            lines.push("ends with: the failure of this edge: an end runs in its gate".into());
        }
        let ends = if row.server.is_some() {
            "the client's agent or the server's agent"
        } else {
            "the client's agent"
        };
        lines.push(alloc::format!(
            "ends with: the failure of {ends}, or of its host: an end runs there (another edge's gate counts as an \
             agent)"
        ));
        if row.server.is_none() {
            let watched = self.images.get(&row.image).is_some_and(|app| app.witness != WitnessMode::None);
            lines.push(if watched {
                "note: there is no server end, and the coordinator is the witness: a client can go back only by what \
                 it acknowledged in the last second, or did not acknowledge"
                    .into()
            } else {
                "note: there is no server end: a client that keeps an old copy of what its agent stores can go back to it".into()
            });
        }
        lines
    }
}
