//! Fair queues: weighted deficit round robin and virtual token counters. Both
//! count prompt + 2 × output tokens. A request is charged the mean output so
//! far when it is sent; the charge is corrected when the request ends.

use std::collections::{BTreeMap, VecDeque};

use crate::world::arrival::Arrival;
use crate::world::baseline::flights::UnsentRequest;
use crate::world::baseline::held::WaitOrder;

/// Tokens that a tenant of weight 1 may use in a round.
const QUANTUM: f64 = 4096.0;
const OUTPUT_COST: f64 = 2.0;

/// Mean output of finished requests so far.
#[derive(Debug)]
struct Outputs {
    count: f64,
    sum: f64,
}

impl Default for Outputs {
    fn default() -> Self {
        Self { count: 1.0, sum: 128.0 }
    }
}

impl Outputs {
    fn expected(&self) -> f64 {
        self.sum / self.count
    }

    fn cost(&self, arrival: &Arrival) -> f64 {
        f64::from(arrival.prompt) + OUTPUT_COST * self.expected()
    }

    /// Cost of the request beyond its expected cost.
    fn record_output(&mut self, arrival: &Arrival) -> f64 {
        let excess = OUTPUT_COST * (f64::from(arrival.output) - self.expected());
        self.count += 1.0;
        self.sum += f64::from(arrival.output);
        excess
    }
}

/// Waiting requests and account of one tenant.
#[derive(Debug, Default)]
struct FairTenant {
    line: VecDeque<UnsentRequest>,
    account: f64,
}

fn weight(weights: &[f64], tenant: u32) -> f64 {
    weights.get(tenant as usize).copied().filter(|weight| *weight > 0.0).unwrap_or(1.0)
}

/// Weighted deficit round robin over tenants.
#[derive(Debug)]
pub struct DeficitRound {
    weights: Vec<f64>,
    tenants: BTreeMap<u32, FairTenant>,
    /// Waiting tenants in the order of the round.
    round: VecDeque<u32>,
    outputs: Outputs,
}

impl DeficitRound {
    /// `weights` are the tenants' by number; 1 where none is given.
    pub fn new(weights: Vec<f64>) -> Self {
        Self { weights, tenants: BTreeMap::new(), round: VecDeque::new(), outputs: Outputs::default() }
    }
}

impl WaitOrder for DeficitRound {
    fn push(&mut self, request: UnsentRequest) {
        let number = request.arrival.tenant;
        let tenant = self.tenants.entry(number).or_default();
        if tenant.line.is_empty() {
            // Credit from an earlier wait lapses; debt stays.
            tenant.account = tenant.account.min(0.0);
            self.round.push_back(number);
        }
        tenant.line.push_back(request);
    }

    fn pop(&mut self) -> Option<UnsentRequest> {
        loop {
            let number = *self.round.front()?;
            let tenant = self.tenants.get_mut(&number)?;
            let cost = self.outputs.cost(&tenant.line.front()?.arrival);
            if tenant.account < cost {
                tenant.account += QUANTUM * weight(&self.weights, number);
                self.round.rotate_left(1);
                continue;
            }
            tenant.account -= cost;
            let next = tenant.line.pop_front();
            if tenant.line.is_empty() {
                self.round.pop_front();
            }
            return next;
        }
    }

    fn ended(&mut self, arrival: &Arrival) {
        let excess = self.outputs.record_output(arrival);
        if let Some(tenant) = self.tenants.get_mut(&arrival.tenant) {
            tenant.account -= excess;
        }
    }
}

/// Virtual token counters: the waiting tenant with the least counter goes
/// first. A tenant that returns is lifted to the least counter of the waiting
/// tenants.
#[derive(Debug)]
pub struct VirtualCounters {
    weights: Vec<f64>,
    tenants: BTreeMap<u32, FairTenant>,
    outputs: Outputs,
}

impl VirtualCounters {
    /// `weights` are the tenants' by number; 1 where none is given.
    pub fn new(weights: Vec<f64>) -> Self {
        Self { weights, tenants: BTreeMap::new(), outputs: Outputs::default() }
    }

    fn least(&self) -> Option<(u32, f64)> {
        let waiting = self.tenants.iter().filter(|(_, tenant)| !tenant.line.is_empty());
        let accounts = waiting.map(|(number, tenant)| (*number, tenant.account));
        accounts.min_by(|one, two| one.1.total_cmp(&two.1))
    }
}

impl WaitOrder for VirtualCounters {
    fn push(&mut self, request: UnsentRequest) {
        let floor = self.least().map(|(_, account)| account);
        let tenant = self.tenants.entry(request.arrival.tenant).or_default();
        if tenant.line.is_empty()
            && let Some(floor) = floor
        {
            tenant.account = tenant.account.max(floor);
        }
        tenant.line.push_back(request);
    }

    fn pop(&mut self) -> Option<UnsentRequest> {
        let (number, _) = self.least()?;
        let tenant = self.tenants.get_mut(&number)?;
        let next = tenant.line.pop_front()?;
        tenant.account += self.outputs.cost(&next.arrival) / weight(&self.weights, number);
        Some(next)
    }

    fn ended(&mut self, arrival: &Arrival) {
        let excess = self.outputs.record_output(arrival);
        let weight = weight(&self.weights, arrival.tenant);
        if let Some(tenant) = self.tenants.get_mut(&arrival.tenant) {
            tenant.account += excess / weight;
        }
    }
}
