//! Ledger: the work in flight at each replica.

use crate::model::ids::{ClassId, ModelId};

/// Expected output tokens of a sequence up to which its prefill is what takes its time.
const SHORT_OUTPUT: u64 = 2;

/// Ledger of a replica: its work in flight, in tokens and sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ledger {
    pub jobs: u32,
    pub seqs: u32,
    /// Weight (see [`crate::replica::speed::ttft_model::weight`]) of the prompts that are not
    /// prefilled yet.
    pub prefill: u64,
    /// Part of `prefill` that background jobs brought.
    pub background_prefill: u64,
    /// Output tokens still expected.
    pub output: u64,
    /// KV cache tokens: prompts and all expected output.
    pub kv: u64,
    /// Part of `kv` that is expected output.
    pub kv_output: u64,
    /// Part of `kv` that is in the cache for sure: prompts whose first tokens came or were due.
    pub kv_prompts: u64,
    /// Jobs whose tokens are seen as they come.
    pub streams: u32,
    /// Streams whose stall would say something about the replica.
    pub watched_streams: u32,
    /// Jobs without a stream whose stall would say something about the replica.
    pub watched_answers: u32,
    /// Jobs that failed elsewhere and have no first token yet.
    pub failed_jobs: u32,
    /// Sequences whose prefill may still run, as far as the gateway sees. The first token of a job
    /// tells of one of its sequences.
    pub prefilling: u32,
    /// Sequences of background answers of a few tokens.
    pub short: u32,
    /// Weight of the prompts that count as prefilled although their first tokens are not due.
    pub ahead: u64,
    /// Weight of the prompts whose first tokens have not come and are not overdue, prefilled or not.
    pub awaited: u64,
}

/// Booking of one job at a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Booking {
    pub class: ClassId,
    pub seqs: u32,
    pub prompt: u64,
    /// Prefill cost of the prompt there, by [`crate::replica::speed::ttft_model::weight`].
    pub weight: u64,
    /// Expected output tokens.
    pub output: u64,
    /// Whether its first token has come.
    pub started: bool,
    /// Whether its prompt counts as prefilled: its first token has come, or is about to.
    pub prefilled: bool,
    /// Whether its first token came or was due. Until then, a prompt that counts as prefilled is
    /// ahead of its time.
    pub due: bool,
    /// Whether the first token of a plain answer is so late that the prompt is surely prefilled.
    /// False for streams, whose first tokens are seen.
    pub first_token_overdue: bool,
    /// Whether it failed elsewhere.
    pub has_failed: bool,
    /// Whether it is a background job, beside a more urgent class.
    pub background: bool,
    /// Whether its tokens are seen as they come.
    pub streams: bool,
    /// Whether its stall would say something about the replica.
    pub watched: bool,
    /// Adapter that it runs with there, if its model is an adapter.
    pub adapter: Option<ModelId>,
}

impl Booking {
    /// KV cache tokens that the job will hold at its end.
    pub const fn kv(&self) -> u64 {
        self.prompt.saturating_add(self.output)
    }

    const fn prefill(&self) -> u64 {
        if self.prefilled { 0 } else { self.weight }
    }

    const fn background_prefill(&self) -> u64 {
        if self.background { self.prefill() } else { 0 }
    }

    fn failed_jobs(&self) -> u32 {
        u32::from(self.has_failed && !self.started)
    }

    fn watched_streams(&self) -> u32 {
        u32::from(self.watched && self.streams)
    }

    fn watched_answers(&self) -> u32 {
        u32::from(self.watched && !self.streams)
    }

    const fn remaining(&self) -> u64 {
        if self.prefilled { self.output / 2 } else { self.output }
    }

    /// A background answer of a few tokens ends soon after its prefill: while it runs, it is hardly
    /// anything else.
    const fn short(&self) -> u32 {
        let is_short = self.background && self.output <= SHORT_OUTPUT * self.seqs as u64;
        if is_short { self.seqs } else { 0 }
    }

    fn prefilling(&self) -> u32 {
        match self.first_token_overdue && self.short() == 0 {
            true => 0,
            false => self.seqs.saturating_sub(u32::from(self.started)),
        }
    }

    const fn kv_prompts(&self) -> u64 {
        if self.due { self.prompt } else { 0 }
    }

    const fn ahead(&self) -> u64 {
        if self.prefilled && !self.due { self.weight } else { 0 }
    }

    const fn awaited(&self) -> u64 {
        let overdue = if self.streams { self.due } else { self.first_token_overdue };
        if self.started || overdue { 0 } else { self.weight }
    }
}

impl Ledger {
    /// Outstanding work in tokens: uncomputed prompt tokens plus output tokens still expected. The
    /// gateway cannot see how far a stream has come. At a random moment half of a stream is left on
    /// average. A job therefore counts its expected output until its prompt is prefilled, and half
    /// of it after.
    pub const fn work(&self) -> u64 {
        self.prefill.saturating_add(self.output)
    }

    /// Adds a job's booking.
    pub fn add(&mut self, booking: &Booking) {
        self.jobs += 1;
        self.seqs = self.seqs.saturating_add(booking.seqs);
        self.prefill = self.prefill.saturating_add(booking.prefill());
        self.background_prefill = self.background_prefill.saturating_add(booking.background_prefill());
        self.output = self.output.saturating_add(booking.remaining());
        self.kv = self.kv.saturating_add(booking.kv());
        self.kv_output = self.kv_output.saturating_add(booking.output);
        self.kv_prompts = self.kv_prompts.saturating_add(booking.kv_prompts());
        self.streams += u32::from(booking.streams);
        self.watched_streams += booking.watched_streams();
        self.watched_answers += booking.watched_answers();
        self.failed_jobs += booking.failed_jobs();
        self.prefilling += booking.prefilling();
        self.short += booking.short();
        self.ahead = self.ahead.saturating_add(booking.ahead());
        self.awaited = self.awaited.saturating_add(booking.awaited());
    }

    /// Removes a job's booking. Returns false, and changes nothing, when the booking was not all
    /// there.
    pub fn remove(&mut self, booking: &Booking) -> bool {
        let rest = || {
            Some(Self {
                jobs: self.jobs.checked_sub(1)?,
                seqs: self.seqs.checked_sub(booking.seqs)?,
                prefill: self.prefill.checked_sub(booking.prefill())?,
                background_prefill: self.background_prefill.checked_sub(booking.background_prefill())?,
                output: self.output.checked_sub(booking.remaining())?,
                kv: self.kv.checked_sub(booking.kv())?,
                kv_output: self.kv_output.checked_sub(booking.output)?,
                kv_prompts: self.kv_prompts.checked_sub(booking.kv_prompts())?,
                streams: self.streams.checked_sub(u32::from(booking.streams))?,
                watched_streams: self.watched_streams.checked_sub(booking.watched_streams())?,
                watched_answers: self.watched_answers.checked_sub(booking.watched_answers())?,
                failed_jobs: self.failed_jobs.checked_sub(booking.failed_jobs())?,
                prefilling: self.prefilling.checked_sub(booking.prefilling())?,
                short: self.short.checked_sub(booking.short())?,
                ahead: self.ahead.checked_sub(booking.ahead())?,
                awaited: self.awaited.checked_sub(booking.awaited())?,
            })
        };
        let Some(rest) = rest() else { return false };
        *self = rest;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn booking() -> Booking {
        Booking {
            class: ClassId::new(0),
            seqs: 2,
            prompt: 100,
            weight: 100,
            output: 51,
            started: false,
            prefilled: false,
            due: false,
            first_token_overdue: false,
            has_failed: true,
            background: true,
            streams: true,
            watched: true,
            adapter: None,
        }
    }

    #[test]
    fn a_first_token_is_awaited_until_it_comes_or_is_overdue() {
        let awaited = |booking: Booking| {
            let mut ledger = Ledger::default();
            ledger.add(&booking);
            ledger.awaited
        };
        let early = Booking { weight: 70, prefilled: true, streams: true, ..booking() };
        assert_eq!(awaited(early), 70, "it counts as prefilled before its time");
        assert_eq!(awaited(Booking { due: true, ..early }), 0);
        assert_eq!(awaited(Booking { started: true, ..early }), 0);
        let plain = Booking { streams: false, due: true, ..early };
        assert_eq!(awaited(plain), 70, "nobody sees its first token");
        assert_eq!(awaited(Booking { first_token_overdue: true, ..plain }), 0);
    }

    #[test]
    fn a_job_weighs_less_once_its_prompt_is_prefilled() {
        let mut ledger = Ledger::default();
        let mut booking = booking();
        ledger.add(&booking);
        assert_eq!((ledger.work(), ledger.kv, ledger.failed_jobs), (151, 151, 1));
        assert_eq!((ledger.watched_streams, ledger.watched_answers, ledger.prefilling), (1, 0, 2));
        assert!(ledger.remove(&booking));
        booking.prefilled = true;
        ledger.add(&booking);
        assert_eq!((ledger.work(), ledger.kv, ledger.failed_jobs, ledger.ahead), (25, 151, 1, 100));
        assert!(ledger.remove(&booking));
        (booking.started, booking.due) = (true, true);
        ledger.add(&booking);
        assert_eq!((ledger.work(), ledger.kv, ledger.failed_jobs, ledger.ahead), (25, 151, 0, 0));
        assert_eq!(ledger.prefilling, 1, "one of two has its first token");
        assert!(ledger.remove(&booking));
        assert_eq!(ledger, Ledger::default());
        assert!(!ledger.remove(&booking));
        assert_eq!(ledger, Ledger::default());
    }
}
