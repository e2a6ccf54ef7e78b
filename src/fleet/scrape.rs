//! Scrapes of one replica: its metrics and its models, at intervals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::core::model::event::Event;
use crate::engines::{Ability, EngineGauges, ModelInfo};
use crate::fleet::context::FleetContext;
use crate::fleet::fetch::{FetchError, ReplicaClient};
use crate::fleet::target::ReplicaTarget;
use crate::fleet::view::StatusCell;
use crate::telemetry::event::{ModelMismatch, ScrapeFailed, ScrapeRecovered, SleepStateChanged};

/// One replica for as long as its target stays the same.
#[derive(Debug)]
pub(super) struct MonitoredReplica {
    pub(super) target: ReplicaTarget,
    pub(super) fetcher: Arc<ReplicaClient>,
    pub(super) cell: Arc<StatusCell>,
    /// Requests a scrape and the model info now.
    pub(super) refresh: Notify,
    /// Requests a scrape now.
    pub(super) inspect: Notify,
    pub(super) probing: ProbeFlag,
    pub(super) token: CancellationToken,
}

impl MonitoredReplica {
    /// Whether a reload or a stop ended the replica's tasks. Nothing may be reported afterwards.
    pub(super) fn is_ended(&self) -> bool {
        self.token.is_cancelled()
    }
}

/// Whether a probe is in flight.
#[derive(Debug, Default)]
pub(super) struct ProbeFlag(AtomicBool);

impl ProbeFlag {
    /// Marks a probe as started. Returns true unless one was in flight.
    pub(super) fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(super) fn end(&self) {
        self.0.store(false, Ordering::Release);
    }

    pub(super) fn is_in_flight(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Scrapes until the task is dropped. At most one request is in flight; ticks that pass meanwhile
/// are skipped.
pub(super) async fn run(shared: Arc<FleetContext>, member: Arc<MonitoredReplica>) {
    let target = &member.target;
    let mut ticks = interval_at(Instant::now() + target.first_scrape_delay(), target.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut info_due = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = member.inspect.notified() => {}
            () = member.refresh.notified() => info_due = Instant::now(),
        }
        // The semaphore is never closed, so `acquire` cannot fail.
        let _permit = shared.permits.acquire().await;
        scrape_once(&shared, &member, &mut info_due).await;
    }
}

async fn scrape_once(shared: &FleetContext, member: &MonitoredReplica, info_due: &mut Instant) {
    let began = Instant::now();
    let scraped = match &member.target.metrics {
        Some(url) => Some(scrape(shared, member, url).await),
        None => None,
    };
    if member.is_ended() {
        return;
    }
    let fresh = match scraped {
        Some(result) => {
            let recovered = store_scrape(shared, member, began, result);
            if recovered {
                // The engine may be another than before, so its models are read anew.
                *info_due = Instant::now();
            }
            result.is_ok()
        }
        None => false,
    };
    let informed = Instant::now() >= *info_due && {
        let result = fetch_info(shared, member).await;
        if member.is_ended() {
            return;
        }
        let timing = &shared.timing;
        *info_due = Instant::now() + if result.is_ok() { timing.info_interval } else { timing.info_retry };
        store_info(shared, member, result)
    };
    if fresh || informed {
        let report = member.cell.lock().report(fresh);
        shared.dispatcher.event(Event::ReplicaReported { replica: member.target.replica, report });
    }
}

async fn scrape(
    shared: &FleetContext,
    member: &MonitoredReplica,
    url: &str,
) -> Result<EngineGauges, FetchError> {
    let target = &member.target;
    let body = member.fetcher.get(url, target.key.as_ref(), shared.timing.scrape_timeout).await?;
    let text = String::from_utf8_lossy(&body);
    let gauges = target.engine().gauges(&text).ok_or(FetchError::Malformed)?;
    report_adapters(shared, member, &text);
    Ok(gauges)
}

/// Reports which of the configured adapters the engine runs requests with.
fn report_adapters(shared: &FleetContext, member: &MonitoredReplica, text: &str) {
    let target = &member.target;
    let read = target.engine().adapters.filter(|_| !target.adapters.is_empty() && !member.is_ended());
    let Some(loras) = read.and_then(|read| read(text)) else { return };
    let known = target.adapters.iter().filter(|(name, _)| loras.running.contains(name));
    let running = known.map(|(_, id)| *id).collect();
    shared.dispatcher.event(Event::AdaptersReported { replica: target.replica, slots: loras.slots, running });
}

/// Stores the result of a scrape that began at `began`. Returns true on the first success after a
/// failure.
fn store_scrape(
    shared: &FleetContext,
    member: &MonitoredReplica,
    began: Instant,
    result: Result<EngineGauges, FetchError>,
) -> bool {
    let (replica, telemetry) = (member.target.replica, &shared.telemetry);
    let mut status = member.cell.lock();
    let before = status.failures;
    match result {
        Ok(mut gauges) => {
            let slept = status.gauges.asleep.unwrap_or(false);
            if !status.sleep_orders.settled_before(began) {
                gauges.asleep = status.gauges.asleep;
            }
            status.gauges = gauges;
            status.gauges_at = Some(Instant::now());
            status.unread_since = None;
            status.failures = 0;
            status.problem = None;
            drop(status);
            if before > 0 {
                ScrapeRecovered { replica }.emit(telemetry);
            }
            match (slept, gauges.asleep.unwrap_or(false)) {
                (false, true) => SleepStateChanged { replica, asleep: true }.emit(telemetry),
                (true, false) => SleepStateChanged { replica, asleep: false }.emit(telemetry),
                _ => {}
            }
            before > 0
        }
        Err(why) => {
            let times = before.saturating_add(1);
            status.failures = times;
            if status.gauges_at.is_none() {
                status.unread_since.get_or_insert(began);
            }
            status.problem = Some(why);
            drop(status);
            ScrapeFailed { replica, problem: &why.to_string(), first: times == 1 }.emit(telemetry);
            false
        }
    }
}

/// Reads all info documents, or none: a part would erase the values of the missing documents. A
/// document that the engine does not have is no failure.
async fn fetch_info(shared: &FleetContext, member: &MonitoredReplica) -> Result<ModelInfo, FetchError> {
    let target = &member.target;
    let mut info = ModelInfo::default();
    for doc in target.engine().info {
        let url = target.url(doc.path);
        match member.fetcher.get(&url, target.key.as_ref(), shared.timing.scrape_timeout).await {
            Ok(body) => (doc.read)(&body, &mut info).map_err(|_| FetchError::Malformed)?,
            Err(FetchError::Status(404 | 405 | 501)) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(info)
}

/// Stores the model info. Returns true when the info has something to report.
fn store_info(
    shared: &FleetContext,
    member: &MonitoredReplica,
    result: Result<ModelInfo, FetchError>,
) -> bool {
    let replica = member.target.replica;
    let Ok(info) = result.map(Arc::new) else { return false };
    let missing: Arc<[String]> = missing_models(&member.target, &info).into();
    let before = {
        let mut status = member.cell.lock();
        status.info = Some(Arc::clone(&info));
        std::mem::replace(&mut status.missing, Arc::clone(&missing))
    };
    if missing != before {
        let served: Vec<String> = info.names.iter().map(|served| served.name.clone()).collect();
        for expected in missing.iter() {
            ModelMismatch { replica, expected, served: &served }.emit(&shared.telemetry);
        }
    }
    info.max_model_len.is_some() || info.slots.is_some()
}

/// Configured names that the engine does not list. Empty when the engine also serves names that it
/// does not list.
fn missing_models(target: &ReplicaTarget, info: &ModelInfo) -> Vec<String> {
    if !target.engine().can(Ability::ListAllNames) || info.names.is_empty() {
        return Vec::new();
    }
    let listed = |name: &String| info.names.iter().any(|served| served.name == *name);
    target.models.iter().filter(|name| !listed(name)).cloned().collect()
}
