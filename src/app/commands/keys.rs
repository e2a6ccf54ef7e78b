//! `penstock keys`: new keys, and the digests of secrets that exist already.

use std::io::{self, Read as _};

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::cli::KeysCommand;
use crate::cli::operate::OutputArg;
use crate::cli::output::{ListForm, ResultForm};
use crate::config::keys::{self, HashedKey};
use crate::protocol::ids::random;
use crate::usage::bill::text::quoted;

/// Most bytes of standard input: some ten thousand keys.
const MAX_INPUT: u64 = 1 << 20;

/// `penstock keys`; the text to print.
pub(super) fn run(command: &KeysCommand) -> anyhow::Result<String> {
    match command {
        KeysCommand::New(form) => Ok(new(*form)),
        KeysCommand::Hash(form) => hash(*form),
    }
}

fn new(form: ResultForm) -> String {
    let key = keys::new(&random::bytes());
    if form.is_json() {
        return format!("{:#}\n", json!({ "key": key.text, "id": key.id, "digest": key.digest }));
    }
    format!(
        "key (shown only here; give it to its holder):\n  {}\n\n\
         in the configuration, under tenants.<name>.keys (an operator's: with a `role` under admin.auth.tokens):\n  {}\n",
        key.text,
        key_line(&key.id, &key.digest)
    )
}

fn hash(form: ListForm) -> anyhow::Result<String> {
    let mut text = String::new();
    io::stdin().take(MAX_INPUT + 1).read_to_string(&mut text).context("read the keys from standard input")?;
    if text.len() as u64 > MAX_INPUT {
        bail!("standard input has more than {MAX_INPUT} bytes; hash the keys in parts");
    }
    let secrets: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if secrets.is_empty() {
        bail!("standard input has no key in it; `penstock keys new` makes one");
    }
    let mut hashed = Vec::new();
    for (at, secret) in secrets.iter().enumerate() {
        let which = if secrets.len() == 1 { "the secret".to_owned() } else { format!("secret {}", at + 1) };
        let key = keys::hash(secret);
        hashed
            .push(key.map_err(|why| anyhow::anyhow!("{which} {why}; `penstock keys new` makes a good key"))?);
    }
    if hashed.iter().any(|key| key.is_imported) {
        eprintln!(
            "penstock: the digest keeps only a random secret; make a new key in place of a password or a text that people chose"
        );
    }
    let head = if form.format() == OutputArg::Csv { "id,digest\r\n" } else { "" };
    let line = |key: &HashedKey| match form.format() {
        OutputArg::Table => format!("{}\n", key_line(&key.id, &key.digest)),
        OutputArg::Json => format!("{}\n", json!({ "id": key.id, "digest": key.digest })),
        OutputArg::Csv => format!("{},{}\r\n", quoted(&key.id), quoted(&key.digest)),
    };
    Ok(head.to_owned() + &hashed.iter().map(line).collect::<String>())
}

/// A key's entry in the configuration.
fn key_line(id: &str, digest: &str) -> String {
    format!("- {{id: {id}, digest: \"{digest}\"}}")
}
