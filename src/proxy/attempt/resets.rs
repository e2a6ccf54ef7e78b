//! Engine resets: replicas that reset the connection of a request. The request may be the cause of
//! the resets, so each replica gets it at most twice.

use smallvec::SmallVec;

use crate::core::model::ids::ReplicaId;

/// Most sends of a request to a replica that resets its connection.
pub(in crate::proxy) const MOST_SENDS: u32 = 2;

/// Number of sends of a request to each replica that reset its connection.
#[derive(Debug, Default)]
pub(in crate::proxy) struct EngineResets(SmallVec<[(ReplicaId, u32); 4]>);

impl EngineResets {
    /// Adds `times` sends of the request to a replica that reset its connection.
    pub(in crate::proxy) fn note(&mut self, replica: ReplicaId, times: u32) {
        match self.0.iter_mut().find(|(known, _)| *known == replica) {
            Some((_, count)) => *count += times,
            None => self.0.push((replica, times)),
        }
    }

    /// Number of sends that the replica may still get.
    pub(in crate::proxy) fn left(&self, replica: ReplicaId) -> u32 {
        let count = self.0.iter().find(|(known, _)| *known == replica).map_or(0, |(_, count)| *count);
        MOST_SENDS.saturating_sub(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_engine_gets_a_request_twice() {
        let (mut resets, [a, b]) = (EngineResets::default(), [ReplicaId::new(0), ReplicaId::new(1)]);
        assert_eq!(resets.left(a), 2);
        resets.note(a, 1);
        assert_eq!((resets.left(a), resets.left(b)), (1, 2));
        resets.note(a, 2);
        resets.note(b, 2);
        assert_eq!((resets.left(a), resets.left(b)), (0, 0));
    }
}
