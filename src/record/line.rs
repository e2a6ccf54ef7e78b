//! Lines of a record: one JSON object each. The first line of a file is its head.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::core::model::event::Event;
use crate::core::model::policy::Policy;
use crate::core::model::time::Tick;
use crate::dispatcher::event_log::LoggedStep;

/// Version of the lines that this program writes and reads.
pub(super) const VERSION: u32 = 1;

/// Line of a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "nearly all are steps, and a box for each would cost more")]
pub(super) enum RecordLine {
    Head(FileHead),
    Step(LoggedStep),
    /// Steps came here that no file has: the queue was full, or the disk failed. The number of all
    /// lost steps of the run so far.
    Lost(u64),
    /// The configuration file changed; its digest.
    Config(String),
}

/// Head of a file. It suffices to begin with this file when earlier ones are gone.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct FileHead {
    /// See [`VERSION`].
    pub(super) version: u32,
    /// Version of the program that wrote the file.
    pub(super) program: Cow<'static, str>,
    /// Steps of the run that are lost so far.
    pub(super) lost: u64,
    /// Tick and seconds since 1970, of the same moment.
    pub(super) at: (Tick, u64),
    /// Digest of the configuration file.
    pub(super) config: String,
    /// The policy in force.
    pub(super) policy: Policy,
}

/// A hash that only this record can compare: the key is random and kept nowhere.
#[derive(Debug)]
pub(super) struct HashKey([u8; 32]);

impl HashKey {
    pub(super) const fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    fn of(&self, hash: u64) -> u64 {
        let keyed = blake3::keyed_hash(&self.0, &hash.to_le_bytes());
        keyed.as_bytes().iter().take(8).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// Replaces every hash of a request's text in the event.
    pub(super) fn hide(&self, event: &mut Event) {
        if let Event::Arrived(spec, prefix) = event {
            spec.fingerprint = spec.fingerprint.map(|hash| self.of(hash));
            spec.session = spec.session.map(|hash| self.of(hash));
            prefix.blocks = prefix.blocks.iter().map(|hash| self.of(*hash)).collect();
        }
    }
}
