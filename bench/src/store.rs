//! A database per measurement, and what is asked of the server itself.

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tasuki::Schema;
use uuid::Uuid;

/// The settings of the server that decide what a figure means.
const SETTINGS: [&str; 10] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "wal_compression",
    "max_wal_size",
    "max_connections",
    "autovacuum",
];

/// The address of another database on the same server.
pub(crate) fn address(url: &str, database: &str) -> anyhow::Result<String> {
    let rest = url.rsplit_once('/');
    let (rest, _) = rest.context("the database's address has no database in it")?;
    Ok(format!("{rest}/{database}"))
}

/// Makes an empty database, in place of one of this name.
pub(crate) async fn recreate(server: &PgPool, name: &Schema) -> sqlx::Result<()> {
    drop_database(server, name).await?;
    // Safe: a `Schema` is a plain identifier.
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::query(create).execute(server).await?;
    Ok(())
}

/// Removes a database, whoever is still connected.
pub(crate) async fn drop_database(server: &PgPool, name: &Schema) -> sqlx::Result<()> {
    // Safe: a `Schema` is a plain identifier.
    let drop = AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
    sqlx::query(drop).execute(server).await?;
    Ok(())
}

/// Brings a database to rest, so that every measurement starts alike: statistics are there, no
/// autovacuum is due, no checkpoint is half-way, and all of it is in the machine's memory, as where
/// it was in use all day. (A virtual machine may take memory away that was not touched for seconds.)
pub(crate) async fn settle(url: &str) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in ["VACUUM (ANALYZE)", "CHECKPOINT", MAY_WARM, WARM] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    connection.close().await
}

const MAY_WARM: &str = "CREATE EXTENSION IF NOT EXISTS pg_prewarm";
const WARM: &str = "
SELECT sum(pg_prewarm(c.oid, 'read'))
FROM pg_class AS c
INNER JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'i')
    AND c.relpersistence = 'p'
    AND n.nspname NOT LIKE 'pg\\_%'
    AND n.nspname <> 'information_schema'";

/// The same for the jobs alone, where a long history would take its time, too.
pub(crate) async fn settle_jobs(url: &str, schema: &Schema) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    // Safe: a `Schema` is a plain identifier.
    let vacuum = AssertSqlSafe(schema.render("VACUUM (ANALYZE) {schema}.jobs"));
    sqlx::query(vacuum).execute(&mut connection).await?;
    sqlx::query("CHECKPOINT").execute(&mut connection).await?;
    connection.close().await
}

/// Finished jobs, as a queue that keeps them leaves them behind.
const HISTORY: &str = "
INSERT INTO {schema}.jobs_done (
    job_id, queue, kind, payload, attempt_count, created_at, locked_by, started_at, finished_at
)
SELECT
    lpad(to_hex(n), 32, '0')::uuid,
    'default',
    'noop',
    jsonb_build_object('n', n, 'email', 'someone@example.com', 'template', 'welcome'),
    0,
    now() - make_interval(secs => $1 - n),
    'bench',
    now() - make_interval(secs => $1 - n),
    now() - make_interval(secs => $1 - n)
FROM generate_series(1, $1) AS n";

/// Adds this many finished jobs.
pub(crate) async fn add_history(url: &str, schema: &Schema, rows: i32) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    // Safe: a `Schema` is a plain identifier.
    sqlx::query(AssertSqlSafe(schema.render(HISTORY)))
        .bind(rows)
        .execute(&mut connection)
        .await?;
    connection.close().await
}

/// Begins a transaction that keeps its snapshot until the connection is closed.
pub(crate) async fn hold_snapshot(url: &str) -> sqlx::Result<PgConnection> {
    let mut connection = PgConnection::connect(url).await?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class";
    sqlx::raw_sql(begin).execute(&mut connection).await?;
    Ok(connection)
}

/// Rows that are left in one of the library's tables.
pub(crate) async fn left(
    connection: &mut PgConnection,
    schema: &Schema,
    table: &str,
) -> anyhow::Result<u32> {
    // Safe: a `Schema` is a plain identifier, and `table` a word of ours.
    let count = AssertSqlSafe(format!("SELECT count(*) FROM {schema}.{table}"));
    let left: i64 = sqlx::query_scalar(count).fetch_one(connection).await?;
    u32::try_from(left).context("more rows than can be")
}

/// Whether this event is not published yet.
pub(crate) async fn is_waiting(
    connection: &mut PgConnection,
    schema: &Schema,
    event: Uuid,
) -> sqlx::Result<bool> {
    let waits = "SELECT EXISTS (SELECT FROM {schema}.outbox_events WHERE event_id = $1)";
    // Safe: a `Schema` is a plain identifier.
    sqlx::query_scalar(AssertSqlSafe(schema.render(waits)))
        .bind(event)
        .fetch_one(connection)
        .await
}

/// Runs the statements of a file.
pub(crate) async fn run_file(url: &str, sql: String) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    // Safe: the text is a file of this package, rendered with a plain identifier and a number.
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await?;
    connection.close().await
}

/// The server's settings, by name.
pub(crate) async fn settings(server: &PgPool) -> sqlx::Result<Vec<(String, String)>> {
    sqlx::query_as("SELECT name, current_setting(name) FROM unnest($1) AS name")
        .bind(SETTINGS.map(str::to_owned).to_vec())
        .fetch_all(server)
        .await
}

/// The server's time, fit for the name of a file.
pub(crate) async fn now(server: &PgPool) -> sqlx::Result<String> {
    sqlx::query_scalar("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD\"T\"HH24MISS\"Z\"')")
        .fetch_one(server)
        .await
}

/// The server's time, in seconds.
pub(crate) async fn seconds(server: &PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT extract(EPOCH FROM now())::bigint")
        .fetch_one(server)
        .await
}
