//! Load share: the calls that carry the loads of gateways to the store and back.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cluster::demand::reports::StoreNames;
use crate::cluster::load::text::LoadTexts;
use crate::cluster::parts::ClusterParts;
use crate::cluster::store::connection::StoreConnection;
use crate::cluster::store::scripts::{LOAD, StoreScript};
use crate::core::model::event::Event;
use crate::core::queue::fairness::gateways::load::GatewayLoad;
use crate::dispatcher::Dispatcher;
use crate::telemetry::Telemetry;
use crate::telemetry::event::LoadNotShared;

/// Shortest time between two calls. What a gateway hears of a replica is at most about twice as old.
const SHORTEST: Duration = Duration::from_millis(50);
/// The same while requests wait: for a place that another gateway frees, too, and that stays empty until it is told.
const SHORTEST_WAITING: Duration = Duration::from_millis(20);
/// Time between two calls while this gateway has no work, and longest time in all. The store drops loads that
/// are older than 2 s.
const LONGEST: Duration = Duration::from_millis(400);
/// Time between two calls for each unfinished job, where tenants have waited for long. The scheduler then looks at
/// every job, twice a turn, in about 20 ns each: some per cent of its time.
const PAUSE_FOR_A_JOB: Duration = Duration::from_micros(2);
/// Bytes a second that a gateway tells and hears, about: more gateways and longer loads are told less often.
const BYTES_A_SECOND: usize = 50_000;

#[derive(Debug)]
pub(in crate::cluster) struct LoadShare {
    script: StoreScript,
    texts: LoadTexts,
    /// Loads of the other gateways, as the scheduler was told last.
    told: BTreeMap<String, GatewayLoad>,
    due: Instant,
}

impl LoadShare {
    pub(in crate::cluster) fn new() -> Self {
        Self {
            script: StoreScript::new(LOAD),
            texts: LoadTexts::default(),
            told: BTreeMap::new(),
            due: Instant::now(),
        }
    }

    /// When the next call is due.
    pub(in crate::cluster) const fn due(&self) -> Instant {
        self.due
    }

    /// Notes that the connection was lost, or that this gateway is alone: nothing is known of the others.
    pub(in crate::cluster) fn start_over(&mut self, dispatcher: &Dispatcher) {
        self.due = Instant::now();
        self.pass(dispatcher, BTreeMap::new());
    }

    /// Tells the scheduler, unless it knows. A division also moves with time.
    fn pass(&mut self, dispatcher: &Dispatcher, loads: BTreeMap<String, GatewayLoad>) {
        if self.told != loads || loads.values().any(|load| !load.tenants.is_empty()) {
            self.told.clone_from(&loads);
            dispatcher.event(Event::LoadElsewhere(loads));
        }
    }

    /// Tells the store the load of this gateway, and the scheduler those of the others. `members` are the
    /// gateways that are there. A call that the store refuses is a line of the log: each gateway then sees
    /// the work of others by the reports of engines.
    ///
    /// # Errors
    /// The connection is lost.
    pub(in crate::cluster) async fn share(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        parts: &ClusterParts,
        members: &[String],
    ) -> Result<(), String> {
        let ClusterParts { dispatcher, settings, telemetry, .. } = parts;
        if members.len() < 2 {
            self.start_over(dispatcher);
            self.due = Instant::now() + LONGEST;
            return Ok(());
        }
        self.texts.learn(&settings.load().policy);
        let load = dispatcher.gateway_load();
        let text = self.texts.write(&load);
        self.due = Instant::now() + self.pause(dispatcher, &load, text.len() * members.len());
        let Some(answer) = self.call(connection, names, &text, telemetry).await? else {
            self.pass(dispatcher, BTreeMap::new());
            return Ok(());
        };
        let others = answer.chunks_exact(2).filter_map(|row| {
            let id =
                std::str::from_utf8(&row[0]).ok().filter(|id| members.iter().any(|member| member == id))?;
            Some((id.to_owned(), self.texts.read(&row[1])?))
        });
        let others = others.collect();
        self.pass(dispatcher, others);
        Ok(())
    }

    /// Time until the next call. `bytes` are those of all gateways' loads, if each is as long as this one's.
    fn pause(&self, dispatcher: &Dispatcher, load: &GatewayLoad, bytes: usize) -> Duration {
        if load.replicas.is_empty() && load.tenants.is_empty() {
            return LONGEST;
        }
        let is_told = self.told.values().any(|load| !load.tenants.is_empty());
        let (waiting, unfinished) = dispatcher.job_counts();
        let looks = if is_told || !load.tenants.is_empty() { unfinished } else { 0 };
        pause(bytes, waiting > 0 || is_told, looks)
    }

    /// Takes the load of this gateway out of the store.
    ///
    /// # Errors
    /// The connection is lost.
    pub(in crate::cluster) async fn leave(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        parts: &ClusterParts,
    ) -> Result<(), String> {
        self.call(connection, names, "", &parts.telemetry).await.map(drop)
    }

    async fn call(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        text: &str,
        telemetry: &Telemetry,
    ) -> Result<Option<Vec<Vec<u8>>>, String> {
        let key = format!("{}:v1:{{load}}", names.prefix);
        let tell = |problem: &str| LoadNotShared { problem }.emit(telemetry);
        connection.run_or_tell(&mut self.script, &[&*key], &[names.id, text], tell).await
    }
}

/// Time until the next call of a gateway with work. `bytes` are those of all gateways' loads.
fn pause(bytes: usize, is_waiting: bool, looks: u64) -> Duration {
    let shortest = if is_waiting { SHORTEST_WAITING } else { SHORTEST };
    let looks = PAUSE_FOR_A_JOB * u32::try_from(looks).unwrap_or(u32::MAX);
    let bytes = Duration::from_secs_f64(bytes as f64 / BYTES_A_SECOND as f64);
    bytes.max(looks).clamp(shortest, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_gateways_longer_loads_and_more_jobs_are_told_less_often() {
        let millis = |bytes, is_waiting, looks| pause(bytes, is_waiting, looks).as_millis();
        assert_eq!((millis(2 * 300, false, 0), millis(2 * 300, true, 0)), (50, 20));
        assert_eq!((millis(4 * 1_200, false, 0), millis(16 * 1_200, true, 0)), (96, 384));
        assert_eq!((millis(16 * 9_000, false, 0), millis(0, true, u64::MAX)), (400, 400));
        assert_eq!((millis(2 * 300, true, 1_000), millis(2 * 300, true, 50_000)), (20, 100));
    }
}
