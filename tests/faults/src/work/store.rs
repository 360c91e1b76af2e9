//! The effects.

use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use uuid::Uuid;

/// One row for each: nothing is unique, so that a second effect is a second row.
pub(super) async fn effects(tx: &mut PgConnection, kind: &str, ids: &[Uuid]) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO app.effects (kind, id) SELECT $1, unnest($2::uuid[])")
        .bind(kind)
        .bind(ids)
        .execute(tx)
        .await?;
    Ok(())
}

/// What somebody was told.
pub(super) async fn note(pool: &PgPool, kind: &str, id: Uuid) -> sqlx::Result<()> {
    let note = "INSERT INTO app.told (kind, id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    sqlx::query(note).bind(kind).bind(id).execute(pool).await?;
    Ok(())
}

/// The effect of a job, unless an attempt before had it already.
pub(super) async fn effect_of_job(tx: &mut PgConnection, id: Uuid) -> sqlx::Result<()> {
    let new = sqlx::query("INSERT INTO app.paid (job_id) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(id)
        .execute(&mut *tx)
        .await?;
    if new.rows_affected() == 1 {
        effects(tx, "job", &[id]).await?;
    }
    Ok(())
}

/// A provider elsewhere, as far as it matters here: remembers what it was asked for, and does each key
/// once. What is undone before it was done is never done.
pub(super) async fn ask_provider(
    pool: &PgPool,
    key: &str,
    undoes: Option<&str>,
) -> sqlx::Result<()> {
    let mut tx = tasuki::begin(pool).await?;
    let ask = "INSERT INTO app.provider (key, kind) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    match undoes {
        None => {
            sqlx::query(ask)
                .bind(key)
                .bind("act")
                .execute(&mut *tx)
                .await?
        }
        Some(action) => {
            sqlx::query(ask)
                .bind(action)
                .bind("never")
                .execute(&mut *tx)
                .await?;
            sqlx::query(ask)
                .bind(key)
                .bind("undo")
                .execute(&mut *tx)
                .await?
        }
    };
    tx.commit().await
}

/// One row for each, in the order in which they came: what comes twice is there twice.
pub(super) async fn follow(tx: &mut PgConnection, numbers: &[i64]) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO app.followed (seq) SELECT unnest($1::bigint[])")
        .bind(numbers)
        .execute(tx)
        .await?;
    Ok(())
}

/// What has been followed, from its source: the log up to where the snapshot is.
pub(super) async fn refill(
    snapshot: &mut PgConnection,
    pool: &PgPool,
    attempt: i64,
) -> sqlx::Result<()> {
    let rows = "SELECT seq FROM app.seqlog_entries WHERE kind <> 'poison' ORDER BY seq";
    let numbers: Vec<i64> = sqlx::query_scalar(rows).fetch_all(snapshot).await?;
    let fresh = format!("app.refilled_{attempt}");
    let create = format!("CREATE TABLE {fresh} (LIKE app.followed INCLUDING ALL)");
    sqlx::query(AssertSqlSafe(create)).execute(pool).await?;
    let insert = format!("INSERT INTO {fresh} (seq) SELECT unnest($1::bigint[])");
    sqlx::query(AssertSqlSafe(insert))
        .bind(numbers)
        .execute(pool)
        .await?;
    Ok(())
}

/// The one takes the place of the other.
pub(super) async fn switch(tx: &mut PgConnection, attempt: i64) -> sqlx::Result<()> {
    let sql = format!(
        "DELETE FROM app.followed;
         INSERT INTO app.followed (seq) SELECT seq FROM app.refilled_{attempt} ORDER BY at"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(tx).await?;
    Ok(())
}
