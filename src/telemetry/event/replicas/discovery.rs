//! Discovery events: replicas that join, drain or leave, and failures of their sources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, info, warn};

use crate::core::model::ids::{PoolId, ReplicaId};
use crate::core::model::policy::Policy;
use crate::telemetry::Telemetry;
use crate::telemetry::status::ConfigStatus;
use crate::telemetry::text::{millis, shorten};

/// Most replicas that a log line names. The line counts all of them.
const NAMED: usize = 8;

/// The set of replicas changed, by a reload or by discovery. Labels and log lines use the names of
/// `after` from now on.
#[derive(Debug, Clone, Copy)]
pub struct ReplicasChanged<'a> {
    /// Policy before the change.
    pub before: &'a Policy,
    /// Policy after the change.
    pub after: &'a Arc<Policy>,
}

/// Changes to the replicas of one pool, by name of the replica.
#[derive(Debug, Default)]
struct PoolChange<'a> {
    joined: Vec<&'a str>,
    left: Vec<&'a str>,
    draining: Vec<&'a str>,
    spot_notice: Vec<&'a str>,
}

impl ReplicasChanged<'_> {
    /// Writes and counts the event for each pool that changed.
    pub fn emit(&self, telemetry: &Telemetry) {
        let Self { before, after } = *self;
        telemetry.set_policy(Arc::clone(after));
        let status = ConfigStatus::clone(&telemetry.config_status());
        telemetry.set_config_status(ConfigStatus { generation: after.generation, ..status });
        for (pool, change) in self.by_pool() {
            change.emit(telemetry, after, pool);
            let (had, has) = (replicas_not_draining(before, pool), replicas_not_draining(after, pool));
            if had > 0 && has == 0 {
                let name = before.pools.name(pool);
                telemetry.metrics().pool_emptied(after, pool);
                telemetry.log(|| warn!(pool = name, "pool has no replica left that takes work"));
            }
        }
    }

    fn by_pool(&self) -> BTreeMap<PoolId, PoolChange<'_>> {
        let mut pools: BTreeMap<PoolId, PoolChange<'_>> = BTreeMap::new();
        for (id, name, row) in self.after.replicas.iter() {
            let there = self.before.replicas.get(id).is_some() && self.before.replicas.name(id) == name;
            let going = self.after.draining.contains(&id);
            if !there {
                pools.entry(row.pool).or_default().joined.push(name);
            }
            if going && !(there && self.before.draining.contains(&id)) {
                let change = pools.entry(row.pool).or_default();
                match self.after.spot_notices.contains(&id) {
                    true => change.spot_notice.push(name),
                    false => change.draining.push(name),
                }
            }
        }
        for (id, name, row) in self.before.replicas.iter() {
            if self.after.replicas.get(id).is_none() || self.after.replicas.name(id) != name {
                pools.entry(row.pool).or_default().left.push(name);
            }
        }
        pools
    }
}

impl PoolChange<'_> {
    fn emit(&self, telemetry: &Telemetry, policy: &Policy, pool: PoolId) {
        let replicas = policy.pools.get(pool).map_or(0, |row| row.replicas.len());
        let changes = [
            ("joined", &self.joined),
            ("left", &self.left),
            ("draining", &self.draining),
            ("spot_notice", &self.spot_notice),
        ];
        for (change, names) in changes.into_iter().filter(|(_, names)| !names.is_empty()) {
            let listed = names.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
            telemetry.log(|| {
                info!(
                    pool = policy.pools.name(pool),
                    change,
                    count = names.len(),
                    names = listed,
                    replicas,
                    "replicas changed"
                );
            });
            telemetry.metrics().replicas_changed(policy, pool, change, names.len());
        }
    }
}

/// Counts the replicas of a pool that are not draining.
fn replicas_not_draining(policy: &Policy, pool: PoolId) -> usize {
    let replicas = policy.pools.get(pool).map_or(&[][..], |row| &row.replicas);
    let stays = |id: &&ReplicaId| !policy.draining.contains(id);
    replicas.iter().filter(stays).count()
}

/// The discovery source of a pool failed. Its last answer stays in force. Emit for every failure:
/// the first in a row is a warning, the others are debug lines.
#[derive(Debug, Clone, Copy)]
pub struct SourceLost<'a> {
    pub pool: PoolId,
    pub problem: &'a str,
    /// Whether the source answered the time before.
    pub first: bool,
}

impl SourceLost<'_> {
    /// Writes and counts the event.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, problem) = (policy.pools.name(self.pool), shorten(self.problem));
        telemetry.log(|| {
            if self.first {
                warn!(pool, problem, "source of replicas lost, its last answer holds");
            } else {
                debug!(pool, problem, "source of replicas still lost");
            }
        });
        telemetry.metrics().source_failed(&policy, self.pool);
    }
}

/// The discovery source of a pool answers again.
#[derive(Debug, Clone, Copy)]
pub struct SourceBack {
    pub pool: PoolId,
    /// Time for which the source did not answer.
    pub after: Duration,
}

impl SourceBack {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let pool = policy.pools.name(self.pool);
        telemetry.log(|| info!(pool, after_ms = millis(self.after), "source of replicas answers again"));
    }
}

/// The discovery source of a pool names no replica any more.
#[derive(Debug, Clone, Copy)]
pub struct SourceEmpty {
    pub pool: PoolId,
    /// Time for which the last known replicas stay in force.
    pub holds: Duration,
}

impl SourceEmpty {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, holds_ms) = (policy.pools.name(self.pool), millis(self.holds));
        telemetry.log(|| warn!(pool, holds_ms, "source names no replica, the last ones hold for now"));
    }
}

/// The discovery source of a pool names more replicas than a pool may have. Some are left out.
#[derive(Debug, Clone, Copy)]
pub struct SourceTooLarge {
    pub pool: PoolId,
    /// Number of replicas that the source names.
    pub named: usize,
}

impl SourceTooLarge {
    /// Writes the event to the log and the audit file.
    pub fn emit(&self, telemetry: &Telemetry) {
        let policy = telemetry.policy();
        let (pool, named) = (policy.pools.name(self.pool), self.named);
        telemetry.log(|| warn!(pool, named, "source names too many replicas, some are left out"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::core::model::id_table::IdTable;
    use crate::core::model::policy::Replica;
    use crate::telemetry::fixtures;

    fn lines(telemetry: &Telemetry, since: usize) -> Vec<Value> {
        let log = telemetry.captured_log();
        log.lines().skip(since).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn who_came_and_who_went_is_told_by_pool() {
        let telemetry = fixtures::telemetry(1);
        let before = telemetry.policy();
        let before_lines = telemetry.captured_log().lines().count();
        let mut after = Policy { generation: 7, ..Policy::clone(&before) };
        let pool = PoolId::new(0);
        after.replicas = IdTable::successor(&before.replicas);
        let row = Replica { pool, max_seqs: None, kv_tokens: None };
        let one = after.replicas.insert("a100/http://10.0.0.2:8000", row);
        let mut members = before.pools.get(pool).unwrap().clone();
        members.replicas = vec![one];
        after.pools.insert("a100", members);
        let after = Arc::new(after);
        ReplicasChanged { before: &before, after: &after }.emit(&telemetry);
        let seen = lines(&telemetry, before_lines);
        let told: Vec<_> =
            seen.iter().map(|line| (&line["change"], &line["names"], &line["replicas"])).collect();
        let (new, old) = (json!("a100/http://10.0.0.2:8000"), json!("a100/http://10.0.0.1:8000"));
        assert_eq!(told, [(&json!("joined"), &new, &json!(1)), (&json!("left"), &old, &json!(1))]);
        assert_eq!(telemetry.config_status().generation, 7);

        let mut going = Policy::clone(&after);
        going.draining.insert(one);
        let going = Arc::new(going);
        ReplicasChanged { before: &after, after: &going }.emit(&telemetry);
        let seen = lines(&telemetry, before_lines + 2);
        assert_eq!((&seen[0]["change"], &seen[0]["names"]), (&json!("draining"), &new));
        assert_eq!(
            (&seen[1]["message"], &seen[1]["level"]),
            (&json!("pool has no replica left that takes work"), &json!("WARN"))
        );
        let text = fixtures::render(&telemetry);
        for line in [
            r#"penstock_replica_changes_total{pool="a100",change="joined"} 1"#,
            r#"penstock_replica_changes_total{pool="a100",change="left"} 1"#,
            r#"penstock_pools_emptied_total{pool="a100"} 1"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn a_source_that_stays_away_is_one_warning() {
        let telemetry = fixtures::telemetry(1);
        let start = telemetry.captured_log().lines().count();
        let pool = PoolId::new(0);
        SourceLost { pool, problem: "SERVFAIL", first: true }.emit(&telemetry);
        SourceLost { pool, problem: "SERVFAIL", first: false }.emit(&telemetry);
        SourceEmpty { pool, holds: Duration::from_secs(30) }.emit(&telemetry);
        SourceTooLarge { pool, named: 20_000 }.emit(&telemetry);
        SourceBack { pool, after: Duration::from_secs(3) }.emit(&telemetry);
        let seen = lines(&telemetry, start);
        let warnings = seen.iter().filter(|line| line["level"] == "WARN").count();
        assert_eq!(warnings, 3, "{seen:?}");
        assert_eq!(seen.last().unwrap()["after_ms"], json!(3000.0));
        assert!(fixtures::render(&telemetry).contains(r#"penstock_source_failures_total{pool="a100"} 2"#));
    }
}
