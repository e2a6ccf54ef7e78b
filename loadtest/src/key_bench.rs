//! `loadtest key-bench`: the cost of checking an API key, and a test that the time does not reveal
//! how much of the key is right.
//!
//! Keys that agree with the right one in their first 0, 1, 8, ... letters are
//! checked in turns, in changing order, so that whatever else the machine does hits all alike.

use std::hint::black_box;
use std::time::SystemTime;

use anyhow::{Result, ensure};
use clap::Args;
use penstock::config::keys::{self, KeyDigest, KeyRing};
use penstock::config::settings::identity::{Grant, KeyEntry};
use penstock::core::model::ids::TenantId;
use tokio::time::Instant;

/// Keys in the ring.
const KEYS: usize = 1_000;

/// Arguments of `loadtest key-bench`.
#[derive(Debug, Clone, Args)]
pub struct KeyBenchArgs {
    /// Checks in a batch.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: u32,
    /// Batches of each key; the median is printed, with the quartiles.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
}

/// One key with the times of its batches.
#[derive(Debug)]
struct Candidate {
    /// Letters of the secret that are right.
    right: usize,
    text: String,
    /// Nanoseconds of one check.
    times: Vec<f64>,
}

impl Candidate {
    fn at(&self, part: f64) -> f64 {
        self.times[((self.times.len() - 1) as f64 * part) as usize]
    }
}

/// Runs `loadtest key-bench`.
///
/// # Errors
/// When a wrong key is taken for a right one.
pub fn command(args: &KeyBenchArgs) -> Result<()> {
    let candidates = measure(args)?;
    println!("{KEYS} keys, {} batches of {} checks each; ns a check", args.rounds, args.batch);
    println!("{:>12} {:>8}   quartiles", "right letters", "median");
    for candidate in &candidates {
        let [low, median, high] = [0.25, 0.5, 0.75].map(|part| candidate.at(part));
        println!("{:>12} {median:>8.1}   {low:.1}-{high:.1}", candidate.right);
    }
    // The whole key is told from the others anyway.
    let wrong = &candidates[..candidates.len() - 1];
    let medians = || wrong.iter().map(|candidate| candidate.at(0.5));
    let (least, most) = (medians().fold(f64::MAX, f64::min), medians().fold(0.0, f64::max));
    println!(
        "largest difference of medians of wrong keys: {:.1} ns, {:.1} %",
        most - least,
        100.0 * (most / least - 1.0)
    );
    Ok(())
}

fn measure(args: &KeyBenchArgs) -> Result<Vec<Candidate>> {
    let mut entries = KeyRing::default();
    let mut right = String::new();
    for number in 0..KEYS {
        let mut random = [0; keys::RANDOM_BYTES];
        random[..32].copy_from_slice(&keys::digest(&number.to_string()));
        random[32..].copy_from_slice(&keys::digest("more")[..8]);
        let key = keys::new(&random);
        let grant = Grant::whole(TenantId::new(0));
        let digest = KeyDigest::Blake3(keys::digest(&key.text));
        entries.insert(&key.id, KeyEntry { digest, grant, expires: None, origin: Default::default() });
        right = key.text;
    }
    let secret = keys::parse(&right).map_or(0, |parts| parts.secret.len());
    let mut candidates: Vec<Candidate> = [0, 1, 2, 4, 8, 16, 32, secret - 1, secret]
        .map(|count| Candidate { right: count, text: spoiled(&right, secret - count), times: Vec::new() })
        .into();
    let count = candidates.len();
    for round in 0..args.rounds as usize {
        // Another order in each round: who comes after whom tells nothing.
        for place in 0..count {
            let candidate = &mut candidates[(place * 2 + round * 5) % count];
            let begun = Instant::now();
            let mut opened = 0;
            for _ in 0..args.batch {
                let text = black_box(&*candidate.text);
                opened += u32::from(entries.verify(text, || SystemTime::UNIX_EPOCH).is_ok());
            }
            candidate.times.push(begun.elapsed().as_nanos() as f64 / f64::from(args.batch));
            let expected = if candidate.right == secret { args.batch } else { 0 };
            ensure!(opened == expected, "{} right letters opened {opened} times", candidate.right);
        }
    }
    for candidate in &mut candidates {
        candidate.times.sort_by(f64::total_cmp);
    }
    Ok(candidates)
}

/// The key with its last `wrong` letters changed, letters to letters and digits
/// to digits: reading one kind may take longer than the other.
fn spoiled(key: &str, wrong: usize) -> String {
    let kept = key.len() - wrong;
    let other = |letter: char| match letter {
        'a' => 'b',
        '2' => '3',
        _ if letter.is_ascii_digit() => '2',
        _ => 'a',
    };
    key.chars().enumerate().map(|(at, letter)| if at < kept { letter } else { other(letter) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_right_key_opens() {
        let candidates = measure(&KeyBenchArgs { batch: 3, rounds: 5 }).unwrap();
        assert_eq!(
            candidates.iter().map(|one| one.right).collect::<Vec<_>>(),
            [0, 1, 2, 4, 8, 16, 32, 55, 56]
        );
        assert!(candidates.iter().all(|one| one.times.len() == 5 && one.at(0.5) > 0.0));
    }
}
