//! Identity sections: certificates of clients, identity providers and operators, as written.

pub mod audit;
pub(in crate::config) mod client_tls;
pub(in crate::config) mod credentials;
pub mod key_files;
pub(in crate::config) mod oidc;
pub(in crate::config) mod operator_oidc;
pub mod tls;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::sections::identity::tls::TlsSection;
use crate::config::settings::identity::OperatorRole;
use crate::config::syntax::named::NamedEntries;
use crate::config::syntax::units::{ByteSize, Span};

/// The scope without which a provider gives no token that says who somebody is.
pub(in crate::config) const OPENID: &str = "openid";

/// A certificate that speaks for a tenant, by one of its subject alternative
/// names: exactly one of `dns`, `uri` and `email`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClientCertSection {
    /// A DNS name, such as `trainer.example.com`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// A URI, such as `spiffe://example.com/ns/research/sa/notebook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// An e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// The class of requests that ask for none; absent = the tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// The classes it may use, of the tenant's; absent = all of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
    /// The models it may use, of the tenant's; absent = all of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
}

/// An identity provider whose tokens (JWT) are taken in place of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::oidc)]
pub struct OidcSection {
    /// The provider's name for itself: the claim `iss` of its tokens, letter
    /// by letter.
    pub issuer: String,
    /// Audiences; the claim `aud` of a token must have one of them.
    pub audience: Vec<String>,
    /// Where its public keys are; absent = where
    /// `<issuer>/.well-known/openid-configuration` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Path of a PEM file with the authorities of the provider's own
    /// certificate; absent = those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// The claim that says who the work is for; with dots it is a claim
    /// inside a claim. Of a list the first entry of `tenants` counts that is
    /// in it.
    pub tenant_claim: String,
    /// Values of that claim, each with its tenant; absent = the value is the
    /// tenant's name.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub tenants: NamedEntries<String>,
    /// The claim with the classes that the token may use, of the tenant's: a
    /// list, or a text with spaces between. A token without it is refused;
    /// absent = all of the tenant's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_claim: Option<String>,
    /// The same for models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_claim: Option<String>,
    /// How tokens may be signed.
    pub algorithms: Vec<Algorithm>,
    /// How far the provider's clock may be off.
    pub leeway: Span,
    /// Bytes of the longest token that is looked at.
    pub max_token: ByteSize,
}

impl Default for OidcSection {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            audience: Vec::new(),
            jwks_url: None,
            ca_file: None,
            tenant_claim: "tenant".to_owned(),
            tenants: NamedEntries::default(),
            class_claim: None,
            model_claim: None,
            algorithms: vec![Algorithm::Rs256, Algorithm::Es256],
            leeway: Span::secs(30),
            max_token: ByteSize(8 << 10),
        }
    }
}

/// A way of signing with a private key. Those with a shared secret are not
/// among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Algorithm {
    /// RSA with PKCS #1 padding and SHA-256.
    Rs256,
    /// RSA with PKCS #1 padding and SHA-384.
    Rs384,
    /// RSA with PKCS #1 padding and SHA-512.
    Rs512,
    /// RSA-PSS with SHA-256.
    Ps256,
    /// RSA-PSS with SHA-384.
    Ps384,
    /// RSA-PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

/// How many failed attempts an address (of IPv6: a /64) may make. After that
/// it is told to come back later; what is valid always passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FailuresSection {
    /// So many at once.
    #[schemars(range(min = 1))]
    pub burst: u32,
    /// So many more in each minute; 0 = no limit at all.
    pub per_minute: u32,
}

impl Default for FailuresSection {
    fn default() -> Self {
        Self { burst: 20, per_minute: 30 }
    }
}

/// The operators' listener (`server.admin`): its certificate, and who may do
/// what there.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminSection {
    /// Its TLS; absent = none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSection>,
    /// Who may do what.
    pub auth: AdminAuthSection,
}

/// Who may do what at the operators' listener. Without a token, a
/// certificate and `oidc` everybody who can connect may do everything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminAuthSection {
    /// Operators' tokens. `penstock keys new` makes one.
    pub tokens: Vec<AdminTokenSection>,
    /// Operators' certificates, of the authorities in `admin.tls.client_ca`.
    pub client_certs: Vec<AdminCertSection>,
    /// The identity provider whose tokens (JWT) are taken beside these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<AdminOidcSection>,
    /// Whether callers from a loopback address need no token. Absent = only
    /// while there are no tokens, no certificates and no `oidc`. Sidecars, `kubectl
    /// port-forward` and SSH tunnels connect from loopback, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loopback: Option<bool>,
    /// Whether `/metrics` needs no token.
    pub open_metrics: bool,
    /// Names under which callers without a token may ask, beside addresses,
    /// `localhost`, names without a dot and names in `.local`, `.internal`,
    /// `.svc` and `.test`. Any other name in `Host` is refused: the page of
    /// another site could ask under a name of its own.
    pub hosts: Vec<String>,
}

/// The identity provider of operators: its tokens (JWT) are taken at the
/// operators' listener, and the console signs in there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::admin_oidc)]
pub struct AdminOidcSection {
    /// The provider's name for itself: the claim `iss` of its tokens, letter
    /// by letter.
    pub issuer: String,
    /// The console's id at the provider, as a public client with PKCE and the
    /// redirect URI `<address of the operators' listener>/console`. Tokens for
    /// it are taken, unless their claim `azp` names another client, and the
    /// console offers to sign in; absent = it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Further audiences; the claim `aud` of a token must have one of them, or
    /// `client_id`.
    pub audience: Vec<String>,
    /// The claim that says what somebody may do: a list, or a text, which is
    /// one value; with dots it is a claim inside a claim.
    pub role_claim: String,
    /// Values of that claim, each with its role. Of several roles the highest
    /// counts; a token with none of the values is refused.
    pub roles: NamedEntries<OperatorRole>,
    /// The claim with the name for the audit log, after `oidc:`; a token
    /// without it goes by `sub`. Only letters, digits and ASCII signs of it
    /// are written.
    pub name_claim: String,
    /// What the console asks the provider for; `openid` is always among it.
    pub scopes: Vec<String>,
    /// Where its public keys are; absent = where
    /// `<issuer>/.well-known/openid-configuration` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Path of a PEM file with the authorities of the provider's own
    /// certificate; absent = those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// How tokens may be signed.
    pub algorithms: Vec<Algorithm>,
    /// How far the provider's clock may be off.
    pub leeway: Span,
    /// Bytes of the longest token that is looked at, at most 12 KiB.
    pub max_token: ByteSize,
}

impl Default for AdminOidcSection {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            client_id: None,
            audience: Vec::new(),
            role_claim: "groups".to_owned(),
            roles: NamedEntries::default(),
            name_claim: "email".to_owned(),
            scopes: [OPENID, "profile", "email"].map(str::to_owned).to_vec(),
            jwks_url: None,
            ca_file: None,
            algorithms: vec![Algorithm::Rs256, Algorithm::Es256],
            leeway: Span::secs(30),
            max_token: ByteSize(8 << 10),
        }
    }
}

/// An operator's token, of which the file holds only the digest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::key)]
pub struct AdminTokenSection {
    /// The public part of the token, between its two underscores. It is what
    /// the audit log shows.
    #[schemars(regex(pattern = "^[a-z0-9]{8,12}$"))]
    pub id: String,
    /// `blake3:` and 64 hex digits: the digest of the whole token. `sha256:`
    /// for one that another program hashed.
    #[schemars(regex(pattern = "^(blake3|sha256):[0-9a-f]{64}$"))]
    pub digest: String,
    /// What its holder may do.
    pub role: OperatorRole,
    /// The token is not taken any more from this moment on: a day (its
    /// begin, UTC) or a time such as `2027-01-31T12:00:00Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Moment>,
    /// Who holds it, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An operator's certificate: exactly one of `dns`, `uri` and `email`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminCertSection {
    /// A DNS name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// A URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// An e-mail address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// What its holder may do.
    pub role: OperatorRole,
}

/// A moment, written as a day (its begin, in UTC) or as a time with its zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment(pub jiff::Timestamp);

impl Serialize for Moment {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let day = || text.parse::<jiff::civil::Date>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
        let moment = if text.contains(['T', 't', ' ']) {
            text.parse::<jiff::Timestamp>().ok()
        } else {
            day().map(|day| day.timestamp())
        };
        moment.map(Self).ok_or_else(|| {
            let hint = "write a day such as 2027-01-31, or a time such as 2027-01-31T12:00:00Z";
            serde::de::Error::custom(format!("{text:?} is no moment\n{hint}"))
        })
    }
}

impl JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A day (its begin, UTC) or a time with its zone.",
            "pattern": "^\\d{4}-\\d{2}-\\d{2}([Tt ].*)?$",
            "examples": ["2027-01-31", "2027-01-31T12:00:00Z"],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_its_begin_and_a_time_has_a_zone() {
        let read = |text: &str| serde_json::from_value::<Moment>(text.into()).map(|at| at.0.to_string());
        assert_eq!(read("2027-01-31").unwrap(), "2027-01-31T00:00:00Z");
        assert_eq!(read("2027-01-31T12:00:00+02:00").unwrap(), "2027-01-31T10:00:00Z");
        for text in ["", "soon", "2027-02-30", "2027-01-31T12:00:00", "31.1.2027"] {
            assert!(read(text).unwrap_err().to_string().contains("is no moment"), "{text}");
        }
    }
}
