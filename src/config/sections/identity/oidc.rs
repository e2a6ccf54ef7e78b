//! Check of `auth.oidc`: identity providers.

use std::sync::Arc;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::identity::tls;
use crate::config::sections::identity::{Algorithm, OidcSection};
use crate::config::sections::tenants::context::TenantContext;
use crate::config::settings::identity::{ClaimRule, ClientClaims, Issuer, KeySource};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::{ByteSize, Span};
use crate::config::validate::findings::Findings;
use crate::config::validate::{names, url};
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::TenantId;
use crate::core::model::policy::Tenant;

/// No token is shorter.
const SHORTEST_TOKEN: ByteSize = ByteSize(256);
/// Less than a head may have, and no more than it takes to be looked at cheaply.
const LONGEST_TOKEN: ByteSize = ByteSize(64 << 10);
/// Providers' clocks are better than this.
const MAX_LEEWAY_SECS: u64 = 300;
const MAX_ISSUERS: usize = 16;

/// Checks the providers.
pub(in crate::config) fn validate(
    context: &TenantContext<'_>,
    tenants: &IdTable<TenantId, Tenant>,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Vec<Arc<Issuer<ClientClaims>>> {
    let section = FieldPath::top("auth").key("oidc");
    let written = &context.file.auth.oidc;
    if written.len() > MAX_ISSUERS {
        let message = format!("{} are too many", written.len());
        findings.error(&section, message, format!("name at most {MAX_ISSUERS}"));
    }
    let mut issuers: Vec<Arc<Issuer<ClientClaims>>> = Vec::new();
    for (at, provider) in written.iter().enumerate() {
        let field = section.index(at);
        if issuers.iter().any(|other| other.source.issuer == provider.issuer) {
            findings.error(&field.key("issuer"), "is in the list already", "name each provider once");
        }
        let issuer = issuer(context, provider, tenants, &field, secrets, findings);
        issuers.push(Arc::new(issuer));
    }
    issuers
}

fn issuer(
    context: &TenantContext<'_>,
    written: &OidcSection,
    tenants: &IdTable<TenantId, Tenant>,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Issuer<ClientClaims> {
    let provider = WrittenProvider {
        issuer: &written.issuer,
        jwks_url: written.jwks_url.as_deref(),
        ca_file: written.ca_file.as_deref(),
        algorithms: &written.algorithms,
        leeway: written.leeway,
        max_token: written.max_token,
        longest_token: LONGEST_TOKEN,
    };
    if written.audience.is_empty() || written.audience.iter().any(String::is_empty) {
        let hint =
            "write the name under which the provider knows this gateway; tokens for others are refused";
        findings.error(&field.key("audience"), "is missing", hint);
    }
    let classes = context.classes.iter().map(|(id, name, _)| (name.to_owned(), id)).collect();
    let mut models: Vec<_> =
        context.models.names.models.iter().map(|(name, id)| (name.clone(), *id)).collect();
    models.sort_unstable();
    let claims = ClientClaims {
        tenants: ClaimRule {
            claim: claim(&written.tenant_claim, &field.key("tenant_claim"), findings),
            values: tenant_values(context.file, written, tenants, field, findings),
        },
        classes: written.class_claim.as_ref().map(|name| ClaimRule {
            claim: claim(name, &field.key("class_claim"), findings),
            values: classes,
        }),
        models: written.model_claim.as_ref().map(|name| ClaimRule {
            claim: claim(name, &field.key("model_claim"), findings),
            values: models,
        }),
    };
    provider.check(written.audience.clone(), claims, field, secrets, findings)
}

/// What every identity provider has, as it is written.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct WrittenProvider<'a> {
    pub(in crate::config) issuer: &'a str,
    pub(in crate::config) jwks_url: Option<&'a str>,
    pub(in crate::config) ca_file: Option<&'a str>,
    pub(in crate::config) algorithms: &'a [Algorithm],
    pub(in crate::config) leeway: Span,
    pub(in crate::config) max_token: ByteSize,
    /// Most bytes that `max_token` may be.
    pub(in crate::config) longest_token: ByteSize,
}

impl WrittenProvider<'_> {
    /// Checks the keys that every provider has, and reads its authorities.
    pub(in crate::config) fn check<C>(
        &self,
        audience: Vec<String>,
        claims: C,
        field: &FieldPath,
        secrets: &mut SecretReader<'_>,
        findings: &mut Findings<'_>,
    ) -> Issuer<C> {
        address(self.issuer, &field.key("issuer"), "copy the claim `iss` of a token", findings);
        if let Some(url) = self.jwks_url {
            let hint = "take the key away where the provider has a discovery document";
            address(url, &field.key("jwks_url"), hint, findings);
        }
        if self.algorithms.is_empty() {
            findings.error(&field.key("algorithms"), "allows none", "write such as [RS256, ES256]");
        }
        if self.leeway.0.as_secs() > MAX_LEEWAY_SECS {
            let message = format!("{} is too long", self.leeway);
            findings.error(&field.key("leeway"), message, "write 5m or less");
        }
        if !(SHORTEST_TOKEN.0..=self.longest_token.0).contains(&self.max_token.0) {
            let message = format!("{} is out of range", self.max_token);
            let hint = format!("write {SHORTEST_TOKEN} to {}", self.longest_token);
            findings.error(&field.key("max_token"), message, hint);
        }
        let ca = self.ca_file.and_then(|path| {
            let read = secrets.bytes(path).and_then(|pem| tls::authorities(&pem, path).map(|_| pem));
            let hint = "paths start at this file's folder";
            read.map_err(|why| findings.error(&field.key("ca_file"), why, hint)).ok()
        });
        Issuer {
            source: KeySource {
                issuer: self.issuer.to_owned(),
                jwks_url: self.jwks_url.map(str::to_owned),
                ca: ca.map(Into::into),
            },
            audience,
            algorithms: self.algorithms.iter().copied().map(name).collect(),
            leeway: self.leeway.0,
            max_token: usize::try_from(self.max_token.0).unwrap_or(usize::MAX),
            claims,
        }
    }
}

/// Keys that come in the clear could be anybody's, except from this machine.
fn address(text: &str, field: &FieldPath, hint_if_empty: &str, findings: &mut Findings<'_>) {
    match url::any(text) {
        Err(_) if text.is_empty() => findings.error(field, "is missing", hint_if_empty),
        Err((message, hint)) => findings.error(field, message, hint),
        Ok(uri) => {
            let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
            let here = host == "localhost"
                || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
            if uri.scheme_str() == Some("http") && !here {
                let hint = "use https: whoever is on the way could send keys of his own";
                findings.error(field, "would bring the provider's keys in the clear", hint);
            }
        }
    }
}

pub(in crate::config) fn claim(name: &str, field: &FieldPath, findings: &mut Findings<'_>) -> String {
    if name.is_empty() || name.split('.').any(str::is_empty) {
        findings.error(field, format!("{name:?} is no claim"), "write such as team or penstock.team");
    }
    name.to_owned()
}

fn tenant_values(
    file: &ConfigFile,
    written: &OidcSection,
    tenants: &IdTable<TenantId, Tenant>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Vec<(String, TenantId)> {
    if written.tenants.is_empty() {
        return file.tenants.names().filter_map(|name| Some((name.to_owned(), tenants.id(name)?))).collect();
    }
    let field = field.key("tenants");
    let entries = written.tenants.iter().filter_map(|(value, name)| {
        let id = tenants.id(name);
        if id.is_none() && findings.whole("tenants") {
            names::unknown("tenant", name, file.tenants.names(), &field.key(value), findings);
        }
        Some((value.to_owned(), id?))
    });
    entries.collect()
}

const fn name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::Rs256 => "RS256",
        Algorithm::Rs384 => "RS384",
        Algorithm::Rs512 => "RS512",
        Algorithm::Ps256 => "PS256",
        Algorithm::Ps384 => "PS384",
        Algorithm::Ps512 => "PS512",
        Algorithm::Es256 => "ES256",
        Algorithm::Es384 => "ES384",
        Algorithm::EdDsa => "EdDSA",
    }
}
