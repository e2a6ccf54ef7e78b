//! Captures of real engines: each one is read by a test.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};

/// The files below `folder` with this extension.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

#[test]
fn each_capture_is_read() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: Vec<String> =
        files(&root.join("src"), "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let captures = files(&root.join("tests/fixtures"), "http");
    assert!(captures.len() > 100, "the captures were not found");
    for path in captures {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        // Named with its folder where one file is read, or a row of a table where a whole folder is.
        let (one, row) = (format!("\"{folder}/{name}\""), format!("\n        {name}: "));
        let is_read = sources.iter().any(|text| text.contains(&one) || text.contains(&row));
        assert!(is_read, "no test reads {}; delete it", path.display());
    }
}
