//! What we ask a PostgreSQL server about itself.

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions,
};

/// Connects without logging statements; a refusal is an answer here, not an event.
pub(super) async fn connect(url: &str) -> Result<PgConnection, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    options.disable_statement_logging().connect().await
}

/// Ends a connection politely, so that the server's log stays quiet.
pub(super) async fn close(connection: PgConnection) -> Result<(), sqlx::Error> {
    connection.close().await
}

/// The data folder of the server that answers.
pub(super) async fn data_directory(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("SELECT current_setting('data_directory')")
        .fetch_one(connection)
        .await
}

/// Whether the server is a standby.
pub(super) async fn is_in_recovery(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_is_in_recovery()")
        .fetch_one(connection)
        .await
}

/// How a standby is connected: `None` when it is not streaming, else `async`, `sync` or `quorum`.
pub(super) async fn sync_state(
    connection: &mut PgConnection,
    standby: &str,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT sync_state FROM pg_stat_replication \
         WHERE application_name = $1 AND state = 'streaming'",
    )
    .bind(standby)
    .fetch_optional(connection)
    .await
}

/// Makes every commit wait for the standby. Its name has letters, digits and `-` only.
pub(super) async fn wait_for_standby(
    connection: &mut PgConnection,
    standby: &str,
) -> Result<(), sqlx::Error> {
    for statement in [
        format!("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (\"{standby}\")'"),
        "ALTER SYSTEM SET synchronous_commit = 'on'".to_owned(),
        "SELECT pg_reload_conf()".to_owned(),
    ] {
        sqlx::raw_sql(AssertSqlSafe(statement))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Ends recovery, and waits until that is done.
pub(super) async fn promote(
    connection: &mut PgConnection,
    seconds: i32,
) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("SELECT pg_promote(true, $1)")
        .bind(seconds)
        .fetch_one(connection)
        .await
}

/// Makes the server wait for no standby, whatever its predecessor waited for.
pub(super) async fn wait_for_nobody(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    for statement in [
        "ALTER SYSTEM RESET synchronous_standby_names",
        "SELECT pg_reload_conf()",
    ] {
        sqlx::raw_sql(statement).execute(&mut *connection).await?;
    }
    Ok(())
}

/// Whether the server accepts a write: a table that exists for one transaction.
pub(super) async fn accepts_writes(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    sqlx::raw_sql("BEGIN; CREATE TABLE tasuki_stack_trial (); ROLLBACK")
        .execute(connection)
        .await
        .map(|_done| ())
}

/// Makes a database unless it is there. PostgreSQL has no `IF NOT EXISTS` for it.
pub(super) async fn ensure_database(
    connection: &mut PgConnection,
    name: &str,
) -> Result<(), sqlx::Error> {
    let exists: bool =
        sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
            .bind(name)
            .fetch_one(&mut *connection)
            .await?;
    if !exists {
        let quoted = name.replace('"', "\"\"");
        let create = AssertSqlSafe(format!("CREATE DATABASE \"{quoted}\""));
        sqlx::raw_sql(create).execute(connection).await?;
    }
    Ok(())
}
