//! The SQL of sagas. A write of many is one statement; none waits for a lock that a user may hold.

pub(super) mod outlines;
mod sql;

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, FromRow, PgConnection, Row, SqlSafeStr, SqlStr};
use uuid::Uuid;

use super::journal::CANCEL;
use super::json::Json;
use super::view::{Filter, Summary, Told};
use crate::Schema;
use crate::lease::{Claim, Claimed, Estate, Leases, Owner};
use sql::{
    AMEND, BEREAVE, CALL, CLOSE, EXISTS, FENCE, FENCE_FREE, GET, HOLD, LIST, SAGAS, SIGNAL,
    STANDING, WRITE,
};

/// What a transaction begins with: its first statements are ours.
///
/// A step that waits for a lock holds its saga's row: the server must notice that its process has
/// died, or nobody else could go on with it until the wait is over.
pub(super) const UNHURRIED: &str = "SET LOCAL statement_timeout = 20000; \
     SET LOCAL lock_timeout = 20000; \
     SET LOCAL client_connection_check_interval = 500";
/// Takes the next one: the last step is kept.
pub(super) const NEXT_SAVEPOINT: &str = "RELEASE SAVEPOINT step; SAVEPOINT step";
/// Keeps the last step. What is left is ours to write, and may take its time.
pub(super) const RELEASE: &str =
    "RELEASE SAVEPOINT step; SET LOCAL statement_timeout = 20000; SET LOCAL lock_timeout = 20000";
/// Takes back what a step has written.
pub(super) const ROLL_BACK: &str = "ROLLBACK TO SAVEPOINT step";

/// The same, and from now on nobody waits for a lock. (A setting that was made behind a savepoint goes
/// back with it.)
pub(super) const ROLL_BACK_AND_HURRY: &str = "ROLLBACK TO SAVEPOINT step; RELEASE SAVEPOINT step; \
     SET LOCAL lock_timeout = 1; SAVEPOINT step";

/// The statements for one schema.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) leases: Leases,
    pub(super) channel: String,
    write: String,
    fence: String,
    fence_free: String,
    standing: String,
    exists: String,
    signal: String,
    call: String,
    bereave: String,
    hold: String,
    amend: String,
    close: String,
    get: String,
    list: String,
}

/// One claim, and how far its story had come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) id: Uuid,
    pub(super) token: Uuid,
    pub(super) moves: i32,
}

/// A saga that is written for the first time.
#[derive(Clone, Debug)]
pub(super) struct Birth {
    pub(super) definition: String,
    pub(super) version: i32,
    pub(super) deadline: Option<Duration>,
    pub(super) traceparent: Option<String>,
}

/// What becomes of the claim with a write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Hold {
    /// Its process goes on with it.
    Keep,
    /// It is nobody's until then; `None`: until somebody makes it due.
    Wait(Option<Duration>),
    /// It has ended.
    End,
}

/// A saga as it is to be written.
#[derive(Debug)]
pub(super) struct Written<'a> {
    pub(super) place: Place,
    pub(super) birth: Option<&'a Birth>,
    pub(super) hold: Hold,
    pub(super) state: &'static str,
    pub(super) step: Option<&'a str>,
    pub(super) story: String,
    pub(super) bounded: bool,
    pub(super) awaits: Option<String>,
    /// What was said to it and has been heard.
    pub(super) heard: &'a [String],
}

/// Something that was said to a saga.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Heard {
    pub(super) name: String,
    pub(super) payload: Json,
}

/// A claimed saga.
#[derive(Debug)]
pub(super) struct SagaRow {
    pub(super) definition: String,
    pub(super) version: i32,
    pub(super) moves: i32,
    pub(super) story: String,
    pub(super) traceparent: Option<String>,
    pub(super) lost: i32,
    pub(super) remaining: Option<f64>,
    /// Seconds since its last move.
    pub(super) rested: f64,
    pub(super) signals: Vec<Heard>,
}

/// A saga that a person is about to change.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) definition: String,
    pub(super) version: i32,
    pub(super) story: String,
}

/// A saga as a person has changed it.
#[derive(Debug)]
pub(super) struct Amended<'a> {
    pub(super) id: Uuid,
    pub(super) state: &'a str,
    pub(super) step: Option<&'a str>,
    pub(super) story: String,
    /// It goes forward again, within this time, whatever it was told before.
    pub(super) afresh: Option<Option<Duration>>,
}

impl Store {
    pub(super) fn new(schema: &Schema) -> Self {
        Self {
            leases: Leases::new(schema, &SAGAS),
            channel: format!("{schema}.sagas"),
            write: schema.render(WRITE),
            fence: schema.render(FENCE),
            fence_free: schema.render(FENCE_FREE),
            standing: schema.render(STANDING),
            exists: schema.render(EXISTS),
            signal: schema.render(SIGNAL),
            call: schema.render(CALL),
            bereave: schema.render(BEREAVE),
            hold: schema.render(HOLD),
            amend: schema.render(AMEND),
            close: schema.render(CLOSE),
            get: schema.render(GET),
            list: schema.render(LIST),
        }
    }

    pub(super) fn statements(&self) -> impl Iterator<Item = &str> {
        let ours = [
            &self.write,
            &self.fence,
            &self.fence_free,
            &self.standing,
            &self.exists,
            &self.signal,
            &self.call,
            &self.bereave,
            &self.hold,
            &self.amend,
            &self.close,
            &self.get,
            &self.list,
        ];
        self.leases
            .statements()
            .chain(ours.into_iter().map(String::as_str))
    }

    /// Writes many sagas. Answers those that were still theirs, with what was said to each.
    pub(super) async fn write(
        &self,
        connection: &mut PgConnection,
        sagas: &[Written<'_>],
        lease: Duration,
        owner: &Owner,
    ) -> sqlx::Result<HashMap<Uuid, Vec<Heard>>> {
        let (born, moved): (Vec<_>, Vec<_>) = sagas.iter().partition(|saga| saga.birth.is_some());
        let query = sqlx::query(AssertSqlSafe(self.write.as_str()));
        let query = query
            .bind(column(&moved, |saga| saga.place.id))
            .bind(column(&moved, |saga| saga.place.token))
            .bind(column(&moved, |saga| saga.place.moves))
            .bind(column(&moved, |saga| saga.hold.as_str()))
            .bind(column(&moved, |saga| saga.state))
            .bind(column(&moved, |saga| saga.step))
            .bind(column(&moved, |saga| saga.story.as_str()))
            .bind(column(&moved, |saga| saga.hold.pause()))
            .bind(column(&moved, |saga| saga.bounded))
            .bind(column(&moved, |saga| saga.awaits.as_deref()))
            .bind(lease.as_secs_f64())
            .bind(owner.as_str());
        let birth = |saga: &Written<'_>| saga.birth.cloned();
        let births: Vec<Birth> = born.iter().filter_map(|saga| birth(saga)).collect();
        let births: Vec<&Birth> = births.iter().collect();
        let query = query
            .bind(column(&born, |saga| saga.place.id))
            .bind(column(&births, |birth| birth.definition.as_str()))
            .bind(column(&births, |birth| birth.version))
            .bind(column(&born, |saga| saga.hold.as_str()))
            .bind(column(&born, |saga| saga.state))
            .bind(column(&born, |saga| saga.step))
            .bind(column(&born, |saga| saga.story.as_str()))
            .bind(column(&born, |saga| saga.hold.pause()))
            .bind(column(&born, |saga| saga.awaits.as_deref()))
            .bind(column(&births, |birth| birth.deadline.map(seconds)))
            .bind(column(&births, |birth| birth.traceparent.as_deref()))
            .bind(column(&born, |saga| saga.place.token));
        let said = moved
            .iter()
            .flat_map(|saga| saga.heard.iter().map(|name| (saga.place.id, name.as_str())));
        let (ids, names): (Vec<Uuid>, Vec<&str>) = said.unzip();
        let query = query.bind(ids).bind(names);
        let rows = query.fetch_all(connection).await?;
        rows.iter()
            .map(|row| Ok((row.try_get("saga_id")?, heard(row)?)))
            .collect()
    }

    /// Locks those that are still theirs. Answers which, and which of the others are theirs, too,
    /// and locked by somebody else. Who may wait waits for those.
    pub(super) async fn fence(
        &self,
        connection: &mut PgConnection,
        places: &[&Place],
        may_wait: bool,
    ) -> sqlx::Result<(Vec<Uuid>, Vec<Uuid>)> {
        if places.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let statement = match may_wait {
            true => &self.fence,
            false => &self.fence_free,
        };
        let sound = ours(&mut *connection, statement, places).await?;
        if may_wait || sound.len() == places.len() {
            return Ok((sound, Vec::new()));
        }
        let mut busy = ours(connection, &self.standing, places).await?;
        busy.retain(|id| !sound.contains(id));
        Ok((sound, busy))
    }

    pub(super) async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
        known: &(Vec<String>, Vec<i32>),
    ) -> sqlx::Result<Vec<Claimed<SagaRow>>> {
        let more = |arguments: &mut sqlx::postgres::PgArguments| {
            use sqlx::Arguments;
            arguments.add(known.0.as_slice())?;
            arguments.add(known.1.as_slice())
        };
        self.leases.claim(connection, claim, more).await
    }

    /// Whether there is or was a saga of this id. Whoever asks for the same one next waits until this
    /// transaction ends.
    pub(super) async fn exists(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<bool> {
        let (high, low) = id.as_u64_pair();
        sqlx::query("SELECT pg_advisory_xact_lock($1)")
            .bind((high ^ low).cast_signed())
            .execute(&mut *connection)
            .await?;
        sqlx::query_scalar(AssertSqlSafe(self.exists.as_str()))
            .bind(id)
            .fetch_one(connection)
            .await
    }

    pub(super) async fn signal(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
        name: &str,
        payload: &str,
    ) -> sqlx::Result<bool> {
        sqlx::query_scalar(AssertSqlSafe(self.signal.as_str()))
            .bind(id)
            .bind(name)
            .bind(payload)
            .fetch_one(connection)
            .await
    }

    /// Makes those due that wait for what was said to them.
    pub(super) async fn call(&self, connection: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.call.as_str()))
            .execute(connection)
            .await?;
        Ok(())
    }

    /// Ends the leases of owners that have died. Answers those who had any.
    pub(super) async fn bereave(
        &self,
        connection: &mut PgConnection,
        owners: &[String],
    ) -> sqlx::Result<Vec<Estate>> {
        let found: Vec<(String, i64)> = sqlx::query_as(AssertSqlSafe(self.bereave.as_str()))
            .bind(owners)
            .fetch_all(connection)
            .await?;
        let estate = |(owner, ended)| Estate { owner, ended };
        Ok(found.into_iter().map(estate).collect())
    }

    /// A saga that needs a person, locked.
    pub(super) async fn hold(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<Option<Held>> {
        let row = sqlx::query(AssertSqlSafe(self.hold.as_str()))
            .bind(id)
            .fetch_optional(connection)
            .await?;
        row.map(|row| {
            Ok(Held {
                definition: row.try_get("definition")?,
                version: row.try_get("version")?,
                story: row.try_get("story")?,
            })
        })
        .transpose()
    }

    pub(super) async fn amend(
        &self,
        connection: &mut PgConnection,
        amended: &Amended<'_>,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.amend.as_str()))
            .bind(amended.id)
            .bind(amended.state)
            .bind(amended.step)
            .bind(&amended.story)
            .bind(amended.afresh.map(|_| CANCEL))
            .bind(amended.afresh.flatten().map(seconds))
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(super) async fn close(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
        state: &str,
        story: &str,
    ) -> sqlx::Result<()> {
        sqlx::query(AssertSqlSafe(self.close.as_str()))
            .bind(id)
            .bind(state)
            .bind(story)
            .execute(connection)
            .await?;
        Ok(())
    }

    pub(super) async fn get(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
    ) -> sqlx::Result<Option<Told>> {
        sqlx::query_as(AssertSqlSafe(self.get.as_str()))
            .bind(id)
            .fetch_optional(connection)
            .await
    }

    pub(super) async fn list(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
    ) -> sqlx::Result<Vec<Summary>> {
        sqlx::query_as(AssertSqlSafe(self.list.as_str()))
            .bind(filter.state.as_deref())
            .bind(filter.definition.as_deref())
            .bind(filter.before)
            .bind(i64::from(filter.limit))
            .fetch_all(connection)
            .await
    }
}

impl Hold {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "KEEP",
            Self::Wait(_) => "WAIT",
            Self::End => "END",
        }
    }

    fn pause(self) -> Option<f64> {
        match self {
            Self::Wait(pause) => pause.map(seconds),
            Self::Keep | Self::End => None,
        }
    }
}

/// Longer waits are cut: one that the database can't add to a time would fail its whole batch.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn seconds(wait: Duration) -> f64 {
    wait.min(LONGEST).as_secs_f64()
}

/// Those of `places` that `statement` finds.
async fn ours(
    connection: &mut PgConnection,
    statement: &str,
    places: &[&Place],
) -> sqlx::Result<Vec<Uuid>> {
    sqlx::query_scalar(AssertSqlSafe(statement))
        .bind(column(places, |place| place.id))
        .bind(column(places, |place| place.token))
        .bind(column(places, |place| place.moves))
        .fetch_all(connection)
        .await
}

/// One array of a column.
fn column<'a, T, V>(rows: &[&'a T], value: impl Fn(&'a T) -> V) -> Vec<V> {
    rows.iter().map(|row| value(row)).collect()
}

/// What was said to the saga of this row.
fn heard(row: &PgRow) -> sqlx::Result<Vec<Heard>> {
    let signals: Option<&str> = row.try_get("signals")?;
    match signals {
        None => Ok(Vec::new()),
        Some(signals) => {
            serde_json::from_str(signals).map_err(|error| sqlx::Error::Decode(error.into()))
        }
    }
}

impl FromRow<'_, PgRow> for SagaRow {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            definition: row.try_get("definition")?,
            version: row.try_get("version")?,
            moves: row.try_get("moves")?,
            story: row.try_get("story")?,
            traceparent: row.try_get("traceparent")?,
            lost: row.try_get("lost_count")?,
            remaining: row.try_get("remaining")?,
            rested: row.try_get("rested")?,
            signals: heard(row)?,
        })
    }
}

/// Takes the first savepoint: from here on a step may wait so long for a lock, and a statement of it
/// take so long.
pub(super) fn first_savepoint(lock: Duration, statement: Duration) -> SqlStr {
    let (lock, statement) = (lock.as_millis(), statement.as_millis());
    let words = format!(
        "SET LOCAL lock_timeout = {lock}; SET LOCAL statement_timeout = {statement}; \
         SAVEPOINT step"
    );
    AssertSqlSafe(words).into_sql_str()
}

/// Says one of the words about savepoints.
pub(super) async fn say(connection: &mut PgConnection, statement: SqlStr) -> sqlx::Result<()> {
    sqlx::raw_sql(statement).execute(connection).await?;
    Ok(())
}
