//! Usage journal of a gateway, and `penstock usage`.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use crate::cli::usage::{BillFormat, ShareArg, UsageArgs};
use crate::config::load;
use crate::config::secret::{MachineSecrets, Secret, SecretSource as _};
use crate::config::settings::Settings;
use crate::config::settings::usage::{PostgresSettings, UsageDatabase, UsageSettings};
use crate::core::limits::rule::{LimitId, LimitPeriod, LimitRule, LimitScope, LimitUnit};
use crate::core::model::event::Event;
use crate::core::model::policy::Policy;
use crate::dispatcher::Dispatcher;
use crate::telemetry::event::UsageCounted;
use crate::telemetry::{Telemetry, wall};
use crate::usage::bill::{self, BillQuery, BillSums, RowSource, ask, text};
use crate::usage::{PriorUsage, UsageError, UsageJournal};

/// Periods whose limits survive a restart.
const PERIODS: [LimitPeriod; 2] = [LimitPeriod::Day, LimitPeriod::Month];

/// Now, in milliseconds since 1970.
pub(super) fn now_ms() -> i64 {
    (wall::unix_seconds(wall::now()) * 1e3) as i64
}

/// Starts to write to the database. Also tells the scheduler the amounts used of this day's and
/// month's limits before the start. The scheduler must know both periods before this call.
pub(super) fn follow(
    usage: &mut UsageJournal,
    dispatcher: &Arc<Dispatcher>,
    policy: &Arc<Policy>,
    begins_ms: [i64; 2],
    telemetry: &Telemetry,
) -> Result<(), UsageError> {
    let lasting = |rule: &LimitRule| PERIODS.contains(&rule.id.period);
    let any = policy.limits.iter().any(lasting);
    let moments = if any { begins_ms.to_vec() } else { Vec::new() };
    let (dispatcher, policy, telemetry) = (Arc::clone(dispatcher), Arc::clone(policy), telemetry.clone());
    usage.follow(moments, move |found| {
        for (period, before) in PERIODS.into_iter().zip(found) {
            let used = used_amounts(&policy, period, &before);
            let (limits, partial) = (used.len(), before.partial);
            for (rule, amount) in used {
                dispatcher.event(Event::UsageRestored { rule, amount });
            }
            UsageCounted { period: period.name(), limits, partial }.emit(&telemetry);
        }
    })
}

/// Amount used of each limit of a period.
fn used_amounts(policy: &Policy, period: LimitPeriod, before: &PriorUsage) -> Vec<(LimitId, u64)> {
    let rules = policy.limits.iter().map(|rule| rule.id).filter(|id| id.period == period);
    let amounts = rules.map(|id| {
        let mut sums = BillSums::default();
        for used in &before.used {
            let is_of = match id.scope {
                LimitScope::Tenant(tenant) => policy.tenants.name(tenant) == used.tenant,
                LimitScope::Key(key) => policy.keys.name(key) == used.key,
                LimitScope::Model(tenant, model) => {
                    policy.tenants.name(tenant) == used.tenant && policy.models.name(model) == used.model
                }
            };
            if is_of {
                sums.add(&used.sums);
            }
        }
        (id, amount(id.unit, &sums))
    });
    amounts.filter(|(_, amount)| *amount > 0).collect()
}

fn amount(unit: LimitUnit, sums: &BillSums) -> u64 {
    let bounded = |amount: u128| u64::try_from(amount).unwrap_or(u64::MAX);
    match unit {
        LimitUnit::Requests => sums.requests,
        LimitUnit::InputTokens => sums.input_tokens,
        LimitUnit::OutputTokens => sums.output_tokens,
        LimitUnit::Tokens => sums.input_tokens.saturating_add(sums.output_tokens),
        LimitUnit::GpuTime => bounded(sums.gpu_ns),
        LimitUnit::Money => bounded(sums.money_nano),
    }
}

/// Source of the usage rows of a running gateway.
pub(super) fn row_source(settings: &UsageSettings) -> RowSource {
    let database = settings.database.clone();
    database.map_or_else(|| RowSource::Journal(settings.folder.clone()), RowSource::Database)
}

/// Path of the bill at the admin port of a running gateway, if the arguments name one.
pub(super) fn of_gateway(args: &UsageArgs) -> Option<String> {
    args.admin.as_ref()?;
    let by = args.by.iter().map(|dimension| dimension.name()).collect::<Vec<_>>().join(",");
    let share = match args.share {
        ShareArg::Steps => "steps",
        ShareArg::Tokens => "tokens",
    };
    let format = match args.format {
        BillFormat::Table => "table",
        BillFormat::Csv => "csv",
        BillFormat::Json => "json",
    };
    let mut query = url::form_urlencoded::Serializer::new("usage?".to_owned());
    query.append_pair("by", &by).append_pair("share", share).append_pair("format", format);
    for (key, value) in [("since", &args.since), ("until", &args.until)] {
        value.iter().for_each(|value| _ = query.append_pair(key, value));
    }
    Some(query.finish())
}

/// Runs `penstock usage` and returns the text to print.
pub(super) fn run(args: &UsageArgs) -> anyhow::Result<String> {
    let now_ms = now_ms();
    let moment = |text: &Option<String>, flag: &str| {
        let moment = text.as_deref().map(|text| ask::moment(text, now_ms));
        moment.transpose().map_err(|message| anyhow::anyhow!("{flag}: {message}"))
    };
    let mut query = BillQuery {
        since_ms: moment(&args.since, "--since")?,
        until_ms: moment(&args.until, "--until")?,
        share: args.share.into(),
        ..BillQuery::default()
    };
    for dimension in &args.by {
        if !query.by.contains(dimension) {
            query.by.push(*dimension);
        }
    }
    let bill = bill::make(&query, &source(args)?)?;
    Ok(match args.format {
        BillFormat::Table => text::table(&bill),
        BillFormat::Csv => text::csv(&bill),
        BillFormat::Json => format!("{:#}\n", text::json(&bill)),
    })
}

fn source(args: &UsageArgs) -> anyhow::Result<RowSource> {
    if let Some(folder) = &args.journal {
        return Ok(RowSource::Journal(folder.clone()));
    }
    if let Some(file) = &args.sqlite {
        return Ok(RowSource::Database(UsageDatabase::Sqlite(file.clone())));
    }
    if let Some(name) = &args.postgres {
        let url = MachineSecrets.env(name).with_context(|| {
            format!("the environment variable {name} is not set: --postgres takes its name, not the address")
        })?;
        let url = Secret::new(url.trim());
        return Ok(RowSource::Database(UsageDatabase::Postgres(PostgresSettings {
            url,
            url_file: None,
            ca: None,
        })));
    }
    source_of_file(&args.config)
}

/// Source of the usage rows that a gateway with this configuration file writes.
fn source_of_file(path: &Path) -> anyhow::Result<RowSource> {
    let hint = "; --sqlite, --postgres and --journal need no configuration";
    let loaded = load::load_file(path, None).into_result().map_err(|report| {
        anyhow::anyhow!("{report}the configuration {} cannot be used{hint}", path.display())
    })?;
    let missing = || format!("{} has no `usage.folder`, so nothing is written down{hint}", path.display());
    source_of_settings(&loaded.settings).with_context(missing)
}

/// Source of the usage rows that a gateway with these settings writes; absent = the gateway writes
/// none.
pub(super) fn source_of_settings(settings: &Settings) -> Option<RowSource> {
    let usage = settings.startup.usage.clone()?;
    Some(match usage.database {
        // No row was copied to the database yet.
        Some(UsageDatabase::Sqlite(file)) if !file.exists() => RowSource::Journal(usage.folder),
        Some(database) => RowSource::Database(database),
        None => RowSource::Journal(usage.folder),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str;
    use crate::usage::PriorUsageRow;

    #[test]
    fn what_was_used_before_is_told_limit_by_limit() {
        let text = "
version: 1
auth: {mode: off}
tenants:
  red:
    limits: {per_day: {tokens: 1000, requests: 50}, per_minute: {tokens: 10}}
    model_limits: {m: {per_day: {output_tokens: 400}}}
    keys:
      - {id: k7m2qa4x, digest: \"blake3:2334fa4031df5cb85fc694e62f932e47745540d71ba4bdc0961446812496d37b\", limits: {per_month: {input_tokens: 9}}}
pools: {p: {engine: vllm, models: [m, n], replicas: [http://a:1]}}
";
        let loaded = load_str(text, "p", Path::new("/"), None).into_result();
        let policy = loaded.unwrap_or_else(|report| panic!("{report}")).settings.policy;
        let one = |tenant: &str, key: &str, model: &str| PriorUsageRow {
            tenant: tenant.into(),
            key: key.into(),
            model: model.into(),
            sums: BillSums { requests: 1, input_tokens: 10, output_tokens: 3, ..BillSums::default() },
        };
        let used_by = [one("red", "k7m2qa4x", "m"), one("red", "", "n"), one("blue", "x", "m")];
        let before = PriorUsage { used: used_by.to_vec(), partial: false };
        let mut day: Vec<_> = used_amounts(&policy, LimitPeriod::Day, &before)
            .into_iter()
            .map(|(id, sum)| (id.unit.name(), sum))
            .collect();
        day.sort_unstable();
        assert_eq!(day, [("output_tokens", 3), ("requests", 2), ("tokens", 26)]);
        let month = used_amounts(&policy, LimitPeriod::Month, &before);
        assert_eq!((month.len(), month[0].1), (1, 10));
    }
}
