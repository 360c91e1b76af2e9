//! Owners and their locks, in SQL.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::Schema;

/// The statements for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    dead: String,
    forget: String,
}

/// Those whose lock nobody holds. Registers us, if that was forgotten: our own lock is held by then.
const DEAD: &str = "
WITH registered AS (
    INSERT INTO {schema}.lease_owners (owner, lock_key)
    VALUES ($1, $2)
    ON CONFLICT (owner) DO NOTHING
)

SELECT o.owner
FROM {schema}.lease_owners AS o
WHERE o.owner <> $1
    AND NOT EXISTS (
        SELECT FROM pg_locks AS l
        WHERE l.locktype = 'advisory'
            AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
            AND l.objsubid = 1
            AND l.classid::bigint = (o.lock_key >> 32) & 4294967295
            AND l.objid::bigint = o.lock_key & 4294967295
            AND l.granted
    )";

const FORGET: &str = "DELETE FROM {schema}.lease_owners WHERE owner = ANY($1)";

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            dead: schema.render(DEAD),
            forget: schema.render(FORGET),
        }
    }

    /// Takes the lock of this process, for as long as the session lives. A session of ours that the
    /// server has not missed yet may still hold it: that one shows just as well that we live.
    pub(super) async fn hold(&self, session: &mut PgConnection, key: i64) -> sqlx::Result<()> {
        sqlx::query("SELECT pg_try_advisory_lock_shared($1)")
            .bind(key)
            .execute(session)
            .await?;
        Ok(())
    }

    pub(super) async fn dead(
        &self,
        session: &mut PgConnection,
        owner: &str,
        key: i64,
    ) -> sqlx::Result<Vec<String>> {
        sqlx::query_scalar(AssertSqlSafe(self.dead.as_str()))
            .bind(owner)
            .bind(key)
            .fetch_all(session)
            .await
    }

    pub(super) async fn forget(
        &self,
        session: &mut PgConnection,
        owners: &[String],
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.forget.as_str()))
            .bind(owners)
            .execute(session)
            .await?;
        Ok(())
    }
}
