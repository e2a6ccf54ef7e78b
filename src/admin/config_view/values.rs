//! JSON values that several parts of the report share.

use serde_json::{Map, Value, json};

use crate::core::limits::rule::LimitUnit;

pub(super) fn by_name<'a>(rows: impl Iterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(rows.map(|(name, row)| (name.to_owned(), row)).collect::<Map<_, _>>())
}

/// Microseconds in a second; millionths in one unit of a currency.
pub(super) const MILLION: f64 = 1e6;

/// Amount in the unit of the configuration file: GPU time in seconds, money in the currency.
pub(in crate::admin) fn amount(unit: LimitUnit, amount: u64) -> Value {
    match unit {
        LimitUnit::GpuTime | LimitUnit::Money => json!(amount as f64 / MILLION),
        LimitUnit::Requests | LimitUnit::InputTokens | LimitUnit::OutputTokens | LimitUnit::Tokens => {
            json!(amount)
        }
    }
}
