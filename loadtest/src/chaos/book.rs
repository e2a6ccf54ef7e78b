//! Question book: requests with the answers that an undisturbed engine gives.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use penstock::sim::engine::profile::{StepLoad, StepProfile};
use penstock::sim::rng::Rng;
use penstock::sim::server::{SimOptions, SimServer};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::call::{Answer, ask};
use crate::replay::Api;
use crate::target::Endpoint;

/// What every engine of a run shares: the same prompt gets the same text.
pub const TEXT_SEED: u64 = 7;
/// Mean length of answers that end by themselves.
const MEAN_OUTPUT: u32 = 150;
/// Of so many questions one is such that no other engine can go on with it.
const ONE_IN: usize = 20;

/// A question and what is known of its answer.
#[derive(Debug, Clone)]
pub struct Question {
    /// Which call.
    pub api: Api,
    body: Value,
    /// Whether the gateway may go on with its stream at another engine.
    pub can_go_on: bool,
    /// The answer of an engine that nothing happens to.
    pub answer: Answer,
}

impl Question {
    fn new(number: usize, rng: &mut Rng) -> Self {
        let mut text = format!("question {number}:");
        for _ in 0..8 + rng.below(100) {
            let _infallible = write!(text, " {:06x}", rng.below(1 << 24));
        }
        let (api, mut body) = match number % 2 {
            0 => (Api::Chat, json!({"messages": [{"role": "user", "content": text}]})),
            _ => (Api::Completions, json!({"prompt": text})),
        };
        body["model"] = "sim".into();
        body["temperature"] = 0.into();
        if (number / 2).is_multiple_of(2) {
            body["max_tokens"] = (20 + rng.below(260)).into();
            body["ignore_eos"] = true.into();
        } else {
            body["max_tokens"] = 500.into();
        }
        let can_go_on = number % ONE_IN != ONE_IN - 1;
        if !can_go_on {
            body["presence_penalty"] = json!(0.5);
        }
        Self { api, body, can_go_on, answer: Answer::default() }
    }

    /// The body of a request for it. Streams ask for their usage.
    pub fn body(&self, stream: bool) -> Bytes {
        let mut body = self.body.clone();
        if stream {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        Bytes::from(body.to_string())
    }
}

/// Every question of a run.
#[derive(Debug, Clone)]
pub struct Book {
    /// In the order of their numbers.
    pub questions: Vec<Question>,
}

/// An engine as the run has them, fast or at its real speed.
pub fn engine(profile: StepProfile, max_seqs: u32, speed: f64) -> SimOptions {
    let mut options = SimOptions {
        profile,
        speed,
        seed: TEXT_SEED,
        mean_output_tokens: MEAN_OUTPUT,
        ..SimOptions::default()
    };
    options.engine.max_seqs = Some(max_seqs);
    options.engine.prefix_cache = false;
    options
}

impl Book {
    /// Makes questions up and asks an engine without faults for the answers.
    ///
    /// # Errors
    /// When no port is free, or the engine does not answer.
    pub async fn write(seed: u64, count: usize) -> Result<Self> {
        let mut rng = Rng::new(seed ^ 0xB00C);
        let mut questions: Vec<Question> = (0..count).map(|number| Question::new(number, &mut rng)).collect();
        let reference =
            SimServer::start(engine(StepProfile::tiny(), 64, 1000.0)).await.context("no port is free")?;
        for question in &mut questions {
            let endpoint = Endpoint::new(&reference.url(), question.api.path()).await?;
            let now = Instant::now();
            let request = endpoint.request(None, question.body(false));
            let answer = ask(&endpoint, request, now, now + Duration::from_secs(30)).await;
            if let Some(fault) = &answer.fault {
                bail!("the engine without faults does not answer: {fault}");
            }
            ensure!(answer.usage.is_some(), "the engine without faults does not say its usage");
            question.answer = answer;
        }
        reference.stop().await;
        Ok(Self { questions })
    }

    /// Requests a second that one engine can take: the steps that a mean
    /// request needs where `max_seqs` share each step, and the time to read
    /// its prompt.
    pub fn capacity(&self, profile: &StepProfile, max_seqs: u32) -> f64 {
        let usages = self.questions.iter().filter_map(|question| question.answer.usage);
        let (mut input, mut output) = (0, 0);
        for usage in usages {
            input += usage.0;
            output += usage.1;
        }
        let count = self.questions.len().max(1) as f64;
        let (input, output) = (input as f64 / count, output as f64 / count);
        let seqs = f64::from(max_seqs);
        let step = StepLoad {
            decodes: u64::from(max_seqs),
            decode_kv: (seqs * (input + output / 2.0)) as u64,
            ..StepLoad::default()
        };
        let reading = profile.a * input + profile.d * input * input / 2.0;
        1000.0 / (output / seqs * profile.step_ms(&step) + reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_answers_are_those_of_any_engine() {
        let (book, again) =
            (Book::write(1, 40).await.expect("a book"), Book::write(1, 40).await.expect("a book"));
        for (question, other) in book.questions.iter().zip(&again.questions) {
            assert_eq!(question.answer.text, other.answer.text);
            assert!(!question.answer.text.is_empty());
        }
        assert_eq!(book.questions.iter().filter(|question| !question.can_go_on).count(), 2);
        let profile = StepProfile::named("a100-8b").expect("a profile");
        let capacity = book.capacity(&profile, 8);
        assert!((1.0..20.0).contains(&capacity), "{capacity}");
    }
}
