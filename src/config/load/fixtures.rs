//! Test fixture: settings with every key at its default.

use std::path::Path;

use crate::config::load::load_str;
use crate::config::settings::Settings;

/// The settings of a file that says no more than it must. A new key needs no line in the tests that
/// take theirs from here.
pub(crate) fn usual() -> Settings {
    let pool = "{engine: vllm, models: [llama], replicas: [http://10.0.0.1:8000]}";
    let text = format!("version: 1\nauth: {{mode: off}}\npools:\n  a100: {pool}\n");
    load_str(&text, "penstock.yaml", Path::new("/"), None).loaded.unwrap().settings
}
