//! The usage journal and its database: outages, and what they cost.

use std::io;
use std::path::Path;

use tracing::{error, info, warn};

use crate::telemetry::Telemetry;

/// Usage rows come faster than the disk takes them, and the queue between is
/// full. Told once, until it has room again.
#[derive(Debug, Clone, Copy)]
pub struct UsageDropping;

impl UsageDropping {
    /// Writes the event; each row is counted apart.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| error!("usage rows are dropped: the queue to the disk is full"));
    }
}

/// Usage rows are gone.
#[derive(Debug, Clone, Copy)]
pub struct UsageRowsDropped {
    /// How many.
    pub rows: u64,
    /// `queue`: the disk did not keep up. `shutdown`: it took nothing until the
    /// end. `unread`: the oldest segment had to go before the database read it.
    pub reason: &'static str,
}

impl UsageRowsDropped {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| error!(rows = self.rows, reason = self.reason, "usage rows lost"));
    }
}

/// The disk does not take the usage journal; rows wait, and are then dropped.
#[derive(Debug, Clone, Copy)]
pub struct UsageJournalLost<'a> {
    /// The journal's folder.
    pub folder: &'a Path,
    /// What the system says.
    pub error: &'a io::Error,
}

impl UsageJournalLost<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| error!(%folder, error = %self.error, "usage journal cannot be written"));
    }
}

/// The disk takes the usage journal again.
#[derive(Debug, Clone, Copy)]
pub struct UsageJournalBack<'a> {
    /// The journal's folder.
    pub folder: &'a Path,
}

impl UsageJournalBack<'_> {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let folder = self.folder.display();
        telemetry.log(|| info!(%folder, "usage journal is written again"));
    }
}

/// The database does not take usage rows; they wait in the journal.
#[derive(Debug, Clone, Copy)]
pub struct UsageDatabaseLost<'a> {
    /// `sqlite` or `postgres`.
    pub database: &'static str,
    /// What it says.
    pub problem: &'a str,
}

impl UsageDatabaseLost<'_> {
    /// Writes the event and sets the metric.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics().usage_database(self.database, false);
        telemetry.log(|| {
            warn!(database = self.database, problem = self.problem, "usage database is away; rows wait");
        });
    }
}

/// The database takes usage rows, for the first time or again.
#[derive(Debug, Clone, Copy)]
pub struct UsageDatabaseFound {
    /// `sqlite` or `postgres`.
    pub database: &'static str,
    /// Bytes of the journal that it has not read yet.
    pub unread: u64,
}

impl UsageDatabaseFound {
    /// Writes the event and sets the metric.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.metrics().usage_database(self.database, true);
        telemetry.log(|| {
            info!(database = self.database, unread_bytes = self.unread, "usage database takes rows");
        });
    }
}

/// The quotas of a day or month go on where they were before the start.
#[derive(Debug, Clone, Copy)]
pub struct UsageCounted {
    /// `per_day` or `per_month`.
    pub period: &'static str,
    /// Limits of which something was used.
    pub limits: usize,
    /// The database is away or there is none, so only what the journal still
    /// holds is known.
    pub partial: bool,
}

impl UsageCounted {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        let Self { period, limits, partial } = self;
        telemetry.log(|| info!(period, limits, journal_only = partial, "usage before the start counted"));
    }
}

/// Lines of the journal are no rows: somebody else wrote them, or the disk
/// is broken. They are passed over.
#[derive(Debug, Clone, Copy)]
pub struct UsageLinesBroken {
    /// How many.
    pub lines: u64,
    /// The segment that they are in, or the one before it.
    pub segment: u64,
}

impl UsageLinesBroken {
    /// Writes the event.
    pub fn emit(self, telemetry: &Telemetry) {
        telemetry.log(|| warn!(lines = self.lines, segment = self.segment, "usage journal has broken lines"));
    }
}
