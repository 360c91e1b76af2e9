//! Deliveries to webhooks: at least once, every attempt under the same id.
//!
//! Endpoints are served in turn, a few messages each. One that is paused, disabled or in trouble is
//! not asked for at all, so it holds up nobody else, however much it is owed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use tasuki::lease::{Claim, Claimed, Fence, Leases, Outcome, Work};
use tasuki::retry::{Policy, Verdict};
use tasuki::{Clock, begin};
use tasuki_contract::ids::{EventId, NotificationId};
use tasuki_contract::timestamp;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{DELAY, DELIVERIES_TOTAL, failed, is_injected, message_id, secrets};
use crate::config::FailureInjection;
use crate::domain::Channel;
use crate::store::delivery::{self, Row};
use crate::store::webhooks::owed::{self, Turn};
use crate::store::webhooks::trouble::{self, Failure, Limits};
use crate::store::webhooks::{self, Door};
use crate::store::{self, New};
use crate::webhook::send::{self, Attempt, Outgoing, Sender};

const CHANNEL: &str = "webhook";
/// What the owner of an endpoint is told when it was disabled.
const DISABLED: &str = "WebhookEndpointDisabled";
/// How soon after an error of ours.
const SOON: Duration = Duration::from_secs(1);
/// For how long a receiver that asks for time is given it for nothing; afterwards each time costs
/// an attempt.
const PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// Delivers to webhooks.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) leases: Leases,
    pub(crate) policy: Policy,
    pub(crate) injection: FailureInjection,
    pub(crate) pool: PgPool,
    pub(crate) sender: Sender,
    /// Messages to one endpoint that may be under way.
    pub(crate) places: usize,
    /// How long what a disabled endpoint is owed is kept for it.
    pub(crate) keep: Duration,
    pub(crate) limits: Limits,
    pub(crate) round: Mutex<Round>,
    pub(crate) clock: Clock,
}

/// How far claims have come on their way from endpoint to endpoint.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The endpoint after which the next one goes on.
    after: Uuid,
    /// The last one has not seen all of them.
    more: bool,
}

/// How a delivery ended that needs no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The receiver has it.
    Sent,
    /// There is nobody to send it to any more, and why.
    Withdrawn(&'static str),
}

impl Outside {
    async fn deliver(&self, claimed: &Claimed<Row>) -> Outcome<End> {
        let row = &claimed.row;
        let Some(endpoint) = row.endpoint_id else {
            let error = "it names no endpoint".to_owned();
            return Outcome::Dead { error };
        };
        if is_injected(&self.injection, &row.user_id) {
            return self.failed(claimed, Verdict::Retry, "failure injected");
        }
        let door = match self.door(endpoint).await {
            Ok(Some(door)) => door,
            Ok(None) => return withdrawn("the endpoint was removed"),
            Err(error) => return back(SOON, &error.to_string()),
        };
        if let Some(outcome) = self.closed(&door) {
            return outcome;
        }
        let attempt = self.attempt(row, &door).await;
        let logged = async {
            let mut connection = self.pool.acquire().await?;
            let made = super::attempt(&self.clock, endpoint, row.notification_id, &attempt);
            webhooks::log(&mut connection, &made).await
        };
        if let Err(error) = logged.await {
            // What was sent was sent; the log of it is for people.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "attempt not logged");
        }
        self.judge(claimed, endpoint, &door, attempt).await
    }

    async fn door(&self, endpoint: Uuid) -> sqlx::Result<Option<Door>> {
        let mut connection = self.pool.acquire().await?;
        webhooks::door(&mut connection, endpoint).await
    }

    /// What becomes of a message to an endpoint that gets nothing now. It was open when the message
    /// was claimed: the message goes back to its place, and waits there until it is open again.
    fn closed(&self, door: &Door) -> Option<Outcome<End>> {
        let stay = |why: &str| Some(back(Duration::ZERO, why));
        match door.status.as_str() {
            "ENABLED" if !door.is_held => None,
            "ENABLED" => stay("the endpoint is left alone for a while"),
            "PAUSED" => stay("the endpoint is paused"),
            _ if door.disabled_for >= Some(self.keep.as_secs_f64()) => {
                Some(withdrawn("the endpoint was disabled for too long"))
            }
            _ => stay("the endpoint is disabled"),
        }
    }

    async fn attempt(&self, row: &Row, door: &Door) -> Attempt {
        let secrets = secrets(door);
        let outgoing = Outgoing {
            url: &door.url,
            secrets: &secrets,
            id: message_id(row.notification_id),
            timestamp: door.now,
            body: body(row),
        };
        self.sender.send(&outgoing).await
    }

    async fn judge(
        &self,
        claimed: &Claimed<Row>,
        endpoint: Uuid,
        door: &Door,
        attempt: Attempt,
    ) -> Outcome<End> {
        match attempt.verdict {
            send::Verdict::Delivered => {
                if door.is_troubled {
                    self.recovered(endpoint, door.now).await;
                }
                let since = self.clock.now() - claimed.row.occurred_at;
                let delay = since.as_seconds_f64().max(0.0);
                metrics::histogram!(DELAY, "channel" => CHANNEL).record(delay);
                count("sent");
                Outcome::Done(End::Sent)
            }
            send::Verdict::Gone => self.give_up(endpoint, "it answered 410 Gone").await,
            send::Verdict::Refused(why) => self.give_up(endpoint, &why).await,
            send::Verdict::Later(after) => {
                self.trouble(endpoint, door.now, Some(after)).await;
                let verdict = match self.is_young(claimed.row.notification_id) {
                    true => Verdict::Snooze(after),
                    false => Verdict::RetryAfter(after),
                };
                self.failed(claimed, verdict, "asked to come later")
            }
            send::Verdict::Failed(error) => {
                self.trouble(endpoint, door.now, None).await;
                self.failed(claimed, Verdict::Retry, &error)
            }
        }
    }

    /// Its id has the time at which the notification was made.
    fn is_young(&self, notification: Uuid) -> bool {
        let made = notification.get_timestamp().map(|it| it.to_unix().0);
        let now = u64::try_from(self.clock.now().unix_timestamp()).unwrap_or(0);
        made.is_some_and(|made| now.saturating_sub(made) < PATIENCE.as_secs())
    }

    async fn recovered(&self, endpoint: Uuid, began: OffsetDateTime) {
        let noted = async {
            let mut connection = self.pool.acquire().await?;
            trouble::succeeded(&mut connection, endpoint, Some(began)).await
        };
        if let Err(error) = noted.await {
            // The next message that arrives says the same.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "recovery not noted");
        }
    }

    async fn trouble(&self, endpoint: Uuid, began: OffsetDateTime, asked: Option<Duration>) {
        let failure = Failure {
            endpoint,
            began,
            asked: asked.map(|it| it.as_secs_f64()),
        };
        let noted = async {
            let mut connection = self.pool.acquire().await?;
            if trouble::failed(&mut connection, &failure, &self.limits).await? {
                drop(connection);
                self.disable(endpoint, "it did nothing but fail for too long")
                    .await?;
            }
            Ok::<_, sqlx::Error>(())
        };
        if let Err(error) = noted.await {
            // The next message that fails says the same.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "failure not noted");
        }
    }

    /// Disables an endpoint that no message can or may reach. What it is owed is kept for a while.
    async fn give_up(&self, endpoint: Uuid, why: &str) -> Outcome<End> {
        match self.disable(endpoint, why).await {
            Ok(()) => back(Duration::ZERO, why),
            Err(error) => back(SOON, &error.to_string()),
        }
    }

    /// Disables an endpoint and tells its owner, in one transaction.
    async fn disable(&self, endpoint: Uuid, reason: &str) -> sqlx::Result<()> {
        let mut tx = begin(&self.pool).await?;
        let Some(owner) = trouble::disable(&mut tx, endpoint, reason).await? else {
            return Ok(());
        };
        let now = self.clock.now();
        let told = New {
            id: NotificationId::new(&self.clock).as_uuid(),
            event_id: EventId::new(&self.clock).as_uuid(),
            user: &owner,
            kind: DISABLED,
            channel: Channel::InApp,
            endpoint: None,
            aggregate_key: &format!("webhook:{endpoint}"),
            version: now.unix_timestamp(),
            occurred_at: now,
            payload: &json!({ "endpoint_id": endpoint, "reason": reason }),
            traceparent: None,
        };
        store::insert(&mut tx, &[told]).await?;
        tx.commit().await?;
        tracing::warn!(endpoint.id = %endpoint, reason, "webhook endpoint disabled");
        Ok(())
    }

    fn failed(&self, claimed: &Claimed<Row>, verdict: Verdict, error: &str) -> Outcome<End> {
        failed(
            &self.policy,
            claimed.failed_attempts,
            verdict,
            error,
            CHANNEL,
        )
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(result: &'static str) {
    metrics::counter!(DELIVERIES_TOTAL, "channel" => CHANNEL, "result" => result).increment(1);
}

fn withdrawn(why: &'static str) -> Outcome<End> {
    count("withdrawn");
    Outcome::Done(End::Withdrawn(why))
}

fn back(after: Duration, why: &str) -> Outcome<End> {
    Outcome::Back {
        after,
        error: Some(why.to_owned()),
    }
}

fn body(row: &Row) -> Bytes {
    let told = json!({
        "type": row.kind,
        "timestamp": timestamp::format(row.occurred_at).unwrap_or_default(),
        "notification_id": row.notification_id,
        "data": row.payload_json,
    });
    told.to_string().into()
}

impl Work for Outside {
    type Row = Row;
    type Done = End;

    fn name(&self) -> &'static str {
        "notification.webhooks"
    }

    fn leases(&self) -> &Leases {
        &self.leases
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<Row>>> {
        let after = self.round().after;
        let turn = Turn {
            after,
            places: self.places,
            keep: self.keep.as_secs_f64(),
        };
        let (rows, next) = owed::claim(connection, &self.leases, claim, &turn).await?;
        // From the end back to the beginning, also when this was not the beginning.
        *self.round() = Round {
            after: next.unwrap_or_default(),
            more: next.is_some() || !after.is_nil(),
        };
        Ok(rows)
    }

    fn expects_more(&self, _rows: &[Claimed<Row>], _limit: usize) -> bool {
        self.round().more
    }

    /// Each leaves a place at its endpoint.
    fn frees_others(&self, _done: &[(Fence, End)]) -> bool {
        true
    }

    async fn run(&self, unit: Vec<Claimed<Row>>) -> Vec<(Fence, Outcome<End>)> {
        let mut ended = Vec::with_capacity(unit.len());
        for claimed in &unit {
            ended.push((claimed.fence, self.deliver(claimed).await));
        }
        ended
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, End)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let (mut sent, mut withdrawn) = (Vec::new(), Vec::new());
        for (fence, end) in done {
            match end {
                End::Sent => sent.push(*fence),
                End::Withdrawn(why) => withdrawn.push((*fence, *why)),
            }
        }
        // If the second fails, the first is asked for again and finds nothing to do.
        let mut settled = Vec::new();
        if !sent.is_empty() {
            settled = delivery::sent(&mut *connection, &sent).await?;
        }
        if !withdrawn.is_empty() {
            settled.extend(owed::withdrawn(connection, &withdrawn).await?);
        }
        Ok(settled)
    }

    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<End> {
        failed(
            &self.policy,
            failed_attempts,
            Verdict::Retry,
            message,
            CHANNEL,
        )
    }
}
