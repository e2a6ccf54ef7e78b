//! Check of `usage`: the journal and its database.

use crate::config::load::folder::folder;
use crate::config::secret::SecretReader;
use crate::config::sections::secret_ref;
use crate::config::sections::usage::{DatabaseSection, PostgresSection, UsageSection};
use crate::config::settings::usage::{self, UsageSettings};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::units::Span;
use crate::config::validate::findings::Findings;

const MIN_SEGMENT: u64 = 64 << 10;
const MAX_SEGMENT: u64 = 1 << 30;
const MIN_AGE: Span = Span::secs(60);
const MIN_RETENTION: Span = Span::secs(86_400);
/// What limits of a month look back on.
const MONTH: Span = Span::secs(32 * 86_400);
const QUEUE: std::ops::RangeInclusive<u32> = 16..=1_000_000;
/// SQLite's file in the journal's folder.
const SQLITE_FILE: &str = "usage.db";

/// What the section asks for; `None` where it asks for nothing.
pub(in crate::config) fn validate(
    written: &UsageSection,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<UsageSettings> {
    let section = FieldPath::top("usage");
    sizes(written, &section, findings);
    let postgres = postgres(written, &section, secrets, findings);
    let Some(path) = written.folder.as_deref() else {
        if written.postgres.is_some() || written.database == DatabaseSection::Postgres {
            let hint = "name a folder for the journal that the database is fed from";
            findings.error(&section.key("folder"), "is missing", hint);
        }
        return None;
    };
    let full = secrets.path(path);
    if path.is_empty() || full.is_file() {
        findings.error(&section.key("folder"), format!("{path:?} is no folder"), "name a folder");
    } else if !full.is_dir() && !folder(&full).is_dir() {
        let message = format!("the folder that {path:?} is in is not there");
        findings.error(
            &section.key("folder"),
            secrets.absent(message),
            "make it, or name a folder elsewhere",
        );
    }
    let database = match written.database {
        DatabaseSection::Sqlite => Some(usage::UsageDatabase::Sqlite(full.join(SQLITE_FILE))),
        DatabaseSection::Postgres => Some(usage::UsageDatabase::Postgres(postgres?)),
        DatabaseSection::None => None,
    };
    Some(UsageSettings {
        folder: full,
        database,
        segment_bytes: written.segment_size.0,
        segment_age: written.segment_age.0,
        keep_bytes: written.keep.0,
        retention: written.retention.map(|age| age.0),
        queue: usize::try_from(written.queue).unwrap_or(usize::MAX),
    })
}

fn sizes(written: &UsageSection, section: &FieldPath, findings: &mut Findings<'_>) {
    if !(MIN_SEGMENT..=MAX_SEGMENT).contains(&written.segment_size.0) {
        let message = format!("{} is out of range", written.segment_size);
        findings.error(&section.key("segment_size"), message, "write 64KiB to 1GiB");
    } else if written.keep.0 < 2 * written.segment_size.0 {
        let message = format!("{} is less than two files of {}", written.keep, written.segment_size);
        findings.error(&section.key("keep"), message, "keep more, or make the files smaller");
    }
    if written.segment_age < MIN_AGE {
        findings.error(&section.key("segment_age"), "is too short", "write 1m or more");
    }
    if let Some(age) = written.retention {
        let field = section.key("retention");
        if age < MIN_RETENTION {
            findings.error(&field, "is too short", "write 1d or more");
        } else if age < MONTH {
            let hint = "write 32d or more where tenants have such limits";
            findings.warn(
                &field,
                "is shorter than a month: after a restart, limits of a month know less",
                hint,
            );
        }
        if written.database == DatabaseSection::None {
            findings.warn(&field, "is not used without a database", "take it away; the journal has `keep`");
        }
    }
    if !QUEUE.contains(&written.queue) {
        let message = format!("{} is out of range", written.queue);
        findings.error(&section.key("queue"), message, "write 16 to 1000000");
    }
}

fn postgres(
    written: &UsageSection,
    section: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<usage::PostgresSettings> {
    let field = section.key("postgres");
    match (written.database, &written.postgres) {
        (DatabaseSection::Postgres, Some(postgres)) => address(postgres, &field, secrets, findings),
        (DatabaseSection::Postgres, None) => {
            let hint = "write `postgres: {url: {env: NAME}}`, or `database: sqlite`";
            findings.error(&field, "is missing", hint);
            None
        }
        (_, Some(_)) => {
            let hint = "write `database: postgres`, or take this away";
            findings.warn(&field, "is not used", hint);
            None
        }
        (_, None) => None,
    }
}

fn address(
    written: &PostgresSection,
    field: &FieldPath,
    secrets: &mut SecretReader<'_>,
    findings: &mut Findings<'_>,
) -> Option<usage::PostgresSettings> {
    let url = secret_ref::read(&written.url, &field.key("url"), secrets, findings);
    // The parse error is left out: it may contain the password.
    if url.as_ref().is_some_and(|url| url.expose().parse::<postgres::Config>().is_err()) {
        let hint = "write postgres://user:password@host:5432/database";
        findings.error(&field.key("url"), "is no address of a PostgreSQL database", hint);
    }
    let ca = match &written.ca_file {
        None => None,
        Some(path) => {
            let hint = "paths start at this file's folder";
            let pem = secrets.bytes(path);
            Some(pem.map_err(|message| findings.error(&field.key("ca_file"), message, hint)).ok()?.into())
        }
    };
    let url_file = written.url.file.as_deref().map(|path| secrets.path(path));
    Some(usage::PostgresSettings { url: url?, url_file, ca })
}
