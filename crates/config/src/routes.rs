//! Listeners, servers, and the rules that route between them, as agents and edges configure them: `[[route]]`, `[[listen]]`,
//! `[[gate]]`.
//!
//! The same rules come from three places, as the same type: the file, the admin API (`marram
//! route`, JSON) and an agent's reload on SIGHUP. Only an error's place differs:
//! [`WrittenRoute::resolve`] names the field, and a caller with a text adds the line.
//!
//! Matching is not here: the resolved [`RouteRule`] and its order are the session crate's
//! (`marram_session::agent::routes`).

use super::source::{Problem, Source};
use super::units::{Name, ServerAddress, Time, UnitError};
use marram_agent::{FLOWS_MAX, IDLE, Listener, Routing, ServerSettings, websocket::is_origin};
use marram_session::agent::routes::{
    BadPrefix, BadSource, KeySource, RouteAction, RouteError, RouteProtocol, RouteRule, ServerName,
};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use toml::Spanned;

/// Longest reason of a rule that refuses, in bytes.
const REASON_MAX: usize = 256;

/// A rule as written: in TOML as `[[route]]`, in JSON for the admin API.
///
/// All conditions that are there must hold; a rule without conditions matches every client. Exactly
/// one of `app` and `refuse` is there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRoute {
    /// The rule's name, for operators.
    pub name: String,
    /// The rule with the highest priority is tried first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// A listener's name or address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// The client's address: `"10.1.0.0/16"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// The client's port: `"1024-65535"`, or one port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_port: Option<String>,
    /// The protocol: `"tcp"`, `"udp"` or `"websocket"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// The TLS server that the client names: `"www.example.org"` or `"*.example.org"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sni: Option<String>,
    /// The client's first bytes, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bytes: Option<String>,
    /// The client's first bytes, as hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_bytes_hex: Option<String>,
    /// The app that it selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<String>,
    /// What the key of its clients is, if that app has one cell for each key: `"path"`, `"client/24"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Or the reason why it refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refuse: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// The wrong field of a rule, and what to write instead.
type Wrong = (&'static str, String);

fn wrong<T>(field: &'static str, what: impl Into<String>) -> Result<T, Wrong> {
    Err((field, what.into()))
}

impl WrittenRoute {
    /// The rule, resolved.
    ///
    /// # Errors
    /// The wrong field, and what to write instead.
    pub fn resolve(&self) -> Result<RouteRule, Wrong> {
        let name: Name = self.name.parse().map_err(|error: UnitError| ("name", error.to_string()))?;
        let client = self.client.as_ref().map(|text| text.parse()).transpose();
        let sni = match &self.sni {
            None => None,
            Some(text) => match ServerName::parse(text) {
                Some(name) => Some(name),
                None => {
                    return wrong(
                        "sni",
                        "is not a server's name; write \"www.example.org\" or \"*.example.org\"",
                    );
                }
            },
        };
        Ok(RouteRule {
            name: name.0,
            priority: self.priority,
            listener: self.listener.clone(),
            client: client.map_err(|error: BadPrefix| ("client", error.to_string()))?,
            client_port: self.client_port.as_deref().map(ports).transpose()?,
            protocol: self
                .protocol
                .as_deref()
                .map(protocol)
                .transpose()
                .map_err(|what| ("protocol", what))?,
            sni,
            first_bytes: self.first()?,
            action: self.action()?,
            key: self
                .key
                .as_deref()
                .map(str::parse)
                .transpose()
                .map_err(|bad: BadSource| ("key", bad.to_string()))?,
        })
    }

    /// The bytes, from either of the two fields. Their number is checked with the whole table of
    /// rules.
    fn first(&self) -> Result<Option<Vec<u8>>, Wrong> {
        match (&self.first_bytes, &self.first_bytes_hex) {
            (None, None) => Ok(None),
            (Some(text), None) => Ok(Some(text.clone().into_bytes())),
            (None, Some(digits)) => match bytes(digits) {
                Some(bytes) => Ok(Some(bytes)),
                None => wrong("first_bytes_hex", "is not two hexadecimal digits a byte, such as \"1603\""),
            },
            (Some(_), Some(_)) => wrong("first_bytes_hex", "conflicts with `first_bytes`; write one of them"),
        }
    }

    fn action(&self) -> Result<RouteAction, Wrong> {
        match (&self.app, &self.refuse) {
            (Some(app), None) => match app.parse::<Name>() {
                Ok(app) => Ok(RouteAction::App(app.0)),
                Err(error) => wrong("app", error.to_string()),
            },
            (None, Some(reason)) if reason.len() <= REASON_MAX => Ok(RouteAction::Refuse(reason.clone())),
            (None, Some(_)) => wrong("refuse", format!("is longer than {REASON_MAX} bytes; shorten it")),
            (None, None) => wrong("app", "is missing; write app = \"...\", or refuse = \"why\""),
            (Some(_), Some(_)) => wrong("refuse", "conflicts with `app`; write one of them"),
        }
    }
}

// For `marram route`: what is printed can be edited and sent back. First bytes with control
// characters become digits.
impl From<&RouteRule> for WrittenRoute {
    /// Converts back to the written form.
    fn from(rule: &RouteRule) -> Self {
        let text = rule.first_bytes.as_ref().and_then(|bytes| String::from_utf8(bytes.clone()).ok());
        let text = text.filter(|text| !text.chars().any(char::is_control));
        let hex = rule.first_bytes.as_ref().filter(|_| text.is_none());
        let (app, refuse) = match &rule.action {
            RouteAction::App(app) => (Some(app.clone()), None),
            RouteAction::Refuse(reason) => (None, Some(reason.clone())),
        };
        Self {
            name: rule.name.clone(),
            priority: rule.priority,
            listener: rule.listener.clone(),
            client: rule.client.map(|prefix| prefix.to_string()),
            client_port: rule.client_port.as_ref().map(|ports| format!("{}-{}", ports.start(), ports.end())),
            protocol: rule.protocol.map(|protocol| protocol.name().to_string()),
            sni: rule.sni.as_ref().map(ToString::to_string),
            first_bytes: text,
            first_bytes_hex: hex.map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
            app,
            key: rule.key.as_ref().map(ToString::to_string),
            refuse,
        }
    }
}

/// The error in one rule of several.
fn of_route(source: &Source, span: &Range<usize>, field: &str, what: String) -> Problem {
    Problem { field: Some(format!("route.{field}")), ..source.problem(span, what) }
}

/// The rules of a text.
pub(super) fn rules(source: &Source, written: &[Spanned<WrittenRoute>]) -> Result<Vec<RouteRule>, Problem> {
    let rule = |route: &Spanned<WrittenRoute>| {
        route.get_ref().resolve().map_err(|(field, what)| of_route(source, &route.span(), field, what))
    };
    written.iter().map(rule).collect()
}

/// The error in one of these rules, with its place in the text.
pub(super) fn blame(source: &Source, written: &[Spanned<WrittenRoute>], refused: RouteError) -> Problem {
    match written.get(refused.index) {
        Some(route) => of_route(source, &route.span(), refused.field, refused.what),
        None => source.complaint(refused.what),
    }
}

/// Resolves listeners together with their rules.
pub(super) fn routing(
    source: &Source,
    listeners: Vec<Listener>,
    written: &[Spanned<WrittenRoute>],
) -> Result<Routing, Problem> {
    let rules = rules(source, written)?;
    Routing::new(listeners, rules).map_err(|refused| blame(source, written, refused))
}

/// Reads a text that has rules and nothing else, for `marram route set`: they replace all rules of running edges.
///
/// # Errors
/// If one of them is wrong, if something else is in the text, or no list of rules at all: an empty one is written `route = []`.
///
/// A misspelt `[[route]]` must not count as a list of none. Listeners are not known here: a rule that names one which does not
/// exist passes, and is refused where the rules are put into use (`Routing::replace` in `marram-agent`).
pub fn read(source: &Source) -> Result<Vec<RouteRule>, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Outline {
        route: Option<Vec<Spanned<WrittenRoute>>>,
    }
    let outline: Outline = source.parse("edge")?;
    let none = || source.complaint("has no `[[route]]`; write `route = []` if there are to be none");
    let written = outline.route.ok_or_else(none)?;
    let rules = rules(source, &written)?;
    match marram_session::agent::routes::RouteTable::new(rules.clone()) {
        Ok(_) => Ok(rules),
        Err(refused) => Err(blame(source, &written, refused)),
    }
}

/// A listener's fields besides its address and app.
/// Common to an agent's `[[listen]]` and an edge's `[[gate]]`, which name the address differently.
#[derive(Deserialize, Default)]
pub(super) struct WrittenListener {
    pub(super) name: Option<Name>,
    pub(super) protocol: Option<Spanned<String>>,
    /// Datagrams only: a session ends after this time without one.
    pub(super) idle: Option<Spanned<Time>>,
    /// Datagrams only: clients at a time.
    pub(super) flows: Option<Spanned<usize>>,
    /// WebSocket only. Empty: pages of the listener's own host and port.
    #[serde(default)]
    pub(super) origins: Vec<Spanned<String>>,
    /// Streams only: the first bytes name the client, and are believed.
    pub(super) proxy_protocol: Option<Spanned<bool>>,
    /// What the key of its clients is, of an app with one cell for each key.
    pub(super) key: Option<Spanned<String>>,
}

impl WrittenListener {
    /// Resolves to the listener at this address, for this app.
    pub(super) fn resolve(
        self,
        source: &Source,
        address: SocketAddr,
        app: Name,
    ) -> Result<Listener, Problem> {
        let problem = |span: Range<usize>, what: &str| Err(source.problem(&span, what));
        let protocol = match &self.protocol {
            None => RouteProtocol::Tcp,
            Some(text) => protocol(text.get_ref()).map_err(|what| source.problem(&text.span(), what))?,
        };
        if protocol != RouteProtocol::Udp {
            let span = self.idle.as_ref().map(Spanned::span).or(self.flows.as_ref().map(Spanned::span));
            if let Some(span) = span {
                return problem(span, "is for datagrams; write protocol = \"udp\", or remove it");
            }
        }
        let proxy_protocol = self.proxy_protocol.as_ref().is_some_and(|on| *on.get_ref());
        if let Some(on) =
            self.proxy_protocol.as_ref().filter(|_| proxy_protocol && protocol == RouteProtocol::Udp)
        {
            return problem(
                on.span(),
                "is for streams; datagrams come directly from their clients, so remove it",
            );
        }
        if let Some(origin) = self.origins.iter().find(|_| protocol != RouteProtocol::WebSocket) {
            return problem(
                origin.span(),
                "are for browsers; write protocol = \"websocket\", or remove them",
            );
        }
        if let Some(origin) = self.origins.iter().find(|origin| !is_origin(origin.get_ref())) {
            let what = "is not an origin as browsers send it; write \"https://play.example.org\" (in lower case, \
                        with the port if it is not the scheme's, and no path), \"null\" or \"*\"";
            return problem(origin.span(), what);
        }
        let key = match &self.key {
            None => None,
            Some(written) => {
                let key: KeySource = written
                    .get_ref()
                    .parse()
                    .map_err(|bad: BadSource| source.problem(&written.span(), bad.to_string()))?;
                if let Some(what) = key.unfit_for(protocol) {
                    return problem(written.span(), what);
                }
                Some(key)
            }
        };
        let origins = self.origins.into_iter().map(Spanned::into_inner).collect();
        let idle = self.idle.as_ref().map_or(IDLE, |idle| idle.get_ref().0);
        let flows_max = self.flows.as_ref().map_or(FLOWS_MAX, |flows| *flows.get_ref());
        match (&self.idle, &self.flows) {
            (Some(written), _) if idle.is_zero() => {
                problem(written.span(), "must be more than zero; remove it for the default")
            }
            (_, Some(written)) if flows_max == 0 => {
                problem(written.span(), "admits no client; remove it for the default")
            }
            _ => {
                let name = self.name.map_or_else(|| address.to_string(), |name| name.0);
                Ok(Listener {
                    name,
                    address,
                    protocol,
                    app: app.0,
                    idle,
                    flows_max,
                    origins,
                    proxy_protocol,
                    key,
                })
            }
        }
    }
}

/// A server as written in a table: `"127.0.0.1:80"`, or `{ address = "127.0.0.1:80", proxy_protocol = true }`.
#[derive(Debug)]
pub(super) struct WrittenServer {
    peer: ServerAddress,
    proxy_protocol: bool,
}

impl<'de> Deserialize<'de> for WrittenServer {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ServerReader)
    }
}

/// Takes both forms. A visitor and not an untagged enum, whose errors would not say what is wrong
/// with either.
struct ServerReader;

impl<'de> Visitor<'de> for ServerReader {
    type Value = WrittenServer;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address of a server such as \"127.0.0.1:80\" or \"udp://127.0.0.1:53\", or a table such as { address = \"127.0.0.1:80\", proxy_protocol = true }")
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<WrittenServer, E> {
        let peer = text.parse().map_err(E::custom)?;
        Ok(WrittenServer { peer, proxy_protocol: false })
    }
    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<WrittenServer, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Table {
            address: ServerAddress,
            #[serde(default)]
            proxy_protocol: bool,
        }
        let Table { address, proxy_protocol } = Table::deserialize(MapAccessDeserializer::new(table))?;
        if proxy_protocol && address.datagrams {
            return Err(de::Error::custom("`proxy_protocol` is for servers that use streams; remove it"));
        }
        Ok(WrittenServer { peer: address, proxy_protocol })
    }
}

/// Resolves a table of servers.
pub(super) fn servers(written: BTreeMap<Name, WrittenServer>) -> Vec<ServerSettings> {
    let server = |(name, WrittenServer { peer, proxy_protocol })| ServerSettings {
        proxy_protocol,
        ..server(name, peer)
    };
    written.into_iter().map(server).collect()
}

/// Resolves one server.
pub(super) fn server(name: Name, peer: ServerAddress) -> ServerSettings {
    ServerSettings { name: name.0, address: peer.address.0, datagrams: peer.datagrams, proxy_protocol: false }
}

fn protocol(text: &str) -> Result<RouteProtocol, String> {
    let known = [RouteProtocol::Tcp, RouteProtocol::Udp, RouteProtocol::WebSocket]
        .into_iter()
        .find(|protocol| protocol.name() == text);
    known.ok_or_else(|| "is not a protocol; write \"tcp\", \"udp\" or \"websocket\"".to_string())
}

/// An empty range passes here; the table of rules refuses it (`RouteTable::new`).
pub(super) fn ports(text: &str) -> Result<RangeInclusive<u16>, Wrong> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (from.trim().parse(), to.trim().parse()) {
        (Ok(from), Ok(to)) => Ok(from..=to),
        _ => wrong("client_port", "is neither a port nor a range of them; write \"53\" or \"1024-65535\""),
    }
}

fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digits = digits.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = digits.as_chunks::<2>();
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_for_running_edges_has_rules_and_nothing_else() {
        let read =
            |text: &str| read(&Source::new("new.toml", text.into())).map_err(|error| error.to_string());
        let rule = "[[route]]\nname = \"r\"\napp = \"a\"\n";
        assert_eq!(read(rule).map(|rules| rules.len()), Ok(1));
        assert_eq!(read("route = []"), Ok(Vec::new()));
        for (text, expected) in [
            ("", "route = []"),
            ("[[routes]]\nname = \"r\"\napp = \"a\"\n", "routes"),
            (&format!("name = \"edge\"\n{rule}"), "name"),
            ("[[route]]\nname = \"r\"\n", "refuse = "),
            (&rule.repeat(2), "`route.name`"),
        ] {
            let refused = read(text).expect_err(text);
            assert!(refused.starts_with("new.toml") && refused.contains(expected), "{text}: {refused}");
        }
    }
}
