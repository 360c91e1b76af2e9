//! The statements of the table `credentials`.

use std::time::Duration;

use sqlx::{AssertSqlSafe, FromRow, PgConnection, PgPool, SqlSafeStr, SqlStr};
use tasuki::Schema;
use tasuki_contract::ids::CredentialId;
use time::OffsetDateTime;

use super::{Credential, Kind, NewCredential, Record, State};

/// The statements, rendered once for one schema.
#[derive(Clone, Debug)]
pub(super) struct Statements {
    insert: SqlStr,
    import: SqlStr,
    list: SqlStr,
    revoke: SqlStr,
    find: SqlStr,
}

/// What a check needs to know. `expires_in_us` counts from the database's now.
#[derive(Debug, FromRow)]
pub(super) struct Found {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) scopes: Vec<String>,
    pub(super) secret_hash: Vec<u8>,
    pub(super) active: bool,
    pub(super) expires_in_us: Option<i64>,
}

#[derive(FromRow)]
struct Row {
    credential_id: CredentialId,
    kind: String,
    name: String,
    scopes: Vec<String>,
    created_at: OffsetDateTime,
    expires_at: Option<OffsetDateTime>,
    revoked_at: Option<OffsetDateTime>,
    expired: bool,
}

const INSERT: &str = "
INSERT INTO {schema}.credentials (credential_id, kind, name, scopes, secret_hash, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + $6::bigint * interval '1 microsecond')";

/// No row comes back when the id belongs to a credential with another secret or kind.
const OR_SAME: &str = "
ON CONFLICT (credential_id) DO UPDATE SET name = excluded.name, scopes = excluded.scopes
WHERE credentials.secret_hash = excluded.secret_hash AND credentials.kind = excluded.kind";

const COLUMNS: &str = "credential_id, kind, name, scopes, created_at, expires_at, revoked_at,
       coalesce(expires_at <= now(), false) AS expired";

const FIND: &str = "
SELECT kind, name, scopes, secret_hash,
       revoked_at IS NULL AND coalesce(expires_at > now(), true) AS active,
       (extract(epoch FROM expires_at - now()) * 1000000)::bigint AS expires_in_us
FROM {schema}.credentials
WHERE credential_id = $1";

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        // Safe: the texts are this file's, and a `Schema` is a plain identifier.
        let render = |sql: &str| AssertSqlSafe(schema.render(sql).trim()).into_sql_str();
        Self {
            insert: render(INSERT),
            import: render(&format!("{INSERT}{OR_SAME}\nRETURNING {COLUMNS}")),
            list: render(&format!(
                "SELECT {COLUMNS}\nFROM {{schema}}.credentials\nORDER BY credential_id"
            )),
            revoke: render(&format!(
                "UPDATE {{schema}}.credentials SET revoked_at = coalesce(revoked_at, now())\n\
                 WHERE credential_id = $1\nRETURNING {COLUMNS}"
            )),
            find: render(FIND),
        }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        [
            &self.insert,
            &self.import,
            &self.list,
            &self.revoke,
            &self.find,
        ]
        .into_iter()
        .map(SqlStr::as_str)
    }

    pub(super) async fn insert(
        &self,
        tx: &mut PgConnection,
        credential: &Credential,
        wanted: &NewCredential,
    ) -> sqlx::Result<()> {
        sqlx::query(self.insert.clone())
            .bind(credential.id())
            .bind(wanted.kind().as_str())
            .bind(wanted.name())
            .bind(wanted.scopes())
            .bind(credential.secret_hash().as_slice())
            .bind(micros(wanted.lifetime()))
            .execute(tx)
            .await?;
        Ok(())
    }

    pub(super) async fn import(
        &self,
        tx: &mut PgConnection,
        credential: &Credential,
        wanted: &NewCredential,
    ) -> sqlx::Result<Option<Record>> {
        sqlx::query_as::<_, Row>(self.import.clone())
            .bind(credential.id())
            .bind(wanted.kind().as_str())
            .bind(wanted.name())
            .bind(wanted.scopes())
            .bind(credential.secret_hash().as_slice())
            .bind(micros(wanted.lifetime()))
            .fetch_optional(tx)
            .await?
            .map(record)
            .transpose()
    }

    pub(super) async fn list(&self, db: &mut PgConnection) -> sqlx::Result<Vec<Record>> {
        let rows: Vec<Row> = sqlx::query_as(self.list.clone()).fetch_all(db).await?;
        rows.into_iter().map(record).collect()
    }

    pub(super) async fn revoke(
        &self,
        tx: &mut PgConnection,
        id: CredentialId,
    ) -> sqlx::Result<Option<Record>> {
        sqlx::query_as::<_, Row>(self.revoke.clone())
            .bind(id)
            .fetch_optional(tx)
            .await?
            .map(record)
            .transpose()
    }

    pub(super) async fn find(
        &self,
        pool: &PgPool,
        id: CredentialId,
    ) -> sqlx::Result<Option<Found>> {
        sqlx::query_as(self.find.clone())
            .bind(id)
            .fetch_optional(pool)
            .await
    }
}

fn micros(lifetime: Option<Duration>) -> Option<i64> {
    lifetime.map(|lifetime| i64::try_from(lifetime.as_micros()).unwrap_or(i64::MAX))
}

fn record(row: Row) -> sqlx::Result<Record> {
    let kind: Kind = row
        .kind
        .parse()
        .map_err(|error| sqlx::Error::Decode(Box::new(error)))?;
    let state = match (row.revoked_at, row.expired) {
        (Some(_), _) => State::Revoked,
        (None, true) => State::Expired,
        (None, false) => State::Active,
    };
    Ok(Record {
        id: row.credential_id,
        kind,
        name: row.name,
        scopes: row.scopes,
        state,
        created_at: row.created_at,
        expires_at: row.expires_at,
        revoked_at: row.revoked_at,
    })
}
