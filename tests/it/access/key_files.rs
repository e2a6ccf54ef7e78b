//! Keys that come and go while the gateway runs: files in a folder, and the admin API.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use http::Method;
use penstock::config::keys::{self, NewKey};
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};

use crate::support::client::{Answer, Call};
use crate::support::gateway::{Rig, chat, head, key_of, pool_lines, tenant_lines, until};

const CHAT: &str = "/v1/chat/completions";
const KEYS: &str = "/admin/v1/keys";
/// A key as LiteLLM makes them.
const FOREIGN: &str = "sk-Xq3v9TtM0b7eKcYw2LpZ1A";

fn line(name: &str, more: &str) -> String {
    let NewKey { id, digest, .. } = key_of(name);
    format!("{{id: {id}, digest: '{digest}'{more}}}")
}

fn file(tenant: &str, lines: &[String]) -> String {
    format!("tenant: {tenant}\nkeys: [{}]\n", lines.join(", "))
}

/// A gateway with two tenants, an operator, somebody who looks, and the folder `keys`.
async fn rig(files: &[(&str, String)]) -> Rig {
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let text = format!(
        "{}auth: {{keys_dir: keys, failures: {{per_minute: 0}}}}\naudit: {{file: audit.jsonl}}\n\
         admin: {{auth: {{open_metrics: true, tokens: [{}, {}]}}}}\ntenants:\n{}  beta: {{classes: [batch]}}\npools:\n{}",
        head(""),
        line("operator", ", role: operate"),
        line("reader", ", role: read"),
        tenant_lines("alpha", ""),
        pool_lines("main", "engine: vllm\nmodels: [sim]", &[engine.url()])
    );
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("keys")).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join("keys").join(name), text).unwrap();
    }
    let path = folder.path().join("penstock.yaml");
    fs::write(&path, text).unwrap();
    Rig::at(folder, path, vec![engine], ["alpha"]).await
}

impl Rig {
    fn keys_dir(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    async fn opens(&self, key: &str) -> bool {
        let answer = Call::post(CHAT, &chat(1, false)).key(key).send(self.address()).await;
        assert!([200, 401].contains(&answer.status), "{}: {}", answer.status, answer.text());
        answer.status == 200
    }

    async fn asks(&self, who: &str, call: Call) -> Answer {
        call.key(&key_of(who).text).send(self.gateway.admin_address()).await
    }

    async fn make(&self, body: Value) -> Answer {
        self.asks("operator", Call::post(KEYS, &body)).await
    }

    async fn reload(&self) {
        self.gateway.reload_handle().reload("test".into()).await.unwrap();
    }
}

#[tokio::test]
async fn files_of_a_folder_bring_keys_and_a_broken_one_keeps_to_itself() {
    let rig = rig(&[
        ("one.yaml", file("alpha", &[line("one", "")])),
        ("two", file("beta", &[line("two", ""), line("expired", ", expires: 2001-01-31")])),
        (".hidden", file("alpha", &[line("hidden", "")])),
        ("broken.yaml", "tenant: alpha\nkyes: []\n".to_owned()),
        ("nobody.yaml", file("gamma", &[line("nobody", "")])),
        ("partly.yaml", file("beta", &[line("partly", ""), line("wrong", ", classes: [standard]")])),
        // The key of the main file stays its own.
        ("stolen.yaml", file("beta", &[line("alpha", ", limits: {per_minute: {requests: 1}}")])),
    ])
    .await;
    for (name, opens) in [
        ("one", true),
        ("two", true),
        ("expired", false),
        ("hidden", false),
        ("nobody", false),
        ("partly", true),
        ("wrong", false),
    ] {
        assert_eq!(rig.opens(&key_of(name).text).await, opens, "{name}");
    }
    for _ in 0..2 {
        assert!(rig.opens(rig.key("alpha")).await);
    }
    until("broken files are counted", || rig.telemetry.captured_log().contains("key file left out")).await;
    assert_eq!(rig.metric("penstock_key_file_problems").await, 4.0);

    // What was good stays in force while its file is broken.
    fs::write(rig.keys_dir().join("one.yaml"), "tenant: [").unwrap();
    rig.reload().await;
    assert!(rig.opens(&key_of("one").text).await);
    fs::remove_file(rig.keys_dir().join("one.yaml")).unwrap();
    rig.reload().await;
    assert!(!rig.opens(&key_of("one").text).await);
}

#[tokio::test]
async fn a_mounted_secret_is_followed_when_it_is_swapped() {
    let rig = rig(&[]).await;
    let folder = rig.keys_dir();
    for (version, name) in [("..1", "first"), ("..2", "second")] {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("team"), file("alpha", &[line(name, "")])).unwrap();
    }
    symlink("..1", folder.join("..data")).unwrap();
    symlink("..data/team", folder.join("team")).unwrap();
    until("the folder is read", || rig.generation() > 1).await;
    rig.reload().await;
    assert!(rig.opens(&key_of("first").text).await && !rig.opens(&key_of("second").text).await);
    let generation = rig.generation();
    symlink("..2", folder.join("..data_tmp")).unwrap();
    fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    until("the new version is read", || rig.generation() > generation).await;
    assert!(!rig.opens(&key_of("first").text).await && rig.opens(&key_of("second").text).await);
}

#[tokio::test]
async fn a_key_is_made_replaced_and_revoked_while_requests_come() {
    let rig = rig(&[]).await;
    let made = rig.make(json!({ "tenant": "beta", "for": "90d", "note": "ann", "classes": ["batch"] })).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let made = made.json();
    let (key, id) = (made["key"].as_str().unwrap(), made["id"].as_str().unwrap());
    assert!(rig.opens(key).await, "it is in force when the answer comes");
    let path = rig.keys_dir().join(made["file"].as_str().unwrap());
    let written = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!written.contains(key) && written.contains("blake3:"));

    let forever = rig.make(json!({ "replaces": id })).await;
    assert_eq!(forever.status, 400, "a key with an end is not replaced by one without: {}", forever.text());
    let bad = rig.make(json!({ "replaces": id, "for": "90d", "overlap": "soon" })).await;
    assert_eq!(bad.status, 400, "{}", bad.text());
    assert_eq!(fs::read_dir(rig.keys_dir()).unwrap().count(), 1, "what was refused is not kept");
    let next = rig.make(json!({ "replaces": id, "for": "90d", "overlap": "1h" })).await;
    assert_eq!(next.status, 201, "{}", next.text());
    let next = next.json();
    assert_eq!((next["tenant"].as_str(), next["replaces"]["id"].as_str()), (Some("beta"), Some(id)));
    assert!(rig.opens(key).await && rig.opens(next["key"].as_str().unwrap()).await);

    let listed = rig.asks("reader", Call::get(KEYS)).await.ok();
    for secret in [key, "blake3:", next["key"].as_str().unwrap()] {
        assert!(!listed.text().contains(secret));
    }
    let rows = listed.json();
    let row = |id: &str| rows["keys"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap().clone();
    assert_eq!((row(id)["state"].clone(), row(id)["note"].clone()), (json!("expiring"), json!("ann")));
    let own = row(next["id"].as_str().unwrap());
    assert_eq!(
        (own["state"].clone(), own["classes"].clone(), own["note"].clone()),
        (json!("active"), json!(["batch"]), json!("ann"))
    );
    assert_eq!(row(&key_of("alpha").id)["file"], Value::Null);

    let gone = rig.asks("operator", Call::new(Method::DELETE, &format!("{KEYS}/{id}"))).await.ok();
    assert_eq!(gone.json()["revoked"], true);
    assert!(!rig.opens(key).await && !path.exists());
    rig.telemetry.flush_audit(std::time::Duration::from_secs(10));
    let audit = fs::read_to_string(rig.folder.path().join("audit.jsonl")).unwrap();
    let who = format!("token:{}", key_of("operator").id);
    for action in ["key_create", "key_revoke"] {
        let entry = audit.lines().find(|line| line.contains(action)).unwrap();
        assert!(entry.contains(&who) && entry.contains(id) && !entry.contains(key), "{entry}");
    }
}

#[tokio::test]
async fn a_secret_that_its_holder_has_already_is_taken_by_its_digest() {
    let rig = rig(&[]).await;
    assert!(!rig.opens(FOREIGN).await);
    let digest = keys::hash(FOREIGN).unwrap().digest;
    let made = rig.make(json!({ "tenant": "alpha", "digest": digest, "id": "litellm1" })).await;
    assert_eq!((made.status, made.json()["key"].clone()), (201, Value::Null), "{}", made.text());
    assert!(rig.opens(FOREIGN).await);
    let again = rig.make(json!({ "tenant": "alpha", "digest": digest })).await;
    assert_eq!(again.status, 409, "{}", again.text());
    assert!(again.text().contains("the key litellm1 has"), "{}", again.text());
    assert_eq!(fs::read_dir(rig.keys_dir()).unwrap().count(), 1, "what was refused is not kept");
}

#[tokio::test]
async fn what_cannot_be_done_is_said() {
    let rig = rig(&[("people.yaml", file("alpha", &[line("people", "")]))]).await;
    for (body, status, said) in [
        (json!({}), 400, "`tenant` is missing"),
        (json!({ "tenant": "alpah" }), 400, "did you mean `alpha`?"),
        (json!({ "tenant": "alpha", "colour": 1 }), 400, "unknown field"),
        (json!({ "tenant": "alpha", "for": "soon" }), 400, "write it like"),
        (json!({ "tenant": "alpha", "expires": "2001-01-31" }), 400, "over already"),
        (json!({ "tenant": "alpha", "digest": "blake3:00" }), 400, "penstock keys hash"),
        (json!({ "tenant": "alpha", "note": "a\nb" }), 400, "one line"),
        (json!({ "tenant": "beta", "classes": ["standard"] }), 422, "may not use `standard`"),
        (json!({ "replaces": key_of("people").id }), 409, "people write"),
        (json!({ "replaces": "../../etc" }), 400, "is no id"),
    ] {
        let answer = rig.make(body.clone()).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.text().contains(said), "{body}: {}", answer.text());
    }
    for (id, status) in
        [("nobodyhere".to_owned(), 404), (key_of("alpha").id, 409), (key_of("people").id, 409)]
    {
        let answer = rig.asks("operator", Call::new(Method::DELETE, &format!("{KEYS}/{id}"))).await;
        assert_eq!(answer.status, status, "{id}: {}", answer.text());
    }
    let reader = rig.asks("reader", Call::post(KEYS, &json!({ "tenant": "alpha" }))).await;
    assert_eq!(reader.status, 403);
    let plain = Call::new(Method::POST, KEYS).header("content-type", "text/plain");
    assert_eq!(rig.asks("operator", plain).await.status, 415);
    assert_eq!(fs::read_dir(rig.keys_dir()).unwrap().count(), 1);

    // A file that is broken refuses every change, and the key is not left behind.
    let good = fs::read_to_string(&rig.path).unwrap();
    rig.put("version: 1\n");
    let answer = rig.make(json!({ "tenant": "alpha" })).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(fs::read_dir(rig.keys_dir()).unwrap().count(), 1);
    rig.put(&good.replace("keys_dir: keys, ", ""));
    rig.reload().await;
    let answer = rig.make(json!({ "tenant": "alpha" })).await;
    assert!(answer.status == 409 && answer.text().contains("auth.keys_dir"), "{}", answer.text());
}
