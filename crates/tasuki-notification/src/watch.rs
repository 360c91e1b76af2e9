//! How deliveries are, as metrics: how many are due and for how long, and what was set aside.

use std::time::Duration;

use sqlx::PgPool;
use tasuki::worker::{Error, Tick, Worker};
use tokio::time::timeout;

use crate::store;
use crate::store::delivery::{self, Backlog};

/// Deliveries that are due and not done, counted up to ten thousand, by `kind`: `inside` (the log
/// and inboxes) or `webhook`. No alert; explains the next.
const DUE: &str = "tasuki_notification_due_rows";
/// For how long the one that is due longest has been, by `kind`. To be alerted of above 60 for `inside`.
const OLDEST_DUE_AGE: &str = "tasuki_notification_oldest_due_age_seconds";
/// Messages that were set aside, and are open. Alert `broker-dlq`: above 0.
const ASIDE_OPEN: &str = "tasuki_notification_aside_open_rows";

/// How often it looks.
const EVERY: Duration = Duration::from_secs(15);
/// A read that takes longer is no answer.
const LIMIT: Duration = Duration::from_secs(30);
/// So many that are due are counted.
const MOST: i64 = 10_000;

/// Sets the gauges of this service. After a read that failed they are NaN: nobody knows.
pub(crate) struct Watch {
    pub(crate) pool: PgPool,
}

struct Reading {
    inside: Backlog,
    webhook: Backlog,
    aside: i64,
}

impl Watch {
    async fn read(&self) -> Result<Reading, Error> {
        let mut connection = self.pool.acquire().await?;
        Ok(Reading {
            inside: delivery::due_inside(&mut connection, MOST).await?,
            webhook: delivery::due_webhooks(&mut connection, MOST).await?,
            aside: store::broker::open(&mut connection).await?,
        })
    }
}

impl Worker for Watch {
    fn name(&self) -> &str {
        "notification.watch"
    }

    fn poll_interval(&self) -> Duration {
        EVERY
    }

    async fn tick(&self) -> Result<Tick, Error> {
        let read = timeout(LIMIT, self.read()).await;
        match read.unwrap_or_else(|late| Err(late.into())) {
            Ok(reading) => {
                for (kind, due) in [("inside", &reading.inside), ("webhook", &reading.webhook)] {
                    show(kind, number(due.rows), due.oldest_seconds);
                }
                metrics::gauge!(ASIDE_OPEN).set(number(reading.aside));
                Ok(Tick::Idle)
            }
            Err(error) => {
                for kind in ["inside", "webhook"] {
                    show(kind, f64::NAN, f64::NAN);
                }
                metrics::gauge!(ASIDE_OPEN).set(f64::NAN);
                Err(error)
            }
        }
    }
}

fn show(kind: &'static str, rows: f64, oldest: f64) {
    metrics::gauge!(DUE, "kind" => kind).set(rows);
    metrics::gauge!(OLDEST_DUE_AGE, "kind" => kind).set(oldest);
}

/// A count as a gauge has it.
pub(crate) fn number(count: i64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}
