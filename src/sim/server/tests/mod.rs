//! Tests of the server as clients see it, over real sockets.

mod client;
mod faults;
mod lifecycle;
mod process;
mod shapes;
mod tgi;
mod work;
