//! Address limit: how many places of a listener the clients of one address hold at once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::tls::address_group;

/// Places that each address may hold at once. It remembers only addresses that hold or want some.
#[derive(Debug)]
pub struct AddressLimit {
    each: usize,
    addresses: Mutex<HashMap<u128, Arc<Semaphore>>>,
}

impl AddressLimit {
    /// A limit of `each` places for an address, at least one. The addresses of an IPv6 /64 count as
    /// one.
    pub fn new(each: usize) -> Arc<Self> {
        let each = each.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self { each, addresses: Mutex::default() })
    }

    /// Takes a place for the address. Returns `None` when the address holds all its places.
    pub fn try_enter(self: &Arc<Self>, address: IpAddr) -> Option<AddressPermit> {
        let mut place = self.place(address);
        place.permit = Arc::clone(&place.places).try_acquire_owned().ok();
        place.permit.is_some().then_some(place)
    }

    /// Waits for a place for the address.
    pub async fn enter(self: &Arc<Self>, address: IpAddr) -> AddressPermit {
        let mut place = self.place(address);
        // The semaphore is never closed.
        place.permit = Arc::clone(&place.places).acquire_owned().await.ok();
        place
    }

    /// A handle of the address that holds no place yet.
    fn place(self: &Arc<Self>, address: IpAddr) -> AddressPermit {
        let address = address_group(address);
        let mut addresses = self.addresses.lock();
        let places = addresses.entry(address).or_insert_with(|| Arc::new(Semaphore::new(self.each)));
        AddressPermit { limit: Arc::clone(self), address, places: Arc::clone(places), permit: None }
    }
}

/// Place of an address. Dropping it gives the place back.
#[derive(Debug)]
pub struct AddressPermit {
    limit: Arc<AddressLimit>,
    address: u128,
    places: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        self.permit = None;
        let mut addresses = self.limit.addresses.lock();
        // The table and this handle: nobody else holds or wants a place of the address.
        if Arc::strong_count(&self.places) == 2 {
            addresses.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_holds_no_more_than_its_places() {
        let limit = AddressLimit::new(2);
        let (one, other) = (address("10.0.0.1"), address("10.0.0.2"));
        let held = [limit.try_enter(one), limit.try_enter(one)];
        assert!(held.iter().all(Option::is_some));
        assert!(limit.try_enter(one).is_none());
        assert!(limit.try_enter(other).is_some(), "others have places of their own");
        drop(held);
        assert!(limit.try_enter(one).is_some());
        assert!(limit.addresses.lock().is_empty(), "who holds nothing is forgotten");
    }

    #[test]
    fn who_waits_gets_the_next_place_and_who_gives_up_is_forgotten() {
        let limit = AddressLimit::new(1);
        let one = address("2001:db8::1");
        let held = limit.try_enter(one).unwrap();
        let mut waiting = Box::pin(limit.enter(address("2001:db8::2")));
        assert!(waiting.as_mut().now_or_never().is_none(), "both addresses are one subscriber's");
        drop(held);
        let given = waiting.now_or_never().unwrap();
        let gives_up = Box::pin(limit.enter(one));
        drop(given);
        drop(gives_up);
        assert!(limit.addresses.lock().is_empty());
    }
}
