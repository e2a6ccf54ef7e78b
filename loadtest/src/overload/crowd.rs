//! Crowd of an overload: who asks for how much, and how it ends for them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use hyper::header::HeaderValue;
use penstock::sim::rng::Rng;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::chaos::book::Book;
use crate::chaos::call::{Answer, ask};
use crate::pace;
use crate::target::Endpoint;

/// Longest wait for an answer: longer than any class waits and any answer takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// Sends part of the load.
#[derive(Debug, Clone)]
pub(super) struct Sender {
    pub(super) name: &'static str,
    pub(super) class: &'static str,
    /// Requests a second.
    pub(super) rate: f64,
    /// One of them for each request.
    pub(super) keys: Arc<[HeaderValue]>,
}

/// How one request ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) who: &'static str,
    /// Since the start of the load.
    pub(super) at: Duration,
    pub(super) answer: Answer,
}

/// Sends Poisson arrivals until the task is dropped; what came of each goes to `ended`.
pub(super) async fn send(
    sender: Sender,
    (endpoint, book): (Endpoint, Arc<Book>),
    seed: u64,
    start: Instant,
    ended: UnboundedSender<Ended>,
) -> Result<()> {
    let mut rng = Rng::new(seed ^ sender.name.len() as u64);
    let (mut at, rate) = (0.0, sender.rate);
    let mut clock = rng.clone();
    let times = std::iter::repeat_with(move || {
        at += clock.exponential() / rate;
        Duration::from_secs_f64(at)
    });
    let mut due = pace::due(times, move |time| start + *time)?;
    let mut open = JoinSet::new();
    while let Some(at) = due.recv().await {
        while open.try_join_next().is_some() {}
        let question = &book.questions[rng.below(book.questions.len() as u64) as usize];
        let key = &sender.keys[rng.below(sender.keys.len() as u64) as usize];
        let endpoint = endpoint.clone().with_path(&format!("/v1/{}", question.api.path()))?;
        let mut request = endpoint.request(Some(key), question.body(true));
        request.headers_mut().insert("x-penstock-class", HeaderValue::from_static(sender.class));
        let (who, ended) = (sender.name, ended.clone());
        open.spawn(async move {
            let answer = ask(&endpoint, request, start + at, start + at + PATIENCE).await;
            // At the end of the run nobody listens any more.
            let _ = ended.send(Ended { who, at, answer });
        });
    }
    Ok(())
}

impl Ended {
    /// How it ended, so that like ends have like words.
    pub(super) fn text(&self) -> String {
        let how = match (&self.answer.fault, self.answer.status) {
            (None, _) => "served".to_owned(),
            (Some(fault), Some(status)) if status != 200 => {
                let advice = if self.answer.announced { "" } else { " without advice" };
                let code = fault.split("\"code\":\"").nth(1).and_then(|rest| rest.split('"').next());
                format!("{status} {}{advice}", code.unwrap_or("?"))
            }
            (Some(fault), _) => fault.clone(),
        };
        format!("{}: {how}", self.who)
    }
}
