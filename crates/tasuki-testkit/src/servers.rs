//! The servers that tests share.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use tasuki_stack::{Options, Stack};
use tokio::sync::OnceCell;

/// The addresses of the servers that this test process uses.
#[derive(Clone, Debug)]
pub struct Servers {
    /// PostgreSQL, as superuser, database `postgres`.
    pub database: String,
    /// NATS JetStream.
    pub nats: String,
    /// Redis.
    pub redis: String,
}

impl Servers {
    /// The shared stack, or one of this process's own when nobody started one.
    ///
    /// # Panics
    /// When there is none and none can be started.
    pub async fn get() -> &'static Self {
        static SERVERS: OnceCell<Servers> = OnceCell::const_new();
        SERVERS
            .get_or_init(|| async {
                match Self::shared() {
                    Some(shared) => shared,
                    None => Self::own().await,
                }
            })
            .await
    }

    fn shared() -> Option<Self> {
        let variable = |name| std::env::var_os(name).map(OsString::into_string)?.ok();
        Some(Self {
            database: variable("TASUKI_TEST_DATABASE_URL")?,
            nats: variable("TASUKI_TEST_NATS_URL")?,
            redis: variable("TASUKI_TEST_REDIS_URL")?,
        })
    }

    #[expect(clippy::panic, reason = "without servers no test can pass")]
    async fn own() -> Self {
        let stack = match Stack::start(breakable("stack")).await {
            Ok(stack) => stack,
            Err(error) => panic!("no test stack: {error}"),
        };
        let servers = Self {
            database: stack.postgres.url("postgres"),
            nats: stack.nats.url(),
            redis: stack.redis.url(),
        };
        // It lives as long as this process: the servers die with us.
        std::mem::forget(stack);
        servers
    }
}

/// Options for servers of a test's own, which it may break: the shared ones are not for that.
/// They go with the test.
#[must_use]
pub fn breakable(name: &str) -> Options {
    let home = project().join("alone");
    remove_dead(&home);
    Options::new(home.join(format!("{}-{name}", std::process::id())))
        .throwaway()
        .tools(project().join("tools"))
}

/// The folder of what the project makes on this machine, wherever the test was started.
fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../.tasuki")
}

/// Removes what processes before us left: they could not, because their servers died with
/// them.
fn remove_dead(home: &Path) {
    let Ok(entries) = std::fs::read_dir(home) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.split('-').next());
        if !pid.is_some_and(|pid| Path::new("/proc").join(pid).exists()) {
            // Another process may be doing the same.
            std::fs::remove_dir_all(entry.path()).unwrap_or_default();
        }
    }
}
