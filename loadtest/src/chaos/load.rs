//! Chaos load: the requests of a run, and what their clients see.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use hyper::header::HeaderValue;
use penstock::sim::rng::Rng;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::book::{Book, Question};
use super::call::{Answer, ask};
use crate::pace;
use crate::target::Endpoint;

/// Who asks, and the share of the requests: chats, applications, batch jobs;
/// each has a class of its own. Most are urgent, since engines are not filled
/// with what can wait.
pub const TENANTS: [(&str, f64); 3] = [("chat", 0.7), ("app", 0.2), ("jobs", 0.1)];
/// Share of the requests that are streams.
const STREAMS: f64 = 0.8;

/// A request to be sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// Since the start of the load.
    pub at: Duration,
    /// Which question of the book.
    pub question: usize,
    /// Which of [`TENANTS`].
    pub tenant: usize,
    /// As a stream.
    pub stream: bool,
}

/// Poisson arrivals of `rate` a second.
pub fn plan(seed: u64, rate: f64, duration: Duration, questions: usize) -> Vec<Planned> {
    let mut rng = Rng::new(seed ^ 0x10AD);
    let mut at = 0.0;
    let mut planned = Vec::new();
    loop {
        at += rng.exponential() / rate;
        if at >= duration.as_secs_f64() {
            return planned;
        }
        let mut share = rng.unit();
        let tenant = TENANTS.iter().position(|(_, part)| {
            share -= part;
            share < 0.0
        });
        planned.push(Planned {
            at: Duration::from_secs_f64(at),
            question: rng.below(questions as u64) as usize,
            tenant: tenant.unwrap_or(0),
            stream: rng.unit() < STREAMS,
        });
    }
}

/// What is wrong with an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Right,
    /// It failed and its client had not seen a token.
    FailedBefore(String),
    /// It failed after its first token.
    Broken(String),
    /// It has another text, or another end.
    OtherText(String),
    /// It has another usage.
    OtherUsage(String),
}

impl Verdict {
    /// Compares an answer with the one that an undisturbed engine gives.
    pub fn of(question: &Question, answer: &Answer) -> Self {
        let right = &question.answer;
        if let Some(fault) = &answer.fault {
            let fault = fault.clone();
            return if answer.begun() { Self::Broken(fault) } else { Self::FailedBefore(fault) };
        }
        if (&answer.text, &answer.finish) != (&right.text, &right.finish) {
            let same = answer.text.bytes().zip(right.text.bytes()).take_while(|(a, b)| a == b).count();
            let (is, should) = (answer.text.len(), right.text.len());
            let (end, right_end) = (&answer.finish, &right.finish);
            return Self::OtherText(format!(
                "{is} bytes for {should}, the first {same} are right, end {end:?} for {right_end:?}"
            ));
        }
        if answer.usage != right.usage {
            return Self::OtherUsage(format!("usage {:?} for {:?}", answer.usage, right.usage));
        }
        Self::Right
    }
}

/// A request and what came of it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// As it was planned.
    pub planned: Planned,
    /// The gateway's name for it.
    pub request_id: Option<String>,
    /// From its planned instant to its first token.
    pub first_token: Option<Duration>,
    /// From its planned instant to its end.
    pub total: Duration,
    /// How it was.
    pub verdict: Verdict,
    /// What went wrong came with advice to its client; see [`Answer::announced`].
    pub announced: bool,
}

/// Who asks the gateway for what.
#[derive(Debug)]
pub struct Clients {
    /// The gateway.
    pub endpoint: Endpoint,
    /// Of each of [`TENANTS`].
    pub keys: Vec<HeaderValue>,
    /// What is asked.
    pub book: Book,
    /// When a request is given up, from its planned instant.
    pub patience: Duration,
}

impl Clients {
    /// Sends everything at its time and waits for all the answers; `ended` is
    /// told of each.
    ///
    /// # Errors
    /// When no thread can be started for the clock.
    pub async fn run(self: Arc<Self>, planned: Vec<Planned>, start: Instant) -> Result<Vec<Seen>> {
        let mut due = pace::due(planned.into_iter(), move |planned| start + planned.at)?;
        let (mut open, mut seen) = (JoinSet::new(), Vec::new());
        let mut planning = true;
        while planning || !open.is_empty() {
            tokio::select! {
                biased;
                next = due.recv(), if planning => match next {
                    Some(planned) => {
                        let clients = Arc::clone(&self);
                        open.spawn(async move { clients.one(planned, start).await });
                    }
                    None => planning = false,
                },
                Some(ended) = open.join_next() => seen.push(ended.context("a request failed inside the client")??),
            }
        }
        Ok(seen)
    }

    async fn one(&self, planned: Planned, start: Instant) -> Result<Seen> {
        let question = &self.book.questions[planned.question];
        let endpoint = self.endpoint.clone().with_path(&format!("/v1/{}", question.api.path()))?;
        let request = endpoint.request(Some(&self.keys[planned.tenant]), question.body(planned.stream));
        let intended = start + planned.at;
        let answer = ask(&endpoint, request, intended, intended + self.patience).await;
        Ok(Seen {
            planned,
            verdict: Verdict::of(question, &answer),
            total: intended.elapsed(),
            announced: answer.announced,
            request_id: answer.request_id,
            first_token: answer.first_token,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_follow_from_the_seed_and_have_the_asked_rate() {
        let minute = Duration::from_secs(60);
        let of = |seed| plan(seed, 50.0, minute, 100);
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let plan = of(3);
        assert!((2700..3300).contains(&plan.len()), "{}", plan.len());
        let share = |tenant| plan.iter().filter(|p| p.tenant == tenant).count() as f64 / plan.len() as f64;
        assert!((0.65..0.75).contains(&share(0)) && (0.05..0.15).contains(&share(2)));
        assert!(plan.windows(2).all(|pair| pair[0].at <= pair[1].at));
    }

    #[tokio::test]
    async fn every_lie_is_found() {
        let book = Book::write(1, 2).await.expect("a book");
        let question = &book.questions[0];
        let verdict = |change: fn(&mut Answer)| {
            let mut answer = question.answer.clone();
            change(&mut answer);
            Verdict::of(question, &answer)
        };
        assert_eq!(verdict(|_| {}), Verdict::Right);
        assert!(matches!(verdict(|a| a.text.push(' ')), Verdict::OtherText(_)));
        assert!(matches!(verdict(|a| a.finish = Some("tool_calls".into())), Verdict::OtherText(_)));
        assert!(matches!(verdict(|a| a.usage = Some((1, 1))), Verdict::OtherUsage(_)));
        assert!(matches!(verdict(|a| a.usage = None), Verdict::OtherUsage(_)));
        assert!(matches!(verdict(|a| a.fault = Some("x".into())), Verdict::Broken(_)));
        let none = |a: &mut Answer| (a.fault, a.first_token) = (Some("x".into()), None);
        assert!(matches!(verdict(none), Verdict::FailedBefore(_)));
    }
}
