//! How many tokens a prompt has, as well as it can be known.

pub mod estimate;
