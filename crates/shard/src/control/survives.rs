//! Which failures a session survives, in words for operators.

use super::Control;
use crate::{
    api::{AppVersion, Backing, KeeperKind, KeeperRow, Protect, SessionRow, WitnessMode},
    coordinator::StoreEdge,
};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use marram_session::owner::OwnerPhase;

impl Control {
    /// Which failures a session survives, given where its ends run (docs/protocol.md, "Failure model").
    /// `store` is the edge that has the only copy of the coordinator's store, if one has it.
    pub(super) fn survives(&self, row: &SessionRow, store: Option<&StoreEdge>) -> Vec<String> {
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
        let backup = row.keepers.iter().find(|keeper| keeper.kind == KeeperKind::Backup);
        let mut lines = match row.protect {
            _ if row.cell.is_some() => with_backup(row.backing, backup, store),
            Protect::Epoch => with_backup(row.backing, backup, store),
            _ => Self::with_ends(row),
        };
        if row.cell.is_some() {
            let what = "note: a client whose agent fails, or that agent's host, leaves the cell (the gate of this edge, or of another \
                        one, counts as an agent); the other clients go on";
            lines.push(what.into());
            return lines;
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
        let version = AppVersion { app: row.app.clone(), image: row.image };
        if self.versions.get(&version).is_some_and(|app| app.witness != WitnessMode::None) {
            "note: there is no server end, and the coordinator is the witness: a client can go back only by what \
             it acknowledged in the last second, or did not acknowledge"
        } else {
            "note: there is no server end: a client that keeps an old copy of what its agent stores can go back to it"
        }
    }
}

/// Of a session whose outputs wait for a backup.
fn with_backup(
    backing: Option<Backing>,
    backup: Option<&KeeperRow>,
    store: Option<&StoreEdge>,
) -> Vec<String> {
    let mut lines: Vec<String> = match (backing, backup) {
        (Some(Backing::Backed), Some(backup)) => backed(backup, store),
        (Some(Backing::Alone), _) => alloc::vec![
            "ends with: the failure of this edge: it runs without a backup, until another edge is connected and has \
             all of it"
                .into()
        ],
        _ => alloc::vec![
            "note: its outputs wait: no edge is its backup. It continues once one has all of it, or without one after \
             `epoch.alone_after`; both need the coordinator"
                .into()
        ],
    };
    lines.push("survives: lost connections between its ends and edges".into());
    lines.push(
        "note: if its edge or its backup fails while the coordinator is away, it waits until that is back"
            .into(),
    );
    lines
}

/// Of one that has a backup. It waits when the edge fails that would have to decide that.
fn backed(backup: &KeeperRow, store: Option<&StoreEdge>) -> Vec<String> {
    let waits = |failed: &str| {
        alloc::format!(
            "note: if {failed} fails, it waits until that edge is back with its disk: the only copy of the \
             coordinator's store is there. Run `marram coordinator serve` on a third machine"
        )
    };
    match store {
        Some(StoreEdge::This) => {
            alloc::vec![alloc::format!("survives: the failure of its backup {backup}"), waits("this edge")]
        }
        Some(StoreEdge::Other(edge)) if *edge == backup.name => alloc::vec![
            alloc::format!("survives: the failure of this edge: its backup {backup} continues it"),
            waits("its backup")
        ],
        _ => alloc::vec![alloc::format!(
            "survives: the failure of this edge, or of its backup {backup}, but not of both at once"
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_waits_when_the_edge_fails_that_has_the_only_store() {
        let backup = KeeperRow { name: "b".into(), kind: KeeperKind::Backup, progress: None };
        let other = |edge: &str| Some(StoreEdge::Other(edge.into()));
        for (store, survives, waits_for) in [
            (None, "this edge, or of its backup b", None),
            (other("c"), "this edge, or of its backup b", None),
            (other("b"), "this edge: its backup b", Some("its backup")),
            (Some(StoreEdge::This), "its backup b", Some("this edge")),
        ] {
            let lines = with_backup(Some(Backing::Backed), Some(&backup), store.as_ref());
            assert!(
                lines[0].starts_with(&alloc::format!("survives: the failure of {survives}")),
                "{lines:?}"
            );
            let waits = lines.iter().find(|line| line.contains("marram coordinator serve"));
            let said = waits_for.map(|edge| alloc::format!("note: if {edge} fails, it waits"));
            assert_eq!(waits.is_some(), said.is_some(), "{lines:?}");
            assert!(waits.zip(said).is_none_or(|(waits, said)| waits.starts_with(&said)), "{lines:?}");
        }
    }
}
