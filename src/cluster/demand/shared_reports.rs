//! Shared reports: the scaler's side of the exchange of demand reports, and what the store has of a gateway.

use std::fmt;
use std::time::Duration;

use crate::core::autoscale::peers::SILENT;

/// The scaler's side of the exchange of demand reports.
pub trait SharedReports: fmt::Debug + Send + Sync {
    /// Id of this gateway among the others.
    fn id(&self) -> u64;

    /// The last report of this gateway; `None` before the first one. Its text is empty when its number is
    /// `known`.
    fn own(&self, known: u64) -> Option<OwnReport>;

    /// Takes over an answer of the store: all other gateways that it has, or that share limits.
    fn receive_answer(&self, heard: Vec<RemoteGateway>);
}

/// A report of this gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnReport {
    pub number: u64,
    /// Whether it is the last one.
    pub leaves: bool,
    pub text: Vec<u8>,
}

/// Another gateway, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteGateway {
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Age of its last report; `None` = it shares limits, and the store has no demand of it.
    pub age: Option<Duration>,
    /// Whether it shares limits now.
    pub shares_limits: bool,
    /// Whether nothing is missed when it is silent: it has left, or another process has its name.
    pub is_gone: bool,
    /// Its last report, unless it was heard before.
    pub report: Option<Vec<u8>>,
}

/// What the store has of another gateway.
#[derive(Debug, Clone, Default)]
pub(in crate::cluster) struct StoredRow {
    pub(in crate::cluster) name: String,
    pub(in crate::cluster) age: Duration,
    /// Number of its last report.
    pub(in crate::cluster) number: u64,
    /// Number of its report that was read last; 0 = none.
    pub(in crate::cluster) read: u64,
    pub(in crate::cluster) is_gone: bool,
}

impl StoredRow {
    /// Whether its report may be news at the next call.
    pub(in crate::cluster) fn may_have_news(&self) -> bool {
        !self.is_gone && (self.number != self.read || self.age <= SILENT)
    }
}
