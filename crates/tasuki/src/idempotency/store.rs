//! The statements of the idempotency keys.

use std::fmt::Write as _;
use std::time::Duration;

use sqlx::types::Json;
use sqlx::{AssertSqlSafe, PgConnection, SqlSafeStr, SqlStr};

use super::{Error, LockNumber, Reply, Request, RequestHash};
use crate::Schema;
use crate::transaction::BEGIN;

/// Rendered for one schema.
#[derive(Debug)]
pub(super) struct Statements {
    read: String,
    read_all: String,
    store_all: String,
    purge_expired: String,
}

/// A stored answer, and what it answered.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) hash: RequestHash,
    pub(super) reply: Reply,
}

/// What was found under a key.
#[derive(Debug)]
pub(super) struct Read {
    /// Whether its lock was free when the transaction began.
    pub(super) locked: bool,
    pub(super) kept: Option<Kept>,
}

type Headers = Option<Json<Vec<(String, String)>>>;

impl Statements {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            read: schema.render(
                "SELECT current_setting('tasuki.locked') = 'true',
                     kept.request_hash, kept.response_code, kept.response_headers, kept.response_body
                 FROM (VALUES (true)) AS always (present)
                 LEFT JOIN {schema}.idempotency_keys AS kept
                     ON kept.caller = $1 AND kept.idem_key = $2 AND kept.expires_at > now()",
            ),
            read_all: schema.render(
                "SELECT wanted.place,
                     kept.request_hash, kept.response_code, kept.response_headers, kept.response_body
                 FROM UNNEST($1::text[], $2::text[])
                     WITH ORDINALITY AS wanted (caller, idem_key, place)
                 JOIN {schema}.idempotency_keys AS kept
                     ON kept.caller = wanted.caller AND kept.idem_key = wanted.idem_key
                 WHERE kept.expires_at > now()",
            ),
            // Reading and storing use the time at which the transaction began: what was found
            // expired is still expired here. An answer lives from the moment it is stored.
            store_all: schema.render(
                "INSERT INTO {schema}.idempotency_keys AS kept (
                     caller, idem_key, request_hash, status,
                     response_code, response_headers, response_body, expires_at
                 )
                 SELECT answered.caller, answered.idem_key, answered.request_hash, answered.status,
                     answered.response_code, answered.response_headers::jsonb,
                     answered.response_body, clock_timestamp() + make_interval(secs => $8)
                 FROM UNNEST(
                     $1::text[], $2::text[], $3::bytea[], $4::text[], $5::smallint[], $6::text[],
                     $7::bytea[]
                 ) AS answered (
                     caller, idem_key, request_hash, status, response_code, response_headers,
                     response_body
                 )
                 ON CONFLICT (caller, idem_key) DO UPDATE SET
                     request_hash = excluded.request_hash,
                     status = excluded.status,
                     response_code = excluded.response_code,
                     response_headers = excluded.response_headers,
                     response_body = excluded.response_body,
                     created_at = excluded.created_at,
                     expires_at = excluded.expires_at
                 WHERE kept.expires_at <= now()",
            ),
            // A row that is being written again is locked, and skipped; one that was written
            // again since is looked at once more, and is not expired any longer.
            purge_expired: schema.render(
                "WITH expired AS MATERIALIZED (
                     SELECT caller, idem_key FROM {schema}.idempotency_keys
                     WHERE expires_at <= now()
                     ORDER BY expires_at
                     LIMIT $1
                     FOR UPDATE SKIP LOCKED
                 )
                 DELETE FROM {schema}.idempotency_keys AS kept
                 USING expired
                 WHERE kept.caller = expired.caller AND kept.idem_key = expired.idem_key",
            ),
        }
    }
}

/// Begins a transaction and takes a lock if it is free, in one round trip. [`read`] says
/// whether it was: the answer to a begin can't.
pub(super) fn begin_locked(number: LockNumber) -> SqlStr {
    let number = number.get();
    // Safe: only a number is written into it.
    AssertSqlSafe(format!(
        "{BEGIN};
         SELECT set_config('tasuki.locked', pg_try_advisory_xact_lock({number})::text, true)"
    ))
    .into_sql_str()
}

/// Takes all locks, in one round trip. `numbers` are sorted.
pub(super) async fn lock_all(
    tx: &mut PgConnection,
    numbers: &[LockNumber],
    wait: Duration,
) -> sqlx::Result<()> {
    // Safe: only numbers are written into it.
    sqlx::raw_sql(AssertSqlSafe(locking(numbers, wait)))
        .execute(tx)
        .await?;
    Ok(())
}

/// Takes locks in their order, each within `wait`, and leaves the session's own lock timeout
/// as it was. The setting that remembers it ends with the transaction.
///
/// These are statements of their own, before the one that reads. A statement sees what was
/// committed when it *began*: one that takes the lock and reads would wait for its twin, and
/// then not see what the twin committed while it waited.
fn locking(numbers: &[LockNumber], wait: Duration) -> String {
    // Zero would mean to wait for ever, and a part of a millisecond belongs to the wait.
    let wait = wait.as_micros().div_ceil(1000).clamp(1, 86_400_000);
    let mut wanted = String::new();
    for number in numbers {
        let comma = if wanted.is_empty() { "" } else { "," };
        // Writing into a string can't fail.
        write!(wanted, "{comma}{}", number.get()).unwrap_or_default();
    }
    format!(
        "SELECT set_config('tasuki.lock_timeout', current_setting('lock_timeout'), true);
         SET LOCAL lock_timeout = {wait};
         SELECT pg_advisory_xact_lock(wanted.number)
         FROM UNNEST('{{{wanted}}}'::bigint[]) AS wanted (number);
         SELECT set_config('lock_timeout', current_setting('tasuki.lock_timeout'), true)"
    )
}

/// Takes those of `numbers` that are free, in one round trip, and returns the others.
pub(super) async fn try_lock_all(
    tx: &mut PgConnection,
    numbers: &[LockNumber],
) -> sqlx::Result<Vec<i64>> {
    let numbers: Vec<i64> = numbers.iter().map(|number| number.get()).collect();
    sqlx::query_scalar(
        "SELECT wanted.number FROM UNNEST($1::bigint[]) AS wanted (number)
         WHERE NOT pg_try_advisory_xact_lock(wanted.number)",
    )
    .bind(numbers)
    .fetch_all(tx)
    .await
}

/// Whether the wait for a lock was too long. The session's own limit on statements may end it
/// before ours does.
pub(super) fn waited_too_long(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    // lock_not_available, query_canceled
    matches!(code.as_deref(), Some("55P03" | "57014"))
}

/// What is kept under the key of `request`, in a transaction that was begun with
/// [`begin_locked`].
pub(super) async fn read(
    tx: &mut PgConnection,
    statements: &Statements,
    request: &Request,
) -> Result<Read, Error> {
    type Row = (bool, Option<Vec<u8>>, Option<i16>, Headers, Option<Vec<u8>>);
    let row: Row = sqlx::query_as(AssertSqlSafe(statements.read.as_str()))
        .bind(request.caller())
        .bind(request.key())
        .fetch_one(tx)
        .await?;
    let (locked, hash, code, headers, body) = row;
    let kept = match (hash, code, body) {
        (Some(hash), Some(code), Some(body)) => Some(kept(hash, code, headers, body)?),
        _ => None,
    };
    Ok(Read { locked, kept })
}

/// The answers that are kept, each with the index of the request whose key it has.
pub(super) async fn read_all(
    tx: &mut PgConnection,
    statements: &Statements,
    requests: &[&Request],
) -> Result<Vec<(usize, Kept)>, Error> {
    type Row = (i64, Vec<u8>, i16, Headers, Vec<u8>);
    let callers: Vec<&str> = requests.iter().map(|request| request.caller()).collect();
    let keys: Vec<&str> = requests.iter().map(|request| request.key()).collect();
    let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(statements.read_all.as_str()))
        .bind(callers)
        .bind(keys)
        .fetch_all(tx)
        .await?;
    rows.into_iter()
        .map(|(place, hash, code, headers, body)| {
            // Ordinality counts from 1.
            let index = usize::try_from(place - 1).unwrap_or(usize::MAX);
            Ok((index, kept(hash, code, headers, body)?))
        })
        .collect()
}

/// Stores an answer under each key, where nothing is kept or what is kept has expired. Returns
/// how many it stored.
pub(super) async fn store_all(
    tx: &mut PgConnection,
    statements: &Statements,
    answered: &[(&Request, &Reply)],
    ttl: Duration,
) -> Result<u64, Error> {
    let requests = || answered.iter().map(|(request, _)| *request);
    let replies = || answered.iter().map(|(_, reply)| *reply);
    let codes = replies().map(Reply::code).collect::<Result<Vec<_>, _>>()?;
    let headers = replies().map(headers).collect::<Result<Vec<_>, _>>()?;
    let hashes: Vec<Vec<u8>> = requests()
        .map(|request| request.hash().as_bytes().to_vec())
        .collect();
    let done = sqlx::query(AssertSqlSafe(statements.store_all.as_str()))
        .bind(requests().map(Request::caller).collect::<Vec<_>>())
        .bind(requests().map(Request::key).collect::<Vec<_>>())
        .bind(hashes)
        .bind(replies().map(Reply::kind).collect::<Vec<_>>())
        .bind(codes)
        .bind(headers)
        .bind(
            replies()
                .map(|reply| reply.body().as_ref())
                .collect::<Vec<_>>(),
        )
        .bind(ttl.as_secs_f64())
        .execute(tx)
        .await?;
    Ok(done.rows_affected())
}

/// Removes at most `limit` expired answers.
pub(super) async fn purge_expired(
    connection: &mut PgConnection,
    statements: &Statements,
    limit: i64,
) -> sqlx::Result<u64> {
    let done = sqlx::query(AssertSqlSafe(statements.purge_expired.as_str()))
        .bind(limit)
        .execute(connection)
        .await?;
    Ok(done.rows_affected())
}

fn headers(reply: &Reply) -> Result<Option<String>, Error> {
    let headers = reply.stored_headers()?;
    if headers.is_empty() {
        return Ok(None);
    }
    let text =
        serde_json::to_string(&headers).map_err(|error| sqlx::Error::Encode(error.into()))?;
    Ok(Some(text))
}

fn kept(hash: Vec<u8>, code: i16, headers: Headers, body: Vec<u8>) -> Result<Kept, Error> {
    let hash: [u8; 32] = hash.try_into().map_err(|_odd: Vec<u8>| Error::Broken)?;
    let headers = headers.map(|Json(headers)| headers).unwrap_or_default();
    Ok(Kept {
        hash: RequestHash::from_bytes(hash),
        reply: Reply::restored(code, headers, body).ok_or(Error::Broken)?,
    })
}
