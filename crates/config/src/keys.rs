//! The `[[key]]` tables of an edge: private keys that it signs with for cells. Refuses keys that other users can read, and, if
//! agents may connect unencrypted, keys that do not explicitly allow that.
//!
//! The danger of unencrypted wires: a cell that ends TLS draws its random bytes from the seed in
//! the log. After a recovery an uncommitted input may come in another order, and the same nonce may
//! encrypt another text (`docs/protocol.md`, chapter 21, point 4; `docs/decisions/signing.md`).

use super::shared;
use super::source::{Problem, Source};
use super::units::Name;
use marram_node::keys::{self, Key};
use serde::Deserialize;
use std::os::unix::fs::PermissionsExt;
use toml::Spanned;

/// A `[[key]]` table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenKey {
    /// For logs; images name the public key.
    name: Name,
    file: Spanned<String>,
    /// Which apps may have it used: a deployed app gets no key because its manifest asks for one.
    apps: Spanned<Vec<Name>>,
    /// Allows the combination that is refused otherwise.
    #[serde(default)]
    insecure_plain: bool,
}

/// Reads all of them. `plain`: whether agents may connect to this edge unencrypted from anywhere.
pub(super) fn resolve(
    source: &Source,
    written: Vec<Spanned<WrittenKey>>,
    plain: bool,
) -> Result<Vec<Key>, Problem> {
    let mut keys: Vec<Key> = Vec::new();
    for written in written {
        let span = written.span();
        let written = written.into_inner();
        if plain && !written.insecure_plain {
            let what = "signs for encrypted connections, and `security.insecure_plain` allows unencrypted wires: \
                        after a recovery, an eavesdropper may see two records of one connection under one nonce, and \
                        break its encryption; remove that setting, or write `insecure_plain = true` here as well";
            return Err(source.problem(&span, what));
        }
        let key = written.resolve(source)?;
        if let Some(other) = keys.iter().find(|other| other.id == key.id || other.name == key.name) {
            let what = format!("has the key or the name of `{}`; remove one of the two", other.name);
            return Err(source.problem(&span, what));
        }
        keys.push(key);
    }
    Ok(keys)
}

// The group may have access, unlike with an agent's key: more programs than this edge may need the
// same key.
impl WrittenKey {
    fn resolve(self, source: &Source) -> Result<Key, Problem> {
        let place = source.path(self.file.get_ref());
        // If the metadata cannot be read, reading the file fails too, and its error is reported below.
        if std::fs::metadata(&place).is_ok_and(|file| file.permissions().mode() & 0o007 != 0) {
            let what = format!(
                "names {0}, which every user of this machine can use; `chmod o= {0}`",
                place.display()
            );
            return Err(source.problem(&self.file.span(), what));
        }
        if self.apps.get_ref().is_empty() {
            return Err(
                source.problem(&self.apps.span(), "names no app, so none could use the key; name one")
            );
        }
        let pem = shared::file(source, &self.file)?;
        let (id, _) = keys::read(&pem)
            .map_err(|why| source.problem(&self.file.span(), format!("names a file that {why}")))?;
        let apps = self.apps.into_inner().into_iter().map(|app| app.0).collect();
        Ok(Key { name: self.name.0, pem, id, apps })
    }
}
