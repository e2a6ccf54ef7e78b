//! Memory release: returns the allocator's free pages to the system.
//!
//! The allocator returns free pages only when a thread frees a page more than a second later. After
//! a burst no thread does, so this task allocates and frees a block every 3 s. The pages are then
//! returned in this task, not while a worker serves a request.

use std::hint::black_box;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// Time between two blocks. Free pages are returned after three blocks at most.
const EVERY: Duration = Duration::from_secs(3);
/// Size of the block. The allocator keeps blocks of this size for nobody, and takes no page of it
/// from the system unless it is written.
const BLOCK: usize = 4 << 20;

/// Returns free pages to the system. Runs until dropped.
pub(in crate::app) async fn release_free_pages() {
    loop {
        sleep(EVERY).await;
        // It takes milliseconds per 100 MB: too long for a thread that has other tasks.
        let done = spawn_blocking(|| drop(black_box(Vec::<u8>::with_capacity(BLOCK))));
        if done.await.is_err() {
            return;
        }
    }
}
