//! Demand state file: keeps the measured demand over a restart.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{Instant, interval_at};

use crate::core::autoscale::demand::state::{DemandState, VERSION};
use crate::dispatcher::Dispatcher;
use crate::telemetry::Telemetry;
use crate::telemetry::event::{DemandNotKept, DemandRestored};

/// Time between two writes of the file.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// Largest file that is read, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// Restores the demand that the last process measured. A file that cannot be read is reported, and
/// the gateway starts without demand. The file is kept until the first write.
pub(in crate::app) fn restore(path: &Path, dispatcher: &Dispatcher, telemetry: &Telemetry) {
    let failed = |reason: &str| DemandNotKept { path, reason }.emit(telemetry);
    match read(path) {
        Ok(None) => {}
        Ok(Some(state)) if dispatcher.restore_demand(&state) => {
            DemandRestored { path, rows: state.rows.len() }.emit(telemetry);
        }
        Ok(Some(state)) => failed(&format!("its version is {}, not {VERSION}", state.version)),
        Err(problem) => failed(&problem.to_string()),
    }
}

/// Writes the file every [`WRITE_INTERVAL`], until dropped.
pub(in crate::app) async fn follow(path: PathBuf, dispatcher: Arc<Dispatcher>, telemetry: Telemetry) {
    let mut every = interval_at(Instant::now() + WRITE_INTERVAL, WRITE_INTERVAL);
    loop {
        every.tick().await;
        let (path, dispatcher, telemetry) = (path.clone(), Arc::clone(&dispatcher), telemetry.clone());
        let _written = spawn_blocking(move || save(&path, &dispatcher, &telemetry)).await;
    }
}

/// Writes the file. The new file replaces the old one in one step, so the file is whole at any
/// time.
pub(in crate::app) fn save(path: &Path, dispatcher: &Dispatcher, telemetry: &Telemetry) {
    if let Err(problem) = write(path, &dispatcher.demand_state()) {
        DemandNotKept { path, reason: &problem.to_string() }.emit(telemetry);
    }
}

/// Reads the file; `None` where there is none.
///
/// # Errors
/// The file cannot be read, is larger than 256 MiB, or is no state file.
pub(in crate::app) fn read(path: &Path) -> io::Result<Option<DemandState>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if file.metadata()?.len() > MAX_BYTES {
        return Err(io::Error::other("it is larger than 256 MiB"));
    }
    Ok(Some(serde_json::from_reader(io::BufReader::new(file))?))
}

fn write(path: &Path, state: &DemandState) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(state)?)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}
