//! DNS source of replicas: the refresh times, and the rules for an empty answer.
//!
//! An answer stays in force for its TTL, within the configured bounds. A failed request changes
//! nothing. An empty answer ("there is no such name", "it has no addresses") may be true, when the
//! last pod is gone. It may also be a passing mistake, while the zone is being loaded. The last
//! addresses therefore stay in force for a grace time first.

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::config::discover::DnsSource;
use crate::fleet::discovery::pause::RetryPauses;
use crate::fleet::discovery::source_status::SourceReporter;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DnsAnswer {
    /// Addresses and ports; empty when the name has none or does not exist.
    pub(super) addresses: Vec<(IpAddr, u16)>,
    /// Time for which the answer stays in force.
    pub(super) ttl: Duration,
}

/// Asks for ever, and reports every answer.
pub(super) async fn run<F>(dns: &DnsSource, reporter: &SourceReporter, ask: impl Fn() -> F)
where
    F: Future<Output = Result<DnsAnswer, String>>,
{
    let mut pauses = RetryPauses::new(dns.min_refresh, dns.max_refresh);
    let mut empty_since: Option<Instant> = None;
    loop {
        let pause = match ask().await {
            Err(why) => {
                reporter.report_lost(&why);
                pauses.next()
            }
            Ok(answer) => {
                pauses.reset();
                let held = answer.ttl.clamp(dns.min_refresh, dns.max_refresh);
                if answer.addresses.is_empty() && reporter.has_endpoints() {
                    held.min(hold_last(dns, reporter, &mut empty_since))
                } else {
                    empty_since = None;
                    let endpoint = |(host, port): (IpAddr, u16)| dns.form.endpoint(&host.to_string(), port);
                    reporter.report_endpoints(answer.addresses.into_iter().filter_map(endpoint).collect());
                    held
                }
            }
        };
        sleep(pause).await;
    }
}

/// Handles an empty answer of a name that had addresses. Returns the time for which the last
/// addresses stay in force.
fn hold_last(dns: &DnsSource, reporter: &SourceReporter, empty_since: &mut Option<Instant>) -> Duration {
    let first = empty_since.is_none();
    let since = *empty_since.get_or_insert_with(Instant::now);
    let left = dns.empty_grace.saturating_sub(since.elapsed());
    if left.is_zero() {
        *empty_since = None;
        reporter.report_endpoints(Vec::new());
        return dns.min_refresh;
    }
    if first {
        reporter.report_empty(left);
    }
    left
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::config::discover::DnsRecords;
    use crate::fleet::discovery::source_status::tests::{FORM, ReporterFixture};

    fn rules() -> DnsSource {
        DnsSource {
            name: "vllm.".into(),
            records: DnsRecords::A,
            port: 8000,
            form: FORM,
            min_refresh: Duration::from_secs(2),
            max_refresh: Duration::from_secs(60),
            empty_grace: Duration::from_secs(30),
            servers: Vec::new(),
        }
    }

    fn hosts(last: &[u8], ttl: u64) -> Result<DnsAnswer, String> {
        let addresses = last.iter().map(|last| (IpAddr::from([10, 0, 0, *last]), 8000)).collect();
        Ok(DnsAnswer { addresses, ttl: Duration::from_secs(ttl) })
    }

    /// Plays the answers and returns, for each of them, the second in which it
    /// was asked for and the number of endpoints that held just before.
    async fn play(fixture: &ReporterFixture, answers: Vec<Result<DnsAnswer, String>>) -> Vec<(u64, usize)> {
        let start = Instant::now();
        let (asked, count) = (RefCell::new(Vec::new()), answers.len());
        let (rules, done) = (rules(), tokio::sync::Notify::new());
        let ask = || async {
            let at = asked.borrow().len();
            asked.borrow_mut().push((start.elapsed().as_secs(), fixture.hosts().len()));
            if at == count {
                done.notify_one();
                std::future::pending::<()>().await;
            }
            answers[at].clone()
        };
        tokio::select! {
            () = run(&rules, &fixture.reporter, ask) => {}
            () = done.notified() => {}
        }
        asked.into_inner()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_for_its_ttl_within_bounds() {
        let fixture = ReporterFixture::new();
        let answers = vec![hosts(&[1], 5), hosts(&[1, 2], 0), hosts(&[2], 3600), hosts(&[3], 10)];
        assert_eq!(play(&fixture, answers).await, [(0, 0), (5, 1), (7, 2), (67, 1), (77, 1)]);
        assert_eq!(fixture.hosts(), ["10.0.0.3:8000"]);
        assert_eq!(fixture.logged(), Vec::<&str>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_keeps_the_last_view_and_backs_off() {
        let fixture = ReporterFixture::new();
        let fail = || Err("SERVFAIL".to_owned());
        let mut answers = vec![hosts(&[1, 2], 2)];
        answers.extend((0..8).map(|_| fail()));
        answers.push(hosts(&[1], 2));
        let asked = play(&fixture, answers).await;
        assert!(asked[1..10].iter().all(|(_, held)| *held == 2), "{asked:?}");
        let pauses: Vec<u64> = asked[1..10].windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(pauses[0] <= 2 && (45..=60).contains(&pauses[7]), "{pauses:?}");
        let noted = fixture.logged();
        assert_eq!((noted.len(), noted[0], noted[8]), (9, "lost", "back"));
        assert_eq!(fixture.hosts(), ["10.0.0.1:8000"]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_addresses_count_after_a_grace_time() {
        let fixture = ReporterFixture::new();
        let nothing = || hosts(&[], 20);
        let answers = vec![nothing(), hosts(&[1], 2), nothing(), nothing(), nothing(), nothing()];
        let asked = play(&fixture, answers).await;
        // An empty answer at the start counts at once; a later one only after 30 s.
        assert_eq!(asked, [(0, 0), (20, 0), (22, 1), (42, 1), (52, 1), (54, 0), (74, 0)]);
        assert_eq!(fixture.logged(), ["empty"]);
        assert_eq!(fixture.hosts(), Vec::<String>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_that_come_back_in_time_never_went() {
        let fixture = ReporterFixture::new();
        let answers = vec![hosts(&[1], 2), hosts(&[], 20), hosts(&[1], 40), hosts(&[], 20), hosts(&[1], 2)];
        let asked = play(&fixture, answers).await;
        assert!(asked[1..].iter().all(|(_, held)| *held == 1), "{asked:?}");
        assert_eq!(fixture.logged(), ["empty", "empty"], "the grace begins anew");
    }
}
