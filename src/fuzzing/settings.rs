//! Texts of operators: configuration files and the keys of KEDA's triggers.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::config::load::{Loaded, load_str_with};
use crate::config::secret::SecretSource;
use crate::core::model::policy::Policy;
use crate::scaler;

const FILE: &str = "version: 1\nserver: {listen: \"127.0.0.1:0\"}\ntenants: {t: {}}\nauth: {mode: off}\n\
                    pools: {p: {engine: vllm, models: [m], replicas: [\"http://127.0.0.1:1\"]}}\n";

/// A machine without files, whose variables are all set.
#[derive(Debug)]
struct NoFiles;

impl SecretSource for NoFiles {
    fn env(&self, name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    fn file(&self, _: &Path) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn load(text: &str) -> Option<Loaded> {
    let outcome = load_str_with(text, "fuzz.yaml", Path::new("/nowhere"), None, &NoFiles);
    let report = outcome.report.to_string();
    assert_eq!(outcome.loaded.is_none(), outcome.report.has_errors(), "{report}");
    outcome.loaded
}

/// A configuration file. The report of its problems can always be written.
pub(super) fn config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        load(text);
    }
}

/// The keys of a trigger, one `key=value` on a line.
pub(super) fn keda(data: &[u8]) {
    static POLICY: OnceLock<Arc<Policy>> = OnceLock::new();
    let policy = POLICY.get_or_init(|| load(FILE).expect("a valid file").settings.policy);
    let text = String::from_utf8_lossy(data);
    scaler::fuzz_trigger(text.lines().filter_map(|line| line.split_once('=')), policy);
}
