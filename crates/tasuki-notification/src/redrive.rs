//! Messages that were set aside, sent back to work by a person.
//!
//! The message is read from its stream by its number and taken in as if it had just arrived, in
//! the transaction that closes its entry. Doing it again changes nothing: the entry is closed, and
//! the inbox knows the event.

use std::sync::Arc;

use bytes::Bytes;
use sqlx::PgPool;
use tasuki::begin;
use tasuki::bus::{NatsBus, Stored, Streams};
use tasuki::worker::Error;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::intake::Intake;
use crate::store::broker::{self, After, End};

/// An entry of the list of messages that were set aside.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SetAside {
    /// The stream.
    pub stream: String,
    /// When that stream was created; where we learned of the message only after the stream was
    /// gone, when the broker gave it up.
    pub stream_created_at: OffsetDateTime,
    /// The message's number in it.
    pub stream_seq: i64,
    /// Whose consumer it was set aside by.
    pub consumer: String,
    /// The message's id, if it had one.
    pub message_id: Option<Uuid>,
    /// `MAX_DELIVERIES`, `TERMINATED` or `MISSED`.
    pub kind: String,
    /// Why.
    pub reason: Option<String>,
    /// How often it was delivered.
    pub deliveries: Option<i64>,
    /// When it was set aside.
    pub created_at: OffsetDateTime,
    /// When it was taken in after all.
    pub redriven_at: Option<OffsetDateTime>,
    /// When somebody gave it up.
    pub discarded_at: Option<OffsetDateTime>,
    /// Who redrove or discarded it, or tried to.
    pub closed_by: Option<String>,
    /// Why somebody gave it up.
    pub discard_reason: Option<String>,
    /// What went wrong at the last redrive that failed.
    pub last_error: Option<String>,
}

impl SetAside {
    /// What no other entry is called: stream, number, and when the stream was created, in
    /// microseconds since 1970.
    #[must_use]
    pub fn id(&self) -> String {
        let created = self.stream_created_at.unix_timestamp_nanos() / 1000;
        format!("{}@{}@{created}", self.stream, self.stream_seq)
    }
}

/// What became of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Redriven {
    /// It was taken in now.
    Done,
    /// It is not open: nothing was done.
    NotOpen,
    /// It can't be taken in, and stays open.
    Failed(String),
}

/// The messages that were set aside.
#[derive(Clone, Debug)]
pub struct Aside {
    pub(crate) pool: PgPool,
    pub(crate) bus: Arc<NatsBus>,
    pub(crate) intakes: Vec<Intake>,
}

impl Aside {
    /// The latest entries, the open ones or all.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn list(&self, open_only: bool, limit: u32) -> sqlx::Result<Vec<SetAside>> {
        self.page(open_only, None, limit).await
    }

    /// The same, beginning after an entry of the page before.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn page(
        &self,
        open_only: bool,
        after: Option<&SetAside>,
        limit: u32,
    ) -> sqlx::Result<Vec<SetAside>> {
        let after = after.map(|entry| After {
            created_at: entry.created_at,
            stream: &entry.stream,
            stream_created_at: entry.stream_created_at,
            stream_seq: entry.stream_seq,
        });
        let mut connection = self.pool.acquire().await?;
        let entries = broker::list(&mut connection, open_only, after, limit.into()).await?;
        Ok(entries.into_iter().map(SetAside::from).collect())
    }

    /// Takes an entry's message in, and closes the entry in the same transaction.
    ///
    /// # Errors
    /// When the database or the broker can't be asked; nothing has changed then.
    pub async fn redrive(&self, entry: &SetAside, actor: &str) -> Result<Redriven, Error> {
        let key = (&*entry.stream, entry.stream_created_at, entry.stream_seq);
        let mut tx = begin(&self.pool).await?;
        if broker::hold(&mut tx, key.0, key.1, key.2).await?.is_none() {
            return Ok(Redriven::NotOpen);
        }
        // Inside the transaction, which holds nothing but this entry: two people at once must not
        // both read and then both act.
        let outcome = self.take(&mut tx, entry).await?;
        let end = match &outcome {
            Redriven::Failed(why) => End::StillFailing(why),
            Redriven::Done | Redriven::NotOpen => End::Redriven,
        };
        broker::end(&mut tx, key, actor, &end).await?;
        tx.commit().await?;
        for intake in &self.intakes {
            intake.bell.ring();
        }
        Ok(outcome)
    }

    /// Gives an entry up, with a reason; says whether it was open.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn discard(&self, entry: &SetAside, actor: &str, reason: &str) -> sqlx::Result<bool> {
        let key = (&*entry.stream, entry.stream_created_at, entry.stream_seq);
        let mut tx = begin(&self.pool).await?;
        if broker::hold(&mut tx, key.0, key.1, key.2).await?.is_none() {
            return Ok(false);
        }
        broker::end(&mut tx, key, actor, &End::Discarded(reason)).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// What the message says; nothing if the stream does not have it any more.
    ///
    /// # Errors
    /// When the broker can't be asked.
    pub async fn payload(&self, entry: &SetAside) -> Result<Option<Bytes>, Error> {
        let message = self.message(entry).await?;
        Ok(message.ok().map(|message| message.payload))
    }

    /// The message of an entry, or why it is gone.
    async fn message(&self, entry: &SetAside) -> Result<Result<Stored, &'static str>, Error> {
        let state = self.bus.stream(&entry.stream).await?;
        if state.is_none_or(|state| state.created_at != entry.stream_created_at) {
            return Ok(Err("its stream was made again, the message is gone"));
        }
        let sequence = u64::try_from(entry.stream_seq)?;
        let Some(message) = self.bus.message_at(&entry.stream, sequence).await? else {
            return Ok(Err("the stream has it no longer"));
        };
        if message.id != entry.message_id {
            return Ok(Err(
                "the broker has lost it and given its number to another message",
            ));
        }
        Ok(Ok(message))
    }

    async fn take(&self, tx: &mut sqlx::PgConnection, entry: &SetAside) -> Result<Redriven, Error> {
        let failed = |why: &str| Ok(Redriven::Failed(why.to_owned()));
        let mut intakes = self.intakes.iter();
        let Some(intake) = intakes.find(|intake| intake.consumer == entry.consumer) else {
            return failed("its consumer is not configured here");
        };
        let message = match self.message(entry).await? {
            Ok(message) => message,
            Err(gone) => return failed(gone),
        };
        match intake.parse(&message.payload, message.header("traceparent")) {
            Ok(event) => {
                intake.take(tx, &[&event]).await?;
                Ok(Redriven::Done)
            }
            Err(poison) => failed(&poison.to_string()),
        }
    }
}

impl From<broker::Entry> for SetAside {
    fn from(entry: broker::Entry) -> Self {
        Self {
            stream: entry.stream,
            stream_created_at: entry.stream_created_at,
            stream_seq: entry.stream_seq,
            consumer: entry.consumer,
            message_id: entry.message_id,
            kind: entry.kind,
            reason: entry.reason,
            deliveries: entry.deliveries,
            created_at: entry.created_at,
            redriven_at: entry.redriven_at,
            discarded_at: entry.discarded_at,
            closed_by: entry.closed_by,
            discard_reason: entry.discard_reason,
            last_error: entry.last_error,
        }
    }
}
