//! Entitlement and notification as processes on servers of their own, all of which may be broken
//! while callers ask for grants and revocations. Afterwards every promise is checked.

mod broker;
mod combined;
mod community;
mod crash;
mod database;
mod deriving;
mod follow;
mod labelling;
mod load;
mod processes;
mod promises;
mod shop;
mod webhooks;

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tasuki::Clock;
use tasuki_service::auth::credentials::{Credentials, NewCredential, ScopeName};
use tasuki_stack::{Options, Proxy, Stack};
use tasuki_testkit::breakable;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use load::Callers;

/// How long a claim holds here: a pause that is longer loses it.
const LEASE: Duration = Duration::from_secs(2);
/// Users who are told in their inbox, and not in the log.
const FOLLOWED: [&str; 2] = ["user-10", "user-11"];
/// Users who can't be told anything: their ids begin with this.
const UNREACHABLE: &str = "unreachable-";
/// How often it is tried.
const MAX_ATTEMPTS: i64 = 3;
/// How long a process may take to start.
const START: Duration = Duration::from_secs(40);

/// The servers, and what processes are told of them.
pub(crate) struct Platform {
    pub(crate) stack: Stack,
    /// Between the processes and the database.
    pub(crate) proxy: Proxy,
    /// Between the processes and the broker.
    pub(crate) broker: Proxy,
    pub(crate) pool: PgPool,
    pub(crate) key: String,
    settings: Vec<(String, String)>,
}

/// A process of a service.
pub(crate) struct Node {
    service: &'static str,
    child: Child,
    api: Option<SocketAddr>,
    log: PathBuf,
}

impl Platform {
    /// Servers of its own, migrated, and a key that may do everything.
    pub(crate) async fn start(name: &str) -> Self {
        Self::with(name, &[]).await
    }

    /// With more settings.
    pub(crate) async fn with(name: &str, more: &[(&str, &str)]) -> Self {
        let options: Options = breakable(name).durable();
        let stack = Stack::start(options).await.unwrap();
        stack.postgres.ensure_database("platform").await.unwrap();
        let url = stack.postgres.url("platform");
        let target = SocketAddr::from(([127, 0, 0, 1], stack.postgres.port()));
        let proxy = Proxy::start(target).await.unwrap();
        let through = stack.postgres.url_via(&proxy, "platform");
        let broker = stack.nats.proxy().await.unwrap();
        let (nats, redis) = (stack.nats.url_via(&broker), stack.redis.url());
        let max_attempts = MAX_ATTEMPTS.to_string();
        let settings: [(&str, &str); 18] = [
            ("TASUKI_PLATFORM__MODE", "development"),
            ("TASUKI_DATABASE__URL", &through),
            ("TASUKI_DATABASE__ACQUIRE_TIMEOUT", "1s"),
            ("TASUKI_NATS__URL", &nats),
            ("TASUKI_REDIS__URL", &redis),
            ("TASUKI_ENTITLEMENT__OUTBOX__LEASE", "2s"),
            ("TASUKI_NOTIFICATION__DELIVERY__LEASE", "2s"),
            ("TASUKI_NOTIFICATION__NATS__ACK_WAIT", "2s"),
            ("TASUKI_NOTIFICATION__SWEEP__INTERVAL", "1s"),
            ("TASUKI_NOTIFICATION__MATCHMAKING_NATS__ENABLED", "false"),
            ("TASUKI_NOTIFICATION__SHOP_NATS__ENABLED", "false"),
            ("TASUKI_NOTIFICATION__COMMUNITY_NATS__ENABLED", "false"),
            ("TASUKI_NOTIFICATION__DELIVERY__MAX_ATTEMPTS", &max_attempts),
            ("TASUKI_NOTIFICATION__DELIVERY__BACKOFF_BASE", "50ms"),
            ("TASUKI_NOTIFICATION__DELIVERY__BACKOFF_MIN", "20ms"),
            ("TASUKI_NOTIFICATION__DELIVERY__BACKOFF_MAX", "200ms"),
            (
                "TASUKI_NOTIFICATION__DELIVERY__FAILURE_INJECTION__ENABLED",
                "true",
            ),
            (
                "TASUKI_NOTIFICATION__DELIVERY__FAILURE_INJECTION__USER_ID_PREFIX",
                UNREACHABLE,
            ),
        ];
        let settings = settings.iter().chain(more);
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings: Vec<_> = settings.collect();
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .connect_lazy(&url)
            .unwrap();
        let mut platform = Self {
            stack,
            proxy,
            broker,
            pool,
            key: String::new(),
            settings,
        };
        // Whoever comes first migrates.
        for service in ["entitlement", "notification"] {
            platform.node(service).await.stop().await;
        }
        let scopes = &tasuki_entitlement::SCOPES;
        platform.key = platform.credential("entitlement", scopes).await;
        platform.gives_inboxes().await;
        platform
    }

    async fn gives_inboxes(&self) {
        let sql = "INSERT INTO notification.preferences (user_id, type, channels)
            SELECT user_id, '*', '{in-app}' FROM UNNEST($1::text[]) AS user_id";
        let given = sqlx::query(sql).bind(FOLLOWED.to_vec());
        given.execute(&self.pool).await.unwrap();
    }

    /// A key to a service that may do all this there.
    async fn credential(&self, service: &str, scopes: &[&str]) -> String {
        let scopes: Vec<ScopeName> = scopes.iter().map(|it| it.parse().unwrap()).collect();
        let wanted = NewCredential::api_key("faults", scopes).unwrap();
        let schema = tasuki::Schema::new(service).unwrap();
        let mut connection = self.pool.acquire().await.unwrap();
        let made = Credentials::new(&schema)
            .create(&mut connection, &Clock::system(), &wanted)
            .await
            .unwrap();
        made.expose().to_owned()
    }

    /// Starts a process and waits until it serves.
    pub(crate) async fn node(&self, service: &'static str) -> Node {
        let node = self.start_node(service, &[]).await;
        assert!(node.api.is_some(), "{}", node.log());
        node
    }

    /// Starts a process that dies at a crash point, perhaps before it serves.
    pub(crate) async fn doomed(&self, service: &'static str, point: &str, nth: u32) -> Node {
        let nth = nth.to_string();
        self.start_node(service, &["--crash-at", point, "--nth", &nth])
            .await
    }

    async fn start_node(&self, service: &'static str, arguments: &[&str]) -> Node {
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("platform-{service}-{:08x}.log", fastrand::u32(..)));
        let mut child = Command::new(env!("CARGO_BIN_EXE_faults-service"))
            .arg(service)
            .args(arguments)
            // It says how long the tests take, and is no setting.
            .env_remove("TASUKI_FAULTS")
            .envs(self.settings.clone())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let mut lines = BufReader::new(out).lines();
        let line = tokio::time::timeout(START, lines.next_line()).await;
        let line = line.ok().and_then(Result::ok).flatten();
        Node {
            service,
            child,
            api: line.and_then(|line| line.parse().ok()),
            log,
        }
    }

    /// Two processes of each service.
    pub(crate) async fn pairs(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        for service in ["entitlement", "entitlement", "notification", "notification"] {
            nodes.push(self.node(service).await);
        }
        nodes
    }

    /// Callers who ask whoever serves at that moment.
    pub(crate) fn callers(&self, nodes: &[Node]) -> Callers {
        let callers = Callers::new(&self.key);
        callers.knows(nodes);
        callers
    }
}

impl Node {
    fn pid(&self) -> Pid {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
    }

    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    pub(crate) fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for it to die of SIGKILL, at its crash point or from outside.
    pub(crate) async fn is_killed(&mut self) {
        use std::os::unix::process::ExitStatusExt;
        let status = tokio::time::timeout(START, self.child.wait()).await;
        assert!(status.is_ok(), "it lives:\n{}", self.log());
        assert_eq!(status.unwrap().unwrap().signal(), Some(9), "{}", self.log());
    }

    pub(crate) async fn kill(&mut self) {
        self.child.start_kill().unwrap();
        self.is_killed().await;
    }

    /// Kills it and starts another in its place.
    pub(crate) async fn replace(&mut self, platform: &Platform) {
        self.kill().await;
        *self = platform.node(self.service).await;
    }

    /// Stops it as an orchestrator does.
    pub(crate) async fn stop(mut self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let status = tokio::time::timeout(START, self.child.wait()).await;
        assert!(status.unwrap().unwrap().success(), "{}", self.log());
        std::fs::remove_file(&self.log).unwrap();
    }
}
