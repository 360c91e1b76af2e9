//! Telling the broker what became of a batch.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::Verdict;
use crate::bus::metrics::{DELIVERIES_TOTAL, UNSETTLED_TOTAL};
use crate::bus::{Delivery, StreamError};
use crate::retry::Backoff;

/// The delay before the second delivery.
const BASE: Duration = Duration::from_secs(1);
/// The longest delay: also how long a message waits at the most once the reason is gone.
const CAP: Duration = Duration::from_secs(60);
/// Answers under way at once.
const PIPELINE: usize = 512;

pub(super) fn retry_all(batch: &[Delivery]) -> Vec<Verdict> {
    vec![Verdict::Retry { after: None }; batch.len()]
}

/// Settles every delivery by its verdict. One that the broker does not confirm comes again,
/// and its inbox knows it.
pub(super) async fn settle(
    consumer: &str,
    batch: &[Delivery],
    verdicts: &[Verdict],
    backoff: &Backoff,
) {
    let mut counts = [("done", 0_u64), ("retried", 0), ("rejected", 0)];
    for (outcome, count) in &mut counts {
        let same = verdicts.iter().filter(|verdict| name(verdict) == *outcome);
        *count = u64::try_from(same.count()).unwrap_or(u64::MAX);
    }
    let settling = batch
        .iter()
        .zip(verdicts)
        .map(|(delivery, verdict)| answer(delivery, verdict, backoff))
        .collect();
    report(consumer, run(settling).await);
    for (outcome, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
        let consumer = consumer.to_owned();
        metrics::counter!(DELIVERIES_TOTAL, "consumer" => consumer, "outcome" => outcome)
            .increment(count);
    }
}

/// Gives every delivery back, to be delivered again at once.
pub(super) async fn give_back(consumer: &str, batch: &[Delivery]) {
    let returning = batch.iter().map(|delivery| delivery.nak(Duration::ZERO));
    report(consumer, run(returning.collect()).await);
}

/// Tells the broker that the batch is being worked on. What can't be told costs at worst a
/// second delivery.
pub(super) async fn in_progress(batch: &[Delivery]) {
    let told = batch.iter().map(Delivery::in_progress);
    run(told.collect()).await;
}

async fn answer(
    delivery: &Delivery,
    verdict: &Verdict,
    backoff: &Backoff,
) -> Result<(), StreamError> {
    match verdict {
        Verdict::Done => delivery.ack().await,
        Verdict::Retry { after } => {
            let delay = after.unwrap_or_else(|| delay(backoff, delivery.deliveries));
            delivery.nak(delay).await
        }
        Verdict::Reject { reason } => {
            tracing::warn!(
                message.id = delivery.id.map(tracing::field::display),
                stream = &*delivery.position.stream,
                sequence = delivery.position.sequence,
                deliveries = delivery.deliveries,
                reason,
                "message rejected, it will not come again",
            );
            delivery.term(reason).await
        }
    }
}

async fn run<F>(settling: Vec<F>) -> Vec<StreamError>
where
    F: Future<Output = Result<(), StreamError>>,
{
    let settled = stream::iter(settling).buffer_unordered(PIPELINE);
    settled
        .filter_map(|result| std::future::ready(result.err()))
        .collect()
        .await
}

fn report(consumer: &str, errors: Vec<StreamError>) {
    let count = u64::try_from(errors.len()).unwrap_or(u64::MAX);
    let Some(error) = errors.into_iter().next() else {
        return;
    };
    metrics::counter!(UNSETTLED_TOTAL, "consumer" => consumer.to_owned()).increment(count);
    tracing::warn!(
        consumer,
        messages = count,
        error = &error as &(dyn std::error::Error + 'static),
        "settlements not confirmed, messages will come again",
    );
}

fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Done => "done",
        Verdict::Retry { .. } => "retried",
        Verdict::Reject { .. } => "rejected",
    }
}

/// The delays before a message comes again, unless a consumer has others: spread from half to one
/// and a half, so that what failed together does not come back together.
pub(super) const fn backoff() -> Backoff {
    Backoff::exponential(BASE, CAP).jitter(0.5, 1.5)
}

fn delay(backoff: &Backoff, deliveries: u64) -> Duration {
    let attempt = u32::try_from(deliveries).unwrap_or(u32::MAX);
    backoff.delay(attempt, fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_with_the_deliveries_up_to_the_cap_and_are_spread_around_their_middle() {
        for (deliveries, middle) in [(1, 1.0), (2, 2.0), (6, 32.0), (7, 60.0), (u64::MAX, 60.0)] {
            let delay = delay(&backoff(), deliveries).as_secs_f64();
            assert!((middle * 0.5..=middle * 1.5).contains(&delay), "{delay}");
        }
    }
}
