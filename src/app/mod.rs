//! The composition root: puts the parts together and takes them apart again.
//! The only place that knows all of them.

pub mod background;
mod commands;
mod gateway;
mod usage;

pub use self::commands::run;
pub use self::gateway::Gateway;
pub use crate::app::gateway::start_error::StartError;
