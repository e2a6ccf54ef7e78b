//! Screen of `top`: what is shown, and what keys do.

use std::fmt::Write as _;

use anyhow::bail;
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use serde_json::Value;

use crate::app::commands::operate::text::{plain, table, time};
use crate::app::commands::operate::views::{self, View};

/// Least width to which a column is cut.
const MIN_WIDTH: usize = 6;
/// The same of the first column, which has the name.
const MIN_NAME: usize = 20;
/// Space between two columns.
const GAP: usize = 2;
const HELP: &str = "1-5 table  s sort  r reverse  / filter  p pause  q quit";

/// A key that was pressed.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyPress {
    pub(super) code: KeyCode,
    pub(super) ctrl: bool,
}

/// State of the screen.
#[derive(Debug)]
pub(super) struct Screen {
    view: usize,
    /// Column by which each view is sorted; `None` = as the gateway lists them.
    sort: [Option<usize>; views::ALL.len()],
    largest_first: bool,
    filter: String,
    typing: bool,
    paused: bool,
    colour: bool,
    data: Value,
    table: TableState,
}

impl Screen {
    pub(super) fn new(view: usize, filter: String, colour: bool) -> Self {
        Self {
            view,
            sort: Default::default(),
            largest_first: false,
            filter,
            typing: false,
            paused: false,
            colour,
            data: Value::Null,
            table: TableState::default().with_selected(0),
        }
    }

    /// Sorts the present view by a heading; `-` before it for the largest first.
    pub(super) fn sort_by(&mut self, heading: Option<&str>) -> anyhow::Result<()> {
        let Some(heading) = heading else { return Ok(()) };
        let name = heading.trim_start_matches('-');
        let heads: Vec<&str> = self.shown_view().columns.iter().map(|column| column.head).collect();
        let Some(column) = heads.iter().position(|head| head.eq_ignore_ascii_case(name)) else {
            bail!(
                "there is no column `{name}` in {}; there are: {}",
                self.shown_view().name,
                heads.join(", ")
            );
        };
        self.sort[self.view] = Some(column);
        self.largest_first = heading.starts_with('-');
        Ok(())
    }

    /// Takes new data, unless the screen is paused.
    pub(super) fn set(&mut self, data: Value) {
        if self.paused {
            return;
        }
        if let (Some(problem), false) = (data["problem"].as_str(), self.data.is_null()) {
            self.data["problem"] = problem.into();
        } else {
            self.data = data;
        }
    }

    /// Why the gateway gives no data.
    pub(super) fn problem(&self) -> Option<&str> {
        self.data["problem"].as_str()
    }

    fn shown_view(&self) -> &'static View {
        views::ALL[self.view]
    }

    /// Handles a key; true = quit.
    pub(super) fn key(&mut self, key: KeyPress) -> bool {
        if key.ctrl {
            return matches!(key.code, KeyCode::Char('c'));
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(letter) if self.filter.len() < 64 => self.filter.push(letter),
                _ => {}
            }
            return false;
        }
        let views = views::ALL.len();
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.filter.is_empty() => return true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('r') => self.largest_first = !self.largest_first,
            KeyCode::Char('s') => {
                let next = self.sort[self.view].map_or(0, |column| column + 1);
                self.sort[self.view] = Some(next).filter(|next| *next < self.shown_view().columns.len());
            }
            KeyCode::Char(number @ '1'..='5') => self.turn_to(number as usize - '1' as usize),
            KeyCode::Tab | KeyCode::Right => self.turn_to((self.view + 1) % views),
            KeyCode::BackTab | KeyCode::Left => self.turn_to((self.view + views - 1) % views),
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(10),
            KeyCode::PageUp => self.table.scroll_up_by(10),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            _ => {}
        }
        false
    }

    fn turn_to(&mut self, view: usize) {
        self.view = view;
        self.table.select_first();
    }

    /// Cells of the rows of a view that the filter leaves, in their order.
    fn rows(&self, view: usize) -> Vec<Vec<String>> {
        let shown = views::ALL[view];
        let mut rows: Vec<&Value> = self.data[shown.name].as_array().into_iter().flatten().collect();
        if let Some(column) = self.sort[view] {
            rows.sort_by(|one, other| shown.columns[column].compare(one, other, self.largest_first));
        } else if self.largest_first {
            rows.reverse();
        }
        let filter = self.filter.to_lowercase();
        let cells = rows.into_iter().map(|row| shown.cells(row));
        cells.filter(|cells| cells.iter().any(|cell| cell.to_lowercase().contains(&filter))).collect()
    }

    /// Line about the gateway.
    fn summary(&self) -> String {
        let (status, matched) = (&self.data["status"], &self.data["matched"]);
        let ready =
            status["not_ready_reason"].as_str().map_or("ready".to_owned(), |why| format!("not ready: {why}"));
        format!(
            "penstock {}  {ready}  up {}  {} wait  {} run",
            plain(&status["version"]),
            time(&status["uptime_seconds"]),
            plain(&matched["waiting"]),
            plain(&matched["running"]),
        )
    }

    /// The tables as plain text.
    pub(super) fn as_text(&self, shown: &[usize]) -> String {
        let mut text = self.summary() + "\n";
        for view in shown {
            let heads: Vec<&str> = views::ALL[*view].columns.iter().map(|column| column.head).collect();
            let rows = self.rows(*view);
            let _infallible =
                write!(text, "\n{} ({})\n{}", views::ALL[*view].name, rows.len(), table(&heads, &rows));
        }
        text
    }

    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let [head, tabs, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let bold = Style::new().add_modifier(Modifier::BOLD);
        frame.render_widget(Paragraph::new(self.summary()).style(bold), head);
        frame.render_widget(Paragraph::new(self.tabs()), tabs);
        frame.render_widget(Paragraph::new(self.footer()), foot);
        let rows = self.rows(self.view);
        let view = self.shown_view();
        let heads = view.columns.iter().enumerate().map(|(at, column)| {
            let mark = match (self.sort[self.view] == Some(at), self.largest_first) {
                (false, _) => "",
                (true, false) => "^",
                (true, true) => "v",
            };
            format!("{}{mark}", column.head)
        });
        let heads: Vec<String> = heads.collect();
        let widths = widths(&heads, &rows, usize::from(body.width));
        let lines = rows
            .iter()
            .map(|cells| Row::new(cells.iter().zip(&widths).map(|(cell, width)| self.cell(cell, *width))));
        let heads =
            heads.iter().zip(&widths).map(|(head, width)| head.chars().take(*width).collect::<String>());
        let table = Table::new(lines, widths.iter().map(|width| Constraint::Length(*width as u16)))
            .header(Row::new(heads.collect::<Vec<_>>()).style(bold.add_modifier(Modifier::UNDERLINED)))
            .column_spacing(GAP as u16)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, body, &mut self.table);
    }

    /// A cell in the colour of its meaning.
    fn cell(&self, text: &str, width: usize) -> Cell<'static> {
        let colour = match text {
            "serving" | "ready" | "running" | "success" => Some(Color::Green),
            "ejected" | "gone" | "down" | "removed" => Some(Color::Red),
            "cordoned" | "draining" | "drain" | "cordon" | "busy" | "slow_start" | "waiting" | "pause" => {
                Some(Color::Yellow)
            }
            _ if text.starts_with("failed") || text.starts_with("rejected") => Some(Color::Red),
            _ => None,
        };
        let style = colour.filter(|_| self.colour).map_or(Style::new(), |colour| Style::new().fg(colour));
        Cell::from(fitted(text, width)).style(style)
    }

    fn tabs(&self) -> Line<'static> {
        let tab = |(at, view): (usize, &&View)| {
            let count = self.data[view.name].as_array().map_or(0, Vec::len);
            let text = format!(" {} {} {count} ", at + 1, view.name);
            let here = if at == self.view { Modifier::REVERSED } else { Modifier::empty() };
            Span::styled(text, Style::new().add_modifier(here))
        };
        Line::from(views::ALL.iter().enumerate().map(tab).collect::<Vec<_>>())
    }

    fn footer(&self) -> String {
        if self.typing {
            return format!("filter: {}_  (Enter keeps it, Esc clears it)", self.filter);
        }
        if let Some(problem) = self.problem() {
            return format!("no news: {problem}");
        }
        let paused = if self.paused { "PAUSED  " } else { "" };
        let filter =
            if self.filter.is_empty() { String::new() } else { format!("filter: {}  ", self.filter) };
        format!("{paused}{filter}{HELP}")
    }
}

/// Widths of the columns that fit. The last columns are left out where the others would be cut
/// too far; then the widest are cut.
fn widths(heads: &[String], rows: &[Vec<String>], room: usize) -> Vec<usize> {
    let natural = |at: usize| {
        let cells = rows.iter().map(|row| row[at].chars().count());
        cells.chain([heads[at].chars().count()]).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..heads.len()).map(natural).collect();
    let least = |at: usize, width: usize| width.min(if at == 0 { MIN_NAME } else { MIN_WIDTH });
    let needed = |widths: &[usize]| {
        let least = widths.iter().enumerate().map(|(at, width)| least(at, *width));
        least.sum::<usize>() + GAP * widths.len().saturating_sub(1)
    };
    while widths.len() > 1 && needed(&widths) > room {
        widths.pop();
    }
    let room = room.saturating_sub(GAP * widths.len().saturating_sub(1));
    while widths.iter().sum::<usize>() > room {
        let cut = widths.iter_mut().enumerate().filter(|(at, width)| **width > least(*at, **width));
        let Some((_, widest)) = cut.max_by_key(|(_, width)| **width) else { break };
        *widest -= 1;
    }
    widths
}

/// A text in `width` columns: without its middle if it is longer, as the ends of names tell them
/// apart.
fn fitted(text: &str, width: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= width {
        return text.to_owned();
    }
    let tail = width.saturating_sub(1) / 2;
    let head = width.saturating_sub(1) - tail;
    letters[..head].iter().chain(&['…']).chain(&letters[letters.len() - tail..]).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn data() -> Value {
        let request = |id: &str, state: &str| {
            json!({
                "request_id": id, "state": state, "tenant": "search", "class": "interactive", "model": "llama-3-8b",
                "state_seconds": 4.2, "output_tokens": 17, "replica": "h100/http://127.0.0.1:9001",
                "waits": { "obstacle": "no_room", "starts_in_seconds": 3.0 }, "end": null,
            })
        };
        json!({
            "status": { "version": "0.1.0", "uptime_seconds": 65.0 },
            "matched": { "waiting": 2, "running": 1 },
            "queues": [
                { "tenant": "search", "class": "batch", "model": "m", "waiting": 9, "oldest_seconds": 2.0, "tokens": 70, "bytes": 900 },
                { "tenant": "chat", "class": "batch", "model": "m", "waiting": 12, "oldest_seconds": 1.0, "tokens": 7, "bytes": 90 },
            ],
            "requests": [request("req_aaaaaaaaaaaaaaaaaaaaaaaa", "waiting"), request("r-2", "running")],
        })
    }

    fn screen(view: usize) -> Screen {
        let mut screen = Screen::new(view, String::new(), false);
        screen.set(data());
        screen
    }

    fn drawn(screen: &mut Screen) -> String {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..80).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..24).map(line).collect::<Vec<_>>().join("\n")
    }

    fn press(screen: &mut Screen, keys: &str) {
        for key in keys.chars() {
            let code = if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) };
            assert!(!screen.key(KeyPress { code, ctrl: false }));
        }
    }

    #[test]
    fn everything_fits_on_eighty_columns() {
        let text = drawn(&mut screen(4));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "penstock 0.1.0  ready  up 1m05s  2 wait  1 run");
        assert_eq!(lines[1], " 1 queues 2  2 pools 0  3 replicas 0  4 tenants 0  5 requests 2");
        assert!(
            lines[2].starts_with("REQUEST") && lines[2].contains("STARTS") && lines[2].contains("WHY"),
            "{text}"
        );
        assert!(lines[3].starts_with("req_aaa") && lines[3].contains("no room"), "{text}");
        assert_eq!(lines[23], HELP);
    }

    #[test]
    fn keys_sort_filter_and_pause() {
        let mut screen = screen(0);
        let first =
            |screen: &mut Screen| drawn(screen).lines().nth(3).unwrap().split(' ').next().unwrap().to_owned();
        assert_eq!(first(&mut screen), "search");
        press(&mut screen, "s");
        assert_eq!(first(&mut screen), "chat");
        press(&mut screen, "sssr");
        assert!(drawn(&mut screen).contains("WAITINGv"));
        assert_eq!(first(&mut screen), "chat", "12 is more than 9");
        press(&mut screen, "/sea\n");
        assert!(drawn(&mut screen).contains("filter: sea  "));
        assert_eq!(screen.rows(0).len(), 1);
        press(&mut screen, "p");
        screen.set(json!({ "queues": [] }));
        assert_eq!(screen.rows(0).len(), 1, "it is paused");
        press(&mut screen, "p5");
        screen.set(json!({ "problem": "gone" }));
        assert!(drawn(&mut screen).ends_with("no news: gone"));
        assert!(screen.key(KeyPress { code: KeyCode::Char('c'), ctrl: true }));
        assert!(!screen.key(KeyPress { code: KeyCode::Esc, ctrl: false }) && screen.filter.is_empty());
        assert!(screen.key(KeyPress { code: KeyCode::Esc, ctrl: false }));
    }

    #[test]
    fn a_heading_is_found_and_others_are_named() {
        let mut screen = screen(0);
        screen.sort_by(Some("-waiting")).unwrap();
        let text = screen.as_text(&[0]);
        assert!(text.contains("queues (2)\nTENANT"), "{text}");
        assert!(text.find("chat").unwrap() < text.find("search").unwrap());
        assert!(screen.sort_by(Some("colour")).unwrap_err().to_string().contains("there are: TENANT, CLASS"));
    }
}
