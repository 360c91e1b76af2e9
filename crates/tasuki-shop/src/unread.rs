//! Messages that a part of the choreographed flow refuses for good: one that can't be read, mostly.
//!
//! The broker is told not to send it again. Before that it becomes a job that dies at once, so that a
//! person sees it (`tasuki dlq`), with the reason, and once, however often it is delivered; redriven by
//! a release that can read it, it has the effect that it should have had, once.

use aws_lc_rs::digest::{Context as Digest, SHA256};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tasuki::begin;
use tasuki::bus::{self, Delivery, Verdict};
use tasuki::choreography::{Cause, Reactor};
use tasuki::inbox::{Arrival, Inbox};
use tasuki::jobs::{Context, Failure, Handler, Job};
use tasuki::testing::crash_point;
use tasuki::worker;
use uuid::Uuid;

use crate::choreographed::{Dancer, Part};
use crate::errands::PAYMENT;
use crate::error::Error;
use crate::events::heard;
use crate::parts::Parts;

/// Who remembers in the inbox what was kept.
const KEEPER: &str = "unread";

/// A message that was refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Unread {
    /// Its id, if it has one.
    event: Option<Uuid>,
    event_type: String,
    correlation_id: Option<String>,
    causation_id: Option<Uuid>,
    traceparent: Option<String>,
    /// In base64.
    payload: String,
    /// Why it was refused.
    reason: String,
}

impl Job for Unread {
    const KIND: &'static str = "shop.unread";
    const QUEUE: &'static str = PAYMENT;

    /// A message does not change: only another release can make another of it.
    fn tries(&self) -> u32 {
        1
    }
}

impl Unread {
    fn of(delivery: &Delivery, reason: &str) -> Self {
        // A header may have a NUL, and so may what is said of a payload; no text of PostgreSQL has.
        let kept = |text: &str| text.replace('\0', "");
        Self {
            event: delivery.id,
            event_type: kept(delivery.header("event_type").unwrap_or(&delivery.subject)),
            correlation_id: delivery.correlation_id().map(kept),
            causation_id: delivery.causation_id(),
            traceparent: delivery.traceparent().map(kept),
            payload: STANDARD.encode(&delivery.payload),
            reason: kept(reason),
        }
    }

    fn cause(&self) -> Option<Cause> {
        let mut cause = Cause::new(self.event?, self.event_type.clone());
        if let Some(correlation_id) = &self.correlation_id {
            cause = cause.correlation_id(correlation_id.clone());
        }
        if let Some(causation_id) = self.causation_id {
            cause = cause.causation_id(causation_id);
        }
        if let Some(traceparent) = &self.traceparent {
            cause = cause.traceparent(traceparent.clone());
        }
        Some(cause)
    }
}

/// Reads them again.
pub(crate) struct Reads(pub(crate) Parts);

impl Handler<Unread> for Reads {
    async fn run(&self, unread: Unread, _: Context) -> Result<(), Failure> {
        let refused = || Failure::reject(Error::Refused(unread.reason.clone()));
        let payload = STANDARD.decode(&unread.payload).map_err(Failure::reject)?;
        let heard = heard(&payload).map_err(Failure::reject)?;
        let cause = unread.cause().ok_or_else(refused)?;
        let Some(heard) = heard else { return Ok(()) };
        for part in Part::ALL.into_iter().filter(|it| it.hears(heard.what)) {
            let dancer = Dancer {
                part,
                parts: self.0.clone(),
            };
            let reacted = self
                .0
                .story
                .react(&self.0.pool, part.as_str(), &cause, async |tx| {
                    dancer.act(tx, heard).await
                });
            reacted.await?;
            self.0.jobs.ring();
            self.0.outbox.ring();
        }
        Ok(())
    }
}

/// Hears as a part does, and keeps what it refuses.
pub(crate) struct Keeping {
    pub(crate) reactor: Reactor<Dancer>,
    pub(crate) part: Part,
    pub(crate) parts: Parts,
    pub(crate) inbox: Inbox,
}

impl Keeping {
    /// Whether it is up to this part to keep what it refuses. What nobody can read, everybody refuses.
    fn keeps(&self, delivery: &Delivery) -> bool {
        heard(&delivery.payload).is_ok() || self.part == Part::Orders
    }

    /// Keeps them, in one transaction if that can be; those that can't be kept come again. They do not
    /// hold back the others.
    async fn keep(&self, refused: &[Refused], verdicts: &mut [Verdict]) -> Result<(), Error> {
        match self.write(refused).await {
            Err(error) if !error.is_away() => {}
            done => return done,
        }
        for it in refused {
            let written = self.write(std::slice::from_ref(it)).await;
            match written {
                Err(error) if error.is_away() => return Err(error),
                Err(error) => {
                    tracing::error!(
                        error = &error as &(dyn std::error::Error + 'static),
                        reason = it.unread.reason,
                        "a message that was refused could not be kept",
                    );
                    if let Some(verdict) = verdicts.get_mut(it.at) {
                        *verdict = Verdict::Retry { after: None };
                    }
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    async fn write(&self, refused: &[Refused]) -> Result<(), Error> {
        let mut tx = begin(&self.parts.pool).await?;
        let places: Vec<Uuid> = refused.iter().map(|it| it.place).collect();
        let arrivals = self.inbox.record_all(&mut tx, KEEPER, &places).await?;
        for (it, arrival) in refused.iter().zip(arrivals) {
            // Otherwise whoever kept it died before the broker knew.
            if arrival == Arrival::New {
                self.parts.jobs.enqueue(&mut tx, &it.unread).await?;
            }
        }
        tx.commit().await?;
        crash_point("shop.kept");
        self.parts.jobs.ring();
        Ok(())
    }
}

/// One of a batch that is to be kept.
struct Refused {
    /// Where it is in the batch.
    at: usize,
    place: Uuid,
    unread: Unread,
}

/// An id for the place of a message in its stream: not everything that comes has an id of its own, and
/// what has may come under one that is another's.
fn place(delivery: &Delivery) -> Uuid {
    let mut digest = Digest::new(&SHA256);
    digest.update(delivery.position.stream.as_bytes());
    digest.update(&delivery.position.sequence.to_be_bytes());
    // A stream that was lost and made again has the same numbers.
    digest.update(&delivery.published_at.unix_timestamp_nanos().to_be_bytes());
    let digest = digest.finish();
    let mut bytes = [0; 16];
    bytes
        .iter_mut()
        .zip(digest.as_ref())
        .for_each(|(to, from)| *to = *from);
    Uuid::from_bytes(bytes)
}

impl bus::Handler for Keeping {
    async fn handle(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, worker::Error> {
        let mut verdicts = self.reactor.handle(batch).await?;
        let told = batch.iter().zip(&verdicts).enumerate();
        let refused = told.filter_map(|(at, (delivery, verdict))| {
            let Verdict::Reject { reason } = verdict else {
                return None;
            };
            let is_ours = self.keeps(delivery);
            is_ours.then(|| Refused {
                at,
                place: place(delivery),
                unread: Unread::of(delivery, reason),
            })
        });
        let refused: Vec<_> = refused.collect();
        if !refused.is_empty() {
            self.keep(&refused, &mut verdicts).await?;
        }
        Ok(verdicts)
    }

    async fn ready(&self) -> Result<(), worker::Error> {
        self.reactor.ready().await
    }
}
