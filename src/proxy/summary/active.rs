//! Active request: a request's record together with its ticket.

use std::task::{Context, Poll};

use crate::core::model::event::{AttemptOutcome, EngineFault, PreemptReason};
use crate::core::model::job::JobUsage;
use crate::dispatcher::ticket::Ticket;
use crate::proxy::summary::RequestRecord;

/// A request from its arrival to its end. Dropping the value ends the request, also when its client
/// leaves. The ticket ends first, then the record is written with the bills that the ticket
/// returned.
#[derive(Debug)]
pub(in crate::proxy) struct ActiveRequest {
    pub(in crate::proxy) record: RequestRecord,
    /// `None` until the request is admitted.
    ticket: Option<Ticket>,
}

impl ActiveRequest {
    /// A request that is not admitted yet.
    pub(in crate::proxy) const fn new(record: RequestRecord) -> Self {
        Self { record, ticket: None }
    }

    /// A shadow copy that was admitted with this ticket. A copy's limits are not reported.
    pub(in crate::proxy) const fn of_copy(record: RequestRecord, ticket: Ticket) -> Self {
        Self { record, ticket: Some(ticket) }
    }

    /// Attaches the ticket with which the request was admitted, or refused by a limit. An earlier
    /// ticket, for another model, ends.
    pub(in crate::proxy) fn admitted(&mut self, mut ticket: Ticket) {
        self.end_ticket();
        let limits = ticket.take_limits();
        limits.shadowed.iter().for_each(|rule| self.record.met(*rule));
        self.record.limits = limits;
        self.ticket = Some(ticket);
    }

    /// The ticket and the record; `None` until the request is admitted.
    pub(in crate::proxy) const fn parts(&mut self) -> Option<(&mut Ticket, &mut RequestRecord)> {
        match &mut self.ticket {
            Some(ticket) => Some((ticket, &mut self.record)),
            None => None,
        }
    }

    /// See [`Ticket::finish`].
    pub(in crate::proxy) fn finish(&mut self, outcome: AttemptOutcome) -> bool {
        self.ticket.as_mut().is_some_and(|ticket| ticket.finish(outcome))
    }

    /// See [`Ticket::give_up`].
    pub(in crate::proxy) fn give_up(&mut self, usage: JobUsage) {
        self.ticket.iter_mut().for_each(|ticket| ticket.give_up(usage));
    }

    /// See [`Ticket::requeue_stream`].
    pub(in crate::proxy) fn interrupted(&mut self, fault: EngineFault, usage: JobUsage, output: u64) -> bool {
        self.note_usage(usage);
        self.ticket.as_mut().is_some_and(|ticket| ticket.requeue_stream(fault, usage, output))
    }

    /// See [`Ticket::poll_migration`].
    pub(in crate::proxy) fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<PreemptReason> {
        self.ticket.as_mut().map_or(Poll::Pending, |ticket| ticket.poll_migration(cx))
    }

    /// Sets the usage so far, in case the request ends now.
    pub(in crate::proxy) fn note_usage(&mut self, usage: JobUsage) {
        self.record.end.usage = Some(usage);
        self.ticket.iter_mut().for_each(|ticket| ticket.note_usage(usage));
    }

    fn end_ticket(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.record.bills.extend(ticket.end());
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.end_ticket();
        self.record.finish();
    }
}
