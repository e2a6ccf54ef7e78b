//! Audit log: a file with one JSON object a line.
//!
//! A dedicated thread writes the file, so that no caller waits for the disk. Lines that the file
//! cannot take are counted; the process log has them as well.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use metrics::Counter;
use serde_json::{Value, json};

use crate::config::settings::identity::AuditFile;
use crate::telemetry::wall;

/// Most lines that wait for the disk; further lines are lost and counted.
const MAX_WAITING: usize = 1024;

enum AuditNote {
    Line(String),
    /// Answered once every earlier line is written or lost.
    Flush(SyncSender<()>),
}

/// Handle of the audit file's thread.
#[derive(Debug)]
pub(super) struct AuditLog {
    notes: SyncSender<AuditNote>,
    lost: Counter,
}

impl AuditLog {
    /// Starts the thread that writes to `file`. `lost` counts the lines that the file cannot take.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(file: AuditFile, lost: Counter) -> io::Result<Self> {
        let (notes, taken) = sync_channel(MAX_WAITING);
        let writer = AuditWriter { file, lost: lost.clone(), failing: false, torn: false };
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&taken))?;
        Ok(Self { notes, lost })
    }

    /// Adds an entry with the current time. Never waits: an entry beyond the full queue is lost.
    pub(super) fn add(&self, mut entry: Value) {
        if let Ok(time) = jiff::Timestamp::try_from(wall::now()) {
            entry["time"] = json!(format!("{time:.6}"));
        }
        if self.notes.try_send(AuditNote::Line(format!("{entry}\n"))).is_err() {
            self.lost.increment(1);
        }
    }

    /// Waits until all added entries are written or lost. Blocks: at most `limit` for a place in
    /// the queue, and at most `limit` again for the write.
    pub(super) fn flush(&self, limit: Duration) {
        let (done, written) = sync_channel(1);
        let mut note = AuditNote::Flush(done);
        let pause = Duration::from_millis(10);
        // Polls for a free place in the queue: the channel has no send with a timeout.
        for _ in 0..limit.as_millis() / pause.as_millis() {
            match self.notes.try_send(note) {
                Ok(()) => {
                    let _ = written.recv_timeout(limit);
                    return;
                }
                Err(TrySendError::Full(back)) => note = back,
                Err(TrySendError::Disconnected(_)) => return,
            }
            std::thread::sleep(pause);
        }
    }
}

struct AuditWriter {
    file: AuditFile,
    lost: Counter,
    failing: bool,
    /// The file may end with a partial line, from a failed write.
    torn: bool,
}

impl AuditWriter {
    fn run(mut self, notes: &Receiver<AuditNote>) {
        while let Ok(note) = notes.recv() {
            match note {
                AuditNote::Line(line) => self.write(&line),
                AuditNote::Flush(done) => {
                    let _ = done.try_send(());
                }
            }
        }
    }

    fn write(&mut self, line: &str) {
        match self.try_write(line) {
            Ok(()) => self.failing = false,
            Err(error) => {
                self.lost.increment(1);
                if !self.failing {
                    let path = self.file.path.display();
                    tracing::error!(%path, %error, "audit file takes no lines; the log has them");
                }
                self.failing = true;
            }
        }
    }

    /// Opens the file for each line. Lines are few, and log rotation may move the file away at any
    /// time: the next line then begins a new file.
    fn try_write(&mut self, line: &str) -> io::Result<()> {
        let path = &self.file.path;
        let size = fs::metadata(path).map_or(0, |about| about.len());
        if size > 0 && size + line.len() as u64 > self.file.max_bytes {
            self.rotate()?;
        }
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.file.path)?;
        let text = if self.torn { format!("\n{line}") } else { line.to_owned() };
        self.torn = true;
        file.write_all(text.as_bytes())?;
        self.torn = false;
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let keep = self.file.keep;
        if keep == 0 {
            self.torn = false;
            return fs::remove_file(&self.file.path);
        }
        for number in (1..keep).rev() {
            match fs::rename(self.old(number), self.old(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.file.path, self.old(1))?;
        self.torn = false;
        Ok(())
    }

    fn old(&self, number: u32) -> PathBuf {
        let mut name = self.file.path.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn lines(path: &Path) -> Vec<Value> {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn start(path: &Path, max_bytes: u64, keep: u32) -> AuditLog {
        AuditLog::start(AuditFile { path: path.to_owned(), max_bytes, keep }, Counter::noop()).unwrap()
    }

    #[test]
    fn lines_are_added_in_order_and_by_nobody_else_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        for run in 0..2 {
            let audit = start(&path, 1 << 20, 3);
            for number in 0..100 {
                audit.add(json!({ "action": "x", "number": run * 100 + number }));
            }
            audit.flush(SOON);
        }
        let found = lines(&path);
        assert!(found.iter().enumerate().all(|(at, line)| line["number"] == at), "{found:?}");
        assert_eq!(found.len(), 200);
        assert!(found[0]["time"].as_str().unwrap().ends_with('Z'));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn at_its_size_it_gives_way_to_a_new_one_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let audit = start(&path, 400, 2);
        for number in 0..60 {
            audit.add(json!({ "number": number, "text": "x".repeat(40) }));
        }
        audit.flush(SOON);
        let mut names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]);
        let mut all = lines(&folder.path().join("audit.jsonl.2"));
        all.extend(lines(&folder.path().join("audit.jsonl.1")));
        all.extend(lines(&path));
        let numbers: Vec<u64> = all.iter().map(|line| line["number"].as_u64().unwrap()).collect();
        let last = *numbers.last().unwrap();
        assert_eq!(last, 59);
        assert_eq!(numbers, (last + 1 - numbers.len() as u64..=last).collect::<Vec<_>>());
        for name in names {
            assert!(fs::metadata(folder.path().join(name)).unwrap().len() <= 400);
        }
    }

    #[test]
    fn a_file_that_takes_nothing_holds_up_nobody_and_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let telemetry = crate::telemetry::Telemetry::for_tests();
        let path = folder.path().join("gone").join("audit.jsonl");
        telemetry.audit_to(AuditFile { path: path.clone(), max_bytes: 4096, keep: 1 }).unwrap();
        for _ in 0..10 {
            telemetry.audit(json!({ "action": "x" }));
        }
        telemetry.flush_audit(SOON);
        let lost = || {
            let text = telemetry.0.metrics.render_events();
            let line = text.lines().find(|line| line.starts_with("penstock_audit_lost_total")).unwrap();
            line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
        };
        assert_eq!(lost(), 10.0);
        fs::create_dir(folder.path().join("gone")).unwrap();
        telemetry.audit(json!({ "action": "y" }));
        telemetry.flush_audit(SOON);
        assert_eq!((lines(&path).len(), lost()), (1, 10.0), "it goes on by itself");
    }
}
