//! Gateways' limits and lease books in virtual time, with the real scripts in a real Redis.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use penstock::cluster::{LEASES, LeaseCall, LeaseReportState, MEMBERS};
use penstock::config::load::load_str_with;
use penstock::config::secret::MachineSecrets;
use penstock::core::limits::rule::{LimitId, LimitPeriod, UnitAmounts, UsedAmounts};
use penstock::core::limits::{LimitReservation, LimitSubject, UsageLimits};
use penstock::core::model::policy::Policy;
use penstock::core::model::time::Tick;
use redis::{Connection, Script, Value};

use crate::support::gateway::{TENANT, head, pool_lines, tenant_lines};
use crate::support::redis::RedisServer;

/// Time between two looks at the clients.
pub(super) const STEP: Duration = Duration::from_millis(20);
/// Time between two reports.
const REPORT: Duration = Duration::from_millis(200);
/// 2026-11-26 00:00 UTC in milliseconds.
const WALL: i64 = 1_795_651_200_000;
const OUTAGE: Duration = Duration::from_secs(3600);

/// Numbers that look random.
#[derive(Debug, Clone)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    /// Whether an event of this many percent happens.
    fn hits(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What goes wrong on the way to the store, in percent of the calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) lost_calls: u64,
    pub(super) lost_answers: u64,
    /// Calls that the store also gets once more, later.
    pub(super) late: u64,
}

/// A job that runs.
struct Running {
    ends: Tick,
    actual: UnitAmounts,
    reservation: LimitReservation,
    /// Its entry in the fleet's ledger.
    entry: u64,
}

pub(super) struct Member {
    id: String,
    limits: UsageLimits,
    lease_reports: LeaseReportState,
    running: Vec<Running>,
    missed: bool,
    reports_at: Tick,
    all: bool,
    /// Whether it reaches the store.
    pub(super) connected: bool,
    others: Vec<String>,
}

/// What was admitted, for the check of the limit.
#[derive(Debug)]
struct Admitted {
    entry: u64,
    at: Tick,
    amount: u64,
}

pub(super) struct Fleet {
    pub(super) server: RedisServer,
    connection: Connection,
    scripts: [Script; 2],
    policy: Arc<Policy>,
    rule: LimitId,
    pub(super) limit: u64,
    pub(super) members: Vec<Member>,
    pub(super) now: Tick,
    pub(super) dice: Dice,
    pub(super) faults: Faults,
    /// Whether the store answers.
    pub(super) up: bool,
    late: VecDeque<(Tick, String, Vec<String>)>,
    admitted: VecDeque<Admitted>,
    entries: u64,
    joined: u64,
    /// The most that was used and reserved at once in a period.
    pub(super) highest: u64,
    /// What was used since it was last set to 0.
    pub(super) used: u64,
    pub(super) refused: u64,
}

/// The arrivals of one step at one gateway: how many, and the tokens of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    pub(super) permille: u64,
    pub(super) tokens: u64,
    /// Longest run.
    pub(super) runs: Duration,
}

impl Fleet {
    /// A fleet under `limits`, which are one limit.
    pub(super) fn new(gateways: usize, limits: &str, seed: u64) -> Self {
        let urls = ["http://127.0.0.1:9".to_owned()];
        let text = head("")
            + "tenants:\n"
            + &tenant_lines(TENANT, limits)
            + "pools:\n"
            + &pool_lines("p", "engine: vllm\nmodels: [m]", &urls);
        let outcome = load_str_with(&text, "test", Path::new("."), None, &MachineSecrets);
        let policy = outcome.loaded.unwrap_or_else(|| panic!("{}", outcome.report)).settings.policy;
        let server = RedisServer::start();
        let scripts = [LEASES, MEMBERS]
            .map(|text| Script::new(&text.replace("--NOW", "local now = tonumber(table.remove(ARGV))")));
        let mut fleet = Self {
            connection: server.connect(),
            server,
            scripts,
            rule: policy.limits[0].id,
            limit: policy.limits[0].amount,
            policy,
            members: Vec::new(),
            now: Tick::from_millis(60_000),
            dice: Dice(seed),
            faults: Faults::default(),
            up: true,
            late: VecDeque::new(),
            admitted: VecDeque::new(),
            entries: 0,
            joined: 0,
            highest: 0,
            used: 0,
            refused: 0,
        };
        for _ in 0..gateways {
            fleet.join();
        }
        fleet
    }

    /// A new gateway, which has exchanged its first report when this returns.
    pub(super) fn join(&mut self) -> usize {
        let mut limits = UsageLimits::default();
        limits.apply(&self.policy.limits);
        let day = Duration::from_secs(86_400);
        limits.start_period(LimitPeriod::Day, Tick::from_millis(60_000) + day);
        limits.lease(&[], self.now + OUTAGE);
        let at = self.members.len();
        self.joined += 1;
        self.members.push(Member {
            id: format!("g{}", self.joined),
            limits,
            lease_reports: LeaseReportState::default(),
            running: Vec::new(),
            missed: false,
            reports_at: self.now,
            all: true,
            connected: true,
            others: Vec::new(),
        });
        self.report(at);
        at
    }

    /// Ends a gateway at once, with all that it runs.
    pub(super) fn kill(&mut self, at: usize) {
        self.members.remove(at);
    }

    /// Another process in the place of a gateway, with what its journal tells.
    pub(super) fn restart(&mut self, at: usize, restored: u64) {
        // The others have reported since its last use.
        (0..self.members.len()).for_each(|at| self.members[at].all = true);
        (0..self.members.len()).for_each(|at| self.report(at));
        self.kill(at);
        let new = self.join();
        let mut member = self.members.remove(new);
        member.limits.restore(self.rule, restored);
        self.members.insert(at, member);
    }

    /// Time passes in which gateways only report.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now += Duration::from_millis(500);
            (0..self.members.len()).for_each(|at| self.report(at));
        }
    }

    /// The hash of the limit.
    pub(super) fn fields(&mut self) -> BTreeMap<String, String> {
        let name = "penstock:*per_*";
        let keys: Vec<String> = redis::cmd("KEYS").arg(name).query(&mut self.connection).unwrap();
        redis::cmd("HGETALL").arg(&keys[0]).query(&mut self.connection).unwrap()
    }

    fn now_ms(&self) -> u64 {
        self.now.as_nanos() / 1_000_000 + 1_000_000
    }

    fn eval<T: redis::FromRedisValue>(&mut self, script: usize, keys: &[String], values: &[String]) -> T {
        let mut call = self.scripts[script].prepare_invoke();
        keys.iter().for_each(|key| _ = call.key(key));
        values.iter().for_each(|value| _ = call.arg(value));
        call.arg(self.now.as_nanos() / 1_000_000 + 1_000_000).invoke(&mut self.connection).unwrap()
    }

    /// One report of a gateway, as the exchange makes it.
    fn report(&mut self, at: usize) {
        if !(self.up && self.members[at].connected) {
            self.members[at].all = true;
            return;
        }
        let keys = ["penstock:v1:{gateways}".to_owned(), "penstock:v1:{gateways}:missed".to_owned()];
        let mut values = vec![self.members[at].id.clone(), "1".to_owned(), "0".to_owned()];
        let missed = std::mem::take(&mut self.members[at].missed);
        if missed {
            values.push("the limit".to_owned());
        }
        let (known, others, names, _said, _time): (u8, Vec<String>, Vec<String>, Vec<String>, i64) =
            self.eval(1, &keys, &values);
        let (now, wall) = (self.now, WALL + i64::try_from(self.now_ms()).unwrap());
        let member = &mut self.members[at];
        member.others = others;
        let named = if names.is_empty() || missed { Vec::new() } else { vec![self.rule] };
        let all = std::mem::take(&mut member.all) || known == 0;
        let wanted = if all { vec![self.rule] } else { named };
        let reports = member.limits.take_use(&wanted, usize::MAX, now).reports;
        for report in reports {
            let member = &mut self.members[at];
            let call = member.lease_reports.call(&report, "penstock", &self.policy, now, wall).unwrap();
            let mut values = vec![member.id.clone(), member.others.join(",")];
            values.extend(call.values.iter().cloned());
            self.send(at, &call, &values);
        }
    }

    fn send(&mut self, at: usize, call: &LeaseCall, values: &[String]) {
        let Faults { lost_calls, lost_answers, late } = self.faults;
        if self.dice.hits(late) {
            let when = self.now + Duration::from_millis(self.dice.below(3_000));
            self.late.push_back((when, call.key.clone(), values.to_vec()));
        }
        if self.dice.hits(lost_calls) {
            self.members[at].all = true;
            return;
        }
        let answers: Vec<String> = self.eval(0, std::slice::from_ref(&call.key), values);
        if self.dice.hits(lost_answers) {
            self.members[at].all = true;
            return;
        }
        let until = self.now + OUTAGE;
        let member = &mut self.members[at];
        if let Some(grant) = member.lease_reports.grant(call, &answers[0]) {
            member.missed = call.misses(&grant);
            member.limits.lease(&[grant], until);
        }
    }

    /// Sends what was held up on its way.
    fn send_late(&mut self) {
        let (due, later) = self.late.drain(..).partition(|(when, ..)| *when <= self.now);
        self.late = later;
        let due: VecDeque<(Tick, String, Vec<String>)> = due;
        for (_, key, values) in due {
            if self.up {
                let _: Value = self.eval(0, &[key], &values);
            }
        }
    }

    /// One step of time, with arrivals at each gateway.
    pub(super) fn step(&mut self, arrivals: impl Fn(usize) -> Arrivals) {
        self.now += STEP;
        self.send_late();
        for at in 0..self.members.len() {
            self.end_jobs(at);
            let Arrivals { permille, tokens, runs } = arrivals(at);
            for _ in 0..permille / 1000 + u64::from(self.dice.below(1000) < permille % 1000) {
                self.arrive(at, tokens, runs);
            }
            if self.members[at].limits.wants_lease() || self.members[at].reports_at <= self.now {
                self.members[at].reports_at = self.now + REPORT;
                self.report(at);
            }
        }
        self.check();
    }

    pub(super) fn run(&mut self, time: Duration, arrivals: impl Fn(usize) -> Arrivals) {
        let until = self.now + time;
        while self.now < until {
            self.step(&arrivals);
        }
    }

    fn arrive(&mut self, at: usize, tokens: u64, runs: Duration) {
        let (tenant, model) = (self.policy.tenants.id(TENANT).unwrap(), self.policy.models.id("m").unwrap());
        let subject = LimitSubject { tenant, key: None, model };
        let input = 1 + self.dice.below(tokens / 2);
        let output = self.dice.below(tokens.div_ceil(2));
        let wanted = UnitAmounts { input, output, ..UnitAmounts::default() };
        let Ok(granted) = self.members[at].limits.reserve(&subject, &wanted, self.now) else {
            self.refused += 1;
            return;
        };
        let actual = UnitAmounts { output: self.dice.below(output + 1), ..wanted };
        self.entries += 1;
        let amount = wanted.of(self.rule.unit);
        self.admitted.push_back(Admitted { entry: self.entries, at: self.now, amount });
        let runs = Duration::from_millis(self.dice.below(u64::try_from(runs.as_millis()).unwrap()));
        let running =
            Running { ends: self.now + runs, actual, reservation: granted.reservation, entry: self.entries };
        self.members[at].running.push(running);
    }

    fn end_jobs(&mut self, at: usize) {
        let now = self.now;
        let member = &mut self.members[at];
        let (ended, rest) = std::mem::take(&mut member.running).into_iter().partition(|job| job.ends <= now);
        member.running = rest;
        let ended: Vec<Running> = ended;
        for job in ended {
            self.members[at].limits.settle(
                job.reservation,
                &UsedAmounts { amounts: job.actual, tokens_known: true },
                now,
            );
            let amount = job.actual.of(self.rule.unit);
            self.used += amount;
            if let Ok(at) = self.admitted.binary_search_by_key(&job.entry, |admitted| admitted.entry) {
                self.admitted[at].amount = if self.rule.period == LimitPeriod::Now { 0 } else { amount };
            }
        }
    }

    /// Sums up what counts now.
    fn check(&mut self) {
        let minute = Duration::from_secs(60);
        if self.rule.period == LimitPeriod::Minute {
            while self.admitted.front().is_some_and(|first| self.now.since(first.at) >= minute) {
                self.admitted.pop_front();
            }
        }
        let sum = self.admitted.iter().map(|admitted| admitted.amount).sum();
        self.highest = self.highest.max(sum);
    }
}
