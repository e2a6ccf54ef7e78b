//! Shortage: connections that the gateway cannot open because it lacks file descriptors, local ports
//! or memory.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

/// Whether a connection failed for lack of file descriptors, local ports or memory on this machine.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

/// Logs the begin of a shortage once, until a connection can be opened again.
#[derive(Debug, Default)]
pub(super) struct ShortageLog(AtomicBool);

impl ShortageLog {
    pub(super) fn begins(&self, error: &io::Error) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::error!(%error, "no connection to an engine could be opened; are there enough file descriptors?");
        }
    }

    pub(super) fn ends(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_machine_lacks_is_a_shortage() {
        for (errno, lacks) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::CONNREFUSED, false),
            (Errno::TIMEDOUT, false),
        ] {
            assert_eq!(is_shortage(&io::Error::from(errno)), lacks, "{errno}");
        }
        assert!(!is_shortage(&io::Error::other("no name")));
    }
}
