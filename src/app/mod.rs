//! The composition root: puts the parts together and takes them apart again.
//! The only place that knows all of them.

mod calendar;
mod commands;
mod count;
mod demand;
mod demo;
mod gateway;
mod hooks;
mod idle;
mod keda;
mod load;
mod operate;
mod plan;
mod promises;
mod scale;
mod signals;
mod simulate;
mod start;
mod usage;

pub use self::commands::run;
pub use self::gateway::Gateway;
pub use self::start::StartError;
