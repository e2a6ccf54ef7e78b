//! Check of credentials: tenants' keys and certificates, and operators'.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use crate::config::keys::{self, KeyDigest};
use crate::config::sections::identity::{AdminAuthSection, ClientCertSection, Moment};
use crate::config::sections::tenants::KeySection;
use crate::config::sections::tenants::context::TenantContext;
use crate::config::settings::identity::{
    Credentials, Grant, Issuer, KeyEntry, KeyOrigin, OperatorClaims, Operators, TokenEntry,
};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::core::model::ids::{ClassId, ModelId, TenantId};
use crate::core::model::policy::Tenant;

/// Bytes of the longest name of a certificate.
const MAX_NAME: usize = 512;

/// Credentials as they come together, each once.
#[derive(Debug, Default)]
pub(in crate::config) struct CredentialSet {
    pub(in crate::config) held: Credentials,
    seen: HashMap<String, FieldPath>,
}

/// Whom a credential speaks for.
#[derive(Debug, Clone, Copy)]
pub(in crate::config) struct CredentialHolder<'a> {
    pub(in crate::config) id: TenantId,
    pub(in crate::config) row: &'a Tenant,
}

/// What a credential leaves its tenant, as it is written.
struct CredentialScope<'a> {
    class: Option<&'a str>,
    classes: Option<&'a [String]>,
    models: Option<&'a [String]>,
}

impl CredentialSet {
    /// Checks a tenant's key, which is not yet in force.
    pub(in crate::config) fn key(
        &mut self,
        context: &TenantContext<'_>,
        holder: CredentialHolder<'_>,
        key: &KeySection,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<KeyEntry> {
        let narrow = CredentialScope {
            class: key.class.as_deref(),
            classes: key.classes.as_deref(),
            models: key.models.as_deref(),
        };
        let grant = context.grant(holder, &narrow, field, findings);
        let digest = self.digest(&key.id, &key.digest, field, findings)?;
        let origin = KeyOrigin { file: None, note: key.note.clone() };
        Some(KeyEntry { digest, grant, expires: key.expires.map(system_time), origin })
    }

    /// Adds a tenant's certificate.
    pub(in crate::config) fn cert(
        &mut self,
        context: &TenantContext<'_>,
        holder: CredentialHolder<'_>,
        cert: &ClientCertSection,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) {
        let narrow = CredentialScope {
            class: cert.class.as_deref(),
            classes: cert.classes.as_deref(),
            models: cert.models.as_deref(),
        };
        let grant = context.grant(holder, &narrow, field, findings);
        if let Some(name) = self.name([&cert.dns, &cert.uri, &cert.email], field, findings) {
            self.held.certs.insert(name, grant);
        }
    }

    /// Checks a key's id and digest, each of which may occur once in the file.
    fn digest(
        &mut self,
        id: &str,
        digest: &str,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<KeyDigest> {
        let seen = &mut self.seen;
        if !keys::is_id(id) {
            let message =
                if id.is_empty() { "is missing".to_owned() } else { format!("{id:?} is no key id") };
            findings.error(
                &field.key("id"),
                message,
                "copy what `penstock keys new` or `penstock keys hash` printed",
            );
        } else if let Some(first) = seen.insert(id.to_owned(), field.clone()) {
            let message = format!("`{id}` is {first} already");
            findings.error(&field.key("id"), message, "an id belongs to one key");
        }
        let Some(read) = KeyDigest::parse(digest) else {
            let message = if digest.is_empty() { "is missing" } else { "is not a digest" };
            let hint = "write `blake3:` (or `sha256:`) and 64 hex digits, as `penstock keys new` printed";
            findings.error(&field.key("digest"), message, hint);
            return None;
        };
        if let Some(first) = seen.insert(read.to_string(), field.clone()) {
            findings.error(&field.key("digest"), format!("is the digest of {first}"), "each key has its own");
        }
        Some(read)
    }

    /// The one name of a certificate, in the form in which it is looked up.
    pub(in crate::config) fn name(
        &mut self,
        [dns, uri, email]: [&Option<String>; 3],
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<String> {
        let given = [("dns", dns), ("uri", uri), ("email", email)];
        let mut given = given.into_iter().filter_map(|(kind, name)| Some((kind, name.as_deref()?)));
        let (Some((kind, name)), None) = (given.next(), given.next()) else {
            findings.error(field, "does not name one certificate", "write one of `dns`, `uri` and `email`");
            return None;
        };
        let field = field.key(kind);
        let odd = |c: char| c.is_whitespace() || c.is_control();
        if name.is_empty() || name.len() > MAX_NAME || name.contains(odd) {
            let hint =
                "copy the certificate's subject alternative name: `openssl x509 -noout -ext subjectAltName`";
            findings.error(&field, format!("{name:?} is in no certificate"), hint);
            return None;
        }
        let name = if kind == "dns" { name.to_ascii_lowercase() } else { name.to_owned() };
        let name = format!("{kind}:{name}");
        if let Some(first) = self.seen.insert(name.clone(), field.clone()) {
            findings.error(&field, format!("is {first} already"), "a certificate stands for one tenant");
        }
        Some(name)
    }

    /// Checks the operators' credentials, which may not be tenants' too.
    pub(in crate::config) fn operators(
        &mut self,
        auth: &AdminAuthSection,
        has_client_ca: bool,
        oidc: Option<Issuer<OperatorClaims>>,
        findings: &mut Findings<'_>,
    ) -> Operators {
        let section = FieldPath::top("admin").key("auth");
        let asks = !(auth.tokens.is_empty() && auth.client_certs.is_empty() && oidc.is_none());
        if asks && auth.loopback == Some(true) {
            let hint = "sidecars, `kubectl port-forward` and SSH tunnels connect from loopback; take the key away to \
                        ask everybody for a token or certificate";
            findings.warn(
                &section.key("loopback"),
                "lets callers from loopback in without a token, with the role `operate`",
                hint,
            );
        }
        let mut operators = Operators {
            loopback: auth.loopback.unwrap_or(!asks),
            open_metrics: auth.open_metrics,
            hosts: auth.hosts.clone(),
            oidc: oidc.map(Arc::new),
            ..Operators::default()
        };
        for (at, token) in auth.tokens.iter().enumerate() {
            let field = section.key("tokens").index(at);
            if let Some(digest) = self.digest(&token.id, &token.digest, &field, findings) {
                let entry = TokenEntry { digest, role: token.role, expires: token.expires.map(system_time) };
                operators.tokens.insert(&token.id, entry);
            }
        }
        for (at, cert) in auth.client_certs.iter().enumerate() {
            let field = section.key("client_certs").index(at);
            if let Some(name) = self.name([&cert.dns, &cert.uri, &cert.email], &field, findings) {
                operators.certs.insert(name, cert.role);
            }
        }
        // A person may be a tenant and an operator, by one certificate.
        self.seen.retain(|name, _| !operators.certs.contains_key(name));
        if !auth.client_certs.is_empty() && !has_client_ca {
            let hint = "give it the authorities' file, or take the certificates away";
            findings.error(
                &section.key("client_certs"),
                "no certificate is asked for without `admin.tls.client_ca`",
                hint,
            );
        }
        operators
    }
}

impl TenantContext<'_> {
    fn grant(
        &self,
        holder: CredentialHolder<'_>,
        narrow: &CredentialScope<'_>,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Grant {
        let classes = narrow.classes.map(|list| self.narrow_classes(holder, list, field, findings));
        let models = narrow.models.map(|list| self.narrow_models(holder, list, field, findings));
        let class = narrow.class.and_then(|name| {
            let field = field.key("class");
            let id = self.class_of_tenant(holder, name, &field, findings)?;
            if classes.as_ref().is_some_and(|classes| !classes.contains(&id)) {
                findings.error(&field, format!("`{name}` is not in its own `classes`"), "add it there");
            }
            Some(id)
        });
        let (classes, models) = (classes.map(Arc::new), models.map(Arc::new));
        Grant { class, classes, models, ..Grant::whole(holder.id) }
    }

    fn class_of_tenant(
        &self,
        holder: CredentialHolder<'_>,
        name: &str,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<ClassId> {
        let id = self.class(name, field, findings)?;
        if !holder.row.classes.contains(&id) {
            let hint = format!("add `{name}` to the tenant's `classes`, or choose one of those");
            findings.error(field, format!("the tenant may not use `{name}`"), hint);
        }
        Some(id)
    }

    fn narrow_classes(
        &self,
        holder: CredentialHolder<'_>,
        list: &[String],
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> BTreeSet<ClassId> {
        let field = field.key("classes");
        if list.is_empty() {
            findings.error(
                &field,
                "allows no class",
                "list some, or take the key away to allow the tenant's",
            );
        }
        let listed = list.iter().enumerate();
        listed
            .filter_map(|(at, name)| self.class_of_tenant(holder, name, &field.index(at), findings))
            .collect()
    }

    fn narrow_models(
        &self,
        holder: CredentialHolder<'_>,
        list: &[String],
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> BTreeSet<ModelId> {
        let field = field.key("models");
        let models = self.models_of(list, &field, findings);
        let barred = |model: &&ModelId| holder.row.models.as_ref().is_some_and(|own| !own.contains(model));
        if let Some(barred) = models.iter().find(barred) {
            let name = self.models.table.name(*barred);
            let hint = format!("add `{name}` to the tenant's `models`, or choose some of those");
            findings.error(&field, format!("the tenant may not use `{name}`"), hint);
        }
        models
    }
}

fn system_time(moment: Moment) -> SystemTime {
    moment.0.into()
}
