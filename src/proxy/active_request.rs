//! Active request: a request's record together with its ticket.

use std::task::{Context, Poll};

use crate::core::model::event::{AttemptOutcome, EngineFault, PreemptReason};
use crate::core::model::job::JobUsage;
use crate::dispatcher::AttemptBills;
use crate::dispatcher::ticket::Ticket;
use crate::proxy::summary::RequestRecord;

/// A request from its arrival to its end. Dropping the value ends the request, also when its client
/// leaves: the ticket ends with the usage in the record, and the record is written with the bills
/// that the ticket returned.
#[derive(Debug)]
pub(in crate::proxy) struct ActiveRequest {
    pub(in crate::proxy) record: Box<RequestRecord>,
    /// `None` before the request is admitted and after its job has ended.
    ticket: Option<Ticket>,
    /// Bills of the tickets that have ended.
    bills: AttemptBills,
}

impl ActiveRequest {
    /// A request that is not admitted yet.
    pub(in crate::proxy) fn new(record: RequestRecord) -> Self {
        Self { record: Box::new(record), ticket: None, bills: AttemptBills::new() }
    }

    /// A shadow copy that was admitted with this ticket. A copy's limits are not reported.
    pub(in crate::proxy) fn of_copy(record: RequestRecord, ticket: Ticket) -> Self {
        Self { record: Box::new(record), ticket: Some(ticket), bills: AttemptBills::new() }
    }

    /// Attaches the ticket with which the request was admitted, or refused by a limit. An earlier
    /// ticket, for another model, ends.
    pub(in crate::proxy) fn attach_ticket(&mut self, mut ticket: Ticket) {
        self.end_ticket(JobUsage::Unknown);
        let limits = ticket.take_limits();
        limits.shadowed.iter().for_each(|rule| self.record.report_limit(*rule, true));
        self.record.limits = limits;
        self.ticket = Some(ticket);
    }

    /// The ticket and the record; `None` unless the request is admitted.
    pub(in crate::proxy) fn parts(&mut self) -> Option<(&mut Ticket, &mut RequestRecord)> {
        match &mut self.ticket {
            Some(ticket) => Some((ticket, &mut self.record)),
            None => None,
        }
    }

    /// Ends the request's job. `outcome` is that of its last attempt.
    pub(in crate::proxy) fn end(&mut self, outcome: AttemptOutcome) {
        let usage = outcome.usage();
        self.record.end.usage = Some(usage);
        self.ticket.iter_mut().for_each(|ticket| _ = ticket.finish(outcome));
        self.end_ticket(usage);
    }

    /// Ends a request that nobody wants any more, before its job has ended.
    pub(in crate::proxy) fn withdraw(&mut self, usage: JobUsage) {
        self.record.end.usage = Some(usage);
        self.end_ticket(usage);
    }

    /// Reports that the replica broke off a stream; see [`Ticket::report_failure`].
    pub(in crate::proxy) fn interrupted(&mut self, fault: EngineFault, usage: JobUsage, output: u64) -> bool {
        self.record.end.usage = Some(usage);
        let outcome = AttemptOutcome::Interrupted { fault, usage, output };
        self.ticket.as_mut().is_some_and(|ticket| ticket.report_failure(outcome))
    }

    /// See [`Ticket::poll_migration`].
    pub(in crate::proxy) fn poll_migration(&mut self, cx: &mut Context<'_>) -> Poll<PreemptReason> {
        self.ticket.as_mut().map_or(Poll::Pending, |ticket| ticket.poll_migration(cx))
    }

    /// Ends the ticket, if there is one, with what the job has used until now.
    fn end_ticket(&mut self, usage: JobUsage) {
        if let Some(ticket) = self.ticket.take() {
            self.bills.extend(ticket.end(usage));
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.end_ticket(self.record.end.usage.unwrap_or_default());
        self.record.finish(&self.bills);
    }
}
