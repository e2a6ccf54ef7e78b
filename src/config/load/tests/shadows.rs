//! Copies of requests for another model.

use crate::config::load::tests::faults::expect_one_error;
use crate::config::load::tests::settings;
use crate::config::settings::shadows::ShadowRule;

fn file(more: &str) -> String {
    format!(
        "
version: 1
auth: {{mode: off, tenant: a}}
pools:
  x: {{engine: openai, models: [v1, v2], replicas: ['http://127.0.0.1:8000']}}
{more}"
    )
}

#[test]
fn copies_have_a_tenant_and_a_class_of_their_own_after_all_others() {
    let settings = settings(&file("tenants: {a: {}}\nmodels: {v1: {shadow: {to: v2, share: 0.05}}}\n"));
    let policy = &settings.policy;
    let [v1, v2] = ["v1", "v2"].map(|name| policy.models.id(name).unwrap());
    let shadows = settings.edge.shadows.as_ref().unwrap();
    let rule = ShadowRule { to: v2, share: 0.05, max_in_flight: 4 };
    assert_eq!((shadows.rules.len(), shadows.rules[&v1]), (1, rule));
    let class = policy.classes.get(shadows.class).unwrap();
    let others = || policy.classes.iter().filter(|(id, ..)| *id != shadows.class);
    assert!(class.scavenger && others().count() == 3);
    assert!(others().all(|(_, _, other)| other.rank < class.rank && !other.scavenger));
    let tenant = |name: &str| policy.tenants.get(policy.tenants.id(name).unwrap()).unwrap();
    assert!(!tenant("a").classes.contains(&shadows.class), "no client may use it");
    assert_eq!(tenant("shadow").classes, [shadows.class].into());
    assert_eq!(tenant("shadow").models, Some([v2].into()));
}

#[test]
fn a_file_without_copies_has_nothing_of_the_kind() {
    let settings = settings(&file("tenants: {a: {}}\n"));
    assert!(settings.edge.shadows.is_none());
    assert!(settings.policy.classes.id("shadow").is_none() && settings.policy.tenants.id("shadow").is_none());
}

#[test]
fn faults_of_copies() {
    let models = |models: &str| file(&format!("tenants: {{a: {{}}}}\nmodels: {{{models}}}\n"));
    let taken = |section: &str| file(&format!("{section}\nmodels: {{v1: {{shadow: {{to: v2}}}}}}\n"));
    expect_one_error(&[
        (models("v1: {shadow: {to: v1}}"), "models.v1.shadow.to: is the model itself"),
        (models("v1: {shadow: {to: v3}}"), "models.v1.shadow.to: there is no model `v3`"),
        (models("v1: {shadow: {to: v2, share: 5}}"), "models.v1.shadow.share: 5 is not a share"),
        (models("v1: {shadow: {to: v2, max_in_flight: 0}}"), "shadow.max_in_flight: must not be zero"),
        (models("c: {split: {v1: 1}, shadow: {to: v2}}"), "models.c.shadow: belongs to a model that a pool"),
        (taken("tenants: {a: {}, shadow: {}}"), "tenants.shadow: `shadow` is where the copies"),
        (taken("tenants: {a: {}}\nclasses: {standard: {}, shadow: {}}"), "classes.shadow: `shadow` is where"),
    ]);
}
