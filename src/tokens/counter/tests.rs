use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

const NAMES: [&str; 3] = ["byte-level", "sentence-piece", "word-piece"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers")
}

fn open(name: &str) -> TokenCounter {
    TokenCounter::open(&fixtures().join(name)).unwrap()
}

fn count(counter: &TokenCounter, form: Form, body: &Value) -> Result<u64, Uncounted> {
    let never = AtomicBool::new(false);
    let costs = MediaCosts { image: Some(100), audio: None };
    counter.count(form, body.to_string().as_bytes(), &costs, 0, &never).map(|counted| counted.all)
}

/// `counts.jsonl` was made by transformers: see `make.py` beside it.
#[test]
fn chats_have_as_many_tokens_as_transformers_counts() {
    let rows = fs::read_to_string(fixtures().join("counts.jsonl")).unwrap();
    for name in NAMES {
        let counter = open(name);
        let mut refused = 0;
        for (at, row) in rows.lines().enumerate() {
            let row: Value = serde_json::from_str(row).unwrap();
            let body = row["request"].to_string();
            for again in [false, true] {
                let never = AtomicBool::new(false);
                let counted = counter.count(Form::Chat, body.as_bytes(), &MediaCosts::default(), 0, &never);
                match row[name].as_u64() {
                    Some(tokens) => {
                        assert_eq!(counted.map(|one| one.all), Ok(tokens), "{name} {at} {again}: {body}");
                    }
                    None => {
                        assert!(matches!(counted, Err(Uncounted::Unsure(_))), "{name} {at}: {counted:?}");
                        refused += 1;
                    }
                }
            }
            let bytes: usize = ["messages", "tools"].iter().map(|field| row["request"][field].to_string().len()).sum();
            let tools = if row["request"]["tools"].is_null() { 0 } else { row["request"]["tools"].to_string().len() };
            let most = counter.at_most(bytes as u64, tools as u64);
            assert!(row[name].as_u64().is_none_or(|tokens| tokens <= most), "{name} {at}: {most}");
        }
        assert!(refused < 20, "{name}: {refused}");
    }
}
