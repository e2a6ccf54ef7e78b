//! A request and its copy: compared when both are over.

use std::sync::{Arc, OnceLock};

use http::HeaderValue;

use crate::core::ids::ModelId;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{ShadowCompared, Side};

/// Both sides, as far as they are known. Compared when it is dropped.
#[derive(Debug)]
pub(super) struct Pair {
    telemetry: Telemetry,
    request_id: HeaderValue,
    models: (ModelId, ModelId),
    sides: [OnceLock<Side>; 2],
}

/// One side's view of the pair. A copy that is dropped leaves nothing to
/// compare.
#[derive(Debug)]
pub(in crate::proxy) struct Half {
    pair: Arc<Pair>,
    is_copy: bool,
}

impl Pair {
    /// The halves of the request and of its copy, for the models of the two.
    pub(super) fn halves(
        telemetry: &Telemetry,
        request_id: HeaderValue,
        models: (ModelId, ModelId),
    ) -> (Half, Half) {
        let telemetry = telemetry.clone();
        let pair = Arc::new(Self { telemetry, request_id, models, sides: Default::default() });
        let half = |is_copy| Half { pair: Arc::clone(&pair), is_copy };
        (half(false), half(true))
    }
}

impl Half {
    /// It is over.
    pub(in crate::proxy) fn ended(&self, side: Side) {
        // Each record tells its end once.
        let _first = self.pair.sides[usize::from(self.is_copy)].set(side);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let [Some(original), Some(copy)] = self.sides.each_ref().map(|side| side.get().copied()) else {
            return;
        };
        let (model, to) = self.models;
        let request_id = self.request_id.to_str().unwrap_or_default();
        ShadowCompared { request_id, model, to, original, copy }.emit(&self.telemetry);
    }
}
