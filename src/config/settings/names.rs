//! Settings of model names: what each name that clients use stands for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::core::model::ids::{ModelId, TenantId};

/// Every name that a client may use for a model, and what serves in its place.
#[derive(Debug, Clone, Default)]
pub struct ModelNames {
    /// Public models by name and alias.
    pub models: HashMap<String, ModelId>,
    /// Names, aliases included, whose requests are shared out. They go before
    /// `models`: a split may have the name of one of its targets.
    pub splits: HashMap<String, Split>,
    /// The models that may serve a request in place of the one it is for, best
    /// first.
    pub fallbacks: BTreeMap<ModelId, Vec<ModelId>>,
    /// What differs from tenant to tenant.
    pub tenants: BTreeMap<TenantId, TenantNames>,
}

/// A name whose requests are shared out over several models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// In the order of the file. The sum of the weights is greater than zero.
    pub targets: Vec<SplitTarget>,
    /// The models that may serve in place of the target, best first; empty =
    /// those of the target.
    pub fallbacks: Vec<ModelId>,
}

/// A model that gets a part of a split's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitTarget {
    pub model: ModelId,
    /// Its part of the requests, relative to the sum of all weights.
    pub weight: u32,
}

/// The names of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantNames {
    /// Names of its own, each with the name that it stands for. They go before
    /// everybody's.
    pub map: HashMap<String, String>,
    /// Whether its requests may be served by another model than their own.
    pub allow_fallback: bool,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedModel<'a> {
    Model(ModelId),
    /// Models that share the requests.
    Split(&'a Split),
}

impl ModelNames {
    /// What the tenant means by the name; `None` for a name that stands for
    /// nothing.
    pub fn called(&self, tenant: TenantId, name: &str) -> Option<NamedModel<'_>> {
        let own = self.tenants.get(&tenant).and_then(|own| own.map.get(name));
        self.shared(own.map_or(name, String::as_str))
    }

    /// What everybody else means by the name.
    pub fn shared(&self, name: &str) -> Option<NamedModel<'_>> {
        let split = self.splits.get(name).map(NamedModel::Split);
        split.or_else(|| self.models.get(name).copied().map(NamedModel::Model))
    }

    /// Every name that means something to the tenant, in alphabetical order.
    pub fn of(&self, tenant: TenantId) -> BTreeSet<&str> {
        let own = self.tenants.get(&tenant).into_iter().flat_map(|own| own.map.keys());
        own.chain(self.models.keys()).chain(self.splits.keys()).map(String::as_str).collect()
    }

    /// The models that may serve the tenant's request in place of the one that
    /// it was given to, best first; none for a tenant that does not allow it.
    pub fn fallbacks<'a>(
        &'a self,
        tenant: TenantId,
        called: NamedModel<'a>,
        model: ModelId,
    ) -> impl Iterator<Item = ModelId> + 'a {
        let allowed = self.tenants.get(&tenant).is_some_and(|own| own.allow_fallback);
        let own = match called {
            NamedModel::Split(split) => split.fallbacks.as_slice(),
            NamedModel::Model(_) => &[],
        };
        let usual = self.fallbacks.get(&model).map_or(&[][..], Vec::as_slice);
        let list = if own.is_empty() { usual } else { own };
        list.iter().copied().filter(move |other| allowed && *other != model)
    }
}

impl NamedModel<'_> {
    /// Every model that may be meant.
    pub fn models(&self) -> impl Iterator<Item = ModelId> {
        let (one, several) = match self {
            Self::Model(model) => (Some(*model), &[][..]),
            Self::Split(split) => (None, split.targets.as_slice()),
        };
        one.into_iter().chain(several.iter().map(|target| target.model))
    }
}

impl Split {
    /// The model at `point`, `0.0..1.0`: the weights lie side by side in the
    /// order of the file, so that a change of weights moves as little as it can.
    pub fn at(&self, point: f64) -> ModelId {
        let whole: f64 = self.targets.iter().map(|target| f64::from(target.weight)).sum();
        let mut end = 0.0;
        let weighted = self.targets.iter().filter(|target| target.weight > 0);
        let mut last = ModelId::new(0);
        for target in weighted {
            last = target.model;
            end += f64::from(target.weight);
            if point * whole < end {
                break;
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_lie_side_by_side() {
        let model = ModelId::new;
        let target = |(id, weight)| SplitTarget { model: model(id), weight };
        let targets = [(1, 0), (2, 3), (3, 1), (4, 0)].map(target).to_vec();
        let split = Split { targets, fallbacks: Vec::new() };
        for (point, expected) in [(0.0, 2), (0.749, 2), (0.75, 3), (0.999_999, 3)] {
            assert_eq!(split.at(point), model(expected), "{point}");
        }
    }
}
