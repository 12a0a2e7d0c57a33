//! Which failures a session survives, in words for operators.

use super::Control;
use crate::api::{Backing, KeeperKind, Protect, SessionRow, WitnessMode};
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
        let mut lines = if row.protect == Protect::Epoch { with_backup(row) } else { Self::with_ends(row) };
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
        if row.server.is_none() && row.protect != Protect::Epoch {
            lines.push(self.witnessed(row).into());
        }
        lines
    }

    /// Of a session whose ends keep all that a recovery needs.
    fn with_ends(row: &SessionRow) -> Vec<String> {
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
        lines
    }

    fn witnessed(&self, row: &SessionRow) -> &'static str {
        if self.images.get(&row.image).is_some_and(|app| app.witness != WitnessMode::None) {
            "note: there is no server end, and the coordinator is the witness: a client can go back only by what \
             it acknowledged in the last second, or did not acknowledge"
        } else {
            "note: there is no server end: a client that keeps an old copy of what its agent stores can go back to it"
        }
    }
}

/// Of a session whose outputs wait for a backup.
fn with_backup(row: &SessionRow) -> Vec<String> {
    let backup = row.keepers.iter().find(|keeper| keeper.kind == KeeperKind::Backup);
    let first = match (row.backing, backup) {
        (Some(Backing::Backed), Some(keeper)) => alloc::format!(
            "survives: the failure of this edge, or of its backup {keeper}, but not of both at once"
        ),
        (Some(Backing::Alone), _) => "ends with: the failure of this edge: it runs without a backup, until another edge is \
                                      connected and has all of it"
            .into(),
        _ => "note: its outputs wait: no edge is its backup. It continues once one has all of it, or without one after \
              `epoch.alone_after`; both need the coordinator"
            .into(),
    };
    alloc::vec![
        first,
        "survives: lost connections between its ends and edges".to_string(),
        "note: if its edge or its backup fails while the coordinator is away, it waits until that is back"
            .to_string(),
    ]
}
