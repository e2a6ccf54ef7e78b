//! Addresses of a DNS name that does not stand for replicas.

use std::net::IpAddr;

use tokio::time::{Instant, sleep};

use crate::config::discover::DnsSource;
use crate::fleet::discovery::dns::DnsAnswer;
use crate::fleet::discovery::pause::RetryPauses;
use crate::fleet::discovery::resolver::SystemResolver;

/// Asks for ever, and calls `tell` with the addresses of every answer. After an error the last
/// addresses stay in force. An empty answer counts only `empty_grace` after the last one with
/// addresses.
pub async fn follow(dns: &DnsSource, tell: impl Fn(Vec<(IpAddr, u16)>)) {
    let resolver = SystemResolver::new(dns.clone());
    run(dns, || resolver.ask(), tell).await;
}

async fn run<F>(dns: &DnsSource, ask: impl Fn() -> F, tell: impl Fn(Vec<(IpAddr, u16)>))
where
    F: Future<Output = Result<DnsAnswer, String>>,
{
    let mut pauses = RetryPauses::new(dns.min_refresh, dns.max_refresh);
    let mut some: Option<Instant> = None;
    loop {
        let pause = match ask().await {
            Err(_) => pauses.next(),
            Ok(answer) => {
                pauses.reset();
                let empty = answer.addresses.is_empty();
                if !empty || some.is_none_or(|last| last.elapsed() >= dns.empty_grace) {
                    some = (!empty).then(Instant::now);
                    tell(answer.addresses);
                }
                answer.ttl.clamp(dns.min_refresh, dns.max_refresh)
            }
        };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;
    use crate::config::discover::DnsRecords;
    use crate::fleet::discovery::source_status::tests::FORM;

    #[tokio::test(start_paused = true)]
    async fn the_last_answer_holds_and_an_empty_one_only_after_a_while() {
        let dns = DnsSource {
            name: "gateways.".into(),
            records: DnsRecords::A,
            port: 8082,
            form: FORM,
            min_refresh: Duration::from_millis(900),
            max_refresh: Duration::from_secs(10),
            empty_grace: Duration::from_secs(10),
            servers: Vec::new(),
        };
        let answer = |last: &[u8]| {
            let addresses = last.iter().map(|last| (IpAddr::from([10, 0, 0, *last]), 8082)).collect();
            Ok(DnsAnswer { addresses, ttl: Duration::from_secs(6) })
        };
        let answers =
            [answer(&[]), answer(&[1, 2]), Err("SERVFAIL".to_owned()), answer(&[]), answer(&[]), answer(&[])];
        let (asked, told) = (RefCell::new(0), RefCell::new(Vec::new()));
        let done = tokio::sync::Notify::new();
        let ask = || async {
            let at = asked.replace_with(|asked| *asked + 1);
            if at == answers.len() {
                done.notify_one();
                std::future::pending::<()>().await;
            }
            answers[at].clone()
        };
        let start = Instant::now();
        let tell = |found: Vec<_>| told.borrow_mut().push((start.elapsed().as_secs(), found.len()));
        tokio::select! {
            () = run(&dns, ask, tell) => {}
            () = done.notified() => {}
        }
        assert_eq!(told.into_inner(), [(0, 0), (6, 2), (18, 0), (24, 0)]);
    }
}
