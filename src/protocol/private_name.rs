//! Private names: host names that nobody can register in the public DNS.

/// Ends of private names.
const SUFFIXES: [&str; 5] = [".localhost", ".local", ".internal", ".svc", ".test"];

/// Whether `name`, which is lower case and has no dot at its end, is a private name: one without a
/// dot, or one below a domain that is kept for private networks.
pub fn is_private_name(name: &str) -> bool {
    !name.contains('.') || SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}
