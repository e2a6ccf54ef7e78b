//! Message share: the calls that carry messages to the store and back.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use crate::cluster::demand::reports::StoreNames;
use crate::cluster::messages::Questions;
use crate::cluster::messages::past_use::{self, MAX_ROWS, PastUseRow, PastUseSearch};
use crate::cluster::parts::ClusterParts;
use crate::cluster::store::connection::StoreConnection;
use crate::cluster::store::scripts::{MESSAGES, StoreScript};
use crate::core::model::event::Event;
use crate::telemetry::event::MessagesNotShared;

/// Time between two calls.
const INTERVAL: Duration = Duration::from_millis(200);
/// Longest text of a message.
const MAX_TEXT: usize = 64 * 1024;
/// Most questions that are answered in one turn. A search looks at ten thousand requests.
const ANSWERS_A_TURN: usize = 16;
/// Rows of past use in one event of the scheduler. Requests wait while it is handled.
const ROWS_AN_EVENT: usize = 256;

/// A message as JSON. A gateway leaves those alone that it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    /// Who has the request with this id?
    Find { question: u64, id: String },
    /// What the sender says of it; null = it does not have it.
    Found { question: u64, request: Option<Value> },
    /// What have tenants used lately?
    TellPastUse,
    /// The tenants that used most.
    PastUse(Vec<PastUseRow>),
}

/// A message with the gateway that it goes to; `*` = all.
type OutgoingMessage = (String, Message);

#[derive(Debug)]
pub(in crate::cluster) struct MessageShare {
    script: StoreScript,
    questions: Arc<Questions>,
    past_use: PastUseSearch,
    /// Number of the last message that was heard.
    last: String,
    /// Answers for the next call.
    answers: Vec<OutgoingMessage>,
    due: Instant,
}

impl MessageShare {
    pub(in crate::cluster) fn new() -> Self {
        Self {
            script: StoreScript::new(MESSAGES),
            questions: Arc::default(),
            past_use: PastUseSearch::new(),
            last: String::new(),
            answers: Vec::new(),
            due: Instant::now(),
        }
    }

    /// The questions that it carries.
    pub(in crate::cluster) const fn questions(&self) -> &Arc<Questions> {
        &self.questions
    }

    /// When the next call is due.
    pub(in crate::cluster) const fn due(&self) -> Instant {
        self.due
    }

    /// Waits until an operator asks for a request.
    pub(in crate::cluster) async fn asked(&self) {
        self.questions.asked().await;
    }

    /// Makes the next call due now.
    pub(in crate::cluster) fn hurry(&mut self) {
        self.due = Instant::now();
    }

    /// Sends the questions of this gateway, and answers those of others. A call that the store refuses is a line of
    /// the log. `members` are the gateways that are there.
    ///
    /// # Errors
    /// The connection is lost.
    pub(in crate::cluster) async fn share(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        parts: &ClusterParts,
        members: &[String],
    ) -> Result<(), String> {
        self.due = Instant::now() + INTERVAL;
        if members.len() < 2 {
            return Ok(());
        }
        let asked = self.questions.take_unsent().into_iter();
        let asked = asked.map(|(question, id)| ("*".to_owned(), Message::Find { question, id }));
        let policy = Arc::clone(&parts.settings.load().policy);
        let teller = self.past_use.next(names.id, members, &policy);
        let mut outgoing = std::mem::take(&mut self.answers);
        outgoing.extend(asked.chain(teller.map(|id| (id, Message::TellPastUse))));
        self.call(connection, names, parts, &outgoing).await?;
        if !self.answers.is_empty() {
            // Who asks is told at once.
            let answers = std::mem::take(&mut self.answers);
            self.call(connection, names, parts, &answers).await?;
        }
        Ok(())
    }

    /// Sends messages, and receives those of others.
    async fn call(
        &mut self,
        connection: &StoreConnection,
        names: StoreNames<'_>,
        parts: &ClusterParts,
        outgoing: &[OutgoingMessage],
    ) -> Result<(), String> {
        let key = format!("{}:v1:{{messages}}", names.prefix);
        let mut values = vec![names.id.to_owned(), self.last.clone()];
        values.extend(outgoing.iter().filter_map(texts).flatten());
        let tell = |problem: &str| MessagesNotShared { problem }.emit(&parts.telemetry);
        let answer: Option<Vec<String>> =
            connection.run_or_tell(&mut self.script, &[&*key], &values, tell).await?;
        self.receive(&answer.unwrap_or_default(), parts);
        Ok(())
    }

    fn receive(&mut self, answer: &[String], parts: &ClusterParts) {
        let [last, heard @ ..] = answer else { return };
        last.clone_into(&mut self.last);
        for row in heard.chunks_exact(2) {
            let (from, text) = (&row[0], &row[1]);
            match serde_json::from_str(text) {
                Ok(Message::Find { question, id }) if self.answers.len() < ANSWERS_A_TURN => {
                    let request = (parts.find_request)(&id);
                    self.answers.push((from.clone(), Message::Found { question, request }));
                }
                Ok(Message::Found { question, request }) => self.questions.answered(question, from, request),
                Ok(Message::TellPastUse) if self.answers.len() < ANSWERS_A_TURN => {
                    let rows =
                        past_use::rows(&parts.dispatcher.past_use(MAX_ROWS), &parts.settings.load().policy);
                    self.answers.push((from.clone(), Message::PastUse(rows)));
                }
                Ok(Message::PastUse(rows)) if self.past_use.takes(from, &rows) => take_over(&rows, parts),
                Ok(Message::Find { .. } | Message::TellPastUse | Message::PastUse(_)) | Err(_) => {}
            }
        }
    }
}

fn take_over(rows: &[PastUseRow], parts: &ClusterParts) {
    for reports in past_use::reports(rows, &parts.settings.load().policy).chunks(ROWS_AN_EVENT) {
        parts.dispatcher.event(Event::UsedBeforeStart(reports.to_vec()));
    }
}

/// Receiver and text of a message; `None` if it is too long.
fn texts((to, message): &OutgoingMessage) -> Option<[String; 2]> {
    let text = serde_json::to_string(message).ok()?;
    (text.len() <= MAX_TEXT).then(|| [to.clone(), text])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parts() -> ClusterParts {
        ClusterParts::for_tests(
            "{version: 1, auth: {mode: off, tenant: a}, classes: {interactive: {usage_half_life: 1h}}, tenants: {a: {}}, pools: {p: {engine: vllm, models: [m], replicas: ['http://127.0.0.1:9']}}}",
        )
    }

    fn answer(texts: &[&str]) -> Vec<String> {
        let rows = texts.iter().flat_map(|text| ["other", text]);
        ["9"].into_iter().chain(rows).map(str::to_owned).collect()
    }

    #[test]
    fn a_gateway_says_of_each_request_whether_it_has_it() {
        let mut share = MessageShare::new();
        let asked = [r#"{"find":{"question":3,"id":"r1"}}"#, r#"{"find":{"question":4,"id":"r2"}}"#];
        share.receive(&answer(&asked), &parts());
        let told: Vec<_> = share.answers.iter().filter_map(texts).collect();
        let has = r#"{"found":{"question":3,"request":{"state":"waiting"}}}"#;
        let has_not = r#"{"found":{"question":4,"request":null}}"#;
        assert_eq!(told, [["other", has], ["other", has_not]]);
        assert_eq!(share.last, "9");
        share.receive(&answer(&[asked[0]; 30]), &parts());
        assert_eq!(share.answers.len(), ANSWERS_A_TURN);
    }

    #[tokio::test]
    async fn a_gateway_that_starts_hears_what_tenants_have_used() {
        let (mut old, mut new) = (MessageShare::new(), MessageShare::new());
        let (members, before, after) = (["me", "other"].map(str::to_owned), parts(), parts());
        let policy = Arc::clone(&before.settings.load().policy);
        assert_eq!(new.past_use.next("me", &members, &policy).as_deref(), Some("other"));
        let row = r#"["p","interactive","a",700]"#;
        old.receive(&answer(&[&format!("{{\"past_use\":[{row}]}}")]), &before);
        assert_eq!(before.dispatcher.past_use(9), [], "it has not asked");
        let told = Message::PastUse(serde_json::from_str(&format!("[{row}]")).unwrap());
        let [_, told] = texts(&("me".to_owned(), told)).unwrap();
        new.receive(&answer(&[&told, &told]), &after);
        let tokens: Vec<i64> = after.dispatcher.past_use(9).iter().map(|report| report.tokens).collect();
        assert!(matches!(tokens[..], [690..=700]), "{tokens:?}");
        old.receive(&answer(&[r#""tell_past_use""#]), &after);
        let [_, asked] = texts(&old.answers[0]).unwrap();
        assert!(asked == told || asked.starts_with(r#"{"past_use":[["p","interactive","a",69"#), "{asked}");
    }

    #[test]
    fn messages_of_later_versions_and_broken_answers_do_no_harm() {
        let mut share = MessageShare::new();
        let later = [r#"{"sing":{"song":1}}"#, r#"{"find":{"question":1,"id":"r1","why":"x"}}"#, "{"];
        share.receive(&answer(&later), &parts());
        assert_eq!(share.answers.len(), 1);
        share.receive(&[], &parts());
        share.receive(&answer(&later)[..2], &parts());
        let long = Message::Found { question: 1, request: Some(json!("x".repeat(MAX_TEXT))) };
        assert_eq!((share.answers.len(), texts(&("a".to_owned(), long))), (1, None));
    }
}
