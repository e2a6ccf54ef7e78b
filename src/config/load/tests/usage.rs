//! `usage`.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::config::load::{LoadOutcome, load_str_with};
use crate::config::secret::SecretSource;
use crate::config::settings::usage::{UsageDatabase, UsageSettings};

const SMALL: &str =
    "version: 1\nauth: {mode: off}\npools: {p: {engine: vllm, models: [m], replicas: [http://a:1]}}\n";

struct World;

impl SecretSource for World {
    fn env(&self, name: &str) -> Option<String> {
        match name {
            "URL" => Some("postgres://gate:secret-text@db:5432/usage?sslmode=require".to_owned()),
            "WRONG" => Some("mysql://gate:secret-text@db/usage".to_owned()),
            _ => None,
        }
    }

    fn file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let known = path.ends_with("url");
        known
            .then(|| b"host=db user=gate password=secret-text\n".to_vec())
            .ok_or(io::ErrorKind::NotFound.into())
    }
}

fn load(usage: &str) -> LoadOutcome {
    load_str_with(&format!("{SMALL}usage: {usage}\n"), "p", Path::new("/tmp"), None, &World)
}

fn settings(usage: &str) -> Option<UsageSettings> {
    load(usage).into_result().unwrap_or_else(|report| panic!("{report}")).settings.startup.usage
}

#[test]
fn nothing_is_written_down_unless_a_folder_is_named() {
    assert_eq!(settings("{}"), None);
    let usual = settings("{folder: usage}").unwrap();
    assert_eq!(usual.folder, Path::new("/tmp/usage"));
    assert_eq!(usual.database, Some(UsageDatabase::Sqlite("/tmp/usage/usage.db".into())));
    assert_eq!((usual.keep_bytes, usual.segment_age), (1 << 30, Duration::from_secs(86_400)));
    assert_eq!(settings("{folder: usage, database: none}").unwrap().database, None);
}

#[test]
fn the_address_of_postgres_is_a_secret() {
    for place in ["env: URL", "file: url"] {
        let text = format!("{{folder: usage, database: postgres, postgres: {{url: {{{place}}}}}}}");
        let found = settings(&text).unwrap();
        let Some(UsageDatabase::Postgres(postgres)) = &found.database else { panic!("{found:?}") };
        assert!(postgres.url.expose().contains("secret-text"));
        assert_eq!(postgres.url_file.is_some(), place.starts_with("file"));
        assert!(!format!("{found:?}").contains("secret-text"));
    }
}

#[test]
fn mistakes_are_told_with_their_field() {
    let cases = [
        ("{database: postgres, postgres: {url: {env: URL}}}", "usage.folder", "is missing"),
        ("{folder: /no/such/folder/x}", "usage.folder", "is not there"),
        ("{folder: ''}", "usage.folder", "is no folder"),
        ("{folder: x, segment_size: 1KiB}", "usage.segment_size", "64KiB to 1GiB"),
        ("{folder: x, keep: 20MiB}", "usage.keep", "less than two files of 16MiB"),
        ("{folder: x, segment_age: 1s}", "usage.segment_age", "1m or more"),
        ("{folder: x, queue: 1}", "usage.queue", "16 to 1000000"),
        ("{folder: x, database: mysql}", "usage.database", "mysql"),
        ("{folder: x, database: postgres}", "usage.postgres", "is missing"),
        (
            "{folder: x, database: postgres, postgres: {url: {env: NONE}}}",
            "usage.postgres.url.env",
            "is not set",
        ),
        (
            "{folder: x, database: postgres, postgres: {url: {env: WRONG}}}",
            "usage.postgres.url",
            "no address",
        ),
        (
            "{folder: x, database: postgres, postgres: {url: 'postgres://a:secret-text@b'}}",
            "usage.postgres.url",
            "must not stand",
        ),
        (
            "{folder: x, database: postgres, postgres: {url: {env: URL}, ca_file: none}}",
            "ca_file",
            "cannot be read",
        ),
    ];
    for (text, field, said) in cases {
        let outcome = load(text);
        let report = outcome.report.to_string();
        assert!(outcome.loaded.is_none(), "{text}");
        assert!(report.contains(field) && report.contains(said), "{text}: {report}");
        let shown =
            report.lines().filter(|line| !line.contains('|')).any(|line| line.contains("secret-text"));
        assert!(!shown, "{report}");
    }
    let report = load("{folder: x, postgres: {url: {env: URL}}}").report.to_string();
    assert!(report.contains("warning: usage.postgres: is not used"), "{report}");
}
