//! Reports as they are sent. What another gateway sends is bounded and made
//! harmless here: it may be of another version, or broken.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::demand::rate::WAYS;
use crate::core::scale::outlook::{self, LineKey, LinePart, Outlook, PoolPart};
use crate::core::scale::peers;
use crate::scale::proto::gateways as proto;

pub(super) use crate::scale::proto::gateways::Report;

/// Bytes of a report, ten thousand lines or so.
pub(super) const MAX_REPORT: usize = 2 << 20;
/// The largest rate or amount that is believed.
const MOST: f64 = 1e15;
/// The longest time that is believed, in milliseconds.
const LONGEST: u64 = 30 * 24 * 3600 * 1000;

pub(super) const fn name(name: peers::Name) -> proto::Gateway {
    proto::Gateway { epoch: name.epoch, id: name.id }
}

fn named(gateway: Option<&proto::Gateway>) -> Option<peers::Name> {
    gateway.map(|gateway| peers::Name { epoch: gateway.epoch, id: gateway.id })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn time(millis: u64) -> Duration {
    Duration::from_millis(millis.min(LONGEST))
}

/// What was sent, or nothing where that is no amount.
fn amount(sent: f64) -> f64 {
    if sent.is_finite() { sent.clamp(0.0, MOST) } else { 0.0 }
}

/// As it is sent.
pub(super) fn encode(report: &peers::Report) -> Report {
    let pool = |(name, part): (&String, &PoolPart)| proto::Pool {
        name: name.clone(),
        in_flight: part.in_flight,
        queued_tokens: part.queued_tokens,
        used: part.used.to_vec(),
        work: part.work,
        cost: part.cost,
        start_ms: part.start.map(millis),
    };
    let line = |(key, part): (&LineKey, &LinePart)| proto::Line {
        class: key.class.clone(),
        pools: key.pools.clone(),
        slow: part.slow,
        deviation: part.deviation,
        rise: part.rise,
        fast: part.fast,
        backlog: part.backlog,
        oldest_ms: millis(part.oldest),
        waiting: part.waiting,
        unmet: part.unmet,
    };
    let number = |(pool, number): (&String, &outlook::Number)| proto::Number {
        pool: pool.clone(),
        desired: number.desired,
        reason: number.reason.clone(),
        keep: number.keep,
    };
    Report {
        from: Some(name(report.from)),
        sequence: report.sequence,
        draining: report.draining,
        leaving: report.leaving,
        blind: report.blind,
        pools: report.outlook.pools.iter().map(pool).collect(),
        lines: report.outlook.lines.iter().map(line).collect(),
        decision: report.decision.as_ref().map(|told| proto::Decision {
            by: Some(name(told.by)),
            age_ms: millis(told.age),
            numbers: told.numbers.iter().map(number).collect(),
        }),
    }
}

/// What was sent; `None` when it does not say who says it.
pub(super) fn decode(sent: Report) -> Option<peers::Report> {
    let from = named(sent.from.as_ref())?;
    let pool = |pool: proto::Pool| {
        let part = PoolPart {
            in_flight: pool.in_flight,
            queued_tokens: pool.queued_tokens,
            used: std::array::from_fn::<f64, WAYS, _>(|way| {
                amount(pool.used.get(way).copied().unwrap_or_default())
            }),
            work: amount(pool.work),
            cost: pool.cost.filter(|cost| cost.is_finite() && *cost > 0.0),
            start: pool.start_ms.map(time),
        };
        (pool.name, part)
    };
    let line = |line: proto::Line| {
        let part = LinePart {
            slow: amount(line.slow),
            deviation: amount(line.deviation),
            rise: amount(line.rise),
            fast: amount(line.fast),
            backlog: amount(line.backlog),
            oldest: time(line.oldest_ms),
            waiting: line.waiting,
            unmet: line.unmet,
        };
        (LineKey { class: line.class, pools: line.pools }, part)
    };
    let decision = |told: proto::Decision| {
        let number = |number: proto::Number| {
            let told = outlook::Number { desired: number.desired, reason: number.reason, keep: number.keep };
            (number.pool, told)
        };
        let numbers: BTreeMap<_, _> = told.numbers.into_iter().map(number).collect();
        Some(peers::Decision { by: named(told.by.as_ref())?, age: time(told.age_ms), numbers })
    };
    Some(peers::Report {
        from,
        sequence: sent.sequence,
        draining: sent.draining,
        leaving: sent.leaving,
        blind: sent.blind,
        outlook: Outlook {
            pools: sent.pools.into_iter().map(pool).collect(),
            lines: sent.lines.into_iter().map(line).collect(),
        },
        decision: sent.decision.and_then(decision),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> peers::Report {
        let part = PoolPart {
            in_flight: 3,
            queued_tokens: 5000,
            used: [1.5, 0.5, 0.25, 0.0],
            work: 900.0,
            cost: Some(0.25),
            start: Some(Duration::from_secs(90)),
        };
        let key = LineKey { class: "standard".into(), pools: vec!["b".into(), "a".into()] };
        let line = LinePart {
            slow: 1.0,
            deviation: 0.5,
            rise: 2.0,
            fast: 3.0,
            backlog: 4.0,
            oldest: Duration::from_millis(1500),
            waiting: 6,
            unmet: true,
        };
        let number = outlook::Number { desired: 7, reason: "burst".into(), keep: true };
        peers::Report {
            from: peers::Name { epoch: 1, id: u64::MAX },
            sequence: 9,
            draining: true,
            leaving: false,
            blind: true,
            outlook: Outlook { pools: [("a".into(), part)].into(), lines: [(key, line)].into() },
            decision: Some(peers::Decision {
                by: peers::Name { epoch: 0, id: 2 },
                age: Duration::from_millis(400),
                numbers: [("a".into(), number)].into(),
            }),
        }
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        assert_eq!(decode(encode(&report())), Some(report()));
        assert_eq!(decode(Report::default()), None, "nobody says it");
    }

    #[test]
    fn what_is_no_amount_counts_as_nothing() {
        let mut sent = encode(&report());
        let line = &mut sent.lines[0];
        (line.slow, line.rise, line.fast, line.backlog) = (f64::NAN, -1.0, f64::INFINITY, 1e300);
        (sent.pools[0].cost, sent.pools[0].used) = (Some(-1.0), vec![f64::NEG_INFINITY]);
        sent.pools[0].start_ms = Some(u64::MAX);
        let read = decode(sent).unwrap();
        let line = read.outlook.lines.values().next().unwrap();
        assert_eq!((line.slow, line.rise, line.fast, line.backlog), (0.0, 0.0, 0.0, MOST));
        let pool = read.outlook.pools["a"];
        assert_eq!((pool.cost, pool.used, pool.start), (None, [0.0; WAYS], Some(time(LONGEST))));
    }
}
