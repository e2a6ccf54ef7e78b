//! Remote leads: how far tenants are ahead of their siblings because of service at other gateways.
//!
//! Work that other gateways dispatched moves a tenant's virtual counter as the gateway's own work does.
//! The part of the tenant's lead over its siblings that comes from there is kept here, because it has
//! bounds that a lead by own work does not need:
//!
//! * A remote lead is at most the work that other gateways reported in the last 5 to 10 seconds. When the
//!   reports stop, or one report tells far too much, the tenant is held back for 11 seconds at most.
//! * A remote lead fades by an eighth each second. Gateways that disagree on who is ahead agree again.
//!   A lead that the other gateways renew stays.
//! * A tenant that waits here and gets nothing for two steps loses its remote lead. Else all gateways may serve
//!   as a whole what the weights say while one of them never serves the tenant, for as long as it waits
//!   everywhere.
//! * A correction of work that was reported first takes off the lead. What is beyond the lead may correct
//!   work that was never reported here, or has faded: it lowers the counter by no more than a tenant is owed
//!   that comes back, and an eighth of that each second after.
//!
//! A lead shrinks without changing the counter when the siblings catch up. So what fades never takes a
//! tenant below its siblings.

use std::time::Duration;

use crate::model::ids::TenantId;
use crate::model::number_map::NumberMap;
use crate::model::time::Tick;
use crate::queue::fairness::past_use::UseHolder;

/// Length of a window of reports. A lead counts for the windows of now and before.
const WINDOW: Duration = Duration::from_secs(5);
/// Time between two steps in which leads fade.
pub const FADE_INTERVAL: Duration = Duration::from_secs(1);
/// Part of a lead that fades in a step.
const FADE_DIVISOR: u128 = 8;
/// Steps in a row without work for a waiting tenant after which its lead is gone.
const PATIENT_STEPS: u32 = 2;
/// Leads of this many units of a counter are not worth remembering: one token at weight 1.
const NEGLIGIBLE: u128 = 1024;

/// Lead of one holder, in units of its virtual counter.
#[derive(Debug, Clone, Copy, Default)]
struct RemoteLead {
    lead: u128,
    /// Work reported in the window `window`, and in the one before.
    recent: [u128; 2],
    window: u64,
    /// Steps in a row in which the holder waited and got nothing here.
    unserved: u32,
    /// Corrections beyond the lead, as far as they still count against their bound.
    corrected: u128,
}

impl RemoteLead {
    fn advance(&mut self, window: u64) {
        self.recent = match window.saturating_sub(self.window) {
            0 => self.recent,
            1 => [0, self.recent[0]],
            _ => [0, 0],
        };
        self.window = self.window.max(window);
    }

    /// Takes off what is beyond the bounds. `ahead` is how far the counter is ahead of its siblings.
    /// Returns how much the counter is lowered by.
    fn clamp(&mut self, ahead: u128) -> u128 {
        self.lead = self.lead.min(ahead);
        let excess = self.lead.saturating_sub(self.recent[0].saturating_add(self.recent[1]));
        self.lead -= excess;
        excess
    }
}

/// Leads of tenants and groups of one class.
#[derive(Debug, Clone, Default)]
pub(super) struct RemoteLeads {
    leads: NumberMap<UseHolder, RemoteLead>,
}

impl RemoteLeads {
    pub(super) fn is_empty(&self) -> bool {
        self.leads.is_empty()
    }

    /// Adds work at other gateways to a counter; `floor` is the least counter of the siblings.
    pub(super) fn add(
        &mut self,
        holder: UseHolder,
        counter: &mut u128,
        amount: u128,
        floor: u128,
        now: Tick,
    ) {
        *counter = counter.saturating_add(amount);
        let own = self.leads.entry(holder).or_default();
        own.advance(window_of(now));
        own.recent[0] = own.recent[0].saturating_add(amount);
        own.lead = own.lead.saturating_add(amount);
        *counter -= own.clamp(counter.saturating_sub(floor));
    }

    /// Takes back work that was reported and came to less; `most` is the bound of what is beyond the lead.
    pub(super) fn take_back(&mut self, holder: UseHolder, counter: &mut u128, amount: u128, most: u128) {
        let own = self.leads.entry(holder).or_default();
        let of_lead = amount.min(own.lead);
        let beyond = (amount - of_lead).min(most.saturating_sub(own.corrected));
        own.lead -= of_lead;
        own.corrected = own.corrected.saturating_add(beyond);
        *counter = counter.saturating_sub(of_lead.saturating_add(beyond));
    }

    /// Notes that a job of the holder went to a replica here.
    pub(super) fn note_served(&mut self, holder: UseHolder) {
        if let Some(own) = self.leads.get_mut(&holder) {
            own.unserved = 0;
        }
    }

    /// All holders of leads, in order.
    pub(super) fn holders(&self) -> Vec<UseHolder> {
        let mut holders: Vec<UseHolder> = self.leads.keys().copied().collect();
        holders.sort_unstable();
        holders
    }

    /// Lets a lead fade by one step; `floor` is the least counter of the siblings, `waits` says whether jobs of
    /// the holder wait here. Returns whether the counter changed.
    pub(super) fn fade(
        &mut self,
        holder: UseHolder,
        counter: &mut u128,
        floor: u128,
        waits: bool,
        now: Tick,
    ) -> bool {
        let Some(own) = self.leads.get_mut(&holder) else { return false };
        own.advance(window_of(now));
        let excess = own.clamp(counter.saturating_sub(floor));
        own.unserved = if waits { own.unserved + 1 } else { 0 };
        let is_forgotten = own.unserved > PATIENT_STEPS;
        let faded = if is_forgotten { own.lead } else { own.lead.div_ceil(FADE_DIVISOR) };
        own.lead -= faded;
        let lowered = excess.saturating_add(faded);
        *counter = counter.saturating_sub(lowered);
        own.corrected -= own.corrected.div_ceil(FADE_DIVISOR);
        if own.lead < NEGLIGIBLE && own.corrected == 0 && own.recent == [0, 0] {
            self.leads.remove(&holder);
        }
        lowered > 0
    }

    /// Forgets a holder.
    pub(super) fn remove(&mut self, holder: UseHolder) {
        self.leads.remove(&holder);
    }

    /// Forgets the tenants and groups that `keep` rejects.
    pub(super) fn retain(&mut self, keep: impl Fn(TenantId) -> bool) {
        self.leads.retain(|holder, _| keep(holder.tenant) && holder.within.is_none_or(&keep));
    }
}

fn window_of(now: Tick) -> u64 {
    now.as_nanos() / WINDOW.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: UseHolder = UseHolder { tenant: TenantId::new(1), is_group: false, within: None };

    fn at(seconds: u64) -> Tick {
        Tick::from_millis(seconds * 1000)
    }

    /// Seconds after the report until the lead is gone, when the siblings stay where they are.
    fn time_behind(amount: u128) -> u64 {
        let (mut leads, mut counter) = (RemoteLeads::default(), 5_000);
        leads.add(HOLDER, &mut counter, amount, 5_000, at(3));
        assert_eq!(counter, 5_000u128.saturating_add(amount));
        for second in 4..60 {
            leads.fade(HOLDER, &mut counter, 5_000, false, at(second));
            if counter == 5_000 && leads.is_empty() {
                return second - 3;
            }
        }
        panic!("{amount}: still behind")
    }

    #[test]
    fn a_report_of_any_size_holds_a_tenant_back_for_seconds() {
        for amount in [2_000, 1 << 40, u128::MAX] {
            let seconds = time_behind(amount);
            assert!((5..=10).contains(&seconds), "{amount}: {seconds}");
        }
    }

    #[test]
    fn a_lead_that_is_renewed_stays_and_stays_bounded() {
        let (mut leads, mut counter, mut most) = (RemoteLeads::default(), 0, 0);
        for second in 0..600 {
            leads.add(HOLDER, &mut counter, 1 << 20, 0, at(second));
            leads.fade(HOLDER, &mut counter, 0, false, at(second));
            most = most.max(counter);
            assert!(second < 10 || counter > 4 << 20, "{second}: {counter}");
        }
        assert!(most <= 10 << 20, "{most}");
    }

    #[test]
    fn a_tenant_that_waits_and_gets_nothing_loses_its_lead() {
        let lead_after = |seconds: u64, served: Option<u64>| {
            let (mut leads, mut counter) = (RemoteLeads::default(), 0);
            for second in 0..seconds {
                leads.add(HOLDER, &mut counter, 1 << 20, 0, at(second));
                leads.fade(HOLDER, &mut counter, 0, true, at(second));
                if served == Some(second) {
                    leads.note_served(HOLDER);
                }
            }
            counter
        };
        assert_eq!((lead_after(3, None), lead_after(2, None) > 1 << 20), (0, true));
        assert!(lead_after(3, Some(1)) > 2 << 20, "it got something");
    }

    #[test]
    fn what_siblings_have_caught_up_with_is_no_lead() {
        let (mut leads, mut counter) = (RemoteLeads::default(), 100_000);
        leads.add(HOLDER, &mut counter, 50_000, 100_000, at(0));
        assert!(!leads.fade(HOLDER, &mut counter, 150_000, false, at(1)), "they are where it is");
        assert!(!leads.fade(HOLDER, &mut counter, 0, false, at(2)), "and nothing is given back later");
        assert_eq!(counter, 150_000);
    }

    #[test]
    fn a_correction_of_work_that_was_not_heard_lowers_the_counter_by_little() {
        let (mut leads, mut counter) = (RemoteLeads::default(), 500_000);
        leads.add(HOLDER, &mut counter, 50_000, 500_000, at(0));
        leads.take_back(HOLDER, &mut counter, 20_000, 0);
        assert_eq!(counter, 530_000, "it was heard");
        leads.take_back(HOLDER, &mut counter, 100_000, 16_000);
        assert_eq!(counter, 484_000, "the rest of the lead, and no more than the bound");
        leads.take_back(HOLDER, &mut counter, u128::MAX, 16_000);
        assert_eq!(counter, 484_000);
        leads.fade(HOLDER, &mut counter, 0, false, at(1));
        leads.take_back(HOLDER, &mut counter, 100_000, 16_000);
        assert_eq!(counter, 482_000, "an eighth a second");
        (2..200).for_each(|second| _ = leads.fade(HOLDER, &mut counter, 0, false, at(second)));
        assert!(leads.is_empty() && counter == 482_000);
        leads.take_back(HOLDER, &mut counter, u128::MAX, u128::MAX);
        assert_eq!(counter, 0, "never below zero");
    }
}
