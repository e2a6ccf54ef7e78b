//! Policies of a replay: recorded ids in terms of another policy, and its fleet over time.

use crate::core::limits::LimitSubject;
use crate::core::limits::rule::{LimitId, LimitScope};
use crate::core::model::event::{Event, PoolStartTime};
use crate::core::model::id_table::IdTable;
use crate::core::model::job::JobSpec;
use crate::core::model::overrides::{Override, OverrideChange, OverrideTarget};
use crate::core::model::policy::{Policy, Pool, Replica};

/// The ids of a recorded policy in another one, by name.
#[derive(Debug, Clone, Copy)]
pub(super) struct PolicyNames<'a> {
    pub(super) recorded: &'a Policy,
    pub(super) other: &'a Policy,
}

/// The id of the same name in another table; absent when that table has no such row.
fn same_name<I: Copy + From<usize> + Into<usize>, T>(
    from: &IdTable<I, T>,
    to: &IdTable<I, T>,
    id: I,
) -> Option<I> {
    to.id(from.name(id))
}

macro_rules! by_name {
    ($self:ident.$table:ident, $id:expr) => {
        same_name(&$self.recorded.$table, &$self.other.$table, $id)
    };
}

impl PolicyNames<'_> {
    /// The job under the other policy. `None` when the policy does not have the job's tenant or class.
    pub(super) fn job(&self, spec: &JobSpec) -> Option<JobSpec> {
        let class = by_name!(self.classes, spec.class)?;
        let old_wait = self.recorded.classes.get(spec.class).map(|row| row.max_wait);
        let new_wait = self.other.classes.get(class)?.max_wait;
        let asked = spec.deadline.since(spec.arrived);
        // A shorter wait than the class allowed is the client's own.
        let wait = if old_wait.is_some_and(|old| asked < old) { asked.min(new_wait) } else { new_wait };
        Some(JobSpec {
            tenant: by_name!(self.tenants, spec.tenant)?,
            class,
            key: spec.key.and_then(|key| by_name!(self.keys, key)),
            // A model that the policy does not have keeps an id without a row: the scheduler refuses it.
            model: by_name!(self.models, spec.model).unwrap_or_else(|| self.other.models.capacity().into()),
            deadline: (spec.arrived + wait).min(spec.client_deadline),
            ..*spec
        })
    }

    /// An event from outside under the other policy. `None` when the policy lacks what it is about.
    pub(super) fn outside(&self, event: &Event) -> Option<Event> {
        Some(match event {
            Event::Overridden(wanted) => {
                Event::Overridden(Override { change: self.change(&wanted.change)?, ..wanted.clone() })
            }
            Event::OverrideEnded(target) => Event::OverrideEnded(match *target {
                OverrideTarget::Pool(pool) => OverrideTarget::Pool(by_name!(self.pools, pool)?),
                OverrideTarget::Replica(id) => OverrideTarget::Replica(by_name!(self.replicas, id)?),
                OverrideTarget::Pause(tenant) => OverrideTarget::Pause(by_name!(self.tenants, tenant)?),
                OverrideTarget::Boost(tenant) => OverrideTarget::Boost(by_name!(self.tenants, tenant)?),
            }),
            Event::UsageRestored { rule, amount } => {
                let scope = match rule.scope {
                    LimitScope::Tenant(tenant) => LimitScope::Tenant(by_name!(self.tenants, tenant)?),
                    LimitScope::Key(key) => LimitScope::Key(by_name!(self.keys, key)?),
                    LimitScope::Model(tenant, model) => {
                        LimitScope::Model(by_name!(self.tenants, tenant)?, by_name!(self.models, model)?)
                    }
                };
                Event::UsageRestored { rule: LimitId { scope, ..*rule }, amount: *amount }
            }
            Event::PromptDenied { subject, tokens } => {
                let subject = LimitSubject {
                    tenant: by_name!(self.tenants, subject.tenant)?,
                    key: subject.key.and_then(|key| by_name!(self.keys, key)),
                    model: by_name!(self.models, subject.model)?,
                };
                Event::PromptDenied { subject, tokens: *tokens }
            }
            Event::StartsRestored(starts) => {
                let start = |row: &PoolStartTime| {
                    Some(PoolStartTime { pool: by_name!(self.pools, row.pool)?, took: row.took })
                };
                Event::StartsRestored(starts.iter().filter_map(start).collect())
            }
            other => other.clone(),
        })
    }

    fn change(&self, change: &OverrideChange) -> Option<OverrideChange> {
        Some(match *change {
            OverrideChange::ClosePool(pool, how) => {
                OverrideChange::ClosePool(by_name!(self.pools, pool)?, how)
            }
            OverrideChange::CloseReplica(replica, how) => {
                OverrideChange::CloseReplica(by_name!(self.replicas, replica)?, how)
            }
            OverrideChange::Pause(tenant) => OverrideChange::Pause(by_name!(self.tenants, tenant)?),
            OverrideChange::Boost(tenant, factor) => {
                OverrideChange::Boost(by_name!(self.tenants, tenant)?, factor)
            }
        })
    }
}

/// The policy of a file with the fleet of a recorded one: a pool whose replicas the file does not name
/// has those that the pool of that name had. Ids stay those of `before`.
pub(super) fn with_fleet(file: &Policy, recorded: &Policy, before: Option<&Policy>) -> Policy {
    let replicas = IdTable::successor(before.map_or(&file.replicas, |before| &before.replicas));
    let generation = before.map_or(file.generation, |before| before.generation + 1);
    let mut policy = Policy { generation, replicas, ..file.clone() };
    for (_, name, row) in file.replicas.iter() {
        policy.replicas.insert(name, row.clone());
    }
    for (pool, name, row) in file.pools.iter().filter(|(_, _, row)| row.replicas.is_empty()) {
        let there = recorded.pools.id(name).and_then(|id| recorded.pools.get(id));
        let mut replicas = Vec::new();
        for old in there.into_iter().flat_map(|row| &row.replicas) {
            let Some(found) = recorded.replicas.get(*old) else { continue };
            let name = recorded.replicas.name(*old);
            let id = policy.replicas.insert(name, Replica { pool, ..found.clone() });
            replicas.push(id);
            if recorded.draining.contains(old) {
                policy.draining.insert(id);
            }
            if recorded.spot_notices.contains(old) {
                policy.spot_notices.insert(id);
            }
        }
        policy.pools.insert(name, Pool { replicas, ..row.clone() });
    }
    policy
}

/// Whether the file leaves the replicas of some pool to discovery.
pub(super) fn discovers(file: &Policy) -> bool {
    file.pools.iter().any(|(_, _, row)| row.replicas.is_empty())
}
