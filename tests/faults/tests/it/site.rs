//! A place to break things at: a database, a broker, and processes of the service under test.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;
use tasuki::jobs::{Job, Jobs};
use tasuki::outbox::{Event, Outbox};
use tasuki::{Clock, Schema, migrate, uuid_v7};
use tasuki_testkit::{Servers, TestDb, eventually_within};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// How long everything may take to come to rest after the last fault.
const REST: Duration = Duration::from_secs(40);

/// `short` in `make test`, `long` in `make faults`.
pub(crate) fn stretched<T>(short: T, long: T) -> T {
    if std::env::var_os("TASUKI_FAULTS").is_some() {
        long
    } else {
        short
    }
}

pub(crate) struct Site {
    pub(crate) db: TestDb,
    pub(crate) stream: String,
    nats: String,
    outbox: Outbox,
    jobs: Jobs,
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

impl Site {
    /// On the shared servers.
    pub(crate) async fn open() -> Self {
        Self::on(&Servers::get().await.nats).await
    }

    /// With this broker.
    pub(crate) async fn on(nats: &str) -> Self {
        let schema = Schema::new("app").unwrap();
        let db = TestDb::new(&[migrate::library(&schema)]).await;
        sqlx::raw_sql(
            "CREATE TABLE app.effects (kind text NOT NULL, id uuid NOT NULL);
             CREATE TABLE app.paid (job_id uuid PRIMARY KEY);",
        )
        .execute(&db.pool)
        .await
        .unwrap();
        Self {
            stream: db.name().replace('.', "-"),
            nats: nats.to_owned(),
            outbox: Outbox::new(&schema),
            jobs: Jobs::new(&schema),
            db,
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
        let mut tx = self.db.pool.begin().await.unwrap();
        self.outbox.enqueue_all(&mut tx, &made).await.unwrap();
        for _ in 0..jobs {
            self.jobs.enqueue(&mut tx, &Payment).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    /// Starts a process and waits until it works, or has died of its crash point already.
    pub(crate) async fn node(&self, arguments: &[&str]) -> Node {
        let log = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "{}-{:06x}.log",
            self.stream,
            fastrand::u32(..0x100_0000)
        ));
        let mut child = self
            .command(arguments)
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let out = child.stdout.take().unwrap();
        let mut lines = BufReader::new(out).lines();
        let ready = tokio::time::timeout(REST, lines.next_line()).await.unwrap();
        let node = Node { child, log };
        let died = ready.unwrap().is_none();
        assert!(!died || arguments.contains(&"--crash-at"), "{}", node.log());
        node
    }

    pub(crate) async fn enqueue_poison(&self) {
        self.jobs.push(&self.db.pool, &Poison).await.unwrap();
    }

    /// The answer of a process of its own to a request with this idempotency key.
    pub(crate) async fn ask(&self, key: &str) -> String {
        self.answer(&["--ask", key]).await
    }

    /// What a process of its own prints before it ends.
    pub(crate) async fn answer(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faults-node"));
        command
            .args(["--database", &self.db.url()])
            .args(["--nats", &self.nats, "--stream", &self.stream])
            .args(arguments)
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query_scalar(sql)
            .fetch_one(&self.db.pool)
            .await
            .unwrap()
    }

    pub(crate) async fn effects(&self, kind: &str) -> i64 {
        self.count(&format!(
            "SELECT count(*) FROM app.effects WHERE kind = '{kind}'"
        ))
        .await
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

/// A process of the service under test.
pub(crate) struct Node {
    child: Child,
    log: PathBuf,
}

impl Node {
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

    pub(crate) fn pause(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
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
