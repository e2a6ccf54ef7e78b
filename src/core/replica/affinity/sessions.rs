//! Sessions: the replica to which each session was sent last.
//!
//! A session is a number that the edge derives from a tenant and the client's session key. The
//! table is bounded and forgets the least recently used session first.

use std::collections::BTreeMap;

use crate::model::ids::ReplicaId;
use crate::model::number_map::NumberMap;

/// Table of sessions.
#[derive(Debug, Clone, Default)]
pub struct Sessions {
    known: NumberMap<u64, KnownSession>,
    /// Sessions by the number of their last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
}

#[derive(Debug, Clone, Copy)]
struct KnownSession {
    replica: ReplicaId,
    used: u64,
}

impl Sessions {
    /// Replica to which the session was sent last.
    pub fn get(&self, session: u64) -> Option<ReplicaId> {
        self.known.get(&session).map(|known| known.replica)
    }

    /// Notes that the session is sent to a replica, and keeps at most `bound` sessions. Returns
    /// whether a session has lost the replica that it had.
    pub fn note(&mut self, session: u64, replica: ReplicaId, bound: usize) -> bool {
        self.uses += 1;
        let used = self.uses;
        let before = self.known.insert(session, KnownSession { replica, used });
        if let Some(before) = before {
            self.order.remove(&before.used);
        }
        self.order.insert(used, session);
        let kept = self.len();
        self.shrink(bound);
        before.is_some_and(|before| before.replica != replica) || self.len() < kept
    }

    /// Forgets the least recently used sessions until at most `bound` are left.
    pub fn shrink(&mut self, bound: usize) {
        while self.known.len() > bound
            && let Some((_, session)) = self.order.pop_first()
        {
            self.known.remove(&session);
        }
    }

    /// Number of sessions in the table.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn it_keeps_the_last_used_and_no_more(uses in vec((0..20_u64, 0..4_u32), 0..100), bound in 0..12_usize) {
            let mut sessions = Sessions::default();
            let mut naive: Vec<(u64, u32)> = Vec::new();
            for (session, replica) in uses {
                let lost = sessions.note(session, ReplicaId::new(replica), bound);
                let before = naive.clone();
                naive.retain(|(other, _)| *other != session);
                naive.push((session, replica));
                naive.drain(..naive.len().saturating_sub(bound));
                let moved = |old: &(u64, u32)| !naive.contains(old);
                prop_assert_eq!(lost, before.iter().any(moved) || bound == 0);
                prop_assert_eq!(sessions.len(), naive.len());
                prop_assert_eq!(sessions.order.len(), naive.len());
                for session in 0..20 {
                    let expected = naive.iter().find(|(other, _)| *other == session);
                    prop_assert_eq!(sessions.get(session), expected.map(|(_, replica)| ReplicaId::new(*replica)));
                }
            }
        }
    }
}
