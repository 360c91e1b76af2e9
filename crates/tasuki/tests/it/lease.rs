//! The lease engine with a table of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use tasuki::lease::{
    Claim, Claimed, Fence, Leases, Letter, Look, Outcome, Owner, Route, Runner, Settings, Table,
    Unit, Watermark, Work,
};
use tasuki::migrate::library;
use tasuki::worker::{Stopped, Supervisor};
use tasuki::{Clock, Schema};
use tasuki_testkit::{TestDb, eventually};
use time::OffsetDateTime;
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use uuid::Uuid;

const PARCELS: Table = Table {
    name: "parcels",
    key: "parcel_id",
    claimed: "PROCESSING",
    columns: "t.recipient, t.next_retry_at",
    with: "",
    pick: "SELECT t.ctid FROM {table} AS t
        WHERE t.next_retry_at >= coalesce($5, now() - interval '1 minute') AND {claimable}
        ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED",
    letter: Letter {
        queue: "'post'",
        kind: "'parcel'",
        payload: "convert_to(recipient, 'UTF8')",
    },
    lost: None,
};

const CREATE: &str = "
CREATE TABLE app.parcels (
    parcel_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    recipient text NOT NULL,
    status text NOT NULL DEFAULT 'PENDING',
    attempt_count integer NOT NULL DEFAULT 0,
    next_retry_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    locked_by text, locked_at timestamptz, lease_until timestamptz, claim_token uuid,
    last_error text, traceparent text
)";

#[derive(sqlx::FromRow)]
struct Parcel {
    recipient: String,
    next_retry_at: OffsetDateTime,
}

/// A post office that looks for what was left behind only when it is told to.
struct Post {
    leases: Leases,
    watermark: Watermark,
    may_look: Arc<Notify>,
    /// One unit leaves for each permit.
    may_leave: Arc<Semaphore>,
    begun: Arc<Mutex<Vec<Vec<String>>>>,
    sent: Arc<Mutex<Vec<String>>>,
}

impl Work for Post {
    type Row = Parcel;
    type Done = ();

    fn name(&self) -> &'static str {
        "test.post"
    }

    fn leases(&self) -> &Leases {
        &self.leases
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<Parcel>>> {
        let start = self.watermark.start();
        let from = start.from.first().copied().flatten();
        let rows = self.leases.claim(connection, claim, |arguments| {
            use sqlx::Arguments;
            arguments.add(from)
        });
        let rows: Vec<Claimed<Parcel>> = rows.await?;
        let due = rows.iter().map(|claimed| (0, claimed.row.next_retry_at));
        self.watermark
            .reached(&start, rows.len() >= claim.limit, due);
        Ok(rows)
    }

    fn watermark(&self) -> Option<&Watermark> {
        Some(&self.watermark)
    }

    async fn look(
        &self,
        connection: &mut PgConnection,
        _: &Look,
    ) -> sqlx::Result<Vec<(usize, OffsetDateTime)>> {
        self.may_look.notified().await;
        let first = "SELECT min(next_retry_at) FROM app.parcels WHERE status = 'PENDING'";
        let first: Option<OffsetDateTime> = sqlx::query_scalar(first).fetch_one(connection).await?;
        Ok(first.map(|due| (0, due)).into_iter().collect())
    }

    async fn run(&self, unit: Vec<Claimed<Parcel>>) -> Vec<(Fence, Outcome<()>)> {
        let recipients = unit.iter().map(|parcel| parcel.row.recipient.clone());
        self.begun.lock().unwrap().push(recipients.collect());
        self.may_leave.acquire().await.unwrap().forget();
        let mut sent = self.sent.lock().unwrap();
        let unit = unit.into_iter().map(|parcel| {
            sent.push(parcel.row.recipient);
            (parcel.fence, Outcome::Done(()))
        });
        unit.collect()
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, ())],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = done.iter().map(|(fence, ())| *fence).collect();
        self.leases.delete(connection, &fences).await
    }

    fn panicked(&self, _: u32, message: &str) -> Outcome<()> {
        Outcome::Dead {
            error: message.to_owned(),
        }
    }
}

async fn database() -> (TestDb, Schema) {
    let schema = Schema::new("app").unwrap();
    let db = TestDb::new(&[library(&schema)]).await;
    sqlx::query(CREATE).execute(&db.pool).await.unwrap();
    (db, schema)
}

fn settings(db: &TestDb, unit: Unit) -> Settings {
    Settings {
        pool: db.pool.clone(),
        route: Route::Direct,
        owner: Owner::on("here"),
        unit,
        slots: 10,
        batch: 100,
        lease: Duration::from_secs(60),
        // Only wakes: a poll would hide what was forgotten.
        poll: Duration::from_secs(3600),
    }
}

#[tokio::test]
async fn what_comes_while_a_batch_is_on_its_way_shares_the_next() {
    let (db, schema) = database().await;
    let (may_leave, begun) = (Arc::new(Semaphore::new(0)), Arc::<Mutex<_>>::default());
    let post = Post {
        leases: Leases::new(&schema, &PARCELS),
        watermark: Watermark::new(1),
        may_look: Arc::default(),
        may_leave: Arc::clone(&may_leave),
        begun: Arc::clone(&begun),
        sent: Arc::default(),
    };
    let runner = Runner::new(post, settings(&db, Unit::Batch));
    let wake = runner.wake();
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(runner);
    let send = async |recipient: &str| {
        let insert = "INSERT INTO app.parcels (recipient) VALUES ($1)";
        let sent = sqlx::query(insert).bind(recipient).execute(&db.pool).await;
        sent.unwrap();
        wake.wake();
    };
    let has_begun = async |batches: usize| {
        eventually("they are on their way", async || {
            (begun.lock().unwrap().len() >= batches).then_some(())
        })
        .await;
    };

    // A batch that takes long holds up no other, and on a busy machine any batch may.
    for _ in 0..10 {
        let since = Instant::now();
        send("first").await;
        has_begun(1).await;
        send("second").await;
        send("third").await;
        let in_time = since.elapsed() < Duration::from_millis(500);
        may_leave.add_permits(3);
        eventually("all are sent", async || {
            let left = sqlx::query_scalar("SELECT count(*) FROM app.parcels");
            let left: i64 = left.fetch_one(&db.pool).await.unwrap();
            (left == 0).then_some(())
        })
        .await;
        may_leave.forget_permits(3);
        let begun = std::mem::take(&mut *begun.lock().unwrap());
        if in_time {
            assert_eq!(begun, [vec!["first"], vec!["second", "third"]]);
            let stopped = supervisor.stop(Duration::from_secs(5)).await;
            return assert_eq!(stopped, Stopped::Finished);
        }
    }
    panic!("this machine is too slow to tell");
}

#[tokio::test]
async fn a_slow_look_at_the_old_rows_does_not_hold_up_the_new_ones() {
    let (db, schema) = database().await;
    let (may_look, sent) = (Arc::new(Notify::new()), Arc::default());
    let post = Post {
        leases: Leases::new(&schema, &PARCELS),
        watermark: Watermark::new(1),
        may_look: Arc::clone(&may_look),
        may_leave: Arc::new(Semaphore::new(100)),
        begun: Arc::default(),
        sent: Arc::clone(&sent),
    };
    let runner = Runner::new(post, settings(&db, Unit::Row));
    let wake = runner.wake();
    let has_sent = async |recipients: &[&str]| {
        eventually("they are sent", async || {
            (*sent.lock().unwrap() == recipients).then_some(())
        })
        .await;
    };
    let send = async |recipient: &str, ago: &str| {
        let sql = format!(
            "INSERT INTO app.parcels (recipient, next_retry_at)
             VALUES ('{recipient}', clock_timestamp() - interval '{ago}')"
        );
        let sent = sqlx::query(AssertSqlSafe(sql)).execute(&db.pool).await;
        sent.unwrap();
    };
    send("old", "1 h").await;

    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(runner);
    send("first", "0").await;
    wake.wake();
    has_sent(&["first"]).await;
    send("second", "0").await;
    wake.wake();
    has_sent(&["first", "second"]).await;

    may_look.notify_one();
    has_sent(&["first", "second", "old"]).await;
    send("third", "0").await;
    wake.wake();
    has_sent(&["first", "second", "old", "third"]).await;
    assert_eq!(
        supervisor.stop(Duration::from_secs(5)).await,
        Stopped::Finished
    );
}
