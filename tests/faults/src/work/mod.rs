//! What the service does: one effect for each event and for each job.

pub(crate) mod saga;
pub(crate) mod seqlog;
mod store;

use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::bus::{Delivery, Handler, Verdict};
use tasuki::choreography::{Cause, Choreography, Reacted};
use tasuki::idempotency::{Answer, Keys, Outcome, Reply, Request, RequestHash};
use tasuki::inbox::{Arrival, Inbox};
use tasuki::jobs::{Context, Failure, Handler as JobHandler, Job};
use tasuki::outbox::{Event, Outbox};
use tasuki::worker;
use uuid::Uuid;

/// The consumer of events: inbox and effect in one transaction, for the whole batch.
pub(crate) struct Effects {
    pub(crate) pool: PgPool,
    pub(crate) inbox: Inbox,
}

impl Handler for Effects {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, worker::Error> {
        let ids: Vec<Uuid> = batch.iter().filter_map(|delivery| delivery.id).collect();
        let mut tx = tasuki::begin(&self.pool).await?;
        let arrivals = self.inbox.record_all(&mut tx, "effects", &ids).await?;
        let new = ids
            .iter()
            .zip(arrivals)
            .filter(|(_, arrival)| *arrival == Arrival::New);
        let new: Vec<Uuid> = new.map(|(id, _)| *id).collect();
        store::effects(&mut tx, "event", &new).await?;
        tx.commit().await?;
        Ok(batch.iter().map(|_| Verdict::Done).collect())
    }
}

/// A job whose effect is in the database too: its id keeps a second attempt from a second effect.
#[derive(Serialize, Deserialize)]
pub(crate) struct Payment;

impl Job for Payment {
    const KIND: &'static str = "payment";

    fn tries(&self) -> u32 {
        20
    }
}

/// A job that can't be done: it dies at once, and its death has an effect.
#[derive(Serialize, Deserialize)]
pub(crate) struct Poison;

impl Job for Poison {
    const KIND: &'static str = "poison";
}

pub(crate) struct Bury;

impl JobHandler<Poison> for Bury {
    async fn run(&self, _job: Poison, _context: Context) -> Result<(), Failure> {
        Err(Failure::reject("it is poison"))
    }

    async fn failed(
        &self,
        tx: &mut PgConnection,
        _job: &Poison,
        _error: &str,
    ) -> Result<(), worker::Error> {
        store::effects(tx, "death", &[Uuid::nil()]).await?;
        Ok(())
    }
}

/// Answers a request once per key: the effect, and the answer that a repetition gets.
pub(crate) async fn answer(pool: &PgPool, key: &str) -> Result<String> {
    let keys = Keys::new(&Schema::new("app")?);
    let hash = RequestHash::of("POST", "/orders", b"{}");
    let request = Request::new("caller", key, hash)?;
    let made = keys.once(pool, &request, async |tx| {
        let id = Uuid::new_v4();
        store::effects(tx, "request", &[id]).await?;
        anyhow::Ok(Answer::Decided(Reply::new(200, id.to_string())))
    });
    let reply = match made.await? {
        Outcome::Executed(reply) | Outcome::Replayed(reply) => reply,
        other => bail!("{other:?}"),
    };
    Ok(String::from_utf8(reply.body().to_vec())?)
}

/// Takes an event once, by the inbox's own transaction.
pub(crate) async fn take(pool: &PgPool, event: Uuid) -> Result<&'static str> {
    let inbox = Inbox::new(&Schema::new("app")?);
    let taken = inbox.once(pool, "taker", event, async |tx| {
        store::effects(tx, "taken", &[event]).await?;
        anyhow::Ok(())
    });
    Ok(taken.await?.map_or("duplicate", |()| "new"))
}

/// Reacts to an event, and tells another.
pub(crate) async fn react(pool: &PgPool, event: Uuid) -> Result<&'static str> {
    let schema = Schema::new("app")?;
    let part = Choreography::new(&schema, "app", &Outbox::new(&schema));
    let cause = Cause::new(event, "Asked");
    let reacted = part.react(pool, "reactor", &cause, async |tx| {
        store::effects(tx, "reaction", &[event]).await?;
        anyhow::Ok(vec![Event::new(Uuid::now_v7(), "Answered", "a:1", "{}")])
    });
    Ok(match reacted.await? {
        Reacted::Before => "duplicate",
        _ => "new",
    })
}

pub(crate) struct Pay {
    pub(crate) pool: PgPool,
    pub(crate) takes: Duration,
}

impl JobHandler<Payment> for Pay {
    async fn run(&self, _job: Payment, context: Context) -> Result<(), Failure> {
        // sleep: the work itself, as long as the test says
        tokio::time::sleep(self.takes).await;
        let mut tx = tasuki::begin(&self.pool).await?;
        store::effect_of_job(&mut tx, context.id().as_uuid()).await?;
        tx.commit().await?;
        Ok(())
    }
}
