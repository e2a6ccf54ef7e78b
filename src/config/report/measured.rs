//! Objective check: file objectives that no running pool has met.

use std::time::Duration;

use crate::config::load::LoadOutcome;
use crate::config::report::ConfigReport;
use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::yaml;
use crate::core::model::policy::Policy;
use crate::core::placement::unattainable::{ObjectiveKind, UnattainableObjective, unattainable};
use crate::core::replica::speed::pool_best::PoolBest;

/// The report on a file, with warnings about objectives that no
/// pool has ever kept, by what `best` knows of each pool's name.
pub fn check_against(mut outcome: LoadOutcome, best: &dyn Fn(&str) -> Option<PoolBest>) -> ConfigReport {
    if let Some(loaded) = &outcome.loaded {
        let policy = &loaded.settings.policy;
        let found = unattainable(policy, |pool| best(policy.pools.name(pool)));
        let problems = found.iter().map(|row| problem(row, policy, best, &outcome.report));
        let problems: Vec<ConfigProblem> = problems.collect();
        outcome.report.problems.extend(problems);
        outcome.report.problems.sort_by_key(|problem| (problem.line, problem.column));
    }
    outcome.report
}

fn problem(
    row: &UnattainableObjective,
    policy: &Policy,
    best: &dyn Fn(&str) -> Option<PoolBest>,
    report: &ConfigReport,
) -> ConfigProblem {
    let (class, pool) = (policy.classes.name(row.class), policy.pools.name(row.pool));
    let field = FieldPath::top("classes").key(class).key(row.objective.name());
    let mark = yaml::parse(report.text()).ok().map(|tree| tree.locate(&field));
    let rate = best(pool).filter(|_| row.objective == ObjectiveKind::Ttft);
    let rate = rate.map(|best| {
        format!(", which reads {} prompt tokens a second at best", best.prefill_tokens_per_second)
    });
    let message = format!(
        "{} is promised, and no pool of `{}` has ever kept it: the shortest {} of {} is {}, at the pool `{pool}`{}",
        millis(row.target),
        policy.models.name(row.model),
        row.objective.description(),
        row.samples,
        millis(row.best),
        rate.unwrap_or_default(),
    );
    let hint = format!("write more than {}, or let the class use faster pools", millis(row.best));
    ConfigProblem {
        severity: Severity::Warning,
        line: mark.map(|mark| mark.line),
        column: mark.map(|mark| mark.column),
        path: field.to_string(),
        message,
        hint: Some(hint),
    }
}

fn millis(time: Duration) -> String {
    let millis = time.as_secs_f64() * 1e3;
    if millis < 10.0 { format!("{millis:.1}ms") } else { format!("{millis:.0}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load_file;

    const FILE: &str = "version: 1
auth: {mode: off}
classes:
  fast: {ttft: 100ms, itl: 5ms}
pools:
  p: {engine: openai, models: [m], replicas: ['http://127.0.0.1:8001']}
";

    #[test]
    fn what_is_promised_is_held_against_what_was_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.yaml");
        std::fs::write(&path, FILE).unwrap();
        let ms = |millis| Some(Duration::from_millis(millis));
        let shown = PoolBest {
            first_token: ms(180),
            first_tokens: 1_200,
            gap: ms(4),
            gaps: 90_000,
            prefill_tokens_per_second: 21_000,
        };
        let best = |name: &str| (name == "p").then_some(shown);
        let report = check_against(load_file(&path, None), &best);
        let mut warnings = report.problems.iter().filter(|problem| problem.severity == Severity::Warning);
        let (Some(problem), None) = (warnings.next(), warnings.next()) else { panic!("{report}") };
        assert_eq!(
            problem.to_string(),
            "warning at 4:16: classes.fast.ttft: 100ms is promised, and no pool of `m` has ever kept it: the shortest \
             first token of 1200 is 180ms, at the pool `p`, which reads 21000 prompt tokens a second at best \
             (write more than 180ms, or let the class use faster pools)"
        );
        assert_eq!(report.exit_code(), 0);
        let unseen = check_against(load_file(&path, None), &|_| None).problems;
        assert!(unseen.iter().all(|problem| problem.severity == Severity::Info), "{unseen:?}");
    }
}
