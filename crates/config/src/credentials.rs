//! An edge's `[[credential]]` tables: further tokens and certificates besides `security.token_file`, and what each allows.
//!
//! A credential is held by an agent that shows its token or certificate. An agent may hold several,
//! and then has the rights of all (`Credentials::admit` in `marram-transport`), so each table can
//! be read alone.
//!
//! What is refused here could not be told apart later: two credentials with one name look alike in
//! logs, and two with one token are one.

use super::shared;
use super::source::{Problem, Source};
use super::units::Name;
use marram_transport::{CREDENTIALS_MAX, Credential, Security};
use marram_wire::rights::Rights;
use serde::Deserialize;
use toml::Spanned;

/// A `[[credential]]` table: exactly one of `token_file` and `certificate`, and something that it
/// allows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenCredential {
    name: Name,
    token_file: Option<Spanned<String>>,
    /// A name in the agent's certificate: an alternative name or the subject's common name,
    /// compared as a whole.
    certificate: Option<Spanned<String>>,
    /// "server" may be written, and is implied by `servers`.
    #[serde(default)]
    roles: Vec<Spanned<String>>,
    #[serde(default)]
    servers: Vec<Name>,
}

/// Reads all of them; `security` has the edge's own token and certificates.
/// Several certificate credentials may have one name: then their rights add up.
pub(super) fn resolve(
    source: &Source,
    written: Vec<Spanned<WrittenCredential>>,
    security: &Security,
) -> Result<Vec<Credential>, Problem> {
    let mut credentials: Vec<Credential> = Vec::new();
    for table in written {
        let span = table.span();
        let credential = table.into_inner().resolve(source, &span, security)?;
        if credentials.len() >= CREDENTIALS_MAX {
            let what = format!("is one credential too many; an edge has {CREDENTIALS_MAX} at most");
            return Err(source.problem(&span, what));
        }
        if credentials.iter().any(|other| other.name == credential.name) {
            let what = format!("duplicates the credential `{}`; remove one or rename it", credential.name);
            return Err(source.problem(&span, what));
        }
        let others = credentials.iter().map(|other| other.token.as_ref()).chain([security.token.as_ref()]);
        let shares = |token: &String| others.flatten().any(|other| other == token);
        if credential.token.as_ref().is_some_and(shares) {
            let what = format!(
                "`{}` has the token of another credential, or of `security.token_file`; give it its own, since only \
                 the token distinguishes them",
                credential.name
            );
            return Err(source.problem(&span, what));
        }
        credentials.push(credential);
    }
    Ok(credentials)
}

impl WrittenCredential {
    fn resolve(
        self,
        source: &Source,
        span: &std::ops::Range<usize>,
        security: &Security,
    ) -> Result<Credential, Problem> {
        let Self { name, token_file, certificate, roles, servers } = self;
        match (&token_file, &certificate) {
            (None, None) => {
                let what = "has neither a token nor a certificate; name a token with `token_file`, or a name in \
                    agents' certificates with `certificate`";
                return Err(source.problem(span, what));
            }
            (Some(_), Some(certificate)) => {
                let what = "belongs into a separate credential: one has either `token_file` or `certificate`";
                return Err(source.problem(&certificate.span(), what));
            }
            (None, Some(certificate)) if security.ca_pem.is_none() => {
                let what = "has no effect, since agents present no certificates; name their signer with `security.ca`";
                return Err(source.problem(&certificate.span(), what));
            }
            _ => {}
        }
        let mut rights =
            Rights { servers: servers.into_iter().map(|name| name.0).collect(), ..Rights::default() };
        for role in roles {
            match role.get_ref().as_str() {
                "client" => rights.client = true,
                "recorder" => rights.recorder = true,
                "edge" => rights.edge = true,
                "server" if rights.servers.is_empty() => {
                    let what = "needs the names of the servers; write servers = [\"origin\"]";
                    return Err(source.problem(&role.span(), what));
                }
                "server" => {}
                // A likely mistake: the admin API's tokens are a separate system, since operators
                // are no agents.
                "operator" => {
                    let what = "is not a role of agents; operators use the token of `admin.token_file`";
                    return Err(source.problem(&role.span(), what));
                }
                _ => {
                    let what = "is not a role; there are \"client\", \"server\" (with `servers`), \"recorder\" and \
                        \"edge\"";
                    return Err(source.problem(&role.span(), what));
                }
            }
        }
        if rights.is_empty() {
            let what = format!(
                "`{}` allows nothing; write roles = [\"client\"], or servers = [\"origin\"] for a server's agent",
                name.0
            );
            return Err(source.problem(span, what));
        }
        let token = token_file.as_ref().map(|path| shared::token(source, path)).transpose()?;
        let certificate = certificate.map(Spanned::into_inner);
        Ok(Credential { name: name.0, token, certificate, rights })
    }
}
