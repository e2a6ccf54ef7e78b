//! Tests of pool traits and placement rules.

use super::{errors, problems, settings};
use crate::core::placement::rules::{Capacity, Isolation, LatePolicy, Price};

const PRICED: &str = "
version: 1
auth: {mode: off, tenant: a}
tenants:
  a: {placement: {pools: [spot, shared], max_price: 2.5, spill: [spot]}}
pools:
  spot: {engine: vllm, models: [m], max_seqs: 1, price: 2.4, capacity: spot, isolation: 'mig:1g.10gb',
    accelerator: a100, region: r, zone: z, labels: {rack: r1}, max_model_len: 4096, replicas: ['http://127.0.0.1:1']}
  shared: {engine: vllm, models: [m], max_seqs: 1, price: 1, isolation: time-sliced, replicas: ['http://127.0.0.1:2']}
";

#[test]
fn places_are_what_the_file_says() {
    let settings = settings(PRICED);
    let policy = &settings.policy;
    let pool = |name| policy.pools.id(name).unwrap();
    let supply = policy.pools.get(pool("spot")).unwrap().traits;
    assert_eq!((supply.isolation, supply.capacity), (Isolation::Mig, Capacity::Spot));
    assert_eq!((supply.price, supply.window), (Price::new(2.4), Some(4096)));
    let site = &settings.edge.pools.get(pool("spot")).unwrap().site;
    assert_eq!((site.accelerator.as_deref(), site.mig_profile.as_deref()), (Some("a100"), Some("1g.10gb")));
    let rules = &policy.tenants.iter().next().unwrap().2.placement;
    assert_eq!(rules.pools, Some([pool("spot"), pool("shared")].into()));
    assert_eq!((rules.max_price, rules.spill.as_deref()), (Price::new(2.5), Some(&[pool("spot")][..])));
    let class = |name| &policy.classes.get(policy.classes.id(name).unwrap()).unwrap().placement;
    let shared = policy.pools.get(pool("shared")).unwrap().traits;
    assert!(!class("interactive").allows(pool("shared"), &shared));
    assert!(class("standard").allows(pool("shared"), &shared));
    assert_eq!(
        (class("batch").prefer, class("batch").late_policy),
        (Some(Capacity::Spot), Some(LatePolicy::Wait))
    );
}

#[test]
fn the_first_class_is_never_time_sliced_unless_it_says_so() {
    let with = |class: &str| PRICED.replace("pools:\n", &format!("classes: {{top: {class}}}\npools:\n"));
    let allows = |class: &str| {
        let settings = settings(&with(class));
        let (_, _, row) = settings.policy.classes.iter().next().unwrap();
        let (id, _, pool) = settings.policy.pools.iter().nth(1).unwrap();
        row.placement.allows(id, &pool.traits)
    };
    assert!(!allows("{rank: 4}"));
    assert!(allows("{rank: 4, placement: {isolation: [time-sliced]}}"));
}

#[test]
fn what_nobody_may_serve_is_named() {
    let problems = |text: &str| problems(text).join("\n");
    assert_eq!(problems(PRICED), "");
    let text = PRICED.replace("pools: [spot, shared], max_price: 2.5", "pools: [shared]");
    assert!(
        problems(&text)
            .contains("leaves the tenant `a` no pool for the model `m` in the class `interactive`")
    );
    let text = PRICED.replace("pools:\n", "classes: {top: {placement: {max_price: 0.5}}}\npools:\n");
    assert!(problems(&text).contains("leaves the class `top` no pool for the model `m`"));
    let text = PRICED.replace("price: 1, ", "");
    assert!(problems(&text).contains("it counts as the dearest"));
}

#[test]
fn every_mistake_of_a_place_is_found_at_once() {
    let text = PRICED
        .replace(
            "pools: [spot, shared], max_price: 2.5, spill: [spot]",
            "pools: [], max_price: -1, spill: [spat, spot, spot]",
        )
        .replace("mig:1g.10gb", "mps:half")
        .replace("price: 1,", "price: -3,")
        .replace("max_model_len: 4096", "max_model_len: 0");
    let errors = errors(&text).join("\n");
    for part in [
        "names no pool",
        "-1 is not a price",
        "there is no pool `spat`",
        "listed twice",
        "`mps:half` is no kind of isolation",
        "-3 is not a price",
        "max_model_len",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
}
