//! `penstock count`: prompts counted as the gateway counts them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, anyhow};

use crate::cli::CountArgs;
use crate::telemetry::wall;
use crate::tokens::counter::{CountError, MediaCosts, PromptForm, TokenCounter};

/// Counts the tokens of each line of the file.
pub(in crate::app) fn run(
    args: &CountArgs,
    mut print: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let counter = TokenCounter::open(&args.tokenizer)
        .map_err(|broken| anyhow!("{}: {}", broken.file.display(), broken.why))?;
    let input: Box<dyn BufRead> = match &args.requests {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
            Box::new(BufReader::new(file))
        }
        None => Box::new(io::stdin().lock()),
    };
    let now = wall::unix_seconds(wall::now()) as i64;
    for line in input.lines() {
        let line = line.context("read a request")?;
        let form = if line.contains("\"messages\"") { PromptForm::Chat } else { PromptForm::Text };
        let never = AtomicBool::new(false);
        print(&match counter.count(form, line.as_bytes(), &MediaCosts::default(), now, &never) {
            Ok(counted) => format!("{}\n", counted.total),
            Err(CountError::Unsure(why)) => format!("unsure: {}\n", why.replace('\n', " ")),
            Err(CountError::Stopped) => "unsure\n".to_owned(),
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
