//! Composition root: puts the parts together and takes them apart again. No other module knows all
//! the parts.

pub mod background;
mod commands;
mod gateway;
mod terminal;
mod usage;

pub use self::commands::complete::answer_shell;
pub use self::commands::run;
pub use self::gateway::Gateway;
pub use crate::app::gateway::start_error::StartError;
