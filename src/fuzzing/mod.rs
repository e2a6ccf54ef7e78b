//! Fuzz targets: each reads bytes that clients, engines, operators or other gateways send, and
//! checks what must hold for any bytes. `tests/fuzz/run` searches for inputs by coverage; the unit
//! test below runs each target over the kept inputs and over changes of them.

mod request;
mod response;
mod settings;

use crate::{auth, proxy, scaler};

/// A target. It panics when a property does not hold.
pub type FuzzTarget = fn(&[u8]);

/// The targets by name. Each has a folder of inputs in `tests/fuzz/corpus`.
pub const TARGETS: [(&str, FuzzTarget); 11] = [
    ("request", request::json),
    ("multipart", request::multipart),
    ("stream", response::stream),
    ("answer", response::answer),
    ("sse", response::sse),
    ("prometheus", response::prometheus),
    ("config", settings::config),
    ("keda", settings::keda),
    ("token", auth::fuzz_token),
    ("head", proxy::listener::fuzz_head),
    ("report", scaler::fuzz_report),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use crate::fuzzing::TARGETS;
    use crate::sim::rng::Rng;

    /// Changed inputs of a target for each test run.
    const CHANGES: usize = 1_000;

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.sort();
        paths.iter().map(|path| fs::read(path).expect("an input")).collect()
    }

    /// One input with a few bytes replaced, inserted, removed or taken from another input.
    fn change(inputs: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
        let mut below = |limit: usize| (rng.below(limit.max(1) as u64)) as usize;
        let mut bytes = inputs[below(inputs.len())].clone();
        for _ in 0..1 + below(4) {
            let at = below(bytes.len() + 1);
            match below(4) {
                0 if at < bytes.len() => bytes[at] = below(256) as u8,
                1 => bytes.insert(at, b"\"\\{}[],:\r\n\0\xff"[below(12)]),
                2 => drop(bytes.drain(at..(at + below(8)).min(bytes.len()))),
                _ => {
                    let other = &inputs[below(inputs.len())];
                    let from = below(other.len() + 1);
                    let taken = other[from..(from + below(32)).min(other.len())].to_vec();
                    bytes.splice(at..at, taken);
                }
            }
        }
        bytes
    }

    #[test]
    fn properties_hold_for_the_kept_inputs_and_changes_of_them() {
        for (name, target) in TARGETS {
            let inputs = corpus(name);
            assert!(!inputs.is_empty(), "{name} has no inputs");
            inputs.iter().for_each(|input| target(input));
            let mut rng = Rng::new(1);
            for _ in 0..CHANGES {
                target(&change(&inputs, &mut rng));
            }
        }
    }
}
