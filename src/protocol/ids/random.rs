//! Random bytes: the only module that asks the operating system for them.

use std::cell::RefCell;

/// Bytes that [`buffered_bytes`] asks the operating system for at a time.
const STOCK_BYTES: usize = 960;

/// `N` random bytes.
///
/// # Panics
/// When the system has no source of random bytes, which a started system has.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[expect(clippy::disallowed_methods, reason = "this is the one place for it")]
    getrandom::fill(&mut bytes).expect("a started system has a source of random bytes");
    bytes
}

/// `N` random bytes, at most 960, from a stock that each thread keeps. It is for values that every
/// request needs and that need not be secret.
pub fn buffered_bytes<const N: usize>() -> [u8; N] {
    const { assert!(N <= STOCK_BYTES, "more than the stock has") };
    thread_local! {
        /// The stock, and the number of its bytes that are used up.
        static STOCK: RefCell<([u8; STOCK_BYTES], usize)> = const { RefCell::new(([0; STOCK_BYTES], STOCK_BYTES)) };
    }
    STOCK.with_borrow_mut(|(stock, used)| {
        if *used + N > STOCK_BYTES {
            *stock = bytes();
            *used = 0;
        }
        let mut taken = [0; N];
        taken.copy_from_slice(&stock[*used..*used + N]);
        *used += N;
        taken
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_stock_is_never_given_out_twice() {
        let ids: HashSet<[u8; 15]> = (0..1_000).map(|_| buffered_bytes()).collect();
        assert_eq!(ids.len(), 1_000);
        assert!(ids.iter().all(|id| *id != [0; 15]));
    }
}
