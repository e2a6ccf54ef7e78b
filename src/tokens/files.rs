//! A model's folder: which file says what, and when it changed.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value as Json;

/// Bytes of the largest template or configuration that is read.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// The tokenizer itself.
pub(super) const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const SPECIAL: &str = "special_tokens_map.json";
const TEMPLATE: &str = "chat_template.jinja";

/// The special tokens that templates may name.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What the folder's files looked like.
pub(super) type Stamp = Vec<Option<(u64, SystemTime)>>;

/// The sources of the chat template; both absent where there is none.
#[derive(Debug, Default)]
pub(super) struct TemplateSources {
    /// The template.
    pub(super) plain: Option<String>,
    /// The one for requests with tools, where that is another one.
    pub(super) tools: Option<String>,
    /// Names and texts of the special tokens.
    pub(super) special: Vec<(String, String)>,
}

/// What is wrong with a file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFileError {
    /// Which file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The size and age of the folder's files.
pub(super) fn stamp(folder: &Path) -> Stamp {
    let of = |name| {
        let about = fs::metadata(folder.join(name)).ok()?;
        Some((about.len(), about.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
    };
    [TOKENIZER, CONFIG, SPECIAL, TEMPLATE].into_iter().map(of).collect()
}

/// The bytes of a regular file that is not larger than `most`.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    let about = fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("larger than {} MiB", most >> 20));
    }
    Ok(bytes)
}

/// Reads what stands beside the tokenizer.
pub(super) fn sources(folder: &Path) -> Result<TemplateSources, ModelFileError> {
    let mut found = TemplateSources::default();
    let config = json(folder, CONFIG)?;
    for file in [Some(&config), Some(&json(folder, SPECIAL)?)].into_iter().flatten() {
        for name in NAMED {
            let token = &file[name];
            let text = token.as_str().or_else(|| token["content"].as_str());
            if let Some(text) = text.filter(|_| !found.special.iter().any(|(known, _)| known == name)) {
                found.special.push((name.to_owned(), text.to_owned()));
            }
        }
    }
    match &config["chat_template"] {
        Json::String(source) => found.plain = Some(source.clone()),
        Json::Array(list) => {
            let named = |name: &str| {
                let one = list.iter().find(|one| one["name"] == name)?;
                one["template"].as_str().map(str::to_owned)
            };
            found.plain = named("default");
            found.tools = named("tool_use");
        }
        _ => {}
    }
    let file = folder.join(TEMPLATE);
    if file.exists() {
        found.plain = Some(text(&file)?);
        found.tools = None;
    }
    Ok(found)
}

fn json(folder: &Path, name: &str) -> Result<Json, ModelFileError> {
    let file = folder.join(name);
    if !file.exists() {
        return Ok(Json::Null);
    }
    let text = text(&file)?;
    serde_json::from_str(&text).map_err(|error| ModelFileError { file, why: format!("not JSON: {error}") })
}

fn text(file: &Path) -> Result<String, ModelFileError> {
    let broken = |why: String| ModelFileError { file: file.to_owned(), why };
    let bytes = read(file, MAX_TEXT_BYTES).map_err(broken)?;
    String::from_utf8(bytes).map_err(|_| broken("not UTF-8".to_owned()))
}
