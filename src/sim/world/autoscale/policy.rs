//! Scale policies: the autoscaler and metric that set the number of replicas.

use std::fmt;
use std::str::FromStr;

/// Policy, as scenarios write it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalePolicy {
    /// `n`: the router's own number through KEDA and the HPA, with target 1 and
    /// value N.
    Need,
    /// `queue=10`: as many replicas as give each this many waiting requests.
    Queue(f64),
    /// `concurrency=16`: as many replicas as give each this many requests,
    /// waiting and running.
    Concurrency(f64),
    /// `kpa=16`: Knative's windows over replicas that run this many requests at
    /// once.
    Kpa(f64),
    /// `fixed=12`: always this many replicas.
    Fixed(u32),
    /// `known=24000`: as many replicas as give each this many KV tokens of the
    /// requests that will run while a replica that is ordered now starts.
    Known(f64),
    /// `seen=24000`: the same of the requests that ran over the time of a start.
    Seen(f64),
}

/// Text that lists the valid forms.
const FORMS: &str = "there are: n, queue=10, concurrency=16, kpa=16, fixed=12, known=24000, seen=24000";

impl ScalePolicy {
    /// Whether the first request for a pool without replicas starts a replica
    /// at once, before the next poll. A push or an activator does this.
    pub fn is_pushed(self) -> bool {
        matches!(self, Self::Need | Self::Kpa(_))
    }
}

impl ScalePolicy {
    /// Whether the policy needs [`Scaling::demand`](super::Scaling::demand).
    pub fn needs_demand(self) -> bool {
        matches!(self, Self::Known(_) | Self::Seen(_))
    }
}

impl fmt::Display for ScalePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Need => f.write_str("n"),
            Self::Queue(target) => write!(f, "queue={target}"),
            Self::Concurrency(target) => write!(f, "concurrency={target}"),
            Self::Kpa(target) => write!(f, "kpa={target}"),
            Self::Fixed(count) => write!(f, "fixed={count}"),
            Self::Known(target) => write!(f, "known={target}"),
            Self::Seen(target) => write!(f, "seen={target}"),
        }
    }
}

impl FromStr for ScalePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("no policy is called `{text}`; {FORMS}");
        let Some((name, value)) = text.split_once('=') else {
            return if text == "n" { Ok(Self::Need) } else { Err(wrong()) };
        };
        let number = value.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.001);
        let number = number.ok_or_else(|| format!("`{text}`: `{value}` must be a number greater than 0"));
        match name {
            "queue" => Ok(Self::Queue(number?)),
            "concurrency" => Ok(Self::Concurrency(number?)),
            "kpa" => Ok(Self::Kpa(number?)),
            "known" => Ok(Self::Known(number?)),
            "seen" => Ok(Self::Seen(number?)),
            "fixed" => match value.parse() {
                Ok(count) if count > 0 => Ok(Self::Fixed(count)),
                _ => Err(format!("`{text}`: must be at least 1")),
            },
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_reads_and_prints_itself() {
        for text in ["n", "queue=10", "concurrency=16.5", "kpa=8", "fixed=12", "known=24000", "seen=9"] {
            assert_eq!(text.parse::<ScalePolicy>().unwrap().to_string(), text);
        }
        for (text, expected) in [
            ("best", "there are: n, queue=10"),
            ("n=3", "no policy is called `n=3`"),
            ("queue", "no policy is called `queue`"),
            ("queue=0", "must be a number greater than 0"),
            ("kpa=many", "`many` must be a number"),
            ("fixed=2.5", "must be at least 1"),
        ] {
            let error = text.parse::<ScalePolicy>().unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
