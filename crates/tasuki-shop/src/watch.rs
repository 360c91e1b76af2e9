//! Compares money with goods all the time, and shows what does not match.
//!
//! One process compares; every one shows what was found, and when, so that a comparison that fails
//! does not look like one that found nothing.

use std::time::Duration;

use tasuki::worker::{Error, Tick, Worker};
use time::OffsetDateTime;

use crate::closed;
use crate::parts::Parts;
use crate::verify::{CHECKS, Known, Reconciler};

/// What does not match, by check. Alert on any.
const MISMATCHES: &str = "tasuki_shop_mismatches";
/// Orders that are neither completed nor undone.
const UNFINISHED: &str = "tasuki_shop_unfinished_orders";
/// When it was last compared. Alert when that is long ago.
const RECONCILED_AT: &str = "tasuki_shop_reconciled_timestamp_seconds";

/// Compares, every so often.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) reconciler: Reconciler,
    pub(crate) parts: Parts,
    pub(crate) every: Duration,
}

impl Worker for Watch {
    fn name(&self) -> &'static str {
        "shop.watch"
    }

    fn poll_interval(&self) -> Duration {
        self.every
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let closed = closed::end(&self.parts).await;
        // The first comparison may take long; and whatever becomes of one, what is known is shown.
        show(&self.reconciler.known().await?);
        let passed = self.reconciler.pass(self.every).await;
        show(&self.reconciler.known().await?);
        let passed = passed?;
        for wrong in passed.new {
            tracing::error!(
                check = wrong.kind,
                order.id = wrong.order_id.map(tracing::field::display),
                subject = wrong.subject,
                "money and goods do not match",
            );
        }
        closed?;
        passed
            .failed
            .map_or(Ok(Tick::Idle), |error| Err(error.into()))
    }
}

fn show(known: &Known) {
    for check in CHECKS {
        let many = known.open.iter().filter(|it| it.kind == check).count();
        metrics::gauge!(MISMATCHES, "check" => check).set(number(many));
    }
    metrics::gauge!(UNFINISHED).set(number(known.unfinished));
    metrics::gauge!(RECONCILED_AT).set(compared_at(known.compared_at));
}

/// Never is as long ago as can be: what alerts on that must alert.
fn compared_at(at: Option<OffsetDateTime>) -> f64 {
    at.map_or(0.0, |at| number(at.unix_timestamp()))
}

/// A count as a gauge has it; a time, too, until the year 2106.
fn number(count: impl TryInto<u32>) -> f64 {
    count.try_into().map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_that_were_never_compared_look_like_old_ones_to_an_alert() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        // The alert of docs/reference/metrics.md; nothing is greater than NaN.
        let fires = |at| number(now.unix_timestamp()) - compared_at(at) > 600.0;
        assert!(fires(None));
        assert!(!fires(Some(now)));
    }
}
