//! Whole files in, settings or problems out.

use std::path::Path;

use super::*;
use crate::config::keys;
use crate::config::settings::{Auth, EngineKind};
use crate::core::ids::{ClassId, ModelId, PoolId, ReplicaId, TenantId};

const SMALL: &str = "
version: 1
auth: {mode: off}
pools:
  llama:
    engine: vllm
    models: [llama]
    replicas: [http://127.0.0.1:8000]
";

struct NoSecrets;

impl SecretSource for NoSecrets {
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

fn load(text: &str) -> Outcome {
    load_str_with(text, "penstock.yaml", Path::new("/etc/penstock"), None, &NoSecrets)
}

fn settings(text: &str) -> Settings {
    let outcome = load(text);
    let report = outcome.report.to_string();
    outcome.into_result().unwrap_or_else(|_| panic!("{report}")).settings
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
    let model = settings.edge.model_names["llama"];
    assert_eq!(policy.models.get(model).unwrap().pools, [PoolId::new(0)]);
    let (id, name, replica) = policy.replicas.iter().next().unwrap();
    assert_eq!((name, replica.pool), ("llama/http://127.0.0.1:8000", PoolId::new(0)));
    assert_eq!(settings.edge.replicas.get(id).unwrap().url, "http://127.0.0.1:8000");
    assert_eq!(settings.digest, blake3::hash(SMALL.as_bytes()).to_hex().to_string());
}

#[test]
fn a_full_file_says_what_it_says() {
    let digest = keys::digest_text(&[7; 32]);
    let text = format!(
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
    );
    let settings = settings(&text);
    let policy = &settings.policy;
    let interactive = policy.classes.get(ClassId::new(0)).unwrap();
    assert_eq!((interactive.rank, interactive.min_share, interactive.max_wait.as_secs()), (0, 0.2, 30));
    let night = policy.classes.get(ClassId::new(1)).unwrap();
    assert_eq!((night.rank, night.max_wait.as_secs(), night.ttft_objective.as_secs()), (9, 7200, 5));
    let red = policy.tenants.get(TenantId::new(0)).unwrap();
    assert_eq!((red.weight, red.default_class, red.bounds.requests), (2.0, ClassId::new(0), 5));
    assert_eq!((red.bounds.bytes, red.bounds.tokens), (1 << 20, policy.bounds.tokens));
    assert_eq!(red.models.as_ref().unwrap().len(), 1);
    let Auth::Keys(ring) = &settings.edge.auth else { panic!("no keys") };
    assert_eq!((ring["abcdefgh"].digest, ring["abcdefgh"].class), ([7; 32], None));
    assert_eq!((ring["abcdefgi"].tenant, ring["abcdefgi"].class), (TenantId::new(1), Some(ClassId::new(1))));
    let big = settings.edge.model_names["gpt-4o"];
    assert_eq!(settings.edge.model_names["big"], big);
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
    let seqs: Vec<_> = policy
        .pools
        .get(a)
        .unwrap()
        .replicas
        .iter()
        .map(|id| policy.replicas.get(*id).unwrap().max_seqs)
        .collect();
    assert_eq!(seqs, [Some(8), Some(3)]);
    let replica = settings.edge.replicas.get(ReplicaId::new(2)).unwrap();
    assert_eq!(replica.metrics_url.as_ref().unwrap().path(), "/metrics");
}

#[test]
fn every_fault_is_reported_at_once_with_its_line() {
    let text = "version: 1
server:
  listen: localhost:8080
  idle_timeout: 75
auth: {mode: off, tenat: red}
requests:
  max_body: 32 megs
tenants:
  red:
    weight: -1
    default_class: interactiv
    models: [lama, gpt]
    keys:
      - {id: abcdefgh, digest: 'blake3:00'}
  blue: {}
pools:
  llama:
    engin: vllm
    models: [llama]
    replicas: [http://10.0.0.1:8000/, 10.0.0.2:8000]
    max_seq: 0
";
    insta::assert_snapshot!(load(text).report.to_string());
}

#[test]
fn yaml_faults_have_lines() {
    for (text, place) in [
        ("a: [1, 2\nb: 3\n", "2:"),
        ("version: 1\nversion: 1\n", "2:1"),
        ("version: 1\n\tpools: {}\n", "1:10"),
        ("a: *nowhere\n", "1:4"),
        ("a: 1\n---\nb: 2\n", "3:1"),
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with(&format!("error at {place}")), "{found:?}");
        assert!(found[0].contains("not valid YAML"), "{found:?}");
    }
}

#[test]
fn hostile_yaml_is_refused_not_followed() {
    let deep = "[".repeat(100_000);
    assert_eq!(problems(&deep).len(), 1);
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let list = vec![format!("*a{}", n - 1); 10].join(", ");
        bomb += &format!("a{n}: &a{n} [{list}]\n");
    }
    let found = problems(&bomb);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("not valid YAML"), "{found:?}");
}

#[test]
fn an_empty_file_says_how_to_begin() {
    let found = problems("");
    assert!(found.iter().any(|p| p.contains("begin the file with `version: 1`")), "{found:?}");
    assert!(found.iter().any(|p| p.contains("there is no pool")), "{found:?}");
    assert!(found.iter().any(|p| p.contains("penstock keys new")), "{found:?}");
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
fn one_fault_one_message() {
    for (text, message) in [
        (SMALL.replace("version: 1", "version: 2"), "version: 2 is not a known version"),
        (
            with("server: {admin: 127.0.0.1:8080}"),
            "server.admin: 127.0.0.1:8080 is where clients connect already",
        ),
        (with("server: {listen: 0.0.0.0:80}"), "auth.mode: `off` would let in everybody"),
        (with("server: {max_connections: 0}"), "server.max_connections: must not be zero"),
        (with("server: {max_head_bytes: 1KiB}"), "server.max_head_bytes: 1KiB is out of range"),
        (with("server: {head_timeout: 0s}"), "server.head_timeout: must not be zero"),
        (with("telemetry: {log: {level: 'a=b=c'}}"), "telemetry.log.level: \"a=b=c\" is not a log level"),
        (with("telemetry: {otlp: {sample: 2}}"), "telemetry.otlp.sample: 2 is not a share"),
        (
            with("telemetry: {otlp: {endpoint: otel:4317}}"),
            "telemetry.otlp.endpoint: \"otel:4317\" is not a whole URL",
        ),
        (with("requests: {max_body: 2GiB}"), "requests.max_body: 2GiB is more than all bodies"),
        (
            with("requests: {class_header: Authorization}"),
            "requests.class_header: `Authorization` means something else",
        ),
        (with("requests: {class_header: 'a b'}"), "requests.class_header: \"a b\" is not a header name"),
        (with("queue: {requests: 0}"), "queue.requests: must not be zero"),
        (with("retry: {max_attempts: 0}"), "retry.max_attempts: 0 is out of range"),
        (with("health: {probe_min: 5s}"), "health.probe_max: 1s is shorter than probe_min (5s)"),
        (with("classes: {}"), "classes: names no class"),
        (with("classes: {'a b': {}}"), "classes[\"a b\"]: is not a usable name"),
        (
            with("classes: {a: {min_share: 0.6}, b: {min_share: 0.6}}"),
            "classes: the shares are 1.20 together",
        ),
        (with("classes: {a: {min_share: .nan}}"), "not valid YAML"),
        (with("classes: {a: {ttft: 0s}}"), "classes.a.ttft: must not be zero"),
        (with("tenants: {a: {}, b: {}}"), "auth.tenant: is missing"),
        (with("tenants: {a: {weight: 0}}"), "tenants.a.weight: 0 is not a weight"),
        (with("tenants: {a: {classes: []}}"), "tenants.a.classes: allows no class"),
        (with("tenants: {a: {models: []}}"), "tenants.a.models: allows no model"),
        (
            with("tenants: {a: {models: [l], keys: []}}\nmodels: {llama: {aliases: [l]}}"),
            "tenants.a.models[0]: `l` is an alias",
        ),
        (
            with("tenants: {a: {classes: [batch], default_class: standard}}"),
            "default_class: the tenant may not use `standard`",
        ),
        (with("tenants: {a: {default_class: btach}}"), "there is no class `btach` (did you mean `batch`?)"),
        (with("tenants: {a: {queue: {tokens: 0}}}"), "tenants.a.queue.tokens: must not be zero"),
        (with("models: {other: {}}"), "models.other: no pool serves this model"),
        (
            with("models: {llama: {aliases: [llama]}}"),
            "models.llama.aliases[0]: `llama` stands for `llama` already",
        ),
        (with("models: {llama: {aliases: ['a b']}}"), "\"a b\" is not a usable model name"),
        (with("models: {llama: {max_model_len: 0}}"), "models.llama.max_model_len: must not be zero"),
        (with("  x: {models: [y], replicas: [http://x:1]}"), "pools.x.engine: is missing"),
        (with("  x: {engine: vllm, replicas: [http://x:1]}"), "pools.x.models: names no model"),
        (with("  x: {engine: vllm, models: [y]}"), "pools.x.replicas: names no replica"),
        (
            with("  x: {engine: vllm, models: [y, y], replicas: [http://x:1]}"),
            "pools.x.models[1]: `y` is listed twice",
        ),
        (
            with("  x: {engine: ollama, models: [y], replicas: [http://x:1]}"),
            "pools.x.engine: unknown value `ollama`",
        ),
        (
            with("  x: {engine: vllm, models: [y], replicas: ['http://127.0.0.1:8000']}"),
            "pools.x.replicas[0].url: http://127.0.0.1:8000 is pools.llama.replicas[0] already",
        ),
        (with("    max_seqs: 0"), "pools.llama.max_seqs: must not be zero"),
        (with("    scrape_interval: 1ms"), "pools.llama.scrape_interval: is too short"),
        (with("    api_key: {}"), "pools.llama.api_key: names no place"),
        (with("    api_key: {env: A, file: b}"), "pools.llama.api_key: names two places"),
        (
            with("    api_key: {env: NOT_SET}"),
            "pools.llama.api_key.env: the environment variable \"NOT_SET\" is not set",
        ),
        (with("    api_key: {file: none}"), "pools.llama.api_key.file: the file \"none\" cannot be read"),
        (SMALL.replace("auth: {mode: off}", ""), "tenants: there is no key"),
        (SMALL.replace("{mode: off}", "{mode: off, tenant: a b}"), "auth.tenant: is not a usable name"),
    ] {
        let found = errors(&text);
        assert_eq!(found.len(), 1, "{text}\n{found:#?}");
        assert!(found[0].contains(message), "{message}\n{found:#?}");
    }
}

#[test]
fn keys_belong_to_one_tenant() {
    let (one, two) = (keys::digest_text(&[1; 32]), keys::digest_text(&[2; 32]));
    let text = |keys: &str| {
        SMALL.replace("{mode: off}", "{mode: keys}") + &format!("tenants: {{a: {{keys: [{keys}]}}}}\n")
    };
    let good = format!("{{id: abcdefgh, digest: '{one}'}}");
    assert_eq!(errors(&text(&good)), [""; 0]);
    for (more, message) in [
        (format!("{{id: abcdefgh, digest: '{two}'}}"), "keys[1].id: `abcdefgh` is tenants.a.keys[0] already"),
        (format!("{{id: abcdefgi, digest: '{one}'}}"), "keys[1].digest: is the digest of tenants.a.keys[0]"),
        (format!("{{digest: '{two}'}}"), "keys[1].id: is missing"),
        (format!("{{id: 'A-b', digest: '{two}'}}"), "keys[1].id: \"A-b\" is no key id"),
        ("{id: abcdefgi}".to_owned(), "keys[1].digest: is missing"),
        ("{id: abcdefgi, digest: 'blake3:zz'}".to_owned(), "keys[1].digest: is no digest"),
        (
            format!("{{id: abcdefgi, digest: '{two}', class: none}}"),
            "keys[1].class: there is no class `none`",
        ),
    ] {
        let found = errors(&text(&format!("{good}, {more}")));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].contains(message), "{found:#?}");
    }
}

#[test]
fn a_secret_in_the_file_is_refused_and_not_repeated() {
    let outcome = load(&with("    api_key: sk-do-not-print"));
    let text = format!("{}{}{}", outcome.report, outcome.report.to_json(), outcome.report.to_github());
    assert!(text.contains("a secret must not stand in the file"), "{text}");
    assert!(!text.contains("sk-do-not-print"), "{text}");
    assert!(outcome.loaded.is_none());
}

#[test]
fn what_could_not_be_read_is_not_also_called_missing() {
    let text = SMALL.replace("models: [llama]", "models: 5")
        + "tenants: {a: {models: [llama]}}\nmodels: {llama: {}}\n";
    let found = errors(&text);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("pools.llama.models: expected a list of model names"), "{found:#?}");
}

#[test]
fn odd_but_valid_files_are_remarked_on() {
    let digest = keys::digest_text(&[1; 32]);
    let text = format!(
        "
version: 1
server: {{admin: 0.0.0.0:9000}}
upstream: {{keep_alive: 10s}}
queue: {{bytes: 1MiB}}
classes: {{fast: {{}}, slow: {{}}}}
tenants:
  a: {{classes: [fast], models: [m], keys: [{{id: abcdefgh, digest: '{digest}'}}], queue: {{requests: 20000}}}}
  b: {{classes: [fast], models: [m]}}
pools:
  p: {{engine: vllm, models: [m, unused], replicas: [http://p:1]}}
  t: {{engine: triton, models: [m], replicas: [http://t:1]}}
"
    );
    let outcome = load(&text);
    assert!(outcome.loaded.is_some());
    insta::assert_snapshot!(outcome.report.to_string());
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
        let outcome = load_str_with(text, "p", base, previous.as_ref(), &NoSecrets);
        let settings = outcome.into_result().unwrap_or_else(|report| panic!("{report}")).settings;
        let policy = &settings.policy;
        assert_eq!(policy.generation, round + 1);
        assert_eq!(policy.classes.id("y"), Some(ClassId::new(1)));
        assert_eq!(policy.classes.id("x"), (round % 2 == 0).then_some(ClassId::new(0)));
        assert_eq!(policy.pools.id("qwen"), (round % 2 == 1).then_some(PoolId::new(1)));
        let model = settings.edge.model_names.values().next().copied();
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
    let outcome = load_str_with(SMALL, "p", Path::new("/"), Some(&running), &NoSecrets);
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
    assert_eq!(check_file(dir.path()).exit_code(), 2);
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text: String) {
        let outcome = load(&text);
        let _ = outcome.report.to_string();
        proptest::prop_assert_eq!(outcome.loaded.is_none(), outcome.report.has_errors());
    }

    #[test]
    fn no_damage_panics(at in 0usize..400, insert in "[\\[\\]{}:,&*'\"\n\t a0é-]{1,4}") {
        let mut text = SMALL.to_owned() + "models: {llama: {aliases: [x], max_model_len: 5}}\ntenants: {a: {weight: 2}}\n";
        let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.insert_str(at, &insert);
        let outcome = load(&text);
        proptest::prop_assert_eq!(outcome.loaded.is_none(), outcome.report.has_errors());
    }
}
