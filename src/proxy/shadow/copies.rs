//! Shadow copies that run now, by model.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::core::model::ids::ModelId;

/// Number of copies that run now, by the model of their originals.
#[derive(Debug, Default)]
pub struct ShadowCopies(Mutex<HashMap<ModelId, u32>>);

/// Guard of one running copy. Dropping the guard lowers the count.
#[derive(Debug)]
pub(super) struct ShadowGuard {
    flights: Arc<ShadowCopies>,
    model: ModelId,
}

impl ShadowCopies {
    /// Number of copies that run now.
    pub fn count(&self) -> u32 {
        self.0.lock().values().sum()
    }

    pub(super) fn take(self: &Arc<Self>, model: ModelId, limit: u32) -> Option<ShadowGuard> {
        let mut all = self.0.lock();
        let count = all.entry(model).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(ShadowGuard { flights: Arc::clone(self), model })
    }
}

impl Drop for ShadowGuard {
    fn drop(&mut self) {
        let mut all = self.flights.0.lock();
        if let Some(count) = all.get_mut(&self.model) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.model);
            }
        }
    }
}
