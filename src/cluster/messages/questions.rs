//! Questions: an operator asks one gateway for a request, and it asks the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::cluster::parts::ClusterStatus;

/// Longest time for the answers of all gateways. One takes two turns of 200 ms at most.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Most questions that are open at once.
const MAX_OPEN: usize = 16;
/// Longest id of a request that is asked for.
const MAX_ID: usize = 256;

/// Answer of the other gateways.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetAnswer {
    /// There is no other gateway.
    Alone,
    /// This gateway has it: its name, and what it says of the request.
    Found(String, Value),
    /// Nobody has it. These gateways, by their names, did not answer in time.
    NotFound(Vec<String>),
    /// The others could not be asked, for this reason.
    NotAsked(String),
}

/// Asks the other gateways for a request.
#[derive(Debug, Clone)]
pub struct RequestFinder {
    pub(in crate::cluster) status: Arc<Mutex<ClusterStatus>>,
    pub(in crate::cluster) questions: Arc<Questions>,
}

impl RequestFinder {
    /// Asks all other gateways for the request with this id, for two seconds at most.
    pub async fn find(&self, id: &str) -> FleetAnswer {
        let (names, problem) = {
            let status = self.status.lock();
            let others = status.gateways.iter().filter(|gateway| gateway.id != status.id);
            let names: BTreeMap<String, String> =
                others.map(|gateway| (gateway.id.clone(), gateway.name.clone())).collect();
            (names, status.problem.clone())
        };
        if let Some(problem) = problem {
            return FleetAnswer::NotAsked(format!("the store is away: {problem}"));
        }
        if names.is_empty() || id.len() > MAX_ID {
            return FleetAnswer::Alone;
        }
        let Some(open) = self.questions.ask(id, names.keys().cloned().collect()) else {
            return FleetAnswer::NotAsked(format!("{MAX_OPEN} questions are open"));
        };
        let AskedQuestion { place, answer } = open;
        let answer = timeout(ANSWER_TIMEOUT, answer).await;
        let silent = place.silent();
        let named = |id: &String| names.get(id).cloned().unwrap_or_else(|| id.clone());
        match answer {
            Ok(Ok((gateway, request))) => FleetAnswer::Found(named(&gateway), request),
            Ok(Err(_)) | Err(_) => FleetAnswer::NotFound(silent.iter().map(named).collect()),
        }
    }
}

/// A question that was asked.
struct AskedQuestion<'a> {
    place: QuestionPlace<'a>,
    /// The gateway that has the request, and what it says. It is dropped once all have said that they do not have it.
    answer: oneshot::Receiver<(String, Value)>,
}

/// Place of an open question. Dropping it closes the question, also when whoever asked has hung up.
struct QuestionPlace<'a> {
    questions: &'a Questions,
    number: u64,
}

impl QuestionPlace<'_> {
    /// The gateways that have not answered.
    fn silent(&self) -> BTreeSet<String> {
        let state = self.questions.state.lock();
        state.open.get(&self.number).map(|question| question.silent.clone()).unwrap_or_default()
    }
}

impl Drop for QuestionPlace<'_> {
    fn drop(&mut self) {
        self.questions.state.lock().open.remove(&self.number);
    }
}

/// Questions of this gateway that are open.
#[derive(Debug, Default)]
pub(in crate::cluster) struct Questions {
    state: Mutex<QuestionState>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct QuestionState {
    last: u64,
    open: BTreeMap<u64, OpenQuestion>,
}

#[derive(Debug)]
struct OpenQuestion {
    id: String,
    is_sent: bool,
    /// Gateways that have not answered.
    silent: BTreeSet<String>,
    /// Absent once there is nothing to wait for.
    answer: Option<oneshot::Sender<(String, Value)>>,
}

impl Questions {
    /// Opens a question to these gateways; `None` while too many are open.
    fn ask(&self, id: &str, gateways: BTreeSet<String>) -> Option<AskedQuestion<'_>> {
        let (sender, answer) = oneshot::channel();
        let mut state = self.state.lock();
        if state.open.len() >= MAX_OPEN {
            return None;
        }
        state.last += 1;
        let number = state.last;
        let question =
            OpenQuestion { id: id.to_owned(), is_sent: false, silent: gateways, answer: Some(sender) };
        state.open.insert(number, question);
        drop(state);
        self.asked.notify_one();
        Some(AskedQuestion { place: QuestionPlace { questions: self, number }, answer })
    }

    /// Waits until there is a question to send.
    pub(super) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// The questions that were not sent yet, with the ids that they ask for.
    pub(super) fn take_unsent(&self) -> Vec<(u64, String)> {
        let mut state = self.state.lock();
        let unsent = state.open.iter_mut().filter(|(_, question)| !question.is_sent);
        let taken = unsent.map(|(number, question)| {
            question.is_sent = true;
            (*number, question.id.clone())
        });
        taken.collect()
    }

    /// Takes a gateway's answer.
    pub(super) fn answered(&self, number: u64, gateway: &str, request: Option<Value>) {
        let mut state = self.state.lock();
        let Some(question) = state.open.get_mut(&number) else { return };
        if !question.silent.remove(gateway) {
            return;
        }
        if let Some(request) = request {
            if let Some(answer) = question.answer.take() {
                // Who asked may have stopped waiting.
                let _late = answer.send((gateway.to_owned(), request));
            }
        } else if question.silent.is_empty() {
            question.answer = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::cluster::parts::ClusterMember;

    fn finder(others: &[&str]) -> RequestFinder {
        let gateways = ["me"].iter().chain(others).map(|id| ClusterMember {
            name: format!("{id}:8080"),
            ..ClusterMember::read((*id).to_owned(), "0 1 x")
        });
        let mut status = ClusterStatus::new("me".to_owned(), "me:8080".to_owned());
        status.gateways = gateways.collect();
        RequestFinder { status: Arc::new(Mutex::new(status)), questions: Arc::default() }
    }

    /// Asks, and has the gateways answer so.
    async fn asked(finder: &RequestFinder, answers: &[(&str, Option<Value>)]) -> FleetAnswer {
        let answering = async {
            finder.questions.asked().await;
            let unsent = finder.questions.take_unsent();
            assert_eq!((unsent.len(), &*unsent[0].1), (1, "r1"));
            for (gateway, request) in answers {
                finder.questions.answered(unsent[0].0, gateway, request.clone());
            }
        };
        let (answer, ()) = tokio::join!(finder.find("r1"), answering);
        assert!(finder.questions.state.lock().open.is_empty());
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_gateway_that_has_it_answers_and_who_is_silent_is_named() {
        let finder = finder(&["a", "b"]);
        let found = asked(&finder, &[("a", None), ("b", Some(json!({"state": "running"})))]).await;
        assert_eq!(found, FleetAnswer::Found("b:8080".to_owned(), json!({"state": "running"})));
        let begun = Instant::now();
        let nobody = asked(&finder, &[("a", None), ("stranger", Some(json!(1))), ("b", None)]).await;
        assert_eq!((nobody, begun.elapsed()), (FleetAnswer::NotFound(Vec::new()), Duration::ZERO));
        let silent = asked(&finder, &[("a", None), ("a", None)]).await;
        assert_eq!(
            (silent, begun.elapsed()),
            (FleetAnswer::NotFound(vec!["b:8080".to_owned()]), ANSWER_TIMEOUT)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_hangs_up_leaves_no_question_open() {
        let finder = finder(&["a"]);
        for _ in 0..=MAX_OPEN {
            let left = timeout(Duration::from_millis(10), finder.find("r1")).await;
            assert!(left.is_err(), "it waits for an answer: {left:?}");
        }
        assert!(finder.questions.state.lock().open.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_asked_where_nobody_can_answer() {
        assert_eq!(finder(&[]).find("r1").await, FleetAnswer::Alone);
        let away = finder(&["a"]);
        assert_eq!(away.find(&"x".repeat(MAX_ID + 1)).await, FleetAnswer::Alone);
        let open: Vec<_> =
            (0..MAX_OPEN).map(|_| away.questions.ask("r1", BTreeSet::new()).unwrap()).collect();
        assert_eq!(away.find("r1").await, FleetAnswer::NotAsked("16 questions are open".to_owned()));
        drop(open);
        away.status.lock().problem = Some("timed out".to_owned());
        assert_eq!(away.find("r1").await, FleetAnswer::NotAsked("the store is away: timed out".to_owned()));
    }
}
