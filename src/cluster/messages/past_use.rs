//! Past use of tenants for a gateway that starts, in classes with a half-life of use (`usage_half_life`): it asks
//! one other gateway after the other until one of them knows some.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::core::model::policy::Policy;
use crate::core::queue::fairness::service::{ServiceAccount, ServiceReport};

/// Time after the start in which it is asked for. Later, what others know may have come from this gateway.
const ASKED_FOR: Duration = Duration::from_secs(10);
/// Time after which the next gateway is asked when one does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Most bytes of the names in one answer.
const MAX_NAMES: usize = 36 * 1024;
/// Most rows of an answer.
pub(super) const MAX_ROWS: usize = 1024;

/// Pool, class and tenant, and what it used, in tokens, as it counts now. The pool stands for its pool group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PastUseRow(String, String, String, u64);

/// The rows of these reports, as many as an answer has room for.
pub(super) fn rows(reports: &[ServiceReport], policy: &Policy) -> Vec<PastUseRow> {
    let mut names = 0;
    let rows = reports.iter().filter_map(|report| {
        let ServiceAccount::Tenant { pool, class, tenant } = report.account else { return None };
        let (pool, class) = (policy.pools.name(pool).to_owned(), policy.classes.name(class).to_owned());
        let (tenant, tokens) = (policy.tenants.name(tenant).to_owned(), u64::try_from(report.tokens).ok()?);
        Some(PastUseRow(pool, class, tenant, tokens))
    });
    let fits = |PastUseRow(pool, class, tenant, _): &PastUseRow| {
        names += pool.len() + class.len() + tenant.len();
        names <= MAX_NAMES
    };
    rows.take(MAX_ROWS).take_while(fits).collect()
}

/// The reports of these rows by this gateway's ids. Names that it does not have are left out.
pub(super) fn reports(rows: &[PastUseRow], policy: &Policy) -> Vec<ServiceReport> {
    let known = rows.iter().take(MAX_ROWS).filter_map(|PastUseRow(pool, class, tenant, tokens)| {
        let (pool, class) = (policy.pools.id(pool)?, policy.classes.id(class)?);
        let account = ServiceAccount::Tenant { pool, class, tenant: policy.tenants.id(tenant)? };
        Some(ServiceReport { account, tokens: i64::try_from(*tokens).unwrap_or(i64::MAX) })
    });
    known.collect()
}

/// The search for a gateway that knows what tenants have used.
#[derive(Debug)]
pub(super) struct PastUseSearch {
    begun: Instant,
    /// The gateways that were asked.
    asked: BTreeSet<String>,
    /// The one that was asked last, and when.
    last: Option<(String, Instant)>,
    is_over: bool,
}

impl PastUseSearch {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), asked: BTreeSet::new(), last: None, is_over: false }
    }

    /// The gateway to ask now, if there is one.
    pub(super) fn next(&mut self, me: &str, members: &[String], policy: &Policy) -> Option<String> {
        let counts = policy.classes.iter().any(|(_, _, class)| class.usage_half_life.is_some());
        self.is_over |= !counts || self.begun.elapsed() >= ASKED_FOR;
        let waits = self.last.as_ref().is_some_and(|(_, asked)| asked.elapsed() < ANSWER_TIMEOUT);
        if self.is_over || waits {
            return None;
        }
        let next = members.iter().find(|member| *member != me && !self.asked.contains(*member))?.clone();
        self.asked.insert(next.clone());
        self.last = Some((next.clone(), Instant::now()));
        Some(next)
    }

    /// Whether the answer of this gateway is to be taken over: the first one that has rows.
    pub(super) fn takes(&mut self, from: &str, rows: &[PastUseRow]) -> bool {
        if self.is_over || self.last.as_ref().is_none_or(|(asked, _)| asked != from) {
            return false;
        }
        self.last = None;
        self.is_over = !rows.is_empty();
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::config::load::load_str_with;
    use crate::config::secret::MachineSecrets;
    use crate::core::model::ids::TenantId;

    fn policy(class: &str, tenants: &str) -> Arc<Policy> {
        let text = format!(
            "{{version: 1, auth: {{mode: off, tenant: a}}, classes: {{interactive: {{{class}}}}}, tenants: {{{tenants}}}, pools: {{p: {{engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}}}}",
        );
        let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
        outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy
    }

    fn report(policy: &Policy, tenant: &str, tokens: i64) -> ServiceReport {
        let (pool, class) = (policy.pools.id("p").unwrap(), policy.classes.id("interactive").unwrap());
        let tenant = policy.tenants.id(tenant).unwrap_or(TenantId::new(0));
        ServiceReport { account: ServiceAccount::Tenant { pool, class, tenant }, tokens }
    }

    #[test]
    fn rows_come_back_by_names_and_are_bounded() {
        let (one, two) = (policy("usage_half_life: 1h", "a: {}, b: {}, c: {}"), policy("", "c: {}, a: {}"));
        let told = rows(&[report(&one, "c", 70), report(&one, "b", 5), report(&one, "a", -1)], &one);
        assert_eq!((told.len(), reports(&told, &two)), (2, vec![report(&two, "c", 70)]));
        let long = "t".repeat(64);
        let long_named = policy("", &format!("a: {{}}, {long}: {{}}"));
        for (tenant, count) in [("a", MAX_ROWS), (&long, MAX_NAMES / (64 + "p".len() + "interactive".len()))]
        {
            let many = rows(&vec![report(&long_named, tenant, i64::MAX); 5_000], &long_named);
            assert_eq!(many.len(), count);
            assert!(serde_json::to_string(&many).unwrap().len() < 60 * 1024);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_gateway_after_the_other_is_asked_until_one_knows() {
        let policy = policy("usage_half_life: 1h", "a: {}");
        let known = rows(&[report(&policy, "a", 9)], &policy);
        let members = ["a", "b", "me"].map(str::to_owned);
        let mut search = PastUseSearch::new();
        assert_eq!(search.next("me", &["me".to_owned()], &policy), None);
        assert_eq!(search.next("me", &members, &policy).as_deref(), Some("a"));
        assert_eq!(search.next("me", &members, &policy), None);
        assert!(!search.takes("b", &known), "it was not asked");
        assert!(!search.takes("a", &[]), "it has just started, too");
        assert_eq!(search.next("me", &members, &policy).as_deref(), Some("b"));
        assert!(search.takes("b", &known) && !search.takes("b", &known));
        assert_eq!(search.next("me", &members, &policy), None);
        let mut silent = PastUseSearch::new();
        silent.next("me", &members, &policy).unwrap();
        tokio::time::advance(ANSWER_TIMEOUT).await;
        assert_eq!(silent.next("me", &members, &policy).as_deref(), Some("b"));
        assert!(!silent.takes("a", &known), "too late");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_asked_where_it_does_not_count_or_late() {
        let members = ["a", "me"].map(str::to_owned);
        assert_eq!(PastUseSearch::new().next("me", &members, &policy("", "a: {}")), None);
        let mut late = PastUseSearch::new();
        tokio::time::advance(ASKED_FOR).await;
        assert_eq!(late.next("me", &members, &policy("usage_half_life: 1h", "a: {}")), None);
    }
}
