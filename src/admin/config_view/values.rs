//! JSON values that several parts of the report share.

use serde_json::{Map, Value, json};

use crate::core::limits::rule::LimitUnit;

pub(super) fn by_name<'a>(rows: impl Iterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(rows.map(|(name, row)| (name.to_owned(), row)).collect::<Map<_, _>>())
}

/// Parts of a second, and of one unit of the currency, that limits are counted in.
const PARTS: f64 = 1e9;

/// Amount in the unit of the configuration file: GPU time in seconds, money in the currency.
pub(in crate::admin) fn amount(unit: LimitUnit, amount: u64) -> Value {
    match unit {
        LimitUnit::GpuTime | LimitUnit::Money => json!(amount as f64 / PARTS),
        LimitUnit::Requests | LimitUnit::InputTokens | LimitUnit::OutputTokens | LimitUnit::Tokens => {
            json!(amount)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_those_of_the_file() {
        assert_eq!(amount(LimitUnit::GpuTime, 250_000_000), json!(0.25));
        assert_eq!(amount(LimitUnit::Money, 100_000_000_000), json!(100.0));
        assert_eq!(amount(LimitUnit::Tokens, 7), json!(7));
    }
}
