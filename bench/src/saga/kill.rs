//! What `kill -9` costs: a process dies while it runs many sagas at once.
//!
//! Every saga has ten local steps, each of which writes a row in the transaction of its record. Half
//! of all rows are there when the process is killed, and no saga has ended. Then the process is started
//! again, or another one, that was there all the time, takes over. What remained to be done is taken
//! from a process that nobody kills, in the same round: the time from when it had come as far until its
//! last saga has ended.
//!
//! A step that was committed twice has left two rows.

use std::time::Duration;

use anyhow::ensure;
use tasuki::Schema;
use tokio::{
    process::Child,
    time::{Instant, sleep},
};

use super::{Scenario, ours::LONG, store, store::Watch};
use crate::{
    contest::{Contestant, Verb},
    figures::{Metric, OURS, Side},
    ours::SCHEMA,
    targets::{KILL_TO_END, LIMIT, REMAINING},
};

/// Whoever begins the sagas.
const FIRST: u32 = 1;
/// Whoever ends them.
const SECOND: u32 = 2;

/// How often the rows are counted: the times here are as exact as that.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a restart may cost beyond the remaining work.
const RESTART_LIMIT: f64 = 1.2;
/// How long it may take until the last saga has been taken over.
const TAKEOVER_LIMIT: f64 = 5.0;

/// How far the sagas had come, and when, in seconds.
type Course = Vec<(f64, u32)>;

/// One round.
pub(super) async fn run(scenario: &mut Scenario<'_>, who: &Contestant) -> anyhow::Result<()> {
    let undisturbed = undisturbed(scenario, who).await?;
    restart(scenario, who, &undisturbed).await?;
    takeover(scenario, who).await
}

/// A process that nobody kills.
async fn undisturbed(scenario: &Scenario<'_>, who: &Contestant) -> anyhow::Result<Course> {
    let mut watch = fresh(scenario, who).await?;
    let sagas = scenario.options.sagas;
    let mut worker = start(scenario, who, FIRST, sagas)?;
    let (began, mut course) = (Instant::now(), Course::new());
    loop {
        let done = watch.effects().await?;
        course.push((began.elapsed().as_secs_f64(), done));
        if done == sagas * LONG && watch.live().await? == 0 {
            course.push((began.elapsed().as_secs_f64(), done));
            worker.kill().await?;
            return Ok(course);
        }
        pause(began).await?;
    }
}

/// The process is started again as soon as it is dead.
async fn restart(
    scenario: &mut Scenario<'_>,
    who: &Contestant,
    undisturbed: &Course,
) -> anyhow::Result<()> {
    let mut watch = fresh(scenario, who).await?;
    let first = start(scenario, who, FIRST, scenario.options.sagas)?;
    let killed = kill_half_way(scenario, &mut watch, first).await?;
    let _second = start(scenario, who, SECOND, 0)?;
    while watch.live().await? > 0 {
        pause(killed).await?;
    }
    let took = killed.elapsed().as_secs_f64();
    let reruns = check(scenario, &mut watch).await?;
    // What was committed in the moment of the kill is known only now.
    let remained = remaining(undisturbed, watch.effects_of(FIRST).await?);
    let metric = Metric::SagaRestartSeconds;
    for (metric, side, name, number) in [
        (metric, Side::Ours, OURS, took - remained),
        (metric, Side::Baseline, LIMIT, RESTART_LIMIT),
        (metric, Side::Baseline, REMAINING, remained),
        (metric, Side::Baseline, KILL_TO_END, took),
        (Metric::SagaReruns, Side::Ours, OURS, f64::from(reruns)),
        (Metric::SagaReruns, Side::Baseline, LIMIT, 1.0),
    ] {
        scenario.runs.add(metric, side, name, number);
    }
    Ok(())
}

/// Another process was there all the time.
async fn takeover(scenario: &mut Scenario<'_>, who: &Contestant) -> anyhow::Result<()> {
    let mut watch = fresh(scenario, who).await?;
    let _second = start(scenario, who, SECOND, 0)?;
    let began = Instant::now();
    while watch.owners().await? == 0 {
        pause(began).await?;
    }
    let first = start(scenario, who, FIRST, scenario.options.sagas)?;
    let killed = kill_half_way(scenario, &mut watch, first).await?;
    let mut course = Course::new();
    while watch.live().await? > 0 {
        let moved = watch.taken_over(SECOND).await?;
        course.push((killed.elapsed().as_secs_f64(), moved));
        pause(killed).await?;
    }
    let moved = watch.taken_over(SECOND).await?;
    course.push((killed.elapsed().as_secs_f64(), moved));
    let reruns = check(scenario, &mut watch).await?;
    let (first, last) = (reached(&course, 1), reached(&course, moved));
    for (metric, side, name, number) in [
        (Metric::SagaTakeoverFirstSeconds, Side::Ours, OURS, first),
        (Metric::SagaTakeoverLastSeconds, Side::Ours, OURS, last),
        (
            Metric::SagaTakeoverLastSeconds,
            Side::Baseline,
            LIMIT,
            TAKEOVER_LIMIT,
        ),
        (Metric::SagaReruns, Side::Ours, OURS, f64::from(reruns)),
        (Metric::SagaReruns, Side::Baseline, LIMIT, 1.0),
    ] {
        scenario.runs.add(metric, side, name, number);
    }
    Ok(())
}

/// A fresh database with room for effects, and a look into it.
async fn fresh(scenario: &Scenario<'_>, who: &Contestant) -> anyhow::Result<Watch> {
    scenario.fresh(who).await?;
    let schema = Schema::new(SCHEMA)?;
    store::make_effects(&scenario.url, &schema).await?;
    crate::store::settle(&scenario.url).await?;
    Ok(Watch::open(&scenario.url, &schema).await?)
}

fn start(
    scenario: &Scenario<'_>,
    who: &Contestant,
    number: u32,
    sagas: u32,
) -> anyhow::Result<Child> {
    who.start(&scenario.url, Verb::SagaWorker { number, sagas })
}

/// Waits until half of the work is done, and kills whoever does it.
async fn kill_half_way(
    scenario: &Scenario<'_>,
    watch: &mut Watch,
    mut worker: Child,
) -> anyhow::Result<Instant> {
    let (sagas, began) = (scenario.options.sagas, Instant::now());
    while watch.effects().await? < sagas * LONG / 2 {
        pause(began).await?;
    }
    let live = watch.live().await?;
    worker.start_kill()?;
    let killed = Instant::now();
    worker.wait().await?;
    ensure!(live == sagas, "{live} of {sagas} sagas were running");
    Ok(killed)
}

/// Whether all of them have ended, with every step; and steps that were committed once more.
async fn check(scenario: &Scenario<'_>, watch: &mut Watch) -> anyhow::Result<u32> {
    let (sagas, ended) = (scenario.options.sagas, watch.ended().await?);
    ensure!(ended == sagas, "{ended} of {sagas} sagas have ended well");
    let (effects, reruns) = (watch.effects().await?, watch.reruns().await?);
    ensure!(
        effects - reruns == sagas * LONG,
        "{effects} steps were committed, {reruns} of them again"
    );
    Ok(reruns)
}

/// How long it took from when so much was done to the end.
fn remaining(course: &Course, done: u32) -> f64 {
    let end = course.last().map_or(f64::NAN, |(at, _)| *at);
    end - reached(course, done)
}

/// When so much was done.
fn reached(course: &Course, wanted: u32) -> f64 {
    let at = course.iter().find(|(_, done)| *done >= wanted);
    at.map_or(f64::NAN, |(at, _)| *at)
}

async fn pause(since: Instant) -> anyhow::Result<()> {
    ensure!(since.elapsed() < PATIENCE, "not done within {PATIENCE:?}");
    sleep(LOOK_AGAIN).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_is_the_time_from_there_to_the_end() {
        let course = vec![(0.1, 0), (0.2, 40), (0.3, 80), (0.5, 100)];
        assert!((remaining(&course, 40) - 0.3).abs() < 1e-9);
        assert!((remaining(&course, 41) - 0.2).abs() < 1e-9);
        assert!(remaining(&course, 101).is_nan());
    }
}
