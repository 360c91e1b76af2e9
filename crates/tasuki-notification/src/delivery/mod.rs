//! From a notification to a person: claimed under a lease, delivered, settled.
//!
//! What goes to the log or an inbox is delivered in batches. Webhooks are delivered one by one,
//! side by side, because somebody else's server decides how long they take.

mod inside;
mod outside;

use std::iter::once;

use tasuki::Clock;
use tasuki::lease::Outcome;
use tasuki::retry::{Next, Policy, Verdict};
use tasuki_contract::ids::AttemptId;
use uuid::Uuid;

pub(crate) use inside::Inside;
pub(crate) use outside::Outside;

use crate::config::FailureInjection;
use crate::store::webhooks::{self, Door};
use crate::webhook::send;
use crate::webhook::sign::Secret;

/// Deliveries by channel and result (`sent`, `retry_scheduled`, `failed`, `withdrawn`).
const DELIVERIES_TOTAL: &str = "tasuki_notification_deliveries_total";
/// Time from the event to its delivery, by channel.
const DELAY: &str = "tasuki_notification_delivery_delay_seconds";

/// What becomes of a notification that could not be delivered: the policy decides.
fn failed<D>(
    policy: &Policy,
    failed_attempts: u32,
    verdict: Verdict,
    error: &str,
    channel: &'static str,
) -> Outcome<D> {
    let error = error.to_owned();
    let (result, outcome) = match policy.next(failed_attempts + 1, verdict) {
        Next::Retry(after) => ("retry_scheduled", Outcome::Retry { after, error }),
        Next::Snooze(after) => ("retry_scheduled", Outcome::Snooze { after, error }),
        _ => ("failed", Outcome::Dead { error }),
    };
    metrics::counter!(DELIVERIES_TOTAL, "channel" => channel, "result" => result).increment(1);
    outcome
}

/// Whether the delivery to `user` is to fail on purpose.
fn is_injected(injection: &FailureInjection, user: &str) -> bool {
    injection.enabled && user.starts_with(&injection.user_id_prefix)
}

/// The id of a message to a webhook, the same at every attempt.
pub(crate) fn message_id(notification: Uuid) -> String {
    format!("msg_{}", notification.simple())
}

/// What signs a message to a webhook: the new secret, and the old ones while they count.
pub(crate) fn secrets(door: &Door) -> Vec<Secret> {
    let all = once(&door.secret).chain(&door.previous);
    all.filter_map(|it| it.parse().ok()).collect()
}

/// How an attempt went, for the list that people see.
pub(crate) fn attempt(
    clock: &Clock,
    endpoint_id: Uuid,
    notification_id: Uuid,
    sent: &send::Attempt,
) -> webhooks::Attempt {
    let (outcome, error) = match &sent.verdict {
        send::Verdict::Delivered => ("delivered", None),
        send::Verdict::Gone => ("gone", None),
        send::Verdict::Later(_) => ("later", None),
        send::Verdict::Failed(error) => ("failed", Some(error.clone())),
        send::Verdict::Refused(error) => ("refused", Some(error.clone())),
    };
    webhooks::Attempt {
        attempt_id: AttemptId::new(clock).as_uuid(),
        endpoint_id,
        notification_id,
        attempted_at: clock.now(),
        outcome: outcome.to_owned(),
        response_code: sent.status.map(i32::from),
        took_ms: i32::try_from(sent.took.as_millis()).unwrap_or(i32::MAX),
        error,
        excerpt: Some(sent.excerpt.clone()).filter(|text| !text.is_empty()),
    }
}
