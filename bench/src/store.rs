//! A database per measurement, and what is asked of the server itself.

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool};
use tasuki::Schema;

/// The settings of the server that decide what a figure means.
const SETTINGS: [&str; 9] = [
    "server_version",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "shared_buffers",
    "max_wal_size",
    "max_connections",
    "autovacuum",
];

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
/// autovacuum is due, and no checkpoint is half-way.
pub(crate) async fn settle(url: &str) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    for statement in ["VACUUM (ANALYZE)", "CHECKPOINT"] {
        sqlx::query(statement).execute(&mut connection).await?;
    }
    connection.close().await
}

/// Jobs that are left in the library's table.
pub(crate) async fn jobs_left(url: &str, schema: &Schema) -> anyhow::Result<u32> {
    let mut connection = PgConnection::connect(url).await?;
    // Safe: a `Schema` is a plain identifier.
    let count = AssertSqlSafe(schema.render("SELECT count(*) FROM {schema}.jobs"));
    let left: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await?;
    connection.close().await?;
    u32::try_from(left).context("more jobs than can be")
}

/// Events that are not published yet.
pub(crate) async fn events_left(url: &str, schema: &Schema) -> anyhow::Result<u32> {
    let mut connection = PgConnection::connect(url).await?;
    // Safe: a `Schema` is a plain identifier.
    let count = AssertSqlSafe(schema.render("SELECT count(*) FROM {schema}.outbox_events"));
    let left: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await?;
    connection.close().await?;
    u32::try_from(left).context("more events than can be")
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
