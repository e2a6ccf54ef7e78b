//! Overload stage: the gateway, its engines and the parts of a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http2;
use hyper::header::HeaderValue;
use hyper_util::rt::{TokioExecutor, TokioIo};
use penstock::config::keys::NewKey;
use penstock::sim::engine::profile::StepProfile;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::OverloadArgs;
use super::crowd::{Ended, Sender, send};
use super::hostile::{Victim, attack};
use super::report::{Mark, Report};
use crate::chaos::book::Book;
use crate::chaos::call::ask;
use crate::chaos::fleet::Fleet;
use crate::chaos::{MAX_SEQS, leftovers, ready};
use crate::child::{Child, Work, free_port};
use crate::client::fetch;
use crate::process::{self, pss_kib, raise_open_files};
use crate::target::{Endpoint, bearer};
use crate::template::{Values, fill, keys_for};

const CONFIG: &str = include_str!("../../scenarios/realtime/penstock-overload.yaml");
/// Tenants with a part of their own; the others are the crowd.
const WATCHED: [&str; 4] = ["fair", "greedy", "hostile", "waiting"];
/// Share of what all engines can do that the tenant asks for which must not notice.
const FAIR_SHARE: f64 = 0.1;
/// The interactive class' objective, in the configuration.
const TTFT_MS: f64 = 1000.0;
/// Open files for the clients, and for the gateway, which inherits the limit.
const OPEN_FILES: usize = 16_000;
/// Requests on one HTTP/2 connection.
const STREAMS: usize = 100;
/// Requests of the tenant in its share beside the queue, one after the other.
const PROBES: usize = 20;
/// Growth of memory over the second half, as a ratio.
const FLAT: f64 = 1.1;

/// A run that is ready to begin.
pub(super) struct Stage {
    listen: Endpoint,
    admin: Endpoint,
    book: Arc<Book>,
    fleet: Fleet,
    capacity: f64,
    keys: BTreeMap<String, NewKey>,
    child: Child,
    _work: Work,
}

impl Stage {
    pub(super) async fn start(args: &OverloadArgs) -> Result<Self> {
        raise_open_files(OPEN_FILES)?;
        let work = Work::make("overload", args.keep.as_deref())?;
        let profile = StepProfile::named("a100-8b").context("the profile is gone")?;
        let engines = usize::from(args.engines);
        let book = Arc::new(Book::write(args.seed, 100).await?);
        let fleet = Fleet::start(profile, MAX_SEQS, engines).await?;
        let names: Vec<String> = WATCHED
            .map(str::to_owned)
            .into_iter()
            .chain((0..args.tenants).map(|n| format!("t{n}")))
            .collect();
        let keys = keys_for(&names);
        let [listen, admin] = [free_port()?, free_port()?];
        let group = [("main".to_owned(), fleet.urls())].into();
        let values = Values { listen: &listen, admin: &admin, folder: "", engines: &group, keys: &keys };
        let mut text = fill(CONFIG, &values)?;
        for name in &names[WATCHED.len()..] {
            let NewKey { id, digest, .. } = &keys[name];
            writeln!(text, "  {name}: {{keys: [{{id: {id}, digest: \"{digest}\"}}]}}")?;
        }
        let config: PathBuf = work.path.join("penstock.yaml");
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let program = process::gateway_program(args.penstock.as_deref())?;
        let mut command = Command::new(program);
        let child = Child::start("penstock", command.arg("serve").arg("--config").arg(&config), &work.path)?;
        let admin = Endpoint::new(&format!("http://{admin}"), "").await?;
        ready(&admin).await?;
        Ok(Self {
            listen: Endpoint::new(&format!("http://{listen}"), "").await?,
            capacity: engines as f64 * book.capacity(&profile, MAX_SEQS),
            admin,
            book,
            fleet,
            keys,
            child,
            _work: work,
        })
    }

    pub(super) async fn run(mut self, args: &OverloadArgs) -> Result<Report> {
        let before = self.probe().await?;
        let (mut ends, memory) = self.overload(args).await?;
        let left = Instant::now();
        let recovery = self.recover(left, before).await?;
        let refusals = refusal_times(&self.child.printed());
        let (queued, during) = self.queue(args.queued).await?;
        let leftovers = leftovers(&self.admin, &self.fleet).await?;
        self.child.alive()?;
        let fair = ends.remove("fair").unwrap_or_default();
        let second_half = &memory[memory.len() / 2..];
        let growth = (second_half.len() >= 4).then(|| {
            let (early, late) = second_half.split_at(second_half.len() / 2);
            let mean = |part: &[u64]| part.iter().sum::<u64>() as f64 / part.len() as f64;
            mean(late) / mean(early)
        });
        let all = ends.into_values().flatten().chain(fair.iter().map(|(_, text)| (None, text.clone())));
        let mut counts = BTreeMap::new();
        all.for_each(|(_, text)| *counts.entry(text).or_default() += 1);
        for what in &leftovers {
            *counts.entry(format!("left over: {what}")).or_default() += 1;
        }
        let times: Vec<f64> = fair.iter().map(|(time, _)| time.unwrap_or(f64::INFINITY)).collect();
        let marks = vec![
            Mark::most("in-share tenant's first token, p99", quantile(times, 0.99), TTFT_MS, "ms"),
            Mark::most("memory, late over early second half", growth, FLAT, ""),
            Mark::most("refusals in the gateway, p99", quantile(refusals, 0.99), 5.0, "ms"),
            Mark::most("recovery", recovery, 2.0, "s"),
            Mark::least("waiting at once", Some(queued), args.queued as f64, ""),
            Mark::most("first token beside them, p99", quantile(during, 0.99), TTFT_MS, "ms"),
            Mark::most("things left over", Some(leftovers.len() as f64), 0.0, ""),
        ];
        Ok(Report {
            seed: args.seed,
            seconds: args.duration as f64,
            rate: args.factor * self.capacity,
            capacity: self.capacity,
            tenants: args.tenants + WATCHED.len() as u32,
            marks,
            ends: counts,
            memory_kib: memory,
        })
    }

    fn key(&self, name: &str) -> Result<HeaderValue> {
        bearer(&self.keys[name].text)
    }

    /// The load, and memory meanwhile. Requests by sender: the time to the first token in ms, and how
    /// each ended.
    async fn overload(
        &self,
        args: &OverloadArgs,
    ) -> Result<(BTreeMap<&'static str, Vec<(Option<f64>, String)>>, Vec<u64>)> {
        let (fair, greedy) = (FAIR_SHARE * self.capacity, self.capacity);
        let rest = args.factor * self.capacity - fair - greedy;
        let crowd: Vec<HeaderValue> =
            (0..args.tenants).map(|n| self.key(&format!("t{n}"))).collect::<Result<_>>()?;
        let crowd: Arc<[HeaderValue]> = crowd.into();
        let one = |name: &str| Ok::<Arc<[HeaderValue]>, anyhow::Error>(Arc::new([self.key(name)?]));
        let senders = [
            Sender { name: "fair", class: "interactive", rate: fair, keys: one("fair")? },
            Sender { name: "greedy", class: "interactive", rate: greedy, keys: one("greedy")? },
            Sender { name: "crowd, standard", class: "standard", rate: rest * 0.5, keys: Arc::clone(&crowd) },
            Sender { name: "crowd, batch", class: "batch", rate: rest * 0.5, keys: crowd },
        ];
        let (sender, receiver) = unbounded_channel();
        let start = Instant::now();
        let mut sending = JoinSet::new();
        for part in senders {
            let target = (self.listen.clone(), Arc::clone(&self.book));
            sending.spawn(send(part, target, args.seed, start, sender.clone()));
        }
        drop(sender);
        let key = self.keys["hostile"].text.clone();
        let attackers = attack(&Victim { address: self.listen.address, key });
        let mut memory = Vec::new();
        for second in 1..=args.duration {
            tokio::time::sleep_until(start + Duration::from_secs(second)).await;
            memory.push(pss_kib(&[self.child.pid()])?);
        }
        let over = start.elapsed();
        drop(attackers);
        sending.shutdown().await;
        Ok((collect(receiver, over), memory))
    }

    /// One request of the tenant in its share: its time to the first token, absent when it failed.
    async fn probe(&self) -> Result<Option<Duration>> {
        let question = &self.book.questions[0];
        let endpoint = self.listen.clone().with_path(&format!("/v1/{}", question.api.path()))?;
        let now = Instant::now();
        let request = endpoint.request(Some(&self.key("fair")?), question.body(true));
        Ok(ask(&endpoint, request, now, now + Duration::from_secs(60)).await.first_token)
    }

    /// Seconds since `left` until nothing else is in the gateway and a request is served as before.
    async fn recover(&self, left: Instant, before: Option<Duration>) -> Result<Option<f64>> {
        let usual = before.context("the gateway does not serve at rest")?;
        while left.elapsed() < Duration::from_secs(60) {
            let begun = left.elapsed();
            if self.jobs().await? == 0
                && self.probe().await?.is_some_and(|time| time <= 2 * usual + Duration::from_millis(50))
            {
                return Ok(Some(begun.as_secs_f64()));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(None)
    }

    async fn jobs(&self) -> Result<u64> {
        let endpoint = self.admin.clone().with_path("/readyz")?;
        fetch(&endpoint, endpoint.get()).await?;
        let endpoint = self.admin.clone().with_path("/admin/v1/status?tenants=0")?;
        let status = serde_json::from_str::<Value>(&fetch(&endpoint, endpoint.get()).await?)?;
        status["jobs"].as_u64().context("the status has no jobs")
    }

    /// Lets so many requests wait at once, and asks as the other tenant meanwhile. How many were
    /// there, and the other's times in ms.
    async fn queue(&self, count: usize) -> Result<(f64, Vec<f64>)> {
        let mut holding = JoinSet::new();
        for _ in 0..count.div_ceil(STREAMS) {
            holding.spawn(hold(
                self.listen.clone(),
                self.key("waiting")?,
                self.book.questions[0].body(false),
            ));
        }
        let (begun, mut most) = (Instant::now(), 0);
        while most < count as u64 && begun.elapsed() < Duration::from_secs(120) {
            sleep(Duration::from_millis(500)).await;
            most = most.max(self.jobs().await?);
        }
        let mut times = Vec::new();
        for _ in 0..PROBES {
            times.push(self.probe().await?.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3));
        }
        holding.shutdown().await;
        Ok((most as f64, times))
    }
}

/// Sends requests on one HTTP/2 connection and waits for their answers.
async fn hold(endpoint: Endpoint, key: HeaderValue, body: Bytes) -> Result<()> {
    let stream = TcpStream::connect(endpoint.address).await?;
    let (sender, connection) =
        http2::handshake::<_, _, Full<Bytes>>(TokioExecutor::new(), TokioIo::new(stream)).await?;
    let endpoint = endpoint.with_path("/v1/chat/completions")?;
    let mut open = JoinSet::new();
    for _ in 0..STREAMS {
        let mut request = endpoint.request(Some(&key), body.clone());
        let uri = format!("http://{}{}", endpoint.address, request.uri());
        *request.uri_mut() = uri.parse()?;
        request.headers_mut().remove("host");
        let mut sender = sender.clone();
        open.spawn(async move {
            let answer = sender.send_request(request).await;
            ensure!(answer.is_ok(), "no answer");
            std::future::pending::<Result<()>>().await
        });
    }
    connection.await?;
    Ok(())
}

fn collect(
    mut ended: UnboundedReceiver<Ended>,
    over: Duration,
) -> BTreeMap<&'static str, Vec<(Option<f64>, String)>> {
    let mut ends: BTreeMap<_, Vec<_>> = BTreeMap::new();
    while let Ok(end) = ended.try_recv() {
        // What was sent in the first tenth met a gateway that had nothing to do.
        if end.at < over / 10 {
            continue;
        }
        let served = end.answer.first_token.filter(|_| end.answer.status == Some(200));
        ends.entry(end.who).or_default().push((served.map(|time| time.as_secs_f64() * 1e3), end.text()));
    }
    ends
}

/// Times in ms that refusals took in the gateway, by its log. Left out: requests that had waited
/// before, and those whose body was long or slow in coming.
fn refusal_times(log: &str) -> Vec<f64> {
    let lines = log.lines().filter(|line| line.contains("request finished"));
    let lines = lines.filter(|line| line.contains("\"rejected\"") || line.contains("\"client_error\""));
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let at_once = lines.filter(|line| {
        let waited = line["reason"].as_str().is_some_and(|reason| reason.starts_with("deadline"));
        !waited && !matches!(line["status"].as_u64(), Some(408 | 413))
    });
    at_once.filter_map(|line| line["total_ms"].as_f64()).collect()
}

/// A quantile of values, none of no values.
fn quantile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let at = (values.len() as f64 * share).ceil() as usize;
    values.get(at.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_refusals() {
        assert_eq!(quantile(vec![], 0.99), None);
        assert_eq!(quantile((1..=100).map(f64::from).collect(), 0.99), Some(99.0));
        let log = "{\"message\":\"request finished\",\"outcome\":\"rejected\",\"reason\":\"queue_full\",\"total_ms\":0.4}\n\
                   {\"message\":\"request finished\",\"outcome\":\"rejected\",\"reason\":\"deadline_exceeded\",\"total_ms\":901.0}\n\
                   {\"message\":\"request finished\",\"outcome\":\"client_error\",\"status\":413,\"total_ms\":60.0}\n\
                   {\"message\":\"request finished\",\"outcome\":\"success\",\"total_ms\":50.0}\n";
        assert_eq!(refusal_times(log), [0.4]);
    }
}
