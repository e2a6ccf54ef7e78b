//! Files with faults in, problems out.

use crate::config::keys;
use crate::config::load::tests::{SMALL, errors, load, problems, with};

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

/// Each text has one error, and it says this.
pub(super) fn expect_one_error(cases: &[(String, &str)]) {
    for (text, message) in cases {
        let found = errors(text);
        assert_eq!(found.len(), 1, "{text}\n{found:#?}");
        assert!(found[0].contains(message), "{message}\n{found:#?}");
    }
}

#[test]
fn faults_of_limits() {
    expect_one_error(&[
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
        (with("telemetry: {otlp: {ca: none.pem}}"), "telemetry.otlp.ca: "),
        (
            with("telemetry: {otlp: {headers: {'a b': {env: PATH}}}}"),
            "telemetry.otlp.headers[\"a b\"]: \"a b\" is not the name of a header",
        ),
        (
            with("telemetry: {otlp: {endpoint: otel:4317}}"),
            "telemetry.otlp.endpoint: \"otel:4317\" is not a whole URL",
        ),
        (with("requests: {max_body: 2GiB}"), "requests.max_body: 2GiB is more than all bodies"),
        (with("requests: {max_answer: 2GiB}"), "requests.max_answer: 2GiB is more than all answers"),
        (with("requests: {stream_buffer: 2GiB}"), "requests.stream_buffer: 2GiB is more than all answers"),
        (with("server: {send_timeout: 0s}"), "server.send_timeout: must not be zero"),
        (
            with("requests: {class_header: Authorization}"),
            "requests.class_header: `Authorization` means something else",
        ),
        (
            with("upstream: {request_headers: [x-team-*, 'a b']}"),
            "upstream.request_headers[1]: \"a b\" is not a header name",
        ),
        (with("requests: {class_header: 'a b'}"), "requests.class_header: \"a b\" is not a header name"),
        (with("routing: {session: {body: []}}"), "routing.session: nothing names a session"),
        (with("routing: {session: {header: Host}}"), "routing.session.header: `Host` means something else"),
        (with("routing: {session: {max_delay: 0s}}"), "routing.session.max_delay: must not be zero"),
        (with("routing: {session: {max_sessions: 0}}"), "routing.session.max_sessions: 0 is out of range"),
        (with("queue: {requests: 0}"), "queue.requests: must not be zero"),
        (with("retry: {max_attempts: 0}"), "retry.max_attempts: 0 is out of range"),
        (with("retry: {budget: -0.1}"), "retry.budget: -0.1 is out of range"),
        (with("retry: {budget: 21}"), "retry.budget: 21 is out of range"),
        (with("health: {probe_min: 5s}"), "health.probe_max: 1s is shorter than probe_min (5s)"),
        (with("health: {max_ejected: 1.5}"), "health.max_ejected: 1.5 is out of range"),
    ]);
}

#[test]
fn faults_of_the_tree_of_tenants() {
    let tree = |tenants: &str, one: &str| {
        let text = with(&format!("tenants: {tenants}\nauth: {{mode: off, tenant: {one}}}"));
        text.replacen("auth: {mode: off}\n", "", 1)
    };
    expect_one_error(&[
        (
            tree("{acme: {}, b: {parent: acne}}", "b"),
            "tenants.b.parent: there is no tenant `acne` (did you mean `acme`?)",
        ),
        (tree("{a: {parent: a}}", "a"), "tenants.a.parent: the parents form a circle (a -> a)"),
        (
            tree("{a: {parent: b}, b: {parent: c}, c: {parent: b}}", "a"),
            "tenants.b.parent: the parents form a circle (b -> c -> b) (take the parent of one of them away)",
        ),
        (
            tree("{a: {}, b: {parent: a}, c: {parent: b}, d: {parent: c}, e: {parent: d}}", "a"),
            "tenants.e.parent: is 5 levels deep (e -> d -> c -> b -> a) (at most 4 levels",
        ),
        (
            tree(
                "{a: {quota: {guarantee: 0.3}}, b: {parent: a, quota: {guarantee: 0.2}}, c: {parent: a, quota: {guarantee: 0.2}}}",
                "a",
            ),
            "tenants.a.quota.guarantee: guarantees 0.3, and its children 0.40 together (b 0.2, c 0.2) (raise it",
        ),
    ]);
}

#[test]
fn faults_of_tenants_and_classes() {
    expect_one_error(&[
        (with("classes: {}"), "classes: names no class"),
        (with("classes: {'a b': {}}"), "classes[\"a b\"]: is not a usable name"),
        (
            with("classes: {a: {min_share: 0.6}, b: {min_share: 0.6}}"),
            "classes: the shares are 1.20 together",
        ),
        (with("classes: {a: {min_share: .nan}}"), "not valid YAML"),
        (
            with("classes: {a: {max_wait: 10s, cold_start_tolerance: 11s}}"),
            "classes.a.cold_start_tolerance: is longer than max_wait",
        ),
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
        (with("classes: {a: {demote_to: b}}"), "classes.a.demote_to: there is no class `b`"),
        (
            with("classes: {interactive: {demote_to: btach}, batch: {}}"),
            "demote_to: there is no class `btach` (did you mean `batch`?)",
        ),
        (
            with("classes: {a: {rank: 2, demote_to: b}, b: {rank: 1}}"),
            "classes.a.demote_to: `b` has rank 1, and this class 2 (name a class of a later rank)",
        ),
        (with("classes: {a: {demote_to: a}}"), "classes.a.demote_to: `a` has rank 1, and this class 1"),
        (
            with("tenants: {a: {quota: {guarantee: 0.7}}, b: {}, c: {quota: {guarantee: 0.4}}}\nauth: {mode: off, tenant: a}")
                .replacen("auth: {mode: off}\n", "", 1),
            "tenants: the guarantees are 1.10 together (a 0.7, c 0.4) (lower quota.guarantee of some tenant",
        ),
        (with("tenants: {a: {quota: {guarantee: 1.5}}}"), "tenants.a.quota.guarantee: 1.5 is not a share"),
        (with("tenants: {a: {quota: {borrow: -1}}}"), "tenants.a.quota.borrow: -1 is not a share"),
        (with("tenants: {a: {quota: {lend: .inf}}}"), "not valid YAML"),
        (with("tenants: {a: {queue: {tokens: 0}}}"), "tenants.a.queue.tokens: must not be zero"),
    ]);
}

#[test]
fn faults_of_models_and_pools() {
    expect_one_error(&[
        (
            SMALL.replace("engine: vllm", "engine: sglang\n    engine_priority: true"),
            "pools.llama.engine_priority: sglang is told no priority",
        ),
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
        (with("  x: {engine: vllm, models: [y], cold_start: 0s}"), "pools.x.cold_start: must not be zero"),
        (
            with("  x: {engine: vllm, models: [y], cold_start: 1m, min_replicas: 3, max_replicas: 2}"),
            "pools.x.max_replicas: is less than min_replicas",
        ),
        (
            with("  x: {engine: vllm, models: [y], cold_start: 1m, scales_to_zero: true}"),
            "pools.x.scales_to_zero: is for `replicas` whose addresses stay",
        ),
        (
            with("  x: {engine: tgi, models: [y], replicas: [http://h:1], sleep: {}}"),
            "pools.x.sleep: tgi is never put to sleep",
        ),
        (
            with("  x: {engine: vllm, models: [y], replicas: [http://h:1], sleep: {after_idle: 900ms}}"),
            "pools.x.sleep.after_idle: is too short",
        ),
        (
            with("  x: {engine: vllm, models: [y], replicas: [http://h:1], sleep: {wake_timeout: 0s}}"),
            "pools.x.sleep.wake_timeout: must not be zero",
        ),
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
    ]);
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
        ("{id: abcdefgi, digest: 'blake3:zz'}".to_owned(), "keys[1].digest: is not a digest"),
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

#[test]
fn sources_of_replicas_are_checked() {
    let with_source = |source: &str| {
        errors(&SMALL.replace("replicas: [http://127.0.0.1:8000]", &format!("discover: {source}")))
    };
    for (source, said) in [
        ("{}", "names no source, or several"),
        ("{dns: {name: a.test, port: 1}, file: list.yaml}", "names no source, or several"),
        ("{dns: {port: 80}}", "dns.name"),
        ("{dns: {name: 'a b', port: 80}}", "dns.name"),
        ("{dns: {name: a.test}}", "dns.port: is missing"),
        ("{dns: {name: a.test, type: srv, port: 80}}", "in the SRV records already"),
        ("{dns: {name: a.test, port: 80, min_refresh: 1m}}", "shorter than min_refresh"),
        ("{dns: {name: a.test, port: 80, min_refresh: 1ms}}", "is too short"),
        ("{dns: {name: a.test, port: 80, servers: [dns.test]}}", "dns.servers[0]"),
        ("{file: nowhere.yaml}", "cannot be read"),
        ("{kubernetes: {}}", "names no Service, or two"),
        ("{kubernetes: {service: s, selector: a=b}}", "names no Service, or two"),
        ("{kubernetes: {service: s, namespace: A_B}}", "kubernetes.namespace"),
        ("{kubernetes: {service: s, port: 0}}", "kubernetes.port"),
        ("{kubernetes: {service: s, nodes: {taints: []}}}", "names nothing that gives notice"),
        ("{kubernetes: {service: s, nodes: {conditions: ['']}}}", "nodes.conditions[0]: is empty"),
        ("{kubernetes: {service: s, server: 'https://h'}}", "namespace: is missing"),
        ("{kubernetes: {service: s, namespace: n, server: h}}", "kubernetes.server"),
    ] {
        let found = with_source(source);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        assert!(found[0].contains(said), "{source}: {found:?}");
    }
    assert_eq!(with_source("{kubernetes: {service: s, port: http}}"), Vec::<String>::new());
    assert_eq!(with_source("{dns: {name: _h._tcp.a.test., type: srv}}"), Vec::<String>::new());
}
