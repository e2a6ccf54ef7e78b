//! Step-time profiles: how long one engine step takes on which accelerator.
//!
//! Sources of the numbers in `profiles.json`: `t_w`, `i0` and `a` of the A100
//! and H100 rows are our own fit to the GEMM and norm timings published by
//! microsoft/vidur (`data/profiling/compute/*/mlp.csv`, MIT licence). `c` is
//! computed from memory bandwidth at 60 % efficiency, `d` from attention FLOPs
//! at about 45 % of peak. `t_ovh` (scheduling and sampling) is assumed. The
//! A10, L4 and MIG rows are scaled from the A40 and A100 tables by bandwidth
//! and FLOPs; they were not measured. `tiny` models nothing: its steps last
//! half a millisecond so that tests are quick.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// Step-time model of one replica. Times are in milliseconds of model time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepProfile {
    /// Fixed cost of a step: scheduling and sampling.
    pub t_ovh: f64,
    /// Time to read the weights once: the floor of a step's linear layers.
    pub t_w: f64,
    /// Linear layers: fixed part, once they are bound by compute.
    pub i0: f64,
    /// Linear layers: per token of the step.
    pub a: f64,
    /// Decode attention: per KV token read.
    pub c: f64,
    /// Prefill attention: per token times context token.
    pub d: f64,
    /// Tokens the KV cache holds.
    pub kv_tokens: u64,
    /// Sequences that may run at once.
    pub max_seqs: u32,
    /// Tokens of one step (chunked prefill budget).
    pub max_tokens: u32,
    /// Price per hour in dollars, for cost studies.
    pub cost_h: f64,
}

/// Factor on one constant of the step time, written as in `a=2`.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTimeFactor {
    constant: String,
    factor: f64,
}

/// Load of one step.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StepLoad {
    /// Prompt (or recomputed) tokens.
    pub prefill_tokens: u64,
    /// Sequences that decode one more token.
    pub decodes: u64,
    /// KV tokens that the decoding sequences read.
    pub decode_kv: u64,
    /// Sum of `chunk * (context before + chunk / 2)` over the prefill chunks.
    pub prefill_area: f64,
}

static PROFILES: LazyLock<BTreeMap<String, StepProfile>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("profiles.json")).expect("profiles.json is part of the program")
});

impl StepProfile {
    /// The profile with this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        PROFILES.get(name).copied()
    }

    /// Every profile's name, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.keys().map(String::as_str)
    }

    /// The quick profile for tests.
    pub fn tiny() -> Self {
        Self::named("tiny").expect("profiles.json has the tiny row")
    }

    /// The constant of the step time with this name: `t_ovh`, `t_w`, `i0`, `a`,
    /// `c` or `d`.
    pub fn constant(&mut self, name: &str) -> Option<&mut f64> {
        Some(match name {
            "t_ovh" => &mut self.t_ovh,
            "t_w" => &mut self.t_w,
            "i0" => &mut self.i0,
            "a" => &mut self.a,
            "c" => &mut self.c,
            "d" => &mut self.d,
            _ => return None,
        })
    }

    /// Length of a step in milliseconds:
    /// `t_ovh + max(t_w, i0 + a*(prefill + decodes)) + c*kv + d*area`.
    pub fn step_ms(&self, load: &StepLoad) -> f64 {
        let tokens = (load.prefill_tokens + load.decodes) as f64;
        let linear = (self.i0 + self.a * tokens).max(self.t_w);
        self.t_ovh + linear + self.c * load.decode_kv as f64 + self.d * load.prefill_area
    }
}

impl StepTimeFactor {
    /// Multiplies the constant.
    pub fn apply(&self, profile: &mut StepProfile) {
        if let Some(constant) = profile.constant(&self.constant) {
            *constant *= self.factor;
        }
    }
}

impl FromStr for StepTimeFactor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, factor) = text.split_once('=').ok_or("it must be CONSTANT=FACTOR, such as a=2")?;
        let factor = factor.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor >= 0.0);
        let factor = factor.ok_or("the factor must be a number, 0 or more")?;
        if StepProfile::tiny().constant(name).is_none() {
            return Err(format!("no constant is called {name}; there are t_ovh, t_w, i0, a, c and d"));
        }
        Ok(Self { constant: name.to_owned(), factor })
    }
}

impl fmt::Display for StepTimeFactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.constant, self.factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_usable() {
        assert!(StepProfile::names().count() >= 8);
        for name in StepProfile::names() {
            let profile = StepProfile::named(name).unwrap();
            assert!(profile.kv_tokens >= 16 && profile.max_seqs > 0 && profile.max_tokens > 0, "{name}");
            assert!(profile.step_ms(&StepLoad::default()) > 0.0, "{name}");
        }
        assert_eq!(StepProfile::named("none"), None);
    }
    #[test]
    fn factors_name_a_constant() {
        let mut profile = StepProfile::tiny();
        let factor: StepTimeFactor = "t_w=2".parse().unwrap();
        factor.apply(&mut profile);
        assert_eq!((profile.t_w, factor.to_string()), (StepProfile::tiny().t_w * 2.0, "t_w=2".to_owned()));
        for wrong in ["t_w", "t_w=", "t_w=-1", "t_w=inf", "kv_tokens=2"] {
            assert!(wrong.parse::<StepTimeFactor>().is_err(), "{wrong}");
        }
    }
}
