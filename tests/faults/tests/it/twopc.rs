//! A coordinator of two-phase commits is killed at every await between two durable effects, and
//! another process ends what it had begun, the same in every database.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions};
use tasuki::Schema;
use tasuki::migrate::library;
use tasuki_stack::Proxy;
use tasuki_testkit::{TestDb, eventually, eventually_within};
use tokio::process::Command;
use uuid::Uuid;

use crate::site::{Node, stretched};

/// Seconds, not minutes: the timeout of the processes is two.
const SOON: Duration = Duration::from_secs(30);

/// A log and two participants with a thousand units each.
struct Trade {
    log: TestDb,
    east: TestDb,
    west: TestDb,
}

impl Trade {
    async fn open() -> Self {
        let (log, east, west) = tokio::join!(database(), database(), database());
        Self { log, east, west }
    }

    /// A process that moves units, or recovers.
    async fn node(&self, arguments: &[&str]) -> Node {
        self.node_to(&self.west.url(), arguments).await
    }

    /// The same, whose connections to west go through `proxy`.
    async fn node_through(&self, proxy: &Proxy, arguments: &[&str]) -> Node {
        let west = self.west_itself().port(proxy.addr().port());
        let west = west.host("127.0.0.1").to_url_lossy().to_string();
        self.node_to(&west, arguments).await
    }

    async fn node_to(&self, west: &str, arguments: &[&str]) -> Node {
        let mut command = Command::new(env!("CARGO_BIN_EXE_faults-transfer"));
        command
            .args(["--log", &self.log.url()])
            .args(["--east", &self.east.url(), "--west", west])
            .args(arguments)
            .kill_on_drop(true);
        Node::start(command, self.log.name()).await
    }

    /// A proxy to west.
    async fn proxy(&self) -> Proxy {
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, self.west_itself().get_port()));
        Proxy::start(server).await.unwrap()
    }

    fn west_itself(&self) -> PgConnectOptions {
        self.west.url().parse().unwrap()
    }

    /// A process that moves a unit and dies of it.
    async fn killed_at(&self, point: &str, nth: &str, here: &[&str]) {
        let arguments = ["--transfers", "1", "--crash-at", point, "--nth", nth];
        let mut dies = self.node(&[&arguments[..], here].concat()).await;
        dies.is_killed().await;
    }

    /// Units that have left east, arrived in west, and were counted here.
    async fn moved(&self) -> (i64, i64, i64) {
        let of = |db| number(db, "SELECT units FROM stock");
        let (log, east, west) = tokio::join!(of(&self.log), of(&self.east), of(&self.west));
        (1000 - east, west - 1000, log - 1000)
    }

    async fn open_transactions(&self) -> i64 {
        number(&self.log, "SELECT count(*) FROM app.twopc_transactions").await
    }

    async fn prepared(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM pg_prepared_xacts WHERE database = ANY ($1)")
            .bind([self.east.name(), self.west.name()])
            .fetch_one(&self.log.pool)
            .await
            .unwrap()
    }

    /// Everything comes to an end, without a person and without the process that died.
    async fn comes_to_rest(&self) {
        eventually_within(SOON, "nothing is open and nothing prepared", async || {
            let left = self.open_transactions().await + self.prepared().await;
            (left == 0).then_some(())
        })
        .await;
    }
}

async fn database() -> TestDb {
    let db = TestDb::new(&[library(&Schema::new("app").unwrap())]).await;
    sqlx::raw_sql("CREATE TABLE stock (units bigint NOT NULL); INSERT INTO stock VALUES (1000)")
        .execute(&db.pool)
        .await
        .unwrap();
    db
}

async fn number(db: &TestDb, sql: &str) -> i64 {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::query_scalar(sql).fetch_one(&db.pool).await.unwrap()
}

/// Kills a coordinator at `point`, with and without work in the log's own database; another process
/// ends it: moved everywhere, or nowhere.
async fn killed(point: &str, nth: &str, moved: i64) {
    let one = async |here: &[&str]| {
        let trade = Trade::open().await;
        trade.killed_at(point, nth, here).await;
        let lives = trade.node(&[]).await;
        trade.comes_to_rest().await;
        let counted = if here.is_empty() { 0 } else { moved };
        assert_eq!(trade.moved().await, (moved, moved, counted), "{point}");
        lives.stop().await;
    };
    tokio::join!(one(&[]), one(&["--here"]));
}

macro_rules! killed_at {
    ($($name:ident $point:literal $nth:literal $moved:literal;)*) => {$(
        #[tokio::test]
        async fn $name() {
            killed($point, $nth, $moved).await;
        }
    )*};
}

killed_at! {
    killed_before_anybody_prepares_the_transaction_is_aborted_in_all "twopc.begun" "1" 0;
    killed_while_participants_are_asked_to_prepare_the_transaction_is_aborted_in_all "twopc.preparing" "2" 0;
    killed_between_two_that_prepare_the_transaction_is_aborted_in_all "twopc.prepared_one" "1" 0;
    killed_when_the_last_has_prepared_the_transaction_is_aborted_in_all "twopc.prepared_one" "2" 0;
    killed_when_all_have_prepared_and_nothing_is_decided_the_transaction_is_aborted_in_all "twopc.prepared" "1" 0;
    killed_after_the_decision_the_transaction_is_committed_in_all "twopc.decided" "1" 1;
    killed_when_the_first_has_confirmed_the_transaction_is_committed_in_all "twopc.told_one" "1" 1;
    killed_after_the_last_commit_the_transaction_is_committed_in_all "twopc.told_one" "2" 1;
    killed_before_the_end_is_written_down_the_transaction_is_committed_in_all "twopc.told" "1" 1;
}

/// Both are told side by side: that one has heard and the other has not is made certain here.
#[tokio::test]
async fn killed_between_two_commits_the_transaction_is_committed_in_all() {
    let one = async |here: &[&str]| {
        let trade = Trade::open().await;
        let proxy = trade.proxy().await;
        // It begins another and gets nowhere, however late it is killed.
        let arguments = ["--transfers", "2", "--pause-at", "twopc.decided"];
        let mut dies = trade
            .node_through(&proxy, &[&arguments[..], here].concat())
            .await;
        dies.sleeps().await;
        assert_eq!(trade.prepared().await, 2);
        proxy.blackhole().await.unwrap();
        dies.resume();
        eventually("east is committed", async || {
            (trade.moved().await.0 == 1).then_some(())
        })
        .await;
        dies.kill().await;
        assert_eq!(trade.prepared().await, 1);
        assert_eq!(trade.moved().await.1, 0, "west has not heard");
        let lives = trade.node(&[]).await;
        trade.comes_to_rest().await;
        let counted = i64::from(!here.is_empty());
        assert_eq!(trade.moved().await, (1, 1, counted));
        lives.stop().await;
    };
    tokio::join!(one(&[]), one(&["--here"]));
}

#[tokio::test]
async fn killed_in_the_transaction_that_decides_nothing_is_decided() {
    let trade = Trade::open().await;
    trade.killed_at("twopc.deciding", "1", &["--here"]).await;
    let lives = trade.node(&[]).await;
    trade.comes_to_rest().await;
    assert_eq!(trade.moved().await, (0, 0, 0));
    lives.stop().await;
}

/// Leaves a transaction at `left_at`, and kills the first who recovers it at `point`.
async fn killed_twice(left_at: &str, point: &str, moved: i64) {
    let trade = Trade::open().await;
    trade.killed_at(left_at, "1", &[]).await;
    let mut dies = trade.node(&["--crash-at", point]).await;
    dies.is_killed().await;
    let lives = trade.node(&[]).await;
    trade.comes_to_rest().await;
    assert_eq!(trade.moved().await, (moved, moved, 0), "{left_at} {point}");
    lives.stop().await;
}

#[tokio::test]
async fn a_recovery_that_is_killed_is_recovered_from() {
    for (left_at, moved) in [("twopc.prepared", 0), ("twopc.decided", 1)] {
        tokio::join!(
            killed_twice(left_at, "twopc.claimed", moved),
            killed_twice(left_at, "twopc.told_one", moved),
            killed_twice(left_at, "twopc.recovered", moved),
        );
    }
}

#[tokio::test]
async fn a_coordinator_that_slept_through_its_recovery_commits_nothing() {
    let trade = Trade::open().await;
    let arguments = ["--transfers", "1", "--here", "--pause-at", "twopc.prepared"];
    let sleeps = trade.node(&arguments).await;
    eventually("both are prepared", async || {
        (trade.prepared().await == 2).then_some(())
    })
    .await;
    let lives = trade.node(&[]).await;
    trade.comes_to_rest().await;
    sleeps.resume();
    eventually("it has been told", async || {
        sleeps.log().contains("Overruled").then_some(())
    })
    .await;
    trade.comes_to_rest().await;
    assert_eq!(trade.moved().await, (0, 0, 0));
    lives.stop().await;
}

#[tokio::test]
async fn killed_while_it_sweeps_the_next_one_sweeps() {
    let trade = Trade::open().await;
    let log: Uuid = sqlx::query_scalar("SELECT log_id FROM app.twopc_log")
        .fetch_one(&trade.log.pool)
        .await
        .unwrap();
    let (_, log) = log.as_u64_pair();
    let unknown = Uuid::now_v7().simple();
    let orphan = AssertSqlSafe(format!(
        "BEGIN; UPDATE stock SET units = 0; PREPARE TRANSACTION 'tasuki:app:{log:016x}:{unknown}:west'"
    ));
    sqlx::raw_sql(orphan)
        .execute(&trade.west.pool)
        .await
        .unwrap();
    let mut dies = trade.node(&["--crash-at", "twopc.orphan"]).await;
    dies.is_killed().await;
    assert_eq!(trade.prepared().await, 1);
    let lives = trade.node(&[]).await;
    trade.comes_to_rest().await;
    assert_eq!(trade.moved().await, (0, 0, 0));
    lives.stop().await;
}

#[tokio::test]
async fn killed_over_and_over_no_unit_is_lost_or_doubled() {
    let trade = Trade::open().await;
    let lives = trade.node(&[]).await;
    for round in 0..stretched(4, 30) {
        let before = trade.moved().await.1;
        let mut dies = trade.node(&["--transfers", "100000", "--here"]).await;
        eventually("it moves units", async || {
            (trade.moved().await.1 > before + 3 + round % 5).then_some(())
        })
        .await;
        dies.kill().await;
    }
    trade.comes_to_rest().await;
    let (left, arrived, counted) = trade.moved().await;
    assert!(arrived > 0);
    assert_eq!((left, counted), (arrived, arrived));
    lives.stop().await;
}
