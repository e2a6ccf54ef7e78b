//! Check of `admin.auth.oidc`: the identity provider of operators.

use crate::config::secret::SecretReader;
use crate::config::sections::identity::oidc::{WrittenProvider, claim};
use crate::config::sections::identity::{AdminOidcSection, OPENID};
use crate::config::settings::identity::{ClaimRule, ConsoleClient, Issuer, OperatorClaims};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::ByteSize;
use crate::config::validate::findings::Findings;

/// Leaves the rest of a request head at the admin port 4 KiB.
const LONGEST_TOKEN: ByteSize = ByteSize(12 << 10);

/// Checks the provider.
pub(in crate::config) fn validate(
    written: &AdminOidcSection,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Issuer<OperatorClaims> {
    let field = FieldPath::top("admin").key("auth").key("oidc");
    let audience: Vec<String> = written.client_id.iter().chain(&written.audience).cloned().collect();
    if audience.is_empty() {
        let hint = "write the console's id at the provider, or `audience` if tokens come from commands only";
        findings.error(&field.key("client_id"), "is missing", hint);
    } else if audience.iter().any(String::is_empty) {
        let key = if written.client_id.as_deref() == Some("") { "client_id" } else { "audience" };
        findings.error(&field.key(key), "has an empty name", "a token is meant for somebody");
    }
    if written.roles.is_empty() {
        let hint =
            "write such as {sre: operate, everybody: read}; the provider's groups stand before the colon";
        findings.error(&field.key("roles"), "gives nobody a right", hint);
    }
    let odd = |scope: &String| scope.is_empty() || !scope.bytes().all(|byte| byte.is_ascii_graphic());
    if let Some(scope) = written.scopes.iter().find(|scope| odd(scope)) {
        let message = format!("{scope:?} is no scope");
        findings.error(&field.key("scopes"), message, "write names without spaces, such as [openid, groups]");
    }
    if written.client_id.is_none() && written.scopes != AdminOidcSection::default().scopes {
        let hint = "write `client_id`, or take the scopes away: only the console's sign-in asks for them";
        findings.warn(&field.key("scopes"), "has no effect without `client_id`", hint);
    }
    let mut scopes = written.scopes.clone();
    if !scopes.iter().any(|scope| scope == OPENID) {
        scopes.insert(0, OPENID.to_owned());
    }
    let roles = written.roles.iter().map(|(value, role)| (value.to_owned(), *role));
    let claims = OperatorClaims {
        roles: ClaimRule {
            claim: claim(&written.role_claim, &field.key("role_claim"), findings),
            values: roles.collect(),
        },
        name: claim(&written.name_claim, &field.key("name_claim"), findings),
        console: written.client_id.clone().map(|id| ConsoleClient { id, scopes }),
    };
    let provider = WrittenProvider {
        issuer: &written.issuer,
        jwks_url: written.jwks_url.as_deref(),
        ca_file: written.ca_file.as_deref(),
        algorithms: &written.algorithms,
        leeway: written.leeway,
        max_token: written.max_token,
        longest_token: LONGEST_TOKEN,
    };
    provider.check(audience, claims, &field, secrets, findings)
}
