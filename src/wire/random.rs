//! The only place that asks the operating system for random bytes.

/// `N` random bytes.
///
/// # Panics
/// When the system has no source of random bytes, which a started system has.
#[must_use]
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    #[expect(clippy::disallowed_methods, reason = "this is the one place for it")]
    getrandom::fill(&mut bytes).expect("a started system has a source of random bytes");
    bytes
}
