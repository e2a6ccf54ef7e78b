//! Reloads over a real file system. Every wait is for a report, and shorter
//! than the poll, so that only events can have caused it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::config::discover::ReplicaSource;
use crate::config::load::merge::FoundEndpoints;
use crate::config::watch::{POLL, ReloadHandle, ReloadOutcome, ReloadReport, Reloader, channel};

const PATIENCE: Duration = Duration::from_secs(10);
const _: () = assert!(PATIENCE.as_nanos() < POLL.as_nanos());

fn config(seqs: u32, more: &str) -> String {
    format!(
        "version: 1
auth: {{mode: off}}
pools:
  p:
    engine: vllm
    models: [m]
    replicas: [http://127.0.0.1:8000]
    max_seqs: {seqs}
{more}
"
    )
}

struct Running {
    reloader: Arc<Reloader>,
    handle: ReloadHandle,
    reports: UnboundedReceiver<ReloadReport>,
    task: JoinHandle<()>,
}

impl Running {
    /// Starts to watch; on return the first look is over.
    async fn start(path: &Path) -> Self {
        let (reloader, _) = Reloader::start(path.to_owned()).unwrap();
        let reloader = Arc::new(reloader);
        let (handle, asks) = channel();
        let (sender, mut reports) = unbounded_channel();
        let watching = Arc::clone(&reloader).watch(asks, move |report| sender.send(report.clone()).unwrap());
        let task = tokio::spawn(watching);
        assert_eq!(handle.reload("test".into()).await.unwrap().outcome, ReloadOutcome::Unchanged);
        assert_eq!(reports.recv().await.unwrap().outcome, ReloadOutcome::Unchanged);
        Self { reloader, handle, reports, task }
    }

    async fn report(&mut self) -> ReloadReport {
        timeout(PATIENCE, self.reports.recv()).await.expect("no report in time").unwrap()
    }

    fn seqs(&self) -> Option<u32> {
        let settings = self.reloader.current().load_full();
        settings.policy.replicas.iter().next().and_then(|(_, _, replica)| replica.max_seqs)
    }
}

fn folder_with(text: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("penstock.yaml");
    fs::write(&path, text).unwrap();
    (dir, path)
}

/// Puts a whole file in place at once.
fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(&new, path).unwrap();
}

#[tokio::test]
async fn a_written_file_is_applied() {
    let (_dir, path) = folder_with(&config(1, ""));
    let mut running = Running::start(&path).await;
    for round in 2..5 {
        fs::write(&path, config(round, "")).unwrap();
        let mut report = running.report().await;
        // On a slow machine the empty file may stand long enough to be read.
        if report.outcome == ReloadOutcome::Failed {
            report = running.report().await;
        }
        assert_eq!((report.outcome, report.generation), (ReloadOutcome::Applied, u64::from(round)));
        assert_eq!(running.seqs(), Some(round));
        assert_eq!(report.changed.len(), 1);
        assert_eq!(report.changed[0].path, "pools.p.max_seqs");
    }
}

#[tokio::test]
async fn a_file_renamed_into_place_is_applied_each_time() {
    let (_dir, path) = folder_with(&config(1, ""));
    let mut running = Running::start(&path).await;
    for round in 2..5 {
        put(&path, &config(round, ""));
        assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
        assert_eq!(running.seqs(), Some(round));
    }
}

/// What the kubelet does to a mounted ConfigMap: a new folder, and a link
/// swapped by rename.
fn swap_data(mount: &Path, version: u32) {
    let fresh = format!("..version_{version}");
    fs::create_dir(mount.join(&fresh)).unwrap();
    fs::write(mount.join(&fresh).join("penstock.yaml"), config(version, "")).unwrap();
    symlink(&fresh, mount.join("..data_tmp")).unwrap();
    fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    if version > 1 {
        fs::remove_dir_all(mount.join(format!("..version_{}", version - 1))).unwrap();
    }
}

#[tokio::test]
async fn a_config_map_is_applied_each_time_it_is_swapped() {
    let mount = tempfile::tempdir().unwrap();
    swap_data(mount.path(), 1);
    let path = mount.path().join("penstock.yaml");
    symlink("..data/penstock.yaml", &path).unwrap();
    let mut running = Running::start(&path).await;
    for version in 2..5 {
        swap_data(mount.path(), version);
        assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
        assert_eq!(running.seqs(), Some(version));
    }
}

#[tokio::test]
async fn a_link_into_another_folder_is_followed() {
    let (_dir, path) = folder_with(&config(1, ""));
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("penstock.yaml");
    symlink(&path, &link).unwrap();
    let mut running = Running::start(&link).await;
    put(&path, &config(2, ""));
    assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
    assert_eq!(running.seqs(), Some(2));
}

#[tokio::test]
async fn a_rotated_secret_takes_effect() {
    let secrets = tempfile::tempdir().unwrap();
    let secret = secrets.path().join("key");
    fs::write(&secret, "one\n").unwrap();
    let (_dir, path) = folder_with(&config(1, &format!("    api_key: {{file: {}}}", secret.display())));
    let mut running = Running::start(&path).await;
    put(&secret, "two\n");
    let report = running.report().await;
    assert_eq!(report.outcome, ReloadOutcome::Applied);
    assert_eq!(report.changed[0].to_string(), "~ pools.p.api_key: the secret has a new value");
    let settings = running.reloader.current().load_full();
    let (_, _, pool) = settings.edge.pools.iter().next().unwrap();
    assert_eq!(pool.api_key.as_ref().unwrap().expose(), "two");

    fs::remove_file(&secret).unwrap();
    let report = running.report().await;
    assert_eq!(report.outcome, ReloadOutcome::Failed);
    assert!(report.problems[0].message.contains("cannot be read"));
    put(&secret, "three");
    assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
}

#[tokio::test]
async fn a_broken_file_changes_nothing_and_is_reported_once() {
    let (dir, path) = folder_with(&config(1, ""));
    let mut running = Running::start(&path).await;
    put(&path, &config(2, "colour: red"));
    let report = running.report().await;
    assert_eq!((report.outcome, report.generation), (ReloadOutcome::Failed, 1));
    assert_eq!(report.problems[0].path, "colour");
    assert_eq!(running.seqs(), Some(1));

    fs::write(dir.path().join("unrelated"), "x").unwrap();
    let asked = running.handle.reload("test".into()).await.unwrap();
    assert_eq!(asked.outcome, ReloadOutcome::Failed);
    assert_eq!(running.report().await.outcome, ReloadOutcome::Failed);
    assert!(running.reports.try_recv().is_err());

    fs::remove_file(&path).unwrap();
    assert_eq!(running.report().await.outcome, ReloadOutcome::Failed);
    assert_eq!(running.seqs(), Some(1));
    put(&path, &config(3, ""));
    assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
    assert_eq!(running.seqs(), Some(3));
}

#[tokio::test]
async fn a_nudge_reloads_and_the_end_of_all_handles_ends_the_watch() {
    let (_dir, path) = folder_with(&config(1, ""));
    let mut running = Running::start(&path).await;
    running.handle.request_reload();
    assert_eq!(running.report().await.outcome, ReloadOutcome::Unchanged);
    drop(running.handle);
    timeout(PATIENCE, running.task).await.expect("still watching").unwrap();
}

#[test]
fn fields_that_need_a_restart_are_listed_until_they_are_taken_back() {
    let (_dir, path) = folder_with(&config(1, ""));
    let (reloader, report) = Reloader::start(path.clone()).unwrap();
    assert_eq!(report.problems, []);
    fs::write(&path, config(2, "server: {drain_grace: 5s}\ntelemetry: {log: {level: debug}}")).unwrap();
    let report = reloader.reload();
    assert_eq!(report.outcome, ReloadOutcome::Applied);
    assert_eq!(report.needs_restart, ["server.drain_grace", "telemetry.log.level"]);
    let settings = reloader.current().load_full();
    assert_eq!(settings.startup.drain_grace, Duration::from_secs(60));
    assert_eq!(settings.policy.replicas.iter().next().unwrap().2.max_seqs, Some(2));

    fs::write(&path, config(3, "server: {drain_grace: 5s}")).unwrap();
    assert_eq!(reloader.reload().needs_restart, ["server.drain_grace"]);
    assert_eq!(reloader.reload().outcome, ReloadOutcome::Unchanged);
    fs::write(&path, config(3, "")).unwrap();
    let report = reloader.reload();
    assert_eq!((report.outcome, report.needs_restart.len()), (ReloadOutcome::Applied, 0));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["outcome"], &json["changed"][0]["needs_restart"]), (&"applied".into(), &true.into()));
}

#[test]
fn a_start_needs_a_good_file() {
    let (_dir, path) = folder_with("version: 1\n");
    assert!(Reloader::start(path).unwrap_err().has_errors());
}

const LISTED: &str = "version: 1
auth: {mode: off}
pools:
  p: {engine: vllm, models: [m], discover: {file: engines.yaml}}
";

#[tokio::test]
async fn a_file_of_endpoints_is_a_part_of_the_file() {
    let (dir, path) = folder_with(LISTED);
    let list = dir.path().join("engines.yaml");
    put(&list, "- http://10.0.0.1:80\n- {url: 'http://10.0.0.2:80', max_seqs: 9}\n");
    let mut running = Running::start(&path).await;
    let names = |running: &Running| {
        let settings = running.reloader.current().load_full();
        settings.policy.replicas.iter().map(|(_, name, _)| name.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&running), ["p/http://10.0.0.1:80", "p/http://10.0.0.2:80"]);

    put(&list, r#"["http://10.0.0.2:80", "http://10.0.0.3:80"]"#);
    let report = running.report().await;
    assert_eq!(report.outcome, ReloadOutcome::Applied);
    assert_eq!(report.changed.len(), 1, "{:?}", report.changed);
    assert_eq!(report.changed[0].path, "pools.p.discover.file");
    let kept = ["p/http://10.0.0.2:80", "p/http://10.0.0.3:80"];
    assert_eq!(names(&running), kept);

    for broken in ["- http://10.0.0.4:80\n- [\n", "- 10.0.0.4\n", "replicas: []\n", "- {uri: 'http://h:1'}\n"]
    {
        put(&list, broken);
        let report = running.report().await;
        assert_eq!(report.outcome, ReloadOutcome::Failed, "{broken}");
        assert!(report.problems[0].to_string().contains("pools.p.discover.file"), "{}", report.problems[0]);
        assert_eq!(names(&running), kept, "the last list holds");
    }
    put(&list, "[]\n");
    assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
    assert_eq!(names(&running), Vec::<String>::new());
    running.task.abort();
}

#[tokio::test]
async fn what_was_discovered_stays_over_a_reload() {
    let dns = "    discover: {dns: {name: engines.test, port: 80}}";
    let (_dir, path) = folder_with(&config(4, dns));
    let mut running = Running::start(&path).await;
    let settings = || running.reloader.current().load_full();
    let pool = settings().policy.pools.id("p").unwrap();
    let Some(ReplicaSource::Dns(source)) =
        settings().edge.pools.get(pool).and_then(|row| row.discover.clone()).map(|d| d.source)
    else {
        panic!("no source")
    };
    let endpoint = source.form.endpoint("10.0.0.5", 80).unwrap();
    let found = FoundEndpoints::from([(pool, vec![endpoint].into())]);
    let [before, after] = running.reloader.discovered(found.clone()).expect("news");
    assert_eq!(after.policy.generation, before.policy.generation + 1);
    assert!(running.reloader.discovered(found).is_none(), "no news");
    let id = after.policy.replicas.id("p/http://10.0.0.5:80").unwrap();

    put(&path, &config(5, dns));
    assert_eq!(running.report().await.outcome, ReloadOutcome::Applied);
    let settings = running.reloader.current().load_full();
    assert_eq!(settings.policy.generation, after.policy.generation + 1);
    assert_eq!(settings.policy.replicas.get(id).unwrap().max_seqs, Some(5));
    running.task.abort();
}
