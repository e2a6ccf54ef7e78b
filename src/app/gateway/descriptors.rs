//! File descriptors: the limit of the process, and the client connections that it leaves room for.

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::config::settings::ListenerLimits;
use crate::telemetry::Telemetry;
use crate::telemetry::event::ConnectionsLowered;

/// Descriptors for all that is neither a client's connection nor a connection to an engine.
pub(in crate::app) const OTHER_FILES: u64 = 256;

/// Files that the process may open once it has raised its soft limit.
pub(in crate::app) fn most_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Raises the soft limit of open files to the hard limit. Lowers the limits of the client listener
/// where the process may open too few files for them: a client's connection needs a second
/// descriptor for its engine, and an accepted client must not take the one that another waits for.
pub(super) fn prepare(limits: &ListenerLimits, telemetry: &Telemetry) -> ListenerLimits {
    let mut files = getrlimit(Resource::Nofile);
    if files.current != files.maximum {
        files.current = files.maximum;
        // Without the right to do so, the old limit stays and counts below.
        let _refused = setrlimit(Resource::Nofile, files);
    }
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let lowered = within(limits.clone(), files);
    if lowered != *limits {
        let (configured, accepted) = (limits.max_connections, lowered.max_connections);
        ConnectionsLowered { configured, accepted, files }.emit(telemetry);
    }
    lowered
}

/// The limits, lowered to what `files` descriptors allow. An address keeps its share.
fn within(mut limits: ListenerLimits, files: u64) -> ListenerLimits {
    let room = (files - OTHER_FILES.min(files / 2)) / 2;
    let room = usize::try_from(room).unwrap_or(usize::MAX).max(1);
    if room < limits.max_connections {
        let share = limits.max_address_connections as f64 / limits.max_connections as f64;
        limits.max_address_connections = ((room as f64 * share) as usize).max(1);
        limits.max_connections = room;
    }
    limits
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::load::load_str;

    fn limits(server: &str) -> ListenerLimits {
        let text = format!(
            "version: 1\nserver: {{{server}}}\nauth: {{mode: off}}\npools: {{p: {{engine: vllm, models: [m], replicas: [http://a:1]}}}}\n"
        );
        let loaded = load_str(&text, "p", Path::new("/"), None).into_result();
        loaded.unwrap_or_else(|report| panic!("{report}")).settings.startup.listener
    }

    #[test]
    fn clients_leave_a_descriptor_for_each_engine_and_some_for_the_rest() {
        let connections = |server: &str, files| {
            let limits = within(limits(server), files);
            (limits.max_connections, limits.max_address_connections)
        };
        assert_eq!(connections("", 1 << 20), (10_000, 5_000), "as configured");
        assert_eq!(connections("", 20_256), (10_000, 5_000), "just enough");
        assert_eq!(connections("", 1_024), (384, 192));
        assert_eq!(connections("max_address_connections: 10000", 1_024), (384, 384));
        assert_eq!(connections("", 64), (16, 8), "half is for the rest where there is next to nothing");
        assert_eq!(connections("", 0), (1, 1));
    }
}
