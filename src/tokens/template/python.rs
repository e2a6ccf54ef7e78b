//! Python formats: values as Python's `str`, `repr` and `json.dumps` write them. Templates are
//! written for these formats, and one space more is one token more.

use std::fmt::Write;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// The options of `json.dumps`.
#[derive(Debug, Clone)]
struct JsonStyle {
    ensure_ascii: bool,
    indent: Option<String>,
    items: String,
    keys: String,
    sort_keys: bool,
}

impl Default for JsonStyle {
    fn default() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            items: ", ".to_owned(),
            keys: ": ".to_owned(),
            sort_keys: false,
        }
    }
}

/// The filter `tojson`, with the options that transformers gives it.
#[expect(clippy::needless_pass_by_value, reason = "filters get them so")]
pub(super) fn to_json(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<String, Error> {
    let mut style = JsonStyle::default();
    if let Some(given) = options.get::<Option<Value>>("indent")?.or(indent).filter(|given| !given.is_none()) {
        let spaces = given.as_str().map(str::to_owned);
        style.indent = Some(spaces.unwrap_or_else(|| " ".repeat(given.as_usize().unwrap_or(0).min(16))));
        ",".clone_into(&mut style.items);
    }
    style.ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    style.sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    if let Some(given) = options.get::<Option<Value>>("separators")?.filter(|given| !given.is_none()) {
        let text = |at| given.get_item_by_index(at).map(|text| text.to_string());
        (style.items, style.keys) = (text(0)?, text(1)?);
    }
    options.assert_all_used()?;
    let mut out = String::new();
    dump(value, &style, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value, ["NaN", "Infinity", "-Infinity"])),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<Value> = value.try_iter()?.collect();
            list(items.len(), ['[', ']'], style, depth, out, |at, out| {
                dump(&items[at], style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            if style.sort_keys {
                keys.sort();
            }
            list(keys.len(), ['{', '}'], style, depth, out, |at, out| {
                let key = &keys[at];
                let name = key.as_str().map_or_else(|| json_key(key), str::to_owned);
                quote(&name, style.ensure_ascii, out);
                out.push_str(&style.keys);
                dump(&value.get_item(key)?, style, depth + 1, out)
            })?;
        }
        kind => {
            let message = format!("an object of type {kind} is not JSON serializable");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    }
    Ok(())
}

/// A key that is not a string, as `json.dumps` writes it.
fn json_key(key: &Value) -> String {
    match key.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => key.is_true().to_string(),
        _ => number(key, ["NaN", "Infinity", "-Infinity"]),
    }
}

fn list(
    length: usize,
    [open, close]: [char; 2],
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut item: impl FnMut(usize, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            out.push_str(&indent.repeat(depth));
        }
    };
    out.push(open);
    for at in 0..length {
        if at > 0 {
            out.push_str(&style.items);
        }
        line(depth + 1, out);
        item(at, out)?;
    }
    if length > 0 {
        line(depth, out);
    }
    out.push(close);
    Ok(())
}

fn quote(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for char in text.chars() {
        match char {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            char if u32::from(char) < 0x20 || ensure_ascii && !(' '..='~').contains(&char) => {
                for unit in char.encode_utf16(&mut [0; 2]) {
                    let _infallible = write!(out, "\\u{unit:04x}");
                }
            }
            char => out.push(char),
        }
    }
    out.push('"');
}

fn number(value: &Value, [nan, inf, minus_inf]: [&str; 3]) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(number) if number.is_nan() => nan.to_owned(),
        Ok(number) if number.is_infinite() => if number > 0.0 { inf } else { minus_inf }.to_owned(),
        Ok(number) => float(number),
        Err(_) => value.to_string(),
    }
}

/// `repr` of a float: the shortest digits, with an exponent for values below 1e-4 and from 1e16 on.
fn float(number: f64) -> String {
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{number}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// `str` of a value, which is what `{{ value }}` prints.
pub(super) fn display(value: &Value) -> String {
    match value.kind() {
        ValueKind::Undefined => String::new(),
        ValueKind::String => value.as_str().unwrap_or_default().to_owned(),
        _ => repr(value),
    }
}

fn repr(value: &Value) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value.kind() {
        ValueKind::None => "None".to_owned(),
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::Number => number(value, ["nan", "inf", "-inf"]),
        ValueKind::String => quote_python(value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let items = value.try_iter().map(|items| items.map(|item| repr(&item)).collect());
            format!("[{}]", joined(items.unwrap_or_default()))
        }
        ValueKind::Map
            if value.as_object().is_some_and(|map| map.repr() == minijinja::value::ObjectRepr::Map) =>
        {
            let one =
                |key: Value| format!("{}: {}", repr(&key), repr(&value.get_item(&key).unwrap_or_default()));
            let items = value.try_iter().map(|keys| keys.map(one).collect());
            format!("{{{}}}", joined(items.unwrap_or_default()))
        }
        _ => value.to_string(),
    }
}

fn quote_python(text: &str) -> String {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(mark);
    for char in text.chars() {
        match char {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            char if char == mark => out.extend(['\\', char]),
            char if char.is_control() => {
                let _infallible = write!(out, "\\x{:02x}", u32::from(char));
            }
            char => out.push(char),
        }
    }
    out.push(mark);
    out
}

/// Methods of Python's strings, lists and dictionaries.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let argument = |at: usize| args.get(at).and_then(Value::as_str);
    match (value.as_str(), name) {
        (Some(text), "removeprefix") => {
            let part = argument(0).unwrap_or_default();
            Ok(text.strip_prefix(part).unwrap_or(text).into())
        }
        (Some(text), "removesuffix") => {
            let part = argument(0).unwrap_or_default();
            Ok(text.strip_suffix(part).unwrap_or(text).into())
        }
        (Some(text), "partition") => {
            let part = argument(0).unwrap_or_default();
            let (before, after) = text.split_once(part).map_or((text, None), |(one, two)| (one, Some(two)));
            let middle = if after.is_some() { part } else { "" };
            Ok([before, middle, after.unwrap_or_default()].into_iter().map(Value::from).collect())
        }
        (Some(text), "rsplit") if argument(0).is_some() => {
            let part = argument(0).unwrap_or_default();
            let most = args.get(1).and_then(Value::as_usize).unwrap_or(usize::MAX - 1);
            let mut parts: Vec<Value> = text.rsplitn(most + 1, part).map(Value::from).collect();
            parts.reverse();
            Ok(Value::from(parts))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// A time as `strftime` writes it, in UTC. `seconds` counts from 1970-01-01.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let month_name = MONTHS[usize::try_from(month - 1).unwrap_or_default() % 12];
    let week_day = DAYS[usize::try_from((days + 3).rem_euclid(7)).unwrap_or_default()];
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    let half = (hour + 11) % 12 + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let mut code = chars.next();
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let two = |number: i64| if bare { number.to_string() } else { format!("{number:02}") };
        out.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year.rem_euclid(100)),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => week_day.to_owned(),
            Some('a') => week_day[..3].to_owned(),
            Some('H') => two(hour),
            Some('I') => two(half),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        });
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01, by the Gregorian
/// calendar: eras of 400 years, years that begin in March.
fn date(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.5, "0.5"),
            (-0.25, "-0.25"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (-0.0, "-0.0"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn moments_are_written_by_the_calendar() {
        let at = 1_709_213_645; // 2024-02-29 13:34:05
        assert_eq!(strftime("%d %B %Y, %A %b %a", at), "29 February 2024, Thursday Feb Thu");
        assert_eq!(strftime("%Y-%m-%dT%H:%M:%S %I%p %y %-d %%", at), "2024-02-29T13:34:05 01PM 24 29 %");
        assert_eq!(strftime("%F %T", 0), "1970-01-01 00:00:00");
        assert_eq!(strftime("%F %a %-m", -1), "1969-12-31 Wed 12");
    }
}
