//! The SQL of the job queue. A statement never waits for a lock that a user may hold for long.

pub(super) mod schedule;
mod sql;

use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::job::Draft;
use super::{Job, JobId, State, View};
use crate::Schema;
use crate::lease::{Claim, Claimed, Fence, Leases, Look, Start, split};
use schedule::ScheduleStore;
use sql::{BURIED, CANCEL, FINISH, GET, INSERT, INSERT_SET, JOBS, KEEP, LOOK, RELEASE};

/// The statements for one schema.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) leases: Leases,
    pub(super) schedules: ScheduleStore,
    pub(super) channel: String,
    look: String,
    insert: String,
    insert_set: String,
    finish: String,
    keep: String,
    buried: String,
    cancel: String,
    get: String,
}

/// When a job is due: this long from now, and not before that time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    pub(super) wait: f64,
    pub(super) not_before: Option<OffsetDateTime>,
}

/// What a worker gets to know of a claimed job.
#[derive(Debug)]
pub(super) struct JobRow {
    pub(super) kind: String,
    pub(super) priority: i16,
    pub(super) due_at: OffsetDateTime,
    pub(super) waited: Duration,
    pub(super) payload: String,
    pub(super) traceparent: Option<String>,
    pub(super) is_unique: bool,
    /// Claims of it that expired.
    pub(super) lost: i32,
}

/// A job that has just died.
#[derive(Debug)]
pub(super) struct Buried {
    pub(super) id: Uuid,
    pub(super) kind: String,
    pub(super) payload: String,
    pub(super) traceparent: Option<String>,
}

impl Store {
    pub(super) fn new(schema: &Schema) -> Self {
        let finish = |keep: &str| {
            let sql = FINISH.replace("{keep}", keep).replace("{release}", RELEASE);
            schema.render(&sql)
        };
        Self {
            leases: Leases::new(schema, &JOBS),
            schedules: ScheduleStore::new(schema),
            channel: format!("{schema}.jobs"),
            look: schema.render(&LOOK.replace("{claimable}", &JOBS.claimable())),
            insert: schema.render(INSERT),
            insert_set: schema.render(INSERT_SET),
            finish: finish(""),
            keep: finish(KEEP),
            buried: schema.render(&BURIED.replace("{release}", RELEASE)),
            cancel: schema.render(&CANCEL.replace("{release}", RELEASE)),
            get: schema.render(GET),
        }
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = &str> {
        let ours = [
            &self.look,
            &self.insert,
            &self.insert_set,
            &self.finish,
            &self.keep,
            &self.buried,
            &self.cancel,
            &self.get,
        ];
        let ours = ours.into_iter().map(String::as_str);
        self.leases
            .statements()
            .chain(ours)
            .chain(self.schedules.statements())
    }

    pub(super) async fn insert<J: Job>(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
        draft: &Draft,
        traceparent: Option<&str>,
        due: &Due,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.insert.as_str()))
            .bind(id)
            .bind(J::QUEUE)
            .bind(draft.priority)
            .bind(J::KIND)
            .bind(draft.payload.as_str())
            .bind(traceparent)
            .bind(due.not_before)
            .bind(due.wait)
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Inserts those that have no twin. Answers for each the job that there is now, itself or its
    /// twin; one that is missing has a twin that this statement could not see yet.
    pub(super) async fn insert_set<J: Job>(
        &self,
        connection: &mut PgConnection,
        drafts: &[(Uuid, &Draft)],
        traceparent: Option<&str>,
        due: &Due,
    ) -> sqlx::Result<Vec<(Uuid, Uuid)>> {
        let ids: Vec<Uuid> = drafts.iter().map(|(id, _)| *id).collect();
        let drafts = || drafts.iter().map(|(_, draft)| draft);
        let priorities: Vec<i16> = drafts().map(|draft| draft.priority).collect();
        let payloads: Vec<&str> = drafts().map(|draft| draft.payload.as_str()).collect();
        let uniques = || drafts().map(|draft| draft.unique.as_ref());
        let unique_ids: Vec<Option<&str>> = uniques()
            .map(|unique| unique.map(|u| u.id.as_str()))
            .collect();
        let holds: Vec<Option<f64>> = uniques().map(|unique| unique.map(|u| u.holds)).collect();
        sqlx::query_as(AssertSqlSafe(self.insert_set.as_str()))
            .bind(J::QUEUE)
            .bind(J::KIND)
            .bind(traceparent)
            .bind(due.not_before)
            .bind(due.wait)
            .bind(ids)
            .bind(priorities)
            .bind(payloads)
            .bind(unique_ids)
            .bind(holds)
            .fetch_all(connection)
            .await
    }

    /// Claims, and tells the database's time.
    pub(super) async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
        queue: &str,
        start: &Start,
    ) -> sqlx::Result<(Vec<Claimed<JobRow>>, Option<OffsetDateTime>)> {
        let (rows, now) = self
            .leases
            .claim_from(connection, claim, |arguments| {
                use sqlx::Arguments;
                arguments.add(queue)?;
                arguments.add(start.from.as_slice())
            })
            .await?;
        let milliseconds = now.and_then(|now| now.parse::<i128>().ok());
        let now = milliseconds
            .and_then(|ms| OffsetDateTime::from_unix_timestamp_nanos(ms * 1_000_000).ok());
        Ok((rows, now))
    }

    /// The first job of each lane that may be claimed before `look` ends.
    pub(super) async fn look(
        &self,
        connection: &mut PgConnection,
        queue: &str,
        look: &Look,
    ) -> sqlx::Result<Vec<(usize, OffsetDateTime)>> {
        let first: Vec<(i32, OffsetDateTime)> = sqlx::query_as(AssertSqlSafe(self.look.as_str()))
            .bind(queue)
            .bind(look.until.as_slice())
            .fetch_all(connection)
            .await?;
        let lanes = first.into_iter();
        Ok(lanes
            .filter_map(|(lane, due)| Some((usize::try_from(lane).ok()?, due)))
            .collect())
    }

    /// Finishes jobs: deletes them, releases their unique ids, and keeps a copy if told so.
    /// Answers those whose claim still held.
    pub(super) async fn finish(
        &self,
        connection: &mut PgConnection,
        fences: &[Fence],
        keep: bool,
    ) -> sqlx::Result<Vec<Uuid>> {
        let sql = if keep { &self.keep } else { &self.finish };
        let (ids, tokens) = split(fences);
        sqlx::query_scalar(AssertSqlSafe(sql.as_str()))
            .bind(ids)
            .bind(tokens)
            .fetch_all(connection)
            .await
    }

    /// Jobs that have just died, whose unique ids are released.
    pub(super) async fn buried(
        &self,
        connection: &mut PgConnection,
        ids: &[Uuid],
    ) -> sqlx::Result<Vec<Buried>> {
        let rows = sqlx::query_as(AssertSqlSafe(self.buried.as_str()))
            .bind(ids)
            .fetch_all(connection)
            .await?;
        let buried = rows.into_iter();
        Ok(buried
            .map(|(id, kind, payload, traceparent)| Buried {
                id,
                kind,
                payload,
                traceparent,
            })
            .collect())
    }

    pub(super) async fn cancel(
        &self,
        connection: &mut PgConnection,
        id: JobId,
    ) -> sqlx::Result<bool> {
        let gone: Option<Uuid> = sqlx::query_scalar(AssertSqlSafe(self.cancel.as_str()))
            .bind(id)
            .fetch_optional(connection)
            .await?;
        Ok(gone.is_some())
    }

    pub(super) async fn get(
        &self,
        connection: &mut PgConnection,
        id: JobId,
    ) -> sqlx::Result<Option<View>> {
        sqlx::query_as(AssertSqlSafe(self.get.as_str()))
            .bind(id)
            .fetch_optional(connection)
            .await
    }
}

/// Ends statements of this transaction that take longer, or wait longer for a lock.
pub(super) async fn limit_statements(
    connection: &mut PgConnection,
    limit: Duration,
) -> sqlx::Result<()> {
    sqlx::query(
        "SELECT set_config('statement_timeout', $1, TRUE), set_config('lock_timeout', $1, TRUE)",
    )
    .bind(format!("{}ms", limit.as_millis()))
    .execute(connection)
    .await?;
    Ok(())
}

impl FromRow<'_, PgRow> for JobRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let waited: f64 = row.try_get("waited")?;
        Ok(Self {
            kind: row.try_get("kind")?,
            priority: row.try_get("priority")?,
            due_at: row.try_get("next_retry_at")?,
            waited: Duration::try_from_secs_f64(waited).unwrap_or_default(),
            payload: row.try_get("payload")?,
            traceparent: row.try_get("traceparent")?,
            is_unique: row.try_get("is_unique")?,
            lost: row.try_get("lost_count")?,
        })
    }
}

impl FromRow<'_, PgRow> for View {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let state = match row.try_get("status")? {
            "PENDING" => State::Waiting,
            "PROCESSING" => State::Running,
            "FAILED" => State::Dead,
            _ => State::Finished,
        };
        let attempts: i32 = row.try_get("attempt_count")?;
        Ok(Self {
            id: row.try_get("job_id")?,
            queue: row.try_get("queue")?,
            kind: row.try_get("kind")?,
            state,
            payload: row.try_get("payload")?,
            failed_attempts: u32::try_from(attempts).unwrap_or(0),
            created_at: row.try_get("created_at")?,
            due_at: row.try_get("due_at")?,
            finished_at: row.try_get("finished_at")?,
            locked_by: row.try_get("locked_by")?,
            last_error: row.try_get("last_error")?,
            traceparent: row.try_get("traceparent")?,
        })
    }
}
