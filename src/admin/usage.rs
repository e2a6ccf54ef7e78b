//! `GET /admin/v1/usage`: the usage and cost of tenants.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::admin::operate::VerbError;
use crate::telemetry::wall;
use crate::usage::bill::{self, Bill, RowSource, ask};

/// Maker of bills, one at a time, because each bill reads a database.
#[derive(Debug)]
pub(super) struct BillMaker(Arc<Semaphore>);

impl Default for BillMaker {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl BillMaker {
    /// Makes the bill that `query` asks for.
    ///
    /// # Errors
    /// The configuration keeps no usage rows, the query is invalid, another bill is being made, or
    /// the database does not answer.
    pub(super) async fn make(&self, source: Option<&RowSource>, query: &str) -> Result<Bill, VerbError> {
        let Some(source) = source.cloned() else {
            let message = "nothing is written down: the configuration has no `usage.folder`";
            return Err(VerbError(StatusCode::NOT_FOUND, message.to_owned()));
        };
        let now_ms = (wall::unix_seconds(wall::now()) * 1e3) as i64;
        let asked =
            ask::from_url(query, now_ms).map_err(|message| VerbError(StatusCode::BAD_REQUEST, message))?;
        let Ok(alone) = Arc::clone(&self.0).try_acquire_owned() else {
            let message = "another bill is being made; ask again in a moment";
            return Err(VerbError(StatusCode::SERVICE_UNAVAILABLE, message.to_owned()));
        };
        // The bill is finished even when the caller hangs up. No other bill starts until then.
        let made = spawn_blocking(move || {
            let _alone = alone;
            bill::make(&asked, &source)
        });
        let unavailable = |message| VerbError(StatusCode::SERVICE_UNAVAILABLE, message);
        let bill = made.await.map_err(|error| unavailable(error.to_string()))?;
        bill.map_err(|error| unavailable(error.to_string()))
    }
}
