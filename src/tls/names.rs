//! Certificate names: the identities that a certificate carries.

use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// The most names of a certificate that are read.
const MAX_NAMES: usize = 64;
/// The longest name that is read, in bytes.
const MAX_NAME: usize = 512;

/// The subject alternative names of a certificate that one of the listener's authorities has
/// signed. Each is `dns:`, `uri:` or `email:` and the name, in the certificate's order. DNS names
/// are in lower case. The certificate's subject is not used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateNames(Vec<String>);

impl CertificateNames {
    /// The names of a certificate; empty when they cannot be read.
    pub fn of(cert: &CertificateDer<'_>) -> Self {
        let Ok((_, cert)) = parse_x509_certificate(cert) else { return Self::default() };
        let Ok(Some(extension)) = cert.subject_alternative_name() else { return Self::default() };
        let names = extension.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(format!("dns:{}", name.to_ascii_lowercase())),
            GeneralName::URI(name) => Some(format!("uri:{name}")),
            GeneralName::RFC822Name(name) => Some(format!("email:{name}")),
            _ => None,
        });
        Self(names.filter(|name| name.len() <= MAX_NAME).take(MAX_NAMES).collect())
    }

    /// The names in the certificate's order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    #[test]
    fn names_are_told_apart_by_their_kind() {
        let mut params = CertificateParams::new(["Trainer.Example.com".to_owned()]).unwrap();
        let uri = "spiffe://example.com/ns/a".try_into().unwrap();
        let email = "ops@example.com".try_into().unwrap();
        params.subject_alt_names.extend([SanType::URI(uri), SanType::Rfc822Name(email)]);
        params.subject_alt_names.push(SanType::IpAddress([10, 0, 0, 1].into()));
        let cert = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let names: Vec<String> = CertificateNames::of(cert.der()).iter().map(str::to_owned).collect();
        assert_eq!(
            names,
            ["dns:trainer.example.com", "uri:spiffe://example.com/ns/a", "email:ops@example.com"]
        );
    }

    #[test]
    fn what_is_no_certificate_names_nobody() {
        for bytes in [&b""[..], b"\x30\x03\x02\x01\x01", &[0xff; 300]] {
            assert_eq!(CertificateNames::of(&CertificateDer::from(bytes)).iter().count(), 0);
        }
        let bare = CertificateParams::new(Vec::<String>::new()).unwrap();
        let cert = bare.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(CertificateNames::of(cert.der()), CertificateNames::default());
    }
}
