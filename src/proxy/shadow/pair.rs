//! A request and its copy: compared when both are over.

use std::sync::{Arc, OnceLock};

use http::HeaderValue;

use crate::core::model::ids::ModelId;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{ShadowCompared, ShadowSide};

/// Both sides, as far as they are known. Compared when it is dropped.
#[derive(Debug)]
pub(super) struct ShadowPair {
    telemetry: Telemetry,
    request_id: HeaderValue,
    models: (ModelId, ModelId),
    sides: [OnceLock<ShadowSide>; 2],
}

/// One side's view of the pair. A copy that is dropped leaves nothing to
/// compare.
#[derive(Debug)]
pub(in crate::proxy) struct ShadowHalf {
    pair: Arc<ShadowPair>,
    is_copy: bool,
}

impl ShadowPair {
    /// The halves of the request and of its copy, for the models of the two.
    pub(super) fn halves(
        telemetry: &Telemetry,
        request_id: HeaderValue,
        models: (ModelId, ModelId),
    ) -> (ShadowHalf, ShadowHalf) {
        let telemetry = telemetry.clone();
        let pair = Arc::new(Self { telemetry, request_id, models, sides: Default::default() });
        let half = |is_copy| ShadowHalf { pair: Arc::clone(&pair), is_copy };
        (half(false), half(true))
    }
}

impl ShadowHalf {
    /// It is over.
    pub(in crate::proxy) fn ended(&self, side: ShadowSide) {
        // Each record tells its end once.
        let _first = self.pair.sides[usize::from(self.is_copy)].set(side);
    }
}

impl Drop for ShadowPair {
    fn drop(&mut self) {
        let [Some(original), Some(copy)] = self.sides.each_ref().map(|side| side.get().copied()) else {
            return;
        };
        let (model, to) = self.models;
        let request_id = self.request_id.to_str().unwrap_or_default();
        ShadowCompared { request_id, model, to, original, copy }.emit(&self.telemetry);
    }
}
