//! One copy, from its ticket to its end.

use std::future::poll_fn;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::timeout;

use crate::config::settings::identity::Grant;
use crate::core::event::{Fault, Outcome, RejectReason};
use crate::core::job::Usage;
use crate::proxy::attempt::{Attempt, Tries};
use crate::proxy::auth::Identity;
use crate::proxy::gate::{Placement, Ticket};
use crate::proxy::handler::{Proxy, place};
use crate::proxy::order::Order;
use crate::proxy::record::Record;
use crate::proxy::resets::MOST_SENDS;
use crate::proxy::shadow::Half;
use crate::proxy::stream::{EngineStream, Step};
use crate::telemetry::event::{RequestOutcome, ShadowSkipped};
use crate::wire::error::ApiError;
use crate::wire::judge::refusal::EngineError;

/// A copy on its way.
#[derive(Debug)]
pub(super) struct Copy {
    pub(super) proxy: Arc<Proxy>,
    pub(super) order: Order,
    pub(super) headers: HeaderMap,
    pub(super) request_id: HeaderValue,
    pub(super) half: Half,
    pub(super) skipped: ShadowSkipped,
}

/// Why a copy was dropped, as a stable code.
type Dropped = &'static str;

impl Copy {
    /// Sends it, and reads its answer to the end, unless somebody needs its
    /// place or the gateway shuts down.
    pub(super) async fn run(self) {
        let Self { proxy, order, headers, request_id, half, skipped } = self;
        let settings = proxy.settings.load_full();
        let prefix = proxy.prefixes.of(order.spec.model, &order.peek, &order.body, order.spec.prompt_tokens);
        let mut ticket = proxy.gate.admit(order.spec, prefix, &settings.policy);
        let placement = match ticket.placed().await {
            Ok(placement) => placement,
            Err(rejection) => {
                let reason = rejection.reason.name();
                return ShadowSkipped { reason, ..skipped }.emit(&proxy.telemetry);
            }
        };
        // The record is told of the ticket's end, so it goes after it.
        let (mut record, mut ticket) = (record(&proxy, &order, request_id, half), ticket);
        record.bills.push(ticket.bills());
        let dropped = tokio::select! {
            biased;
            () = proxy.grace.began() => Some(RejectReason::Draining.name()),
            dropped = answer(&proxy, &order, &headers, (&mut ticket, placement), &mut record) => dropped,
        };
        if let Some(reason) = dropped {
            record.half = None;
            record.ended(RequestOutcome::ClientGone, reason);
            ShadowSkipped { reason, ..skipped }.emit(&proxy.telemetry);
        }
    }
}

fn record(proxy: &Proxy, order: &Order, request_id: HeaderValue, half: Half) -> Record {
    let mut record = Record::new(&proxy.telemetry, proxy.gate.clock(), request_id, order.api);
    record.journal.clone_from(&proxy.journal);
    record.identity =
        Some(Identity { tenant: order.spec.tenant, key_id: None, grant: Grant::whole(order.spec.tenant) });
    record.class = Some(order.spec.class);
    record.model = Some(order.spec.model);
    record.requested_model.clone_from(&order.peek.model);
    record.stream = order.peek.stream;
    record.half = Some(half);
    record
}

/// Whether and why it was dropped before its end. One try is all that it gets.
async fn answer(
    proxy: &Proxy,
    order: &Order,
    headers: &HeaderMap,
    (ticket, placement): (&mut Ticket, Placement),
    record: &mut Record,
) -> Option<Dropped> {
    let settings = proxy.settings.load_full();
    let place = place(&settings, placement);
    record.sent(place);
    let (upstreams, paces, answers) = (&proxy.upstreams, &*proxy.paces, &proxy.answers);
    let tries = Tries { upstreams, paces, answers, order, headers, so_far: None };
    let attempt = tokio::select! {
        biased;
        why = ticket.recalled() => return Some(why.name()),
        attempt = tries.at(&settings, place, MOST_SENDS, record) => attempt,
    };
    match attempt {
        Attempt::Stream { stream, whole, .. } if ticket.first_token() => {
            record.status = StatusCode::OK.as_u16();
            record.token_came();
            return rest(proxy, stream, whole, ticket, record).await;
        }
        Attempt::Answer { status, usage, .. } if ticket.finish(Outcome::Done(usage)) => {
            record.status = status.as_u16();
            record.engine = Some(record.clock.now().since(record.sent_at.unwrap_or(record.started)));
            record.succeeded(usage);
        }
        Attempt::Refused(error, usage) if ticket.finish(Outcome::Done(usage)) => {
            refused(&error, usage, record);
        }
        Attempt::Failed(fault, usage) if ticket.failed_unseen(fault, usage) => {
            failed(fault, usage, record);
        }
        // It came too late: its place had been taken.
        _ => return Some(ticket.recalled().await.name()),
    }
    None
}

/// Reads a stream to its end.
async fn rest(
    proxy: &Proxy,
    mut stream: Box<EngineStream>,
    whole: Option<Usage>,
    ticket: &mut Ticket,
    record: &mut Record,
) -> Option<Dropped> {
    if let Some(usage) = whole {
        ticket.finish(Outcome::Done(usage));
        record.succeeded(usage);
        return None;
    }
    let patience = proxy.settings.load().edge.upstream.stream_idle_timeout;
    loop {
        while stream.next_out().is_some() {}
        let usage = stream.usage_so_far();
        ticket.note_usage(usage);
        record.usage = Some(usage);
        let step = tokio::select! {
            biased;
            why = ticket.recalled() => return Some(why.name()),
            step = timeout(patience, poll_fn(|cx| stream.poll_step(cx))) => step,
        };
        let silent = Step::Failed(EngineError::Fault(Fault::Silent), usage);
        match step.unwrap_or(silent) {
            Step::More => record.gaps.piece(record.clock.now()),
            Step::KeepAlive => {}
            Step::Complete(usage) => {
                ticket.finish(Outcome::Done(usage));
                record.succeeded(usage);
                return None;
            }
            Step::Failed(EngineError::Fault(fault), usage) => {
                ticket.finish(Outcome::Failed { fault, usage });
                failed(fault, usage, record);
                return None;
            }
            Step::Failed(EngineError::Client(error), usage) => {
                ticket.finish(Outcome::Done(usage));
                refused(&error, usage, record);
                return None;
            }
        }
    }
}

fn failed(fault: Fault, usage: Usage, record: &mut Record) {
    record.usage = Some(usage);
    record.status = StatusCode::BAD_GATEWAY.as_u16();
    record.ended(RequestOutcome::Failed, fault.name());
}

fn refused(error: &ApiError, usage: Usage, record: &mut Record) {
    record.usage = Some(usage);
    record.status = error.kind().status(record.api.dialect()).as_u16();
    record.ended(RequestOutcome::ClientError, error.kind().code());
}
