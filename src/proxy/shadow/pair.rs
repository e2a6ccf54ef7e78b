//! Shadow pair: a request and its copy, compared when both are over.

use std::sync::{Arc, OnceLock};

use crate::core::model::ids::ModelId;
use crate::protocol::ids::request_id::AssignedIds;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{ShadowCompared, ShadowSide};
use crate::telemetry::summary::RequestIds;

/// Both sides, as far as they are known. Dropping the pair compares the sides if both are known.
#[derive(Debug)]
pub(super) struct ShadowPair {
    telemetry: Telemetry,
    /// Ids of the request.
    ids: AssignedIds,
    /// Model of the request.
    model: ModelId,
    /// Model of the copy.
    to: ModelId,
    sides: [OnceLock<ShadowSide>; 2],
}

/// One side's handle on the pair. A copy that is dropped early leaves nothing to compare.
#[derive(Debug)]
pub(in crate::proxy) struct ShadowHalf {
    pair: Arc<ShadowPair>,
    is_copy: bool,
}

impl ShadowPair {
    /// Creates the halves of a request for `model` and its copy, which goes to the model `to`.
    pub(super) fn halves(
        telemetry: &Telemetry,
        ids: AssignedIds,
        model: ModelId,
        to: ModelId,
    ) -> (ShadowHalf, ShadowHalf) {
        let telemetry = telemetry.clone();
        let pair = Arc::new(Self { telemetry, ids, model, to, sides: Default::default() });
        let half = |is_copy| ShadowHalf { pair: Arc::clone(&pair), is_copy };
        (half(false), half(true))
    }
}

impl ShadowHalf {
    /// Records the end of this side.
    pub(in crate::proxy) fn ended(&self, side: ShadowSide) {
        // Each record reports its end once.
        let _first = self.pair.sides[usize::from(self.is_copy)].set(side);
    }
}

impl Drop for ShadowPair {
    fn drop(&mut self) {
        let [Some(original), Some(copy)] = self.sides.each_ref().map(|side| side.get().copied()) else {
            return;
        };
        let Self { model, to, .. } = *self;
        let AssignedIds { request, gateway } = &self.ids;
        let ids = RequestIds {
            request: request.to_str().unwrap_or_default(),
            gateway: gateway.as_ref().and_then(|id| id.to_str().ok()),
            ..RequestIds::default()
        };
        ShadowCompared { ids, model, to, original, copy }.emit(&self.telemetry);
    }
}
