//! Check of `auth` and `tenants`, with their keys.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::config::secret::SecretReader;
use crate::config::sections::identity::credentials::{CredentialHolder, CredentialSet};
use crate::config::sections::identity::key_files::{self, KeyFiles};
use crate::config::sections::identity::oidc;
use crate::config::sections::placement::check::rules;
use crate::config::sections::tenants::context::TenantContext;
use crate::config::sections::tenants::family;
use crate::config::sections::tenants::usage_limits::check::CheckedLimits;
use crate::config::sections::tenants::{AuthMode, KeySection, TenantQuotaSection, TenantSection as Written};
use crate::config::settings::identity::{Auth, Credentials, FailureLimits};
use crate::config::settings::names::{NamedModel, TenantNames};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::names;
use crate::config::validate::numbers;
use crate::core::limits::rule::LimitScope;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, ModelId, TenantId};
use crate::core::model::policy::{QueueBounds, Quota, Tenant};

/// The class of requests that ask for none, where nothing else is said.
const USUAL_CLASS: &str = "standard";
/// The tenant of a file that names none.
const ONLY_TENANT: &str = "default";

/// Who may come in.
#[derive(Debug)]
pub(in crate::config) struct CheckedTenants {
    pub(in crate::config) tenants: IdTable<TenantId, Tenant>,
    pub(in crate::config) auth: Auth,
    pub(in crate::config) names: BTreeMap<TenantId, TenantNames>,
    pub(in crate::config) limits: CheckedLimits,
}

/// `credentials` gets the credentials of all tenants.
pub(in crate::config) fn validate(
    context: &TenantContext<'_>,
    mut credentials: CredentialSet,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> CheckedTenants {
    let file = context.file;
    let section = FieldPath::top("tenants");
    let mut tenants = context.previous.map(|old| IdTable::successor(&old.policy.tenants)).unwrap_or_default();
    let mut own_names = BTreeMap::new();
    let mut limits = CheckedLimits::new(context.previous);
    for (name, tenant) in file.tenants.iter() {
        let field = section.key(name);
        names::label(name, &field, findings);
        let row = context.row(tenant, &field, findings);
        let map = context.model_map(tenant, row.models.as_ref(), &field.key("model_map"), findings);
        let parent = family::parent_of(name, &file.tenants, &field.key("parent"), findings);
        let row = Tenant { parent: parent.map(|parent| tenants.id_or_new(parent)), ..row };
        let id = tenants.insert(name, row.clone());
        limits.add(&tenant.limits, LimitScope::Tenant(id), &field.key("limits"), findings);
        context.model_limits(tenant, id, &field.key("model_limits"), &mut limits, findings);
        let holder = CredentialHolder { id, row: &row };
        own_names.insert(id, TenantNames { map, allow_fallback: tenant.allow_fallback });
        for (at, key) in tenant.keys.iter().enumerate() {
            let place = KeyLocation { field: &field.key("keys").index(at), file: None };
            context.key(holder, key, place, &mut credentials, &mut limits, findings);
        }
        for (at, cert) in tenant.client_certs.iter().enumerate() {
            credentials.cert(context, holder, cert, &field.key("client_certs").index(at), findings);
        }
    }
    family::guarantees(&file.tenants, findings);
    let auth = match file.auth.mode {
        AuthMode::Keys => {
            if let Some(files) = key_files::read(file, context.previous, secrets, findings) {
                context.key_files(files, &tenants, &mut credentials, &mut limits, findings);
            }
            let mut held = credentials.held;
            held.issuers = oidc::validate(context, &tenants, secrets, findings);
            by_credential(context, held, findings)
        }
        AuthMode::Off => Auth::Off(context.everybody(&mut tenants, findings)),
    };
    CheckedTenants { tenants, auth, names: own_names, limits }
}

/// Where a key stands.
#[derive(Debug, Clone, Copy)]
struct KeyLocation<'a> {
    field: &'a FieldPath,
    file: Option<&'a Arc<str>>,
}

fn quota(quota: &TenantQuotaSection, field: &FieldPath, findings: &mut Findings<'_>) -> Quota {
    let mut share = |key: &str, part: f64| numbers::share(part, &field.key(key), findings);
    Quota {
        guarantee: share("guarantee", quota.guarantee),
        borrow: share("borrow", quota.borrow),
        lend: share("lend", quota.lend),
    }
}

fn by_credential(context: &TenantContext<'_>, mut held: Credentials, findings: &mut Findings<'_>) -> Auth {
    let file = context.file;
    let field = FieldPath::top("tenants");
    let has_one = |tenant: &Written| !(tenant.keys.is_empty() && tenant.client_certs.is_empty());
    // With a folder, keys may come at any time.
    let has_issuer = !file.auth.oidc.is_empty() || file.auth.keys_dir.is_some();
    if !has_issuer && !file.tenants.iter().any(|(_, tenant)| has_one(tenant)) {
        if findings.whole("tenants") {
            let hint = "make one with `penstock keys new` and put it under a tenant's `keys`, or set `auth: {mode: off}` on \
                        a loopback address";
            findings.error(&field, "there is no key, so nobody could come in", hint);
        }
    } else if !has_issuer {
        for (name, _) in file.tenants.iter().filter(|(_, tenant)| !has_one(tenant)) {
            let hint = "make one with `penstock keys new`";
            findings.warn(&field.key(name), "has no key, so nobody can be this tenant", hint);
        }
    }
    let asks = file.server.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    if let Some((name, _)) = file.tenants.iter().find(|(_, tenant)| !asks && !tenant.client_certs.is_empty())
    {
        let hint = "give it the authorities' file, or take the certificates away";
        let message = "no certificate is asked for without `server.tls.client_ca`";
        findings.error(&field.key(name).key("client_certs"), message, hint);
    }
    let written = &file.auth.failures;
    if written.burst == 0 {
        let field = FieldPath::top("auth").key("failures").key("burst");
        findings.error(&field, "must not be zero", "write 1 or more; `per_minute: 0` takes the limit away");
    }
    held.failures = FailureLimits { burst: written.burst, per_minute: written.per_minute };
    held.epoch = context.generation;
    Auth::Known(Arc::new(held))
}

impl TenantContext<'_> {
    /// Puts a key in force, if nothing is wrong with it.
    fn key(
        &self,
        holder: CredentialHolder<'_>,
        key: &KeySection,
        place: KeyLocation<'_>,
        credentials: &mut CredentialSet,
        limits: &mut CheckedLimits,
        findings: &mut Findings<'_>,
    ) {
        let errors = findings.errors();
        let Some(mut entry) = credentials.key(self, holder, key, place.field, findings) else { return };
        if findings.errors() == errors {
            entry.grant.limited = limits.add_key(key, place.field, findings);
            entry.origin.file = place.file.cloned();
        }
        if findings.errors() == errors {
            credentials.held.keys.insert(&key.id, entry);
        }
    }

    /// Puts the keys of the key files in force, but for those with a mistake.
    fn key_files(
        &self,
        mut all: KeyFiles,
        tenants: &IdTable<TenantId, Tenant>,
        credentials: &mut CredentialSet,
        limits: &mut CheckedLimits,
        findings: &mut Findings<'_>,
    ) {
        for (name, file) in std::mem::take(&mut all.files) {
            let field = key_files::field_of(&name);
            let known =
                tenants.id(&file.tenant).and_then(|id| Some(CredentialHolder { id, row: tenants.get(id)? }));
            let is_good = findings.apart(|findings| {
                let Some(holder) = known else {
                    let field = field.key("tenant");
                    return names::unknown(
                        "tenant",
                        &file.tenant,
                        self.file.tenants.names(),
                        &field,
                        findings,
                    );
                };
                for (at, key) in file.keys.iter().enumerate() {
                    let place = KeyLocation { field: &field.key("keys").index(at), file: Some(&name) };
                    self.key(holder, key, place, credentials, limits, findings);
                }
            });
            if !is_good {
                all.problem(format!("{name}: some of its keys are left out; `penstock check` says why"));
            }
        }
        credentials.held.key_folder = Some(all.folder);
    }

    fn row(&self, tenant: &Written, field: &FieldPath, findings: &mut Findings<'_>) -> Tenant {
        if !(tenant.weight.is_finite() && tenant.weight > 0.0) {
            let message = format!("{} is not a weight", tenant.weight);
            findings.error(&field.key("weight"), message, "write a number greater than 0");
        }
        let classes = self.classes_of(tenant, field, findings);
        let models = tenant.models.as_ref().map(|list| self.models_of(list, &field.key("models"), findings));
        Tenant {
            weight: tenant.weight,
            parent: None,
            default_class: self.default_class(tenant, &classes, field, findings),
            classes,
            models,
            bounds: self.bounds(tenant, &field.key("queue"), findings),
            quota: quota(&tenant.quota, &field.key("quota"), findings),
            placement: rules(&tenant.placement, self.pools, &field.key("placement"), findings),
        }
    }

    fn model_limits(
        &self,
        tenant: &Written,
        id: TenantId,
        field: &FieldPath,
        checked: &mut CheckedLimits,
        findings: &mut Findings<'_>,
    ) {
        for (name, limits) in tenant.model_limits.iter() {
            let field = field.key(name);
            if let Some(model) = self.models.served(name, self.file, &field, findings) {
                checked.add(limits, LimitScope::Model(id, model), &field, findings);
            }
        }
    }

    fn classes_of(
        &self,
        tenant: &Written,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> BTreeSet<ClassId> {
        let Some(list) = &tenant.classes else { return self.classes.iter().map(|(id, ..)| id).collect() };
        let field = field.key("classes");
        if list.is_empty() {
            findings.error(&field, "allows no class", "list some, or take the key away to allow all");
        }
        let listed = list.iter().enumerate();
        listed.filter_map(|(at, name)| self.class(name, &field.index(at), findings)).collect()
    }

    pub(in crate::config) fn class(
        &self,
        name: &str,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> Option<ClassId> {
        let id = self.classes.id(name);
        if id.is_none() && findings.whole("classes") {
            names::unknown("class", name, self.file.classes.names(), field, findings);
        }
        id
    }

    fn default_class(
        &self,
        tenant: &Written,
        allowed: &BTreeSet<ClassId>,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> ClassId {
        let usual = self.classes.id(USUAL_CLASS).filter(|id| allowed.contains(id));
        let listed = tenant.classes.iter().flatten().find_map(|name| self.classes.id(name));
        let first = listed.or_else(|| self.file.classes.names().find_map(|name| self.classes.id(name)));
        let fallback = usual.or(first).unwrap_or(ClassId::new(0));
        let Some(name) = &tenant.default_class else { return fallback };
        let field = field.key("default_class");
        let Some(id) = self.class(name, &field, findings) else { return fallback };
        if !allowed.contains(&id) {
            let hint = format!("add `{name}` to the tenant's `classes`, or choose one of those");
            findings.error(&field, format!("the tenant may not use `{name}`"), hint);
        }
        id
    }

    pub(in crate::config) fn models_of(
        &self,
        list: &[String],
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> BTreeSet<ModelId> {
        if list.is_empty() {
            findings.error(field, "allows no model", "list some, or take the key away to allow all");
        }
        let listed = list.iter().enumerate();
        let model =
            |(at, name): (usize, &String)| self.models.served(name, self.file, &field.index(at), findings);
        listed.filter_map(model).collect()
    }

    /// The tenant's own names, each of which stands for a model that it may
    /// use.
    fn model_map(
        &self,
        tenant: &Written,
        usable: Option<&BTreeSet<ModelId>>,
        field: &FieldPath,
        findings: &mut Findings<'_>,
    ) -> HashMap<String, String> {
        for (asked, meant) in tenant.model_map.iter() {
            let field = field.key(asked);
            names::model(asked, &field, findings);
            let split = self.models.names.splits.get(meant).filter(|_| self.file.models.get(meant).is_some());
            let called = split
                .map(NamedModel::Split)
                .or_else(|| self.models.served(meant, self.file, &field, findings).map(NamedModel::Model));
            let barred = |model: &ModelId| usable.is_some_and(|usable| !usable.contains(model));
            if let Some(barred) = called.iter().flat_map(NamedModel::models).find(barred) {
                let barred = self.models.table.name(barred);
                let hint = format!("add `{barred}` to the tenant's `models`, or name another one");
                findings.error(&field, format!("the tenant may not use `{barred}`"), hint);
            }
        }
        let map = tenant.model_map.iter();
        map.map(|(asked, meant)| (asked.to_owned(), meant.clone())).collect()
    }

    fn bounds(&self, tenant: &Written, field: &FieldPath, findings: &mut Findings<'_>) -> QueueBounds {
        let (own, all) = (&tenant.queue, &self.file.queue);
        let mut bound = |key: &str, own: Option<u64>, all: u64| {
            let Some(own) = own else { return all };
            numbers::at_least_one(own, &field.key(key), findings);
            if own > all {
                let message = format!("is more than may wait for all tenants (queue.{key})");
                findings.info(&field.key(key), message, "this bound is never reached");
            }
            own
        };
        QueueBounds {
            requests: bound("requests", own.requests, all.requests),
            bytes: bound("bytes", own.bytes.map(|size| size.0), all.bytes.0),
            tokens: bound("tokens", own.tokens, all.tokens),
        }
    }

    /// The tenant that everybody is while no key is asked for.
    fn everybody(&self, tenants: &mut IdTable<TenantId, Tenant>, findings: &mut Findings<'_>) -> TenantId {
        self.loopback_only(findings);
        self.keys_unused(findings);
        let (access, written) = (&self.file.auth, &self.file.tenants);
        let field = FieldPath::top("auth").key("tenant");
        if written.is_empty() && findings.whole("tenants") {
            let name = access.tenant.as_deref().unwrap_or(ONLY_TENANT);
            names::label(name, &field, findings);
            return tenants.insert(name, self.row(&Written::default(), &FieldPath::top("tenants"), findings));
        }
        let id = match &access.tenant {
            Some(name) => {
                let id = tenants.id(name);
                if id.is_none() && findings.whole("tenants") {
                    names::unknown("tenant", name, written.names(), &field, findings);
                }
                id
            }
            None if written.len() == 1 => written.names().next().and_then(|name| tenants.id(name)),
            None => {
                findings.error(&field, "is missing", "name the tenant that everybody is");
                None
            }
        };
        id.unwrap_or(TenantId::new(0))
    }

    /// With `mode: off` nobody is asked for a credential, whatever stands under
    /// the tenants.
    fn keys_unused(&self, findings: &mut Findings<'_>) {
        let has_one = |tenant: &Written| !(tenant.keys.is_empty() && tenant.client_certs.is_empty());
        let holders = self.file.tenants.iter().filter(|(_, tenant)| has_one(tenant));
        let names: Vec<String> = holders.map(|(name, _)| format!("`{name}`")).collect();
        if names.is_empty() && self.file.auth.oidc.is_empty() {
            return;
        }
        let whose = if names.is_empty() { "`auth.oidc`".to_owned() } else { names.join(", ") };
        let message = format!("`off` asks nobody for a credential: those of {whose} have no effect");
        let hint = "use `mode: keys`, or take the credentials away";
        findings.warn(&FieldPath::top("auth").key("mode"), message, hint);
    }

    /// Without keys, whoever can connect can use every GPU. So it is refused
    /// both where the file wants to listen and where the process does now.
    fn loopback_only(&self, findings: &mut Findings<'_>) {
        let field = FieldPath::top("auth").key("mode");
        if !self.listen.ip().is_loopback() {
            let message = format!("`off` would let in everybody who can reach {}", self.listen);
            findings.error(&field, message, "use `mode: keys`, or listen on 127.0.0.1");
            return;
        }
        let running = self.previous.map(|old| old.startup.listen);
        if let Some(listen) = running.filter(|listen| !listen.ip().is_loopback()) {
            let message = format!("`off` would let in everybody: this process still listens on {listen}");
            findings.error(&field, message, "restart it for the new `server.listen`");
        }
    }
}
