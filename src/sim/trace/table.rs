//! Table traces: comma-separated tables whose columns are found by their names.

use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::trace::lines::{NumberedLines, TraceErrorKind, checked_tokens, field_error, push};
use crate::trace::traffic::{TraceCall, TrafficTrace};

/// Latest time, in seconds since any origin: the year 2286 if counted from
/// 1970.
const LATEST: f64 = 1e10;
/// Characters of a header that an error shows.
const SHOWN: usize = 200;

/// Known names of each column. The first is the name in Penstock's own traces.
/// Only letters are compared: `ContextTokens` and `context_tokens` are one
/// name.
const TIME: &[&str] = &["t_s", "time", "timestamp", "arrival", "arrived_at", "arrival_time", "start_time"];
const INPUT: &[&str] = &[
    "in_tokens",
    "input_tokens",
    "prompt_tokens",
    "context_tokens",
    "request_tokens",
    "input_length",
    "input",
    "prompt",
];
const OUTPUT: &[&str] = &[
    "out_tokens",
    "output_tokens",
    "completion_tokens",
    "generated_tokens",
    "response_tokens",
    "output_length",
    "output",
    "completion",
];
const TENANT: &[&str] = &["tenant"];
const CLASS: &[&str] = &["class", "latency_class"];
const WAIT: &[&str] = &["wait", "waited", "queue", "queue_time"];
const TOOK: &[&str] = &["duration", "took", "latency", "e2e"];

/// Names of a table's columns, where they differ from the known ones.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ColumnNames(Vec<(&'static str, String)>);

impl FromStr for ColumnNames {
    type Err = String;

    /// Reads `time=created,input=prompt_size`.
    fn from_str(text: &str) -> Result<Self, String> {
        const KNOWN: [&str; 7] = ["time", "input", "output", "tenant", "class", "wait", "duration"];
        let pair = |pair: &str| {
            let (what, name) = pair.split_once('=').unwrap_or((pair, ""));
            let known = KNOWN.into_iter().find(|known| *known == what.trim());
            match (known, name.trim()) {
                (Some(known), name) if !name.is_empty() => Ok((known, name.to_owned())),
                (Some(known), _) => Err(format!("`{pair}`: write it like {known}=NAME")),
                (None, _) => Err(format!("`{pair}`: there are: {}", KNOWN.join(", "))),
            }
        };
        text.split(',').map(pair).collect::<Result<_, _>>().map(Self)
    }
}

#[derive(Debug)]
struct TableColumn {
    place: usize,
    /// Name in the header.
    name: String,
    /// Seconds per unit of the column.
    unit: f64,
}

struct Columns {
    time: TableColumn,
    input: TableColumn,
    output: TableColumn,
    tenant: Option<TableColumn>,
    class: Option<TableColumn>,
    wait: Option<TableColumn>,
    took: Option<TableColumn>,
}

fn bare(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}

/// Name endings that tell a unit of time, with the unit in seconds.
const UNITS: [(&str, f64); 4] = [("_ms", 1e-3), ("_us", 1e-6), ("_ns", 1e-9), ("_s", 1.0)];

/// The name without its unit, and the unit in seconds.
fn unit(name: &str) -> (&str, f64) {
    let cut = UNITS.iter().find_map(|(ending, unit)| Some((name.strip_suffix(ending)?, *unit)));
    cut.unwrap_or((name, 1.0))
}

impl Columns {
    fn of(header: &str, names: &ColumnNames) -> Result<Self, TraceErrorKind> {
        let header = fields(header.trim_start_matches('\u{feff}'));
        let found = || header.join(", ").chars().take(SHOWN).collect::<String>();
        let optional = |what: &str, known: &[&str]| -> Result<Option<TableColumn>, TraceErrorKind> {
            if let Some((_, wanted)) = names.0.iter().find(|(of, _)| *of == what) {
                let place = header.iter().position(|name| name == wanted);
                let missing = || TraceErrorKind::UnknownColumn { column: wanted.clone(), found: found() };
                let place = place.ok_or_else(missing)?;
                return Ok(Some(TableColumn { place, name: wanted.clone(), unit: unit(wanted).1 }));
            }
            // The best known name comes first, with or without its unit.
            let place = known.iter().find_map(|known| {
                header.iter().position(|name| {
                    let lower = name.to_ascii_lowercase();
                    bare(&lower) == bare(known) || bare(unit(&lower).0) == bare(unit(known).0)
                })
            });
            Ok(place.map(|place| {
                let name = header[place].clone();
                let unit = unit(&name.to_ascii_lowercase()).1;
                TableColumn { place, name, unit }
            }))
        };
        let needed = |what: &str, known: &'static [&'static str]| {
            let missing = || TraceErrorKind::MissingColumn {
                column: known[0],
                others: known[1..].join(", "),
                found: found(),
            };
            optional(what, known)?.ok_or_else(missing)
        };
        Ok(Self {
            time: needed("time", TIME)?,
            input: needed("input", INPUT)?,
            output: needed("output", OUTPUT)?,
            tenant: optional("tenant", TENANT)?,
            class: optional("class", CLASS)?,
            wait: optional("wait", WAIT)?,
            took: optional("duration", TOOK)?,
        })
    }
}

/// The fields of a line. A field in quotes may contain commas.
fn fields(line: &str) -> Vec<String> {
    if !line.contains('"') {
        return line.split(',').map(|field| field.trim().to_owned()).collect();
    }
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field).trim().to_owned()),
            _ => field.push(letter),
        }
    }
    fields.push(field.trim().to_owned());
    fields
}

/// Names by number, in the order in which they first appear.
#[derive(Default)]
struct NameNumbers {
    numbers: HashMap<String, u32>,
    names: Vec<Arc<str>>,
}

impl NameNumbers {
    fn number(&mut self, column: Option<&TableColumn>, row: &[String]) -> Result<u32, TraceErrorKind> {
        let Some(column) = column else { return Ok(0) };
        let name = text(column, row);
        if name.is_empty() {
            return Err(field_error(&column.name, "must have a name", ""));
        }
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        let number = self.names.len() as u32;
        self.names.push(name.into());
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }
}

/// Reads the whole table.
pub(super) fn calls(lines: &mut NumberedLines, names: &ColumnNames) -> Result<TrafficTrace, TraceErrorKind> {
    let columns = Columns::of(lines.next()?.ok_or(TraceErrorKind::Empty)?, names)?;
    let mut trace = TrafficTrace::default();
    let (mut tenants, mut classes) = (NameNumbers::default(), NameNumbers::default());
    while let Some(line) = lines.next()? {
        let row = fields(line);
        let at = moment(&columns.time, &row)?;
        let Some(prompt) = tokens(&columns.input, &row)? else {
            trace.skipped_lines += 1;
            continue;
        };
        let call = TraceCall {
            at,
            tenant: tenants.number(columns.tenant.as_ref(), &row)?,
            class: classes.number(columns.class.as_ref(), &row)?,
            prompt,
            // A call without output tokens ends with one engine step, which
            // counts as one token.
            output: tokens(&columns.output, &row)?.unwrap_or(1),
            prefix: Arc::default(),
            waited: columns.wait.as_ref().map(|column| length(column, &row)).transpose()?.flatten(),
            took: columns.took.as_ref().map(|column| length(column, &row)).transpose()?.flatten(),
        };
        push(&mut trace, call)?;
    }
    (trace.tenants, trace.classes) = (tenants.names, classes.names);
    Ok(trace)
}

fn text<'a>(column: &TableColumn, row: &'a [String]) -> &'a str {
    row.get(column.place).map(String::as_str).unwrap_or_default()
}

/// A time: a number in the column's unit, or a date with a time.
fn moment(column: &TableColumn, row: &[String]) -> Result<Duration, TraceErrorKind> {
    const WHAT: &str = "must be a time: seconds, at least 0, or like 2026-11-16T18:15:46Z \
                        (a name that ends in _ms or _us says the unit)";
    let text = text(column, row);
    let dated = || {
        let zoned = text.parse::<Timestamp>().ok();
        let plain = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok();
        let micros = zoned.or_else(|| plain().map(|time| time.timestamp()))?.as_microsecond();
        Some(Duration::from_micros(u64::try_from(micros).ok()?))
    };
    let counted = |count: f64| match count * column.unit {
        seconds if (0.0..=LATEST).contains(&seconds) => Some(Duration::from_secs_f64(seconds)),
        _ => None,
    };
    let time = match text.parse::<f64>() {
        Ok(count) => counted(count),
        Err(_) => dated(),
    };
    time.ok_or_else(|| field_error(&column.name, WHAT, text))
}

/// A duration; empty = not known.
fn length(column: &TableColumn, row: &[String]) -> Result<Option<Duration>, TraceErrorKind> {
    match text(column, row) {
        "" => Ok(None),
        text => match text.parse::<f64>() {
            Ok(count) if (0.0..=LATEST).contains(&(count * column.unit)) => {
                Ok(Some(Duration::from_secs_f64(count * column.unit)))
            }
            _ => Err(field_error(&column.name, "must be a time, at least 0", text)),
        },
    }
}

/// A number of tokens; `None` for 0.
fn tokens(column: &TableColumn, row: &[String]) -> Result<Option<u32>, TraceErrorKind> {
    let text = text(column, row);
    // Some tools write whole numbers with a decimal point.
    let whole = text.parse::<u64>().ok();
    let count = whole.or_else(|| text.strip_suffix(".0")?.parse().ok());
    match count {
        Some(0) => Ok(None),
        Some(count) if checked_tokens(count).is_some() => Ok(checked_tokens(count)),
        _ => Err(field_error(&column.name, "must be a number of tokens", text)),
    }
}
