//! Tests of loading: whole files in, settings or problems out.

mod cluster;
mod faults;
mod guardrails;
mod identity;
mod names;
mod peers;
mod places;
mod shadows;
mod usage;

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::config::keys::{self, KeyDigest};
use crate::config::load::{LoadOutcome, check_file, load_file, load_str_with};
use crate::config::secret::{MachineSecrets, SecretSource};
use crate::config::settings::Settings;
use crate::config::settings::identity::{Auth, Grant};
use crate::core::model::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};
use crate::core::model::policy::Quota;
use crate::engines::EngineKind;

const SMALL: &str = "
version: 1
auth: {mode: off}
pools:
  llama:
    engine: vllm
    models: [llama]
    replicas: [http://127.0.0.1:8000]
";

struct World;

impl SecretSource for World {
    fn env(&self, name: &str) -> Option<String> {
        (name == "ENGINE_KEY").then(|| "sk-engine".to_owned())
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        if path == Path::new("/etc/penstock/token") {
            Ok(b"tok\n".to_vec())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    }
}

fn load(text: &str) -> LoadOutcome {
    load_str_with(text, "penstock.yaml", Path::new("/etc/penstock"), None, &World)
}

fn settings(text: &str) -> Settings {
    let outcome = load(text);
    let report = outcome.report.to_string();
    outcome.loaded.unwrap_or_else(|| panic!("{report}")).settings
}

fn problems(text: &str) -> Vec<String> {
    load(text).report.problems.iter().map(ToString::to_string).collect()
}

fn errors(text: &str) -> Vec<String> {
    problems(text).into_iter().filter(|problem| problem.starts_with("error")).collect()
}

/// `SMALL` with one more piece of text.
fn with(more: &str) -> String {
    format!("{SMALL}{more}\n")
}

#[test]
fn the_smallest_file_is_enough() {
    let settings = settings(SMALL);
    let policy = &settings.policy;
    assert_eq!(policy.generation, 1);
    let Auth::Off(tenant) = settings.edge.auth else { panic!("keys are asked for") };
    assert_eq!(policy.tenants.name(tenant), "default");
    let tenant = policy.tenants.get(tenant).unwrap();
    assert_eq!(policy.classes.name(tenant.default_class), "standard");
    assert_eq!((tenant.classes.len(), tenant.models.is_none()), (3, true));
    assert_eq!(tenant.bounds, policy.bounds);
    assert!(policy.bounds.requests < u64::MAX);
    let model = settings.edge.names.models["llama"];
    assert_eq!(policy.models.get(model).unwrap().pools, [PoolId::new(0)]);
    let (id, name, replica) = policy.replicas.iter().next().unwrap();
    assert_eq!((name, replica.pool), ("llama/http://127.0.0.1:8000", PoolId::new(0)));
    assert_eq!(settings.edge.replicas.get(id).unwrap().url, "http://127.0.0.1:8000");
    assert_eq!(settings.digest, blake3::hash(SMALL.as_bytes()).to_hex().to_string());
}

/// A file that uses nearly everything.
fn full() -> Settings {
    let digest = keys::digest_text(&[7; 32]);
    settings(&format!(
        "
version: 1
classes:
  interactive: {{min_share: 0.2}}
  night: {{rank: 9, max_wait: 2h}}
tenants:
  red:
    weight: 2
    classes: [interactive]
    models: [big]
    queue: {{requests: 5, bytes: 1MiB}}
    keys:
      - {{id: abcdefgh, digest: '{digest}', note: ci}}
  blue:
    keys: [{{id: abcdefgi, digest: '{}', class: night}}]
models:
  big: {{aliases: [gpt-4o], max_model_len: 4096}}
pools:
  a:
    engine: tgi
    models: [big]
    replicas: [http://a:1, {{url: http://a:2, max_seqs: 3}}]
    max_seqs: 8
    api_key: {{env: ENGINE_KEY}}
  b:
    engine: triton
    models: {{big: ensemble, small: s}}
    replicas: [{{url: http://b:1, metrics_url: http://b:2/metrics}}]
    api_key: {{file: token}}
    engine_buffer: 2
    scrape_interval: 500ms
",
        keys::digest_text(&[8; 32])
    ))
}

#[test]
fn classes_tenants_and_keys_are_what_the_file_says() {
    let settings = full();
    let policy = &settings.policy;
    let interactive = policy.classes.get(ClassId::new(0)).unwrap();
    assert_eq!((interactive.rank, interactive.min_share, interactive.max_wait.as_secs()), (0, 0.2, 15));
    let night = policy.classes.get(ClassId::new(1)).unwrap();
    assert_eq!((night.rank, night.max_wait.as_secs(), night.ttft_objective.as_secs()), (9, 7200, 5));
    let red = policy.tenants.get(TenantId::new(0)).unwrap();
    assert_eq!((red.weight, red.default_class, red.bounds.requests), (2.0, ClassId::new(0), 5));
    assert_eq!((red.bounds.bytes, red.bounds.tokens), (1 << 20, policy.bounds.tokens));
    assert_eq!(red.models.as_ref().unwrap().len(), 1);
    let Auth::Known(known) = &settings.edge.auth else { panic!("no keys") };
    let ring = &known.keys;
    let first = ring.get("abcdefgh").unwrap();
    assert_eq!((first.digest, first.grant.class), (KeyDigest::Blake3([7; 32]), None));
    let night = Grant { class: Some(ClassId::new(1)), ..Grant::whole(TenantId::new(1)) };
    assert_eq!(ring.get("abcdefgi").unwrap().grant, night);
}

#[test]
fn tenants_belong_to_the_parents_that_the_file_names() {
    let text = with(
        "classes: {fast: {rank: 0, usage_half_life: 2h}, slow: {rank: 7}}
tenants: {search: {parent: acme, weight: 2}, acme: {quota: {guarantee: 0.5}}, other: {}}",
    );
    let settings = settings(&text.replace("{mode: off}", "{mode: off, tenant: search}"));
    let tenants = &settings.policy.tenants;
    let parent = |name| tenants.get(tenants.id(name).unwrap()).unwrap().parent;
    assert_eq!(parent("search"), tenants.id("acme"));
    assert_eq!((parent("acme"), parent("other")), (None, None));
    let half_lives: Vec<_> = settings.policy.classes.iter().map(|(.., row)| row.usage_half_life).collect();
    assert_eq!(half_lives, [Some(Duration::from_secs(7_200)), None]);
}

#[test]
fn demotions_quotas_and_priorities_are_what_the_file_says() {
    let text = with(
        "classes: {fast: {rank: 0, demote_to: slow}, slow: {rank: 7}}
tenants: {a: {quota: {guarantee: 0.25, borrow: 0.5, lend: 0.1}}, b: {quota: {guarantee: 0.75}}}",
    );
    let text = text.replace("{mode: off}", "{mode: off, tenant: a}");
    let settings = settings(&text.replace("engine: vllm", "engine: vllm\n    engine_priority: true"));
    let policy = &settings.policy;
    let [fast, slow] = ["fast", "slow"].map(|name| policy.classes.id(name).unwrap());
    assert_eq!(policy.classes.get(fast).unwrap().demote_to, Some(slow));
    assert_eq!(policy.classes.get(slow).unwrap().demote_to, None);
    let quota = |name| policy.tenants.get(policy.tenants.id(name).unwrap()).unwrap().quota;
    assert_eq!(quota("a"), Quota { guarantee: 0.25, borrow: 0.5, lend: 0.1 });
    assert_eq!(quota("b"), Quota { guarantee: 0.75, ..Quota::default() });
    assert!(policy.pools.get(PoolId::new(0)).unwrap().engine_priority);
    // A class that is gone is no aim, even if it was there before the reload.
    let one =
        text.replace("fast: {rank: 0, demote_to: slow}, slow: {rank: 7}", "fast: {rank: 0, demote_to: slow}");
    let outcome = load_str_with(&one, "p", Path::new("/etc"), Some(&settings), &World);
    assert!(outcome.report.to_string().contains("there is no class `slow`"), "{}", outcome.report);
}

#[test]
fn models_pools_and_replicas_are_what_the_file_says() {
    let settings = full();
    let policy = &settings.policy;
    let big = settings.edge.names.models["gpt-4o"];
    assert_eq!(settings.edge.names.models["big"], big);
    let model = policy.models.get(big).unwrap();
    assert_eq!(
        (model.pools.as_slice(), model.max_model_len),
        (&[PoolId::new(0), PoolId::new(1)][..], Some(4096))
    );
    let (a, b) = (PoolId::new(0), PoolId::new(1));
    let edge = settings.edge.pools.get(a).unwrap();
    assert_eq!((edge.engine, edge.model_names[&big].as_str()), (EngineKind::Tgi, "tgi"));
    assert_eq!(edge.api_key.as_ref().unwrap().expose(), "sk-engine");
    let edge = settings.edge.pools.get(b).unwrap();
    assert_eq!((edge.model_names[&big].as_str(), edge.scrape_interval.as_millis()), ("ensemble", 500));
    assert_eq!(edge.api_key.as_ref().unwrap().expose(), "tok");
    let seqs = |id: &ReplicaId| policy.replicas.get(*id).unwrap().max_seqs;
    let seqs: Vec<_> = policy.pools.get(a).unwrap().replicas.iter().map(seqs).collect();
    assert_eq!(seqs, [Some(8), Some(3)]);
    let replica = settings.edge.replicas.get(ReplicaId::new(2)).unwrap();
    assert_eq!(replica.metrics_url.as_ref().unwrap().path(), "/metrics");
}

#[test]
fn anchors_and_merge_keys_work() {
    let settings = settings(
        "
version: 1
auth: {mode: off}
pools:
  a: &like
    engine: vllm
    models: [m]
    replicas: [http://a:1]
    max_seqs: 4
  b:
    <<: *like
    replicas: [http://b:1]
",
    );
    let b = settings.policy.replicas.get(ReplicaId::new(1)).unwrap();
    assert_eq!((b.pool, b.max_seqs), (PoolId::new(1), Some(4)));
}

#[test]
fn ids_stay_over_reloads_and_thousand_of_them_do_not_grow() {
    let one = SMALL.to_owned() + "classes: {x: {}, y: {}}\ntenants: {a: {}}\n";
    let two = one
        .replace("llama", "qwen")
        .replace("{x: {}, y: {}}", "{y: {}, z: {}}")
        .replace("{a: {}}", "{b: {}}");
    let base = Path::new("/etc/penstock");
    let mut previous: Option<Settings> = None;
    let mut sizes = Vec::new();
    for round in 0..1_000u64 {
        let text = if round % 2 == 0 { &one } else { &two };
        let outcome = load_str_with(text, "p", base, previous.as_ref(), &World);
        let settings = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings;
        let policy = &settings.policy;
        assert_eq!(policy.generation, round + 1);
        assert_eq!(policy.classes.id("y"), Some(ClassId::new(1)));
        assert_eq!(policy.classes.id("x"), (round % 2 == 0).then_some(ClassId::new(0)));
        assert_eq!(policy.pools.id("qwen"), (round % 2 == 1).then_some(PoolId::new(1)));
        let model = settings.edge.names.models.values().next().copied();
        assert_eq!(model, Some(ModelId::new((round % 2) as u32)));
        sizes.push((
            policy.classes.capacity(),
            policy.tenants.capacity(),
            policy.models.capacity(),
            policy.pools.capacity(),
            policy.replicas.capacity(),
            settings.edge.pools.capacity(),
            settings.edge.replicas.capacity(),
        ));
        previous = Some(settings);
    }
    assert_eq!(sizes[1], (3, 2, 2, 2, 2, 2, 2));
    assert!(sizes[1..].iter().all(|size| *size == sizes[1]));
}

#[test]
fn a_reload_may_not_open_a_listener_that_others_reach() {
    let digest = keys::digest_text(&[1; 32]);
    let open = SMALL.replace("auth: {mode: off}", "server: {listen: 0.0.0.0:8080}")
        + &format!("tenants: {{a: {{keys: [{{id: abcdefgh, digest: '{digest}'}}]}}}}\n");
    let running = settings(&open);
    let outcome = load_str_with(SMALL, "p", Path::new("/"), Some(&running), &World);
    assert!(outcome.loaded.is_none());
    assert!(outcome.report.to_string().contains("this process still listens on 0.0.0.0:8080"));
}

#[test]
fn a_missing_file_is_unreadable() {
    let dir = tempfile::tempdir().unwrap();
    let report = check_file(&dir.path().join("none.yaml"));
    assert_eq!(report.exit_code(), 2);
    assert!(report.to_string().contains("cannot be read"));
    std::fs::write(dir.path().join("latin1.yaml"), [b'a', 0xe9]).unwrap();
    assert_eq!(check_file(&dir.path().join("latin1.yaml")).exit_code(), 2);
    assert_eq!(load_file(dir.path(), None).report.exit_code(), 2);
}

#[test]
fn what_cannot_be_read_counts_as_unchanged_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("penstock.yaml");
    std::fs::write(&path, with("    api_key: {file: key}\n")).unwrap();
    std::fs::write(dir.path().join("key"), "x".repeat(100_000)).unwrap();
    let outcome = load_file(&path, None);
    assert!(outcome.report.to_string().contains("larger than"), "{}", outcome.report);
    assert_eq!(outcome.inputs.paths().count(), 2);
    assert!(!outcome.inputs.changed(&MachineSecrets));
    std::fs::write(dir.path().join("key"), "x").unwrap();
    assert!(outcome.inputs.changed(&MachineSecrets));
    let outcome = load_file(&path, None);
    assert!(outcome.loaded.is_some() && !outcome.inputs.changed(&MachineSecrets));
    std::fs::remove_file(&path).unwrap();
    assert!(outcome.inputs.changed(&MachineSecrets));
}

#[test]
fn five_thousand_tenants_are_no_trouble() {
    let mut text = SMALL.replace("{mode: off}", "{mode: keys}") + "tenants:\n";
    for number in 0..5_000_u32 {
        let key = keys::digest_text(&keys::digest(&number.to_string()));
        text +=
            &format!("  t{number}:\n    keys:\n      - {{id: 'k{number:08}', digest: '{key}', note: x}}\n");
    }
    let settings = settings(&text);
    let Auth::Known(known) = &settings.edge.auth else { panic!("no keys") };
    let ring = &known.keys;
    assert_eq!((ring.len(), settings.policy.tenants.capacity()), (5_000, 5_000));
    assert_eq!(settings.policy.tenants.name(ring.get("k00004711").unwrap().grant.tenant), "t4711");
}
