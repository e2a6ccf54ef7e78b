//! Tests of model names: maps, splits, fallbacks.

use crate::config::load::tests::faults::expect_one_error;
use crate::config::load::tests::{problems, settings};
use crate::config::settings::names::{NamedModel, Split, SplitTarget, TenantNames};
use crate::core::model::ids::{ModelId, TenantId};

/// Two models, and what a test adds to them.
fn file(tenants: &str, models: &str) -> String {
    format!(
        "
version: 1
auth: {{mode: off, tenant: a}}
tenants: {{{tenants}}}
models: {{{models}}}
pools:
  x: {{engine: openai, models: [v1, v2], replicas: ['http://127.0.0.1:8000']}}
"
    )
}

fn split(targets: [(ModelId, u32); 2], fallbacks: Vec<ModelId>) -> Split {
    let targets = targets.map(|(model, weight)| SplitTarget { model, weight });
    Split { targets: targets.to_vec(), fallbacks }
}

#[test]
fn names_stand_for_models_and_splits() {
    let settings = settings(&file(
        "a: {model_map: {gpt: v2, big: chat}, allow_fallback: true}, b: {}",
        "v1: {aliases: [gpt], fallbacks: [v2]}, chat: {aliases: [talk], split: {v1: 95, v2: 5}, fallbacks: [v1]}",
    ));
    let names = &settings.edge.names;
    let [v1, v2] = ["v1", "v2"].map(|name| settings.policy.models.id(name).unwrap());
    let [a, b]: [TenantId; 2] = ["a", "b"].map(|name| settings.policy.tenants.id(name).unwrap());
    let split = split([(v1, 95), (v2, 5)], vec![v1]);
    let chat = NamedModel::Split(&split);
    assert_eq!(
        (names.called(a, "gpt"), names.called(b, "gpt")),
        (Some(NamedModel::Model(v2)), Some(NamedModel::Model(v1)))
    );
    assert_eq!((names.called(a, "big"), names.called(b, "big")), (Some(chat), None));
    assert_eq!((names.called(b, "chat"), names.called(b, "talk")), (Some(chat), Some(chat)));
    assert!(settings.policy.models.id("chat").is_none(), "no pool serves it");
    assert_eq!(names.tenants[&b], TenantNames::default());
    let others = |tenant, called, model| names.fallbacks(tenant, called, model).collect::<Vec<ModelId>>();
    assert_eq!(others(a, NamedModel::Model(v1), v1), [v2]);
    assert_eq!(others(a, chat, v2), [v1]);
    assert_eq!(others(a, chat, v1), [], "it is not its own");
    assert_eq!(others(b, NamedModel::Model(v1), v1), [], "the tenant does not allow it");
}

#[test]
fn a_split_may_have_the_name_of_one_of_its_targets() {
    let settings = settings(&file("a: {}", "v1: {split: {v1: 9, v2: 1}}"));
    let [v1, v2] = ["v1", "v2"].map(|name| settings.policy.models.id(name).unwrap());
    let split = split([(v1, 9), (v2, 1)], Vec::new());
    assert_eq!(settings.edge.names.shared("v1"), Some(NamedModel::Split(&split)));
}

#[test]
fn faults_of_names() {
    let models = |models: &str| file("a: {allow_fallback: true}", models);
    expect_one_error(&[
        (models("v1: {fallbacks: [v1]}"), "models.v1.fallbacks[0]: is the model itself"),
        (models("v1: {fallbacks: [v2, v2]}"), "models.v1.fallbacks[1]: `v2` is listed twice"),
        (models("v1: {fallbacks: [v3]}"), "models.v1.fallbacks[0]: there is no model `v3`"),
        (
            models("v1: {aliases: [one]}, v2: {fallbacks: [one]}"),
            "fallbacks[0]: `one` is an alias (write `v1`)",
        ),
        (
            models("c: {split: {v1: 1}}, v2: {fallbacks: [c]}"),
            "the requests for `c` are split (name some of these: v1)",
        ),
        (models("c: {split: {v1: 1, v3: 1}}"), "models.c.split.v3: there is no model `v3`"),
        (models("c: {split: {v1: 0}}"), "models.c.split: gives no model any requests"),
        (models("c: {split: {v1: 1}, max_model_len: 9}"), "models.c.max_model_len: belongs to a model"),
        (
            models("c: {split: {v1: 1}}, v1: {aliases: [c]}"),
            "models.v1.aliases[0]: `c` stands for `c` already",
        ),
        (models("c: {split: {v1: 1}, aliases: [v2]}"), "models.c.aliases[0]: `v2` stands for `v2` already"),
        (file("a: {model_map: {x: v3}}", ""), "tenants.a.model_map.x: there is no model `v3`"),
        (file("a: {model_map: {x: v2}, models: [v1]}", ""), "model_map.x: the tenant may not use `v2`"),
        (
            file("a: {model_map: {x: c}, models: [v1]}", "c: {split: {v1: 1, v2: 1}}"),
            "model_map.x: the tenant may not use `v2`",
        ),
        (file("a: {model_map: {x: one}}", "v1: {aliases: [one]}"), "model_map.x: `one` is an alias"),
        (file("a: {models: [c]}", "c: {split: {v1: 1}}"), "models[0]: the requests for `c` are split"),
        (file("a: {model_map: {'x y': v1}}", ""), "\"x y\" is not a usable model name"),
    ]);
}

#[test]
fn fallbacks_that_nobody_allows_are_pointed_out() {
    let found = problems(&file("a: {}", "v1: {fallbacks: [v2]}"));
    assert!(found.iter().any(|problem| problem.contains("models.v1.fallbacks: no tenant allows a fallback")));
}
