//! The handle on a schema's sagas: start in the caller's transaction, say something to one, look.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::PgConnection;
use tracing::Span;
use uuid::Uuid;

use super::define::Definition;
use super::journal::{CANCEL, awaits};
use super::json::Json;
use super::step::At;
use super::store::outlines::Outlines;
use super::store::{Birth, Hold, Place, Store, Written};
use super::story::Story;
use super::view::{Filter, Summary, View};
use super::{Error, Outline, SagaId, Signal};
use crate::lease::Owner;
use crate::worker::{Bell, Listener, Ringer};
use crate::{Clock, Schema, uuid_v7};

/// The sagas of one schema. Clones are cheap and ring the same bell.
#[derive(Clone, Debug)]
pub struct Sagas {
    pub(super) store: Arc<Store>,
    pub(super) outlines: Arc<Outlines>,
    schema: Schema,
    bell: Bell,
    pub(super) clock: Clock,
    trace: fn() -> Option<String>,
    adopt: fn(&Span, &str),
}

impl Sagas {
    /// The sagas in `schema`.
    #[must_use]
    pub fn new(schema: &Schema) -> Self {
        Self {
            store: Arc::new(Store::new(schema)),
            outlines: Arc::new(Outlines::new(schema)),
            schema: schema.clone(),
            bell: Bell::new(),
            clock: Clock::system(),
            trace: || None,
            adopt: |_, _| {},
        }
    }

    /// Stores with each saga the `traceparent` that this answers: the trace of whoever starts it.
    #[must_use]
    pub fn with_trace(mut self, current: fn() -> Option<String>) -> Self {
        self.trace = current;
        self
    }

    /// Lets this make the span of a step a child of the `traceparent` that is stored with its saga:
    /// whoever runs it, and however often it changes hands, a saga is one trace.
    #[must_use]
    pub fn continuing_trace(mut self, adopt: fn(&Span, &str)) -> Self {
        self.adopt = adopt;
        self
    }

    /// Takes the time part of ids, and the times of notes, from `clock`.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Starts a saga in the caller's transaction: it runs if, and only if, that commits.
    ///
    /// # Errors
    /// When the input can't be written as JSON, which leaves the transaction usable; or when the
    /// database can't do it, which does not.
    pub async fn start<I>(
        &self,
        connection: &mut PgConnection,
        definition: &Definition<I>,
        input: &I,
    ) -> Result<SagaId, Error>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        let id = uuid_v7(&self.clock);
        self.insert(connection, id, definition, input).await?;
        Ok(SagaId::from(id))
    }

    /// Starts the saga `id` unless it is there, or was, and says whether it did. Who tries the same
    /// at the same time waits for this transaction.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_as<I>(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        definition: &Definition<I>,
        input: &I,
    ) -> Result<bool, Error>
    where
        I: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        if self.store.exists(connection, id.as_uuid()).await? {
            return Ok(false);
        }
        self.insert(connection, id.as_uuid(), definition, input)
            .await?;
        Ok(true)
    }

    async fn insert<I: Serialize>(
        &self,
        connection: &mut PgConnection,
        id: Uuid,
        definition: &Definition<I>,
        input: &I,
    ) -> Result<(), Error> {
        let declared = &definition.declared;
        let input = Json::of(input).map_err(Error::Input)?;
        let story = Story::new(input, &declared.fingerprint);
        let birth = Birth {
            definition: declared.name.clone(),
            version: declared.stored_version(),
            deadline: declared.timeout,
            traceparent: self.trace(),
        };
        let written = Written {
            place: Place {
                id,
                token: Uuid::nil(),
                moves: 0,
            },
            birth: Some(&birth),
            hold: Hold::Wait(Some(std::time::Duration::ZERO)),
            state: story.state(),
            step: None,
            story: serde_json::to_string(&story).map_err(Error::Input)?,
            bounded: true,
            awaits: awaits(&story, declared),
            heard: &[],
        };
        let nobody = Owner::on("");
        let lease = std::time::Duration::ZERO;
        self.store
            .write(connection, &[written], lease, &nobody)
            .await?;
        Ok(())
    }

    /// Says `S` to a saga, in the caller's transaction; `false`: it is not there any more. It is heard
    /// when the saga comes to wait for it, also if that is later; of several the first counts.
    ///
    /// `true` says that the saga was there, not that it will hear this: nobody waits for the other, so
    /// one that ends before this transaction does has not heard it.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn signal<S: Signal>(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        payload: &S::Payload,
    ) -> Result<bool, Error> {
        let payload = serde_json::to_string(payload).map_err(Error::Input)?;
        let sent = self
            .store
            .signal(connection, id.as_uuid(), S::NAME, &payload)
            .await?;
        Ok(sent)
    }

    /// Asks a saga to turn back, in the caller's transaction; `false`: it is not there any more. One
    /// whose pivot is done, or on its way, goes on, and so does one that ends before this transaction
    /// does: how it ended tells whether it was cancelled.
    ///
    /// # Errors
    /// When the database can't do it.
    pub async fn cancel(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
        by: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        let payload = serde_json::json!({ "by": by, "reason": reason }).to_string();
        let sent = self
            .store
            .signal(connection, id.as_uuid(), CANCEL, &payload)
            .await?;
        Ok(sent)
    }

    /// Wakes whoever claims, here and elsewhere. Call it after the commit of a start, a signal or a
    /// cancellation; without it they are found by the next poll.
    pub fn ring(&self) {
        self.bell.ring();
    }

    /// A worker that passes rings on to other processes.
    #[must_use]
    pub fn ringer(&self, name: &str, pool: sqlx::PgPool) -> Ringer {
        Ringer::new(name, pool, &self.store.channel, &self.bell)
    }

    /// Lets `listener` wake the engines of this process when another one rings.
    #[must_use]
    pub fn heard_by(&self, listener: Listener) -> Listener {
        listener.rings(&self.store.channel, &self.bell)
    }

    /// One saga with its story. `None`: it never was, or its history is gone.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn get(
        &self,
        connection: &mut PgConnection,
        id: SagaId,
    ) -> Result<Option<View>, Error> {
        let told = self.store.get(connection, id.as_uuid()).await?;
        Ok(told.map(|told| told.0))
    }

    /// Sagas, newest first.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn list(
        &self,
        connection: &mut PgConnection,
        filter: &Filter,
    ) -> Result<Vec<Summary>, Error> {
        Ok(self.store.list(connection, filter).await?)
    }

    /// The definitions that engines of this schema run, or have run, by name and version.
    ///
    /// # Errors
    /// When the database can't be asked.
    pub async fn outlines(&self, connection: &mut PgConnection) -> Result<Vec<Outline>, Error> {
        Ok(self.outlines.all(connection).await?)
    }

    /// Every statement, for a test that prepares them all.
    #[doc(hidden)]
    pub fn statements(&self) -> impl Iterator<Item = &str> {
        self.store.statements().chain(self.outlines.statements())
    }

    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The span of an attempt of a step.
    pub(super) fn span(&self, at: &At) -> Span {
        let span = tracing::info_span!(
            "step",
            saga.id = %at.saga(),
            saga.step = at.step(),
            saga.phase = at.phase().as_str(),
            attempt = at.attempt(),
        );
        if let Some(traceparent) = at.traceparent() {
            (self.adopt)(&span, traceparent);
        }
        span
    }

    pub(super) fn trace(&self) -> Option<String> {
        (self.trace)()
    }
}
