//! Journal segments: numbered files with whole lines of JSON, one row a line. A reader keeps its
//! position as a [`Cursor`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::protocol::ids::random;
use crate::usage::row::UsageRow;

/// Bytes that are read at a time. No line is longer.
pub(super) const CHUNK: u64 = 1 << 20;

/// File with the journal's id.
const ID: &str = "id";

/// Position between two lines of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Cursor {
    /// Number of the segment; the first segment is 1.
    pub(super) segment: u64,
    /// Offset in the segment, in bytes.
    pub(super) offset: u64,
}

/// One file of the journal, with its length in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) len: u64,
}

/// Folder of the journal's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalFolder(PathBuf);

/// Rows of one read.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) rows: Vec<UsageRow>,
    /// Position of the next read.
    pub(super) until: Cursor,
    /// Number of lines that are not usage rows.
    pub(super) broken: u64,
}

impl JournalFolder {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the folder if it is missing, but not its parent.
    pub(super) fn make(&self) -> io::Result<()> {
        match fs::DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    /// Locks the folder against other processes, for as long as the returned file is open.
    pub(super) fn lock(&self) -> io::Result<File> {
        let path = self.0.join("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        file.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => {
                io::Error::new(io::ErrorKind::ResourceBusy, "another process writes there")
            }
            fs::TryLockError::Error(error) => error,
        })?;
        Ok(file)
    }

    /// Returns the id of the journal, and makes a random one at the first start. A database that
    /// several gateways share keeps one cursor for each id.
    pub(super) fn id(&self) -> io::Result<String> {
        if let Ok(text) = fs::read_to_string(self.0.join(ID)) {
            let id = text.trim();
            if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Ok(id.to_owned());
            }
        }
        let id: String = random::bytes::<16>().iter().map(|byte| format!("{byte:02x}")).collect();
        self.keep_id(&id)?;
        Ok(id)
    }

    /// Writes the id file if it is missing. A folder may be emptied while the process runs.
    pub(super) fn keep_id(&self, id: &str) -> io::Result<()> {
        let path = self.0.join(ID);
        if path.exists() {
            return Ok(());
        }
        let new = self.0.join("id.new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(format!("{id}\n").as_bytes())?;
        file.sync_all()?;
        fs::rename(new, path)
    }

    pub(super) fn file(&self, number: u64) -> PathBuf {
        self.0.join(format!("usage-{number:08}.jsonl"))
    }

    /// Lists the segments, the oldest first.
    pub(super) fn segments(&self) -> io::Result<Vec<Segment>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("usage-")?.strip_suffix(".jsonl"));
            let Some(number) = number.and_then(|digits| digits.parse().ok()) else { continue };
            // The file may just have been deleted.
            let Ok(about) = entry.metadata() else { continue };
            found.push(Segment { number, len: about.len() });
        }
        found.sort_unstable_by_key(|segment| segment.number);
        Ok(found)
    }

    /// Cuts off the partial last line that a killed process has left.
    pub(super) fn truncate_partial_line(&self, segment: Segment) -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.file(segment.number))?;
        let from = segment.len.saturating_sub(CHUNK);
        file.seek(SeekFrom::Start(from))?;
        let mut end = Vec::new();
        file.read_to_end(&mut end)?;
        let whole = end.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        if whole < end.len() {
            file.set_len(from + whole as u64)?;
        }
        Ok(())
    }

    /// Reads rows from a cursor up to `end`: whole lines only, from one segment, at most [`CHUNK`]
    /// bytes. The batch is empty when there are no more rows.
    pub(super) fn read(&self, from: Cursor, end: Cursor) -> io::Result<Batch> {
        let mut batch = Batch { until: from, ..Batch::default() };
        for segment in self.segments()?.into_iter().filter(|segment| segment.number >= from.segment) {
            if segment.number > batch.until.segment {
                batch.until = Cursor { segment: segment.number, offset: 0 };
            }
            if batch.until >= end {
                break;
            }
            let last = if segment.number == end.segment { end.offset } else { segment.len };
            self.read_segment(segment.number, last, &mut batch)?;
            if !batch.rows.is_empty() || batch.broken > 0 {
                break;
            }
        }
        Ok(batch)
    }

    fn read_segment(&self, number: u64, last: u64, batch: &mut Batch) -> io::Result<()> {
        let start = batch.until.offset;
        let mut file = match File::open(self.file(number)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        file.seek(SeekFrom::Start(start))?;
        let mut chunk = Vec::new();
        file.take(CHUNK.min(last.saturating_sub(start))).read_to_end(&mut chunk)?;
        let whole = chunk.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let torn = whole == 0 && !chunk.is_empty();
        let taken = if torn { chunk.len() } else { whole };
        for line in chunk[..taken].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            match serde_json::from_slice(line) {
                Ok(row) => batch.rows.push(row),
                Err(_) => batch.broken += 1,
            }
        }
        batch.until.offset += taken as u64;
        Ok(())
    }

    /// Counts the bytes between a cursor and the end of the journal.
    pub(super) fn unread(&self, from: Cursor) -> io::Result<u64> {
        let later = self.segments()?.into_iter().filter(|segment| segment.number >= from.segment);
        Ok(later
            .map(|segment| {
                segment.len - if segment.number == from.segment { from.offset.min(segment.len) } else { 0 }
            })
            .sum())
    }

    /// Counts the lines of a segment after a cursor.
    pub(super) fn lines_after(&self, number: u64, from: Cursor) -> io::Result<u64> {
        if number < from.segment {
            return Ok(0);
        }
        let mut file = File::open(self.file(number))?;
        if number == from.segment {
            file.seek(SeekFrom::Start(from.offset))?;
        }
        let mut lines = 0;
        let mut reader = BufReader::new(file);
        while reader.skip_until(b'\n')? > 0 {
            lines += 1;
        }
        Ok(lines)
    }
}

/// Calls `take` with every row between two cursors. Returns the number of lines that are not usage
/// rows.
pub(super) fn each_between(
    folder: &JournalFolder,
    from: Cursor,
    end: Cursor,
    mut take: impl FnMut(&UsageRow),
) -> io::Result<u64> {
    let (mut cursor, mut broken) = (from, 0);
    loop {
        let batch = folder.read(cursor, end)?;
        batch.rows.iter().for_each(&mut take);
        broken += batch.broken;
        if batch.until == cursor {
            return Ok(broken);
        }
        cursor = batch.until;
    }
}

/// Calls `take` with every row of the journal in a folder, the oldest first. Returns the number of
/// lines that are not usage rows.
///
/// # Errors
/// The folder or one of its files cannot be read.
pub fn each_row(folder: &Path, take: impl FnMut(&UsageRow)) -> io::Result<u64> {
    let folder = JournalFolder::new(folder);
    let Some(last) = folder.segments()?.last().copied() else { return Ok(0) };
    each_between(&folder, Cursor::default(), Cursor { segment: last.number, offset: last.len }, take)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::row::tests::row;

    const END: Cursor = Cursor { segment: u64::MAX, offset: 0 };

    fn line(time_ms: i64) -> String {
        serde_json::to_string(&row(time_ms, "red")).unwrap() + "\n"
    }

    fn folder(files: &[(u64, String)]) -> (tempfile::TempDir, JournalFolder) {
        let temp = tempfile::tempdir().unwrap();
        let folder = JournalFolder::new(temp.path());
        for (number, text) in files {
            fs::write(folder.file(*number), text).unwrap();
        }
        (temp, folder)
    }

    fn times(batch: &Batch) -> Vec<i64> {
        batch.rows.iter().map(|row| row.time_ms).collect()
    }

    #[test]
    fn segments_are_read_in_order_and_only_up_to_the_end() {
        let (_temp, folder) = folder(&[(9, line(1) + &line(2)), (10, String::new()), (11, line(3))]);
        let first = folder.read(Cursor::default(), END).unwrap();
        assert_eq!(times(&first), [1, 2]);
        let second = folder.read(first.until, END).unwrap();
        assert_eq!((times(&second), second.until.segment), (vec![3], 11));
        let none = folder.read(second.until, END).unwrap();
        assert_eq!((times(&none), none.until), (vec![], second.until));
        let early = Cursor { segment: 9, offset: line(1).len() as u64 };
        assert_eq!(times(&folder.read(Cursor::default(), early).unwrap()), [1]);
        assert_eq!(folder.unread(early).unwrap(), (line(2).len() + line(3).len()) as u64);
        assert_eq!(folder.lines_after(9, early).unwrap(), 1);
        assert_eq!(folder.lines_after(11, early).unwrap(), 1);
    }

    #[test]
    fn a_torn_line_is_passed_over_once_nobody_adds_to_it() {
        let torn = line(2)[..40].to_owned();
        let (_temp, folder) = folder(&[(1, line(1) + &torn), (2, line(3))]);
        let mut seen = Vec::new();
        let broken = each_row(folder.path(), |row| seen.push(row.time_ms)).unwrap();
        assert_eq!((seen, broken), (vec![1, 3], 1));
    }

    #[test]
    fn a_torn_line_is_cut_off() {
        for (text, left) in
            [(line(1) + "{\"ti", line(1)), ("{\"t".to_owned(), String::new()), (line(1), line(1))]
        {
            let (_temp, folder) = folder(&[(1, text)]);
            folder.truncate_partial_line(folder.segments().unwrap()[0]).unwrap();
            assert_eq!(fs::read_to_string(folder.file(1)).unwrap(), left);
        }
    }

    #[test]
    fn a_journal_has_one_name_and_one_writer() {
        let (_temp, folder) = folder(&[]);
        assert_eq!(folder.id().unwrap(), folder.id().unwrap());
        let held = folder.lock().unwrap();
        assert!(folder.lock().unwrap_err().to_string().contains("another process"));
        drop(held);
        folder.lock().unwrap();
    }
}
