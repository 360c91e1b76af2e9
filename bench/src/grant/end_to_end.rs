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
    ENTITLEMENT, NOTIFICATION, Options, Scenario,
    store::{self, Sent},
};
use crate::{
    figures::{Metric, OURS, Side},
    load::{Load, Told},
    site::{Process, Site},
    store as databases,
    targets::LIMIT,
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

/// How grants and their notifications went, on one site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delivered {
    /// Grants that were acknowledged while all workers ran.
    pub(super) granted_per_second: f64,
    pub(super) sent_per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// One round.
pub(super) async fn run(scenario: &mut Scenario<'_>) -> anyhow::Result<()> {
    let options = scenario.options;
    let site = scenario.site(&scenario.database, options.users).await?;
    let delivered = measure(options, &site, options.users).await?;
    for (metric, side, who, number) in [
        (
            Metric::GrantBesideWorkersPerSecond,
            Side::Ours,
            OURS,
            delivered.granted_per_second,
        ),
        (
            Metric::SentPerSecond,
            Side::Ours,
            OURS,
            delivered.sent_per_second,
        ),
        (Metric::SentP50Ms, Side::Ours, OURS, delivered.p50_ms),
        (Metric::SentP99Ms, Side::Ours, OURS, delivered.p99_ms),
        (Metric::SentP99Ms, Side::Baseline, LIMIT, P99_LIMIT_MS),
    ] {
        scenario.runs.add(metric, side, who, number);
    }
    Ok(())
}

/// Both processes on `site`, whose load is spread over so many users.
pub(super) async fn measure(
    options: &Options,
    site: &Site,
    users: u32,
) -> anyhow::Result<Delivered> {
    let entitlement = site.serve(ENTITLEMENT, &[]).await?;
    let notification = site.serve(NOTIFICATION, &[]).await?;
    let load = |seconds| Load {
        users,
        ..options.full_load(seconds)
    };
    deliver(site, &entitlement, load(FIRST_SECONDS)).await?;
    let full = load(options.sustained);
    let (told, sent) = deliver(site, &entitlement, full).await?;
    let rate = options.rate;
    let steady = Load {
        rate: Some(rate),
        ..full
    };
    let (offered, timed) = deliver(site, &entitlement, steady).await?;
    if offered.per_second < f64::from(rate) * 0.98 {
        let reached = offered.per_second;
        eprintln!("#### the service kept up with {reached:.0}/s of {rate}/s only ####");
    }
    notification.stop().await?;
    entitlement.stop().await?;
    Ok(Delivered {
        granted_per_second: told.per_second,
        sent_per_second: f64::from(sent.count) / sent.seconds,
        p50_ms: timed.p50_ms,
        p99_ms: timed.p99_ms,
    })
}

/// Puts `load` on the service, waits until every notification of it is sent, and says how both
/// went.
async fn deliver(site: &Site, service: &Process, load: Load) -> anyhow::Result<(Told, Sent)> {
    databases::settle(&site.url).await?;
    let mut watch = PgConnection::connect(&site.url).await?;
    let since = store::clock(&mut watch).await?;
    let told = load.on(service).await?;
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
