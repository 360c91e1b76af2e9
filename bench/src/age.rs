//! What time does to a queue: finished jobs pile up, a forgotten transaction keeps dead rows in
//! place, and most of the time there is nothing to do. Here the library is held against itself.

use anyhow::ensure;
use sqlx::Connection as _;
use tasuki::Schema;

use crate::{
    contest::{Contestant, Drained, Idled, Measure, Verb, Waited},
    figures::{Metric, OURS, Side},
    ours,
    queue::Scenario,
    store, targets,
};

/// How long the idle worker is watched.
const IDLE_SECONDS: u32 = 20;
/// Jobs per second while the snapshot is held.
const HELD_RATE: u32 = 1000;

/// Every measure of this kind that was asked for.
pub(crate) async fn run(scenario: &mut Scenario<'_>, who: &Contestant) -> anyhow::Result<()> {
    if scenario.options.measures(Measure::Idle) {
        idle(scenario, who).await?;
    }
    if scenario.options.measures(Measure::History) {
        history(scenario, who).await?;
    }
    if scenario.options.measures(Measure::Snapshot) {
        snapshot(scenario, who).await?;
    }
    Ok(())
}

async fn idle(scenario: &mut Scenario<'_>, who: &Contestant) -> anyhow::Result<()> {
    eprintln!("idle for {IDLE_SECONDS} s");
    scenario.tables().await?;
    let seconds = IDLE_SECONDS;
    let told: Idled = who.ask(&scenario.url, Verb::Idle { seconds }).await?;
    let per_poll = f64::from(told.statements) / told.polls;
    let cpu = told.cpu / f64::from(seconds) * 100.0;
    for (metric, ours) in [
        (Metric::IdleStatementsPerPoll, per_poll),
        (Metric::IdleCpuPercent, cpu),
    ] {
        scenario.runs.add(metric, Side::Ours, OURS, ours);
        let limit = targets::LIMIT;
        scenario.runs.add(metric, Side::Baseline, limit, 1.0);
    }
    Ok(())
}

/// Two databases side by side, one with a history: in every round both are measured.
async fn history(scenario: &mut Scenario<'_>, who: &Contestant) -> anyhow::Result<()> {
    let (rows, schema) = (scenario.options.history, Schema::new(ours::SCHEMA)?);
    eprintln!("a history of {rows} jobs (some minutes)");
    scenario.tables().await?;
    let empty = scenario.url.clone();
    let database = Schema::new("tasuki_bench_history")?;
    store::recreate(&scenario.server, &database).await?;
    let full = format!("{empty}_history");
    ours::setup(&full).await?;
    store::add_history(&full, &schema, i32::try_from(rows)?).await?;
    store::settle(&full).await?;
    let forget = schema.render("TRUNCATE {schema}.jobs_done");
    for round in 1..=scenario.options.runs {
        eprintln!("round {round}: History");
        store::run_file(&empty, forget.clone()).await?;
        let mut sides = [
            (Side::Baseline, targets::NO_HISTORY, &empty),
            (Side::Ours, OURS, &full),
        ];
        // Who comes first is warm for the other: they take turns at that, too.
        if round % 2 == 0 {
            sides.reverse();
        }
        for (side, name, url) in sides {
            beside(scenario, who, side, name, url).await?;
        }
    }
    store::drop_database(&scenario.server, &database).await?;
    Ok(())
}

/// Drain and latency of one of the two databases.
async fn beside(
    scenario: &mut Scenario<'_>,
    who: &Contestant,
    side: Side,
    name: &str,
    url: &str,
) -> anyhow::Result<()> {
    let (options, schema) = (scenario.options, Schema::new(ours::SCHEMA)?);
    let rows = options.jobs;
    who.tell(url, Verb::Fill { rows }).await?;
    store::settle_jobs(url, &schema).await?;
    let told: Drained = who.ask(url, Verb::DrainAndKeep).await?;
    let drained = told.per_second(who, rows)?;
    store::settle_jobs(url, &schema).await?;
    let (rate, seconds) = (options.rate, options.seconds);
    let waited: Waited = who.ask(url, Verb::Latency { rate, seconds }).await?;
    for (metric, number) in [
        (Metric::HistoryDrainPerSecond, drained),
        (Metric::HistoryLatencyP50Ms, waited.p50_ms),
        (Metric::HistoryLatencyP99Ms, waited.p99_ms),
    ] {
        scenario.runs.add(metric, side, name, number);
    }
    Ok(())
}

/// Drains without a snapshot; then one is held under load, and is still held in the drains after.
async fn snapshot(scenario: &mut Scenario<'_>, who: &Contestant) -> anyhow::Result<()> {
    scenario.tables().await?;
    let url = scenario.url.clone();
    for _ in 0..scenario.options.runs {
        held(scenario, who, Side::Baseline, targets::NO_SNAPSHOT).await?;
    }
    let forgotten = store::hold_snapshot(&url).await?;
    let (rate, seconds) = (HELD_RATE, scenario.options.hold);
    eprintln!("a snapshot is held for {seconds} s at {rate} jobs/s");
    let told: Drained = who.ask(&url, Verb::Load { rate, seconds }).await?;
    let reached = f64::from(told.rows) / told.seconds;
    ensure!(
        reached > f64::from(rate) * 0.95,
        "only {reached:.0} jobs/s under the snapshot"
    );
    for _ in 0..scenario.options.runs {
        held(scenario, who, Side::Ours, OURS).await?;
    }
    forgotten.close().await?;
    Ok(())
}

async fn held(
    scenario: &mut Scenario<'_>,
    who: &Contestant,
    side: Side,
    name: &str,
) -> anyhow::Result<()> {
    let (rows, url) = (scenario.options.jobs, scenario.url.clone());
    who.tell(&url, Verb::Fill { rows }).await?;
    store::settle(&url).await?;
    let told: Drained = who.ask(&url, Verb::Drain).await?;
    let metric = Metric::SnapshotDrainPerSecond;
    scenario
        .runs
        .add(metric, side, name, told.per_second(who, rows)?);
    Ok(())
}
