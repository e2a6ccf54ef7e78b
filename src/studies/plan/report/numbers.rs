//! Number formats: counts, times, shares and wrapped text for people.

/// A whole number with commas: `9,683`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in its two largest units: `45ms`, `2.4s`, `3m 5s`, `4h 0m`.
pub fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match seconds {
        _ if !seconds.is_finite() => "-".to_owned(),
        _ if seconds <= 0.0 => "0s".to_owned(),
        _ if seconds < 0.001 => "<1ms".to_owned(),
        _ if seconds < 0.9995 => format!("{:.0}ms", seconds * 1e3),
        _ if seconds < 9.95 => trimmed(&format!("{seconds:.1}"), "s"),
        _ if whole < 60 => format!("{whole}s"),
        _ if whole < 3_600 && whole.is_multiple_of(60) => format!("{}m", whole / 60),
        _ if whole < 3_600 => format!("{}m {}s", whole / 60, whole % 60),
        _ if whole < 86_400 => format!("{}h {}m", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{}d {}h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

fn trimmed(number: &str, unit: &str) -> String {
    format!("{}{unit}", number.strip_suffix(".0").unwrap_or(number))
}

/// A number with as many digits as its size deserves: `0.42`, `5.5`, `1,155`.
pub fn number(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "-".to_owned(),
        _ if value.abs() < 1e-9 => "0".to_owned(),
        _ if value >= 99.95 => count(value.round() as u64),
        _ if value >= 9.995 => trimmed(&format!("{value:.1}"), ""),
        _ => trimmed(&format!("{value:.1}").replace("0.0", &format!("{value:.2}")), ""),
    }
}

/// A share as a percentage.
pub fn percent(share: f64) -> String {
    // Adding 0.0 turns a negative zero into zero.
    match share * 100.0 + 0.0 {
        whole if whole > 0.0 && whole < 1.0 => format!("{whole:.1} %"),
        whole if whole > 99.0 && whole < 100.0 => format!("{whole:.1} %"),
        whole => format!("{whole:.0} %"),
    }
}

/// A number with its noun: `1 replica`, `3 replicas`.
pub fn of(number: usize, what: &str) -> String {
    format!("{} {what}{}", count(number as u64), if number == 1 { "" } else { "s" })
}

/// The text in lines of at most `width` characters, each after `indent` spaces.
pub fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let long = indent + line.chars().count() + 1 + word.chars().count() > width;
        if !line.is_empty() && long {
            lines.push_str(&format!("{:indent$}{line}\n", ""));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push_str(&format!("{:indent$}{line}\n", ""));
    lines
}

/// The next round number that people would write.
pub(in crate::studies::plan) fn round_up(seconds: f64) -> f64 {
    const STEPS: [f64; 17] = [
        0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0,
        3_600.0,
    ];
    STEPS.into_iter().find(|step| *step >= seconds).unwrap_or(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_they_are_worth() {
        assert_eq!([0, 999, 1_000, 9_683_001].map(count), ["0", "999", "1,000", "9,683,001"]);
        let times = [0.0, 0.0004, 0.045, 1.0, 2.44, 59.7, 60.0, 185.0, 14_400.0, 90_000.0].map(time);
        assert_eq!(times, ["0s", "<1ms", "45ms", "1s", "2.4s", "1m", "1m", "3m 5s", "4h 0m", "1d 1h"]);
        assert_eq!(
            [-0.0, 0.004, 0.42, 5.52, 23.04, 1155.3].map(number),
            ["0", "0.00", "0.4", "5.5", "23", "1,155"]
        );
        assert_eq!([-0.0, 0.004, 0.42, 0.995, 1.0].map(percent), ["0 %", "0.4 %", "42 %", "99.5 %", "100 %"]);
        assert_eq!([of(1, "replica"), of(2, "replica")], ["1 replica", "2 replicas"]);
    }

    #[test]
    fn lines_end_before_the_width() {
        let text = wrapped("one two three four", 2, 10);
        assert_eq!(text, "  one two\n  three\n  four\n");
    }
}
