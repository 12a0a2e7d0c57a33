//! How an edge authenticates agents, and what each credential allows.
//!
//! A credential gives rights to the key that a wire was signed with. It is a token, which the agent proves, or a name in a
//! certificate that the edge's `ca` signed. Knows no socket.

use super::{
    proof::{self, Binding, Token, WireSide},
    security::{Credential, Security},
};
use marram_wire::rights::Rights;

/// Credentials of one edge. Each wire's proof is compared with all tokens.
pub const CREDENTIALS_MAX: usize = 256;

/// The name, in logs and refusals, of what a certificate allows where no credential is configured.
const CA: &str = "security.ca";

/// One configured credential, its token hashed already. At least one of `token` and `certificate`
/// should be set: with neither, no agent can hold it.
struct Known {
    name: String,
    token: Option<Token>,
    certificate: Option<String>,
    rights: Rights,
}

/// All credentials of an edge.
#[derive(Default)]
pub struct Credentials {
    known: Vec<Known>,
    /// Whether agents present certificates.
    ca: bool,
}

/// What an agent has presented.
pub(crate) struct Shown<'a> {
    /// The name of the credential with the token that it proved.
    pub(crate) token: Option<&'a str>,
    /// The names in its certificate.
    pub(crate) certificate: Option<&'a [String]>,
}

/// A token that an agent has proved.
pub(crate) struct Proved<'a> {
    /// The name of its credential.
    pub(crate) name: &'a str,
    token: &'a Token,
}

impl Proved<'_> {
    pub(crate) fn proof(&self, side: WireSide, binding: &Binding) -> [u8; proof::SIZE] {
        self.token.proof(side, binding)
    }
}

impl Credentials {
    /// The configured credentials of an edge.
    #[must_use]
    pub fn new(security: &Security) -> Self {
        let shared = security.token.as_deref().map(|token| Known {
            name: "security.token_file".into(),
            token: Some(Token::new(token)),
            certificate: None,
            rights: Rights::all(),
        });
        let known = |credential: &Credential| Known {
            name: credential.name.clone(),
            token: credential.token.as_deref().map(Token::new),
            certificate: credential.certificate.clone(),
            rights: credential.rights.clone(),
        };
        let known = shared.into_iter().chain(security.credentials.iter().map(known)).collect();
        Self { known, ca: security.ca_pem.is_some() }
    }

    /// Whether there is a token to compare an agent's with.
    #[must_use]
    pub fn has_tokens(&self) -> bool {
        self.known.iter().any(|known| known.token.is_some())
    }

    /// Whether an agent without a token can be admitted.
    #[must_use]
    pub fn admits_without_token(&self) -> bool {
        !self.has_tokens() || self.known.iter().any(|known| known.certificate.is_some())
    }

    /// Whether all agents must present a certificate, whatever their address.
    #[must_use]
    pub fn demands_certificate(&self) -> bool {
        self.ca
    }

    /// The token that the agent's proof matches.
    ///
    /// The agent does not name its credential: only its proof finds the token. That costs one keyed
    /// hash for each token of the edge.
    pub(crate) fn known(&self, binding: &Binding, shown: [u8; proof::SIZE]) -> Option<Proved<'_>> {
        let proves = |known: &&Known| {
            known.token.as_ref().is_some_and(|token| token.verify(WireSide::Agent, binding, shown))
        };
        let known = self.known.iter().find(proves)?;
        Some(Proved { name: &known.name, token: known.token.as_ref()? })
    }

    /// The rights and names of the credentials that an agent has presented; or why it is refused.
    ///
    /// An agent can hold several credentials at a time, one by its token and others by names of its
    /// certificate; their rights are added up. The text of a refusal is sent to the agent
    /// (`Goodbye`): it names what the agent has shown and no credential of the edge.
    pub(crate) fn admit(&self, shown: &Shown<'_>) -> Result<(String, Rights), String> {
        if self.ca && shown.certificate.is_none() {
            return Err(
                "the edge requires a certificate that its `security.ca` signed: give this agent certificate \
                and key"
                    .into(),
            );
        }
        let names = shown.certificate.unwrap_or_default();
        let holds = |known: &&Known| {
            (known.token.is_some() && shown.token == Some(known.name.as_str()))
                || known.certificate.as_ref().is_some_and(|name| names.contains(name))
        };
        let mut credential = String::new();
        let mut rights = Rights::default();
        for known in self.known.iter().filter(holds) {
            if !credential.is_empty() {
                credential.push_str(", ");
            }
            credential.push_str(&known.name);
            rights = rights.or(&known.rights);
        }
        if !credential.is_empty() {
            return Ok((credential, rights));
        }
        if self.known.is_empty() {
            // The signer of certificates has said who an agent is, and nothing of what it may do.
            let signed = || (CA.into(), Rights { client: true, ..Rights::default() });
            return Ok(if self.ca { signed() } else { (String::new(), Rights::all()) });
        }
        Err(match names {
            [] => "this agent presented no credential that the edge knows: give it the token of one \
                (`security.token_file`)"
                .into(),
            names => format!(
                "the edge knows no credential with a name of this agent's certificate ({}): add a [[credential]] with such a \
                 `certificate` to the edge, or give this agent another certificate or a token",
                names.join(", ")
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(name: &str, token: bool, certificate: Option<&str>, rights: Rights) -> Credential {
        let certificate = certificate.map(str::to_owned);
        Credential { name: name.into(), token: token.then(|| name.repeat(16)), certificate, rights }
    }

    fn client() -> Rights {
        Rights { client: true, ..Rights::default() }
    }

    fn origin() -> Rights {
        Rights { servers: vec!["origin".into()], ..Rights::default() }
    }

    #[test]
    fn what_is_allowed_is_what_was_shown() {
        let credentials = vec![
            credential("web", true, None, client()),
            credential("origin", true, None, origin()),
            credential("site", false, Some("site.example"), origin()),
        ];
        let mut security = Security { credentials, ..Security::default() };
        let of = |security: &Security, token: Option<&str>, names: Option<&[&str]>| {
            let names: Option<Vec<String>> =
                names.map(|names| names.iter().map(|name| name.to_string()).collect());
            Credentials::new(security).admit(&Shown { token, certificate: names.as_deref() })
        };
        assert_eq!(of(&security, Some("web"), None), Ok(("web".into(), client())));
        assert!(of(&security, None, None).is_err(), "neither token nor certificate");
        security.ca_pem = Some(Vec::new());
        assert!(of(&security, Some("web"), None).is_err(), "a certificate is demanded");
        assert_eq!(of(&security, Some("web"), Some(&["other"])), Ok(("web".into(), client())));
        assert_eq!(of(&security, None, Some(&["a", "site.example"])), Ok(("site".into(), origin())));
        assert!(of(&security, None, Some(&["site.example.org"])).is_err());
        let both = of(&security, Some("web"), Some(&["site.example"]));
        assert_eq!(both, Ok(("web, site".into(), client().or(&origin()))));
    }

    #[test]
    fn without_any_credential_a_certificate_makes_a_client_and_no_more() {
        let open = Credentials::new(&Security::default());
        assert_eq!(open.admit(&Shown { token: None, certificate: None }), Ok((String::new(), Rights::all())));
        let signed = Credentials::new(&Security { ca_pem: Some(Vec::new()), ..Security::default() });
        assert!(signed.admit(&Shown { token: None, certificate: None }).is_err());
        let names = [String::from("anything")];
        assert_eq!(
            signed.admit(&Shown { token: None, certificate: Some(&names) }),
            Ok(("security.ca".into(), client()))
        );
        let shared = Credentials::new(&Security { token: Some("t".into()), ..Security::default() });
        assert!(shared.has_tokens() && !shared.admits_without_token());
        assert!(shared.admit(&Shown { token: None, certificate: None }).is_err());
    }
}
