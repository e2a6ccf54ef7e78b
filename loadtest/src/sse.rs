//! Stream scanner: a cheap check that a chat stream is whole.

use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder;

/// A line longer than this is taken for a broken stream.
const MAX_LINE: usize = 8 << 20;

/// The end of a whole stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

static END_OF_EVENT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\n\n"));
static ABORT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"abort\""));
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"completion_tokens\":"));
static PROMPT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"prompt_tokens\":"));
static FINISH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"finish_reason\""));
/// Members whose non-empty value is output of the model.
static OUTPUT: LazyLock<[Finder<'static>; 5]> = LazyLock::new(|| {
    ["\"content\"", "\"reasoning_content\"", "\"reasoning\"", "\"tool_calls\"", "\"text\""].map(Finder::new)
});

/// Reads a stream frame by frame, however its bytes are cut.
#[derive(Debug, Default)]
pub struct Scanner {
    /// The start of a line whose end has not come yet.
    partial: Vec<u8>,
    events: u64,
    outputs: u64,
    tokens: Option<u64>,
    prompt: Option<u64>,
    finished: bool,
    aborted: bool,
    done: bool,
    error: bool,
    overlong: bool,
}

impl Scanner {
    /// Takes the next bytes; returns how many data events ended in them.
    pub fn feed(&mut self, mut bytes: &[u8]) -> u64 {
        let before = self.events;
        while let Some(end) = memchr(b'\n', bytes) {
            let (line, rest) = bytes.split_at(end);
            if self.partial.is_empty() {
                self.line(line);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole);
            }
            bytes = &rest[1..];
        }
        if self.partial.len() + bytes.len() > MAX_LINE {
            self.overlong = true;
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(bytes);
        }
        self.events - before
    }

    /// Data events so far, `[DONE]` included.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Whether any output of the model has come.
    pub fn has_output(&self) -> bool {
        self.outputs > 0
    }

    /// Data events that hold output of the model.
    pub fn outputs(&self) -> u64 {
        self.outputs
    }

    /// Output tokens by the last usage that came.
    pub fn tokens(&self) -> Option<u64> {
        self.tokens
    }

    /// Prompt tokens by the last usage that came.
    pub fn prompt(&self) -> Option<u64> {
        self.prompt
    }

    /// Whether a finish reason has come.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// What is wrong with the stream, once it has ended.
    pub fn fault(&self) -> Option<&'static str> {
        if self.overlong {
            return Some("overlong line");
        }
        if self.error {
            return Some("error event");
        }
        if self.aborted {
            return Some("finish_reason abort");
        }
        match (self.finished, self.done) {
            (true, true) => None,
            (_, false) => Some("no [DONE]"),
            (false, true) => Some("no finish_reason"),
        }
    }

    fn line(&mut self, line: &[u8]) {
        let Some(data) = line.strip_prefix(b"data:") else {
            return;
        };
        let data = data.trim_ascii();
        self.events += 1;
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        if data.starts_with(b"{\"error\"") {
            self.error = true;
        }
        self.outputs += u64::from(OUTPUT.iter().any(|name| has_value(name, data)));
        if !self.finished && has_value(&FINISH, data) {
            self.finished = true;
            self.aborted = ABORT.find(data).is_some();
        }
        self.tokens = completion_tokens(data).or(self.tokens);
        self.prompt = prompt_tokens(data).or(self.prompt);
    }
}

/// Counts the events of a stream and looks into none of them: where the reader must cost little.
#[derive(Debug, Default)]
pub struct Tally {
    events: u64,
    /// The last bytes so far.
    tail: Vec<u8>,
}

impl Tally {
    /// Takes the next bytes; returns how many events ended in them.
    pub fn feed(&mut self, bytes: &[u8]) -> u64 {
        let split = self.tail.last() == Some(&b'\n') && bytes.first() == Some(&b'\n');
        let events = END_OF_EVENT.find_iter(bytes).count() as u64 + u64::from(split);
        self.events += events;
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(DONE.len())..]);
        self.tail.drain(..self.tail.len().saturating_sub(DONE.len()));
        events
    }

    /// Events so far, `[DONE]` included.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// What is wrong with the stream, once it has ended.
    pub fn fault(&self) -> Option<&'static str> {
        (self.tail != DONE).then_some("no [DONE]")
    }
}

/// The output tokens that a usage in these bytes names.
pub(crate) fn completion_tokens(data: &[u8]) -> Option<u64> {
    number(&USAGE, data)
}

/// The prompt tokens that a usage in these bytes names.
pub(crate) fn prompt_tokens(data: &[u8]) -> Option<u64> {
    number(&PROMPT, data)
}

fn number(name: &Finder<'_>, data: &[u8]) -> Option<u64> {
    let at = name.find(data)? + name.needle().len();
    let rest = data[at..].trim_ascii_start();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

/// Whether a member of this name holds a string that is not empty, or a list.
fn has_value(name: &Finder<'_>, data: &[u8]) -> bool {
    name.find_iter(data).any(|at| {
        let rest = data[at + name.needle().len()..].trim_ascii_start();
        let Some(value) = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start) else {
            return false;
        };
        match value {
            [b'"', b'"', ..] => false,
            [b'[', next, ..] => *next != b']',
            [b'"', ..] => true,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n\
        : comment\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n\
        data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n\
        data: [DONE]\n\n";

    #[test]
    fn any_cut_gives_the_same_reading() {
        for size in 1..WHOLE.len() {
            let mut scanner = Scanner::default();
            let sum: u64 = WHOLE.as_bytes().chunks(size).map(|part| scanner.feed(part)).sum();
            assert_eq!((sum, scanner.events(), scanner.fault()), (4, 4, None), "cut every {size}");
        }
    }

    #[test]
    fn a_tally_has_the_same_events_for_any_cut() {
        let text = WHOLE.replace('\r', "").replace(": comment\n\n", "");
        for size in 1..=text.len() {
            let mut tally = Tally::default();
            let sum: u64 = text.as_bytes().chunks(size).map(|part| tally.feed(part)).sum();
            assert_eq!((sum, tally.events(), tally.fault()), (4, 4, None), "cut every {size}");
        }
        let mut tally = Tally::default();
        tally.feed(text.replace("[DONE]", "{}").as_bytes());
        assert_eq!(tally.fault(), Some("no [DONE]"));
        assert_eq!(Tally::default().fault(), Some("no [DONE]"));
    }

    #[test]
    fn a_role_alone_is_no_output() {
        let mut scanner = Scanner::default();
        let (role, rest) = WHOLE.split_at(WHOLE.find(": comment").expect("comment"));
        scanner.feed(role.as_bytes());
        assert!(!scanner.has_output());
        scanner.feed(rest.as_bytes());
        assert!(scanner.has_output());
    }

    #[test]
    fn faults_are_named() {
        let fault = |text: &str| {
            let mut scanner = Scanner::default();
            scanner.feed(text.as_bytes());
            scanner.fault()
        };
        assert_eq!(fault(""), Some("no [DONE]"));
        assert_eq!(fault(&WHOLE.replace("data: [DONE]\n\n", "")), Some("no [DONE]"));
        assert_eq!(fault(&WHOLE.replace("\"stop\"", "null")), Some("no finish_reason"));
        assert_eq!(fault("data: {\"error\":{\"message\":\"x\"}}\n\ndata: [DONE]\n\n"), Some("error event"));
    }

    #[test]
    fn usage_outputs_and_aborts_are_read() {
        let mut scanner = Scanner::default();
        scanner.feed(WHOLE.as_bytes());
        assert_eq!((scanner.outputs(), scanner.tokens()), (1, None));
        scanner.feed(b"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\": 27}}\n\n");
        assert_eq!((scanner.tokens(), scanner.prompt()), (Some(27), Some(5)));
        let mut scanner = Scanner::default();
        scanner.feed(WHOLE.replace("\"stop\"", "\"abort\"").as_bytes());
        assert_eq!(scanner.fault(), Some("finish_reason abort"));
    }

    #[test]
    fn tool_calls_are_output() {
        let mut scanner = Scanner::default();
        scanner.feed(b"data: {\"choices\":[{\"delta\":{\"tool_calls\":[]}}]}\n\n");
        assert!(!scanner.has_output());
        scanner.feed(b"data: {\"choices\":[{\"delta\":{\"tool_calls\": [{\"index\":0}]}}]}\n\n");
        assert!(scanner.has_output());
    }

    #[test]
    fn an_endless_line_is_bounded() {
        let mut scanner = Scanner::default();
        let block = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            scanner.feed(&block);
            assert!(scanner.partial.len() <= MAX_LINE);
        }
        assert_eq!(scanner.fault(), Some("overlong line"));
    }
}
