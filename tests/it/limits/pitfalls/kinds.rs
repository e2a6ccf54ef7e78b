//! Kinds of limits: every limit of the configuration refuses, and the refusal names its owner.

use std::fmt::Write as _;

use penstock::config::keys::NewKey;
use penstock::sim::faults::FaultKind;
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::Value;

use crate::support::client::Call;
use crate::support::gateway::{PATIENCE, Rig, chat, head, key_of, pool_lines, until};

const PERIODS: [(&str, &str); 4] =
    [("concurrent", "at a time"), ("per_minute", "a minute"), ("per_day", "a day"), ("per_month", "a month")];
const SCOPES: [(&str, &str); 3] =
    [("limits", "your tenant"), ("model_limits", "your tenant for this model"), ("key", "this API key")];
const HELD: [&str; 2] = ["requests", "tokens"];
const USED: [&str; 4] = ["requests", "tokens", "input_tokens", "output_tokens"];

/// One limit, and what its refusal says.
struct Kind {
    tenant: String,
    lines: String,
    says: String,
}

fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (place, whose) in SCOPES {
        for (period, over) in PERIODS {
            let units = if period == "concurrent" { &HELD[..] } else { &USED };
            for unit in units {
                let tenant = format!("{place}-{period}-{unit}").replace('_', "-");
                let limit = format!("{{{period}: {{{unit}: 1}}}}");
                let NewKey { id, digest, .. } = key_of(&tenant);
                let key = format!("id: {id}, digest: \"{digest}\"");
                let lines = match place {
                    "limits" => format!("{{limits: {limit}, keys: [{{{key}}}]}}"),
                    "model_limits" => format!("{{model_limits: {{sim: {limit}}}, keys: [{{{key}}}]}}"),
                    _ => format!("{{keys: [{{{key}, limits: {limit}}}]}}"),
                };
                let amount = if *unit == "requests" {
                    "1 request".to_owned()
                } else {
                    format!("1 {}", unit.replace('_', " "))
                };
                kinds.push(Kind {
                    tenant,
                    lines,
                    says: format!("The limit of {whose} is {amount} {over}: "),
                });
            }
        }
    }
    kinds
}

/// The tables above are those of the file.
#[test]
fn no_kind_is_forgotten() {
    let schema = concat!(env!("CARGO_MANIFEST_DIR"), "/config/schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(schema).unwrap()).unwrap();
    let names = |of: &str| {
        let fields = schema["definitions"][of]["properties"].as_object().unwrap().keys();
        let mut names: Vec<&str> = fields.map(String::as_str).collect();
        names.sort_unstable();
        names
    };
    let counted = |of: &str| {
        let is_counted = |name: &&str| name.ends_with("requests") || name.ends_with("tokens");
        names(of).into_iter().filter(is_counted).collect::<Vec<_>>()
    };
    assert_eq!(names("LimitsSection"), ["concurrent", "per_day", "per_minute", "per_month", "shadow"]);
    assert_eq!(counted("ConcurrentSection"), HELD);
    assert_eq!(counted("AmountsSection"), ["input_tokens", "output_tokens", "requests", "tokens"]);
}

#[tokio::test]
async fn every_limit_that_can_be_written_refuses() {
    let engine = SimServer::start(SimOptions::default()).await.unwrap();
    let mut text = head("") + "tenants:\n";
    for Kind { tenant, lines, .. } in kinds() {
        let _infallible = writeln!(text, "  {tenant}: {lines}");
    }
    text += "pools:\n";
    text += &pool_lines("main", "engine: vllm\nmodels: [sim]\nmax_seqs: 8", &[engine.url()]);
    let rig = Rig::with_file(&text, vec![engine], []).await;
    rig.engine(0).add(FaultKind::Slow { factor: 100.0 }).unwrap();
    for Kind { tenant, says, .. } in kinds() {
        let key = key_of(&tenant).text;
        let ask = || Call::post("/v1/chat/completions", &chat(2_000, true)).key(&key).send(rig.address());
        let first = tokio::spawn(ask());
        // The prompt alone may be too much.
        until("it runs or is refused", || first.is_finished() || rig.snapshot().jobs == 1).await;
        let refused = ask().await;
        assert_eq!(refused.status, 429, "{tenant}: {}", refused.text());
        assert!(refused.text().contains(&says), "{tenant}: {}", refused.text());
        first.abort();
        rig.emptied_within(PATIENCE).await;
    }
}
