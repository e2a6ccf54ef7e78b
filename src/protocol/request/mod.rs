//! Requests of clients: parsed in one pass, checked, and edited without a copy.

pub mod edit;
pub(super) mod fields;
pub mod media;
pub(super) mod multipart;
pub mod parse;
mod parsed;
pub mod prefix;
pub(super) mod resumable;
pub(super) mod steering;
