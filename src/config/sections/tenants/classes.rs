//! Section `classes`: the latency classes, the built-in ones among them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::sections::guardrails::GuardrailRuleSection;
use crate::config::sections::placement::{CapacityName, IsolationName, LatePolicyName, PlacementSection};
use crate::config::syntax::field::FieldPath;
use crate::config::syntax::named::NamedEntries;
use crate::config::syntax::units::Span;
use crate::config::validate::findings::Findings;
use crate::config::validate::names;
use crate::config::validate::numbers;
use crate::core::model::id_table::IdTable;
use crate::core::model::ids::ClassId;
use crate::core::model::policy::Class;
use crate::core::placement::rules::PlacementRules;

/// The class whose values other classes start from.
const BASE_CLASS: &str = "standard";
/// Room for the rounding of a sum of decimal fractions.
const ROUNDING: f64 = 1e-9;

/// A latency class: the promise a request is served under.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ClassSection {
    /// Order of service: waiting requests of the class with the lowest rank go first. 0 is the
    /// first rank. Absent = as in the built-in class of the same name, else as in `standard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Share of the work, from 0 to 1, that this class gets whatever the classes before it do. The
    /// shares of all classes together are at most 1. Absent = as in the built-in class of the same
    /// name, else as in `standard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub min_share: Option<f64>,
    /// Longest wait of a request in the queue. A request that cannot start within this time is
    /// refused, or goes on in the class of `demote_to`. Absent = as in the built-in class of the
    /// same name, else as in `standard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_wait: Option<Span>,
    /// How long a request may be held for a pool that has no replica and has to start, at most
    /// `max_wait`. A request whose pool is known to take longer is refused at once. Absent =
    /// `max_wait`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start_tolerance: Option<Span>,
    /// Whether a client that streams gets the head of its answer, and comments that keep its
    /// connection alive, while its request is held for a pool that has to start. The client is then
    /// told of a failure inside the stream, where SDKs do not retry.
    pub early_head: bool,
    /// Objective for the time from a request's arrival to the first token of its answer. Absent =
    /// as in the built-in class of the same name, else as in `standard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft: Option<Span>,
    /// Objective for the time between two tokens of an answer (inter-token latency). Absent = as in
    /// the built-in class of the same name, else as in `standard`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl: Option<Span>,
    /// Time after which past use of a tenant counts half against the tenant, as in Slurm. Of the
    /// tenants that wait, one that has used less for its weight lately gets up to 4 times its
    /// weight, and one that has used more gets down to a sixteenth. Absent = only what is used
    /// while a tenant waits counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_half_life: Option<Span>,
    /// Class of a later rank in which a request goes on that cannot be in time in this class, if
    /// its tenant may use the other class. Absent = the request is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demote_to: Option<String>,
    /// Where requests of the class may go, and where they go first.
    #[serde(skip_serializing_if = "PlacementSection::is_empty")]
    pub placement: PlacementSection,
    /// Differences from the section `guardrails` for requests of the class.
    #[serde(skip_serializing_if = "GuardrailRuleSection::is_empty")]
    pub guardrails: GuardrailRuleSection,
}

/// The classes of a file without the section.
pub fn builtin_classes() -> NamedEntries<ClassSection> {
    let class = |name: &str, rank, min_share, max_wait, ttft, itl, placement| {
        let class = ClassSection {
            rank: Some(rank),
            min_share: Some(min_share),
            max_wait: Some(Span::secs(max_wait)),
            cold_start_tolerance: None,
            early_head: false,
            ttft: Some(Span::millis(ttft)),
            itl: Some(Span::millis(itl)),
            usage_half_life: None,
            demote_to: None,
            placement,
            guardrails: GuardrailRuleSection::default(),
        };
        (name.to_owned(), class)
    };
    let whole = PlacementSection {
        isolation: Some(vec![IsolationName::Dedicated, IsolationName::Mig, IsolationName::Mps]),
        ..PlacementSection::default()
    };
    let cheap = PlacementSection {
        prefer: Some(CapacityName::Spot),
        otherwise: Some(LatePolicyName::Wait),
        ..PlacementSection::default()
    };
    [
        class("interactive", 0, 0.0, 15, 1_000, 50, whole),
        class("standard", 1, 0.1, 120, 5_000, 100, PlacementSection::default()),
        class("batch", 2, 0.05, 3_600, 60_000, 500, cheap),
    ]
    .into_iter()
    .collect()
}

pub(in crate::config) fn validate(
    written: &NamedEntries<ClassSection>,
    previous: Option<&IdTable<ClassId, Class>>,
    findings: &mut Findings<'_>,
) -> IdTable<ClassId, Class> {
    let section = FieldPath::top("classes");
    let builtin = builtin_classes();
    let mut table = previous.map(IdTable::successor).unwrap_or_default();
    let mut shares = 0.0;
    for (name, class) in written.iter() {
        let field = section.key(name);
        names::label(name, &field, findings);
        let base = builtin.get(name).or_else(|| builtin.get(BASE_CLASS)).cloned().unwrap_or_default();
        let row = check_class(class, &base, &field, findings);
        shares += row.min_share;
        table.insert(name, row);
    }
    if written.is_empty() && findings.whole("classes") {
        findings.error(
            &section,
            "names no class",
            "name one, or take the section away for the built-in classes",
        );
    }
    left_out(written, &builtin, findings);
    if shares > 1.0 + ROUNDING {
        let message = format!("the shares are {shares:.2} together");
        findings.error(&section, message, "lower min_share of some class until the sum is 1 or less");
    }
    demotions(written, &mut table, findings);
    table
}

/// The section takes the place of all built-in classes, which people forget who
/// mean to change one of them.
fn left_out(
    written: &NamedEntries<ClassSection>,
    builtin: &NamedEntries<ClassSection>,
    findings: &mut Findings<'_>,
) {
    let missing: Vec<String> =
        builtin.names().filter(|name| written.get(name).is_none()).map(|name| format!("`{name}`")).collect();
    if written.is_empty() || missing.is_empty() || !findings.whole("classes") {
        return;
    }
    let message = format!("replaces the built-in classes, of which it leaves out {}", missing.join(", "));
    let hint = "add each of them as `name: {}` to keep it";
    findings.info(&FieldPath::top("classes"), message, hint);
}

/// Ranks only grow from one class to the next, so there are no circles.
fn demotions(
    written: &NamedEntries<ClassSection>,
    table: &mut IdTable<ClassId, Class>,
    findings: &mut Findings<'_>,
) {
    for (name, class) in written.iter() {
        let (Some(slower), Some(row)) = (&class.demote_to, table.id(name).and_then(|id| table.get(id)))
        else {
            continue;
        };
        let (field, mut row) = (FieldPath::top("classes").key(name).key("demote_to"), row.clone());
        let Some(id) = table.id(slower) else {
            if findings.whole("classes") {
                names::unknown("class", slower, written.names(), &field, findings);
            }
            continue;
        };
        let rank = table.get(id).map_or(0, |slower| slower.rank);
        if rank <= row.rank {
            let message = format!("`{slower}` has rank {rank}, and this class {}", row.rank);
            findings.error(&field, message, "name a class of a later rank");
            continue;
        }
        row.demote_to = Some(id);
        table.insert(name, row);
    }
}

fn check_class(
    class: &ClassSection,
    base: &ClassSection,
    field: &FieldPath,
    findings: &mut Findings<'_>,
) -> Class {
    let share = class.min_share.or(base.min_share).unwrap_or_default();
    let min_share = numbers::share(share, &field.key("min_share"), findings);
    let mut time = |key: &str, own: Option<Span>, base: Option<Span>| {
        numbers::positive(own.or(base).unwrap_or_default(), &field.key(key), findings)
    };
    let max_wait = time("max_wait", class.max_wait, base.max_wait);
    let cold_start_tolerance =
        class.cold_start_tolerance.map(|own| time("cold_start_tolerance", Some(own), None));
    let usage_half_life = class.usage_half_life.map(|own| time("usage_half_life", Some(own), None));
    let row = Class {
        rank: class.rank.or(base.rank).unwrap_or_default(),
        min_share,
        usage_half_life,
        max_wait,
        cold_start_tolerance,
        ttft_objective: time("ttft", class.ttft, base.ttft),
        itl_objective: time("itl", class.itl, base.itl),
        demote_to: None,
        scavenger: false,
        placement: PlacementRules::default(),
    };
    if row.cold_start_tolerance.is_some_and(|tolerance| tolerance > row.max_wait) {
        let hint = "write max_wait or less, or raise max_wait";
        findings.error(&field.key("cold_start_tolerance"), "is longer than max_wait", hint);
    }
    row
}
