//! Trigger query: the keys of a trigger's `metadata`.

use std::time::Duration;

use crate::core::model::policy::Policy;

const MAX_KEEP_LAST: Duration = Duration::from_secs(7 * 24 * 3600);

/// Keys that are meant for KEDA itself, or that KEDA's documentation shows.
const KEDA_KEYS: [&str; 8] = [
    "scalerAddress",
    "enableTLS",
    "unsafeSsl",
    "caCert",
    "tlsCertFile",
    "tlsClientCert",
    "tlsClientKey",
    "metricType",
];
/// Suffix of the keys whose value KEDA takes from the target's environment.
const FROM_ENV_SUFFIX: &str = "FromEnv";

/// Number that a trigger asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum TriggerMode {
    /// Desired replicas.
    #[default]
    Desired,
    /// Waiting requests.
    Queue,
    /// Tokens of the waiting requests.
    Tokens,
    /// Running requests.
    InFlight,
}

impl TriggerMode {
    const ALL: [(&'static str, Self); 4] = [
        ("desired", Self::Desired),
        ("queue", Self::Queue),
        ("tokens", Self::Tokens),
        ("inflight", Self::InFlight),
    ];

    /// Name of the mode's metric.
    pub(super) const fn metric(self) -> &'static str {
        match self {
            Self::Desired => DESIRED_METRIC,
            Self::Queue => "queue-depth",
            Self::Tokens => "queued-tokens",
            Self::InFlight => "in-flight",
        }
    }
}

/// Reason why a trigger's keys are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TriggerError {
    /// The pool or the model does not exist.
    NotFound(String),
    /// A value is invalid, or keys contradict each other.
    Invalid(String),
}

/// Request of a trigger, read from its keys.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TriggerQuery {
    pub(super) pool: String,
    pub(super) mode: TriggerMode,
    /// Amount of the number that one replica is for.
    pub(super) target: f64,
    /// Requests that may wait without making the pool active.
    pub(super) activation: u64,
    /// Time for which the pool counts as active after its last work.
    pub(super) keep_last: Duration,
    /// Least number to answer.
    pub(super) min: u64,
    /// Greatest number to answer; absent = no bound.
    pub(super) max: Option<u64>,
    /// Keys that neither the scaler nor KEDA knows.
    pub(super) unknown_keys: Vec<String>,
}

impl TriggerQuery {
    /// Reads the keys under the policy in force.
    pub(super) fn read<'a>(
        keys: impl IntoIterator<Item = (&'a str, &'a str)>,
        policy: &Policy,
    ) -> Result<Self, TriggerError> {
        let mut ask = Self {
            pool: String::new(),
            mode: TriggerMode::Desired,
            target: 1.0,
            activation: 0,
            keep_last: Duration::ZERO,
            min: 0,
            max: None,
            unknown_keys: Vec::new(),
        };
        let (mut pool, mut model, mut target) = (None, None, None);
        for (key, value) in keys {
            match key {
                "pool" => pool = Some(value),
                "model" => model = Some(value),
                "mode" => ask.mode = mode(value)?,
                "target" => target = Some(positive(key, value)?),
                "activationQueue" => ask.activation = whole(key, value)?,
                "keepLast" => ask.keep_last = seconds(key, value)?,
                "minReplicas" => ask.min = u64::from(replicas(key, value)?),
                "maxReplicas" => ask.max = Some(u64::from(replicas(key, value)?)),
                _ if KEDA_KEYS.contains(&key) || key.ends_with(FROM_ENV_SUFFIX) => {}
                _ => ask.unknown_keys.push(key.to_owned()),
            }
        }
        if ask.max.is_some_and(|max| max == 0 || max < ask.min) {
            return Err(TriggerError::Invalid(
                "maxReplicas must be at least 1 and at least minReplicas".to_owned(),
            ));
        }
        ask.target = match (ask.mode, target) {
            (TriggerMode::Desired, None | Some(1.0)) => 1.0,
            (TriggerMode::Desired, Some(_)) => {
                let message = "target is for the modes queue, tokens and inflight: the desired number of \
                               replicas always has the target 1";
                return Err(TriggerError::Invalid(message.to_owned()));
            }
            (_, Some(target)) => target,
            (_, None) => {
                let message =
                    format!("mode needs `target`: how much of {} is for one replica", ask.mode.metric());
                return Err(TriggerError::Invalid(message));
            }
        };
        ask.pool = resolve_pool(pool, model, policy)?;
        Ok(ask)
    }
}

/// The named pool, or the only pool that serves the named model.
fn resolve_pool(pool: Option<&str>, model: Option<&str>, policy: &Policy) -> Result<String, TriggerError> {
    let wrong = |message: &str| Err(TriggerError::Invalid(message.to_owned()));
    match (pool, model) {
        (None, None) => wrong("name a pool: metadata key `pool`"),
        (Some(_), Some(_)) => wrong("name a `pool` or a `model`, not both"),
        (Some(name), None) => match policy.pools.id(name).and_then(|id| policy.pools.get(id)) {
            Some(_) => Ok(name.to_owned()),
            None => Err(TriggerError::NotFound(format!("no pool is called {:?}", truncated(name)))),
        },
        (None, Some(name)) => {
            let Some(row) = policy.models.id(name).and_then(|id| policy.models.get(id)) else {
                return Err(TriggerError::NotFound(format!("no model is called {:?}", truncated(name))));
            };
            let pools: Vec<&str> = row.pools.iter().map(|pool| policy.pools.name(*pool)).collect();
            match *pools {
                [only] => Ok(only.to_owned()),
                _ => Err(TriggerError::Invalid(format!(
                    "{:?} is served by several pools; name one of them as `pool`: {}",
                    truncated(name),
                    pools.join(", ")
                ))),
            }
        }
    }
}

fn mode(value: &str) -> Result<TriggerMode, TriggerError> {
    let found = TriggerMode::ALL.into_iter().find(|(name, _)| *name == value);
    found.map(|(_, mode)| mode).ok_or_else(|| invalid("mode", value, "desired, queue, tokens or inflight"))
}

fn positive(key: &str, value: &str) -> Result<f64, TriggerError> {
    let read = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    read.ok_or_else(|| invalid(key, value, "a number above zero"))
}

fn whole(key: &str, value: &str) -> Result<u64, TriggerError> {
    value.parse().map_err(|_| invalid(key, value, "a whole number from 0 up"))
}

fn replicas(key: &str, value: &str) -> Result<u32, TriggerError> {
    value.parse().map_err(|_| invalid(key, value, "a whole number from 0 up"))
}

fn seconds(key: &str, value: &str) -> Result<Duration, TriggerError> {
    let read = value.parse().map(Duration::from_secs).ok().filter(|time| *time <= MAX_KEEP_LAST);
    read.ok_or_else(|| invalid(key, value, "whole seconds, at most 604800"))
}

fn invalid(key: &str, value: &str, hint: &str) -> TriggerError {
    TriggerError::Invalid(format!("{key}: {:?} is not {hint}", truncated(value)))
}

/// The first 64 characters of a client's text.
fn truncated(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Name of the metric, unless a trigger's mode asks for a raw number.
pub const DESIRED_METRIC: &str = "desired-replicas";

/// Reads the keys of a trigger.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_trigger<'a>(keys: impl IntoIterator<Item = (&'a str, &'a str)>, policy: &Policy) {
    if let Ok(query) = TriggerQuery::read(keys, policy) {
        assert!(query.target > 0.0 && query.max.is_none_or(|max| max >= query.min));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::ids::PoolId;
    use crate::core::model::policy::{Model, Pool};

    fn policy() -> Policy {
        let mut policy = Policy::default();
        let mut pools: Vec<PoolId> = Vec::new();
        for name in ["h100", "a10"] {
            pools.push(policy.pools.insert(name, Pool::default()));
        }
        policy.models.insert("both", Model { pools: pools.clone(), max_model_len: None });
        policy.models.insert("small", Model { pools: vec![pools[1]], max_model_len: None });
        policy
    }

    fn read(keys: &[(&str, &str)]) -> Result<TriggerQuery, TriggerError> {
        TriggerQuery::read(keys.iter().copied(), &policy())
    }

    #[test]
    fn what_is_left_out_has_a_meaning_and_keys_of_keda_are_no_business_of_ours() {
        let ask = read(&[
            ("pool", "h100"),
            ("scalerAddress", "penstock:8082"),
            ("enableTLS", "true"),
            ("unsafeSsl", "false"),
            ("tokenFromEnv", "secret"),
            ("colour", "red"),
        ])
        .unwrap();
        assert_eq!((&*ask.pool, ask.mode, ask.target), ("h100", TriggerMode::Desired, 1.0));
        assert_eq!((ask.activation, ask.keep_last, ask.min, ask.max), (0, Duration::ZERO, 0, None));
        assert_eq!(ask.unknown_keys, ["colour"]);
    }

    #[test]
    fn every_key_is_read() {
        let ask = read(&[
            ("model", "small"),
            ("mode", "tokens"),
            ("target", "2500.5"),
            ("activationQueue", "3"),
            ("keepLast", "300"),
            ("minReplicas", "1"),
            ("maxReplicas", "8"),
        ])
        .unwrap();
        assert_eq!((&*ask.pool, ask.mode.metric(), ask.target), ("a10", "queued-tokens", 2500.5));
        assert_eq!((ask.activation, ask.keep_last), (3, Duration::from_secs(300)));
        assert_eq!((ask.min, ask.max), (1, Some(8)));
    }

    #[test]
    fn what_is_not_there_and_what_means_nothing_are_told_apart() {
        for keys in [[("pool", "gone")], [("model", "gone")], [("pool", "")]] {
            assert!(matches!(read(&keys), Err(TriggerError::NotFound(_))), "{keys:?}");
        }
        let wrong: [&[(&str, &str)]; 18] = [
            &[],
            &[("model", "both")],
            &[("pool", "h100"), ("model", "small")],
            &[("pool", "h100"), ("mode", "fast")],
            &[("pool", "h100"), ("mode", "queue")],
            &[("pool", "h100"), ("mode", "queue"), ("target", "0")],
            &[("pool", "h100"), ("mode", "queue"), ("target", "NaN")],
            &[("pool", "h100"), ("mode", "queue"), ("target", "inf")],
            &[("pool", "h100"), ("mode", "queue"), ("target", "ten")],
            &[("pool", "h100"), ("target", "2")],
            &[("pool", "h100"), ("activationQueue", "-1")],
            &[("pool", "h100"), ("activationQueue", "1.5")],
            &[("pool", "h100"), ("keepLast", "5m")],
            &[("pool", "h100"), ("keepLast", "604801")],
            &[("pool", "h100"), ("minReplicas", "")],
            &[("pool", "h100"), ("maxReplicas", "0")],
            &[("pool", "h100"), ("maxReplicas", "4294967296")],
            &[("pool", "h100"), ("minReplicas", "3"), ("maxReplicas", "2")],
        ];
        for keys in wrong {
            assert!(matches!(read(keys), Err(TriggerError::Invalid(_))), "{keys:?}");
        }
        let Err(TriggerError::Invalid(message)) = read(&[("model", "both")]) else { panic!() };
        assert!(message.contains("h100, a10"), "{message}");
        let Err(TriggerError::NotFound(message)) = read(&[("pool", &*"x".repeat(9999))]) else { panic!() };
        assert!(message.len() < 100);
    }
}
