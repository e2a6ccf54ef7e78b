//! Store transport: reports that the exchange of `cluster` ([`crate::cluster`]) carries to the store and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use prost::Message as _;
use tokio::time::Instant;

use crate::cluster::{OwnReport, RemoteGateway, SharedReports};
use crate::core::autoscale::peers::ReportOutcome;
use crate::scaler::peers::exchange::PeerExchange;
use crate::scaler::peers::wire::{MAX_REPORT, Report, decode};
use crate::telemetry::event::DemandNotShared;

impl SharedReports for PeerExchange {
    fn id(&self) -> u64 {
        self.me.id
    }

    fn own(&self, known: u64) -> Option<OwnReport> {
        let report = Arc::clone(&self.report.borrow());
        report.from.as_ref()?;
        let is_too_large = report.encoded_len() > MAX_REPORT;
        if is_too_large && !self.has_too_large.swap(true, Ordering::Relaxed) {
            let problem = "the report is larger than 2 MiB; the number will be an error at other gateways";
            DemandNotShared { problem }.emit(&self.telemetry);
        }
        let is_sent = report.sequence != known && !is_too_large;
        let text = if is_sent { report.encode_to_vec() } else { Vec::new() };
        Some(OwnReport { number: report.sequence, leaves: report.leaving, text })
    }

    fn receive_answer(&self, heard: Vec<RemoteGateway>) {
        let Some(members) = &self.store else { return };
        let now = Instant::now();
        let mut members = members.lock();
        let was_settled = members.is_settled(now);
        let listed = members.take_answer(&heard, now);
        let is_settled = members.is_settled(now);
        if is_settled {
            members.log_changes(now, &self.telemetry);
        }
        drop(members);
        let mut has_news = self.list_stored(&listed, is_settled, now) || is_settled != was_settled;
        for gateway in heard {
            has_news |= self.accept_stored(gateway, now);
        }
        if has_news {
            self.announce_news();
        }
    }
}

impl PeerExchange {
    /// Takes over what the store has of one gateway. Returns whether the numbers may change.
    fn accept_stored(&self, heard: RemoteGateway, now: Instant) -> bool {
        let RemoteGateway { id, age, shares_limits, is_gone, report, .. } = heard;
        if is_gone {
            return self.remove_stored(&id);
        }
        let report = report.filter(|text| text.len() <= MAX_REPORT);
        let report = report.and_then(|text| Report::decode(&*text).ok()).and_then(decode);
        let outcome = report.map(|report| self.accept_report(&id, report, now, age.unwrap_or_default()));
        if shares_limits {
            self.note_running(&id, now);
        }
        outcome == Some(ReportOutcome::Urgent)
    }
}
