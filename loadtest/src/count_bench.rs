//! `loadtest count-bench`: the cost of counting the tokens of a long prompt.

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use penstock::tokens::counter::{MediaCosts, PromptForm, TokenCounter};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Times that the bound is taken.
const BOUNDS: u32 = 1_000_000;

/// Arguments of `loadtest count-bench`.
#[derive(Debug, Clone, Args)]
pub struct CountBenchArgs {
    /// Folders with a model's tokenizer and chat template.
    #[arg(default_values = [
        "tests/fixtures/tokenizers/byte-level",
        "tests/fixtures/tokenizers/sentence-piece",
        "tests/fixtures/tokenizers/word-piece",
    ])]
    pub folders: Vec<PathBuf>,
    /// Where the prompts' words come from: chats, one JSON object a line.
    #[arg(long, default_value = "tests/fixtures/tokenizers/counts.jsonl")]
    pub chats: PathBuf,
    /// Bytes of a prompt.
    #[arg(long, default_value_t = 128 << 10)]
    pub bytes: usize,
}

/// Runs `loadtest count-bench`.
///
/// # Errors
/// When a file cannot be read, or a prompt not be counted.
pub fn command(args: &CountBenchArgs) -> Result<()> {
    let said = said(&args.chats)?;
    let prompts = [prompt(&said, 0, args.bytes), prompt(&said, 7, args.bytes)];
    println!("{} bytes: the very first prompt, another one, the first again; the bound alone", args.bytes);
    for folder in &args.folders {
        let counter =
            TokenCounter::open(folder).map_err(|broken| anyhow!("{}: {broken:?}", folder.display()))?;
        let (tokens, first) = count(&counter, &prompts[0])?;
        let (_, other) = count(&counter, &prompts[1])?;
        let (_, again) = count(&counter, &prompts[0])?;
        let bound = bound(&counter, args.bytes as u64);
        println!("{}: {tokens} tokens, {first:.1?}, {other:.1?}, {again:.1?}; {bound:?}", folder.display());
    }
    Ok(())
}

fn count(counter: &TokenCounter, body: &str) -> Result<(u64, Duration)> {
    let never = AtomicBool::new(false);
    let begun = Instant::now();
    let counted = counter.count(PromptForm::Chat, body.as_bytes(), &MediaCosts::default(), 0, &never);
    let counted = counted.map_err(|why| anyhow!("the prompt cannot be counted: {why:?}"))?;
    Ok((counted.total, begun.elapsed()))
}

fn bound(counter: &TokenCounter, bytes: u64) -> Duration {
    let begun = Instant::now();
    for _ in 0..BOUNDS {
        black_box(counter.max_tokens(black_box(bytes), 0));
    }
    begun.elapsed() / BOUNDS
}

/// The texts of all messages.
fn said(chats: &Path) -> Result<Vec<String>> {
    let rows = fs::read_to_string(chats).with_context(|| format!("read {}", chats.display()))?;
    let mut texts = Vec::new();
    for row in rows.lines() {
        let row: Value = serde_json::from_str(row)?;
        let messages = row["request"]["messages"].as_array().into_iter().flatten();
        texts.extend(messages.filter_map(|message| message["content"].as_str()).map(str::to_owned));
    }
    anyhow::ensure!(!texts.is_empty(), "{} has no messages", chats.display());
    Ok(texts)
}

fn prompt(said: &[String], from: usize, bytes: usize) -> String {
    let mut text = String::new();
    for (at, one) in said.iter().cycle().skip(from).enumerate() {
        text += &format!("{at} {one} ");
        if text.len() >= bytes {
            break;
        }
    }
    json!({ "messages": [{ "role": "user", "content": text }] }).to_string()
}
