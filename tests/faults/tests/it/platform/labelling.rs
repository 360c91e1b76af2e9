//! Nodes that die while they label: every event that was answered is labelled once, the label is published
//! once, and its author is told once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tasuki::seqlog::Consumers;
use tasuki::{Clock, Schema};
use tasuki_community::moderation::{By, Definition, add_rule};
use tasuki_service::auth::tokens::KeyRing;
use tasuki_testkit::eventually_within;
use tempfile::TempDir;

use super::Platform;
use super::community::{Known, publish, spawn};

/// Where a node dies: with labels that are not committed, before and after the offset moves, in a rebuild.
const POINTS: [&str; 5] = [
    "community.labelled",
    "seqlog.handled",
    "seqlog.advancing",
    "seqlog.advanced",
    "seqlog.rebuilt",
];
const SETTLED: Duration = Duration::from_secs(90);

pub(super) async fn count(platform: &Platform, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql)
        .fetch_one(&platform.pool)
        .await
        .unwrap()
}

/// Everything that is published is labelled.
pub(super) async fn open_a_rule(platform: &Platform) {
    let definition = Definition {
        kinds: vec![1],
        keywords: Vec::new(),
        pattern: None,
        tags: Vec::new(),
        authors: Vec::new(),
        topics: Vec::new(),
        label: "seen".to_owned(),
        confidence: 1.0,
        expires_in_seconds: 3600,
        policy_url: None,
        policy_ref: None,
    };
    let by = By {
        actor: "ann",
        reason: "a test",
    };
    let mut tx = platform.pool.begin().await.unwrap();
    add_rule(&mut tx, &definition, by).await.unwrap();
    tx.commit().await.unwrap();
}

/// Each of at least so many notes.
async fn labelled_and_told_once(platform: &Platform, wanted: i64) {
    eventually_within(SETTLED, "everything is labelled", async || {
        let labels = count(platform, "SELECT count(*) FROM cn_relay.labels").await;
        (labels >= wanted).then_some(())
    })
    .await;
    let notes = count(
        platform,
        "SELECT count(*) FROM cn_relay.events WHERE kind = 1",
    )
    .await;
    for sql in [
        "SELECT count(*) FROM cn_relay.labels",
        "SELECT count(DISTINCT target) FROM cn_relay.labels",
        "SELECT count(*) FROM cn_relay.kept_events WHERE kind = 39006 AND hidden_at IS NULL",
        "SELECT count(*) FROM (
             SELECT event_id FROM cn_relay.outbox_events
             UNION ALL SELECT event_id FROM cn_relay.outbox_published
         ) AS told",
    ] {
        assert_eq!(count(platform, sql).await, notes, "{sql}");
    }
}

/// A platform whose node has keys to speak with, which are gone when they are dropped.
pub(super) async fn speaking(name: &str, more: &[(&str, &str)]) -> (Platform, TempDir) {
    let keys = tempfile::tempdir().unwrap();
    tasuki_community::make_keys(keys.path()).unwrap();
    for service in ["entitlement", "notification", tasuki_community::NAME] {
        KeyRing::open_or_create(keys.path(), service, &Clock::system()).unwrap();
    }
    let folder = keys.path().display().to_string();
    let mut settings = vec![
        ("TASUKI_AUTH__KEY_DIR", &*folder),
        ("TASUKI_COMMUNITY__TOPICS__MODE", "default"),
        ("TASUKI_COMMUNITY__LIMITS__EVENTS_PER_MINUTE", "0"),
        ("TASUKI_COMMUNITY__LIMITS__CONNECTIONS_PER_MINUTE", "0"),
    ];
    settings.extend(more);
    (Platform::with(name, &settings).await, keys)
}

#[tokio::test]
async fn a_node_that_dies_while_it_labels_labels_and_tells_once() {
    let (platform, _keys) = speaking("labels", &[]).await;
    let survivor = platform.node("community").await;
    open_a_rule(&platform).await;
    let (known, stop) = (Known::default(), Arc::default());
    known.are(&[&survivor]);
    let publishers: Vec<_> = (0..2)
        .map(|_| spawn(publish(known.clone(), Arc::clone(&stop))))
        .collect();
    for point in POINTS {
        let mut doomed = platform.doomed("community", point, 1).await;
        if point == "seqlog.rebuilt" {
            let consumers = Consumers::new(&Schema::new(tasuki_community::SCHEMA).unwrap());
            let mut tx = platform.pool.begin().await.unwrap();
            let asked = consumers.rebuild(&mut tx, "moderation-v1", "ann", "a test");
            asked.await.unwrap();
            tx.commit().await.unwrap();
        }
        // It labels only if nobody else does.
        survivor.pause();
        known.are(&[&doomed]);
        doomed.is_killed().await;
        survivor.resume();
        known.are(&[&survivor]);
    }
    stop.store(true, Ordering::SeqCst);
    let mut answered = BTreeSet::new();
    for publisher in publishers {
        answered.append(&mut publisher.await.unwrap());
    }
    let wanted = i64::try_from(answered.len()).unwrap();
    assert!(wanted > 0);
    labelled_and_told_once(&platform, wanted).await;
    survivor.stop().await;
}
