//! Soak stage: gateways, engines, services and clients of a run, and each trouble as it is made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use penstock::sim::engine::profile::StepProfile;
use rustix::process::Resource;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::SoakArgs;
use super::balancer::Balancer;
use super::gateway::{Program, SoakGateway};
use super::report::{Happened, Remains, Report, Setting};
use super::services::{JsonService, Mood, NameServer, cluster, identity};
use super::trouble::{Kind, Trouble, Troubles};
use crate::chaos::book::Book;
use crate::chaos::fleet::Fleet;
use crate::chaos::load::{Clients, TENANTS, plan};
use crate::chaos::schedule::Schedule;
use crate::chaos::{MAX_SEQS, QUESTIONS};
use crate::child::Work;
use crate::process;
use crate::target::{Endpoint, bearer};
use crate::template::{Values, fill, keys_for};

const CONFIG: &str = include_str!("../../scenarios/realtime/penstock-soak.yaml");
/// Engines whose speed the simulated ones have.
const PROFILE: &str = "a100-8b";
/// A request that has no answer by then hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two configurations of a trouble.
const BETWEEN_RELOADS: Duration = Duration::from_millis(400);
/// Until a reloaded file is in force: the files' quiet time, and reading.
const RELOADED: Duration = Duration::from_secs(1);
/// Between the start of one gateway and the end of the next, as in a rolling update.
const MIN_READY: Duration = Duration::from_secs(1);
/// How far a wall clock jumps, in seconds.
const JUMPS: [i64; 6] = [90, -90, 3_600, -3_600, 86_400, 30 * 86_400];

/// The services that gateways depend on.
struct Services {
    collector: JsonService,
    identity: JsonService,
    cluster: JsonService,
    names: NameServer,
    database: Option<Balancer>,
}

/// A run that is ready to begin.
pub(super) struct Stage {
    setting: Setting,
    kinds: Vec<Kind>,
    clients: Arc<Clients>,
    fleet: Arc<Fleet>,
    services: Services,
    gateways: Vec<SoakGateway>,
    /// Each gateway's configuration.
    configs: Vec<String>,
    /// Held for as long as the run.
    _balancer: Balancer,
    _work: Work,
}

impl Stage {
    pub(super) async fn new(args: &SoakArgs) -> Result<Self> {
        let work = Work::make("soak", args.keep.as_deref())?;
        let (kinds, left_out) = kinds(args)?;
        let engines = usize::from(args.engines);
        let profile = StepProfile::named(PROFILE).context("the profile is gone")?;
        let book = Book::write(args.seed, QUESTIONS).await?;
        let rate = args.load * engines as f64 * book.capacity(&profile, MAX_SEQS);
        let fleet = Arc::new(Fleet::start(profile, MAX_SEQS, engines).await?);
        let urls = fleet.urls();
        let parts: Vec<&[String]> = urls.chunks(engines.div_ceil(3)).collect();
        let (services, token) = Services::start(args, &parts).await?;
        let keys = keys_for(&TENANTS.map(|(name, _)| name.to_owned()));
        let main = [("main".to_owned(), parts[0].to_vec())].into();
        let program = services.program(args)?;
        let (mut gateways, mut configs) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let gateway = SoakGateway::new(number, &work.path, &program).await?;
            let (admin, folder) = (gateway.admin.address.to_string(), gateway.folder().to_string_lossy());
            let values = Values {
                listen: &gateway.listen,
                admin: &admin,
                folder: &folder,
                engines: &main,
                keys: &keys,
            };
            configs.push(fill(&services.names_in(CONFIG), &values)?);
            gateways.push(gateway);
        }
        let balancer = in_front_of(&gateways).await?;
        let credentials = TENANTS.iter().map(|(name, _)| match *name {
            "app" => bearer(&token),
            name => bearer(&keys[name].text),
        });
        let clients = Arc::new(Clients {
            endpoint: Endpoint::new(&format!("http://{}", balancer.address), "").await?,
            keys: credentials.collect::<Result<_>>()?,
            book,
            patience: PATIENCE,
        });
        let setting = Setting { seed: args.seed, seconds: args.duration as f64, rate, engines, left_out };
        Ok(Self {
            setting,
            kinds,
            clients,
            fleet,
            services,
            gateways,
            configs,
            _balancer: balancer,
            _work: work,
        })
    }

    pub(super) async fn run(mut self, duration: Duration) -> Result<Report> {
        for (gateway, config) in self.gateways.iter_mut().zip(&self.configs) {
            gateway.configure(config)?;
            gateway.start().await?;
        }
        let seed = self.setting.seed;
        let schedule = Schedule::steady(seed, duration, self.setting.engines, 1);
        let mut engine_faults = BTreeMap::new();
        schedule.episodes.iter().for_each(|e| *engine_faults.entry(e.kind.name()).or_default() += 1);
        let start = Instant::now() + Duration::from_millis(200);
        let mut suffering = JoinSet::new();
        for episode in schedule.episodes {
            // None of these faults needs an operator's verb.
            let (fleet, admin) = (Arc::clone(&self.fleet), self.gateways[0].admin.clone());
            suffering.spawn(async move { fleet.suffer(episode, start, &admin).await });
        }
        let planned = plan(seed, self.setting.rate, duration, QUESTIONS);
        let load = tokio::spawn(Arc::clone(&self.clients).run(planned, start));
        let mut troubles = Vec::new();
        for trouble in Troubles::new(seed, &self.kinds, duration) {
            sleep(trouble.rest).await;
            if start.elapsed() + trouble.lasts > duration {
                break;
            }
            let at = start.elapsed().as_secs_f64();
            let what =
                self.make(&trouble).await.with_context(|| format!("{} at {at:.1} s", trouble.kind.name()))?;
            let lasted = start.elapsed().as_secs_f64() - at;
            let (kind, requests, announced, failed) = (trouble.kind, 0, 0, 0);
            troubles.push(Happened { kind, at, lasted, what, requests, announced, failed });
            for gateway in &mut self.gateways {
                gateway.alive()?;
            }
        }
        let seen = load.await.context("the load failed inside the client")??;
        while let Some(done) = suffering.join_next().await {
            done.context("a fault failed inside the harness")??;
        }
        let remains = self.remains().await?;
        Ok(Report::new((self.setting, engine_faults), troubles, &self.clients.book, &seen, remains))
    }

    /// What is left after the load.
    async fn remains(&self) -> Result<Remains> {
        let mut remains = Remains {
            rss_kib: self.gateways.iter().map(SoakGateway::rss_kib).collect(),
            ..Remains::default()
        };
        for gateway in &self.gateways {
            remains.leftovers.extend(gateway.leftovers(&self.fleet).await?);
            remains.rows_dropped += gateway.metric("penstock_usage_rows_dropped_total").await?;
            // The journal's thread gathers rows for a moment.
            sleep(Duration::from_millis(500)).await;
            for (request, count) in gateway.usage_rows()? {
                *remains.rows.entry(request).or_default() += count;
            }
        }
        Ok(remains)
    }

    /// Lets a trouble begin and mends it. What happened, for the report.
    async fn make(&mut self, trouble: &Trouble) -> Result<String> {
        let hit = (trouble.draw % 2) as usize;
        let worse = trouble.draw & 2 != 0;
        match trouble.kind {
            Kind::DiskFull => self.fill_disk(hit, trouble.lasts).await,
            Kind::Descriptors => self.exhaust(hit, trouble).await,
            Kind::Restart => self.restart().await,
            Kind::Reload => self.reload(hit, trouble.lasts).await,
            Kind::Database => {
                let link = self.services.database.as_ref().context("there is no database")?;
                link.cut(true);
                sleep(trouble.lasts).await;
                link.cut(false);
                Ok("away".to_owned())
            }
            Kind::Collector => gone(&self.services.collector, worse, trouble.lasts).await,
            Kind::Identity => gone(&self.services.identity, worse, trouble.lasts).await,
            Kind::Cluster => gone(&self.services.cluster, worse, trouble.lasts).await,
            Kind::Names => {
                self.services.names.set(if worse { Mood::Failing } else { Mood::Away });
                sleep(trouble.lasts).await;
                self.services.names.set(Mood::Well);
                Ok(if worse { "fails" } else { "away" }.to_owned())
            }
            Kind::Clock => {
                let seconds = JUMPS[(trouble.draw >> 2) as usize % JUMPS.len()];
                self.gateways[hit].set_clock(seconds)?;
                sleep(trouble.lasts).await;
                self.gateways[hit].set_clock(0)?;
                Ok(format!("gateway {hit}: {seconds:+} s, and back"))
            }
        }
    }

    async fn fill_disk(&self, hit: usize, lasts: Duration) -> Result<String> {
        let gateway = &self.gateways[hit];
        gateway.limit(Resource::Fsize, Some(0))?;
        sleep(lasts / 2).await;
        let key = gateway.make_key().await?;
        sleep(lasts / 2).await;
        gateway.limit(Resource::Fsize, None)?;
        ensure!(!key, "gateway {hit} says that it wrote a key to a full disk");
        let end = Instant::now() + Duration::from_secs(10);
        while !gateway.make_key().await? {
            ensure!(Instant::now() < end, "gateway {hit} makes no key after the disk has room again");
            sleep(Duration::from_millis(200)).await;
        }
        let dropped = gateway.metric("penstock_usage_rows_dropped_total").await?;
        Ok(format!("gateway {hit}: no key meanwhile, one afterwards; {dropped} usage rows dropped so far"))
    }

    async fn exhaust(&self, hit: usize, trouble: &Trouble) -> Result<String> {
        let gateway = &self.gateways[hit];
        let (open, few) = (gateway.files(), trouble.draw >> 2 & 7);
        let before = gateway.metric("penstock_ejections_total").await?;
        gateway.limit(Resource::Nofile, Some(open as u64 + few))?;
        sleep(trouble.lasts).await;
        gateway.limit(Resource::Nofile, None)?;
        let ejected = gateway.metric("penstock_ejections_total").await? - before;
        Ok(format!("gateway {hit}: {open} open and {few} more allowed; {ejected} ejections"))
    }

    async fn restart(&mut self) -> Result<String> {
        let mut ends = Vec::new();
        for gateway in &mut self.gateways {
            let (code, took) = gateway.restart().await?;
            ensure!(code == Some(0), "gateway {} ended with {code:?}", gateway.number);
            ends.push(format!("gateway {} drained {:.1} s", gateway.number, took.as_secs_f64()));
            sleep(MIN_READY).await;
        }
        Ok(ends.join(", "))
    }

    async fn reload(&self, hit: usize, lasts: Duration) -> Result<String> {
        let (gateway, good) = (&self.gateways[hit], &self.configs[hit]);
        let end = Instant::now() + lasts;
        let mut files = 0_u32;
        while Instant::now() < end {
            let text = match files % 3 {
                0 => good.replace("chat: {", &format!("chat: {{weight: {}, ", 2 + files % 5)),
                1 => good.replace("max_seqs: 16", &format!("max_seqs: {}", 15 - files % 4)),
                _ => good.replace("pools:", "pols:"),
            };
            gateway.configure(&text)?;
            files += 1;
            sleep(BETWEEN_RELOADS).await;
        }
        gateway.configure(good)?;
        sleep(RELOADED).await;
        let generation = gateway.metric("penstock_config_generation").await?;
        Ok(format!("gateway {hit}: {files} files, every third one broken; generation {generation}"))
    }
}

impl Services {
    /// Starts them. `parts` are the URLs of engines: listed, in DNS, in Kubernetes. Also a token of the
    /// identity provider.
    async fn start(args: &SoakArgs, parts: &[&[String]]) -> Result<(Self, String)> {
        let ports = |part: usize| -> Vec<u16> {
            let part = parts.get(part).copied().unwrap_or_default();
            part.iter().filter_map(|url| url.rsplit(':').next()?.trim_end_matches('/').parse().ok()).collect()
        };
        let (identity, token) = identity().await?;
        let database = match &args.postgres {
            Some(url) => Some(Balancer::start(&[database_of(url)?.1]).await?),
            None => None,
        };
        let collector = JsonService::start(|_| Some(serde_json::json!({}))).await?;
        let (cluster, names) = (cluster(&ports(2)).await?, NameServer::start(ports(1)).await?);
        Ok((Self { collector, identity, cluster, names, database }, token))
    }

    /// What each gateway is started with.
    fn program(&self, args: &SoakArgs) -> Result<Program> {
        let path = process::gateway_program(args.penstock.as_deref())?;
        let database = match (&args.postgres, &self.database) {
            (Some(url), Some(link)) => Some(url.replace(&database_of(url)?.0, &link.address.to_string())),
            _ => None,
        };
        Ok(Program { path, faketime: args.faketime(), database })
    }

    /// The configuration with the addresses of the services in it.
    fn names_in(&self, config: &str) -> String {
        let database = match &self.database {
            Some(_) => "database: postgres, postgres: {url: {env: PENSTOCK_SOAK_DATABASE}}",
            None => "database: sqlite",
        };
        let mut text = config.replace("{{database}}", database);
        for (place, address) in [
            ("{{collector}}", self.collector.address),
            ("{{identity}}", self.identity.address),
            ("{{cluster}}", self.cluster.address),
            ("{{names}}", self.names.address),
        ] {
            text = text.replace(place, &address.to_string());
        }
        text
    }
}

/// The balancer, which follows the gateways' readiness.
async fn in_front_of(gateways: &[SoakGateway]) -> Result<Balancer> {
    let listeners = gateways.iter().map(|gateway| gateway.listen.parse().context("an address"));
    let mut balancer = Balancer::start(&listeners.collect::<Result<Vec<_>>>()?).await?;
    for gateway in gateways {
        balancer.follow(gateway.number, gateway.admin.clone().with_path("/readyz")?);
    }
    Ok(balancer)
}

/// The kinds of trouble of a run, and those that cannot be made.
fn kinds(args: &SoakArgs) -> Result<(Vec<Kind>, Vec<String>)> {
    let named =
        |kind: &Kind| serde_json::to_value(kind).ok().and_then(|name| Some(name.as_str()?.to_owned()));
    let known: Vec<String> = Kind::ALL.iter().filter_map(named).collect();
    for name in &args.only {
        ensure!(known.contains(name), "--only {name}: there are {}", known.join(", "));
    }
    let mut left_out = Vec::new();
    let mut kinds = Kind::ALL.to_vec();
    kinds.retain(|kind| args.only.is_empty() || named(kind).is_some_and(|name| args.only.contains(&name)));
    kinds.retain(|kind| {
        let missing = match kind {
            Kind::Database if args.postgres.is_none() => "--postgres names no server",
            Kind::Clock if args.faketime().is_none() => "libfaketime is not installed",
            _ => return true,
        };
        left_out.push(format!("{}: {missing}", kind.name()));
        false
    });
    Ok((kinds, left_out))
}

/// The host and port in a URL of PostgreSQL, and its address.
fn database_of(url: &str) -> Result<(String, std::net::SocketAddr)> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split(['/', '?']).next().unwrap_or_default();
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    let address = place.parse().with_context(|| format!("--postgres: {place} is not ADDRESS:PORT"))?;
    Ok((place.to_owned(), address))
}

/// A service is away, or silent, for a time.
async fn gone(service: &JsonService, silent: bool, lasts: Duration) -> Result<String> {
    if silent {
        service.fall_silent();
    } else {
        service.go_away();
    }
    sleep(lasts).await;
    service.come_back().await?;
    Ok(if silent { "silent" } else { "away" }.to_owned())
}
