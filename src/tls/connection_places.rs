//! Connection places: which connections of an operators' port stay open when more come than it has
//! places for.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::tls::address_group;

/// Places of a port. A newcomer gets a place whatever the others do: at a full port the address with
/// the most connections loses one, and a connection without an open call goes before one with a call.
/// Silent connections, of however many addresses, thus keep no probe out.
#[derive(Debug)]
pub struct ConnectionPlaces {
    all: usize,
    of_one_address: usize,
    /// The oldest connection first.
    held: Mutex<Vec<Arc<HeldPlace>>>,
    left: Notify,
}

#[derive(Debug)]
struct HeldPlace {
    address: u128,
    open_calls: AtomicUsize,
    taken: Notify,
}

impl HeldPlace {
    fn is_idle(&self) -> bool {
        self.open_calls.load(Ordering::Relaxed) == 0
    }
}

/// Where a newcomer's place comes from.
#[derive(Debug, PartialEq, Eq)]
enum PlaceSource {
    Free,
    /// The connection with this index, which loses its place.
    Other(usize),
    Nowhere,
}

impl ConnectionPlaces {
    /// `all` places, of which one address may hold `of_one_address`. The addresses of an IPv6 /64 count as one.
    pub fn new(all: usize, of_one_address: usize) -> Arc<Self> {
        Arc::new(Self { all, of_one_address, held: Mutex::default(), left: Notify::new() })
    }

    /// A place for a new connection. Returns `None` when the address has open calls at all its places, or
    /// when the port is full of open calls of addresses that hold no more places than this one.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPlace> {
        let address = address_group(address);
        let mut held = self.held.lock();
        match self.source(&held, address) {
            PlaceSource::Free => {}
            PlaceSource::Other(index) => held.remove(index).taken.notify_one(),
            PlaceSource::Nowhere => return None,
        }
        let place = Arc::new(HeldPlace { address, open_calls: AtomicUsize::new(0), taken: Notify::new() });
        held.push(Arc::clone(&place));
        Some(ConnectionPlace { places: Arc::clone(self), held: place })
    }

    fn source(&self, held: &[Arc<HeldPlace>], newcomer: u128) -> PlaceSource {
        let mut counts: HashMap<u128, usize> = HashMap::new();
        for place in held {
            *counts.entry(place.address).or_default() += 1;
        }
        let own = counts.get(&newcomer).copied().unwrap_or_default();
        let oldest = |wanted: &dyn Fn(&HeldPlace) -> bool| held.iter().position(|place| wanted(place));
        let found = if own >= self.of_one_address {
            oldest(&|place| place.address == newcomer && place.is_idle())
        } else if held.len() < self.all {
            return PlaceSource::Free;
        } else {
            let most = counts.values().copied().max().unwrap_or_default();
            let has_most = |place: &HeldPlace| counts.get(&place.address) == Some(&most);
            if most > own + 1 {
                oldest(&|place| has_most(place) && place.is_idle()).or_else(|| oldest(&has_most))
            } else {
                oldest(&HeldPlace::is_idle)
            }
        };
        found.map_or(PlaceSource::Nowhere, PlaceSource::Other)
    }

    /// Waits until no connection has a place.
    pub async fn all_left(&self) {
        loop {
            let left = self.left.notified();
            if self.held.lock().is_empty() {
                return;
            }
            left.await;
        }
    }
}

/// Place of one connection. Dropping it gives the place back.
#[derive(Debug)]
pub struct ConnectionPlace {
    places: Arc<ConnectionPlaces>,
    held: Arc<HeldPlace>,
}

impl ConnectionPlace {
    /// Waits until the place has gone to another connection: this one must end.
    pub async fn taken(&self) {
        self.held.taken.notified().await;
    }

    /// Counts a call on the connection as open until the result is dropped.
    pub fn begin_call(&self) -> OpenCall {
        self.held.open_calls.fetch_add(1, Ordering::Relaxed);
        OpenCall(Arc::clone(&self.held))
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.places.held.lock().retain(|place| !Arc::ptr_eq(place, &self.held));
        self.places.left.notify_waiters();
    }
}

/// Open call on a connection.
#[derive(Debug)]
pub struct OpenCall(Arc<HeldPlace>);

impl OpenCall {
    /// Answers the call, which is open until its answer is sent or dropped.
    pub async fn run(self, request: Request, next: Next) -> Response {
        next.run(request).await.map(|body| {
            Body::new(body.map_err(move |error| {
                let _open = &self;
                error
            }))
        })
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.open_calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn enter(places: &Arc<ConnectionPlaces>, last: u8) -> Option<ConnectionPlace> {
        places.enter(IpAddr::from([10, 0, 0, last]))
    }

    fn is_taken(place: &ConnectionPlace) -> bool {
        place.taken().now_or_never().is_some()
    }

    #[test]
    fn silent_connections_of_many_addresses_keep_nobody_out() {
        let places = ConnectionPlaces::new(8, 4);
        let silent: Vec<_> = (0..8).map(|n| enter(&places, n / 4).unwrap()).collect();
        let probe = enter(&places, 9).unwrap();
        assert!(is_taken(&silent[0]), "the oldest of an address with the most");
        assert!(silent[1..].iter().all(|place| !is_taken(place)));
        assert_eq!(places.held.lock().len(), 8);
        drop(silent);
        drop(probe);
        assert!(places.all_left().now_or_never().is_some());
    }

    #[test]
    fn every_address_holds_one_and_the_oldest_idle_one_goes() {
        let places = ConnectionPlaces::new(3, 2);
        let held: Vec<_> = (0..3).map(|n| enter(&places, n).unwrap()).collect();
        let call = held[0].begin_call();
        let _newcomer = enter(&places, 9).unwrap();
        assert!(!is_taken(&held[0]), "it has an open call");
        assert!(is_taken(&held[1]));
        drop(call);
        let _newcomer = enter(&places, 8).unwrap();
        assert!(is_taken(&held[0]));
    }

    #[test]
    fn open_calls_go_only_for_an_address_that_holds_fewer() {
        let places = ConnectionPlaces::new(4, 4);
        let held: Vec<_> = (0..4).map(|n| enter(&places, n / 2).unwrap()).collect();
        let calls: Vec<_> = held.iter().map(ConnectionPlace::begin_call).collect();
        let newcomer = enter(&places, 9).unwrap();
        let _call = newcomer.begin_call();
        assert!(is_taken(&held[0]), "two of one address against none of another");
        assert!(enter(&places, 9).is_none(), "one more would be as many as another holds");
        drop(calls);
    }

    #[test]
    fn an_address_has_its_own_places() {
        let places = ConnectionPlaces::new(8, 2);
        let held = [enter(&places, 1).unwrap(), enter(&places, 1).unwrap()];
        let calls = [held[0].begin_call(), held[1].begin_call()];
        assert!(enter(&places, 1).is_none());
        drop(calls);
        let _newer = enter(&places, 1).unwrap();
        assert!(is_taken(&held[0]), "its own oldest");
        assert!(!is_taken(&held[1]));
    }
}
