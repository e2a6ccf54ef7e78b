//! A target of `penstock::fuzzing` under libFuzzer. The variable `FUZZ_TARGET` names it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use penstock::fuzzing::{FuzzTarget, TARGETS};

static TARGET: OnceLock<FuzzTarget> = OnceLock::new();

fn chosen() -> FuzzTarget {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    let names: Vec<&str> = TARGETS.iter().map(|(target, _)| *target).collect();
    found.unwrap_or_else(|| panic!("FUZZ_TARGET must be one of {}", names.join(", "))).1
}

fuzz_target!(|data: &[u8]| TARGET.get_or_init(chosen)(data));
