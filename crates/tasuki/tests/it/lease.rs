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
use tokio::sync::Notify;
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

#[tokio::test]
async fn a_slow_look_at_the_old_rows_does_not_hold_up_the_new_ones() {
    let schema = Schema::new("app").unwrap();
    let db = TestDb::new(&[library(&schema)]).await;
    sqlx::query(CREATE).execute(&db.pool).await.unwrap();
    let (may_look, sent) = (Arc::new(Notify::new()), Arc::default());
    let post = Post {
        leases: Leases::new(&schema, &PARCELS),
        watermark: Watermark::new(1),
        may_look: Arc::clone(&may_look),
        sent: Arc::clone(&sent),
    };
    let settings = Settings {
        pool: db.pool.clone(),
        route: Route::Direct,
        owner: Owner::on("here"),
        unit: Unit::Row,
        slots: 10,
        batch: 100,
        lease: Duration::from_secs(60),
        // Only wakes: a poll would hide what was forgotten.
        poll: Duration::from_secs(3600),
    };
    let runner = Runner::new(post, settings);
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
