//! Telling the broker what became of a batch.

use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::Verdict;
use crate::bus::metrics::{DELIVERIES_TOTAL, UNSETTLED_TOTAL};
use crate::bus::{Delivery, StreamError};

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
pub(super) async fn settle(consumer: &str, batch: &[Delivery], verdicts: &[Verdict]) {
    let mut counts = [("done", 0_u64), ("retried", 0), ("rejected", 0)];
    for (outcome, count) in &mut counts {
        let same = verdicts.iter().filter(|verdict| name(verdict) == *outcome);
        *count = u64::try_from(same.count()).unwrap_or(u64::MAX);
    }
    let settling = batch
        .iter()
        .zip(verdicts)
        .map(|(delivery, verdict)| answer(delivery, verdict))
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

async fn answer(delivery: &Delivery, verdict: &Verdict) -> Result<(), StreamError> {
    match verdict {
        Verdict::Done => delivery.ack().await,
        Verdict::Retry { after } => {
            let delay = after.unwrap_or_else(|| delay(delivery.deliveries, fastrand::f64()));
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

/// The delay after so many deliveries; `random` is between 0 and 1, and spreads it from half
/// to one and a half so that what failed together does not come back together.
fn delay(deliveries: u64, random: f64) -> Duration {
    let doublings = u32::try_from(deliveries.saturating_sub(1)).unwrap_or(u32::MAX);
    let doubled = BASE.saturating_mul(2_u32.saturating_pow(doublings));
    doubled.min(CAP).mul_f64(0.5 + random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_with_the_deliveries_up_to_the_cap() {
        let seconds: Vec<_> = [1, 2, 3, 6, 7, u64::MAX]
            .map(|deliveries| delay(deliveries, 0.5).as_secs())
            .to_vec();
        assert_eq!(seconds, [1, 2, 4, 32, 60, 60]);
    }

    #[test]
    fn delays_are_spread_around_their_middle() {
        assert_eq!(delay(1, 0.0), Duration::from_millis(500));
        assert_eq!(delay(1, 1.0), Duration::from_millis(1500));
    }
}
