//! Tests of `loadtest closed`: the clients' counts agree with the simulated engine's.

use std::time::Duration;

use penstock::sim::engine::profile::StepProfile;
use penstock::sim::server::{SimOptions, SimServer};
use penstock_loadtest::closed::{Answers, Closed, Work};
use penstock_loadtest::target::Endpoint;

fn work(answers: Answers, n: u32, shared: u32) -> Work {
    Work {
        model: "sim".to_owned(),
        answers,
        prompt: 200,
        shared,
        output: 5,
        n,
        bytes_per_token: 4.0,
        seed: 1,
    }
}

#[tokio::test]
async fn answers_of_every_kind_are_counted_with_their_tokens() {
    let options = SimOptions { profile: StepProfile::tiny(), mean_output_tokens: 1, ..SimOptions::default() };
    let [one, two] = [
        SimServer::start(options.clone()).await.expect("an engine"),
        SimServer::start(options).await.expect("an engine"),
    ];
    for (answers, n, shared) in
        [(Answers::Streams, 1, 0), (Answers::Plain, 1, 150), (Answers::Half, 1, 0), (Answers::Half, 2, 0)]
    {
        let mut targets = Vec::new();
        for engine in [&one, &two] {
            targets.push(Endpoint::new(&engine.url(), "chat/completions").await.expect("an address"));
        }
        let closed = Closed {
            targets,
            key: None,
            class: None,
            clients: 4,
            work: work(answers, n, shared),
            warmup: Duration::ZERO,
            window: Duration::from_secs(1),
            timeout: Duration::from_secs(60),
        };
        let served = closed.run().await.expect("a run");
        assert_eq!(served.failed(), 0, "{served:?}");
        let (requests, tokens) = (served.requests_per_second, served.tokens_per_second);
        assert!(requests > 0.0 && (tokens / requests - f64::from(5 * n)).abs() < 1e-6, "{served:?}");
        // A chat has some tokens beside its text.
        assert!((195.0..=210.0).contains(&served.prompt_tokens), "{served:?}");
        assert_eq!(served.ttft.is_some(), answers != Answers::Plain);
    }
    let totals = [&one, &two].map(|engine| engine.control().state().total);
    assert!(totals[0].abs_diff(totals[1]) <= 4, "requests go to one after the other: {totals:?}");
    for engine in [&one, &two] {
        let left = || {
            let state = engine.control().state();
            state.running + state.waiting + state.inside
        };
        let gone = async {
            while left() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), gone).await.expect("nothing is left");
    }
}
