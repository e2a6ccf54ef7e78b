//! Cost metrics: replica time and cost by tenant and pool. The sums are fractions and the
//! recorder's counters hold whole numbers only, so the sums are kept here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use crate::core::billing::bill::AttemptBill;
use crate::core::model::ids::{PoolId, TenantId};
use crate::core::model::policy::Policy;
use crate::telemetry::metrics::catalogue::{self, Metric};
use crate::telemetry::metrics::exposition::Exposition;
use crate::telemetry::metrics::labels::{self, MAX_OWNERS};
use crate::telemetry::text::known;

type CostOwner = (Option<TenantId>, Option<PoolId>);

/// Sums of time and cost by tenant and pool.
#[derive(Debug, Default)]
pub(super) struct Costs(DashMap<CostOwner, Arc<CostSums>>);

#[derive(Debug, Default)]
struct CostSums {
    nanos: AtomicU64,
    /// Cost in 1e-9 of the currency.
    money: AtomicU64,
}

impl Costs {
    pub(super) fn add(&self, policy: &Policy, tenant: Option<TenantId>, bill: &AttemptBill) {
        let tenant = tenant.filter(|id| known(policy.tenants.name(*id)).is_some());
        let pool = Some(bill.pool).filter(|id| known(policy.pools.name(*id)).is_some());
        let sums = self.sums((tenant, pool));
        let nanos = u64::try_from(bill.time.as_nanos()).unwrap_or(u64::MAX);
        sums.nanos.fetch_add(nanos, Ordering::Relaxed);
        sums.money.fetch_add(bill.money, Ordering::Relaxed);
    }

    /// Starts the sums of the tenants and pools of the policy at 0, for at most half of the owners:
    /// the others are for those that use something.
    pub(super) fn register(&self, policy: &Policy) {
        for owner in labels::owners(policy) {
            if self.0.len() >= MAX_OWNERS / 2 {
                return;
            }
            self.sums((owner.tenant, owner.pool));
        }
    }

    fn sums(&self, payer: CostOwner) -> Arc<CostSums> {
        if let Some(sums) = self.0.get(&payer) {
            return Arc::clone(&sums);
        }
        let payer = if self.0.len() < MAX_OWNERS { payer } else { (None, payer.1) };
        Arc::clone(&self.0.entry(payer).or_default())
    }

    #[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
    pub(super) fn write(&self, policy: &Policy, text: &mut String) {
        type ReadSum = fn(&CostSums) -> &AtomicU64;
        let mut rows: Vec<_> = self.0.iter().map(|row| (*row.key(), Arc::clone(row.value()))).collect();
        rows.sort_unstable_by_key(|(payer, _)| *payer);
        let mut out = Exposition(text);
        let families: [(&Metric, ReadSum); 2] = [
            (&catalogue::usage::GPU_SECONDS, |sums| &sums.nanos),
            (&catalogue::usage::COST, |sums| &sums.money),
        ];
        for (metric, read) in families {
            out.family(metric);
            for ((tenant, pool), sums) in &rows {
                let (tenant, pool) = (labels::tenant(policy, *tenant), labels::pool(policy, *pool));
                let value = read(sums).load(Ordering::Relaxed) as f64 / 1e9;
                out.sample(metric, &[("tenant", tenant), ("pool", pool)], value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::core::billing::bill::{AttemptBill, Waste, WasteCause};
    use crate::core::model::ids::{PoolId, ReplicaId, TenantId};
    use crate::telemetry::event::AttemptBilled;
    use crate::telemetry::fixtures::{render, samples, telemetry};

    #[test]
    fn parts_of_a_second_and_of_the_currency_add_up() {
        let telemetry = telemetry(1);
        let waste = Some(Waste { tokens: 7, why: WasteCause::ClientGone });
        let (time, money) = (Duration::from_millis(250), 1_500_000);
        let bill =
            AttemptBill { pool: PoolId::new(0), replica: ReplicaId::new(0), time, price: None, money, waste };
        for tenant in [Some(TenantId::new(0)), Some(TenantId::new(0)), Some(TenantId::new(77)), None] {
            AttemptBilled { tenant, bill: &bill }.emit(&telemetry);
        }
        let text = render(&telemetry);
        let samples = samples(&text);
        let of = |name: &str, tenant: &str| {
            samples[&*format!(r#"penstock_{name}_total{{tenant="{tenant}",pool="a100"}}"#)]
        };
        assert_eq!((of("gpu_seconds", "team-0"), of("gpu_seconds", "other")), (0.5, 0.5));
        assert_eq!((of("cost", "team-0"), of("cost", "other")), (0.003, 0.003));
        assert_eq!(samples[r#"penstock_wasted_tokens_total{reason="client_gone"}"#], 28.0);
    }
}
