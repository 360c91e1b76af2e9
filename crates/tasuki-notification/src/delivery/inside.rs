//! Deliveries to the log and to inboxes.

use sqlx::PgConnection;
use tasuki::Clock;
use tasuki::lease::{Claim, Claimed, Fence, Leases, Look, Outcome, Watermark, Work};
use tasuki::retry::{Policy, Verdict};
use tasuki::testing::crash_point;
use tasuki::worker::Bell;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{DELAY, DELIVERIES_TOTAL, failed, is_injected};
use crate::config::FailureInjection;
use crate::domain::Channel;
use crate::store::delivery::{self, Row};

/// Delivers to the log and to inboxes.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) leases: Leases,
    /// Of one lane: everything is due in one order.
    pub(crate) watermark: Watermark,
    pub(crate) policy: Policy,
    pub(crate) injection: FailureInjection,
    pub(crate) clock: Clock,
    /// Rung when an inbox has something new.
    pub(crate) inboxes: Bell,
}

impl Inside {
    fn deliver(&self, claimed: &Claimed<Row>) -> Outcome<Channel> {
        let row = &claimed.row;
        let Some(channel) = Channel::parse(&row.channel) else {
            let error = format!("there is no channel {}", row.channel);
            return Outcome::Dead { error };
        };
        if is_injected(&self.injection, &row.user_id) {
            let (policy, attempts) = (&self.policy, claimed.failed_attempts);
            let why = "failure injected";
            return failed(policy, attempts, Verdict::Retry, why, channel.as_str());
        }
        if channel == Channel::Log {
            let trace = row
                .traceparent
                .as_deref()
                .and_then(|it| it.split('-').nth(1));
            tracing::info!(
                notification.id = %row.notification_id,
                event.id = %row.event_id,
                event.kind = row.kind,
                user.id = row.user_id,
                aggregate.key = row.aggregate_key,
                version = row.version,
                trace_id = trace,
                "notification delivered",
            );
        }
        let delay = (self.clock.now() - row.occurred_at)
            .as_seconds_f64()
            .max(0.0);
        metrics::histogram!(DELAY, "channel" => channel.as_str()).record(delay);
        metrics::counter!(DELIVERIES_TOTAL, "channel" => channel.as_str(), "result" => "sent")
            .increment(1);
        Outcome::Done(channel)
    }
}

impl Work for Inside {
    type Row = Row;
    type Done = Channel;

    fn name(&self) -> &'static str {
        "notification.delivery"
    }

    fn leases(&self) -> &Leases {
        &self.leases
    }

    async fn claim(
        &self,
        connection: &mut PgConnection,
        claim: &Claim<'_>,
    ) -> sqlx::Result<Vec<Claimed<Row>>> {
        let start = self.watermark.start();
        let from = start.from.first().copied().flatten();
        let (rows, now) = delivery::claim_inside(&self.leases, connection, claim, from).await?;
        let full = rows.len() >= claim.limit;
        let due = rows.iter().map(|claimed| (0, claimed.row.next_retry_at));
        self.watermark.reached(&start, full, due);
        if let (false, Some(now)) = (full, now) {
            self.watermark.all_before(&start, now);
        }
        Ok(rows)
    }

    fn watermark(&self) -> Option<&Watermark> {
        Some(&self.watermark)
    }

    async fn look(
        &self,
        connection: &mut PgConnection,
        look: &Look,
    ) -> sqlx::Result<Vec<(usize, OffsetDateTime)>> {
        let until = look.until.first().copied().flatten();
        let first = delivery::first_inside(connection, until).await?;
        Ok(first.map(|due| (0, due)).into_iter().collect())
    }

    fn expects_more(&self, rows: &[Claimed<Row>], limit: usize) -> bool {
        rows.len() >= limit || self.watermark.owes_a_claim()
    }

    async fn run(&self, unit: Vec<Claimed<Row>>) -> Vec<(Fence, Outcome<Channel>)> {
        let ended = unit.iter().map(|it| (it.fence, self.deliver(it))).collect();
        crash_point("notification.delivered");
        ended
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, Channel)],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = done.iter().map(|(fence, _)| *fence).collect();
        if done.iter().all(|(_, channel)| *channel == Channel::Log) {
            return delivery::sent(connection, &fences).await;
        }
        let settled = delivery::shown(connection, &fences).await?;
        self.inboxes.ring();
        Ok(settled)
    }

    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<Channel> {
        failed(
            &self.policy,
            failed_attempts,
            Verdict::Retry,
            message,
            "unknown",
        )
    }
}
