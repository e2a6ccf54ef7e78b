//! Tree of tenants: which tenants share as one, such as the teams of an organisation.

use smallvec::SmallVec;

use crate::model::ids::TenantId;
use crate::model::number_map::NumberMap;
use crate::model::policy::Policy;

/// The most levels of tenants, from a tenant without a parent down to the last one.
pub const MAX_TENANT_LEVELS: usize = 4;

/// The groups that a tenant belongs to, the innermost first. A group is a tenant with children; the
/// group's own requests count as those of one more child.
pub type TenantGroups = SmallVec<[TenantId; MAX_TENANT_LEVELS]>;

/// Parents of tenants. A tenant without a parent, and without children, is not listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantTree {
    parents: NumberMap<TenantId, TenantId>,
    /// Groups with the number of their level, 0 for one without a parent.
    groups: NumberMap<TenantId, usize>,
}

impl TenantTree {
    /// The tree of a policy. A tenant whose parents form a circle, or are too many, counts as one
    /// without a parent.
    pub fn new(policy: &Policy) -> Self {
        let parent = |tenant: TenantId| {
            let parent = policy.tenants.get(tenant)?.parent?;
            policy.tenants.get(parent).map(|_| parent)
        };
        let level = |tenant: TenantId| {
            std::iter::successors(parent(tenant), |next| parent(*next)).take(MAX_TENANT_LEVELS).count()
        };
        let linked = policy.tenants.iter().filter_map(|(id, ..)| Some((id, parent(id)?)));
        let parents: NumberMap<TenantId, TenantId> =
            linked.filter(|(id, _)| level(*id) < MAX_TENANT_LEVELS).collect();
        let groups = parents.values().map(|group| (*group, level(*group))).collect();
        Self { parents, groups }
    }

    /// Whether no tenant has a parent.
    pub fn is_flat(&self) -> bool {
        self.parents.is_empty()
    }

    /// Whether the tenant has children.
    pub fn is_group(&self, tenant: TenantId) -> bool {
        self.groups.contains_key(&tenant)
    }

    /// The parent of a tenant or group.
    pub fn parent(&self, tenant: TenantId) -> Option<TenantId> {
        self.parents.get(&tenant).copied()
    }

    /// The group in which the tenant's own requests compete.
    pub fn group_of(&self, tenant: TenantId) -> Option<TenantId> {
        if self.is_group(tenant) { Some(tenant) } else { self.parent(tenant) }
    }

    /// The groups in which the tenant's own requests count, the innermost first.
    pub fn groups_of(&self, tenant: TenantId) -> TenantGroups {
        if self.is_flat() {
            return TenantGroups::new();
        }
        std::iter::successors(self.group_of(tenant), |group| self.parent(*group)).collect()
    }

    /// All groups, those of deeper levels first.
    pub fn groups_from_below(&self) -> Vec<TenantId> {
        let mut rows: Vec<_> = self.groups.iter().map(|(group, level)| (*level, *group)).collect();
        rows.sort_unstable_by(|a, b| b.cmp(a));
        rows.into_iter().map(|(_, group)| group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ClassId;
    use crate::model::policy::{QueueBounds, Quota, Tenant};

    /// A policy whose tenants have these parents.
    fn tree(parents: &[Option<u32>]) -> TenantTree {
        let mut policy = Policy::default();
        for (index, parent) in parents.iter().enumerate() {
            let row = Tenant {
                weight: 1.0,
                parent: parent.map(TenantId::new),
                default_class: ClassId::new(0),
                classes: [ClassId::new(0)].into(),
                models: None,
                bounds: QueueBounds::default(),
                quota: Quota::default(),
                placement: Default::default(),
            };
            policy.tenants.insert(&index.to_string(), row);
        }
        TenantTree::new(&policy)
    }

    #[test]
    fn a_group_s_own_requests_compete_with_its_children() {
        let some = tree(&[None, Some(0), Some(1), None]);
        let groups =
            |tenant| some.groups_of(TenantId::new(tenant)).iter().map(|id| id.index()).collect::<Vec<_>>();
        assert_eq!([0, 1, 2, 3].map(groups), [vec![0], vec![1, 0], vec![1, 0], vec![]]);
        assert_eq!(some.groups_from_below(), [TenantId::new(1), TenantId::new(0)]);
        assert!(!some.is_flat() && tree(&[None, None]).is_flat());
    }

    #[test]
    fn circles_strangers_and_depths_end() {
        let circle = tree(&[Some(1), Some(0), Some(2), Some(77), None]);
        assert!(circle.is_flat());
        let deep = tree(&[None, Some(0), Some(1), Some(2), Some(3), Some(4)]);
        assert_eq!(deep.groups_of(TenantId::new(3)).len(), 3);
        assert_eq!(deep.parent(TenantId::new(4)), None, "a fifth level");
    }
}
