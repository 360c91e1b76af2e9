//! The SQL of entitlement.

mod due;
mod limit;
mod write;

use std::collections::HashMap;
use std::ops::Range;

use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::domain::{Change, Holding, Status};
pub(crate) use due::{Due, run_out};
pub(crate) use limit::{set_statement_timeout, statement_timeout};
pub(crate) use write::write;

/// A user and a SKU: which entitlement.
pub(crate) type Pair<'a> = (&'a str, &'a str);

/// A change, whose it is, and who made it.
#[derive(Clone, Debug)]
pub(crate) struct Written<'a> {
    pub(crate) event_id: Uuid,
    pub(crate) pair: Pair<'a>,
    pub(crate) change: &'a Change,
    pub(crate) caller: &'a str,
    pub(crate) request_id: Option<&'a str>,
}

/// Entitlements, and the time at which they were read.
#[derive(Debug)]
pub(crate) struct Read<'a> {
    pub(crate) now: OffsetDateTime,
    pub(crate) holdings: HashMap<Pair<'a>, Holding>,
}

/// Reads the entitlements of `pairs`. Their locks must be held: what is read is what the next
/// version is made of, and the time is taken when everybody before us is done.
pub(crate) async fn read<'a>(tx: &mut PgConnection, pairs: &[Pair<'a>]) -> sqlx::Result<Read<'a>> {
    let (users, skus): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
    let (users, skus) = (owned(&users), owned(&skus));
    let rows = sqlx::query_file!("src/store/read.sql", &users, &skus)
        .fetch_all(tx)
        .await?;
    let now = rows.first().map(|row| row.now);
    let mut holdings = HashMap::with_capacity(rows.len());
    for row in rows {
        // Ordinality counts from 1.
        let pair = usize::try_from(row.place - 1)
            .ok()
            .and_then(|at| pairs.get(at));
        let (Some(pair), Some(status), Some(version), Some(source), Some(source_id), Some(at)) = (
            pair,
            row.status,
            row.version,
            row.source,
            row.source_id,
            row.updated_at,
        ) else {
            continue;
        };
        let holding = Holding {
            status: status_of(&status)?,
            version,
            quantity: row.quantity,
            expires_at: row.expires_at,
            granted_at: row.granted_at,
            revoked_at: row.revoked_at,
            source,
            source_id,
            updated_at: at,
        };
        holdings.insert(*pair, holding);
    }
    let now = now.ok_or(sqlx::Error::RowNotFound)?;
    Ok(Read { now, holdings })
}

/// One entitlement, and the time.
pub(crate) async fn find(
    connection: &mut PgConnection,
    user: &str,
    sku: &str,
) -> sqlx::Result<Option<(Holding, OffsetDateTime)>> {
    let row = sqlx::query!(
        r#"
        SELECT
            status, version, quantity, expires_at, granted_at, revoked_at, source, source_id,
            updated_at, clock_timestamp() AS "now!"
        FROM entitlement.entitlements
        WHERE user_id = $1 AND stock_keeping_unit = $2
        "#,
        user,
        sku,
    )
    .fetch_optional(connection)
    .await?;
    let found = row.map(|row| {
        let holding = Holding {
            status: status_of(&row.status)?,
            version: row.version,
            quantity: row.quantity,
            expires_at: row.expires_at,
            granted_at: row.granted_at,
            revoked_at: row.revoked_at,
            source: row.source,
            source_id: row.source_id,
            updated_at: row.updated_at,
        };
        Ok((holding, row.now))
    });
    found.transpose()
}

/// Which of a user's entitlements, from where on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) status: Option<Status>,
    pub(crate) changed_since: Option<OffsetDateTime>,
    /// The last one of the page before.
    pub(crate) after: Option<(OffsetDateTime, String)>,
    pub(crate) limit: i64,
}

/// An entitlement in a list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) stock_keeping_unit: String,
    pub(crate) status: String,
    pub(crate) version: i64,
    pub(crate) quantity: Option<i64>,
    pub(crate) expires_at: Option<OffsetDateTime>,
    pub(crate) updated_at: OffsetDateTime,
}

/// A user's entitlements, the last change first.
pub(crate) async fn list(
    connection: &mut PgConnection,
    user: &str,
    wanted: &Wanted,
) -> sqlx::Result<Vec<Listed>> {
    let (at, sku) = wanted.after.clone().unzip();
    sqlx::query_as!(
        Listed,
        r#"
        SELECT stock_keeping_unit, status, version, quantity, expires_at, updated_at
        FROM entitlement.entitlements
        WHERE user_id = $1
            AND ($2::text IS NULL OR status = $2)
            AND ($3::timestamptz IS NULL OR updated_at >= $3)
            AND ($4::timestamptz IS NULL OR (updated_at, stock_keeping_unit) < ($4, $5::text))
        ORDER BY updated_at DESC, stock_keeping_unit DESC
        LIMIT $6
        "#,
        user,
        wanted.status.map(Status::as_str),
        wanted.changed_since,
        at,
        sku,
        wanted.limit,
    )
    .fetch_all(connection)
    .await
}

/// The first `limit` entitlements of each of `users`, the last change first.
pub(crate) async fn lists(
    connection: &mut PgConnection,
    users: &[String],
    limit: i64,
) -> sqlx::Result<Vec<Vec<Listed>>> {
    let rows = sqlx::query!(
        r#"
        SELECT
            wanted.place AS "place!", held.stock_keeping_unit, held.status, held.version,
            held.quantity, held.expires_at, held.updated_at
        FROM UNNEST($1::text[]) WITH ORDINALITY AS wanted (user_id, place)
        CROSS JOIN LATERAL (
            SELECT stock_keeping_unit, status, version, quantity, expires_at, updated_at
            FROM entitlement.entitlements
            WHERE user_id = wanted.user_id
            ORDER BY updated_at DESC, stock_keeping_unit DESC
            LIMIT $2
        ) AS held
        ORDER BY wanted.place, held.updated_at DESC, held.stock_keeping_unit DESC
        "#,
        users,
        limit,
    )
    .fetch_all(connection)
    .await?;
    let mut lists: Vec<Vec<Listed>> = users.iter().map(|_| Vec::new()).collect();
    for row in rows {
        // Ordinality counts from 1.
        let list = usize::try_from(row.place - 1)
            .ok()
            .and_then(|at| lists.get_mut(at));
        if let Some(list) = list {
            list.push(Listed {
                stock_keeping_unit: row.stock_keeping_unit,
                status: row.status,
                version: row.version,
                quantity: row.quantity,
                expires_at: row.expires_at,
                updated_at: row.updated_at,
            });
        }
    }
    Ok(lists)
}

/// A row of the audit.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) audit_id: Uuid,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) version: i64,
    pub(crate) action: String,
    pub(crate) source: String,
    pub(crate) source_id: String,
    pub(crate) caller: String,
    pub(crate) request_id: Option<String>,
}

/// The past of one entitlement below a version, the last change first.
pub(crate) async fn history(
    connection: &mut PgConnection,
    user: &str,
    sku: &str,
    below: Option<i64>,
    limit: i64,
) -> sqlx::Result<Vec<Past>> {
    sqlx::query_as!(
        Past,
        r#"
        SELECT
            audit_id, occurred_at, version, action, source, source_id, caller, request_id
        FROM entitlement.entitlement_audit
        WHERE user_id = $1 AND stock_keeping_unit = $2 AND ($3::bigint IS NULL OR version < $3)
        ORDER BY version DESC
        LIMIT $4
        "#,
        user,
        sku,
        below,
        limit,
    )
    .fetch_all(connection)
    .await
}

/// A change, and what the outbox knows of its event.
#[derive(Clone, Debug)]
pub(crate) struct Audited {
    pub(crate) audit_id: Uuid,
    pub(crate) occurred_at: OffsetDateTime,
    pub(crate) user_id: String,
    pub(crate) stock_keeping_unit: String,
    pub(crate) version: i64,
    /// Rows of its event: waiting, dead, and published.
    pub(crate) waiting: i64,
    pub(crate) dead: i64,
    pub(crate) published: i64,
}

/// All changes from `from` on, before `until`.
pub(crate) async fn audited(
    connection: &mut PgConnection,
    from: OffsetDateTime,
    until: OffsetDateTime,
) -> sqlx::Result<Vec<Audited>> {
    sqlx::query_file_as!(Audited, "src/store/audited.sql", from, until)
        .fetch_all(connection)
        .await
}

/// How many pages of the disk the entitlements have.
pub(crate) async fn pages(connection: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT
            pg_relation_size('entitlement.entitlements')
            / current_setting('block_size')::bigint AS "pages!"
        "#
    )
    .fetch_one(connection)
    .await
}

/// Entitlements whose versions are not exactly those of their audit, of those on `pages` that
/// changed from `from` on, at most `limit`: user, SKU, version, and the versions that the audit
/// has of it.
pub(crate) async fn torn(
    connection: &mut PgConnection,
    from: OffsetDateTime,
    pages: Range<i64>,
    limit: i64,
) -> sqlx::Result<Vec<(String, String, i64, i64)>> {
    let rows = sqlx::query!(
        r#"
        SELECT
            held.user_id, held.stock_keeping_unit, held.version,
            count(past.version) AS "audited!"
        FROM entitlement.entitlements AS held
        LEFT JOIN entitlement.entitlement_audit AS past
            ON past.user_id = held.user_id
            AND past.stock_keeping_unit = held.stock_keeping_unit
        WHERE held.updated_at >= $1
            AND held.ctid >= format('(%s,0)', $2::bigint)::tid
            AND held.ctid < format('(%s,0)', $3::bigint)::tid
        GROUP BY held.user_id, held.stock_keeping_unit, held.version
        HAVING max(past.version) IS DISTINCT FROM held.version
            OR max(past.version) - min(past.version) + 1 <> count(past.version)
            OR count(DISTINCT past.version) <> count(past.version)
        LIMIT $4
        "#,
        from,
        pages.start,
        pages.end,
        limit,
    )
    .fetch_all(connection)
    .await?;
    let rows = rows.into_iter();
    Ok(rows
        .map(|row| {
            (
                row.user_id,
                row.stock_keeping_unit,
                row.version,
                row.audited,
            )
        })
        .collect())
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn status_of(text: &str) -> sqlx::Result<Status> {
    let unknown = || sqlx::Error::Decode(format!("status {text:?} is none of ours").into());
    Status::parse(text).ok_or_else(unknown)
}
