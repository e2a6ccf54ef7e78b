//! Token share: divides the busy time of a pool and day among requests by their tokens.

use std::collections::BTreeMap;

use crate::usage::bill::sums::{BillSums, Cells};
use crate::usage::row::RowKind;

/// Totals of one pool on one day.
#[derive(Default)]
struct PoolDay {
    busy_ns: u128,
    money_nano: u128,
    tokens: u128,
    /// Tokens of the cells that have got their share already.
    passed: u128,
}

fn tokens(sums: &BillSums) -> u128 {
    u128::from(sums.input_tokens) + u128::from(sums.output_tokens)
}

/// Divides the busy time and cost of each pool and day among its cells by their tokens. The last
/// two entries of a cell's key are the pool and the day. The shares are whole numbers and sum
/// exactly to the total. A pool and day without tokens keeps its shares by steps.
pub(super) fn by_tokens(cells: &mut Cells) {
    let mut days: BTreeMap<Vec<String>, PoolDay> = BTreeMap::new();
    let place = |key: &[String]| key[key.len().saturating_sub(2)..].to_vec();
    for ((key, kind), sums) in &*cells {
        if *kind != RowKind::Idle {
            let day = days.entry(place(key)).or_default();
            day.busy_ns += sums.gpu_ns;
            day.money_nano += sums.money_nano;
            day.tokens += tokens(sums);
        }
    }
    for ((key, kind), sums) in cells {
        let Some(day) = days.get_mut(&place(key)).filter(|day| *kind != RowKind::Idle && day.tokens > 0)
        else {
            continue;
        };
        let next = day.passed + tokens(sums);
        let part = |all: u128| all * next / day.tokens - all * day.passed / day.tokens;
        (sums.gpu_ns, sums.money_nano) = (part(day.busy_ns), part(day.money_nano));
        day.passed = next;
    }
}
