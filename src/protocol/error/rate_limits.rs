//! Rate limits in answers: the error text of a refusal, and the `x-ratelimit-*` headers of every
//! answer.

use std::time::Duration;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::core::limits::LimitStatus;
use crate::core::limits::rule::{LimitPeriod, LimitUnit};
pub use crate::protocol::error::limit_refusal::refusal;

macro_rules! names {
    ($of:literal) => {
        [
            HeaderName::from_static(concat!("x-ratelimit-limit-", $of)),
            HeaderName::from_static(concat!("x-ratelimit-remaining-", $of)),
            HeaderName::from_static(concat!("x-ratelimit-reset-", $of)),
        ]
    };
}

static REQUESTS: [HeaderName; 3] = names!("requests");
static TOKENS: [HeaderName; 3] = names!("tokens");

/// Writes the state of the limits per minute. Of the limits on requests, and of those on tokens,
/// the headers show the one with the smallest part left.
pub fn write_headers(statuses: &[LimitStatus], headers: &mut HeaderMap) {
    let families: [(&[LimitUnit], &[HeaderName; 3]); 2] = [
        (&[LimitUnit::Requests], &REQUESTS),
        (&[LimitUnit::Tokens, LimitUnit::InputTokens, LimitUnit::OutputTokens], &TOKENS),
    ];
    for (units, [limit, remaining, reset]) in families {
        let mine = |status: &&LimitStatus| {
            let id = status.rule.id;
            !id.shadow && id.period == LimitPeriod::Minute && units.contains(&id.unit)
        };
        let part = |status: &LimitStatus| status.left as f64 / status.rule.amount.max(1) as f64;
        let tightest = statuses.iter().filter(mine).min_by(|one, other| part(one).total_cmp(&part(other)));
        let Some(status) = tightest else { continue };
        headers.insert(limit, HeaderValue::from(status.rule.amount));
        headers.insert(remaining, HeaderValue::from(status.left));
        if let Ok(text) = HeaderValue::try_from(duration(status.reset)) {
            headers.insert(reset, text);
        }
    }
}

/// A duration as OpenAI writes it: `120ms`, `7.5s`, `1m0s`.
fn duration(wait: Duration) -> String {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    let (minutes, rest) = (millis / 60_000, millis % 60_000);
    match (minutes, rest) {
        (0, 0) => "0s".to_owned(),
        (0, rest) if rest < 1_000 => format!("{rest}ms"),
        (0, rest) => format!("{}s", rest as f64 / 1e3),
        (minutes, rest) => format!("{minutes}m{}s", rest as f64 / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use crate::core::limits::LimitExceeded;
    use crate::core::limits::rule::LimitScope;
    use crate::protocol::error::catalogue::ErrorKind;
    use crate::protocol::error::limit_refusal::LONGEST;

    use super::*;
    use crate::core::limits::rule::{LimitId, LimitRule};
    use crate::core::model::ids::{KeyId, TenantId};

    const TENANT: LimitScope = LimitScope::Tenant(TenantId::new(1));

    fn exceeded(unit: LimitUnit, period: LimitPeriod, retry_after: Option<Duration>) -> LimitExceeded {
        let rule = LimitId { scope: TENANT, unit, period, shadow: false };
        LimitExceeded { rule, limit: 100, asked: 80, left: 30, retry_after }
    }

    #[test]
    fn a_refusal_names_the_limit_and_the_numbers() {
        let error =
            refusal(&exceeded(LimitUnit::Tokens, LimitPeriod::Minute, Some(Duration::from_millis(1_234))));
        assert_eq!(error.kind(), ErrorKind::RateLimited);
        let text = "The limit of your tenant is 100 tokens a minute: 30 tokens left, and this request needs 80 \
                    tokens. Try again in 1.24 s.";
        assert_eq!(error.message(), text);
        assert!(error.should_retry());
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1_234)));
        let full =
            refusal(&exceeded(LimitUnit::Requests, LimitPeriod::Minute, Some(Duration::from_millis(60_250))));
        assert_eq!((full.retry_after(), full.should_retry()), (Some(LONGEST), true));
    }

    #[test]
    fn nobody_is_told_to_try_again_in_vain() {
        let spent =
            refusal(&exceeded(LimitUnit::Money, LimitPeriod::Month, Some(Duration::from_secs(86_400))));
        assert_eq!((spent.kind(), spent.should_retry()), (ErrorKind::QuotaSpent, false));
        assert!(spent.message().contains("is 0 of cost a month: "), "{}", spent.message());
        let never = refusal(&exceeded(LimitUnit::InputTokens, LimitPeriod::Minute, None));
        assert_eq!((never.code(), never.should_retry()), ("insufficient_quota", false));
    }

    #[test]
    fn headers_tell_the_tightest_limit_of_each_kind() {
        let status = |scope, unit, period, amount, left| LimitStatus {
            rule: LimitRule { id: LimitId { scope, unit, period, shadow: false }, amount },
            left,
            reset: Duration::from_millis(61_500),
        };
        let key = LimitScope::Key(KeyId::new(1));
        let mut headers = HeaderMap::new();
        write_headers(
            &[
                status(TENANT, LimitUnit::Tokens, LimitPeriod::Minute, 1_000, 900),
                status(key, LimitUnit::InputTokens, LimitPeriod::Minute, 100, 10),
                status(TENANT, LimitUnit::Tokens, LimitPeriod::Day, 1_000, 0),
                status(TENANT, LimitUnit::Requests, LimitPeriod::Now, 5, 1),
            ],
            &mut headers,
        );
        let read = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(read("x-ratelimit-limit-tokens"), Some("100"));
        assert_eq!(read("x-ratelimit-remaining-tokens"), Some("10"));
        assert_eq!(read("x-ratelimit-reset-tokens"), Some("1m1.5s"));
        assert_eq!(read("x-ratelimit-limit-requests"), None);
    }

    #[test]
    fn durations_are_short() {
        let of = |millis| duration(Duration::from_millis(millis));
        assert_eq!([of(0), of(120), of(7_500), of(60_000)], ["0s", "120ms", "7.5s", "1m0s"]);
    }
}
