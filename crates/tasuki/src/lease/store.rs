//! Claim, renew, put back: the statements of the lease engine, for any table.

use std::time::Duration;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, AssertSqlSafe, FromRow, PgConnection, Row};
use uuid::Uuid;

use super::{Claimed, Fence, Outcome, Owner, Table, stored_error};
use crate::Schema;

/// The lease engine's statements for one table in one schema.
#[derive(Debug)]
pub struct Leases {
    claim: String,
    renew: String,
    put_back: String,
    delete: String,
}

/// A claim to be made.
#[derive(Clone, Debug)]
pub struct Claim<'a> {
    /// Who claims.
    pub owner: &'a Owner,
    /// For how long, without a renewal.
    pub lease: Duration,
    /// At most this many rows.
    pub limit: usize,
}

impl Leases {
    /// Renders the statements for `table` in `schema`.
    #[must_use]
    pub fn new(schema: &Schema, table: &Table) -> Self {
        let lost = table.lost.map_or_else(String::new, |column| {
            let claimed = table.claimed;
            format!("{column} = t.{column} + CASE WHEN t.status = '{claimed}' THEN 1 ELSE 0 END,")
        });
        let found = table.lost.map_or_else(String::new, |column| {
            format!("{column} = CASE WHEN mine.ran THEN 0 ELSE t.{column} END,")
        });
        let render = |sql: &str| {
            let sql = sql
                .replace("{with}", table.with)
                .replace("{pick}", table.pick)
                .replace("{claimable}", &table.claimable())
                .replace("{table}", &format!("{{schema}}.{}", table.name))
                .replace("{name}", table.name)
                .replace("{key}", table.key)
                .replace("{claimed}", table.claimed)
                .replace("{columns}", table.columns)
                .replace("{lost}", &lost)
                .replace("{found}", &found)
                .replace("{queue}", table.letter.queue)
                .replace("{kind}", table.letter.kind)
                .replace("{payload}", table.letter.payload);
            schema.render(&sql)
        };
        Self {
            claim: if table.with.is_empty() {
                render(CLAIM)
            } else {
                render(&format!("{CLAIM_FROM_HEAD}{CLAIM}{CLAIM_FROM_TAIL}"))
            },
            renew: render(RENEW),
            put_back: render(PUT_BACK),
            delete: render(DELETE),
        }
    }

    /// Claims up to `claim.limit` rows in one statement, which must be a transaction of its
    /// own: whoever comes second skips what is locked. `more` are the parameters of the
    /// table's own pick.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn claim<R>(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
        more: impl FnOnce(&mut PgArguments) -> Result<(), sqlx::error::BoxDynError>,
    ) -> sqlx::Result<Vec<Claimed<R>>>
    where
        R: for<'r> FromRow<'r, PgRow>,
    {
        let (rows, token) = self.ask(connection, claim, more).await?;
        rows.iter().map(|row| read(row, token)).collect()
    }

    /// The same for a table whose pick tells how far it has come: the claimed rows, and that
    /// place, `None` at the end.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn claim_from<R>(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
        more: impl FnOnce(&mut PgArguments) -> Result<(), sqlx::error::BoxDynError>,
    ) -> sqlx::Result<(Vec<Claimed<R>>, Option<String>)>
    where
        R: for<'r> FromRow<'r, PgRow>,
    {
        let (rows, token) = self.ask(connection, claim, more).await?;
        let place = match rows.first() {
            Some(row) => row.try_get("place")?,
            None => None,
        };
        let mut claimed = Vec::with_capacity(rows.len());
        for row in &rows {
            // The place comes alone when nothing was claimed.
            if row.try_get::<Option<Uuid>, _>("lease_id")?.is_some() {
                claimed.push(read(row, token)?);
            }
        }
        Ok((claimed, place))
    }

    async fn ask(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
        more: impl FnOnce(&mut PgArguments) -> Result<(), sqlx::error::BoxDynError>,
    ) -> sqlx::Result<(Vec<PgRow>, Uuid)> {
        let token = Uuid::new_v4();
        let mut arguments = PgArguments::default();
        let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
        let filled = arguments
            .add(limit)
            .and_then(|()| arguments.add(claim.owner.as_str()))
            .and_then(|()| arguments.add(claim.lease.as_secs_f64()))
            .and_then(|()| arguments.add(token))
            .and_then(|()| more(&mut arguments));
        filled.map_err(sqlx::Error::Encode)?;
        let rows = sqlx::query_with(AssertSqlSafe(self.claim.as_str()), arguments)
            .fetch_all(connection)
            .await?;
        Ok((rows, token))
    }

    /// Extends claims to `lease` from now. Answers the rows that are still theirs; what is
    /// missing was lost.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn renew(
        &self,
        connection: &mut PgConnection,
        fences: &[Fence],
        lease: Duration,
    ) -> sqlx::Result<Vec<Uuid>> {
        let (ids, tokens) = split(fences);
        sqlx::query_scalar(AssertSqlSafe(self.renew.as_str()))
            .bind(ids)
            .bind(tokens)
            .bind(lease.as_secs_f64())
            .fetch_all(connection)
            .await
    }

    /// Puts claims that did not end well back into their table: for another try, without the
    /// cost of an attempt, or for good, with a dead letter. One statement for all. Answers the
    /// rows that were still theirs; what is missing was lost, and nothing was done about it.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn put_back<D>(
        &self,
        connection: &mut PgConnection,
        outcomes: &[(Fence, Outcome<D>)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = outcomes.iter().map(|(fence, _)| *fence).collect();
        let (ids, tokens) = split(&fences);
        let mut told = Told::default();
        for (_, outcome) in outcomes {
            told.push(outcome);
        }
        sqlx::query_scalar(AssertSqlSafe(self.put_back.as_str()))
            .bind(ids)
            .bind(tokens)
            .bind(told.errors)
            .bind(told.pauses)
            .bind(told.costs)
            .bind(told.dead)
            .bind(told.ran)
            .fetch_all(connection)
            .await
    }

    /// Finishes claims by deleting their rows, for tables that keep no history. Answers the
    /// rows that were still theirs.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn delete(
        &self,
        connection: &mut PgConnection,
        fences: &[Fence],
    ) -> sqlx::Result<Vec<Uuid>> {
        let (ids, tokens) = split(fences);
        sqlx::query_scalar(AssertSqlSafe(self.delete.as_str()))
            .bind(ids)
            .bind(tokens)
            .fetch_all(connection)
            .await
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        [&self.claim, &self.renew, &self.put_back, &self.delete]
            .into_iter()
            .map(String::as_str)
    }
}

/// A row that the claim with `token` got.
fn read<R>(row: &PgRow, token: Uuid) -> sqlx::Result<Claimed<R>>
where
    R: for<'r> FromRow<'r, PgRow>,
{
    let failed: i32 = row.try_get("failed_attempts")?;
    Ok(Claimed {
        fence: Fence {
            id: row.try_get("lease_id")?,
            token,
        },
        failed_attempts: u32::try_from(failed).unwrap_or(0),
        row: R::from_row(row)?,
    })
}

/// An outcome that gives a claim back as if it had never been made.
#[must_use]
pub const fn give_back<D>() -> Outcome<D> {
    Outcome::Back {
        after: Duration::ZERO,
        error: None,
    }
}

/// Ids and tokens as the two arrays that every statement takes.
pub(crate) fn split(fences: &[Fence]) -> (Vec<Uuid>, Vec<Uuid>) {
    fences.iter().map(|fence| (fence.id, fence.token)).unzip()
}

/// Longer pauses are cut: one that the database can't add to a time would fail the settlement of
/// its whole group, again and again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Outcomes as arrays, one per column.
#[derive(Default)]
struct Told {
    errors: Vec<Option<String>>,
    pauses: Vec<f64>,
    costs: Vec<i32>,
    dead: Vec<bool>,
    ran: Vec<bool>,
}

impl Told {
    fn push<D>(&mut self, outcome: &Outcome<D>) {
        let (error, pause, cost, dead) = match outcome {
            // Nothing that went well is put back; if it were, it would cost nothing.
            Outcome::Done(_) => (None, Duration::ZERO, 0, false),
            Outcome::Retry { after, error } => (Some(error.as_str()), *after, 1, false),
            Outcome::Back { after, error } => (error.as_deref(), *after, 0, false),
            Outcome::Snooze { after, error } => (Some(error.as_str()), *after, 0, false),
            Outcome::Dead { error } => (Some(error.as_str()), Duration::ZERO, 1, true),
        };
        self.errors.push(error.map(stored_error));
        self.pauses.push(pause.min(LONGEST_PAUSE).as_secs_f64());
        self.costs.push(cost);
        self.dead.push(dead);
        self.ran.push(!matches!(outcome, Outcome::Back { .. }));
    }
}

/// `$1` limit, `$2` owner, `$3` lease in seconds, `$4` token, then the pick's own.
///
/// The rows are locked by the pick and updated by their place in the heap, which saves the
/// search by key. No index has a column that changes here, so the new version of a row stays
/// on its page and no index is touched.
///
/// A claim does not wait for the disk. If the server crashes before it is written, it was never
/// made: its token fits no row, and whoever believes to hold one settles nothing. A settlement
/// waits, and what it relies on is written before it.
const CLAIM: &str = "
UPDATE {table} AS t
SET
    status = '{claimed}',
    {lost}
    locked_by = $2,
    locked_at = now(),
    lease_until = clock_timestamp() + make_interval(secs => $3),
    claim_token = $4,
    last_error = NULL
WHERE t.ctid = ANY (ARRAY({pick}))
    AND {claimable}
    AND (SELECT set_config('synchronous_commit', 'off', true)) = 'off'
RETURNING t.{key} AS lease_id, t.attempt_count AS failed_attempts, {columns}";

/// What stands around a claim whose pick tells how far it has come.
const CLAIM_FROM_HEAD: &str = "
WITH RECURSIVE {with},

claimed AS (";
const CLAIM_FROM_TAIL: &str = "
)

SELECT * FROM place LEFT JOIN claimed ON true";

/// The token alone says whose a row is: nothing that is not claimed has one. (To ask for the
/// state, too, would have the planner take it for a rare one, from statistics that are older than
/// the claim, and compare every claimed row with every one of ours. The ids are there once more
/// because a plan that was made on an empty table reads all of it otherwise.)
///
/// A row that is locked is being settled, by us, and its transaction may take a while: the others
/// don't wait for it. It still carries our token, so it is ours.
const RENEW: &str = "
WITH mine AS (
    SELECT id, token FROM unnest($1::uuid [], $2::uuid []) AS mine (id, token)
),

idle AS (
    SELECT t.{key} AS id
    FROM mine
    INNER JOIN {table} AS t ON t.{key} = mine.id AND t.claim_token = mine.token
    WHERE t.{key} = ANY($1)
    FOR UPDATE OF t SKIP LOCKED
),

renewed AS (
    UPDATE {table} AS t
    SET lease_until = clock_timestamp() + make_interval(secs => $3)
    FROM idle
    WHERE t.{key} = idle.id
)

SELECT t.{key}
FROM mine
INNER JOIN {table} AS t ON t.{key} = mine.id AND t.claim_token = mine.token
WHERE t.{key} = ANY($1)";

/// A pause of zero leaves the due time as it was, and with it the row's place in the queue.
const PUT_BACK: &str = "
WITH put_back AS (
    UPDATE {table} AS t
    SET
        status = CASE WHEN mine.dead THEN 'FAILED' ELSE 'PENDING' END,
        attempt_count = t.attempt_count + mine.cost,
        {found}
        next_retry_at = CASE
            WHEN mine.dead THEN 'infinity'
            WHEN mine.pause = 0 THEN t.next_retry_at
            ELSE clock_timestamp() + make_interval(secs => mine.pause)
        END,
        locked_by = NULL,
        locked_at = NULL,
        lease_until = NULL,
        claim_token = NULL,
        last_error = mine.error
    FROM unnest(
        $1::uuid [], $2::uuid [], $3::text [], $4::float8 [], $5::int [], $6::boolean [], $7::boolean []
    ) AS mine (id, token, error, pause, cost, dead, ran)
    WHERE t.{key} = mine.id AND t.claim_token = mine.token AND t.{key} = ANY($1)
    RETURNING t.*
),

letters AS (
    INSERT INTO {schema}.dead_letters (
        letter_id, source, source_id, queue, kind, payload, error, attempt_count, traceparent
    )
    SELECT
        gen_random_uuid(),
        '{name}',
        {key},
        {queue},
        {kind},
        {payload},
        coalesce(last_error, ''),
        attempt_count,
        traceparent
    FROM put_back
    WHERE status = 'FAILED'
    -- Somebody may have brought a dead row back by hand, past its letter.
    ON CONFLICT (source, source_id) WHERE redriven_at IS NULL AND discarded_at IS NULL
    DO UPDATE SET error = excluded.error, attempt_count = excluded.attempt_count, failed_at = now()
)

SELECT {key} FROM put_back";

const DELETE: &str = "
DELETE FROM {table} AS t
USING unnest($1::uuid [], $2::uuid []) AS mine (id, token)
WHERE t.{key} = mine.id AND t.claim_token = mine.token AND t.{key} = ANY($1)
RETURNING t.{key}";
