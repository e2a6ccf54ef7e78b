//! Wire form of demand reports. Reports from other gateways are bounded and sanitised here: a
//! sender may run another version, or be broken.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::core::autoscale::demand::utilization::DIMENSIONS;
use crate::core::autoscale::demand_report::{self, DemandReport, PoolReport, PoolSetKey, PoolSetReport};
use crate::core::autoscale::peers;
use crate::scaler::proto::gateways as proto;

pub(super) use crate::scaler::proto::gateways::Report;

/// Most bytes of a report: room for about ten thousand lines.
pub(super) const MAX_REPORT: usize = 2 << 20;
/// Largest rate or amount accepted; larger ones are cut to this.
const MAX_AMOUNT: f64 = 1e15;
/// Longest time accepted, in milliseconds; longer ones are cut to this.
const MAX_MILLIS: u64 = 30 * 24 * 3600 * 1000;

pub(super) const fn encode_id(name: peers::GatewayId) -> proto::Gateway {
    proto::Gateway { epoch: name.epoch, id: name.id }
}

fn decode_id(gateway: Option<&proto::Gateway>) -> Option<peers::GatewayId> {
    gateway.map(|gateway| peers::GatewayId { epoch: gateway.epoch, id: gateway.id })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn time(millis: u64) -> Duration {
    Duration::from_millis(millis.min(MAX_MILLIS))
}

/// An amount that was sent, cut to 0 ..= [`MAX_AMOUNT`]; 0 when the value is not finite.
fn amount(sent: f64) -> f64 {
    if sent.is_finite() { sent.clamp(0.0, MAX_AMOUNT) } else { 0.0 }
}

/// The wire form of a report.
pub(super) fn encode(report: &peers::PeerReport) -> Report {
    let pool = |(name, part): (&String, &PoolReport)| proto::Pool {
        name: name.clone(),
        in_flight: part.in_flight,
        queued_tokens: part.queued_tokens,
        used: part.used.to_vec(),
        work: part.work,
        cost: part.cost,
        start_ms: part.start.map(millis),
    };
    let line = |(key, part): (&PoolSetKey, &PoolSetReport)| proto::Line {
        class: key.class.clone(),
        pools: key.pools.clone(),
        slow: part.sustained,
        deviation: part.deviation,
        rise: part.rise,
        fast: part.fast,
        backlog: part.backlog,
        oldest_ms: millis(part.oldest),
        waiting: part.waiting,
        unmet: part.unmet,
    };
    let number = |(pool, number): (&String, &demand_report::DecidedNumber)| proto::Number {
        pool: pool.clone(),
        desired: number.desired,
        reason: number.reason.clone(),
        keep: number.keep_above_zero,
    };
    Report {
        from: Some(encode_id(report.from)),
        sequence: report.sequence,
        draining: report.draining,
        leaving: report.leaving,
        blind: report.blind,
        pools: report.demand.pools.iter().map(pool).collect(),
        lines: report.demand.pool_sets.iter().map(line).collect(),
        decision: report.decision.as_ref().map(|told| proto::Decision {
            by: Some(encode_id(told.by)),
            age_ms: millis(told.age),
            numbers: told.numbers.iter().map(number).collect(),
        }),
    }
}

/// The report that was sent; `None` when its sender is missing.
pub(super) fn decode(sent: Report) -> Option<peers::PeerReport> {
    let from = decode_id(sent.from.as_ref())?;
    let pool = |pool: proto::Pool| {
        let part = PoolReport {
            in_flight: pool.in_flight,
            queued_tokens: pool.queued_tokens,
            used: std::array::from_fn::<f64, DIMENSIONS, _>(|way| {
                amount(pool.used.get(way).copied().unwrap_or_default())
            }),
            work: amount(pool.work),
            cost: pool.cost.filter(|cost| cost.is_finite() && *cost > 0.0),
            start: pool.start_ms.map(time),
        };
        (pool.name, part)
    };
    let line = |line: proto::Line| {
        let part = PoolSetReport {
            sustained: amount(line.slow),
            deviation: amount(line.deviation),
            rise: amount(line.rise),
            fast: amount(line.fast),
            backlog: amount(line.backlog),
            oldest: time(line.oldest_ms),
            waiting: line.waiting,
            unmet: line.unmet,
        };
        (PoolSetKey { class: line.class, pools: line.pools }, part)
    };
    let decision = |told: proto::Decision| {
        let number = |number: proto::Number| {
            let told = demand_report::DecidedNumber {
                desired: number.desired,
                reason: number.reason,
                keep_above_zero: number.keep,
            };
            (number.pool, told)
        };
        let numbers: BTreeMap<_, _> = told.numbers.into_iter().map(number).collect();
        Some(peers::ScaleDecision { by: decode_id(told.by.as_ref())?, age: time(told.age_ms), numbers })
    };
    Some(peers::PeerReport {
        from,
        sequence: sent.sequence,
        draining: sent.draining,
        leaving: sent.leaving,
        blind: sent.blind,
        demand: DemandReport {
            pools: sent.pools.into_iter().map(pool).collect(),
            pool_sets: sent.lines.into_iter().map(line).collect(),
        },
        decision: sent.decision.and_then(decision),
    })
}

/// Decodes a report. What was decoded can be sent on, and says the same then.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_report(data: &[u8]) {
    use prost::Message;

    if let Some(report) = Report::decode(data).ok().and_then(decode) {
        assert_eq!(decode(encode(&report)), Some(report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> peers::PeerReport {
        let part = PoolReport {
            in_flight: 3,
            queued_tokens: 5000,
            used: [1.5, 0.5, 0.25, 0.0],
            work: 900.0,
            cost: Some(0.25),
            start: Some(Duration::from_secs(90)),
        };
        let key = PoolSetKey { class: "standard".into(), pools: vec!["b".into(), "a".into()] };
        let line = PoolSetReport {
            sustained: 1.0,
            deviation: 0.5,
            rise: 2.0,
            fast: 3.0,
            backlog: 4.0,
            oldest: Duration::from_millis(1500),
            waiting: 6,
            unmet: true,
        };
        let number =
            demand_report::DecidedNumber { desired: 7, reason: "burst".into(), keep_above_zero: true };
        peers::PeerReport {
            from: peers::GatewayId { epoch: 1, id: u64::MAX },
            sequence: 9,
            draining: true,
            leaving: false,
            blind: true,
            demand: DemandReport { pools: [("a".into(), part)].into(), pool_sets: [(key, line)].into() },
            decision: Some(peers::ScaleDecision {
                by: peers::GatewayId { epoch: 0, id: 2 },
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
        let line = read.demand.pool_sets.values().next().unwrap();
        assert_eq!((line.sustained, line.rise, line.fast, line.backlog), (0.0, 0.0, 0.0, MAX_AMOUNT));
        let pool = read.demand.pools["a"];
        assert_eq!((pool.cost, pool.used, pool.start), (None, [0.0; DIMENSIONS], Some(time(MAX_MILLIS))));
    }
}
