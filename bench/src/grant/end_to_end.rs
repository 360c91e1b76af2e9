//! From the grant to the notification that is SENT: entitlement and notification as two processes,
//! with all their workers.
//!
//! First as many grants as go through; the rate of notifications counts from the first grant until
//! the last of them is sent, so a backlog that is left at the end costs its time. Then grants at a
//! steady rate, on a schedule, and how long each of them takes.

use std::time::Duration;

use anyhow::ensure;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep};

use super::{
    Scenario,
    site::{ENTITLEMENT, NOTIFICATION, Process, Site},
    store::{self, Sent},
};
use crate::{
    figures::{LIMIT, Metric, OURS, Side},
    load::{Load, Told},
    store as databases,
};

/// How long the first grants go on, whose figures nobody keeps: partitions are made and streams
/// opened then.
const FIRST_SECONDS: u32 = 2;
/// How long the notifications of a load may take after it.
const DRAIN_LIMIT: Duration = Duration::from_secs(600);
/// How often their number is asked for. Their own times say when the last one was sent.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// The slowest hundredth is sent within this time.
const P99_LIMIT_MS: f64 = 100.0;

/// One round.
pub(super) async fn run(scenario: &mut Scenario<'_>) -> anyhow::Result<()> {
    let options = scenario.options;
    let site = scenario.site(&scenario.database, options.users).await?;
    let entitlement = site.serve(ENTITLEMENT, &[]).await?;
    let notification = site.serve(NOTIFICATION, &[]).await?;
    let first = options.full_load(FIRST_SECONDS);
    deliver(&site, &entitlement, first).await?;

    let full = options.full_load(options.sustained);
    let (told, sent) = deliver(&site, &entitlement, full).await?;
    let per_second = f64::from(sent.count) / sent.seconds;

    let rate = options.rate;
    let steady = Load {
        rate: Some(rate),
        ..full
    };
    let (offered, timed) = deliver(&site, &entitlement, steady).await?;
    if offered.per_second < f64::from(rate) * 0.98 {
        let reached = offered.per_second;
        eprintln!("#### the service kept up with {reached:.0}/s of {rate}/s only ####");
    }

    for (metric, side, who, number) in [
        (
            Metric::GrantBesideWorkersPerSecond,
            Side::Ours,
            OURS,
            told.per_second,
        ),
        (Metric::SentPerSecond, Side::Ours, OURS, per_second),
        (Metric::SentP50Ms, Side::Ours, OURS, timed.p50_ms),
        (Metric::SentP99Ms, Side::Ours, OURS, timed.p99_ms),
        (Metric::SentP99Ms, Side::Baseline, LIMIT, P99_LIMIT_MS),
    ] {
        scenario.runs.add(metric, side, who, number);
    }
    notification.stop().await?;
    entitlement.stop().await
}

/// Puts `load` on the service, waits until every notification of it is sent, and says how both
/// went.
async fn deliver(site: &Site, service: &Process, load: Load) -> anyhow::Result<(Told, Sent)> {
    databases::settle(&site.url).await?;
    let mut watch = PgConnection::connect(&site.url).await?;
    let since = store::clock(&mut watch).await?;
    let told = service.load(load).await?;
    let deadline = Instant::now() + DRAIN_LIMIT;
    loop {
        let (granted, sent) = (told.answered, store::count(&mut watch, &since).await?);
        ensure!(
            sent <= granted,
            "{granted} grants were answered, and {sent} notifications sent"
        );
        if sent == granted {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "{sent} notifications of {granted} grants were sent within {DRAIN_LIMIT:?}"
        );
        sleep(LOOK_AGAIN).await;
    }
    let sent = store::sent(&mut watch, &since).await?;
    watch.close().await?;
    Ok((told, sent))
}
