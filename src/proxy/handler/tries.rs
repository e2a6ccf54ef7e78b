//! The tries of one request: it waits for a replica, and goes to the next one
//! after a fault or a recall.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use tokio::time::sleep_until;

use crate::core::event::{Fault, Outcome};
use crate::core::job::Usage;
use crate::core::time::Tick;
use crate::proxy::attempt::{Attempt, Tries};
use crate::proxy::gate::Ticket;
use crate::proxy::order::Order;
use crate::proxy::record::Record;
use crate::proxy::resets::Resets;
use crate::telemetry::trace::Phase;
use crate::wire::error::ApiError;
use crate::wire::judge::so_far::SoFar;

use super::{Answered, Proxy, Unserved, place};

impl Proxy {
    /// Waits for a replica and tries it, until one answers or the scheduler
    /// gives up. `headers` are those of the client that go upstream; `so_far`
    /// is the part of the answer that the client has, where another engine can
    /// go on from it.
    ///
    /// # Errors
    /// Why there is no answer; the job is over.
    pub(in crate::proxy) async fn tries(
        &self,
        order: &Order,
        headers: &HeaderMap,
        so_far: Option<&SoFar>,
        ticket: &mut Ticket,
        record: &mut Record,
    ) -> Result<Answered, Unserved> {
        let (upstreams, paces, answers) = (&self.upstreams, &*self.paces, &self.answers);
        let tries = Tries { upstreams, paces, answers, order, headers, so_far };
        let mut resets = Resets::default();
        let before = record.usage;
        loop {
            let waiting_since = record.clock.now();
            let placement = ticket.placed().await.map_err(Unserved::Rejected)?;
            if let Some(trace) = &record.trace {
                trace.phase(Phase::Queue, waiting_since, record.clock.now());
            }
            let settings = self.settings.load_full();
            let place = place(&settings, placement);
            record.sent(place);
            record.usage = Some(before.unwrap_or_default());
            let sent = record.clock.now();
            // A recall drops the try and with it the connection.
            let attempt = tokio::select! {
                biased;
                why = ticket.recalled() => Err(why),
                () = self.patience_of(order, so_far, record.early_head.clone()) => {
                    ticket.give_up(Usage::Unknown);
                    return Err(Unserved::Refused(ApiError::client_deadline()));
                }
                attempt = tries.at(&settings, place, resets.left(place.replica), record) => Ok(attempt),
            };
            if let Ok(Attempt::Failed(Fault::Reset, _)) = attempt {
                resets.note(place.replica, record.sends);
            }
            match attempt {
                Err(why) => record.recalled(place.replica, why),
                Ok(Attempt::Stream { stream, head, whole }) if ticket.first_token() => {
                    record.token_came();
                    return Ok(Answered::Stream { stream, head, whole });
                }
                Ok(Attempt::Answer { status, head, body, usage, finish_reason })
                    if ticket.finish(Outcome::Done(usage)) =>
                {
                    record.finish_reason = finish_reason;
                    record.engine = Some(record.clock.now().since(sent));
                    record.succeeded(usage);
                    return Ok(Answered::Whole { status, head, body });
                }
                Ok(Attempt::Refused(error, usage))
                    if ticket.finish(Outcome::Done(before.unwrap_or(usage))) =>
                {
                    record.usage = Some(before.unwrap_or(usage));
                    return Err(Unserved::Refused(error));
                }
                Ok(Attempt::Failed(fault, usage))
                    if ticket.failed_unseen(
                        fault,
                        before.filter(|_| usage == Usage::Unknown).unwrap_or(usage),
                    ) =>
                {
                    record.requeued(place.replica, fault);
                }
                // It came too late: the job was recalled while it was on its way.
                Ok(_) => record.recalled(place.replica, ticket.recalled().await),
            }
        }
    }

    /// Waits until the client is about to give up, if it said when. One that has
    /// begun to get its answer does not.
    async fn patience_of(&self, order: &Order, so_far: Option<&SoFar>, early: Option<Arc<AtomicBool>>) {
        if so_far.is_some_and(SoFar::is_resumed) || order.spec.patience == Tick::NEVER {
            return pending().await;
        }
        sleep_until(self.gate.clock().instant(order.spec.patience)).await;
        if early.is_some_and(|sent| sent.load(Ordering::Relaxed)) {
            pending::<()>().await;
        }
    }
}
