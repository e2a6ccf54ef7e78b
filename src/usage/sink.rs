//! Database sink: a thread that copies the journal's rows into a database.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::settings::usage::UsageDatabase;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{UsageDatabaseFound, UsageDatabaseLost, UsageLinesBroken, UsageRowsNotDeleted};
use crate::telemetry::metrics::UsageMeters;
use crate::telemetry::wall;
use crate::usage::prior_usage::StoredRows;
use crate::usage::segment::{Cursor, JournalFolder};
use crate::usage::store::{Store, StoreAccess, StoreError, open};
use crate::usage::writer::JournalEnds;

/// Interval at which the journal is checked for new rows.
const LOOK: Duration = Duration::from_millis(250);
/// Most rows that are deleted at once.
const MAX_DELETED: u32 = 1000;
/// Pause after all old rows are deleted.
const REST: Duration = Duration::from_secs(60);
/// First pause before another attempt to connect to the database. Each failure doubles the pause,
/// up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// State of the thread that feeds the database.
pub(super) struct DatabaseSink {
    pub(super) database: UsageDatabase,
    /// Age at which rows are deleted; absent = never.
    pub(super) retention: Option<Duration>,
    pub(super) folder: JournalFolder,
    /// Id of the journal.
    pub(super) id: String,
    pub(super) ends: Arc<JournalEnds>,
    pub(super) telemetry: Telemetry,
}

/// Handle of the running thread.
#[derive(Debug)]
pub(super) struct DatabaseSinkHandle {
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

impl DatabaseSinkHandle {
    /// Ends the thread after one more check of the journal. Waits for at most `limit`.
    pub(super) fn stop(self, limit: Duration) {
        let _ended = self.stop.try_send(());
        wait_for(&self.thread, limit);
    }
}

/// Waits until a thread has ended, for at most `limit`.
pub(super) fn wait_for(thread: &JoinHandle<()>, limit: Duration) {
    let pause = Duration::from_millis(10);
    for _ in 0..limit.as_millis() / pause.as_millis() {
        if thread.is_finished() {
            return;
        }
        std::thread::sleep(pause);
    }
}

impl DatabaseSink {
    /// Starts the thread. The thread calls `first` once: with the database and its cursor before
    /// any row is added, or with `None` when the first attempt to connect fails.
    pub(super) fn start(
        self,
        first: impl FnOnce(Option<StoredRows<'_>>) + Send + 'static,
    ) -> std::io::Result<DatabaseSinkHandle> {
        let (stop, stopped) = sync_channel(1);
        let thread = std::thread::Builder::new().name("usage-database".into());
        let thread = thread.spawn(move || self.run(&stopped, first))?;
        Ok(DatabaseSinkHandle { stop, thread })
    }

    fn run(self, stopped: &Receiver<()>, first: impl FnOnce(Option<StoredRows<'_>>)) {
        let meters = self.telemetry.usage_meters();
        let mut first = Some(first);
        let (mut pause, mut told) = (FIRST_PAUSE, false);
        loop {
            let lost = match self.connect() {
                Ok((mut store, cursor)) => {
                    if let Some(first) = first.take() {
                        first(Some(StoredRows { store: &mut *store, cursor }));
                    }
                    told = false;
                    let fed = self.feed(&mut *store, cursor, &meters, stopped);
                    if *self.ends.read.lock() != Some(cursor) {
                        pause = FIRST_PAUSE;
                    }
                    match fed {
                        Ok(()) => return,
                        Err(problem) => problem,
                    }
                }
                Err(problem) => {
                    if let Some(first) = first.take() {
                        first(None);
                    }
                    problem
                }
            };
            if !std::mem::replace(&mut told, true) {
                let database = self.database.name();
                UsageDatabaseLost { database, problem: &lost.0 }.emit(&self.telemetry);
            }
            self.measure(&meters);
            match stopped.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => pause = (2 * pause).min(LAST_PAUSE),
                _ => return,
            }
        }
    }

    fn connect(&self) -> Result<(Box<dyn Store>, Cursor), StoreError> {
        let mut store = open(&self.database, StoreAccess::Write)?;
        let cursor = store.cursor(&self.id)?;
        // The folder was emptied, and the segment numbers began again at 1.
        let beyond = cursor.segment > self.ends.written.lock().segment;
        let cursor = if beyond { Cursor::default() } else { cursor };
        *self.ends.read.lock() = Some(cursor);
        let unread = self.folder.unread(cursor).unwrap_or(0);
        UsageDatabaseFound { database: self.database.name(), unread }.emit(&self.telemetry);
        Ok((store, cursor))
    }

    /// Copies rows until the database fails or a stop is requested. After a stop, the remaining
    /// rows are copied first.
    fn feed(
        &self,
        store: &mut dyn Store,
        mut cursor: Cursor,
        meters: &UsageMeters,
        stopped: &Receiver<()>,
    ) -> Result<(), StoreError> {
        let (mut last, mut due) = (false, Instant::now());
        loop {
            if Instant::now() >= due {
                let pause = self.delete_old(store, meters).unwrap_or_else(|error| {
                    UsageRowsNotDeleted { error: &error }.emit(&self.telemetry);
                    REST
                });
                due = Instant::now() + pause;
            }
            let end = *self.ends.written.lock();
            let unreadable = |error| StoreError(format!("the journal cannot be read: {error}"));
            let recent = self.ends.recent.lock().take_after(cursor);
            let batch = match recent {
                Some(recent) => recent,
                None => self.folder.read(cursor, end).map_err(unreadable)?,
            };
            if batch.until > cursor {
                if batch.broken > 0 {
                    let (lines, segment) = (batch.broken, batch.until.segment);
                    UsageLinesBroken { lines, segment }.emit(&self.telemetry);
                }
                if !batch.rows.is_empty() {
                    store.append(&self.id, &batch.rows, batch.until)?;
                    meters.stored.increment(batch.rows.len() as u64);
                }
                cursor = batch.until;
                *self.ends.read.lock() = Some(cursor);
                self.measure(meters);
                continue;
            }
            if last {
                return Ok(());
            }
            last = !matches!(stopped.recv_timeout(LOOK), Err(RecvTimeoutError::Timeout));
        }
    }

    /// Deletes a batch of the rows that are older than the retention. Returns the pause before the
    /// next batch: rows that are copied meanwhile do not wait for long.
    fn delete_old(&self, store: &mut dyn Store, meters: &UsageMeters) -> Result<Duration, StoreError> {
        let Some(age) = self.retention else { return Ok(REST) };
        let moment = wall::unix_seconds(wall::now()) - age.as_secs_f64();
        let deleted = store.delete_before((moment * 1000.0) as i64, MAX_DELETED)?;
        meters.deleted.increment(deleted);
        Ok(if deleted < u64::from(MAX_DELETED) { REST } else { LOOK })
    }

    fn measure(&self, meters: &UsageMeters) {
        let read = (*self.ends.read.lock()).unwrap_or_default();
        if let Ok(unread) = self.folder.unread(read) {
            meters.unread.set(unread as f64);
        }
    }
}
