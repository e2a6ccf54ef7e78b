//! `tenants`, their keys, and `auth`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use crate::config::field::Field;
use crate::config::file::File;
use crate::config::file::tenants::{Key, Mode, Tenant as Written, TenantQuota};
use crate::config::keys;
use crate::config::named::Named;
use crate::config::settings::names::{Called, TenantNames};
use crate::config::settings::{Auth, KeyEntry, Settings};
use crate::config::validate::findings::Findings;
use crate::config::validate::models::Models;
use crate::config::validate::{budgets, limits, names, placement};
use crate::core::budget::rule::{Rule, Scope};
use crate::core::ids::{ClassId, KeyId, ModelId, PoolId, TenantId};
use crate::core::policy::{Bounds, Class, Pool, Quota, Tenant};
use crate::core::table::Table;

/// The class of requests that ask for none, where nothing else is said.
const USUAL_CLASS: &str = "standard";
/// Room for the rounding of a sum of decimal fractions.
const ROUNDING: f64 = 1e-9;
/// The tenant of a file that names none.
const ONLY_TENANT: &str = "default";

/// What tenants refer to.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) file: &'a File,
    pub(super) previous: Option<&'a Settings>,
    pub(super) listen: SocketAddr,
    pub(super) classes: &'a Table<ClassId, Class>,
    pub(super) models: &'a Models,
    pub(super) pools: &'a Table<PoolId, Pool>,
}

/// Who may come in.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) tenants: Table<TenantId, Tenant>,
    pub(super) auth: Auth,
    pub(super) names: BTreeMap<TenantId, TenantNames>,
    pub(super) limits: Vec<Rule>,
    pub(super) keys: Table<KeyId, ()>,
}

pub(super) fn validate(context: &Context<'_>, findings: &mut Findings<'_>) -> Admitted {
    let file = context.file;
    let section = Field::top("tenants");
    let mut tenants = context.previous.map(|old| Table::successor(&old.policy.tenants)).unwrap_or_default();
    let mut own_names = BTreeMap::new();
    let mut ring = HashMap::new();
    let mut seen = HashMap::new();
    let mut limits = Vec::new();
    let mut keys = context.previous.map(|old| Table::successor(&old.policy.keys)).unwrap_or_default();
    for (name, tenant) in file.tenants.iter() {
        let field = section.key(name);
        names::label(name, &field, findings);
        let row = context.row(tenant, &field, findings);
        let allowed = row.classes.clone();
        let map = context.model_map(tenant, row.models.as_ref(), &field.key("model_map"), findings);
        let id = tenants.insert(name, row);
        budgets::rules(&tenant.limits, Scope::Tenant(id), &field.key("limits"), &mut limits, findings);
        context.model_limits(tenant, id, &field.key("model_limits"), &mut limits, findings);
        own_names.insert(id, TenantNames { map, allow_fallback: tenant.allow_fallback });
        for (at, key) in tenant.keys.iter().enumerate() {
            let field = field.key("keys").index(at);
            let class = context.key_class(key, &allowed, &field, findings);
            if let Some(digest) = key_digest(key, &field, &mut seen, findings) {
                let limited = (!key.limits.is_empty()).then(|| keys.insert(&key.id, ()));
                if let Some(key_id) = limited {
                    let scope = Scope::Key(key_id);
                    budgets::rules(&key.limits, scope, &field.key("limits"), &mut limits, findings);
                }
                ring.insert(key.id.clone(), KeyEntry { digest, tenant: id, class, limited });
            }
        }
    }
    guarantees(&file.tenants, findings);
    let auth = match file.auth.mode {
        Mode::Keys => by_key(file, ring, findings),
        Mode::Off => Auth::Off(context.everybody(&mut tenants, findings)),
    };
    Admitted { tenants, auth, names: own_names, limits, keys }
}

/// What is guaranteed to all tenants together must be there.
fn guarantees(tenants: &Named<Written>, findings: &mut Findings<'_>) {
    let all = || tenants.iter().map(|(name, tenant)| (name, tenant.quota.guarantee));
    let sum: f64 = all().map(|(_, guarantee)| guarantee).filter(|part| (0.0..=1.0).contains(part)).sum();
    if sum <= 1.0 + ROUNDING {
        return;
    }
    let named = all().filter(|(_, guarantee)| *guarantee > 0.0);
    let named: Vec<String> = named.map(|(name, guarantee)| format!("{name} {guarantee}")).collect();
    let message = format!("the guarantees are {sum:.2} together ({})", named.join(", "));
    let hint = "lower quota.guarantee of some tenant until the sum is 1 or less";
    findings.error(&Field::top("tenants"), message, hint);
}

fn quota(quota: &TenantQuota, field: &Field, findings: &mut Findings<'_>) -> Quota {
    let mut share = |key: &str, part: f64| limits::share(part, &field.key(key), findings);
    Quota {
        guarantee: share("guarantee", quota.guarantee),
        borrow: share("borrow", quota.borrow),
        lend: share("lend", quota.lend),
    }
}

fn by_key(file: &File, ring: HashMap<String, KeyEntry>, findings: &mut Findings<'_>) -> Auth {
    let field = Field::top("tenants");
    if file.tenants.iter().all(|(_, tenant)| tenant.keys.is_empty()) && findings.whole("tenants") {
        let hint = "make one with `penstock keys new` and put it under a tenant's `keys`, or set `auth: {mode: off}` on \
                    a loopback address";
        findings.error(&field, "there is no key, so nobody could come in", hint);
        return Auth::Keys(ring);
    }
    for (name, _) in file.tenants.iter().filter(|(_, tenant)| tenant.keys.is_empty()) {
        let hint = "make one with `penstock keys new`";
        findings.warn(&field.key(name), "has no key, so nobody can be this tenant", hint);
    }
    Auth::Keys(ring)
}

/// Checks a key's id and digest, each of which may occur once in the file.
fn key_digest(
    key: &Key,
    field: &Field,
    seen: &mut HashMap<String, Field>,
    findings: &mut Findings<'_>,
) -> Option<[u8; 32]> {
    if !keys::is_id(&key.id) {
        let message =
            if key.id.is_empty() { "is missing".to_owned() } else { format!("{:?} is no key id", key.id) };
        findings.error(&field.key("id"), message, "copy what `penstock keys new` printed");
    } else if let Some(first) = seen.insert(key.id.clone(), field.clone()) {
        findings.error(
            &field.key("id"),
            format!("`{}` is {first} already", key.id),
            "an id belongs to one key",
        );
    }
    let Some(digest) = keys::parse_digest(&key.digest) else {
        let message = if key.digest.is_empty() { "is missing" } else { "is not a digest" };
        findings.error(
            &field.key("digest"),
            message,
            "write `blake3:` and 64 hex digits, as `penstock keys new` printed",
        );
        return None;
    };
    if let Some(first) = seen.insert(keys::digest_text(&digest), field.clone()) {
        findings.error(&field.key("digest"), format!("is the digest of {first}"), "each key has its own");
    }
    Some(digest)
}

impl Context<'_> {
    fn row(&self, tenant: &Written, field: &Field, findings: &mut Findings<'_>) -> Tenant {
        if !(tenant.weight.is_finite() && tenant.weight > 0.0) {
            let message = format!("{} is not a weight", tenant.weight);
            findings.error(&field.key("weight"), message, "write a number greater than 0");
        }
        let classes = self.classes_of(tenant, field, findings);
        let models = tenant.models.as_ref().map(|list| self.models_of(list, &field.key("models"), findings));
        Tenant {
            weight: tenant.weight,
            default_class: self.default_class(tenant, &classes, field, findings),
            classes,
            models,
            bounds: self.bounds(tenant, &field.key("queue"), findings),
            quota: quota(&tenant.quota, &field.key("quota"), findings),
            placement: placement::rules(&tenant.placement, self.pools, &field.key("placement"), findings),
        }
    }

    fn model_limits(
        &self,
        tenant: &Written,
        id: TenantId,
        field: &Field,
        rules: &mut Vec<Rule>,
        findings: &mut Findings<'_>,
    ) {
        for (name, limits) in tenant.model_limits.iter() {
            let field = field.key(name);
            if let Some(model) = self.models.served(name, self.file, &field, findings) {
                budgets::rules(limits, Scope::Model(id, model), &field, rules, findings);
            }
        }
    }

    fn classes_of(&self, tenant: &Written, field: &Field, findings: &mut Findings<'_>) -> BTreeSet<ClassId> {
        let Some(list) = &tenant.classes else { return self.classes.iter().map(|(id, ..)| id).collect() };
        let field = field.key("classes");
        if list.is_empty() {
            findings.error(&field, "allows no class", "list some, or take the key away to allow all");
        }
        let listed = list.iter().enumerate();
        listed.filter_map(|(at, name)| self.class(name, &field.index(at), findings)).collect()
    }

    fn class(&self, name: &str, field: &Field, findings: &mut Findings<'_>) -> Option<ClassId> {
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
        field: &Field,
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

    fn key_class(
        &self,
        key: &Key,
        allowed: &BTreeSet<ClassId>,
        field: &Field,
        findings: &mut Findings<'_>,
    ) -> Option<ClassId> {
        let name = key.class.as_deref()?;
        let field = field.key("class");
        let id = self.class(name, &field, findings)?;
        if !allowed.contains(&id) {
            let hint = format!("add `{name}` to the tenant's `classes`, or choose one of those");
            findings.error(&field, format!("the tenant may not use `{name}`"), hint);
        }
        Some(id)
    }

    fn models_of(&self, list: &[String], field: &Field, findings: &mut Findings<'_>) -> BTreeSet<ModelId> {
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
        field: &Field,
        findings: &mut Findings<'_>,
    ) -> HashMap<String, String> {
        for (asked, meant) in tenant.model_map.iter() {
            let field = field.key(asked);
            names::model(asked, &field, findings);
            let split = self.models.names.splits.get(meant).filter(|_| self.file.models.get(meant).is_some());
            let called = split
                .map(Called::Split)
                .or_else(|| self.models.served(meant, self.file, &field, findings).map(Called::Model));
            let barred = |model: &ModelId| usable.is_some_and(|usable| !usable.contains(model));
            if let Some(barred) = called.iter().flat_map(Called::models).find(barred) {
                let barred = self.models.table.name(barred);
                let hint = format!("add `{barred}` to the tenant's `models`, or name another one");
                findings.error(&field, format!("the tenant may not use `{barred}`"), hint);
            }
        }
        let map = tenant.model_map.iter();
        map.map(|(asked, meant)| (asked.to_owned(), meant.clone())).collect()
    }

    fn bounds(&self, tenant: &Written, field: &Field, findings: &mut Findings<'_>) -> Bounds {
        let (own, all) = (&tenant.queue, &self.file.queue);
        let mut bound = |key: &str, own: Option<u64>, all: u64| {
            let Some(own) = own else { return all };
            limits::at_least_one(own, &field.key(key), findings);
            if own > all {
                let message = format!("is more than may wait for all tenants (queue.{key})");
                findings.info(&field.key(key), message, "this bound is never reached");
            }
            own
        };
        Bounds {
            requests: bound("requests", own.requests, all.requests),
            bytes: bound("bytes", own.bytes.map(|size| size.0), all.bytes.0),
            tokens: bound("tokens", own.tokens, all.tokens),
        }
    }

    /// The tenant that everybody is while no key is asked for.
    fn everybody(&self, tenants: &mut Table<TenantId, Tenant>, findings: &mut Findings<'_>) -> TenantId {
        self.loopback_only(findings);
        let (access, written) = (&self.file.auth, &self.file.tenants);
        let field = Field::top("auth").key("tenant");
        if written.is_empty() && findings.whole("tenants") {
            let name = access.tenant.as_deref().unwrap_or(ONLY_TENANT);
            names::label(name, &field, findings);
            return tenants.insert(name, self.row(&Written::default(), &Field::top("tenants"), findings));
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

    /// Without keys, whoever can connect can use every GPU. So it is refused
    /// both where the file wants to listen and where the process does now.
    fn loopback_only(&self, findings: &mut Findings<'_>) {
        let field = Field::top("auth").key("mode");
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
