//! Scrape: writes the metrics of queues, ledgers, engine reports and the process, read when
//! Prometheus asks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;

use crate::core::autoscale::replica_demand::ReplicaDemand;
use crate::core::model::event::ReplicaReport;
use crate::core::model::ids::{ClassId, ModelId, ReplicaId, TenantId};
use crate::core::model::overrides::OverrideChange;
use crate::core::model::policy::Policy;
use crate::core::model::snapshot::{PoolSnapshot, PoolStatus, ReplicaSnapshot, ReplicaStatus, Snapshot};
use crate::telemetry::metrics::catalogue::{self, Metric};
pub(super) use crate::telemetry::metrics::exposition::Exposition;
use crate::telemetry::metrics::labels::{self, OTHER};
use crate::telemetry::metrics::scale;
use crate::telemetry::status::ConfigStatus;
use crate::telemetry::text::known;
use crate::telemetry::{log, wall};

/// Most queues that keep a row. Beyond this number, further tenants share the row `other`.
const MAX_QUEUES: usize = 10_000;

/// State of the rest of the process at the moment of a scrape.
#[derive(Debug, Clone, Copy)]
pub struct Scrape<'a> {
    /// Snapshot of the scheduler, over all pool groups.
    pub snapshot: &'a Snapshot,
    /// Latest reports of the engines.
    pub engines: &'a [EngineView],
    /// Replica demand of the pools.
    pub needs: &'a [ReplicaDemand],
}

/// Latest report of one engine.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineView {
    pub replica: ReplicaId,
    /// Last report; absent before the first.
    pub report: Option<ReplicaReport>,
    /// Age of the last report.
    pub age: Option<Duration>,
    /// Time since the first failed read, while no read has succeeded.
    pub unread_for: Option<Duration>,
    /// Problem of the last read; absent = the read succeeded.
    pub problem: Option<String>,
}

type QueueId = (Option<TenantId>, Option<ClassId>, Option<ModelId>);

#[derive(Clone, Copy, Default)]
struct QueueGaugeRow {
    waiting: u64,
    tokens: u64,
    oldest: Duration,
}

/// Queues that once had a row. An empty queue keeps a row of zeros: Prometheus cannot distinguish a
/// series that comes and goes from a series that was never scraped.
#[derive(Debug, Default)]
pub(super) struct SeenQueues(Mutex<BTreeSet<QueueId>>);

impl SeenQueues {
    /// Returns the rows of the snapshot, and zeros for seen queues that are empty now. Queues whose
    /// tenant, class or model left the policy are dropped.
    fn rows(&self, policy: &Policy, snapshot: &Snapshot) -> BTreeMap<QueueId, QueueGaugeRow> {
        let mut seen = self.0.lock();
        let present = |(tenant, class, model): &QueueId| {
            tenant.is_none_or(|id| policy.tenants.get(id).is_some())
                && class.is_none_or(|id| policy.classes.get(id).is_some())
                && model.is_none_or(|id| policy.models.get(id).is_some())
        };
        seen.retain(present);
        let mut rows: BTreeMap<QueueId, QueueGaugeRow> =
            seen.iter().map(|queue| (*queue, QueueGaugeRow::default())).collect();
        for view in &snapshot.queues {
            let class = Some(view.class).filter(|id| known(policy.classes.name(*id)).is_some());
            let model = Some(view.model).filter(|id| known(policy.models.name(*id)).is_some());
            let tenant = Some(view.tenant).filter(|id| known(policy.tenants.name(*id)).is_some());
            let own = (tenant, class, model);
            let queue =
                if rows.contains_key(&own) || rows.len() < MAX_QUEUES { own } else { (None, class, model) };
            let row = rows.entry(queue).or_default();
            row.waiting += view.waiting;
            row.tokens += view.tokens;
            row.oldest = row.oldest.max(view.oldest);
        }
        *seen = rows.keys().copied().collect();
        rows
    }
}

impl Scrape<'_> {
    /// Appends all metrics of the scrape to `text`.
    pub(super) fn write(&self, policy: &Policy, config: &ConfigStatus, seen: &SeenQueues, text: &mut String) {
        let mut out = Exposition(text);
        write_queues(&mut out, policy, &seen.rows(policy, self.snapshot));
        out.plain(&catalogue::requests::JOBS, self.snapshot.jobs);
        out.plain(&catalogue::process::BROKEN_INVARIANTS, self.snapshot.broken_invariants);
        write_overrides(&mut out, self.snapshot);
        write_pools(&mut out, policy, &self.snapshot.pools);
        scale::write(&mut out, policy, self.needs);
        write_ledgers(&mut out, policy, &self.snapshot.replicas);
        write_seats(&mut out, policy, &self.snapshot.replicas);
        write_engines(&mut out, policy, self.engines);
        write_process(&mut out, config);
    }
}

fn write_queues(out: &mut Exposition<'_>, policy: &Policy, rows: &BTreeMap<QueueId, QueueGaugeRow>) {
    let labels = |(tenant, class, model): &QueueId| {
        [
            ("tenant", labels::tenant(policy, *tenant)),
            ("class", labels::class(policy, *class)),
            ("model", labels::model(policy, *model)),
        ]
    };
    out.family(&catalogue::queues::QUEUE_DEPTH);
    for (queue, row) in rows {
        out.sample(&catalogue::queues::QUEUE_DEPTH, &labels(queue), row.waiting);
    }
    out.family(&catalogue::queues::QUEUE_OLDEST);
    for (queue, row) in rows {
        out.sample(&catalogue::queues::QUEUE_OLDEST, &labels(queue), row.oldest.as_secs_f64());
    }
    out.family(&catalogue::queues::QUEUE_TOKENS);
    for (queue, row) in rows {
        out.sample(&catalogue::queues::QUEUE_TOKENS, &labels(queue), row.tokens);
    }
}

/// Labels `pool` and `replica`; absent for a replica without a name in the policy.
fn replica_labels(policy: &Policy, id: ReplicaId) -> Option<[(&'static str, &str); 2]> {
    let replica = known(policy.replicas.name(id))?;
    let pool = policy.replicas.get(id).map_or(OTHER, |row| labels::pool(policy, Some(row.pool)));
    Some([("pool", pool), ("replica", replica)])
}

fn write_overrides(out: &mut Exposition<'_>, snapshot: &Snapshot) {
    out.family(&catalogue::process::OVERRIDES);
    for kind in OverrideChange::NAMES {
        let count = snapshot.overrides.iter().filter(|view| view.change.name() == kind).count();
        out.sample(&catalogue::process::OVERRIDES, &[("kind", kind)], count);
    }
}

fn write_pools(out: &mut Exposition<'_>, policy: &Policy, pools: &[PoolSnapshot]) {
    let label = |view: &PoolSnapshot| ("pool", labels::pool(policy, Some(view.pool)));
    out.family(&catalogue::pools::POOL_STATE);
    for view in pools {
        for state in PoolStatus::ALL {
            let labels = [label(view), ("state", state.name())];
            out.sample(&catalogue::pools::POOL_STATE, &labels, u8::from(state == view.state));
        }
    }
    out.family(&catalogue::pools::POOL_WAITING);
    for view in pools {
        out.sample(&catalogue::pools::POOL_WAITING, &[label(view)], view.waiting);
    }
    out.family(&catalogue::pools::COLD_START);
    for view in pools {
        if let Some(time) = view.cold_start {
            out.sample(&catalogue::pools::COLD_START, &[label(view)], time.as_secs_f64());
        }
    }
    out.family(&catalogue::pools::WAKE);
    for view in pools {
        if let Some(time) = view.wake {
            out.sample(&catalogue::pools::WAKE, &[label(view)], time.as_secs_f64());
        }
    }
    out.family(&catalogue::pools::REPLICA_SECONDS);
    for view in pools {
        let idle = view.times.present.saturating_sub(view.times.busy);
        for (name, time) in [("busy", view.times.busy), ("idle", idle)] {
            out.sample(&catalogue::pools::REPLICA_SECONDS, &[label(view), ("use", name)], time.as_secs_f64());
        }
    }
}

fn write_ledgers(out: &mut Exposition<'_>, policy: &Policy, replicas: &[ReplicaSnapshot]) {
    type ReadReplica = fn(&ReplicaSnapshot) -> u64;
    let gauges: [(&Metric, ReadReplica); 4] = [
        (&catalogue::replicas::REPLICA_RUNNING, |view| view.running.into()),
        (&catalogue::replicas::REPLICA_LIMIT, |view| view.limit.into()),
        (&catalogue::replicas::REPLICA_PREFILL, |view| view.prefill_tokens),
        (&catalogue::replicas::REPLICA_KV, |view| view.kv_tokens),
    ];
    for (metric, read) in gauges {
        out.family(metric);
        for view in replicas {
            if let Some(labels) = replica_labels(policy, view.replica) {
                out.sample(metric, &labels, read(view));
            }
        }
    }
    out.family(&catalogue::replicas::REPLICA_STATE);
    for view in replicas {
        let Some([pool, replica]) = replica_labels(policy, view.replica) else { continue };
        for state in ReplicaStatus::ALL {
            let labels = [pool, replica, ("state", state.name())];
            out.sample(&catalogue::replicas::REPLICA_STATE, &labels, u8::from(state == view.state));
        }
    }
}

/// Writes the slots of each pool by use. A use without slots is left out, except `running` and
/// `free`.
fn write_seats(out: &mut Exposition<'_>, policy: &Policy, replicas: &[ReplicaSnapshot]) {
    let mut pools: BTreeMap<&str, BTreeMap<&str, u64>> = BTreeMap::new();
    for view in replicas {
        let Some([(_, pool), _]) = replica_labels(policy, view.replica) else { continue };
        let uses = pools.entry(pool).or_insert_with(|| BTreeMap::from([("running", 0), ("free", 0)]));
        let seats = view.slots;
        let named = [("running", seats.running), ("free", seats.free)];
        let held = [seats.above_limit, seats.withheld].into_iter().flatten();
        let held = held.map(|held| (held.bottleneck.name(), held.slots));
        let out_of_service = Some((view.state.name(), seats.out_of_service)).filter(|(_, seats)| *seats > 0);
        for (usage, seats) in named.into_iter().chain(held).chain(out_of_service) {
            *uses.entry(usage).or_default() += u64::from(seats);
        }
    }
    out.family(&catalogue::pools::SEATS);
    for (pool, uses) in &pools {
        for (usage, seats) in uses {
            out.sample(&catalogue::pools::SEATS, &[("pool", *pool), ("state", *usage)], *seats);
        }
    }
}

fn write_engines(out: &mut Exposition<'_>, policy: &Policy, engines: &[EngineView]) {
    type ReadEngine = fn(&EngineView) -> Option<f64>;
    #[expect(clippy::cast_precision_loss, reason = "Prometheus values are doubles")]
    let gauges: [(&Metric, ReadEngine); 4] = [
        (&catalogue::replicas::ENGINE_RUNNING, |view| view.report?.running.map(|value| value as f64)),
        (&catalogue::replicas::ENGINE_WAITING, |view| view.report?.waiting.map(|value| value as f64)),
        (&catalogue::replicas::ENGINE_KV_USAGE, |view| view.report?.kv_usage),
        (&catalogue::replicas::ENGINE_REPORT_AGE, |view| Some(view.age.or(view.unread_for)?.as_secs_f64())),
    ];
    for (metric, read) in gauges {
        out.family(metric);
        for view in engines {
            if let (Some(labels), Some(value)) = (replica_labels(policy, view.replica), read(view)) {
                out.sample(metric, &labels, value);
            }
        }
    }
}

fn write_process(out: &mut Exposition<'_>, config: &ConfigStatus) {
    out.plain(&catalogue::process::CONFIG_SUCCESSFUL, u8::from(config.problems.is_empty()));
    let loaded_at = config.loaded_at.map_or(0.0, wall::unix_seconds);
    out.plain(&catalogue::process::CONFIG_TIMESTAMP, loaded_at);
    out.plain(&catalogue::process::CONFIG_GENERATION, config.generation);
    out.family(&catalogue::process::CONFIG_INFO);
    out.sample(&catalogue::process::CONFIG_INFO, &[("digest", &config.digest)], 1);
    out.family(&catalogue::process::BUILD_INFO);
    out.sample(&catalogue::process::BUILD_INFO, &[("version", env!("CARGO_PKG_VERSION"))], 1);
    out.plain(&catalogue::process::LOG_LINES_DROPPED, log::dropped_lines());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::billing::pool_account::PoolTimes;
    use crate::core::model::id_table::IdTable;
    use crate::core::model::ids::PoolId;
    use crate::core::model::overrides::Closed;
    use crate::core::model::snapshot::{ActiveOverride, QueueSnapshot};
    use crate::core::replica::bottleneck::{Bottleneck, BottleneckSlots, SlotCounts};
    use crate::telemetry::event::ConfigRejected;
    use crate::telemetry::fixtures::{load, policy, render, samples, telemetry};

    #[test]
    fn label_values_are_escaped() {
        let mut text = String::new();
        let mut out = Exposition(&mut text);
        out.sample(
            &catalogue::queues::QUEUE_DEPTH,
            &[("tenant", "x\\\"\ny"), ("class", ""), ("model", "m")],
            1.5,
        );
        assert_eq!(text, "penstock_queue_depth{tenant=\"x\\\\\\\"\\ny\",class=\"\",model=\"m\"} 1.5\n");
    }

    #[test]
    fn a_rejected_config_shows_and_the_digest_does_not_pile_up() {
        let telemetry = telemetry(1);
        ConfigRejected { problems: &["pools.a: no replicas".into()] }.emit(&telemetry);
        let text = render(&telemetry);
        assert_eq!(samples(&text)["penstock_config_last_reload_successful"], 0.0);
        assert_eq!(samples(&text)[r#"penstock_config_info{digest="d1"}"#], 1.0);

        load(&telemetry, Policy { generation: 2, ..policy(1) }, "d2");
        let text = render(&telemetry);
        let samples = samples(&text);
        assert_eq!(samples["penstock_config_last_reload_successful"], 1.0);
        assert_eq!(samples["penstock_config_generation"], 2.0);
        assert!(samples["penstock_config_last_reload_timestamp_seconds"] > 1.6e9);
        assert!(text.contains(r#"penstock_config_info{digest="d2"} 1"#) && !text.contains("d1"));
        assert!(text.contains(concat!(
            r#"penstock_build_info{version=""#,
            env!("CARGO_PKG_VERSION"),
            "\"} 1\n"
        )));
    }

    #[test]
    fn queues_go_to_zero_and_leave_with_their_tenant() {
        let telemetry = telemetry(2);
        let row = |tenant, waiting| QueueSnapshot {
            tenant: TenantId::new(tenant),
            class: ClassId::new(0),
            model: ModelId::new(0),
            waiting,
            bytes: 10,
            tokens: 70,
            oldest: Duration::from_millis(1_500),
        };
        let full =
            Snapshot { queues: vec![row(0, 4), row(1, 5), row(77, 2), row(78, 3)], ..Snapshot::default() };
        let text = telemetry.render(&Scrape { snapshot: &full, engines: &[], needs: &[] });
        let key = |name: &str, tenant: &str| {
            format!(r#"penstock_queue_{name}{{tenant="{tenant}",class="interactive",model="llama"}}"#)
        };
        assert_eq!(samples(&text)[&*key("depth", "team-0")], 4.0);
        assert_eq!(samples(&text)[&*key("oldest_seconds", "team-1")], 1.5);
        assert_eq!(samples(&text)[&*key("depth", "other")], 5.0);
        assert_eq!(samples(&text)[&*key("tokens", "other")], 140.0);

        let text = render(&telemetry);
        assert_eq!(samples(&text)[&*key("depth", "team-1")], 0.0);
        assert_eq!(samples(&text)[&*key("oldest_seconds", "team-0")], 0.0);

        let mut smaller = Policy { tenants: IdTable::successor(&telemetry.policy().tenants), ..policy(0) };
        let kept = telemetry.policy().tenants.get(TenantId::new(0)).unwrap().clone();
        smaller.tenants.insert("team-0", kept);
        load(&telemetry, smaller, "d2");
        let text = render(&telemetry);
        assert!(text.contains(&key("depth", "team-0")) && !text.contains(&key("depth", "team-1")));
    }

    #[test]
    fn overrides_are_counted_by_kind() {
        let view =
            |measure| ActiveOverride { change: measure, reason: "".into(), age: Duration::ZERO, left: None };
        let (pool, replica, tenant) = (0.into(), ReplicaId::new(0), TenantId::new(0));
        let measures = [
            OverrideChange::ClosePool(pool, Closed::Cordoned),
            OverrideChange::ClosePool(pool, Closed::Drained),
            OverrideChange::CloseReplica(replica, Closed::SpotNotice),
            OverrideChange::Pause(tenant),
            OverrideChange::Boost(tenant, 2.0),
            OverrideChange::Boost(TenantId::new(1), 2.0),
        ];
        let snapshot = Snapshot { overrides: measures.map(view).to_vec(), ..Snapshot::default() };
        let text = telemetry(1).render(&Scrape { snapshot: &snapshot, engines: &[], needs: &[] });
        let counts = OverrideChange::NAMES
            .map(|kind| samples(&text)[&*format!(r#"penstock_overrides{{kind="{kind}"}}"#)]);
        assert_eq!(counts, [1.0, 1.0, 1.0, 1.0, 2.0]);
    }

    #[test]
    fn pools_show_their_state_and_the_starts_that_were_measured() {
        let view = |pool, state, cold_start| PoolSnapshot {
            pool: PoolId::new(pool),
            state,
            waiting: 7,
            cold_start,
            wake: cold_start,
            best: Default::default(),
            times: PoolTimes { present: Duration::from_secs(90), busy: Duration::from_millis(2_500) },
        };
        let starting = view(0, PoolStatus::Starting, Some(Duration::from_millis(90_500)));
        let snapshot = Snapshot { pools: vec![starting], ..Snapshot::default() };
        let telemetry = telemetry(1);
        let text = telemetry.render(&Scrape { snapshot: &snapshot, engines: &[], needs: &[] });
        let pool = telemetry.policy().pools.name(PoolId::new(0)).to_owned();
        let of =
            |name: &str, more: &str| samples(&text)[&*format!(r#"penstock_{name}{{pool="{pool}"{more}}}"#)];
        assert_eq!(of("pool_state", r#",state="starting""#), 1.0);
        assert_eq!(of("pool_state", r#",state="cold""#), 0.0);
        assert_eq!((of("pool_waiting", ""), of("cold_start_seconds", "")), (7.0, 90.5));
        assert_eq!(of("wake_seconds", ""), 90.5);
        assert_eq!(of("replica_seconds_total", r#",use="busy""#), 2.5);
        assert_eq!(of("replica_seconds_total", r#",use="idle""#), 87.5);

        let snapshot = Snapshot { pools: vec![view(0, PoolStatus::Cold, None)], ..snapshot };
        let text = telemetry.render(&Scrape { snapshot: &snapshot, engines: &[], needs: &[] });
        assert!(!text.contains("penstock_cold_start_seconds{"), "nothing was measured");
    }

    #[test]
    fn ledgers_and_engine_reports_appear_by_replica() {
        let telemetry = telemetry(1);
        let view = |replica, state| ReplicaSnapshot {
            replica: ReplicaId::new(replica),
            state,
            running: 3,
            limit: 8,
            prefill_tokens: 900,
            kv_tokens: 4_000,
            speed_factor: 1.5,
            speed_known: true,
            expected: Duration::from_millis(80),
            report_age: None,
            bottleneck: None,
            background_bottleneck: None,
            slots: SlotCounts {
                running: 3,
                above_limit: Some(BottleneckSlots { bottleneck: Bottleneck::Itl, slots: 2 }),
                out_of_service: 5,
                ..SlotCounts::default()
            },
        };
        let snapshot = Snapshot {
            replicas: vec![view(0, ReplicaStatus::Busy), view(9, ReplicaStatus::Serving)],
            jobs: 12,
            broken_invariants: 1,
            ..Snapshot::default()
        };
        let report = ReplicaReport { running: Some(2), kv_usage: Some(0.25), ..ReplicaReport::default() };
        let engine = EngineView {
            replica: ReplicaId::new(0),
            report: Some(report),
            age: Some(Duration::from_millis(750)),
            unread_for: None,
            problem: None,
        };
        let text = telemetry.render(&Scrape { snapshot: &snapshot, engines: &[engine], needs: &[] });
        let seats: Vec<&str> = text.lines().filter(|line| line.starts_with("penstock_seats{")).collect();
        assert_eq!(seats.len(), 4, "{seats:?}");
        for (state, count) in [("busy", 5), ("free", 0), ("pace", 2), ("running", 3)] {
            let row = format!("state=\"{state}\"}} {count}");
            assert!(seats.iter().any(|line| line.ends_with(&row)), "{row} in {seats:?}");
        }
        let samples = samples(&text);
        let of = |name: &str, more: &str| {
            samples
                .get(&*format!(r#"penstock_{name}{{pool="a100",replica="a100/http://10.0.0.1:8000"{more}}}"#))
        };
        assert_eq!(of("replica_running", ""), Some(&3.0));
        assert_eq!(of("replica_limit", ""), Some(&8.0));
        assert_eq!(of("replica_prefill_tokens", ""), Some(&900.0));
        assert_eq!(of("replica_kv_tokens", ""), Some(&4_000.0));
        assert_eq!(of("replica_state", r#",state="busy""#), Some(&1.0));
        assert_eq!(of("replica_state", r#",state="serving""#), Some(&0.0));
        assert_eq!(of("engine_running", ""), Some(&2.0));
        assert_eq!(of("engine_kv_usage", ""), Some(&0.25));
        assert_eq!(of("engine_report_age_seconds", ""), Some(&0.75));
        assert_eq!(of("engine_waiting", ""), None, "an engine that does not say is not at zero");
        assert_eq!((samples["penstock_jobs"], samples["penstock_broken_invariants"]), (12.0, 1.0));
        assert_eq!(text.matches("penstock_replica_running{").count(), 1, "no row without a name");
    }
}
