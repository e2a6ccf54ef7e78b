//! `loadtest scaler`: the time that a gateway takes to answer KEDA, call by call.
//!
//! Three calls for each poll, one after the other on one connection, as KEDA and
//! the HPA make them.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use hdrhistogram::Histogram;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tonic::transport::{Channel, Endpoint};

use self::wire::external_scaler_client::ExternalScalerClient;
use self::wire::{GetMetricsRequest, ScaledObjectRef};

/// The client's side of KEDA's contract.
#[expect(unreachable_pub, clippy::pedantic, reason = "generated")]
mod wire {
    include!("../../src/scaler/proto/generated/client.rs");
}

/// Arguments of `loadtest scaler`.
#[derive(Debug, Clone, Args)]
pub struct ScalerArgs {
    /// The gateway's `scale.listen`.
    #[arg(long, default_value = "http://127.0.0.1:8082")]
    pub address: String,
    /// The pool to ask for.
    #[arg(long)]
    pub pool: String,
    /// Seconds to ask.
    #[arg(long, default_value_t = 30.0)]
    pub duration: f64,
    /// Milliseconds from poll to poll.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
}

/// One kind of call and its times in microseconds.
struct Row {
    name: &'static str,
    times: Histogram<u64>,
}

/// Runs `loadtest scaler`.
///
/// # Errors
/// No scaler answers there, or it refuses a call.
pub async fn command(args: &ScalerArgs) -> Result<()> {
    let channel = Endpoint::from_shared(args.address.clone())?.connect().await;
    let channel = channel.with_context(|| format!("no scaler at {}", args.address))?;
    let mut client = ExternalScalerClient::new(channel);
    let row = |name| Ok::<_, anyhow::Error>(Row { name, times: Histogram::new_with_max(60_000_000, 3)? });
    let mut rows = [row("GetMetricSpec")?, row("IsActive")?, row("GetMetrics")?];
    let mut every = interval(Duration::from_millis(args.every));
    every.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ends = Instant::now() + Duration::from_secs_f64(args.duration);
    let mut desired = Histogram::<u64>::new(3)?;
    while Instant::now() < ends {
        every.tick().await;
        desired.saturating_record(poll(&mut client, &args.pool, &mut rows).await?);
    }
    println!("{:<14} {:>6} {:>9} {:>9} {:>9}", "", "calls", "p50 ms", "p99 ms", "max ms");
    for Row { name, times } in &rows {
        let [p50, p99, max] = [times.value_at_quantile(0.5), times.value_at_quantile(0.99), times.max()]
            .map(|micros| micros as f64 / 1e3);
        println!("{name:<14} {:>6} {p50:>9.2} {p99:>9.2} {max:>9.2}", times.len());
    }
    println!("{} to {} replicas wanted", desired.min(), desired.max());
    Ok(())
}

/// The three calls; the replicas that are wanted.
async fn poll(client: &mut ExternalScalerClient<Channel>, pool: &str, rows: &mut [Row; 3]) -> Result<u64> {
    let object = ScaledObjectRef {
        name: pool.to_owned(),
        namespace: "default".to_owned(),
        scaler_metadata: HashMap::from([("pool".to_owned(), pool.to_owned())]),
    };
    let begun = Instant::now();
    let specs = client.get_metric_spec(object.clone()).await?.into_inner().metric_specs;
    let specified = Instant::now();
    client.is_active(object.clone()).await?;
    let seen = Instant::now();
    let spec = specs.first().context("no metric")?;
    let request =
        GetMetricsRequest { scaled_object_ref: Some(object), metric_name: spec.metric_name.clone() };
    let values = client.get_metrics(request).await?.into_inner().metric_values;
    let told = Instant::now();
    ensure!(values.len() == 1, "{} values for one metric", values.len());
    for (row, took) in rows.iter_mut().zip([specified - begun, seen - specified, told - seen]) {
        row.times.saturating_record(took.as_micros() as u64);
    }
    Ok(values[0].metric_value_float as u64)
}
