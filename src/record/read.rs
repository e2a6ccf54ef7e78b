//! Reader of a record: the steps of one run of a gateway, in their order, and what is missing.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::core::model::event::Event;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::dispatcher::event_log::{Decisions, LoggedStep};
use crate::record::error::RecordError;
use crate::record::folder::{self, RecordFile};
use crate::record::line::{FileHead, RecordLine, VERSION};

/// Most bytes of a line. Only a policy needs more than some thousand.
const MAX_LINE: u64 = 256 << 20;

/// One run of a gateway, from its start to its end, as far as files of the run are there.
#[derive(Debug, Clone)]
pub struct RecordRun {
    folder: PathBuf,
    /// Milliseconds since 1970 at the start of the run.
    pub began_ms: u64,
    files: Vec<RecordFile>,
}

/// What a reader is told, in order.
#[derive(Debug)]
pub enum RecordPart<'a> {
    /// The policy under which the first steps happened.
    Begin(&'a Policy),
    /// One step of the scheduler.
    Step(&'a LoggedStep),
    /// Steps are missing here.
    Gap,
}

/// What was found in the files of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordFindings {
    pub bytes: u64,
    pub steps: u64,
    /// Whether the run's first file is there. Without it, the scheduler's state at the begin of the
    /// record is not known.
    pub has_start: bool,
    /// Steps that the gateway could not record.
    pub lost: u64,
    /// Lines that are no lines of a record, files that are missing, and ends that broke off.
    pub broken: u64,
    /// Version of the program that wrote the record.
    pub program: String,
    /// Digests of the configuration file, each once, in their order.
    pub configs: Vec<String>,
}

impl RecordFindings {
    /// Whether every step of the run is there, from its start on.
    pub const fn is_whole(&self) -> bool {
        self.has_start && self.lost == 0 && self.broken == 0
    }
}

/// The runs in a folder, the oldest first.
///
/// # Errors
/// The folder cannot be read, or has no record.
pub fn runs(folder: &Path) -> Result<Vec<RecordRun>, RecordError> {
    let mut runs: Vec<RecordRun> = Vec::new();
    for file in folder::files(folder)? {
        match runs.last_mut() {
            Some(run) if run.began_ms == file.run => run.files.push(file),
            _ => {
                runs.push(RecordRun { folder: folder.to_owned(), began_ms: file.run, files: vec![file] });
            }
        }
    }
    if runs.is_empty() {
        return Err(RecordError::new(folder, "no record is there; `penstock serve --record DIR` writes one"));
    }
    Ok(runs)
}

impl RecordRun {
    /// Bytes of the run's files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Tells every part of the run in order, with the bytes read so far.
    ///
    /// # Errors
    /// A file cannot be read, or another version of the program wrote it.
    pub fn each(&self, mut tell: impl FnMut(RecordPart<'_>, u64)) -> Result<RecordFindings, RecordError> {
        let mut reading =
            RunReading { tell: &mut tell, findings: RecordFindings::default(), generation: None };
        for (place, file) in self.files.iter().enumerate() {
            let number_before = place.checked_sub(1).and_then(|before| self.files.get(before));
            if number_before.is_some_and(|before| before.number + 1 != file.number) {
                reading.gap(1);
            }
            let is_last = place + 1 == self.files.len();
            let failed = |problem: String| {
                let name = file.path.file_name().unwrap_or_default().to_string_lossy();
                RecordError::new(&self.folder, &format!("{name}: {problem}"))
            };
            reading.file(file, is_last).map_err(failed)?;
        }
        Ok(reading.findings)
    }
}

struct RunReading<'a, T> {
    tell: &'a mut T,
    findings: RecordFindings,
    /// Generation of the policy in force; absent before the first head.
    generation: Option<u64>,
}

impl<T: FnMut(RecordPart<'_>, u64)> RunReading<'_, T> {
    fn file(&mut self, file: &RecordFile, is_last: bool) -> Result<(), String> {
        let mut lines = BufReader::new(File::open(&file.path).map_err(|error| error.to_string())?);
        let mut line = Vec::new();
        let mut is_first = true;
        loop {
            line.clear();
            let read = lines.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
            match read.map_err(|error: io::Error| error.to_string())? {
                0 => return Ok(()),
                bytes => self.findings.bytes += bytes as u64,
            }
            // A killed gateway leaves a part of a line, at the end of the run's last file.
            let is_whole = line.ends_with(b"\n");
            match serde_json::from_slice(&line) {
                Ok(RecordLine::Head(head)) if is_first => self.head(file, head)?,
                // So does a full disk, at the end of any file.
                _ if is_first && !is_whole => {
                    if !is_last {
                        self.gap(1);
                    }
                    return Ok(());
                }
                Err(error) if is_first => return Err(wrong_head(&line, &error)),
                Ok(RecordLine::Step(step)) => self.step(&step),
                Ok(RecordLine::Lost(steps)) => {
                    self.findings.lost = self.findings.lost.max(steps);
                    self.told(RecordPart::Gap);
                }
                Ok(RecordLine::Config(digest)) => self.config(digest),
                Ok(RecordLine::Head(_)) => self.gap(1),
                Err(_) if is_last && !is_whole => return Ok(()),
                Err(_) => self.gap(1),
            }
            is_first = false;
        }
    }

    fn head(&mut self, file: &RecordFile, head: FileHead) -> Result<(), String> {
        if head.version != VERSION {
            return Err(format!(
                "written as version {} by penstock {}; this program reads version {VERSION}",
                head.version, head.program
            ));
        }
        let generation = head.policy.generation;
        match self.generation {
            None => {
                self.findings.has_start = file.number == 1;
                self.findings.program = head.program.into_owned();
                self.told(RecordPart::Begin(&head.policy));
            }
            Some(known) => {
                if head.lost > self.findings.lost {
                    self.findings.lost = head.lost;
                    self.told(RecordPart::Gap);
                }
                if generation > known {
                    let (at, _) = head.at;
                    self.replace_policy(at, head.policy);
                }
            }
        }
        self.generation = Some(generation);
        self.config(head.config);
        Ok(())
    }

    /// Tells a policy that came into force in a gap.
    fn replace_policy(&mut self, at: Tick, policy: Policy) {
        let event = Event::PolicyChanged(Arc::new(policy));
        self.told(RecordPart::Step(&LoggedStep { at, event, decisions: Decisions::new() }));
    }

    fn step(&mut self, step: &LoggedStep) {
        if let Event::PolicyChanged(policy) = &step.event {
            self.generation = Some(policy.generation);
        }
        self.findings.steps += 1;
        self.told(RecordPart::Step(step));
    }

    fn config(&mut self, digest: String) {
        if !self.findings.configs.contains(&digest) {
            self.findings.configs.push(digest);
        }
    }

    fn gap(&mut self, places: u64) {
        self.findings.broken += places;
        self.told(RecordPart::Gap);
    }

    fn told(&mut self, part: RecordPart<'_>) {
        (self.tell)(part, self.findings.bytes);
    }
}

/// Why a file cannot be read whose first line is no head.
fn wrong_head(line: &[u8], error: &serde_json::Error) -> String {
    let head = serde_json::from_slice::<serde_json::Value>(line).unwrap_or_default();
    match head["head"]["program"].as_str() {
        Some(program) => format!(
            "penstock {program} wrote it, and this program, {}, cannot read its policy: {error}",
            env!("CARGO_PKG_VERSION")
        ),
        None => format!("the first line is not the head of a record: {error}"),
    }
}
