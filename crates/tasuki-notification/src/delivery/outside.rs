//! Deliveries to webhooks: at least once, every attempt under the same id.
//!
//! Endpoints are served in turn, a few messages each. One that is paused, disabled or in trouble is
//! not asked for at all, so it holds up nobody else, however much it is owed.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use sqlx::{PgConnection, PgPool};
use tasuki::Clock;
use tasuki::lease::{Claim, Claimed, Fence, Leases, Outcome, Work};
use tasuki::retry::{Policy, Verdict};
use tasuki::testing::crash_point;
use tasuki::worker::Bell;
use tasuki_contract::ids::{EventId, NotificationId};
use tasuki_contract::timestamp;
use tasuki_service::database::{Held, in_time};
use time::OffsetDateTime;
use uuid::Uuid;

use super::{DELAY, DELIVERIES_TOTAL, failed, is_injected, message_id, secrets};
use crate::config::FailureInjection;
use crate::domain::Channel;
use crate::store::delivery::Row;
use crate::store::webhooks::owed::{self, Turn};
use crate::store::webhooks::trouble::{self, Failure, Limits, Trouble};
use crate::store::webhooks::{self, Door};
use crate::store::{self, New};
use crate::webhook::send::{self, Attempt, Outgoing, Sender};

const CHANNEL: &str = "webhook";
/// What the owner of an endpoint is told when it was disabled.
const DISABLED: &str = "WebhookEndpointDisabled";
/// What they are told before, when it fails for long.
const FAILING: &str = "WebhookEndpointFailing";
/// Why a message goes back that failed where the endpoint was before.
const MOVED: &str = "the endpoint has moved meanwhile";
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
    /// How long what a paused or disabled endpoint is owed is kept for it.
    pub(crate) keep: Duration,
    pub(crate) limits: Limits,
    pub(crate) round: Mutex<Round>,
    /// Rung when an owner is to be told something.
    pub(crate) deliveries: Bell,
    pub(crate) clock: Clock,
}

/// How far claims have come on their way from endpoint to endpoint.
#[derive(Debug, Default)]
pub(crate) struct Round {
    /// The endpoint after which the next one goes on.
    after: Uuid,
    /// Another is to follow at once.
    more: bool,
    /// Something was taken since the beginning.
    took: bool,
}

impl Round {
    /// A claim that began after `self.after` has come to `next`, or to the end, and took some rows
    /// or none.
    ///
    /// A round of several claims that took something is followed by another, for what came due
    /// behind them. One that took nothing is not: endpoints that are paused or held would be walked
    /// over without a pause. A ring during it is kept, and begins the next.
    fn went(&mut self, next: Option<Uuid>, took: bool) {
        self.took |= took;
        self.more = match next {
            Some(_) => true,
            None => std::mem::take(&mut self.took) && !self.after.is_nil(),
        };
        self.after = next.unwrap_or_default();
    }
}

/// What an owner is told about an endpoint.
struct Notice<'a> {
    owner: &'a str,
    kind: &'a str,
    endpoint: Uuid,
    /// By the database's clock: of two processes whose clocks differ, the later notice counts as the
    /// newer one.
    at: OffsetDateTime,
    payload: &'a Value,
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
        crash_point("notification.webhook_sent");
        let logged = in_time(async {
            let mut held = Held::of(&self.pool).await?;
            let made = super::attempt(&self.clock, endpoint, row.notification_id, &attempt);
            webhooks::log(held.connection(), &made).await?;
            held.give_back();
            Ok::<_, sqlx::Error>(())
        });
        if let Err(error) = logged.await {
            // What was sent was sent; the log of it is for people.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "attempt not logged");
        }
        self.judge(claimed, endpoint, &door, attempt).await
    }

    async fn door(&self, endpoint: Uuid) -> sqlx::Result<Option<Door>> {
        in_time(async {
            let mut held = Held::of(&self.pool).await?;
            let door = webhooks::door(held.connection(), endpoint).await?;
            held.give_back();
            Ok(door)
        })
        .await
    }

    /// What becomes of a message to an endpoint that gets nothing now. It was open when the message
    /// was claimed: the message goes back to its place, and waits there until it is open again.
    fn closed(&self, door: &Door) -> Option<Outcome<End>> {
        let stay = |why: &str| Some(back(Duration::ZERO, why));
        let is_over = door.closed_for >= Some(self.keep.as_secs_f64());
        match door.status.as_str() {
            "ENABLED" if !door.is_held => None,
            "ENABLED" => stay("the endpoint is left alone for a while"),
            "PAUSED" if is_over => Some(withdrawn("the endpoint was paused for too long")),
            "PAUSED" => stay("the endpoint is paused"),
            _ if is_over => Some(withdrawn("the endpoint was disabled for too long")),
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
                    self.recovered(endpoint, door).await;
                }
                let since = self.clock.now() - claimed.row.occurred_at;
                let delay = since.as_seconds_f64().max(0.0);
                metrics::histogram!(DELAY, "channel" => CHANNEL).record(delay);
                count("sent");
                Outcome::Done(End::Sent)
            }
            send::Verdict::Gone => {
                self.give_up(endpoint, &door.url, "it answered 410 Gone")
                    .await
            }
            send::Verdict::Refused(why) => self.give_up(endpoint, &door.url, &why).await,
            send::Verdict::Later(after) => {
                if !self.trouble(endpoint, door, Some(after)).await {
                    return back(Duration::ZERO, MOVED);
                }
                let verdict = match is_young(&claimed.row, door) {
                    true => Verdict::Snooze(after),
                    false => Verdict::RetryAfter(after),
                };
                self.failed(claimed, verdict, "asked to come later")
            }
            send::Verdict::Failed(error) => {
                if !self.trouble(endpoint, door, None).await {
                    return back(Duration::ZERO, MOVED);
                }
                self.failed(claimed, Verdict::Retry, &error)
            }
        }
    }

    async fn recovered(&self, endpoint: Uuid, door: &Door) {
        let noted = in_time(async {
            let mut held = Held::of(&self.pool).await?;
            let now = Some(door.now);
            trouble::succeeded(held.connection(), endpoint, &door.url, now).await?;
            held.give_back();
            Ok::<_, sqlx::Error>(())
        });
        if let Err(error) = noted.await {
            // The next message that arrives says the same.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "recovery not noted");
        }
    }

    /// Notes a failure. False: the endpoint is elsewhere by now, or nowhere.
    async fn trouble(&self, endpoint: Uuid, door: &Door, asked: Option<Duration>) -> bool {
        let failure = Failure {
            endpoint,
            url: &door.url,
            began: door.now,
            asked: asked.map(|it| it.as_secs_f64()),
        };
        let noted = async {
            let found = in_time(async {
                let mut held = Held::of(&self.pool).await?;
                let found = trouble::failed(held.connection(), &failure, &self.limits).await?;
                held.give_back();
                Ok::<_, sqlx::Error>(found)
            });
            match found.await? {
                None => return Ok(false),
                Some(Trouble::Passing) => {}
                Some(Trouble::Lasting) => in_time(self.warn(endpoint, &door.url)).await?,
                Some(Trouble::Hopeless) => {
                    let why = "it did nothing but fail for too long";
                    let failures = Some(self.limits.failures);
                    self.disable(endpoint, &door.url, why, failures).await?;
                }
            }
            Ok::<_, sqlx::Error>(true)
        };
        noted.await.unwrap_or_else(|error| {
            // The next message that fails says the same.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "failure not noted");
            true
        })
    }

    /// Disables an endpoint that no message can or may reach. What it is owed is kept for a while.
    async fn give_up(&self, endpoint: Uuid, url: &str, why: &str) -> Outcome<End> {
        match self.disable(endpoint, url, why, None).await {
            Ok(()) => back(Duration::ZERO, why),
            Err(error) => back(SOON, &error.to_string()),
        }
    }

    /// Disables an endpoint and tells its owner, in one transaction; with `failures`, only if it
    /// still has so many in a row.
    async fn disable(
        &self,
        endpoint: Uuid,
        url: &str,
        reason: &str,
        failures: Option<i32>,
    ) -> sqlx::Result<()> {
        in_time(self.disable_and_tell(endpoint, url, reason, failures)).await
    }

    async fn disable_and_tell(
        &self,
        endpoint: Uuid,
        url: &str,
        reason: &str,
        failures: Option<i32>,
    ) -> sqlx::Result<()> {
        let mut held = Held::of(&self.pool).await?;
        let mut tx = held.begin().await?;
        let disabled = trouble::disable(&mut tx, endpoint, url, reason, failures);
        let Some(disabled) = disabled.await? else {
            return Ok(());
        };
        let notice = Notice {
            owner: &disabled.user_id,
            kind: DISABLED,
            endpoint,
            at: disabled.disabled_at,
            payload: &json!({ "endpoint_id": endpoint, "reason": reason }),
        };
        self.tell(&mut tx, &notice).await?;
        tx.commit().await?;
        held.give_back();
        self.deliveries.ring();
        tracing::warn!(endpoint.id = %endpoint, reason, "webhook endpoint disabled");
        Ok(())
    }

    /// Tells the owner of an endpoint that it will be disabled if nothing changes, once.
    async fn warn(&self, endpoint: Uuid, url: &str) -> sqlx::Result<()> {
        let mut held = Held::of(&self.pool).await?;
        let mut tx = held.begin().await?;
        let Some(warned) = trouble::warn(&mut tx, endpoint, url, &self.limits).await? else {
            return Ok(());
        };
        let payload = json!({
            "endpoint_id": endpoint,
            "failing_since": timestamp::format(warned.failing_since).unwrap_or_default(),
            "disabled_at": timestamp::format(warned.disabled_at).unwrap_or_default(),
        });
        let notice = Notice {
            owner: &warned.user_id,
            kind: FAILING,
            endpoint,
            at: warned.warned_at,
            payload: &payload,
        };
        self.tell(&mut tx, &notice).await?;
        tx.commit().await?;
        held.give_back();
        self.deliveries.ring();
        tracing::warn!(endpoint.id = %endpoint, "webhook endpoint fails for long, its owner is told");
        Ok(())
    }

    /// Puts a notice into its owner's inbox, whatever the preferences say.
    async fn tell(&self, tx: &mut PgConnection, notice: &Notice<'_>) -> sqlx::Result<()> {
        let endpoint = notice.endpoint;
        let told = New {
            id: NotificationId::new(&self.clock).as_uuid(),
            event_id: EventId::new(&self.clock).as_uuid(),
            user: notice.owner,
            kind: notice.kind,
            channel: Channel::InApp,
            endpoint: None,
            aggregate_key: &format!("webhook:{endpoint}"),
            version: notice.at.unix_timestamp(),
            occurred_at: notice.at,
            payload: notice.payload,
            traceparent: None,
        };
        store::insert(tx, &[told]).await
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

/// Whether a notification was made not long ago: by the database's clock, like when it is due.
fn is_young(row: &Row, door: &Door) -> bool {
    door.now - row.created_at < PATIENCE
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
        let turn = Turn {
            after: self.round().after,
            places: self.places,
            keep: self.keep.as_secs_f64(),
        };
        let (rows, next) = owed::claim(connection, &self.leases, claim, &turn).await?;
        self.round().went(next, !rows.is_empty());
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
        owed::settle(connection, &sent, &withdrawn).await
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_followed_by_another_only_if_it_was_long_and_took_something() {
        let place = Some(Uuid::max());
        for (claims, expected) in [
            // All of them in one claim.
            (vec![(None, false)], false),
            (vec![(None, true)], false),
            // Several claims, of which one took something, or none did.
            (vec![(place, true), (None, false)], true),
            (vec![(place, false), (place, false), (None, true)], true),
            (vec![(place, false), (None, false)], false),
            // What the round before took says nothing of the next.
            (
                vec![(place, true), (None, true), (place, false), (None, false)],
                false,
            ),
            (vec![(None, true), (place, false), (None, false)], false),
            // Not at the end yet.
            (vec![(place, false)], true),
        ] {
            let mut round = Round::default();
            for (next, took) in &claims {
                round.went(*next, *took);
            }
            assert_eq!(round.more, expected, "{claims:?}");
            let (last, _) = claims[claims.len() - 1];
            assert_eq!(round.after, last.unwrap_or_default());
        }
    }
}
