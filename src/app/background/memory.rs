//! Memory release: returns the allocator's free pages to the system.
//!
//! The allocator returns free pages only when a thread frees a page more than a second later. After
//! a burst no thread does, so a block is allocated and freed from time to time. The pages are then
//! returned in a thread of its own, not while a worker serves a request.

use std::hint::black_box;

use tokio::task::spawn_blocking;

/// Size of the block. The allocator keeps blocks of this size for nobody, and takes no page of it
/// from the system unless it is written.
const BLOCK: usize = 4 << 20;

/// Returns free pages to the system soon.
pub(super) fn release_free_pages() {
    // It takes milliseconds per 100 MB: too long for a thread that has other tasks.
    drop(spawn_blocking(|| drop(black_box(Vec::<u8>::with_capacity(BLOCK)))));
}
