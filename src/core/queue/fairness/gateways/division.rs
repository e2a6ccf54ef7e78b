//! Division of places: among classes in the order of service, within a class among tenants by weight, and a
//! tenant's among gateways by what it has there. Nobody gets more than it wants (max-min fairness).

use std::collections::BTreeMap;

use crate::model::ids::{ClassId, TenantId};
use crate::queue::fairness::TenantWeights;

use super::load::GatewayLoad;

/// A class, as the division sees it.
#[derive(Debug, Clone, Copy)]
pub struct SharedClass {
    pub id: ClassId,
    /// Share of the places that more urgent classes leave it, between 0 and 1.
    pub min_share: f64,
}

/// A tenant that wants places.
#[derive(Debug, Clone)]
struct TenantWants {
    who: TenantWeights,
    /// Places.
    wants: f64,
}

/// Those who compete as one on a level of the tree of tenants.
#[derive(Debug)]
struct Competitor {
    tenant: TenantId,
    is_group: bool,
    weight: f64,
    /// By their places in the list of tenants.
    members: Vec<usize>,
}

impl TenantWants {
    /// What competes for the tenant on a level, 0 for the outermost one: a group of tenants, or the tenant
    /// itself.
    fn competitor(&self, level: usize) -> Competitor {
        let groups = &self.who.groups;
        let group = groups.len().checked_sub(level + 1).map(|place| groups[place]);
        let (tenant, weight) = group.unwrap_or((self.who.tenant, self.who.weight));
        Competitor { tenant, is_group: group.is_some(), weight, members: Vec::new() }
    }
}

/// The places of each gateway in each class, the classes in the order of service. A class leaves later ones
/// their guaranteed shares.
pub(super) fn divide(
    places: f64,
    classes: &[SharedClass],
    gateways: &[&GatewayLoad],
    weights: &dyn Fn(TenantId) -> TenantWeights,
) -> Vec<Vec<f64>> {
    let wants = |class: &SharedClass| -> f64 {
        let settled = gateways.iter().map(|load| settled(load, class.id));
        let rows = gateways.iter().flat_map(|load| &load.tenants).filter(|row| row.class == class.id);
        settled.chain(rows.map(|row| row.wants())).sum()
    };
    let guarantee = |class: &SharedClass, wanted: f64| wanted.min(class.min_share * places);
    let wanted: Vec<f64> = classes.iter().map(wants).collect();
    let mut kept: f64 = classes.iter().zip(&wanted).map(|(class, wanted)| guarantee(class, *wanted)).sum();
    let mut left = places;
    let rows = classes.iter().zip(wanted).map(|(class, wanted)| {
        kept -= guarantee(class, wanted);
        let given = wanted.min((left - kept).max(0.0));
        left -= given;
        divide_class(given, class.id, gateways, weights)
    });
    rows.collect()
}

/// Jobs of a class at replicas whose tenants want no more.
fn settled(load: &GatewayLoad, class: ClassId) -> f64 {
    load.classes.iter().filter(|row| row.class == class).map(|row| f64::from(row.running)).sum()
}

/// The places of each gateway in one class.
fn divide_class(
    places: f64,
    class: ClassId,
    gateways: &[&GatewayLoad],
    weights: &dyn Fn(TenantId) -> TenantWeights,
) -> Vec<f64> {
    let mut wants: BTreeMap<TenantId, f64> = BTreeMap::new();
    for row in gateways.iter().flat_map(|load| &load.tenants).filter(|row| row.class == class) {
        *wants.entry(row.tenant).or_default() += row.wants();
    }
    let tenants: Vec<TenantWants> =
        wants.iter().map(|(tenant, wants)| TenantWants { who: weights(*tenant), wants: *wants }).collect();
    let settled_in_all: f64 = gateways.iter().map(|load| settled(load, class)).sum();
    let mut given = vec![0.0; tenants.len()];
    divide_level(
        (places - settled_in_all).max(0.0),
        &tenants,
        &Vec::from_iter(0..tenants.len()),
        0,
        &mut given,
    );
    let part = wants.iter().zip(given).map(|((tenant, wants), given)| (*tenant, given / wants.max(1.0)));
    let part: BTreeMap<TenantId, f64> = part.collect();
    let places_of = |load: &&GatewayLoad| {
        let rows = load.tenants.iter().filter(|row| row.class == class);
        let waited: f64 = rows.map(|row| row.wants() * part.get(&row.tenant).copied().unwrap_or(0.0)).sum();
        settled(load, class) + waited
    };
    gateways.iter().map(places_of).collect()
}

fn divide_level(places: f64, tenants: &[TenantWants], members: &[usize], level: usize, given: &mut [f64]) {
    let mut competitors: Vec<Competitor> = Vec::new();
    for member in members {
        let own = tenants[*member].competitor(level);
        let is_same = |other: &&mut Competitor| (other.tenant, other.is_group) == (own.tenant, own.is_group);
        match competitors.iter_mut().find(is_same) {
            Some(known) => known.members.push(*member),
            None => competitors.push(Competitor { members: vec![*member], ..own }),
        }
    }
    let wants: Vec<(f64, f64)> = competitors
        .iter()
        .map(|one| (one.weight, one.members.iter().map(|member| tenants[*member].wants).sum()))
        .collect();
    for (one, places) in competitors.iter().zip(fill(places, &wants)) {
        if one.is_group {
            divide_level(places, tenants, &one.members, level + 1, given);
        } else {
            one.members.iter().for_each(|member| given[*member] = places);
        }
    }
}

/// The part that each of those with a weight and a want gets: in proportion to the weights, and what one does
/// not want goes to the others.
fn fill(places: f64, wants: &[(f64, f64)]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by(|a, b| (wants[*a].1 / wants[*a].0).total_cmp(&(wants[*b].1 / wants[*b].0)));
    let (mut left, mut weights) = (places, wants.iter().map(|(weight, _)| weight).sum::<f64>());
    let mut given = vec![0.0; wants.len()];
    for at in order {
        let (weight, want) = wants[at];
        given[at] = want.min(left * weight / weights).max(0.0);
        left -= given[at];
        weights -= weight;
    }
    given
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert, proptest};
    use smallvec::SmallVec;

    use super::super::load::{ActiveClass, WaitingTenant};
    use super::*;
    use crate::model::ids::PoolId;

    fn row(class: u32, tenant: u32, running: u32, waiting: u32) -> WaitingTenant {
        let (pool, class) = (PoolId::new(0), ClassId::new(class));
        WaitingTenant { pool, class, tenant: TenantId::new(tenant), running, waiting }
    }

    fn load(running: u32, tenants: Vec<WaitingTenant>) -> GatewayLoad {
        let (pool, class) = (PoolId::new(0), ClassId::new(0));
        GatewayLoad {
            classes: vec![ActiveClass { pool, class, running, headroom: 0 }],
            tenants,
            ..GatewayLoad::default()
        }
    }

    fn flat(weights: &[f64]) -> impl Fn(TenantId) -> TenantWeights {
        let weights = weights.to_vec();
        move |tenant| TenantWeights { tenant, weight: weights[tenant.index()], groups: SmallVec::new() }
    }

    const fn class(id: u32, min_share: f64) -> SharedClass {
        SharedClass { id: ClassId::new(id), min_share }
    }

    #[test]
    fn places_go_by_weight_and_what_one_does_not_want_goes_to_the_others() {
        let of = |one: &GatewayLoad, two: &GatewayLoad| {
            divide(50.0, &[class(0, 0.0)], &[one, two], &flat(&[4.0, 1.0])).remove(0)
        };
        let [one, two] = [load(0, vec![row(0, 0, 25, 99)]), load(0, vec![row(0, 1, 25, 99)])];
        assert_eq!(of(&one, &two), [40.0, 10.0]);
        assert_eq!(of(&load(0, vec![row(0, 0, 5, 3)]), &two), [8.0, 42.0]);
        assert_eq!(of(&load(10, vec![row(0, 0, 15, 99)]), &two), [42.0, 8.0], "10 of 50 are settled");
        let both = load(0, vec![row(0, 0, 0, 30), row(0, 1, 25, 99)]);
        let shares = of(&load(0, vec![row(0, 0, 25, 5)]), &both);
        assert_eq!(shares, [20.0, 30.0], "40 of the first tenant, half at each gateway, and 10");
    }

    #[test]
    fn urgent_classes_go_first_and_leave_guaranteed_shares() {
        let [chat, batch] = [load(0, vec![row(0, 0, 5, 90)]), load(0, vec![row(1, 1, 40, 99)])];
        let of = |min_share| {
            let shares =
                divide(50.0, &[class(0, 0.0), class(1, min_share)], &[&chat, &batch], &flat(&[1.0, 1.0]));
            (shares[0][0], shares[1][1])
        };
        assert_eq!((of(0.0), of(0.1)), ((50.0, 0.0), (45.0, 5.0)));
    }

    #[test]
    fn groups_of_tenants_compete_as_one() {
        let group = TenantId::new(9);
        let weights = |tenant: TenantId| {
            let groups =
                if tenant.index() < 2 { SmallVec::from_iter([(group, 1.0)]) } else { SmallVec::new() };
            TenantWeights { tenant, weight: 1.0, groups }
        };
        let one = load(0, vec![row(0, 0, 0, 99), row(0, 1, 0, 99)]);
        let two = load(0, vec![row(0, 2, 0, 99)]);
        assert_eq!(divide(40.0, &[class(0, 0.0)], &[&one, &two], &weights), [[20.0, 20.0]]);
    }

    proptest! {
        #[test]
        fn all_places_are_given_and_nobody_gets_more_than_it_wants(
            places in 0.0..200.0_f64,
            wants in vec((0.1..20.0_f64, 0.0..100.0_f64), 1..8),
        ) {
            let given = fill(places, &wants);
            let (sum, wanted): (f64, f64) = (given.iter().sum(), wants.iter().map(|(_, want)| want).sum());
            prop_assert!((sum - places.min(wanted)).abs() < 1e-6);
            for (at, (weight, want)) in wants.iter().enumerate() {
                prop_assert!(given[at] <= want + 1e-9);
                let is_short = given[at] + 1e-6 < *want;
                // Nobody with a larger part for its weight is beside one who wants more.
                let mut parts = wants.iter().zip(&given).map(|((other, _), got)| got / other);
                prop_assert!(!is_short || parts.all(|part| part <= given[at] / weight + 1e-6));
            }
        }
    }
}
