//! Usage events: outages of the usage journal and of its database, and the rows lost in them.

use std::io;
use std::path::Path;

use tracing::{error, info, warn};

use crate::telemetry::Telemetry;

/// The queue of usage rows to the disk is full, and rows are dropped. The event is emitted once,
/// until the queue has room again.
#[derive(Debug, Clone, Copy)]
pub struct UsageDropping;

impl UsageDropping {
    /// Writes the event. Dropped rows are counted one by one elsewhere.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| error!("usage rows are dropped: the queue to the disk is full"));
    }
}

/// Usage rows were lost.
#[derive(Debug, Clone, Copy)]
pub struct UsageRowsDropped {
    pub rows: u64,
    /// `queue`: the disk did not keep up. `shutdown`: the disk took no rows until the end of the
    /// process. `unread`: the oldest segment was deleted before the database had read it.
    pub reason: &'static str,
}

impl UsageRowsDropped {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| error!(rows = self.rows, reason = self.reason, "usage rows lost"));
    }
}

/// The usage journal cannot be written. Rows wait, and are dropped once the queue is full.
#[derive(Debug, Clone, Copy)]
pub struct UsageJournalLost<'a> {
    pub folder: &'a Path,
    pub error: &'a io::Error,
}

impl UsageJournalLost<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| error!(%folder, error = %self.error, "usage journal cannot be written"));
    }
}

/// The usage journal can be written again.
#[derive(Debug, Clone, Copy)]
pub struct UsageJournalBack<'a> {
    pub folder: &'a Path,
}

impl UsageJournalBack<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| info!(%folder, "usage journal is written again"));
    }
}

/// The database cannot be reached or refuses usage rows. The rows wait in the journal.
#[derive(Debug, Clone, Copy)]
pub struct UsageDatabaseLost<'a> {
    /// `sqlite` or `postgres`.
    pub database: &'static str,
    /// Error text of the database or of the connection.
    pub problem: &'a str,
}

impl UsageDatabaseLost<'_> {
    /// Writes the event and sets the metric. A certificate that has already ended is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics().usage_database(self.database, false);
        telemetry.log(|| {
            warn!(database = self.database, problem = self.problem, "usage database is away; rows wait");
        });
    }
}

/// The database is connected, for the first time or again.
#[derive(Debug, Clone, Copy)]
pub struct UsageDatabaseFound {
    /// `sqlite` or `postgres`.
    pub database: &'static str,
    /// Bytes of the journal that are not in the database yet.
    pub unread: u64,
}

impl UsageDatabaseFound {
    /// Writes the event and sets the metric. A certificate that has already ended is a warning.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics().usage_database(self.database, true);
        telemetry.log(|| {
            info!(database = self.database, unread_bytes = self.unread, "usage database takes rows");
        });
    }
}

/// The use of a day or month before the start was read back into the quotas.
#[derive(Debug, Clone, Copy)]
pub struct UsageCounted {
    /// `per_day` or `per_month`.
    pub period: &'static str,
    /// Number of limits with use before the start.
    pub limits: usize,
    /// Whether only the journal was read, because the database is away or not configured. The
    /// journal may no longer hold all rows of the period.
    pub partial: bool,
}

impl UsageCounted {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { period, limits, partial } = self;
        telemetry.log(|| info!(period, limits, journal_only = partial, "usage before the start counted"));
    }
}

/// Old rows could not be deleted from the usage database. They are tried again later.
#[derive(Debug, Clone, Copy)]
pub struct UsageRowsNotDeleted<'a> {
    pub error: &'a dyn std::error::Error,
}

impl UsageRowsNotDeleted<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| warn!(error = %self.error, "old usage rows cannot be deleted"));
    }
}

/// Lines of the journal are not usage rows: another program wrote them, or the disk is broken. The
/// reader skips them.
#[derive(Debug, Clone, Copy)]
pub struct UsageLinesBroken {
    pub lines: u64,
    /// Number of the segment that holds the lines.
    pub segment: u64,
}

impl UsageLinesBroken {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| warn!(lines = self.lines, segment = self.segment, "usage journal has broken lines"));
    }
}
