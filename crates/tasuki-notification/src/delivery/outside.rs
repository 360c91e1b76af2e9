//! Deliveries to webhooks: at least once, every attempt under the same id.
//!
//! A slow or broken endpoint holds up nobody else: each has a few places and a circuit of its own.
//! What it can't take now goes back without the cost of an attempt.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use sqlx::{PgConnection, PgPool};
use tasuki::Clock;
use tasuki::lease::{Claim, Claimed, Fence, Leases, Outcome, Work};
use tasuki::retry::{Policy, Verdict};
use tasuki_contract::timestamp;
use uuid::Uuid;

use super::{DELAY, DELIVERIES_TOTAL, failed, is_injected, message_id, secrets};
use crate::config::FailureInjection;
use crate::store::delivery::{self, Row};
use crate::store::webhooks::{self, Door};
use crate::webhook::circuit::{Circuits, Pass};
use crate::webhook::send::{self, Attempt, Outgoing, Sender};

const CHANNEL: &str = "webhook";
/// How soon a notification to an endpoint that is paused is looked at again.
const PAUSED: Duration = Duration::from_secs(60);
/// How soon after an error of ours.
const SOON: Duration = Duration::from_secs(1);

/// Delivers to webhooks.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) leases: Leases,
    pub(crate) policy: Policy,
    pub(crate) injection: FailureInjection,
    pub(crate) pool: PgPool,
    pub(crate) sender: Sender,
    pub(crate) circuits: Circuits,
    pub(crate) clock: Clock,
}

impl Outside {
    async fn deliver(&self, claimed: &Claimed<Row>) -> Outcome<()> {
        let row = &claimed.row;
        let dead = |error: &str| Outcome::Dead {
            error: error.to_owned(),
        };
        let Some(endpoint) = row.endpoint_id else {
            return dead("it names no endpoint");
        };
        if is_injected(&self.injection, &row.user_id) {
            return self.failed(claimed, Verdict::Retry, "failure injected");
        }
        let door = match self.door(endpoint).await {
            Ok(Some(door)) => door,
            Ok(None) => return dead("the endpoint was removed"),
            Err(error) => return back(SOON, &error.to_string()),
        };
        match door.status.as_str() {
            "ENABLED" => {}
            "PAUSED" => return back(PAUSED, "the endpoint is paused"),
            _ => return dead("the endpoint is disabled"),
        }
        let pass = match self.circuits.enter(endpoint) {
            Ok(pass) => pass,
            Err(busy) => return back(busy.wait(), &busy.to_string()),
        };
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
        self.judge(claimed, endpoint, pass, attempt).await
    }

    async fn door(&self, endpoint: Uuid) -> sqlx::Result<Option<Door>> {
        let mut connection = self.pool.acquire().await?;
        webhooks::door(&mut connection, endpoint).await
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
        pass: Pass,
        attempt: Attempt,
    ) -> Outcome<()> {
        match attempt.verdict {
            send::Verdict::Delivered => {
                pass.succeeded();
                let since = self.clock.now() - claimed.row.occurred_at;
                let delay = since.as_seconds_f64().max(0.0);
                metrics::histogram!(DELAY, "channel" => CHANNEL).record(delay);
                metrics::counter!(DELIVERIES_TOTAL, "channel" => CHANNEL, "result" => "sent")
                    .increment(1);
                Outcome::Done(())
            }
            send::Verdict::Gone => {
                pass.succeeded();
                self.disable(endpoint).await;
                self.failed(claimed, Verdict::Reject, "the endpoint is gone (410)")
            }
            send::Verdict::Later(after) => {
                pass.failed();
                self.failed(claimed, Verdict::RetryAfter(after), "asked to come later")
            }
            send::Verdict::Failed(error) => {
                pass.failed();
                self.failed(claimed, Verdict::Retry, &error)
            }
            send::Verdict::Refused(error) => {
                pass.failed();
                self.failed(claimed, Verdict::Reject, &error)
            }
        }
    }

    /// Who answers 410 wants to hear nothing more; it is shown, and can be enabled again.
    async fn disable(&self, endpoint: Uuid) {
        tracing::error!(endpoint.id = %endpoint, "endpoint answered 410, disabled");
        let reason = "it answered 410 Gone";
        let disabled = async {
            let mut connection = self.pool.acquire().await?;
            webhooks::set_status(&mut connection, endpoint, "DISABLED", Some(reason)).await
        };
        if let Err(error) = disabled.await {
            // The next message is answered the same.
            tracing::warn!(error = %error, endpoint.id = %endpoint, "endpoint not disabled");
        }
    }

    fn failed(&self, claimed: &Claimed<Row>, verdict: Verdict, error: &str) -> Outcome<()> {
        failed(
            &self.policy,
            claimed.failed_attempts,
            verdict,
            error,
            CHANNEL,
        )
    }
}

fn back(after: Duration, why: &str) -> Outcome<()> {
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
    type Done = ();

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
        self.leases.claim(connection, claim, |_| Ok(())).await
    }

    async fn run(&self, unit: Vec<Claimed<Row>>) -> Vec<(Fence, Outcome<()>)> {
        let mut ended = Vec::with_capacity(unit.len());
        for claimed in &unit {
            ended.push((claimed.fence, self.deliver(claimed).await));
        }
        ended
    }

    async fn settle(
        &self,
        connection: &mut PgConnection,
        done: &[(Fence, ())],
    ) -> sqlx::Result<Vec<Uuid>> {
        let fences: Vec<Fence> = done.iter().map(|(fence, ())| *fence).collect();
        delivery::sent(connection, &fences).await
    }

    fn panicked(&self, failed_attempts: u32, message: &str) -> Outcome<()> {
        failed(
            &self.policy,
            failed_attempts,
            Verdict::Retry,
            message,
            CHANNEL,
        )
    }
}
