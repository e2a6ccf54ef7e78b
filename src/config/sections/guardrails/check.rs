//! Check of `guardrails`, and of what differs for classes and tenants.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderValue;

use crate::config::file::ConfigFile;
use crate::config::secret::SecretReader;
use crate::config::sections::guardrails::{GuardrailRuleSection, OnGuardrailFailure};
use crate::config::sections::identity::client_tls;
use crate::config::sections::secret_ref;
use crate::config::settings::guardrails::{GuardrailRule, GuardrailSettings};
use crate::config::syntax::field::FieldPath;
use crate::config::validate::findings::Findings;
use crate::config::validate::{numbers, url};
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::{ClassId, TenantId};
use crate::core::model::policy::{Class, Tenant};

/// Most calls at once.
const MAX_CALLS: u32 = 10_000;

/// The rules of the file; `None` without the section.
pub(in crate::config) fn validate(
    file: &ConfigFile,
    classes: &IdTable<ClassId, Class>,
    tenants: &IdTable<TenantId, Tenant>,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<Arc<GuardrailSettings>> {
    let Some(written) = &file.guardrails else {
        unused("classes", file.classes.iter().map(|(name, class)| (name, &class.guardrails)), findings);
        unused("tenants", file.tenants.iter().map(|(name, tenant)| (name, &tenant.guardrails)), findings);
        return None;
    };
    let section = FieldPath::top("guardrails");
    let url = match url::any(&written.url) {
        Ok(url) if url.path().len() > 1 && url.path().ends_with('/') => {
            findings.error(&section.key("url"), "ends with a slash", "take the slash away");
            None
        }
        Ok(url) => Some(url),
        Err((message, hint)) => {
            findings.error(&section.key("url"), message, hint);
            None
        }
    };
    let is_https = url.as_ref().is_none_or(|url| url.scheme_str() == Some("https"));
    if written.tls.is_some() && !is_https {
        findings.error(
            &section.key("tls"),
            "is not used with `http`",
            "write an `https` URL, or take it away",
        );
    }
    let tls = client_tls::validate(written.tls.as_ref(), &section.key("tls"), secrets, findings);
    let key = written.api_key.as_ref();
    let api_key = key.and_then(|key| secret_ref::read(key, &section.key("api_key"), secrets, findings));
    let bearer = api_key.map(|key| HeaderValue::try_from(format!("Bearer {}", key.expose())));
    let bearer = bearer.and_then(|header| {
        let hint = "a key has no line breaks and no characters beyond ASCII";
        let shown = header.map_err(|_| findings.error(&section.key("api_key"), "fits no header", hint));
        shown.ok().map(|mut header| {
            header.set_sensitive(true);
            header
        })
    });
    if !(1..=MAX_CALLS).contains(&written.max_calls) {
        let message = format!("{} is out of range", written.max_calls);
        findings.error(&section.key("max_calls"), message, format!("write 1 to {MAX_CALLS}"));
    }
    let own = GuardrailRule {
        prompts: written.prompts,
        answers: written.answers,
        fails_open: written.on_failure == OnGuardrailFailure::Allow,
    };
    Some(Arc::new(GuardrailSettings {
        timeout: numbers::positive(written.timeout, &section.key("timeout"), findings),
        max_bytes: numbers::some_bytes(written.max_body, &section.key("max_body"), findings),
        max_calls: written.max_calls as usize,
        url: url?,
        tls,
        bearer,
        rules: rules(own, file, classes, tenants),
    }))
}

/// The rule of each class of each tenant.
fn rules(
    own: GuardrailRule,
    file: &ConfigFile,
    classes: &IdTable<ClassId, Class>,
    tenants: &IdTable<TenantId, Tenant>,
) -> BTreeMap<(TenantId, ClassId), GuardrailRule> {
    let rule = |tenant: &str, class| {
        let class = file.classes.get(classes.name(class));
        let of_class = class.map_or(own, |class| over(class.guardrails, own));
        file.tenants.get(tenant).map_or(of_class, |tenant| over(tenant.guardrails, of_class))
    };
    let pairs = tenants.iter().flat_map(|(tenant, tenant_name, row)| {
        row.classes.iter().map(move |class| (tenant, tenant_name, *class))
    });
    pairs.map(|(tenant, name, class)| ((tenant, class), rule(name, class))).collect()
}

fn unused<'a>(
    section: &'static str,
    entries: impl Iterator<Item = (&'a str, &'a GuardrailRuleSection)>,
    findings: &mut Findings<'_>,
) {
    for (name, _) in entries.filter(|(_, rule)| !rule.is_empty()) {
        let field = FieldPath::top(section).key(name).key("guardrails");
        findings.error(
            &field,
            "needs the section `guardrails`",
            "write it with its `url`, or take this away",
        );
    }
}

fn over(own: GuardrailRuleSection, rule: GuardrailRule) -> GuardrailRule {
    GuardrailRule {
        prompts: own.prompts.unwrap_or(rule.prompts),
        answers: own.answers.unwrap_or(rule.answers),
        fails_open: own.on_failure.map_or(rule.fails_open, |then| then == OnGuardrailFailure::Allow),
    }
}
