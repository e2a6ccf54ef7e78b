//! Problems with the lines they are about: as text, JSON and annotations.

pub mod diff;
pub mod expiring;
pub mod measured;
pub mod problem;

use std::fmt;

use serde_json::{Value, json};

use crate::config::report::problem::{ConfigProblem, Severity};
use crate::config::schema::explain::link;

/// Problems that one report shows.
const MAX_SHOWN: usize = 200;
/// Letters of a source line that are shown.
const WIDTH: usize = 120;

/// The exit code of a check whose file cannot be read.
pub const UNREADABLE: u8 = 2;

/// Everything found about one file. `Display` shows it with source lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigReport {
    /// What the file is called.
    pub name: String,
    /// The findings, in the order of the file.
    pub problems: Vec<ConfigProblem>,
    text: String,
    unreadable: bool,
}

impl ConfigReport {
    pub(super) fn new(name: &str, text: &str, mut problems: Vec<ConfigProblem>) -> Self {
        let more = problems.len().saturating_sub(MAX_SHOWN);
        if more > 0 {
            problems.sort_by_key(|problem| problem.severity);
            problems.truncate(MAX_SHOWN);
            let severity = problems.last().map_or(Severity::Error, |problem| problem.severity);
            problems.push(ConfigProblem {
                severity,
                ..ConfigProblem::of_file(format!("{more} more problems are not shown"))
            });
        }
        Self { name: name.to_owned(), problems, text: text.to_owned(), unreadable: false }
    }

    pub(super) fn unreadable(name: &str, problem: ConfigProblem) -> Self {
        Self { name: name.to_owned(), problems: vec![problem], text: String::new(), unreadable: true }
    }

    /// The text of the file.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the file cannot be used.
    pub fn has_errors(&self) -> bool {
        self.problems.iter().any(ConfigProblem::is_error)
    }

    /// The exit code of a check: 0 = can be used, 1 = has errors, 2 = cannot
    /// be read.
    pub fn exit_code(&self) -> u8 {
        match (self.unreadable, self.has_errors()) {
            (true, _) => UNREADABLE,
            (false, true) => 1,
            (false, false) => 0,
        }
    }

    /// For machines.
    pub fn to_json(&self) -> Value {
        let problem = |problem: &ConfigProblem| {
            let mut row = json!(problem);
            if let Some(link) = link(&problem.path) {
                row["see"] = link.into();
            }
            row
        };
        let problems: Vec<Value> = self.problems.iter().map(problem).collect();
        json!({ "file": self.name, "valid": !self.has_errors(), "problems": problems })
    }

    /// For GitHub Actions: one annotation a line.
    pub fn to_github(&self) -> String {
        let line = |problem: &ConfigProblem| {
            let level = match problem.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Info => "notice",
            };
            let place = match (problem.line, problem.column) {
                (Some(line), Some(column)) => format!(",line={line},col={column}"),
                _ => String::new(),
            };
            let file = escaped(&self.name).replace(':', "%3A").replace(',', "%2C");
            format!("::{level} file={file}{place}::{}\n", escaped(&sentence(problem)))
        };
        self.problems.iter().map(line).collect()
    }

    fn write_source(&self, problem: &ConfigProblem, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(number), Some(column)) = (problem.line, problem.column) else {
            return writeln!(f, "  --> {}", self.name);
        };
        writeln!(f, "  --> {}:{number}:{column}", self.name)?;
        let Some(line) = self.text.lines().nth(number as usize - 1).filter(|_| !is_about_secret(problem))
        else {
            return Ok(());
        };
        let column = column as usize - 1;
        let skipped = column.saturating_sub(WIDTH / 2).min(line.chars().count().saturating_sub(WIDTH));
        let shown: String = line.chars().skip(skipped).take(WIDTH).map(printable).collect();
        let gutter = " ".repeat(number.to_string().len());
        writeln!(f, "{gutter} |\n{number} | {}", shown.trim_end())?;
        writeln!(f, "{gutter} | {}^", " ".repeat(column.saturating_sub(skipped)))
    }
}

impl fmt::Display for ConfigReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            let what = ConfigProblem { hint: None, ..problem.clone() };
            writeln!(f, "{}: {}", problem.severity.name(), sentence(&what))?;
            self.write_source(problem, f)?;
            if let Some(hint) = &problem.hint {
                writeln!(f, "  = {hint}")?;
            }
            if let Some(link) = link(&problem.path) {
                writeln!(f, "  = see {link}")?;
            }
        }
        Ok(())
    }
}

/// A problem without its severity and place.
fn sentence(problem: &ConfigProblem) -> String {
    let path = if problem.path.is_empty() { String::new() } else { format!("{}: ", problem.path) };
    let hint = problem.hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})"));
    format!("{path}{}{hint}", problem.message)
}

/// Whether the line may hold a secret that somebody wrote down by mistake.
fn is_about_secret(problem: &ConfigProblem) -> bool {
    let path: String = problem.path.chars().filter(char::is_ascii_alphabetic).collect();
    ["apikey", "secret", "password"].iter().any(|word| path.to_ascii_lowercase().contains(word))
        || problem.message.contains("user or password")
}

fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(line: u32, column: u32, path: &str) -> ConfigProblem {
        ConfigProblem {
            line: Some(line),
            column: Some(column),
            path: path.to_owned(),
            hint: Some("fix it".into()),
            ..ConfigProblem::of_file("is wrong")
        }
    }

    #[test]
    fn text_points_at_the_place() {
        let report = ConfigReport::new("p.yaml", "a: 1\nb:\t\u{1b}[31m2\n", vec![problem(2, 4, "b")]);
        assert_eq!(
            report.to_string(),
            "error: b: is wrong\n  --> p.yaml:2:4\n  |\n2 | b: \u{fffd}[31m2\n  |    ^\n  = fix it\n"
        );
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let text = format!("{}X{}", "a".repeat(1000), "b".repeat(1000));
        let shown = ConfigReport::new("p", &text, vec![problem(1, 1001, "a")]).to_string();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[3].chars().count(), 4 + WIDTH);
        assert_eq!(lines[3].find('X'), lines[4].find('^'));
    }

    #[test]
    fn places_outside_the_text_do_no_harm() {
        let report = ConfigReport::new("p", "a", vec![problem(9, 9, "a"), problem(1, 99, "a")]);
        assert!(report.to_string().contains("p:9:9"));
    }

    #[test]
    fn secrets_are_not_shown() {
        let report = ConfigReport::new("p", "api_key: sk-123", vec![problem(1, 10, "pools.a.api_key")]);
        assert!(!report.to_string().contains("sk-123"));
    }

    #[test]
    fn annotations_and_json() {
        let report = ConfigReport::new("a,b.yaml", "", vec![problem(3, 1, "x")]);
        assert_eq!(report.to_github(), "::error file=a%2Cb.yaml,line=3,col=1::x: is wrong (fix it)\n");
        let json = report.to_json();
        assert_eq!(json["valid"], false);
        assert_eq!(json["problems"][0]["severity"], "error");
        assert_eq!(json["problems"][0]["line"], 3);
        assert_eq!((report.exit_code(), ConfigReport::new("p", "", vec![]).exit_code()), (1, 0));
        assert_eq!(ConfigReport::unreadable("p", ConfigProblem::of_file("gone")).exit_code(), 2);
    }

    #[test]
    fn a_flood_is_cut() {
        let report = ConfigReport::new("p", "", vec![problem(1, 1, "x"); MAX_SHOWN + 5]);
        assert_eq!(report.problems.len(), MAX_SHOWN + 1);
        assert_eq!(report.problems[MAX_SHOWN].message, "5 more problems are not shown");
    }
}
