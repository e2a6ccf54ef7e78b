//! Driver of a replay: every call is sent at its planned instant, whatever the others do. A clock
//! thread hands the calls out. One or more threads, each with a single-threaded runtime, make the
//! calls.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::call::{Caller, Outgoing};
use super::plan::{Plan, Planned};
use super::progress::{Bar, Progress};
use super::prompt::{Prompt, Writer};
use super::record::{Outcome, Record};
use crate::pace;
use crate::target::{Endpoint, bearer};

/// From the start of the threads to the first planned instant.
pub const LEAD: Duration = Duration::from_millis(200);

/// How a plan is run.
#[derive(Debug, Clone)]
pub struct Drive {
    /// Where to.
    pub endpoint: Endpoint,
    /// Makes the bodies.
    pub writer: Writer,
    /// API key of each tenant, in the plan's order.
    pub keys: Vec<Option<String>>,
    /// The header that asks for a class.
    pub class_header: String,
    /// When a call is given up, from its planned instant.
    pub timeout: Duration,
    /// Times a call may be sent again.
    pub retries: u32,
    /// How long after the last planned instant the run ends, with whatever is
    /// still open.
    pub drain: Duration,
    /// Threads that make calls.
    pub clients: usize,
    /// What the progress line is called; absent = no line.
    pub label: Option<String>,
}

/// What all client threads share.
#[derive(Debug)]
struct Shared {
    plan: Arc<Plan>,
    drive: Drive,
    keys: Vec<Option<HeaderValue>>,
    classes: Vec<Option<HeaderValue>>,
    class_header: HeaderName,
    progress: Arc<Progress>,
    start: Instant,
    end: Instant,
}

impl Drive {
    /// Runs the plan to its end, or until `stop` turns true or its sender is
    /// gone; a record for every call, in the plan's order. Blocks.
    ///
    /// # Errors
    /// When a key or class cannot stand in a header, or a thread cannot start.
    pub fn run(self, plan: &Arc<Plan>, stop: &watch::Receiver<bool>) -> Result<Vec<Record>> {
        ensure!(self.keys.len() == plan.tenants.len(), "every tenant needs an entry in the list of keys");
        let classes =
            plan.classes.iter().map(|class| class.as_deref().map(HeaderValue::try_from).transpose());
        let start = Instant::now() + LEAD;
        let last = plan.calls.last().map_or(Duration::ZERO, |call| call.at);
        let progress = Arc::new(Progress::default());
        let bar =
            self.label.clone().map(|label| Bar::start(Arc::clone(&progress), label, plan.calls.len() as u64));
        let shared = Arc::new(Shared {
            keys: self
                .keys
                .iter()
                .map(|key| key.as_deref().map(bearer).transpose())
                .collect::<Result<_>>()?,
            classes: classes.collect::<Result<_, _>>().context("a class cannot stand in a header")?,
            class_header: HeaderName::try_from(&*self.class_header)
                .context("the class header is no header name")?,
            progress,
            start,
            end: start + last + self.drain,
            drive: self,
            plan: Arc::clone(plan),
        });
        let clients: Vec<_> = (0..shared.drive.clients.max(1))
            .map(|client| {
                let (shared, stop) = (Arc::clone(&shared), stop.clone());
                let name = format!("client {client}");
                thread::Builder::new().name(name).spawn(move || client_thread(&shared, client, stop))
            })
            .collect::<Result<_, _>>()
            .context("cannot start a client thread")?;
        let mut records: Vec<Record> =
            shared.plan.calls.iter().map(|call| unfinished(call, &shared)).collect();
        for client in clients {
            let made = client.join().map_err(|_| anyhow!("a client thread failed"))??;
            for (index, record) in made {
                records[index] = record;
            }
        }
        drop(bar);
        Ok(records)
    }
}

/// What stands for a call until it is over.
fn unfinished(call: &Planned, shared: &Shared) -> Record {
    Record {
        at: call.at,
        tenant: call.tenant,
        class: call.class,
        input: call.input,
        output: call.output,
        tokens: 0,
        lag: Duration::ZERO,
        ttft: None,
        last: None,
        total: shared.end.saturating_duration_since(shared.start + call.at),
        outcome: Outcome::Failed("cut at the end of the run".to_owned()),
        retries: 0,
    }
}

type Made = Vec<(usize, Record)>;

fn client_thread(shared: &Arc<Shared>, client: usize, stop: watch::Receiver<bool>) -> Result<Made> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(client_loop(Arc::clone(shared), client, stop))
}

async fn client_loop(shared: Arc<Shared>, client: usize, mut stop: watch::Receiver<bool>) -> Result<Made> {
    let (clients, calls, start) = (shared.drive.clients.max(1), shared.plan.calls.len(), shared.start);
    let planned = Arc::clone(&shared.plan);
    let due = move |index: &usize| start + planned.calls[*index].at;
    let mut due = pace::due((client..calls).step_by(clients), due)?;
    let caller = Arc::new(Caller {
        endpoint: shared.drive.endpoint.clone(),
        class_header: shared.class_header.clone(),
        timeout: shared.drive.timeout,
        retries: shared.drive.retries,
        progress: Arc::clone(&shared.progress),
        idle: std::sync::Mutex::default(),
    });
    let (mut open, mut made) = (JoinSet::new(), Made::new());
    let end = sleep_until(shared.end);
    tokio::pin!(end);
    let mut planning = true;
    while planning || !open.is_empty() {
        tokio::select! {
            biased;
            index = due.recv(), if planning => match index {
                Some(index) => {
                    let (shared, caller) = (Arc::clone(&shared), Arc::clone(&caller));
                    open.spawn(async move { (index, make(&shared, &caller, index).await) });
                }
                None => planning = false,
            },
            Some(ended) = open.join_next() => made.push(ended.context("a call failed inside the client")?),
            () = &mut end => break,
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    Ok(made)
}

async fn make(shared: &Shared, caller: &Caller, index: usize) -> Record {
    let call = &shared.plan.calls[index];
    let prompt =
        Prompt { number: index as u64, input: call.input, output: call.output, prefix: &call.prefix };
    let outgoing = Outgoing {
        body: shared.drive.writer.body(&prompt),
        key: shared.keys[call.tenant].clone(),
        class: shared.classes[call.class].clone(),
        seed: shared.drive.writer.seed ^ index as u64,
    };
    caller.call(outgoing, shared.start + call.at, unfinished(call, shared)).await
}
