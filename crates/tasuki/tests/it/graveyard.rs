//! Rows that die as in production: claimed, and put back as dead by the lease engine.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection};
use tasuki::lease::{Claim, Leases, Letter, Outcome, Owner, Table};
use tasuki::migrate::library;
use tasuki::{Clock, Schema};
use tasuki_testkit::TestDb;
use uuid::Uuid;

const PICK: &str = "SELECT t.ctid FROM {table} AS t WHERE {claimable}
    ORDER BY t.next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED";

pub(crate) const JOBS: Table = Table {
    name: "jobs",
    key: "job_id",
    claimed: "PROCESSING",
    columns: "t.kind",
    with: "",
    pick: PICK,
    letter: Letter {
        queue: "queue",
        kind: "kind",
        payload: "convert_to(payload::text, 'UTF8')",
    },
    lost: None,
};

pub(crate) const EVENTS: Table = Table {
    name: "outbox_events",
    key: "event_id",
    claimed: "IN_FLIGHT",
    columns: "t.event_type",
    with: "",
    pick: PICK,
    letter: Letter {
        queue: "aggregate_key",
        kind: "event_type",
        payload: "payload",
    },
    lost: None,
};

pub(crate) fn schema() -> Schema {
    Schema::new("app").unwrap()
}

pub(crate) async fn database() -> TestDb {
    TestDb::new(&[library(&schema())]).await
}

pub(crate) fn id() -> Uuid {
    tasuki::uuid_v7(&Clock::system())
}

pub(crate) async fn run(connection: &mut PgConnection, sql: &str) -> u64 {
    let sql = AssertSqlSafe(sql.to_owned());
    let done = sqlx::query(sql).execute(connection).await.unwrap();
    done.rows_affected()
}

pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

/// A job that waits.
pub(crate) async fn job(connection: &mut PgConnection, queue: &str, kind: &str) -> Uuid {
    let id = id();
    sqlx::query("INSERT INTO app.jobs (job_id, queue, kind, payload) VALUES ($1, $2, $3, '{}')")
        .bind(id)
        .bind(queue)
        .bind(kind)
        .execute(connection)
        .await
        .unwrap();
    id
}

/// An event that waits.
pub(crate) async fn event(connection: &mut PgConnection, ordering_key: Option<&str>) -> Uuid {
    let id = id();
    sqlx::query(
        "INSERT INTO app.outbox_events (event_id, event_type, aggregate_key, ordering_key, payload)
         VALUES ($1, 'OrderPlaced', 'order:7', $2, 'bytes')",
    )
    .bind(id)
    .bind(ordering_key)
    .execute(connection)
    .await
    .unwrap();
    id
}

/// Claims everything of `table` that is due.
pub(crate) async fn claim(
    connection: &mut PgConnection,
    table: &Table,
) -> Vec<tasuki::lease::Fence> {
    let claim = Claim {
        owner: &Owner::on("test"),
        lease: Duration::from_secs(60),
        limit: 100_000,
    };
    let leases = Leases::new(&schema(), table);
    let claimed = leases.claim::<()>(connection, &claim, |_| Ok(())).await;
    claimed.unwrap().iter().map(|row| row.fence).collect()
}

/// Everything of `table` that is due dies of `error`; says how many.
pub(crate) async fn kill(connection: &mut PgConnection, table: &Table, error: &str) -> usize {
    let fences = claim(connection, table).await;
    let outcomes: Vec<_> = fences
        .iter()
        .map(|fence| {
            let error = error.to_owned();
            (*fence, Outcome::<()>::Dead { error })
        })
        .collect();
    let leases = Leases::new(&schema(), table);
    leases.put_back(connection, &outcomes).await.unwrap().len()
}

/// A job that is dead.
pub(crate) async fn dead_job(connection: &mut PgConnection, kind: &str, error: &str) -> Uuid {
    let id = job(connection, "mail", kind).await;
    assert_eq!(kill(connection, &JOBS, error).await, 1);
    id
}

/// `count` dead jobs of one kind.
pub(crate) async fn dead_jobs(connection: &mut PgConnection, count: usize) {
    let ids: Vec<Uuid> = (0..count).map(|_| id()).collect();
    sqlx::query(
        "INSERT INTO app.jobs (job_id, queue, kind, payload)
         SELECT unnest($1::uuid []), 'mail', 'Welcome', '{}'",
    )
    .bind(ids)
    .execute(&mut *connection)
    .await
    .unwrap();
    assert_eq!(kill(connection, &JOBS, "no route to host").await, count);
}
