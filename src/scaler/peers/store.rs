//! Store transport: reports that the exchange of `cluster` ([`crate::cluster`]) carries to the store and back.

use prost::Message as _;
use tokio::time::Instant;

use crate::cluster::{HeardGateway, OwnReport, SharedReports};
use crate::core::autoscale::peers::ReportOutcome;
use crate::scaler::peers::exchange::PeerExchange;
use crate::scaler::peers::wire::{MAX_REPORT, Report, decode};

impl SharedReports for PeerExchange {
    fn id(&self) -> u64 {
        self.me.id
    }

    fn own(&self, known: u64) -> Option<OwnReport> {
        let report = self.report.borrow();
        report.from.as_ref()?;
        let text = if report.sequence == known { Vec::new() } else { report.encode_to_vec() };
        let text = if text.len() > MAX_REPORT { Vec::new() } else { text };
        Some(OwnReport { number: report.sequence, leaves: report.leaving, text })
    }

    fn hear(&self, heard: Vec<HeardGateway>) {
        let Some(sight) = &self.store else { return };
        let now = Instant::now();
        let mut sight = sight.lock();
        let was_settled = sight.is_settled(now);
        let places = sight.hear(&heard, now);
        let is_settled = sight.is_settled(now);
        if is_settled {
            sight.tell(now, &self.telemetry);
        }
        drop(sight);
        let has_news = self.list_stored(&places, is_settled, now) || is_settled != was_settled;
        let mut is_urgent = false;
        for HeardGateway { id, age, report, .. } in heard {
            let Some(report) = report.filter(|text| text.len() <= MAX_REPORT) else { continue };
            let Some(report) = Report::decode(&*report).ok().and_then(decode) else { continue };
            let outcome = self.store_report(&id, report, (now, age.unwrap_or_default()));
            is_urgent |= outcome == ReportOutcome::Urgent;
        }
        if has_news || is_urgent {
            self.announce_news();
        }
    }
}
