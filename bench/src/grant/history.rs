//! What millions of entitlements do to grants, reads and notifications: two databases side by side,
//! one with a history, the services on each in turn. Here the platform is held against itself.
//!
//! Users are chosen from all that a database has, so that with a history neither its rows nor its
//! index fit into the server's memory.

use anyhow::ensure;
use tasuki::Schema;

use super::{ENTITLEMENT, HTTP_ONLY, Measure, Scenario, end_to_end};
use crate::{
    broker,
    figures::{Metric, OURS, Side},
    site::Site,
    store as databases, targets,
};

/// What `fill.sql` gives to each user.
const PER_USER: u32 = 5;
const FORGET: &str = include_str!("../../grant/forget.sql");

/// All rounds, beside a history of `rows` entitlements.
pub(super) async fn run(scenario: &mut Scenario<'_>, rows: u32) -> anyhow::Result<()> {
    ensure!(
        rows > 0 && rows.is_multiple_of(PER_USER),
        "a history of {rows} entitlements can't be shared out by {PER_USER}"
    );
    eprintln!("a history of {rows} entitlements (some minutes)");
    let (some, many) = (scenario.options.users, rows / PER_USER);
    let database = Schema::new("tasuki_bench_history")?;
    let full = scenario.site(&database, many).await?;
    for round in 1..=scenario.options.runs {
        eprintln!("round {round}: History");
        let fresh = scenario.site(&scenario.database, some).await?;
        let mut sides = [
            (Side::Baseline, targets::NO_HISTORY, &fresh, some),
            (Side::Ours, OURS, &full, many),
        ];
        // Who comes first is warm for the other: they take turns at that, too.
        if round.is_multiple_of(2) {
            sides.reverse();
        }
        for (side, who, site, users) in sides {
            beside(scenario, side, who, site, users).await?;
        }
    }
    databases::drop_database(&scenario.server, &database).await?;
    Ok(())
}

/// All that is measured without a history, on one of the two databases.
async fn beside(
    scenario: &mut Scenario<'_>,
    side: Side,
    who: &str,
    site: &Site,
    users: u32,
) -> anyhow::Result<()> {
    databases::run_file(&site.url, FORGET.to_owned()).await?;
    let service = site.serve(ENTITLEMENT, &HTTP_ONLY).await?;
    for (measure, metric) in [
        (Measure::Grants, Metric::HistoryGrantPerSecond),
        (Measure::Alone, Metric::HistoryGrantAloneP50Ms),
        (Measure::Reads, Metric::HistoryReadPerSecond),
    ] {
        databases::settle(&site.url).await?;
        let number = scenario.through_http(&service, measure, users).await?;
        scenario.runs.add(metric, side, who, number);
    }
    service.stop().await?;
    // The other database's messages are on the broker, and these events are on none.
    databases::run_file(&site.url, FORGET.to_owned()).await?;
    broker::forget(&scenario.options.nats_url).await?;
    let delivered = end_to_end::measure(scenario.options, site, users).await?;
    for (metric, number) in [
        (Metric::HistorySentPerSecond, delivered.sent_per_second),
        (Metric::HistorySentP50Ms, delivered.p50_ms),
        (Metric::HistorySentP99Ms, delivered.p99_ms),
    ] {
        scenario.runs.add(metric, side, who, number);
    }
    Ok(())
}
