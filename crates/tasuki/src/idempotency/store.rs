//! The statements of the idempotency keys.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use sqlx::error::BoxDynError;
use sqlx::postgres::PgArguments;
use sqlx::types::Json;
use sqlx::{Arguments as _, AssertSqlSafe, PgConnection};

use super::{Error, LockNumber, Reply, Request, RequestHash};
use crate::Schema;
use crate::together::Together;

/// Key by key: a join may be planned while the table is empty, and then reads all of it for as long
/// as the plan is kept. The limit keeps the expiry out of the lookup, or its index would be as
/// good a way to the row.
const READ_ALL: &str = "
SELECT current_setting('tasuki.held', true), found.*
FROM (VALUES (true)) AS always (present)
LEFT JOIN (
    SELECT
        wanted.place, kept.request_hash, kept.response_code, kept.response_headers,
        kept.response_body
    FROM UNNEST($1::text[], $2::text[]) WITH ORDINALITY AS wanted (caller, idem_key, place)
    CROSS JOIN LATERAL (
        SELECT * FROM {schema}.idempotency_keys AS kept
        WHERE kept.caller = wanted.caller AND kept.idem_key = wanted.idem_key
        LIMIT 1
    ) AS kept
    WHERE kept.expires_at > now()
) AS found ON true";

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
                "SELECT current_setting('tasuki.held') = '',
                     kept.request_hash, kept.response_code, kept.response_headers, kept.response_body
                 FROM (VALUES (true)) AS always (present)
                 LEFT JOIN {schema}.idempotency_keys AS kept
                     ON kept.caller = $1 AND kept.idem_key = $2 AND kept.expires_at > now()",
            ),
            read_all: schema.render(READ_ALL),
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

/// Takes those of `numbers` that are free. Goes along with a begin, which answers nothing: the
/// transaction remembers which were not, and [`read`] and [`read_all`] tell.
pub(super) fn locking_free(numbers: &[LockNumber]) -> String {
    format!(
        "SELECT set_config('tasuki.held', coalesce((
             SELECT string_agg(wanted.number::text, ',')
             FROM UNNEST({wanted}) AS wanted (number)
             WHERE NOT pg_try_advisory_xact_lock(wanted.number)
         ), ''), true)",
        wanted = literal(numbers),
    )
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
    let wanted = literal(numbers);
    format!(
        "SELECT set_config('tasuki.lock_timeout', current_setting('lock_timeout'), true);
         SET LOCAL lock_timeout = {wait};
         SELECT pg_advisory_xact_lock(wanted.number)
         FROM UNNEST({wanted}) AS wanted (number);
         SELECT set_config('lock_timeout', current_setting('tasuki.lock_timeout'), true)"
    )
}

/// Numbers as SQL.
fn literal(numbers: &[LockNumber]) -> String {
    let mut literal = String::from("'{");
    for (index, number) in numbers.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing into a string can't fail.
        write!(literal, "{comma}{}", number.get()).unwrap_or_default();
    }
    literal.push_str("}'::bigint[]");
    literal
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
/// [`locking_free`].
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

/// The answers that are kept, each with the index of the request whose key it has; and the locks
/// that were not free, where the transaction was begun with [`locking_free`].
pub(super) async fn read_all(
    tx: &mut PgConnection,
    statements: &Statements,
    requests: &[&Request],
) -> Result<(HashSet<LockNumber>, Vec<(usize, Kept)>), Error> {
    type Row = (
        Option<String>,
        Option<i64>,
        Option<Vec<u8>>,
        Option<i16>,
        Headers,
        Option<Vec<u8>>,
    );
    let callers: Vec<&str> = requests.iter().map(|request| request.caller()).collect();
    let keys: Vec<&str> = requests.iter().map(|request| request.key()).collect();
    let rows: Vec<Row> = sqlx::query_as(AssertSqlSafe(statements.read_all.as_str()))
        .bind(callers)
        .bind(keys)
        .fetch_all(tx)
        .await?;
    let held = rows.first().and_then(|row| row.0.as_deref());
    let held = numbers(held.unwrap_or_default())?;
    let mut found = Vec::new();
    for (_, place, hash, code, headers, body) in rows {
        let (Some(place), Some(hash), Some(code), Some(body)) = (place, hash, code, body) else {
            continue;
        };
        // Ordinality counts from 1.
        let index = usize::try_from(place - 1).unwrap_or(usize::MAX);
        found.push((index, kept(hash, code, headers, body)?));
    }
    Ok((held, found))
}

/// What [`locking_free`] wrote down.
fn numbers(text: &str) -> Result<HashSet<LockNumber>, Error> {
    let each = text.split(',').filter(|number| !number.is_empty());
    let parsed = each.map(|number| number.parse().map(LockNumber::from_raw));
    let parsed: Result<_, _> = parsed.collect();
    parsed.map_err(|_odd| Error::Broken)
}

/// Stores an answer under each key, where nothing is kept or what is kept has expired. Returns
/// how many it stored.
pub(super) async fn store_all(
    tx: &mut PgConnection,
    statements: &Statements,
    answered: &[(&Request, &Reply)],
    ttl: Duration,
) -> Result<u64, Error> {
    let columns = Columns::of(answered)?;
    let mut arguments = PgArguments::default();
    let added = columns.add(&mut arguments, ttl);
    added.map_err(sqlx::Error::Encode)?;
    let sql = AssertSqlSafe(statements.store_all.as_str());
    let done = sqlx::query_with(sql, arguments).execute(tx).await?;
    Ok(done.rows_affected())
}

/// The same as a part of a statement of the caller's.
pub(super) fn store_all_with(
    together: &mut Together,
    statements: &Statements,
    answered: &[(&Request, &Reply)],
    ttl: Duration,
    done: fn(usize),
) -> Result<(), Error> {
    let columns = Columns::of(answered)?;
    let expected = ("answers", answered.len(), done);
    let add = |arguments: &mut PgArguments| columns.add(arguments, ttl);
    Ok(together.add(expected, &statements.store_all, add)?)
}

/// Answers as the arrays that the statement for many takes.
#[derive(Default)]
struct Columns<'a> {
    callers: Vec<&'a str>,
    keys: Vec<&'a str>,
    hashes: Vec<Vec<u8>>,
    kinds: Vec<&'static str>,
    codes: Vec<i16>,
    headers: Vec<Option<String>>,
    bodies: Vec<&'a [u8]>,
}

impl<'a> Columns<'a> {
    fn of(answered: &[(&'a Request, &'a Reply)]) -> Result<Self, Error> {
        let mut columns = Self::default();
        for (request, reply) in answered {
            columns.callers.push(request.caller());
            columns.keys.push(request.key());
            columns.hashes.push(request.hash().as_bytes().to_vec());
            columns.kinds.push(reply.kind());
            columns.codes.push(reply.code()?);
            columns.headers.push(headers(reply)?);
            columns.bodies.push(reply.body().as_ref());
        }
        Ok(columns)
    }

    fn add(self, arguments: &mut PgArguments, ttl: Duration) -> Result<(), BoxDynError> {
        arguments.add(self.callers)?;
        arguments.add(self.keys)?;
        arguments.add(self.hashes)?;
        arguments.add(self.kinds)?;
        arguments.add(self.codes)?;
        arguments.add(self.headers)?;
        arguments.add(self.bodies)?;
        arguments.add(ttl.as_secs_f64())
    }
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
