//! Vocabulary: a model's tokenizer, which counts the tokens of a text and bounds how many it can
//! have.

use std::fmt;
use std::hash::BuildHasher;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineTokenizer};

use crate::tokens::cache::CountCache;

/// The size of the largest `tokenizer.json` that is read, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 256 << 20;
/// The least length in bytes of a part that the cache keeps. Shorter parts are counted at once: to
/// keep them costs more.
const MIN_PART_BYTES: usize = 256;

pub(super) struct Vocabulary {
    tokenizer: PipelineTokenizer,
    /// The most tokens that a byte of text can become.
    pub(super) per_byte: u64,
    /// Finders of special tokens. A text may be cut before each of them without a change of its
    /// tokens.
    cuts: Vec<memmem::Finder<'static>>,
    memory: CountCache,
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { per_byte, cuts, .. } = self;
        f.debug_struct("Vocabulary")
            .field("per_byte", per_byte)
            .field("cuts", &cuts.len())
            .finish_non_exhaustive()
    }
}

/// The fields of `tokenizer.json` that the bounds and cuts are read from.
#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
#[serde(default)]
struct Added {
    content: String,
    single_word: bool,
    lstrip: bool,
    normalized: bool,
    special: bool,
}

impl Default for Added {
    fn default() -> Self {
        Self { content: String::new(), single_word: false, lstrip: false, normalized: true, special: false }
    }
}

impl Vocabulary {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// The error in the file.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let bytes = super::files::read(path, MAX_FILE_BYTES)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| error.to_string())?;
        let file: TokenizerFile =
            serde_json::from_str(text).map_err(|error| format!("it is not a tokenizer: {error}"))?;
        let canonical = tokenizers::canonicalize_str(text).map_err(|error| error.to_string())?;
        let tokenizer = tokenizers::from_json(&canonical).map_err(|error| error.to_string())?;
        let cuts = cuts(&file.added_tokens);
        Ok(Self { tokenizer, per_byte: per_byte(&file), cuts, memory: CountCache::default() })
    }

    /// The tokens of `text` as part of a prompt. With `alone`, also the tokens that the tokenizer
    /// adds around a prompt. Absent when `stop` was set.
    ///
    /// # Errors
    /// The tokenizer's error.
    pub(super) fn count(&self, text: &str, alone: bool, stop: &AtomicBool) -> Result<Option<u64>, String> {
        if alone {
            return self.encode(text, true).map(Some);
        }
        let mut total = 0;
        for part in self.parts(text) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            total += if part.len() < MIN_PART_BYTES {
                self.encode(part, false)?
            } else {
                let key = self.memory.hasher().hash_one((part, part.as_ptr() == text.as_ptr()));
                match self.memory.get(key, part.len()) {
                    Some(known) => known,
                    None => self.memory.put(key, part.len(), self.encode(part, false)?),
                }
            };
        }
        Ok(Some(total))
    }

    #[cfg(test)]
    pub(super) fn forget_cuts(&mut self) {
        self.cuts.clear();
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<u64, String> {
        let options = EncodeOptions {
            add_special_tokens,
            padding: Override::Off,
            truncation: Override::Off,
            ..EncodeOptions::default()
        };
        let mut out = Vec::with_capacity(text.len() / 3);
        self.tokenizer.encode_into(text, &options, &mut out).map_err(|error| error.to_string())?;
        Ok(out.len() as u64)
    }

    /// The text, cut before its special tokens into parts of at least `MIN_PART_BYTES`, except the
    /// last.
    fn parts<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let mut at: Vec<usize> =
            self.cuts.iter().flat_map(|cut| cut.find_iter(text.as_bytes())).filter(|at| *at > 0).collect();
        at.sort_unstable();
        at.push(text.len());
        let mut from = 0;
        let mut parts = Vec::with_capacity(at.len());
        for to in at {
            // Short parts are joined to the next one.
            if to - from >= MIN_PART_BYTES || to == text.len() {
                parts.extend(text.get(from..to));
                from = to;
            }
        }
        parts
    }
}

/// Finders of the special tokens at which a text may be cut. Such a token is recognised at any
/// position, and no other token overlaps it. The tokenizer therefore encodes the text before and
/// after it separately.
fn cuts(added: &[Added]) -> Vec<memmem::Finder<'static>> {
    let overlaps = |one: &str, two: &str| {
        two.contains(one) || (1..one.len()).any(|at| one.get(..at).is_some_and(|start| two.ends_with(start)))
    };
    let is_plain = |one: &&Added| one.special && !one.lstrip && !one.single_word && !one.normalized;
    let alone = |one: &&Added| {
        added.iter().all(|other| other.content == one.content || !overlaps(&one.content, &other.content))
    };
    let long = |one: &&Added| one.content.len() > 2;
    // Templates use the first special tokens; all others are rare.
    let found = added.iter().filter(is_plain).filter(long).filter(alone).take(MAX_CUTS);
    found.map(|one| memmem::Finder::new(one.content.as_bytes()).into_owned()).collect()
}

/// The most special tokens that are searched for.
const MAX_CUTS: usize = 16;

/// The most tokens that a byte of text can become. A token of a byte-level vocabulary has at least
/// one byte of the normal form. Other vocabularies fall back to bytes, or to one token for an
/// unknown character. The bound is therefore the growth of a text in its normal form, in UTF-8. It
/// is 3 for the canonical forms (Unicode Standard Annex 15) and 11 for the compatibility forms
/// (U+FDFA).
fn per_byte(file: &TokenizerFile) -> u64 {
    let mut kinds = Vec::new();
    collect_kinds(&file.normalizer, &mut kinds);
    collect_kinds(&file.pre_tokenizer, &mut kinds);
    let has = |names: &[&str]| kinds.iter().any(|kind| names.contains(&kind.as_str()));
    match () {
        () if has(&["NFKC", "NFKD", "Nmt", "Precompiled"]) => 11,
        () if kinds
            .iter()
            .all(|kind| matches!(kind.as_str(), "ByteLevel" | "Split" | "Sequence" | "Digits")) =>
        {
            1
        }
        () => 3,
    }
}

fn collect_kinds(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            out.extend(fields.get("type").and_then(Value::as_str).map(str::to_owned));
            for inner in ["normalizers", "pretokenizers"] {
                fields.get(inner).into_iter().for_each(|list| collect_kinds(list, out));
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_kinds(item, out)),
        _ => {}
    }
}
