//! Operators: roles at the admin port, and the audit file.

use http::Method;
use penstock::config::keys::NewKey;
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};

use crate::support::certificates::{Authority, Leaf, connect, put, send, uri};
use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, head, key_of, pool_lines, tenant_lines, until};

const H1: &[&[u8]] = &[b"http/1.1"];
const PAUSE: &str = "/admin/v1/tenants/pause";

fn token(name: &str, role: &str) -> String {
    let NewKey { id, digest, .. } = key_of(name);
    format!("{{id: {id}, digest: '{digest}', role: {role}}}")
}

fn text(urls: &[String], admin: &str) -> String {
    format!(
        "{}admin: {admin}\naudit: {{file: audit.jsonl}}\ntenants:\n{}pools:\n{}",
        head(""),
        tenant_lines("alpha", ""),
        pool_lines("main", "engine: vllm\nmodels: [sim]", urls)
    )
}

fn auth(more: &str) -> String {
    format!("{{auth: {{tokens: [{}, {}]{more}}}}}", token("reader", "read"), token("operator", "operate"))
}

async fn rig(admin: &str) -> Rig {
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    Rig::with_file(&text(&[engine.url()], admin), vec![engine], ["alpha"]).await
}

impl Rig {
    async fn as_operator(&self, who: Option<&str>, call: Call) -> Answer {
        let call = match who {
            Some(name) => call.key(&key_of(name).text),
            None => call,
        };
        call.send(self.gateway.admin_address()).await
    }

    fn audit(&self) -> Vec<Value> {
        self.telemetry.flush_audit(std::time::Duration::from_secs(10));
        let text = std::fs::read_to_string(self.folder.path().join("audit.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn pause() -> Call {
    Call::post(PAUSE, &json!({ "name": "alpha", "for": "5m", "reason": "runaway job" }))
}

#[tokio::test]
async fn without_tokens_a_name_of_another_site_sees_and_changes_nothing() {
    let rig = rig("{auth: {hosts: [gateway.example.com]}}").await;
    let get = |path: &str| Call::new(Method::GET, path);
    let foreign = |call: Call| call.header("host", "rebind.attacker.example");
    for call in [get("/admin/v1/config"), get("/metrics"), pause()] {
        let answer = rig.as_operator(None, foreign(call)).await;
        assert_eq!(answer.status, 403);
        assert!(answer.text().contains("admin.auth.hosts"), "{}", answer.text());
    }
    let answer = rig.as_operator(None, pause().header("sec-fetch-site", "cross-site")).await;
    assert!(answer.status == 403 && answer.text().contains("another site"), "{}", answer.text());
    let reload = || Call::post("/admin/v1/reload", &json!({}));
    for call in [pause(), reload()] {
        let answer = rig.as_operator(None, call.header("origin", "http://attacker.example")).await;
        assert!(answer.status == 403 && answer.text().contains("another site"), "{}", answer.text());
    }
    // What a page may send without asking the browser's leave.
    let mut form = Call::new(Method::POST, "/admin/v1/reload");
    for media in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        form = media.map_or(form.clone(), |media| form.header("content-type", media));
        let answer = rig.as_operator(None, form.clone()).await;
        assert!(answer.status == 415 && answer.text().contains("application/json"), "{}", answer.text());
    }
    assert_eq!(rig.audit(), Vec::<Value>::new(), "nothing was done");
    rig.as_operator(None, foreign(get("/livez"))).await.ok();
    rig.as_operator(None, get("/metrics").header("host", "gateway.example.com:8081")).await.ok();
    rig.as_operator(None, pause()).await.ok();
    rig.as_operator(None, reload().header("origin", "http://gateway.test")).await.ok();
}

#[tokio::test]
async fn a_token_is_asked_for_and_its_role_counts() {
    let rig = rig(&auth("")).await;
    let get = |path: &str| Call::new(Method::GET, path);
    for path in ["/", "/livez", "/readyz", "/healthz"] {
        rig.as_operator(None, get(path)).await.ok();
    }
    for path in ["/metrics", "/admin/v1/status", "/admin/v1/config", "/no/such/route"] {
        let answer = rig.as_operator(None, get(path)).await;
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{path}");
        assert!(answer.text().contains("PENSTOCK_ADMIN_TOKEN"), "{}", answer.text());
    }
    for who in ["reader", "operator"] {
        rig.as_operator(Some(who), get("/metrics")).await.ok();
        let config = rig.as_operator(Some(who), get("/admin/v1/config")).await.ok().text();
        assert!(config.contains("admin_tokens") && !config.contains("blake3"), "{config}");
    }
    let answer = rig.as_operator(Some("reader"), pause()).await;
    assert_eq!(answer.status, 403);
    assert!(answer.text().contains("role `operate`"), "{}", answer.text());
    let answer = rig.as_operator(Some("reader"), Call::post("/admin/v1/reload", &json!({}))).await;
    assert_eq!(answer.status, 403);
    assert_eq!(rig.as_operator(Some("alpha"), get("/metrics")).await.status, 401, "a tenant is no operator");
    assert_eq!(rig.audit(), [] as [Value; 0], "nothing was done");
    rig.as_operator(Some("operator"), pause()).await.ok();
    let call = Call::post("/v1/chat/completions", &json!({})).key(&key_of("operator").text);
    assert_eq!(call.send(rig.address()).await.status, 401, "an operator is no tenant");
}

#[tokio::test]
async fn wrong_tokens_are_answered_more_shortly_and_right_ones_always_pass() {
    let rig = rig(&auth(", open_metrics: true")).await;
    let get = || Call::new(Method::GET, "/admin/v1/status");
    let (mut statuses, began) = (Vec::new(), tokio::time::Instant::now());
    for _ in 0..15 {
        statuses.push(rig.as_operator(Some("nobody"), get()).await.status);
    }
    assert_eq!(statuses[..10], [401; 10]);
    // One more after every 6 s.
    let tried = statuses.iter().filter(|status| **status == 401).count() as u64;
    assert!(tried <= 10 + began.elapsed().as_secs() / 6, "{statuses:?}");
    assert!(statuses[10..].contains(&429), "{statuses:?}");
    rig.as_operator(Some("reader"), get()).await.ok();
    assert!(rig.metric("penstock_admin_refusals_total").await >= 15.0, "metrics are open");
}

#[tokio::test]
async fn what_operators_do_is_written_down() {
    let rig = rig(&auth("")).await;
    rig.as_operator(Some("operator"), pause()).await.ok();
    let resume = Call::post("/admin/v1/tenants/resume", &json!({ "name": "alpha" }));
    rig.as_operator(Some("operator"), resume).await.ok();
    let reload = || Call::post("/admin/v1/reload", &json!({}));
    rig.as_operator(Some("operator"), reload()).await.ok();
    let before = std::fs::read_to_string(&rig.path).unwrap();
    let after = before.replace("  alpha:\n", "  alpha:\n    weight: 3\n");
    rig.put(&after);
    until("it is in force", || rig.generation() == 2).await;
    until("it is written down", || rig.audit().len() == 4).await;
    rig.put("version: 7\n");
    until("it is refused", || rig.audit().len() == 5).await;
    let who = format!("token:{}", key_of("operator").id);
    let audit = rig.audit();
    let facts = |line: &Value| {
        ["action", "who", "subject", "before", "after", "outcome"].map(|key| line[key].clone())
    };
    let expected = [
        [json!("pause"), json!(who), json!("alpha"), json!("none"), json!("pause"), Value::Null],
        [json!("resume"), json!(who), json!("alpha"), json!("pause"), json!("none"), Value::Null],
        [json!("reload"), json!(who), Value::Null, Value::Null, Value::Null, json!("unchanged")],
        [json!("reload"), json!("file"), Value::Null, Value::Null, Value::Null, json!("applied")],
        [json!("reload"), json!("file"), Value::Null, Value::Null, Value::Null, json!("failed")],
    ];
    assert_eq!(audit.iter().map(facts).collect::<Vec<_>>(), expected);
    assert_eq!(audit[0]["reason"], "runaway job");
    assert_eq!(audit[3]["changed"], json!(["tenants.alpha.weight"]));
    let all = std::fs::read_to_string(rig.folder.path().join("audit.jsonl")).unwrap()
        + &rig.telemetry.captured_log();
    for name in ["reader", "operator", "alpha"] {
        let NewKey { text, digest, .. } = key_of(name);
        assert!(!all.contains(&text) && !all.contains(&digest));
    }
}

#[tokio::test]
async fn an_operators_certificate_and_tls_on_the_port() {
    let ca = Authority::new();
    let folder = tempfile::tempdir().unwrap();
    ca.server().put(folder.path(), "admin");
    put(&folder.path().join("ca.crt"), &ca.pem());
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let admin = "{tls: {cert: admin.crt, key: admin.key, client_ca: ca.crt}, auth: {\
                 client_certs: [{uri: 'spiffe://test/ops', role: operate}, {uri: 'spiffe://test/look'}]}}";
    let path = folder.path().join("penstock.yaml");
    std::fs::write(&path, text(&[engine.url()], admin)).unwrap();
    let rig = Rig::at(folder, path, vec![engine], ["alpha"]).await;
    let to = rig.gateway.admin_address();
    let of = |name: &str| ca.leaf(vec![uri(&format!("spiffe://test/{name}"))]);
    let ask = async |leaf: Option<&Leaf>, call: Call| send(to, &ca.client(leaf, H1), call).await.status;
    let status = || Call::new(Method::GET, "/admin/v1/status");
    let (ops, look, other) = (of("ops"), of("look"), of("other"));
    assert_eq!(ask(Some(&ops), status()).await, 200);
    assert_eq!(ask(Some(&look), status()).await, 200);
    assert_eq!(ask(Some(&look), pause()).await, 403);
    assert_eq!(ask(Some(&other), status()).await, 401);
    assert_eq!(ask(None, status()).await, 401);
    assert_eq!(ask(None, Call::new(Method::GET, "/livez")).await, 200);
    assert_eq!(ask(Some(&ops), pause()).await, 200);
    assert_eq!(rig.audit()[0]["who"], "cert:uri:spiffe://test/ops");
    let stranger = Authority::new();
    assert!(connect(to, &stranger.client(None, H1)).await.is_err(), "it is not this one's certificate");
}
