//! Check of the tree of tenants: parents, levels, and guarantees on each level.

use crate::config::sections::tenants::TenantSection;
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::named::NamedEntries;
use crate::config::validate::findings::Findings;
use crate::config::validate::names;
use crate::core::model::policy::tenants::MAX_TENANT_LEVELS;

/// Room for the rounding of a sum of decimal fractions.
const ROUNDING: f64 = 1e-9;

/// The parent of a tenant that may have it.
pub(super) fn parent_of<'a>(
    name: &str,
    tenants: &'a NamedEntries<TenantSection>,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Option<&'a str> {
    let parent = |name: &str| tenants.get(name)?.parent.as_deref();
    let own = parent(name)?;
    if tenants.get(own).is_none() {
        if findings.whole("tenants") {
            names::unknown("tenant", own, tenants.names(), field, findings);
        }
        return None;
    }
    let mut above = vec![name];
    let mut next = Some(own);
    while let Some(one) = next.filter(|one| tenants.get(one).is_some()) {
        if above.contains(&one) {
            // One tenant of the circle says so.
            if one == name && above.iter().min() == Some(&name) {
                let circle: Vec<&str> = above.iter().copied().chain([one]).collect();
                let hint = "take the parent of one of them away";
                findings.error(field, format!("the parents form a circle ({})", circle.join(" -> ")), hint);
            }
            return None;
        }
        above.push(one);
        next = parent(one);
    }
    if above.len() > MAX_TENANT_LEVELS {
        let levels = above.len();
        let message = format!("is {levels} levels deep ({})", above.join(" -> "));
        findings.error(
            field,
            message,
            format!("at most {MAX_TENANT_LEVELS} levels: give it a parent further up"),
        );
        return None;
    }
    Some(own)
}

/// What is guaranteed to the children of a tenant must be guaranteed to the tenant, and what is
/// guaranteed to all without a parent must be there.
pub(super) fn guarantees(tenants: &NamedEntries<TenantSection>, findings: &mut Findings<'_>) {
    let of = |parent: Option<&str>| {
        let children = tenants.iter().filter(|(_, row)| row.parent.as_deref() == parent);
        let rows = children.map(|(name, row)| (name.to_owned(), row.quota.guarantee));
        rows.filter(|(_, guarantee)| (0.0..=1.0).contains(guarantee) && *guarantee > 0.0).collect::<Vec<_>>()
    };
    let listed = |rows: &[(String, f64)]| {
        let named: Vec<String> = rows.iter().map(|(name, guarantee)| format!("{name} {guarantee}")).collect();
        named.join(", ")
    };
    let sum = |rows: &[(String, f64)]| rows.iter().map(|(_, guarantee)| guarantee).sum::<f64>();
    let all = of(None);
    if sum(&all) > 1.0 + ROUNDING {
        let message = format!("the guarantees are {:.2} together ({})", sum(&all), listed(&all));
        let hint = "lower quota.guarantee of some tenant until the sum is 1 or less";
        findings.error(&FieldPath::top("tenants"), message, hint);
    }
    for (name, row) in tenants.iter() {
        let (children, own) = (of(Some(name)), row.quota.guarantee);
        if sum(&children) > own + ROUNDING {
            let message = format!(
                "guarantees {own}, and its children {:.2} together ({})",
                sum(&children),
                listed(&children)
            );
            let hint = "raise it to that sum, or lower quota.guarantee of some child";
            let field = FieldPath::top("tenants").key(name).key("quota").key("guarantee");
            findings.error(&field, message, hint);
        }
    }
}
