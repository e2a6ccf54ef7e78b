//! Choice set: the choices of an answer that were seen, and those that ended.

/// The number of choices that can be tracked; vLLM allows up to 16384.
pub(crate) const MAX_CHOICES: u64 = 1 << 16;

/// The choices that were seen, and those of them that ended.
#[derive(Debug, Default)]
pub(crate) struct ChoiceSet {
    /// Two bits for each choice: seen, ended.
    bits: Vec<u8>,
    pub(crate) seen: u64,
    pub(crate) ended: u64,
}

impl ChoiceSet {
    const SEEN: u8 = 1;
    const ENDED: u8 = 2;

    pub(crate) fn see(&mut self, index: u64) {
        self.seen += self.mark(index, Self::SEEN);
    }

    pub(crate) fn end(&mut self, index: u64) {
        self.ended += self.mark(index, Self::ENDED);
    }

    /// Sets the mark. Returns 1 if the mark was not set, else 0.
    fn mark(&mut self, index: u64, mark: u8) -> u64 {
        let index = usize::try_from(index.min(MAX_CHOICES)).unwrap_or_default();
        if self.bits.len() <= index {
            self.bits.resize(index + 1, 0);
        }
        let new = self.bits[index] & mark == 0;
        self.bits[index] |= mark;
        u64::from(new)
    }

    pub(crate) const fn all_ended(&self, expected: u64) -> bool {
        self.ended == self.seen && self.ended >= expected
    }
}
