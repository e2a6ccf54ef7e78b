//! Plan of a replay: the time, client and class of every call. The plan is made before the run and
//! does not depend on any answer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use penstock::sim::trace::MAX_CALLS;

use super::source::Source;

/// One call to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// When, from the start of the run.
    pub at: Duration,
    /// Place in [`Plan::tenants`].
    pub tenant: usize,
    /// Place in [`Plan::classes`].
    pub class: usize,
    /// Prompt tokens.
    pub input: u32,
    /// Output tokens.
    pub output: u32,
    /// Names of the leading blocks of the prompt.
    pub prefix: Arc<[u64]>,
}

/// All calls of a run, in order of time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Who makes calls.
    pub tenants: Vec<String>,
    /// Which classes they ask for; `None` = they do not ask.
    pub classes: Vec<Option<String>>,
    /// The calls.
    pub calls: Vec<Planned>,
    /// Tokens of a block in [`Planned::prefix`].
    pub prefix_block: u32,
}

impl Plan {
    /// Makes the plan of several sources. A seed fixes the part of the trace
    /// that each starts with, the tenants' draws and made-up gaps; seed 0 takes
    /// traces from their start. Paths are relative to `folder`.
    ///
    /// # Errors
    /// With the number of the source, its field and what is wrong with it.
    pub fn of(sources: &[Source], folder: &Path, seed: u64) -> Result<Self> {
        let mut plan = Plan::default();
        for (number, source) in sources.iter().enumerate() {
            plan.add(source, folder, seed).with_context(|| format!("load, entry {}", number + 1))?;
        }
        ensure!(!plan.calls.is_empty(), "the load has no calls");
        plan.calls.sort_by_key(|call| call.at);
        Ok(plan)
    }

    /// The last planned instant.
    pub fn span(&self) -> Duration {
        self.calls.last().map_or(Duration::ZERO, |call| call.at)
    }

    fn add(&mut self, source: &Source, folder: &Path, seed: u64) -> Result<()> {
        let from = source.from()?;
        let trace = source.calls(folder, seed)?;
        if trace.prefix_block > 0 {
            let known = std::mem::replace(&mut self.prefix_block, trace.prefix_block);
            ensure!(
                known == 0 || known == trace.prefix_block,
                "its prompts have prefix blocks of {} tokens and those before of {known}",
                trace.prefix_block
            );
        }
        let tenants: Vec<usize> =
            trace.tenants.iter().map(|name| place(&mut self.tenants, name.to_string())).collect();
        let class = place(&mut self.classes, source.class.clone());
        self.calls.extend(trace.calls.into_iter().map(|call| Planned {
            at: from + call.at,
            tenant: tenants[call.tenant as usize],
            class,
            input: call.prompt,
            output: call.output,
            prefix: call.prefix,
        }));
        ensure!(self.calls.len() <= MAX_CALLS, "more than {MAX_CALLS} calls");
        Ok(())
    }
}

fn place<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
    list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::source::Arrivals;

    fn even(rate: f64, for_s: f64, tenant: &str, class: &str) -> Source {
        Source {
            input: Some(100),
            output: Some(10),
            rate: Some(rate),
            for_s: Some(for_s),
            arrivals: Some(Arrivals::Even),
            tenants: [(tenant.to_owned(), 1.0)].into(),
            class: Some(class.to_owned()),
            ..Source::default()
        }
    }

    fn plan(sources: &[Source], seed: u64) -> Result<Plan> {
        Plan::of(sources, Path::new(env!("CARGO_MANIFEST_DIR")), seed)
    }

    #[test]
    fn sources_are_merged_in_order_of_time() {
        let late = Source { from_s: 1.25, ..even(2.0, 1.0, "b", "batch") };
        let burst =
            Source { at_once: Some(3), rate: None, for_s: None, from_s: 2.0, ..even(1.0, 1.0, "a", "batch") };
        let plan = plan(&[even(1.0, 3.0, "a", "interactive"), late, burst], 0).expect("a plan");
        let calls: Vec<_> =
            plan.calls.iter().map(|call| (call.at.as_millis(), call.tenant, call.class)).collect();
        let expected = [
            (0, 0, 0),
            (1000, 0, 0),
            (1250, 1, 1),
            (1750, 1, 1),
            (2000, 0, 0),
            (2000, 0, 1),
            (2000, 0, 1),
            (2000, 0, 1),
            (2250, 1, 1),
            (3000, 0, 0),
        ];
        assert_eq!(calls, expected);
        assert_eq!(plan.tenants, ["a", "b"]);
        assert_eq!(plan.span(), Duration::from_secs(3));
    }

    #[test]
    fn a_seed_makes_the_same_plan_and_another_another() {
        let source = Source {
            trace: Some("traces/azure2023_conv.csv.gz".into()),
            rate: Some(40.0),
            for_s: Some(20.0),
            tenants: [("a".to_owned(), 1.0), ("b".to_owned(), 3.0)].into(),
            ..Source::default()
        };
        let sources = [source];
        let (first, again, other) = (
            plan(&sources, 1).expect("a plan"),
            plan(&sources, 1).expect("a plan"),
            plan(&sources, 2).expect("a plan"),
        );
        assert!(first == again && first != other);
        assert!(first.span() <= Duration::from_secs(20));
        assert!((500..1200).contains(&first.calls.len()), "{}", first.calls.len());
        let share =
            first.calls.iter().filter(|call| call.tenant == 1).count() as f64 / first.calls.len() as f64;
        assert!((0.68..0.82).contains(&share), "{share}");
    }

    #[test]
    fn errors_name_the_entry_and_the_field() {
        let short = Source {
            trace: Some("traces/azure2023_conv.csv.gz".into()),
            for_s: Some(1e5),
            ..Source::default()
        };
        let table = [
            (Source::default(), "it needs `trace`"),
            (Source { rate: Some(0.0), ..even(1.0, 1.0, "a", "b") }, "`rate` must be"),
            (Source { from_s: -1.0, ..even(1.0, 1.0, "a", "b") }, "`from_s` must be"),
            (
                Source { tenants: [("a".to_owned(), -1.0)].into(), ..even(1.0, 1.0, "a", "b") },
                "`tenants` need",
            ),
            (Source { at_once: Some(2), ..even(1.0, 1.0, "a", "b") }, "`at_once` excludes"),
            (Source { for_s: None, ..even(1.0, 1.0, "a", "b") }, "need `rate` and `for_s`"),
            (short, "the trace lasts"),
            (Source { trace: Some("nowhere.csv".into()), ..Source::default() }, "nowhere.csv"),
        ];
        for (source, expected) in table {
            let error = plan(&[even(1.0, 1.0, "a", "b"), source], 0).expect_err(expected);
            let text = format!("{error:#}");
            assert!(text.contains("entry 2") && text.contains(expected), "{text}");
        }
    }
}
