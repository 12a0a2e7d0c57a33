//! The names in a certificate that TLS has verified: a `[[credential]]` can name them, and logs show them.
//!
//! Parses only the necessary part of X.509's DER; a certificate that it cannot parse has no names. Verifies nothing.
//!
//! ```text
//! Certificate := SEQUENCE { tbs SEQUENCE { [0] version?, serial, algorithm, issuer, validity, SUBJECT,
//!                                          public key, [1]?, [2]?, [3] EXTENSIONS? }, ... }     (RFC 5280, 4.1)
//! ```
//!
//! A parser of its own, since the TLS library verifies certificates for a name and does not list
//! names. Each length is checked against the enclosing element, so that no input can make it read
//! elsewhere or loop.

/// Alternative names that are text: `rfc822Name`, `dNSName`, `uniformResourceIdentifier`, context-specific tags 1, 2 and 6.
const TEXT_NAMES: [u8; 3] = [0x81, 0x82, 0x86];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const OCTETS: u8 = 0x04;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// 2.5.29.17
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Names of one certificate; further ones are ignored.
const NAMES_MAX: usize = 64;

/// Iterates over DER elements.
/// Yields nothing more after a malformed element: an indefinite length (0x80, not allowed in DER),
/// a length of more than four bytes, or one that exceeds the input.
#[derive(Clone, Copy)]
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    /// The tag and the content of an element.
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (size, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (size, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (size.iter().fold(0, |size, byte| size << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (inner, rest) = rest.split_at_checked(size)?;
        self.0 = rest;
        Some((tag, inner))
    }
}

/// The content of the first element, if it has this tag.
fn inside(bytes: &[u8], wanted: u8) -> Option<&[u8]> {
    Elements(bytes).next().filter(|(tag, _)| *tag == wanted).map(|(_, inner)| inner)
}

/// The certificate's text alternative names, in order; then the common name of its subject.
pub(crate) fn names(der: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    // If parsing fails, the names found so far remain.
    let _ = read(der, &mut names);
    names.truncate(NAMES_MAX);
    names
}

fn read(der: &[u8], names: &mut Vec<String>) -> Option<()> {
    let certificate = inside(der, SEQUENCE)?;
    let signed = inside(certificate, SEQUENCE)?;
    let mut fields = Elements(signed).filter(|(tag, _)| *tag != VERSION);
    // Serial number, algorithm, issuer, validity.
    let (_, subject) = fields.nth(4)?;
    let extensions = fields.find(|(tag, _)| *tag == EXTENSIONS).map(|(_, inner)| inner);
    let extensions = extensions.and_then(|inner| inside(inner, SEQUENCE)).unwrap_or_default();
    for (_, extension) in Elements(extensions) {
        let mut parts = Elements(extension);
        if parts.next() == Some((OBJECT_ID, ALTERNATIVE_NAMES))
            && let Some((_, value)) = parts.find(|(tag, _)| *tag == OCTETS)
            && let Some(alternatives) = inside(value, SEQUENCE)
        {
            let texts = Elements(alternatives).filter(|(tag, _)| TEXT_NAMES.contains(tag));
            names.extend(texts.filter_map(|(_, name)| text(name)));
        }
    }
    for (tag, set) in Elements(subject) {
        for (_, attribute) in Elements(set).filter(|_| tag == SET) {
            let mut parts = Elements(attribute);
            if parts.next() == Some((OBJECT_ID, COMMON_NAME)) {
                names.extend(parts.next().and_then(|(_, name)| text(name)));
            }
        }
    }
    Some(())
}

/// Text that is safe in a log line.
fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let fits = !text.is_empty() && text.len() <= 256 && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    fn certificate(alternatives: Vec<SanType>, common: Option<&str>) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.subject_alt_names = alternatives;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common) = common {
            params.distinguished_name.push(DnType::OrganizationName, "a user");
            params.distinguished_name.push(DnType::CommonName, common);
        }
        let key = KeyPair::generate().expect("random");
        params.self_signed(&key).expect("signed").der().to_vec()
    }

    #[test]
    fn names_are_read_alternatives_first() {
        let text = |text: &str| text.try_into().expect("ASCII");
        let alternatives = vec![
            SanType::DnsName(text("web.example")),
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::URI(text("spiffe://example/web")),
        ];
        let der = certificate(alternatives, Some("Web"));
        assert_eq!(names(&der), ["web.example", "spiffe://example/web", "Web"]);
        assert_eq!(names(&certificate(Vec::new(), Some("a\nb"))), [] as [&str; 0]);
        assert_eq!(names(&certificate(Vec::new(), None)), [] as [&str; 0]);
    }

    #[test]
    fn what_is_cut_short_or_altered_is_read_without_harm() {
        let der = certificate(vec![SanType::DnsName("web.example".try_into().expect("ASCII"))], Some("Web"));
        for length in 0..der.len() {
            names(&der[..length]);
            let mut altered = der.clone();
            for byte in [0, 0x7f, 0x80, 0x84, 0xff] {
                altered[length] = byte;
                names(&altered);
            }
        }
    }
}
