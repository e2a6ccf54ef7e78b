//! Tests of tenants that belong to others: shares and quotas on each level.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::{Just, ProptestConfig, Strategy, prop_assert, prop_oneof, proptest};

use crate::model::event::{Action, AttemptOutcome, Event};
use crate::model::ids::{JobId, TenantId};
use crate::model::job::JobSpec;
use crate::model::policy::{Policy, Quota, Tenant};
use crate::model::time::Tick;
use crate::scheduler::tests::shares::Flood;
use crate::scheduler::tests::{World, of_tenant, policy, rejected, sent, spec, tenant, used};

/// A tenant's parent, weight and quota; parents come first.
#[derive(Debug, Clone)]
struct Node {
    parent: Option<usize>,
    weight: f64,
    quota: Quota,
}

fn rules(nodes: &[Node], limits: &[u32]) -> Policy {
    let mut rules = policy(&[limits], &[&[0]]);
    for (index, node) in nodes.iter().enumerate() {
        let parent = node.parent.map(TenantId::from);
        let row = Tenant { parent, quota: node.quota, ..tenant(node.weight) };
        let name = ["a", "b", "c", "d"].get(index).map_or_else(|| format!("t{index}"), ToString::to_string);
        rules.tenants.insert(&name, row);
    }
    rules
}

fn is_group(nodes: &[Node], index: usize) -> bool {
    nodes.iter().any(|node| node.parent == Some(index))
}

/// The groups of a tenant's own requests, the innermost first.
fn groups_of(nodes: &[Node], tenant: usize) -> Vec<usize> {
    let inner = if is_group(nodes, tenant) { Some(tenant) } else { nodes[tenant].parent };
    std::iter::successors(inner, |group| nodes[*group].parent).collect()
}

/// From 3 to 9 tenants in at most three levels.
fn trees(quota: impl Strategy<Value = Quota> + Clone) -> impl Strategy<Value = Vec<Node>> {
    vec((0usize..8, 1u32..6, quota), 3..9).prop_map(|rows| {
        let mut nodes: Vec<Node> = Vec::new();
        for (index, (link, weight, quota)) in rows.into_iter().enumerate() {
            let level = |at: usize| std::iter::successors(nodes[at].parent, |up| nodes[*up].parent).count();
            let parent = (link < index && level(link) < 2).then_some(link);
            nodes.push(Node { parent, weight: f64::from(weight), quota });
        }
        nodes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Among siblings of which each has some work waiting, directly or below it, work is by weight.
    /// So the share of an idle tenant goes to its siblings, and only to them.
    #[test]
    fn active_siblings_get_work_by_weight(
        nodes in trees(Just(Quota::default())),
        sizes in vec((1u64..200, 0u64..60), 9),
        idle in vec(0usize..9, 0..3),
        picks in vec(0usize..4, 1_200),
    ) {
        let active: Vec<usize> = (0..nodes.len()).filter(|tenant| !idle.contains(tenant)).collect();
        let spec_of = |tenant: &usize| JobSpec {
            tenant: TenantId::from(*tenant),
            prompt_tokens: sizes[*tenant].0,
            max_output_tokens: sizes[*tenant].1,
            ..spec(0)
        };
        let mut flood = Flood::new(rules(&nodes, &[4]), active.iter().map(spec_of).collect());
        let start = flood.served.clone();
        picks.into_iter().for_each(|pick| flood.step(pick));
        // Service of each child of each group, over its weight: own requests of a group weigh 1.
        let mut served: BTreeMap<Option<usize>, BTreeMap<(usize, bool), f64>> = BTreeMap::new();
        for (at, tenant) in active.iter().enumerate() {
            let cost = (flood.served[at] - start[at]) as f64;
            let groups = groups_of(&nodes, *tenant);
            let weight = if is_group(&nodes, *tenant) { 1.0 } else { nodes[*tenant].weight };
            let mut add = |within: Option<usize>, child, weight| {
                *served.entry(within).or_default().entry(child).or_default() += cost / weight;
            };
            add(groups.first().copied(), (*tenant, false), weight);
            for (level, group) in groups.iter().enumerate() {
                add(groups.get(level + 1).copied(), (*group, true), nodes[*group].weight);
            }
        }
        let largest = active.iter().map(|tenant| sizes[*tenant].0 + 2 * sizes[*tenant].1).max().unwrap_or(0);
        for (group, children) in served {
            let (least, most) = children.values().fold((f64::MAX, 0.0f64), |(least, most), one| (least.min(*one), most.max(*one)));
            prop_assert!(most - least <= 8.0 * largest as f64, "group {:?}: {:?}", group, children);
        }
    }
}

/// Keeps jobs of tenants waiting, and checks each dispatch against the quotas of all levels,
/// computed anew each time.
struct Cohorts {
    world: World,
    nodes: Vec<Node>,
    capacity: u64,
    running: Vec<JobSpec>,
    waiting: BTreeMap<usize, u64>,
    specs: BTreeMap<JobId, JobSpec>,
    next: u64,
}

impl Cohorts {
    fn new(nodes: Vec<Node>, limits: &[u32]) -> Self {
        let capacity = limits.iter().map(|limit| u64::from(*limit)).sum();
        let world = World::new(rules(&nodes, limits));
        let (waiting, specs) = (BTreeMap::new(), BTreeMap::new());
        Self { world, nodes, capacity, running: Vec::new(), waiting, specs, next: 0 }
    }

    /// A tenant without children, or a group, on the path of a tenant's requests, from the outermost.
    fn path(&self, tenant: usize) -> Vec<usize> {
        let mut path = groups_of(&self.nodes, tenant);
        path.reverse();
        path.extend((!is_group(&self.nodes, tenant)).then_some(tenant));
        path
    }

    fn held(&self, node: usize) -> u64 {
        let own = self.running.iter().filter(|spec| self.path(spec.tenant.index()).contains(&node));
        own.map(|spec| u64::from(spec.sequences)).sum()
    }

    fn part(&self, fraction: f64) -> u64 {
        (fraction * self.capacity as f64 + 1e-6) as u64
    }

    fn is_below(&self, node: usize) -> bool {
        let guarantee = self.nodes[node].quota.guarantee;
        guarantee > 0.0 && self.held(node) < self.part(guarantee).max(1)
    }

    fn is_full(&self, node: usize) -> bool {
        let Quota { guarantee, borrow, .. } = self.nodes[node].quota;
        guarantee + borrow < 1.0 && self.held(node) >= self.part(guarantee + borrow).max(1)
    }

    fn kept(&self, node: usize) -> u64 {
        let Quota { guarantee, lend, .. } = self.nodes[node].quota;
        let own = self.part((guarantee - lend).max(0.0)).saturating_sub(self.held(node));
        own.max(self.kept_inside(Some(node)))
    }

    fn kept_inside(&self, group: Option<usize>) -> u64 {
        (0..self.nodes.len())
            .filter(|node| self.nodes[*node].parent == group)
            .map(|node| self.kept(node))
            .sum()
    }

    fn add(&mut self, tenant: usize) {
        self.next += 1;
        let spec = JobSpec { deadline: Tick::NEVER, ..of_tenant(self.next, tenant as u32) };
        *self.waiting.entry(tenant).or_default() += 1;
        self.specs.insert(spec.id, spec);
        let actions = self.world.arrive(spec);
        self.take(&actions);
    }

    fn take(&mut self, actions: &[Action]) {
        assert_eq!(rejected(actions), []);
        for (job, _) in sent(actions) {
            let spec = self.specs[&JobId::new(job)];
            self.check(spec.tenant.index());
            *self.waiting.entry(spec.tenant.index()).or_default() -= 1;
            self.running.push(spec);
        }
    }

    /// Whether the tenant could get one more sequence now.
    fn check(&self, tenant: usize) {
        let path = self.path(tenant);
        assert!(!path.iter().any(|node| self.is_full(*node)), "above a ceiling: {path:?}");
        let waits = |other: &usize| {
            self.waiting.get(other).is_some_and(|count| *count > 0)
                && !self.path(*other).iter().any(|node| self.is_full(*node))
        };
        for other in (0..self.nodes.len()).filter(|other| *other != tenant).filter(waits) {
            let others = self.path(other);
            let shared = path.iter().zip(&others).take_while(|(own, other)| own == other).count();
            let is_owed =
                |path: &[usize]| path[shared.min(path.len())..].iter().any(|node| self.is_below(*node));
            assert!(
                is_owed(&path) || !is_owed(&others),
                "{tenant} borrowed while {other} waited for what is guaranteed to it"
            );
        }
        let owed = path.iter().rposition(|node| self.is_below(*node)).map_or(0, |level| level + 1);
        let mut kept = if owed < path.len() || path.is_empty() {
            let group = owed.checked_sub(1).map(|level| path[level]);
            self.kept_inside(group)
        } else if is_group(&self.nodes, tenant) {
            self.kept_inside(path.last().copied())
        } else {
            return;
        };
        for node in &path[owed..] {
            kept -= self.kept(*node);
            kept += if is_group(&self.nodes, *node) { self.kept_inside(Some(*node)) } else { 0 };
        }
        let held: u64 = self.running.iter().map(|spec| u64::from(spec.sequences)).sum();
        let free = self.capacity.saturating_sub(held);
        assert!(kept == 0 || free > kept, "{tenant} took what others keep: {kept} of {free}");
    }

    fn done(&mut self, pick: usize) {
        if self.running.is_empty() {
            return;
        }
        let spec = self.running.remove(pick % self.running.len());
        let outcome = AttemptOutcome::Done(used(10, 10));
        let actions = self.world.event(Event::Finished { job: spec.id, outcome });
        self.take(&actions);
    }
}

/// Quotas of which the guarantees fit into those of the parents.
fn quotas() -> impl Strategy<Value = Quota> + Clone {
    let part = || prop_oneof![Just(0.0), Just(1.0), 0.0..1.0];
    (0.0..1.0, part(), part()).prop_map(|(guarantee, borrow, lend)| Quota { guarantee, borrow, lend })
}

fn fitted(mut nodes: Vec<Node>) -> Vec<Node> {
    for index in 0..nodes.len() {
        let siblings = nodes.iter().filter(|node| node.parent == nodes[index].parent).count() as f64;
        let room = nodes[index].parent.map_or(1.0, |parent| nodes[parent].quota.guarantee);
        nodes[index].quota.guarantee *= room / siblings;
    }
    nodes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// On each level: nobody is above its ceiling; who waits with less than its guarantee goes
    /// before its siblings that borrow; what is not lent stays free. The audit in every step says
    /// that no other credit is idle.
    #[test]
    fn every_dispatch_keeps_the_quotas_of_all_levels(
        nodes in trees(quotas()).prop_map(fitted),
        limits in vec(1u32..12, 1..4),
        ops in vec((0usize..16, 0usize..64), 1..200),
    ) {
        let mut cohorts = Cohorts::new(nodes, &limits);
        for (kind, pick) in ops {
            match kind {
                0..9 if kind < cohorts.nodes.len() => cohorts.add(kind),
                _ => cohorts.done(pick),
            }
        }
        while !cohorts.running.is_empty() {
            cohorts.done(0);
        }
        assert_eq!(cohorts.world.scheduler.unfinished(), 0, "everybody gets at least one sequence");
    }
}

fn node(parent: Option<usize>, weight: f64) -> Node {
    Node { parent, weight, quota: Quota::default() }
}

/// Sequences that each tenant holds of eight, when all have much waiting.
fn held_of_eight(nodes: Vec<Node>, waiting: &[usize]) -> Vec<u64> {
    let mut cohorts = Cohorts::new(nodes, &[8]);
    let tenants: BTreeSet<usize> = waiting.iter().copied().collect();
    for _ in 0..60 {
        tenants.iter().for_each(|tenant| cohorts.add(*tenant));
    }
    let mut count = vec![0; cohorts.nodes.len()];
    for _ in 0..200 {
        cohorts.done(0);
        tenants.iter().for_each(|tenant| cohorts.add(*tenant));
    }
    cohorts.running.iter().for_each(|spec| count[spec.tenant.index()] += 1);
    count
}

#[test]
fn an_organisation_of_many_teams_gets_no_more_than_one_of_few() {
    let nodes =
        || vec![node(None, 1.0), node(None, 1.0), node(Some(0), 1.0), node(Some(0), 3.0), node(Some(1), 1.0)];
    assert_eq!(held_of_eight(nodes(), &[2, 3, 4]), [0, 0, 1, 3, 4]);
    assert_eq!(held_of_eight(nodes(), &[2, 4]), [0, 0, 4, 0, 4], "the sibling's part stays in the group");
    assert_eq!(held_of_eight(nodes(), &[0, 2, 4]), [2, 0, 2, 0, 4], "own requests weigh 1");
}

#[test]
fn an_idle_guarantee_goes_to_siblings_before_strangers() {
    let quota = |guarantee| Quota { guarantee, borrow: 1.0, lend: 1.0 };
    let mut nodes = vec![node(None, 1.0), node(None, 100.0), node(Some(0), 1.0), node(Some(0), 1.0)];
    nodes[0].quota = quota(0.5);
    nodes[2].quota = quota(0.5);
    assert_eq!(held_of_eight(nodes, &[1, 3]), [0, 4, 0, 4]);
}

#[test]
fn a_ceiling_holds_for_all_children_together() {
    let mut nodes = vec![node(None, 9.0), node(None, 1.0), node(Some(0), 1.0), node(Some(0), 1.0)];
    nodes[0].quota = Quota { guarantee: 0.0, borrow: 0.25, lend: 1.0 };
    assert_eq!(held_of_eight(nodes, &[1, 2, 3]), [0, 6, 1, 1]);
}
