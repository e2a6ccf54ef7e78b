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
    /// DNS name among the certificate's subject alternative names, such as `trainer.example.com`.
    /// An entry has exactly one of `dns`, `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// URI among the certificate's subject alternative names, such as
    /// `spiffe://example.com/ns/research/sa/notebook`. An entry has exactly one of `dns`, `uri` and
    /// `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// E-mail address among the certificate's subject alternative names. An entry has exactly one
    /// of `dns`, `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Class of the certificate's requests that ask for no class. Absent = the tenant's
    /// `default_class`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Classes that requests with this certificate may use, among the tenant's `classes`. Absent =
    /// all classes of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Vec<String>>,
    /// Models that requests with this certificate may use, among the tenant's `models`. Absent =
    /// all models of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
}

/// An identity provider whose tokens (JWT) are taken in place of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::oidc)]
pub struct OidcSection {
    /// URL by which the identity provider names itself. A token must have exactly this text in its
    /// claim `iss`.
    pub issuer: String,
    /// Audiences of tokens. A token must have one of these names in its claim `aud`.
    pub audience: Vec<String>,
    /// URL of the identity provider's public keys (JWKS). Absent = the gateway takes the URL from
    /// `<issuer>/.well-known/openid-configuration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Path of a PEM file with the authorities that may sign the identity provider's TLS
    /// certificate. Absent = the authorities of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// Claim that names the tenant of a token; a name with dots leads into nested claims. When the
    /// claim is a list, the first entry of `tenants` whose value is in the list counts. A token
    /// without a known value is refused.
    pub tenant_claim: String,
    /// Map from values of `tenant_claim` to tenants. Absent = each value is the name of a tenant.
    #[serde(skip_serializing_if = "NamedEntries::is_empty")]
    pub tenants: NamedEntries<String>,
    /// Claim with the classes that a token may use, among the tenant's `classes`: a list, or a text
    /// with spaces between. A token without the claim, or without a known class in it, is refused.
    /// Absent = all classes of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class_claim: Option<String>,
    /// Claim with the models that a token may use, among the tenant's `models`: a list, or a text
    /// with spaces between. A token without the claim, or without a known model in it, is refused.
    /// Absent = all models of the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_claim: Option<String>,
    /// Signature algorithms that tokens may use. A token with another algorithm is refused.
    pub algorithms: Vec<Algorithm>,
    /// Tolerated difference between the clocks of the identity provider and of the gateway when the
    /// times in a token (`exp`, `nbf`) are checked, at most 5 minutes.
    pub leeway: Span,
    /// Largest token in bytes, from 256 B to 64 KiB. A larger token is refused.
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

/// Failed attempts that a client address (IPv6: a /64) may make. A further attempt gets 429 in
/// place of 401; valid credentials always pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FailuresSection {
    /// Failed attempts that a client address (IPv6: a /64) may make at once. A further attempt gets
    /// 429 in place of 401 until `per_minute` allows more.
    #[schemars(range(min = 1))]
    pub burst: u32,
    /// Failed attempts by which the allowance of a client address (IPv6: a /64) grows again in each
    /// minute, up to `burst`. 0 = failed attempts have no limit.
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
    /// TLS of the operators' listener (`server.admin`). Absent = the listener takes connections
    /// without TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSection>,
    /// Credentials and roles of operators at the operators' listener (`server.admin`). Without
    /// tokens, certificates and `oidc`, everybody who can connect may do everything.
    pub auth: AdminAuthSection,
}

/// Who may do what at the operators' listener. Without a token, a
/// certificate and `oidc` everybody who can connect may do everything.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminAuthSection {
    /// Tokens of operators, each with its role. `penstock keys new` makes a token.
    pub tokens: Vec<AdminTokenSection>,
    /// Client certificates of operators, each with its role. An authority of `admin.tls.client_ca`
    /// must have signed them.
    pub client_certs: Vec<AdminCertSection>,
    /// Identity provider whose tokens (JWT) operators may use, beside `tokens` and `client_certs`.
    /// With `client_id`, the console signs in at the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<AdminOidcSection>,
    /// Whether callers from a loopback address may do everything without a credential; sidecars,
    /// `kubectl port-forward` and SSH tunnels connect from loopback, too. Absent = only while there
    /// are no tokens, no certificates and no `oidc`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loopback: Option<bool>,
    /// Whether callers may read `/metrics` without a credential.
    pub open_metrics: bool,
    /// Names of the operators' listener under which callers without a credential may ask, beside
    /// addresses, `localhost`, names without a dot and names in `.local`, `.internal`, `.svc` and
    /// `.test`. A request with another name in `Host` gets 403, because the web page of another
    /// site could ask under a name of its own.
    pub hosts: Vec<String>,
}

/// The identity provider of operators: its tokens (JWT) are taken at the
/// operators' listener, and the console signs in there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(transform = crate::config::schema::transforms::admin_oidc)]
pub struct AdminOidcSection {
    /// URL by which the identity provider names itself. A token must have exactly this text in its
    /// claim `iss`.
    pub issuer: String,
    /// Id of the console at the identity provider, where the console is a public client with PKCE
    /// and the redirect URI `<address of the operators' listener>/console`. The gateway takes
    /// tokens for this client, unless their claim `azp` names another client. Absent = the console
    /// offers no sign-in, and `audience` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// Audiences of tokens beside `client_id`. A token must have `client_id` or one of these names
    /// in its claim `aud`.
    pub audience: Vec<String>,
    /// Claim whose values give a token its role (`roles`): a list, or a text, which is one value. A
    /// name with dots leads into nested claims.
    pub role_claim: String,
    /// Map from values of `role_claim` to roles. Of several roles, the highest counts; a token with
    /// none of the values is refused (403).
    pub roles: NamedEntries<OperatorRole>,
    /// Claim that names the operator in the audit log, after `oidc:`; a token without the claim is
    /// named by its `sub`. Only letters, digits and ASCII signs of the name are written.
    pub name_claim: String,
    /// Scopes that the console asks the identity provider for. `openid` is always among them.
    pub scopes: Vec<String>,
    /// URL of the identity provider's public keys (JWKS). Absent = the gateway takes the URL from
    /// `<issuer>/.well-known/openid-configuration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jwks_url: Option<String>,
    /// Path of a PEM file with the authorities that may sign the identity provider's TLS
    /// certificate. Absent = the authorities of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
    /// Signature algorithms that tokens may use. A token with another algorithm is refused.
    pub algorithms: Vec<Algorithm>,
    /// Tolerated difference between the clocks of the identity provider and of the gateway when the
    /// times in a token (`exp`, `nbf`) are checked, at most 5 minutes.
    pub leeway: Span,
    /// Largest token in bytes, from 256 B to 12 KiB. A larger token is refused.
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
    /// Public part of the token, between its two underscores. The audit log shows the id.
    #[schemars(regex(pattern = "^[a-z0-9]{8,12}$"))]
    pub id: String,
    /// Digest of the whole token: `blake3:` and 64 hex digits, or `sha256:` and 64 hex digits where
    /// another program made the digest.
    #[schemars(regex(pattern = "^(blake3|sha256):[0-9a-f]{64}$"))]
    pub digest: String,
    /// Role of the token's holder.
    pub role: OperatorRole,
    /// Time from which the token is refused: a day (its begin, UTC) or a time such as
    /// `2027-01-31T12:00:00Z`. Absent = the token does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires: Option<Moment>,
    /// Note for people, such as who holds the token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// An operator's certificate: exactly one of `dns`, `uri` and `email`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdminCertSection {
    /// DNS name among the certificate's subject alternative names. An entry has exactly one of
    /// `dns`, `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<String>,
    /// URI among the certificate's subject alternative names. An entry has exactly one of `dns`,
    /// `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
    /// E-mail address among the certificate's subject alternative names. An entry has exactly one
    /// of `dns`, `uri` and `email`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Role of the certificate's holder.
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
