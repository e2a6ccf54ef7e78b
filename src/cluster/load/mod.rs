//! Loads of the gateways: what each has at replicas and what waits there.

pub(super) mod share;
mod text;

pub use text::LoadTexts;
