//! A place to break things at: a database, a broker, and processes of the service under test.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgPool};
use tasuki::bus::{NatsBus, Streams};
use tasuki::jobs::{Job, Jobs, Schedule};
use tasuki::outbox::{Event, Outbox};
use tasuki::{Clock, Schema, migrate, uuid_v7};
use tasuki_stack::{Postgres, Proxy};
use tasuki_testkit::{Servers, TestDb, eventually_within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

/// How long everything may take to come to rest after the last fault.
pub(crate) const REST: Duration = Duration::from_secs(40);

/// `short` in `make test`, `long` in `make faults`.
pub(crate) fn stretched<T>(short: T, long: T) -> T {
    if std::env::var_os("TASUKI_FAULTS").is_some() {
        long
    } else {
        short
    }
}

pub(crate) struct Site {
    pub(crate) pool: PgPool,
    pub(crate) stream: String,
    database: String,
    nats: String,
    outbox: Outbox,
    jobs: Jobs,
    /// Goes with the site.
    _db: Option<TestDb>,
}

/// The job of `faults-node`, as another process sees it.
#[derive(Serialize, Deserialize)]
struct Payment;

impl Job for Payment {
    const KIND: &'static str = "payment";
}

/// The job that can't be done.
#[derive(Serialize, Deserialize)]
struct Poison;

impl Job for Poison {
    const KIND: &'static str = "poison";
}

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

impl Site {
    /// On the shared servers.
    pub(crate) async fn open() -> Self {
        Self::on(&Servers::get().await.nats).await
    }

    /// With this broker: an address, or several with commas in between.
    pub(crate) async fn on(nats: &str) -> Self {
        let db = TestDb::new(&[migrate::library(&schema())]).await;
        let site = Self::of(db.pool.clone(), db.url(), nats).await;
        Self {
            _db: Some(db),
            ..site
        }
    }

    /// With this database server.
    pub(crate) async fn at(postgres: &Postgres) -> Self {
        postgres.ensure_database("site").await.unwrap();
        let url = postgres.url("site");
        let pool = PgPool::connect(&url).await.unwrap();
        migrate(&pool, "app").await.unwrap();
        Self::of(pool, url, &Servers::get().await.nats).await
    }

    async fn of(pool: PgPool, database: String, nats: &str) -> Self {
        sqlx::raw_sql(
            "CREATE TABLE app.effects (kind text NOT NULL, id uuid NOT NULL);
             CREATE TABLE app.paid (job_id uuid PRIMARY KEY);",
        )
        .execute(&pool)
        .await
        .unwrap();
        Self {
            stream: format!("site-{:016x}", fastrand::u64(..)),
            nats: nats.to_owned(),
            outbox: Outbox::new(&schema()),
            jobs: Jobs::new(&schema()),
            pool,
            database,
            _db: None,
        }
    }

    /// Commits `events` events, every second with an ordering key, and `jobs` jobs.
    pub(crate) async fn enqueue(&self, events: usize, jobs: usize) {
        let clock = Clock::system();
        let made = (0..events).map(|n| {
            let event = Event::new(
                uuid_v7(&clock),
                "Paid",
                format!("order:{n}"),
                vec![b'x'; 200],
            );
            if n % 2 == 0 {
                event.ordered_by(format!("key-{}", n % 7))
            } else {
                event
            }
        });
        let made: Vec<Event> = made.collect();
        let mut tx = self.pool.begin().await.unwrap();
        self.outbox.enqueue_all(&mut tx, &made).await.unwrap();
        for _ in 0..jobs {
            self.jobs.enqueue(&mut tx, &Payment).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    /// Enqueues a job that is due after this long.
    pub(crate) async fn enqueue_later(&self, wait: Duration) {
        let mut connection = self.pool.acquire().await.unwrap();
        let later = Schedule::In(wait);
        self.jobs
            .enqueue_with(&mut connection, &Payment, later)
            .await
            .unwrap();
    }

    /// Starts a process and waits until it works, or has died of its crash point already.
    pub(crate) async fn node(&self, arguments: &[&str]) -> Node {
        self.start(self.command(arguments)).await
    }

    /// As [`node`](Self::node), whose connections to the database go through `proxy`.
    pub(crate) async fn node_through(&self, proxy: &Proxy, arguments: &[&str]) -> Node {
        let database: PgConnectOptions = self.database.parse().unwrap();
        let through = database.host("127.0.0.1").port(proxy.addr().port());
        let through = through.to_url_lossy().to_string();
        self.start(self.command_to(&through, arguments)).await
    }

    /// A proxy to the database.
    pub(crate) async fn proxy(&self) -> Proxy {
        let database: PgConnectOptions = self.database.parse().unwrap();
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, database.get_port()));
        Proxy::start(server).await.unwrap()
    }

    /// As [`node`](Self::node), where the clock is this far off.
    pub(crate) async fn node_at(&self, offset: &str, arguments: &[&str]) -> Node {
        let mut command = self.command(arguments);
        set_clock(&mut command, offset);
        self.start(command).await
    }

    async fn start(&self, command: Command) -> Node {
        Node::start(command, &self.stream).await
    }

    pub(crate) async fn enqueue_poison(&self) {
        self.jobs.push(&self.pool, &Poison).await.unwrap();
    }

    /// The answer of a process of its own to a request with this idempotency key.
    pub(crate) async fn ask(&self, key: &str) -> String {
        self.answer(&["--ask", key]).await
    }

    /// What a process of its own prints before it ends.
    pub(crate) async fn answer(&self, arguments: &[&str]) -> String {
        told_by(self.command(arguments)).await
    }

    /// As [`answer`](Self::answer), where the clock is this far off.
    pub(crate) async fn answer_at(&self, offset: &str, arguments: &[&str]) -> String {
        let mut command = self.command(arguments);
        set_clock(&mut command, offset);
        told_by(command).await
    }

    fn command(&self, arguments: &[&str]) -> Command {
        self.command_to(&self.database, arguments)
    }

    fn command_to(&self, database: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faults-node"));
        command
            .args(["--database", database])
            .args(["--nats", &self.nats, "--stream", &self.stream])
            .args(arguments)
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query_scalar(sql).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn effects(&self, kind: &str) -> i64 {
        self.count(&format!(
            "SELECT count(*) FROM app.effects WHERE kind = '{kind}'"
        ))
        .await
    }

    /// The ids in the stream, in its order.
    pub(crate) async fn messages(&self) -> Vec<Uuid> {
        let client = async_nats::connect(self.nats.split(',').collect::<Vec<_>>());
        let bus = NatsBus::new(client.await.unwrap());
        let messages = bus.ids_between(&self.stream, 1, u64::MAX).await.unwrap();
        messages.into_iter().map(|(_, id)| id).collect()
    }

    /// The events of every key have come to the stream in the order in which they were enqueued;
    /// what came again afterwards does not count.
    pub(crate) async fn is_in_order(&self) {
        let keyed = "SELECT event_id, ordering_key, seq FROM app.outbox_published
             WHERE ordering_key IS NOT NULL";
        let keyed: Vec<(Uuid, String, i64)> =
            sqlx::query_as(keyed).fetch_all(&self.pool).await.unwrap();
        let keyed: HashMap<Uuid, (&str, i64)> = keyed
            .iter()
            .map(|(id, key, seq)| (*id, (key.as_str(), *seq)))
            .collect();
        assert!(!keyed.is_empty());
        let messages = eventually_within(REST, "all are in the stream", async || {
            // A replica that has just started is asked, too, and catches up.
            let messages = self.messages().await;
            let all: HashSet<&Uuid> = messages.iter().collect();
            let complete = keyed.keys().all(|id| all.contains(id));
            complete.then_some(messages)
        })
        .await;
        let (mut seen, mut last) = (HashSet::new(), HashMap::new());
        for id in messages {
            if let Some((key, seq)) = keyed.get(&id)
                && seen.insert(id)
            {
                let before = last.insert(*key, *seq);
                assert!(before < Some(*seq), "{key}: {before:?}, then {seq}");
            }
        }
        assert_eq!(seen.len(), keyed.len());
    }

    /// Nobody was blamed for what others had broken.
    pub(crate) async fn no_attempt_failed(&self) {
        for attempts in [
            "SELECT coalesce(sum(attempt_count), 0) FROM app.outbox_published",
            "SELECT coalesce(sum(attempt_count), 0) FROM app.jobs_done",
        ] {
            assert_eq!(self.count(attempts).await, 0, "{attempts}");
        }
    }

    /// Everything comes to rest: nothing waits, and each event and each job had one effect.
    pub(crate) async fn comes_to_rest(&self, events: i64, jobs: i64) {
        self.rests_within(REST, events, jobs).await;
    }

    pub(crate) async fn rests_within(&self, limit: Duration, events: i64, jobs: i64) {
        let effects = "SELECT count(DISTINCT id) FROM app.effects";
        eventually_within(
            limit,
            "every event and every job has its effect",
            async || (self.count(effects).await >= events + jobs).then_some(()),
        )
        .await;
        let live =
            "SELECT (SELECT count(*) FROM app.outbox_events) + (SELECT count(*) FROM app.jobs)";
        eventually_within(limit, "nothing waits", async || {
            (self.count(live).await == 0).then_some(())
        })
        .await;
        assert_eq!(self.effects("event").await, events, "effects of events");
        assert_eq!(self.effects("job").await, jobs, "effects of jobs");
        assert_eq!(self.count("SELECT count(*) FROM app.dead_letters").await, 0);
    }
}

async fn told_by(mut command: Command) -> String {
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Lets the process believe that it is so much later, or earlier: `+1h`.
fn set_clock(command: &mut Command, offset: &str) {
    let folders = ["/usr/lib", "/usr/lib64"].map(PathBuf::from);
    let below = folders.iter().filter_map(|folder| folder.read_dir().ok());
    let below = below.flatten().flatten().map(|entry| entry.path());
    let mut places = below
        .chain(folders.clone())
        .map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    let library = places.find(|place| place.exists());
    command
        .env("LD_PRELOAD", library.expect("libfaketime is installed"))
        .env("FAKETIME", offset)
        // Only what is asked for the time of day: a span is a span on any clock.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
}

/// A process of the service under test.
pub(crate) struct Node {
    child: Child,
    log: PathBuf,
}

impl Node {
    /// Starts a process and waits until it says its first word, or has died of its crash point
    /// already. Its log is called after `name`.
    pub(crate) async fn start(mut command: Command, name: &str) -> Self {
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("{name}-{:06x}.log", fastrand::u32(..0x100_0000)));
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let mut lines = BufReader::new(out).lines();
        let ready = tokio::time::timeout(REST, lines.next_line()).await.unwrap();
        let node = Self { child, log };
        let died = ready.unwrap().is_none();
        let mut arguments = command.as_std().get_args();
        let may_die = arguments.any(|argument| argument == "--crash-at");
        assert!(!died || may_die, "{}", node.log());
        node
    }

    fn pid(&self) -> Pid {
        let pid = self.child.id().and_then(|pid| i32::try_from(pid).ok());
        pid.and_then(Pid::from_raw).unwrap()
    }

    /// What it has said.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// Waits for it to die of SIGKILL, at its crash point or from outside.
    pub(crate) async fn is_killed(&mut self) {
        use std::os::unix::process::ExitStatusExt;
        let status = tokio::time::timeout(REST, self.child.wait()).await;
        assert!(status.is_ok(), "it lives:\n{}", self.log());
        let status = status.unwrap().unwrap();
        assert_eq!(status.signal(), Some(9), "{}", self.log());
    }

    pub(crate) async fn kill(&mut self) {
        self.child.start_kill().unwrap();
        self.is_killed().await;
    }

    /// Waits until it has come to the point where it pauses.
    pub(crate) async fn sleeps(&self) {
        let stat = format!("/proc/{}/stat", self.pid().as_raw_nonzero());
        eventually_within(REST, "it sleeps", async || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            let (_, state) = stat.rsplit_once(") ").unwrap();
            state.starts_with('T').then_some(())
        })
        .await;
    }

    pub(crate) fn resume(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }

    /// Stops it as an orchestrator does.
    pub(crate) async fn stop(mut self) {
        kill_process(self.pid(), Signal::TERM).unwrap();
        let status = tokio::time::timeout(REST, self.child.wait()).await;
        let status = status.unwrap().unwrap();
        assert!(status.success(), "{}", self.log());
        std::fs::remove_file(&self.log).unwrap();
    }
}
