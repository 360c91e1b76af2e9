//! The effects.

use sqlx::{PgConnection, PgPool};
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
