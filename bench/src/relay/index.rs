//! The index over a million events, in Japanese and English: how long making it anew takes, against a
//! `COPY` of the same rows and `CREATE INDEX`, and how long a search takes.

use std::{fmt::Write as _, time::Duration};

use anyhow::{bail, ensure};
use fastrand::Rng;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep};

use super::{
    Measure, Scenario,
    deck::hex,
    load::{Load, What},
    relays::Relay,
    store, words,
};
use crate::{
    figures::{Metric, OURS, Side},
    store as databases, targets,
};

const SEED: u64 = 3;
const REBUILD: [&str; 5] = ["consumer", "rebuild", "index-v1", "--reason", "benchmark"];
/// How long a rebuild may take, and how often somebody looks.
const LIMIT: Duration = Duration::from_secs(3600);
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Searches at a time.
const SEARCHERS: u32 = 2;
const P95_LIMIT_MS: f64 = 180.0;

/// All rounds; the events are written once.
pub(super) async fn run(scenario: &mut Scenario<'_>) -> anyhow::Result<()> {
    let options = scenario.options;
    let count = options.documents;
    eprintln!("{count} events to search (some minutes)");
    let relay = Relay::Ours.start(scenario).await?;
    let url = relay.url.clone().unwrap_or_default();
    let mut watch = PgConnection::connect(&url).await?;
    let mut random = Rng::with_seed(SEED);
    let lines = (0..count).map(|place| line(&mut random, place));
    let filled = store::fill(&mut watch, lines).await?;
    ensure!(filled == u64::from(count), "{filled} events were written");
    databases::settle(&url).await?;
    for round in 1..=options.runs {
        eprintln!("round {round}: Rebuild");
        let seconds = rebuild(&relay, &mut watch).await?;
        let indexed = store::documents(&mut watch).await?;
        ensure!(
            indexed == count,
            "{indexed} events of {count} are in the index"
        );
        let metric = Metric::RelayRebuildPerSecond;
        let rate = |seconds| f64::from(count) / seconds;
        scenario.runs.add(metric, Side::Ours, OURS, rate(seconds));
        let seconds = store::copy_and_index(&url).await?;
        scenario.runs.add(
            metric,
            Side::Baseline,
            targets::COPY_AND_INDEX,
            rate(seconds),
        );
        eprintln!("round {round}: Search");
        databases::settle(&url).await?;
        let load = Load {
            connections: SEARCHERS,
            ..options.load(What::Search, 0..0)
        };
        let told = load
            .on(relay.address, &scenario.deck, relay.api_key())
            .await?;
        for (metric, number) in [
            (Metric::RelaySearchP50Ms, told.p50_ms),
            (Metric::RelaySearchP95Ms, told.p95_ms),
        ] {
            scenario.runs.add(metric, Side::Ours, OURS, number);
        }
        let metric = Metric::RelaySearchP95Ms;
        scenario
            .runs
            .add(metric, Side::Baseline, targets::LIMIT, P95_LIMIT_MS);
    }
    watch.close().await?;
    debug_assert!(options.wants(Measure::Index));
    relay.stop().await
}

/// Asks for a rebuild as an operator does; answers how long it took until searches use the new one.
async fn rebuild(relay: &super::relays::Running, watch: &mut PgConnection) -> anyhow::Result<f64> {
    let before = store::index(watch).await?;
    let began = Instant::now();
    relay.tell(&REBUILD).await?;
    while store::index(watch).await? == before {
        if began.elapsed() > LIMIT {
            bail!("the index is not made after {LIMIT:?}");
        }
        sleep(LOOK_AGAIN).await;
    }
    Ok(began.elapsed().as_secs_f64())
}

/// An event as `COPY` reads it. It has no true signature: what is stored was verified before.
fn line(random: &mut Rng, place: u32) -> String {
    let bytes = |random: &mut Rng| {
        let mut bytes = [0; 32];
        random.fill(&mut bytes);
        hex(&bytes)
    };
    let (id, author, sig) = (bytes(random), bytes(random), "0".repeat(128));
    let (created_at, topic) = (1_700_000_000 + place, random.u8(..100));
    let text = words::text(random);
    let mut line = String::new();
    let written = writeln!(
        line,
        "\\\\x{id}\tnow\t\\\\x{author}\t{created_at}\t1\t{{topic-{topic}}}\t\
         {{\"id\":\"{id}\",\"pubkey\":\"{author}\",\"created_at\":{created_at},\"kind\":1,\
         \"tags\":[[\"t\",\"topic-{topic}\"]],\"content\":\"{text}\",\"sig\":\"{sig}\"}}"
    );
    debug_assert!(written.is_ok(), "writing to a string does not fail");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_an_event_that_can_be_read() {
        let line = line(&mut Rng::with_seed(1), 7);
        let columns: Vec<_> = line.trim_end().split('\t').collect();
        let event: super::super::deck::Event = serde_json::from_str(columns[6]).unwrap();
        assert_eq!(columns[0], format!("\\\\x{}", event.id));
        assert_eq!(event.created_at, 1_700_000_007);
    }
}
