//! What people see of the consumers of a schema, and what they may do about one.
//!
//! Nobody waits here for a running consumer, and none waits for us: what is changed is its row, and
//! whatever it does next shows that it knows the row as it is.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};
use time::OffsetDateTime;
use uuid::Uuid;

use super::store::people::{Act, People};
use crate::Schema;
use crate::dlq::{ACTOR_LIMIT, ACTOR_RULE, REASON_LIMIT, REASON_RULE, is_plain};

/// The consumers of the logs of one schema, for people. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Consumers(Arc<People>);

/// What a consumer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// It handles what comes.
    Following,
    /// Rows that it has not handled are gone: it stands still, and must be rebuilt.
    TooFarBehind,
    /// It makes its store anew, from the source.
    Rebuilding,
}

impl State {
    /// As it is stored and shown: `FOLLOWING`, `TOO_FAR_BEHIND`, `REBUILDING`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Following => "FOLLOWING",
            Self::TooFarBehind => "TOO_FAR_BEHIND",
            Self::Rebuilding => "REBUILDING",
        }
    }

    pub(super) fn read(text: &str) -> sqlx::Result<Self> {
        let states = [Self::Following, Self::TooFarBehind, Self::Rebuilding];
        let state = states.into_iter().find(|state| state.as_str() == text);
        state.ok_or_else(|| {
            let unknown = format!("`{text}` is no state of a consumer that this release knows");
            sqlx::Error::Decode(unknown.into())
        })
    }
}

/// One consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consumer {
    /// What it is called.
    pub name: String,
    /// The log that it follows.
    pub log: String,
    /// What it is doing.
    pub state: State,
    /// It has handled everything up to this number.
    pub last_seq: i64,
    /// The highest number of its log.
    pub head_seq: i64,
    /// Rows up to this number may be gone: it can be moved back to here, and no further.
    pub floor_seq: i64,
    /// When its offset moved last.
    pub updated_at: OffsetDateTime,
    /// When it came to be.
    pub created_at: OffsetDateTime,
    /// When its store was last made anew.
    pub rebuilt_at: Option<OffsetDateTime>,
    /// The instance that is active; `None` when there is none, or it has not been heard of.
    pub owner: Option<String>,
    /// The row that it can't handle, or handles alone because one near it failed.
    pub trouble: Option<Trouble>,
    /// Rows that it has set aside.
    pub set_aside: u64,
}

impl Consumer {
    /// How many rows it has before it.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        u64::try_from(self.head_seq - self.last_seq).unwrap_or(0)
    }
}

/// A row that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trouble {
    /// Its number; `None` when it is not known yet which one it is.
    pub seq: Option<i64>,
    /// How often it was tried alone.
    pub attempts: u32,
    /// When it is tried again.
    pub retry_at: Option<OffsetDateTime>,
    /// What went wrong.
    pub error: Option<String>,
}

impl FromRow<'_, PgRow> for Consumer {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let state: String = row.try_get("state")?;
        let is_held: bool = row.try_get("is_held")?;
        let owner: Option<String> = row.try_get("owner")?;
        let attempts: i32 = row.try_get("attempts")?;
        let error: Option<String> = row.try_get("last_error")?;
        let set_aside: i64 = row.try_get("set_aside")?;
        let is_in_trouble = attempts > 0 || error.is_some();
        Ok(Self {
            name: row.try_get("consumer")?,
            log: row.try_get("log")?,
            state: State::read(&state)?,
            last_seq: row.try_get("last_seq")?,
            head_seq: row.try_get("head_seq")?,
            floor_seq: row.try_get("floor_seq")?,
            updated_at: row.try_get("updated_at")?,
            created_at: row.try_get("created_at")?,
            rebuilt_at: row.try_get("rebuilt_at")?,
            owner: owner.filter(|_| is_held),
            trouble: is_in_trouble
                .then(|| {
                    Ok::<_, sqlx::Error>(Trouble {
                        seq: row.try_get("attempt_seq")?,
                        attempts: u32::try_from(attempts).unwrap_or(0),
                        retry_at: row.try_get("retry_at")?,
                        error,
                    })
                })
                .transpose()?,
            set_aside: u64::try_from(set_aside).unwrap_or(0),
        })
    }
}

/// A row that a consumer could not handle. Its dead letter, of the source `seqlog_set_aside`, can be
/// redriven or discarded ([`dlq`](crate::dlq)).
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct SetAside {
    /// What its letter calls it.
    #[sqlx(rename = "set_aside_id")]
    pub id: Uuid,
    /// Its number.
    pub seq: i64,
    /// The row, as JSON.
    pub entry: String,
    /// `FAILED`, or `PENDING` when it was redriven and is tried again.
    pub status: String,
    /// How often it was tried.
    #[sqlx(rename = "attempt_count", try_from = "i32")]
    pub attempts: u32,
    /// What went wrong the last time.
    #[sqlx(rename = "last_error")]
    pub error: String,
    /// When it was set aside.
    pub set_aside_at: OffsetDateTime,
}

/// One consumer, and what happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Story {
    /// The consumer.
    pub consumer: Consumer,
    /// Rows that it could not handle; the first thousand.
    pub set_aside: Vec<SetAside>,
    /// Who did what about it, the first first.
    pub trail: Vec<Audit>,
}

/// What somebody did about a consumer.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct Audit {
    /// `REPLAY`, `REBUILD` or `FORGET`.
    pub action: String,
    /// Where the consumer was.
    pub from_seq: i64,
    /// Where it was moved.
    pub to_seq: Option<i64>,
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: String,
    /// When.
    pub acted_at: OffsetDateTime,
}

/// One log.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
#[non_exhaustive]
pub struct LogState {
    /// What it is called.
    pub log: String,
    /// The highest number given.
    pub last_seq: i64,
    /// Rows up to this number may be gone; everything above it is there.
    pub floor_seq: i64,
    /// When rows were last numbered.
    pub numbered_at: Option<OffsetDateTime>,
    /// The sequencer that was last at work.
    pub owner: Option<String>,
    /// Whether it still is.
    pub is_led: bool,
}

/// Why nothing was shown or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// A text that nobody could have meant, or that PostgreSQL refuses.
    #[error("`{what}` must be {rule}")]
    Invalid {
        /// Which one.
        what: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// There is no such consumer, or none that follows.
    #[error("there is no consumer `{0}`")]
    Unknown(String),
    /// There is one of this name.
    #[error("there is a consumer `{0}` already")]
    Exists(String),
    /// Rows after that number are gone, or are not there yet.
    #[error(
        "a consumer of this log can be moved to {floor} at the lowest and {head} at the highest"
    )]
    OutOfRange {
        /// The lowest number to go on from.
        floor: i64,
        /// The highest one.
        head: i64,
    },
    /// An instance is at work.
    #[error("consumer `{name}` is held by {owner}: stop it first")]
    Held {
        /// The consumer.
        name: String,
        /// Its instance.
        owner: String,
    },
    /// The database could not be asked.
    #[error("the consumers could not be read or changed")]
    Store(#[from] sqlx::Error),
}

impl Consumers {
    /// The consumers in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self(Arc::new(People::new(schema)))
    }

    /// Every consumer, by log and name.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn list(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Vec<Consumer>, ConsumerError> {
        Ok(self.0.list(connection).await?)
    }

    /// Every log.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn logs(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Vec<LogState>, ConsumerError> {
        Ok(self.0.logs(connection).await?)
    }

    /// One consumer, with what it has set aside and what people did about it.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn show(
        &self,
        connection: &mut PgConnection,
        name: &str,
    ) -> Result<Option<Story>, ConsumerError> {
        let Some(consumer) = self.0.show(connection, name).await? else {
            return Ok(None);
        };
        Ok(Some(Story {
            consumer,
            set_aside: self.0.set_aside(connection, name).await?,
            trail: self.0.trail(connection, name).await?,
        }))
    }

    /// Moves a consumer: everything after `to` is handled, again or not at all. Takes effect on a
    /// running one at its next word; what it had in hand is rolled back, or handled again if its
    /// effects are elsewhere. One that was too far behind follows again.
    ///
    /// Joins the caller's transaction. The consumer as it was.
    ///
    /// # Errors
    /// When there is no such consumer, or rows after `to` are gone or not there yet; when actor or
    /// reason are not acceptable; when the database can't be asked.
    pub async fn replay(
        &self,
        connection: &mut PgConnection,
        name: &str,
        to: i64,
        actor: &str,
        reason: &str,
    ) -> Result<Consumer, ConsumerError> {
        check(actor, reason)?;
        let consumer = self.lock(connection, name).await?;
        if to < consumer.floor_seq || to > consumer.head_seq {
            return Err(ConsumerError::OutOfRange {
                floor: consumer.floor_seq,
                head: consumer.head_seq,
            });
        }
        self.0.replay(connection, name, to).await?;
        let act = Act {
            consumer: name,
            action: "REPLAY",
            from: consumer.last_seq,
            to: Some(to),
            actor,
            reason,
        };
        self.act(connection, &act).await?;
        Ok(consumer)
    }

    /// Has a consumer make its store anew ([`Handler::rebuild`](super::Handler::rebuild)), whatever
    /// it is doing: its active instance begins at its next word.
    ///
    /// Joins the caller's transaction. The consumer as it was.
    ///
    /// # Errors
    /// When there is no such consumer; when actor or reason are not acceptable; when the database
    /// can't be asked.
    pub async fn rebuild(
        &self,
        connection: &mut PgConnection,
        name: &str,
        actor: &str,
        reason: &str,
    ) -> Result<Consumer, ConsumerError> {
        check(actor, reason)?;
        let consumer = self.lock(connection, name).await?;
        self.0.rebuild(connection, name).await?;
        let act = Act {
            consumer: name,
            action: "REBUILD",
            from: consumer.last_seq,
            to: None,
            actor,
            reason,
        };
        self.act(connection, &act).await?;
        Ok(consumer)
    }

    /// Forgets a consumer that nobody runs any more. What it has set aside stays, for one of this name:
    /// discard its letters if there will be none.
    ///
    /// Joins the caller's transaction. The consumer as it was.
    ///
    /// # Errors
    /// When there is no such consumer, or an instance is at work; when actor or reason are not
    /// acceptable; when the database can't be asked.
    pub async fn forget(
        &self,
        connection: &mut PgConnection,
        name: &str,
        actor: &str,
        reason: &str,
    ) -> Result<Consumer, ConsumerError> {
        check(actor, reason)?;
        let consumer = self.lock(connection, name).await?;
        if let Some(owner) = consumer.owner {
            let name = name.to_owned();
            return Err(ConsumerError::Held { name, owner });
        }
        self.0.forget(connection, name).await?;
        let act = Act {
            consumer: name,
            action: "FORGET",
            from: consumer.last_seq,
            to: None,
            actor,
            reason,
        };
        self.act(connection, &act).await?;
        Ok(consumer)
    }

    /// Makes a consumer of `log` that goes on after `seq`, for a store that is filled up to there:
    /// from a [`Snapshot`](super::Snapshot), beside the one that is in use. Joins the caller's
    /// transaction.
    ///
    /// # Errors
    /// When there is one of this name; when rows after `seq` are gone or not there yet; when the database
    /// can't be asked.
    pub async fn begin_at(
        &self,
        connection: &mut PgConnection,
        log: &str,
        name: &str,
        seq: i64,
    ) -> Result<(), ConsumerError> {
        let (floor, head) = self.0.bounds(connection, log).await?;
        if seq < floor || seq > head {
            return Err(ConsumerError::OutOfRange { floor, head });
        }
        if self.0.begin_at(connection, (name, log), seq).await? {
            return Ok(());
        }
        Err(ConsumerError::Exists(name.to_owned()))
    }

    /// Switches: `name` goes on where `fresh` is, with the rows that it has set aside, and `fresh` ends.
    /// Whatever instances of the two had in hand is rolled back; what `name` had set aside of the rows that
    /// `fresh` has handled is closed. Joins the caller's transaction, in which the fresh store takes the
    /// place of the old one. Where it goes on from.
    ///
    /// # Errors
    /// When `fresh` is no consumer that follows; when the database can't be asked.
    pub async fn replace(
        &self,
        connection: &mut PgConnection,
        fresh: &str,
        name: &str,
    ) -> Result<i64, ConsumerError> {
        let replaced = self.0.replace(connection, fresh, name).await?;
        replaced.ok_or_else(|| ConsumerError::Unknown(fresh.to_owned()))
    }

    async fn lock(
        &self,
        connection: &mut PgConnection,
        name: &str,
    ) -> Result<Consumer, ConsumerError> {
        let consumer = self.0.lock(connection, name).await?;
        consumer.ok_or_else(|| ConsumerError::Unknown(name.to_owned()))
    }

    async fn act(&self, connection: &mut PgConnection, act: &Act<'_>) -> Result<(), ConsumerError> {
        self.0.audit(connection, act).await?;
        tracing::warn!(
            consumer = act.consumer,
            action = act.action,
            seq.from = act.from,
            seq.to = act.to,
            actor = act.actor,
            reason = act.reason,
            "a person moved a consumer",
        );
        Ok(())
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.0.all()
    }
}

fn check(actor: &str, reason: &str) -> Result<(), ConsumerError> {
    for (what, text, limit, rule) in [
        ("actor", actor, ACTOR_LIMIT, ACTOR_RULE),
        ("reason", reason, REASON_LIMIT, REASON_RULE),
    ] {
        if !is_plain(text, limit) {
            return Err(ConsumerError::Invalid { what, rule });
        }
    }
    Ok(())
}
