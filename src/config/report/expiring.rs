//! Keys and tokens that have ended, or end soon.

use std::time::{Duration, SystemTime};

use crate::config::load::LoadOutcome;
use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::sections::identity::Moment;
use crate::config::sections::identity::key_files::field_of;
use crate::config::settings::identity::Auth;
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::yaml;

/// Warns about keys and tokens that have ended at `now`, or end within `soon` of it.
pub fn warn(outcome: &mut LoadOutcome, now: SystemTime, soon: Duration) {
    let Some(loaded) = &outcome.loaded else { return };
    let mut ends: Vec<(FieldPath, String, SystemTime)> = Vec::new();
    let mut add = |field: FieldPath, id: &str, expires: Option<Moment>| {
        if let Some(end) = expires {
            ends.push((field.key("expires"), id.to_owned(), end.0.into()));
        }
    };
    for (name, tenant) in loaded.file.tenants.iter() {
        for (at, key) in tenant.keys.iter().enumerate() {
            add(FieldPath::top("tenants").key(name).key("keys").index(at), &key.id, key.expires);
        }
    }
    for (at, token) in loaded.file.admin.auth.tokens.iter().enumerate() {
        add(FieldPath::top("admin").key("auth").key("tokens").index(at), &token.id, token.expires);
    }
    if let Auth::Known(known) = &loaded.settings.edge.auth {
        for (id, key) in known.keys.iter() {
            if let (Some(file), Some(end)) = (&key.origin.file, key.expires) {
                ends.push((field_of(file), id.to_owned(), end));
            }
        }
    }
    ends.retain(|(.., end)| *end <= now + soon);
    if ends.is_empty() {
        return;
    }
    ends.sort_by(|a, b| (a.2, &a.1).cmp(&(b.2, &b.1)));
    let tree = yaml::parse(outcome.report.text()).ok();
    let problem = |(field, id, end): (FieldPath, String, SystemTime)| {
        let mark = tree.as_ref().map(|tree| tree.locate(&field));
        let when = jiff::Timestamp::try_from(end).map(|at| at.to_string()).unwrap_or_default();
        let (verb, hint) = match end <= now {
            true => ("ended", "take it away, or give its holder another one"),
            false => ("ends", "make the next one, and give both to its holder"),
        };
        ConfigProblem {
            severity: Severity::Warning,
            line: mark.map(|mark| mark.line),
            column: mark.map(|mark| mark.column),
            path: field.to_string(),
            message: format!("`{id}` {verb} at {when}"),
            hint: Some(hint.to_owned()),
        }
    };
    let problems: Vec<ConfigProblem> = ends.into_iter().map(problem).collect();
    outcome.report.problems.extend(problems);
    outcome.report.problems.sort_by_key(|problem| (problem.line, problem.column));
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str;

    #[test]
    fn keys_and_tokens_that_end_are_named_with_their_line() {
        let digest = |letter: char| format!("'blake3:{}'", letter.to_string().repeat(64));
        let text = format!(
            "version: 1
tenants:
  a:
    keys:
    - {{id: aaaaaaaa, digest: {}, expires: 2026-11-01}}
    - {{id: bbbbbbbb, digest: {}, expires: 2026-12-01}}
    - {{id: cccccccc, digest: {}, expires: 2027-12-01}}
admin: {{auth: {{tokens: [{{id: dddddddd, digest: {}, expires: 2026-11-02}}]}}}}
pools: {{p: {{engine: openai, max_seqs: 8, models: [m], replicas: ['http://p:1']}}}}
",
            digest('a'),
            digest('b'),
            digest('c'),
            digest('d'),
        );
        let mut outcome = load_str(&text, "p", Path::new("/"), None);
        let now: jiff::Timestamp = "2026-11-25T00:00:00Z".parse().unwrap();
        warn(&mut outcome, now.into(), Duration::from_secs(14 * 24 * 3600));
        let said: Vec<String> = outcome.report.problems.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(
            said[0].contains("at 5:") && said[0].contains("`aaaaaaaa` ended at 2026-11-01T00:00:00Z"),
            "{said:?}"
        );
        assert!(said[1].contains("at 6:") && said[1].contains("`bbbbbbbb` ends at"), "{said:?}");
        assert!(said[2].contains("admin.auth.tokens[0].expires: `dddddddd` ended"), "{said:?}");
    }
}
