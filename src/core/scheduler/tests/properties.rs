//! Property tests: random events in random worlds.

use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, Strategy, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};

use crate::model::event::{Action, DispatchGrant, JobAction};
use crate::model::snapshot::ReplicaStatus;
use crate::scheduler::tests::edge::Edge;
use crate::scheduler::tests::gateways::load;
use crate::scheduler::tests::worlds::{Op, Places, Rules, op, rules};

proptest! {
    // As many as PROPTEST_CASES says, less a quarter.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases * 3 / 4, ..ProptestConfig::default() })]

    #[test]
    fn every_job_ends_once_and_no_credit_idles(
        worlds in vec(rules(), 1..4),
        ops in vec(op(), 1..160),
        drain in prop::option::weighted(0.1, 0usize..160),
    ) {
        let mut edge = Edge::new(&worlds);
        for (index, op) in ops.into_iter().enumerate() {
            if drain == Some(index) {
                edge.apply(&Op::Drain);
            }
            edge.apply(&op);
        }
        edge.run_out();
    }

    /// The same with other gateways that fill the replicas and want places.
    #[test]
    fn every_job_ends_once_beside_other_gateways(
        worlds in vec(rules(), 1..3),
        ops in vec(prop_oneof![10 => op(), 1 => load().prop_map(Op::Elsewhere)], 1..160),
    ) {
        let mut edge = Edge::new(&worlds);
        ops.iter().for_each(|op| edge.apply(op));
        edge.run_out();
    }

    #[test]
    fn the_same_events_lead_to_the_same_actions(worlds in vec(rules(), 1..3), ops in vec(op(), 1..120)) {
        let run = || {
            let mut edge = Edge::new(&worlds);
            for op in &ops {
                edge.apply(op);
            }
            edge.run_out();
            edge.log
        };
        prop_assert_eq!(run(), run());
    }

    /// One pool that never changes: a job comes back to a replica that failed
    /// it only when every other one in service failed it too, or when it was
    /// ejected in between.
    #[test]
    fn retries_go_to_untried_replicas_first(
        limits in vec(1u32..4, 1..4),
        ops in vec(op().prop_filter("a fixed policy", |op| !matches!(op, Op::Reload(_))), 1..160),
    ) {
        let members = limits.iter().map(|limit| Some((Some(*limit), None))).collect();
        let only = Rules {
            classes: vec![Some((0, 10, None)), Some((1, 10, None)), Some((1, 0, None))],
            tenants: vec![Some((1, 1000, None)); 5],
            replicas: vec![members],
            models: vec![Some(1); 3],
            bound: 1000,
            attempts: 4,
            slow_start: 500,
            buffer: 0,
            starts: [None; 2],
            limits: Vec::new(),
            sleep: None,
            places: Places::default(),
            affinity: Default::default(),
            draining: 0,
        };
        let mut edge = Edge::new(&[only]);
        let mut read = 0;
        for op in ops {
            edge.apply(&op);
            // What time brought to the replicas since then is not seen here.
            for (_, action) in edge.log[read..].iter().filter(|(at, _)| *at == edge.now) {
                let Action::Job(JobAction::Dispatch(DispatchGrant { job, replica, .. })) = action else { continue };
                let tried = &edge.jobs[job].tried;
                if tried.contains(replica) {
                    let views = edge.scheduler.snapshot(edge.now).replicas;
                    let up = |state| matches!(state, ReplicaStatus::Serving | ReplicaStatus::SlowStart);
                    let untried = views.iter().any(|v| up(v.state) && !tried.contains(&v.replica));
                    prop_assert!(!untried, "{:?} was tried, others were not: {:?}", replica, views);
                }
            }
            read = edge.log.len();
        }
        edge.run_out();
    }
}
