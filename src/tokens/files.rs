//! Model folder: the files that hold a model's tokenizer and chat template, and the stamp that
//! shows a change.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value as Json;

/// The size of the largest template or configuration that is read, in bytes.
const MAX_TEXT_BYTES: u64 = 16 << 20;

/// The file of the tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";
const SPECIAL: &str = "special_tokens_map.json";
const TEMPLATE: &str = "chat_template.jinja";

/// The special tokens that templates may name.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// The state of the folder's files: size in bytes and time of change, absent for a missing file.
pub(super) type Stamp = Vec<Option<(u64, SystemTime)>>;

/// The sources of the chat template. `plain` and `tools` are absent where the folder has no
/// template.
#[derive(Debug, Default)]
pub(super) struct TemplateSources {
    /// The template for all requests, or for requests without tools.
    pub(super) plain: Option<String>,
    /// The template for requests with tools, where they have one of their own.
    pub(super) tools: Option<String>,
    /// The names and texts of the special tokens.
    pub(super) special: Vec<(String, String)>,
}

/// The error of a file of the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFileError {
    pub file: PathBuf,
    pub why: String,
}

/// The stamp of the folder's files now.
pub(super) fn stamp(folder: &Path) -> Stamp {
    let of = |name| {
        let about = fs::metadata(folder.join(name)).ok()?;
        Some((about.len(), about.modified().unwrap_or(SystemTime::UNIX_EPOCH)))
    };
    [TOKENIZER, CONFIG, SPECIAL, TEMPLATE].into_iter().map(of).collect()
}

/// The bytes of a regular file of at most `most` bytes.
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

/// Reads the chat template and the special tokens from the files beside the tokenizer.
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
