//! Tests of the token counter: counts compared with those of transformers, and prompts that have no
//! exact count.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use crate::tokens::counter::{CountError, CountedTokens, MediaCosts, PromptForm, TOKENIZER, TokenCounter};

const NAMES: [&str; 3] = ["byte-level", "sentence-piece", "word-piece"];

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers")
}

fn open(name: &str) -> TokenCounter {
    TokenCounter::open(&fixtures().join(name)).unwrap()
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
                let counted =
                    counter.count(PromptForm::Chat, body.as_bytes(), &MediaCosts::default(), 0, &never);
                match row[name].as_u64() {
                    Some(tokens) => {
                        assert_eq!(counted.map(|one| one.total), Ok(tokens), "{name} {at} {again}: {body}");
                    }
                    None => {
                        assert!(matches!(counted, Err(CountError::Unsure(_))), "{name} {at}: {counted:?}");
                        refused += 1;
                    }
                }
            }
            let bytes: usize =
                ["messages", "tools"].iter().map(|field| row["request"][field].to_string().len()).sum();
            let tools =
                if row["request"]["tools"].is_null() { 0 } else { row["request"]["tools"].to_string().len() };
            let most = counter.max_tokens(bytes as u64, tools as u64);
            assert!(row[name].as_u64().is_none_or(|tokens| tokens <= most), "{name} {at}: {most}");
        }
        assert!(refused < 20, "{name}: {refused}");
    }
}

#[test]
fn texts_have_as_many_tokens_as_transformers_counts() {
    let rows = fs::read_to_string(fixtures().join("counts.jsonl")).unwrap();
    let never = AtomicBool::new(false);
    for name in NAMES {
        let counter = open(name);
        for row in rows.lines().take(40) {
            let row: Value = serde_json::from_str(row).unwrap();
            let text = all_text(&row["request"]);
            let count = |body: Value| {
                counter
                    .count(PromptForm::Text, body.to_string().as_bytes(), &MediaCosts::default(), 0, &never)
                    .unwrap()
            };
            let tokens = row["text"][name].as_u64().unwrap();
            assert_eq!(count(json!({ "prompt": text })).total, tokens, "{name}");
            let both = count(json!({ "prompt": [text, "a"] }));
            assert_eq!(both.longest, tokens);
            assert!(both.total > tokens);
        }
        let ids = br#"{"prompt":[[1,2,3],[4]]}"#;
        let counted = counter.count(PromptForm::Text, ids, &MediaCosts::default(), 0, &never);
        assert_eq!(counted, Ok(CountedTokens { longest: 3, total: 4 }));
    }
}

fn all_text(request: &Value) -> String {
    let said = |message: &Value| match &message["content"] {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        text => text.as_str().unwrap_or_default().to_owned(),
    };
    request["messages"].as_array().unwrap().iter().map(said).collect::<Vec<String>>().join("\n")
}

/// Messages that are long enough for the count cache, and are counted by parts.
#[test]
fn parts_that_were_counted_before_count_the_same() {
    let never = AtomicBool::new(false);
    for name in NAMES {
        let (warm, mut messages) = (open(name), Vec::new());
        for turn in 0..6 {
            let role = ["user", "assistant"][turn % 2];
            let mark = ["<|eot_id|>", "</s>", "<|im_end|>", " ", "\n", ""][turn];
            messages.push(json!({ "role": role, "content": format!("{mark} mot {turn} né. ").repeat(60) }));
            let body = json!({ "messages": messages }).to_string();
            let count = |counter: &TokenCounter| {
                counter.count(PromptForm::Chat, body.as_bytes(), &MediaCosts::default(), 0, &never)
            };
            let counted = count(&warm).unwrap();
            assert_eq!(counted, count(&warm).unwrap());
            assert_eq!(counted, count(&open(name)).unwrap());
            let whole = count(&whole(name)).unwrap();
            assert_eq!(counted, whole, "{name} {turn}");
        }
    }
}

/// A counter that counts each text as one part.
fn whole(name: &str) -> TokenCounter {
    let mut counter = open(name);
    counter.vocabulary.forget_cuts();
    counter
}

#[test]
fn what_is_no_text_counts_as_configured_or_not_at_all() {
    let counter = open("word-piece");
    let never = AtomicBool::new(false);
    let count = |parts: Value, media: &MediaCosts| {
        let body = json!({ "messages": [{ "role": "user", "content": parts }] }).to_string();
        counter.count(PromptForm::Chat, body.as_bytes(), media, 0, &never)
    };
    let image =
        json!([{ "type": "text", "text": "see" }, { "type": "image_url", "image_url": { "url": "data:" } }]);
    let costs = MediaCosts { image: Some(500), audio: None };
    let with = count(image.clone(), &costs).unwrap().total;
    assert!(with > 500 && with < 550, "{with}");
    assert!(matches!(count(image, &MediaCosts::default()), Err(CountError::Unsure(_))));
    assert!(matches!(count(json!([{ "type": "input_audio" }]), &costs), Err(CountError::Unsure(_))));
    assert!(matches!(count(json!([{ "type": "hologram" }]), &costs), Err(CountError::Unsure(_))));
}

#[test]
fn why_there_is_no_count_never_quotes_the_prompt() {
    let counter = open("word-piece");
    let never = AtomicBool::new(false);
    let secret = "the water is poisoned";
    for (form, body) in [
        (PromptForm::Chat, json!({ "messages": secret })),
        (PromptForm::Chat, json!({ "messages": [{ "role": { "a": secret }, "content": secret }] })),
        (PromptForm::Chat, json!({ "messages": [{ "role": "user", "content": [{ "type": secret }] }] })),
        (PromptForm::Text, json!({ "prompt": { "a": secret } })),
        (PromptForm::Text, json!({ "prompt": secret, "add_special_tokens": secret })),
    ] {
        let counted = counter.count(form, body.to_string().as_bytes(), &MediaCosts::default(), 0, &never);
        let Err(CountError::Unsure(why)) = counted else { panic!("{body}: {counted:?}") };
        assert!(!why.contains("water"), "{why}");
    }
}

#[test]
fn a_count_stops_when_nobody_waits() {
    let body = json!({ "messages": [{ "role": "user", "content": "word ".repeat(1000) }] }).to_string();
    let left = AtomicBool::new(true);
    for name in NAMES {
        let counted = open(name).count(PromptForm::Chat, body.as_bytes(), &MediaCosts::default(), 0, &left);
        assert_eq!(counted, Err(CountError::Stopped));
    }
}

#[test]
fn a_broken_folder_says_which_file_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let open = || TokenCounter::open(folder.path()).unwrap_err();
    assert_eq!(open().file, folder.path().join(TOKENIZER));
    let good = fixtures().join("byte-level");
    for (name, text) in [
        (TOKENIZER, "{".to_owned()),
        (TOKENIZER, r#"{"version":"1.0","model":{"type":"Unknown"}}"#.to_owned()),
        ("tokenizer_config.json", r#"{"chat_template":"{% for %}"}"#.to_owned()),
        ("tokenizer_config.json", "[".to_owned()),
    ] {
        if name != TOKENIZER {
            fs::copy(good.join(TOKENIZER), folder.path().join(TOKENIZER)).unwrap();
        }
        fs::write(folder.path().join(name), text).unwrap();
        let broken = open();
        assert!(broken.file.starts_with(folder.path()) && !broken.why.is_empty(), "{broken:?}");
    }
}

#[test]
fn files_are_read_again_only_when_they_changed() {
    let folder = tempfile::tempdir().unwrap();
    for file in [TOKENIZER, "tokenizer_config.json"] {
        fs::copy(fixtures().join("byte-level").join(file), folder.path().join(file)).unwrap();
    }
    let first = TokenCounter::reopen(folder.path(), None).unwrap();
    let again = TokenCounter::reopen(folder.path(), Some(&first)).unwrap();
    assert!(Arc::ptr_eq(&first, &again));
    fs::write(folder.path().join("chat_template.jinja"), "{{ messages[0].content }}").unwrap();
    let changed = TokenCounter::reopen(folder.path(), Some(&first)).unwrap();
    assert!(!Arc::ptr_eq(&first, &changed));
}
