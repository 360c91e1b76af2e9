//! What the tests share: folders, clients, and waiting for conditions.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tasuki_stack::{Nats, Options};
use tempfile::TempDir;
use tokio::time::sleep;

/// How long anything may take on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Long enough to see that somebody is silent.
pub(crate) const SILENCE: Duration = Duration::from_millis(400);

/// A folder that others may enter, removed at the end.
pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("tasuki-stack-")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir()
        .unwrap()
}

/// Options for a stack that leaves nothing behind.
pub(crate) fn throwaway(folder: &TempDir) -> Options {
    Options::new(folder.path().join("stack")).throwaway()
}

/// The built executable.
pub(crate) fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tasuki-stack"));
    command.stdin(Stdio::null());
    command
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < deadline, "still not so: {what}");
        // sleep: the pace of asking, within a deadline.
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the file exists.
pub(crate) async fn appears(path: &Path) {
    eventually(&format!("{} exists", path.display()), || path.exists()).await;
}

/// Whether a process exists and is not merely waiting to be reaped.
pub(crate) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Every process with the text in its command line.
pub(crate) fn with_text(text: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap();
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(text)
        })
        .filter(|pid| is_alive(*pid))
        .collect()
}

pub(crate) async fn sql(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

/// Runs a statement that gives one value as text.
pub(crate) async fn ask(connection: &mut PgConnection, statement: &str) -> String {
    sqlx::query_scalar(AssertSqlSafe(statement.to_owned()))
        .fetch_one(connection)
        .await
        .unwrap()
}

/// Runs statements that give nothing.
pub(crate) async fn run(connection: &mut PgConnection, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

pub(crate) async fn jetstream(nats: &Nats) -> async_nats::jetstream::Context {
    let client = nats.connect_options().connect(nats.url()).await.unwrap();
    async_nats::jetstream::new(client)
}

pub(crate) async fn redis(url: &str) -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(url).unwrap();
    // Tests have deadlines of their own; the client's would blur "slow" and "silent".
    let config = redis::AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_connection_timeout(None);
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .unwrap()
}

/// The address of the project's tools, for a process that runs elsewhere.
pub(crate) fn tools() -> Option<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|dir| dir.join(".tasuki/tools"))
        .find(|dir| dir.is_dir())
}
