//! One test's world: a folder, the executable pointed at it, and a client.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::{ConnectOptions, ServerAddr, jetstream};
use serde_json::Value;
use sqlx::PgPool;
use tasuki_testkit::{eventually, eventually_within};
use tempfile::TempDir;

use super::{Answer, Env, Process, holders};

/// How long a start may take on a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long killed servers may take to be gone, before their folder is removed anyway.
const FAREWELL: Duration = Duration::from_secs(5);

/// A folder and what runs in it. Declare it before the processes, so that they go first.
#[derive(Debug)]
pub(crate) struct World {
    folder: TempDir,
    http: reqwest::Client,
}

/// A `tasuki up` that is ready.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) process: Process,
    pub(crate) env: Env,
}

/// An answer over HTTP.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: reqwest::header::HeaderMap,
    /// The body; null when it is not JSON.
    pub(crate) body: Value,
}

impl World {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("tasuki-e2e-")
            // PostgreSQL does not run as root: its user must be able to enter.
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let http = reqwest::Client::builder()
            .no_proxy()
            .timeout(Duration::from_secs(10))
            .build()
            .unwrap();
        Self { folder, http }
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file in the folder, as text for an argument.
    pub(crate) fn file(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        path.into_os_string().into_string().unwrap()
    }

    /// Where `tasuki up` says how to reach it.
    pub(crate) fn env_path(&self) -> PathBuf {
        self.path("run/env")
    }

    /// `tasuki …`, with nothing of the test runner's environment but the `PATH`.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = tasuki_stack::mortal(&executable());
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("RUST_BACKTRACE", "1")
            .env("TASUKI_STACK__DATA_DIR", self.path("data"))
            .env("TASUKI_STACK__RUN_DIR", self.path("run"))
            .env("TASUKI_STACK__TOOLS_DIR", tools());
        command
    }

    /// As [`command`](Self::command), joined to the running `tasuki up`.
    pub(crate) fn joined(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.arg("--env-file").arg(self.env_path());
        command
    }

    /// Starts a command, with its output in the folder.
    pub(crate) fn start(&self, command: Command) -> Process {
        Process::start(command, self.folder.path())
    }

    /// Runs a command to its end.
    pub(crate) async fn run(&self, command: Command) -> Answer {
        self.start(command).ended().await
    }

    /// Starts `tasuki up` and waits until it is ready.
    pub(crate) async fn up(&self) -> Up {
        self.ready(self.start(self.command(&["up"]))).await
    }

    /// Waits until a `tasuki up` is ready. The file of one that was killed does not count.
    pub(crate) async fn ready(&self, mut process: Process) -> Up {
        let pid = process.pid();
        let env = eventually_within(START_LIMIT, "up is ready", async || {
            assert!(process.exited().is_none(), "up ended: {process:?}");
            Env::read(&self.env_path()).filter(|env| env.pid("PID") == pid)
        });
        let env = env.await;
        Up { process, env }
    }

    /// `GET url`, with a bearer token and more headers; `None` when nobody answers.
    pub(crate) async fn ask(
        &self,
        url: &str,
        token: &str,
        headers: &[(&str, &str)],
    ) -> Option<Reply> {
        let mut request = self.http.get(url);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.ok()?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = response.json().await.unwrap_or(Value::Null);
        Some(Reply {
            status,
            headers,
            body,
        })
    }

    /// `GET url` with a bearer token, of somebody who must answer. As every client should,
    /// it comes again after a 503: on a loaded machine a connection may be late.
    pub(crate) async fn get(&self, url: &str, token: &str) -> Reply {
        self.get_with(url, token, &[]).await
    }

    /// As [`get`](Self::get), with more headers.
    pub(crate) async fn get_with(&self, url: &str, token: &str, headers: &[(&str, &str)]) -> Reply {
        let what = format!("{url} answers other than 503");
        eventually(&what, async || {
            let reply = self.ask(url, token, headers).await.unwrap();
            (reply.status != 503).then_some(reply)
        })
        .await
    }

    /// Waits until `GET url` has this status.
    pub(crate) async fn answers(&self, url: &str, token: &str, status: u16) {
        let what = format!("{url} answers {status}");
        eventually(&what, async || {
            let reply = self.ask(url, token, &[]).await?;
            (reply.status == status).then_some(())
        })
        .await;
    }

    /// The processes that hold the folder.
    pub(crate) fn holders(&self) -> Vec<(u32, String)> {
        holders(self.folder.path())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.path("run/tasuki.log")).unwrap_or_default();
            eprintln!("--- run/tasuki.log:\n{log}");
        }
        let deadline = Instant::now() + FAREWELL;
        while !self.holders().is_empty() && Instant::now() < deadline {
            // sleep: a poll with a deadline, where nothing can be awaited.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Up {
    /// The address of the system service, with `path`.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.env.get("SYSTEM_URL"))
    }

    /// The address of its internal listener, with `path`.
    pub(crate) fn internal(&self, path: &str) -> String {
        format!("{}{path}", self.env.get("AUTH__ISSUERS__SYSTEM"))
    }

    /// The broker, as the platform sees it.
    pub(crate) async fn jetstream(&self) -> jetstream::Context {
        let address: ServerAddr = self.env.get("NATS_URL").parse().unwrap();
        let (user, password) = (address.username(), address.password());
        let login = ConnectOptions::with_user_and_password(
            user.unwrap_or_default().to_owned(),
            password.unwrap_or_default().to_owned(),
        );
        jetstream::new(login.connect(address.clone()).await.unwrap())
    }

    /// The database of the platform.
    pub(crate) async fn database(&self) -> PgPool {
        PgPool::connect(self.env.get("DATABASE_URL")).await.unwrap()
    }

    /// The development operator's token.
    pub(crate) fn token(&self) -> &str {
        self.env.get("OPERATOR_TOKEN")
    }
}

impl Answer {
    /// Asserts success and gives the standard output.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// As [`ok`](Self::ok), read as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out).unwrap()
    }
}

/// The executable beside this test: target/<profile>/deps/it-… has its sibling one up.
fn executable() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let profile = own.ancestors().nth(2).unwrap();
    let path = profile.join("tasuki");
    let shown = path.display();
    assert!(
        path.is_file(),
        "{shown} is missing: run `cargo build --workspace --bins`"
    );
    path
}

/// Where the set-up script puts servers.
fn tools() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.unwrap().join(".tasuki/tools")
}
