//! Memory that is free goes back to the system.
//!
//! The allocator returns free pages only when one of its threads frees a page later than a second
//! after them. When thousands of streams end and nothing follows, no thread does. A large block that
//! is taken and given back is such an occasion: the pages go back in this task, and not while a
//! worker serves a request.

use std::hint::black_box;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Time between two occasions. Free pages are gone after three of them at most.
const EVERY: Duration = Duration::from_secs(3);
/// Size of the block. The allocator keeps blocks of this size for nobody, and takes no page of it
/// from the system unless it is written.
const BLOCK: usize = 4 << 20;

/// Gives free memory back. Runs until dropped.
pub(in crate::app) async fn give_back() {
    loop {
        sleep(EVERY).await;
        // It takes milliseconds per 100 MB: too long for a thread that has other tasks.
        let done = spawn_blocking(|| drop(black_box(Vec::<u8>::with_capacity(BLOCK))));
        if done.await.is_err() {
            return;
        }
    }
}
