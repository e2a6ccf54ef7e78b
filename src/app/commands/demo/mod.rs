//! `penstock demo`: a gateway and a simulated fleet in one process.

pub(in crate::app) mod load;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::app::commands::replay;
use crate::app::gateway::signals;
use crate::app::gateway::{self, Gateway};
use crate::app::terminal::has_colour;
use crate::cli::DemoArgs;
use crate::config::keys::{self, NewKey};
use crate::config::settings::{AddressForm, LogFormat, OtlpSettings, TelemetrySettings};
use crate::protocol::ids::random;
use crate::sim::engine::profile::StepProfile;
use crate::sim::server::{SimHandle, SimOptions, SimServer};
use crate::telemetry::Telemetry;
use crate::telemetry::log::{self, LogError, LogGuard};

/// The public model that every tenant may use.
const MODEL: &str = "llama-3-8b";

/// One pool of the demo's fleet.
struct DemoPool {
    name: &'static str,
    profile: &'static str,
    replicas: usize,
    max_seqs: u32,
}

const POOLS: [DemoPool; 2] = [
    DemoPool { name: "h100", profile: "h100-8b", replicas: 2, max_seqs: 20 },
    DemoPool { name: "a10", profile: "a10-8b", replicas: 1, max_seqs: 4 },
];

/// Tenant of the demo. The first class is the tenant's default.
#[derive(Debug)]
struct DemoTenant {
    name: &'static str,
    weight: u32,
    classes: &'static [&'static str],
    key: NewKey,
}

fn tenants() -> [DemoTenant; 3] {
    let tenant =
        |name, weight, classes| DemoTenant { name, weight, classes, key: keys::new(&random::bytes()) };
    [
        tenant("chat", 3, &["interactive", "standard"]),
        tenant("search", 2, &["standard", "interactive", "batch"]),
        tenant("reports", 1, &["batch", "standard"]),
    ]
}

/// Sets the log to warnings only, because the demo prints its own text.
///
/// # Errors
/// Logging is set up already.
pub(in crate::app) fn quiet_log() -> Result<LogGuard, LogError> {
    let settings = TelemetrySettings {
        log_format: LogFormat::Text,
        log_level: "warn".to_owned(),
        client_address: AddressForm::default(),
        refusals_per_second: 10,
        otlp: OtlpSettings::default(),
    };
    log::init(&settings, has_colour())
}

/// Runs until Ctrl-C or SIGTERM, then drains.
///
/// # Errors
/// An address is taken, or the configuration cannot be written.
pub(in crate::app) async fn run(args: DemoArgs) -> anyhow::Result<()> {
    let mut shutdown = signals::OsSignals::listen()?;
    let folder = DemoFolder::make()?;
    let (fleet, pools) = start_fleet().await?;
    let tenants = tenants();
    let path = folder.0.join("penstock.yaml");
    let text = config(&args, &tenants, &pools);
    std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    let reloader = gateway::load(path.clone()).map_err(|report| anyhow::anyhow!("{report}"))?;
    let telemetry = Telemetry::new(&reloader.current().load().startup.telemetry)?;
    let record = replay::record_options(&args.record)?;
    let gateway = Gateway::start_recorded(reloader, telemetry, record)
        .await
        .context("the demo cannot start (--listen, --admin and --scale choose other addresses)")?;

    println!("{}", greeting(&gateway, &tenants, &path));
    let traffic = args.load.then(|| load::start(gateway.address(), MODEL, clients(&tenants)));
    let signal = shutdown.next().await;
    println!("\n{signal}: draining (a second one stops at once)");
    drop(traffic);
    gateway.drain_or_abort(shutdown).await;
    for engine in fleet {
        engine.stop().await;
    }
    println!("drained");
    Ok(())
}

/// Folder of the demo's own, removed at the end.
struct DemoFolder(PathBuf);

impl DemoFolder {
    fn make() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("penstock-demo-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for DemoFolder {
    fn drop(&mut self) {
        // A file left behind in the temporary folder does no harm.
        let _left = std::fs::remove_dir_all(&self.0);
    }
}

fn clients(tenants: &[DemoTenant]) -> impl Iterator<Item = load::DemoClients> {
    tenants.iter().map(|tenant| load::DemoClients { key: tenant.key.text.clone(), classes: tenant.classes })
}

/// Starts the engines. Returns them with the `pools` section that describes them.
async fn start_fleet() -> anyhow::Result<(Vec<SimHandle>, String)> {
    let mut engines = Vec::new();
    let mut section = String::from("pools:\n");
    for pool in &POOLS {
        let DemoPool { name, max_seqs, .. } = pool;
        let profile = StepProfile::named(pool.profile).context("the demo's profiles are built in")?;
        write!(
            section,
            "  {name}:\n    engine: vllm\n    models: [{MODEL}]\n    max_seqs: {max_seqs}\n    replicas:\n"
        )?;
        for _ in 0..pool.replicas {
            let mut options = SimOptions { models: vec![MODEL.to_owned()], profile, ..SimOptions::default() };
            options.engine.max_seqs = Some(*max_seqs);
            let engine = SimServer::start(options).await.context("start a simulated engine")?;
            writeln!(section, "      - {}", engine.url())?;
            engines.push(engine);
        }
    }
    Ok((engines, section))
}

fn config(args: &DemoArgs, tenants: &[DemoTenant], pools: &str) -> String {
    let mut text = format!(
        "# The demo's configuration. Edit it while the demo runs: it is watched.\nversion: 1\n\
         server: {{listen: \"{}\", admin: \"{}\"}}\nscale: {{listen: \"{}\"}}\ntenants:\n",
        args.listen, args.admin, args.scale
    );
    for DemoTenant { name, weight, classes, key } in tenants {
        let (default, classes) = (classes[0], classes.join(", "));
        let _infallible = write!(
            text,
            "  {name}:\n    weight: {weight}\n    default_class: {default}\n    classes: [{classes}]\n    \
             keys:\n      - {{id: {}, digest: \"{}\"}}\n",
            key.id, key.digest
        );
    }
    text + pools
}

fn greeting(gateway: &Gateway, tenants: &[DemoTenant], config: &Path) -> String {
    let data = format!("http://{}", gateway.address());
    let base = format!("{data}/v1");
    let admin = gateway.admin_address();
    let scale = gateway.scale_address().map_or_else(String::new, |address| address.to_string());
    let replicas: usize = POOLS.iter().map(|pool| pool.replicas).sum();
    let mut keys = String::new();
    for DemoTenant { name, weight, classes, key } in tenants {
        let _infallible =
            writeln!(keys, "  {name:<8} weight {weight}  {:<32} {}", classes.join(", "), key.text);
    }
    let key = &tenants[0].key.text;
    format!(
        "Penstock demo: {replicas} simulated engines in {} pools, model {MODEL}

base URL  {base}
admin     http://{admin}  (/metrics, /admin/v1/queues, /admin/v1/replicas)
console   http://{admin}/console  (web pages for operators; on a terminal: penstock top)
own use   {data}/me  (web page for a tenant; asks for a key of those below)
scaler    {scale}  (KEDA's external scaler, gRPC)  pool={}
config    {}  (edit it: changes take effect at once)

tenants   (first class = default)
{keys}
with curl:
  curl -sN {base}/chat/completions -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{{\"model\":\"{MODEL}\",\"stream\":true,\"max_tokens\":20,\"messages\":[{{\"role\":\"user\",\"content\":\"hello\"}}]}}'

with Python (pip install openai):
  python3 -c 'from openai import OpenAI; print(OpenAI(base_url=\"{base}\", api_key=\"{key}\").chat.completions.create(model=\"{MODEL}\", max_tokens=20, messages=[{{\"role\": \"user\", \"content\": \"hello\"}}]).choices[0].message.content)'

Ctrl-C drains and ends.",
        POOLS.len(),
        POOLS[0].name,
        config.display(),
    )
}
