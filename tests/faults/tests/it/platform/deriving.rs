//! Nodes that die while they index, label, count and speak: afterwards each table that a consumer keeps is
//! row by row what the consumer makes from nothing, and what it is after a part of the log comes again.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nostr::{Event, EventBuilder, Keys, Kind, Tag};
use sqlx::AssertSqlSafe;
use tasuki::Schema;
use tasuki::seqlog::Consumers;
use tasuki_testkit::eventually_within;

use super::Platform;
use super::community::{Known, publish_each, spawn};
use super::labelling::{count, open_a_rule, speaking};

/// Where a node dies, at which time of coming there: with what is written and not committed, of each
/// consumer, and before and after it has said something.
const POINTS: [(&str, u32); 5] = [
    ("community.indexed", 2),
    ("community.labelled", 2),
    ("community.counted", 2),
    ("community.trust.before_commit", 2),
    ("community.trust.committed", 2),
];
/// What consumers keep; what is said by it fades, and is looked at by itself.
const TABLES: [&str; 6] = [
    "search_documents",
    "attention",
    "labels",
    "reports",
    "trust_contacts",
    "trust_reports",
];
const CONSUMERS: [&str; 3] = ["index-v1", "moderation-v1", "trust-v1"];
const SETTLED: Duration = Duration::from_secs(90);

type Rows = BTreeMap<&'static str, Vec<String>>;

/// What everybody has published so far.
type Shared = Arc<Mutex<Vec<Event>>>;

/// An author who talks, reacts, reports, and takes some of it back.
fn author(others: Shared) -> impl FnMut(usize) -> Event {
    let (keys, mut own) = (Keys::generate(), Vec::<Event>::new());
    move |number| {
        let mut all = others.lock().unwrap();
        let about = fastrand::choice(&*all).cloned();
        let is_deletion = number % 9 == 8;
        let tags = match (&about, fastrand::choice(&own)) {
            (_, Some(gone)) if is_deletion => vec![["e".to_owned(), gone.id.to_hex()]],
            (Some(about), _) => vec![
                ["e".to_owned(), about.id.to_hex()],
                ["p".to_owned(), about.pubkey.to_hex()],
            ],
            _ => Vec::new(),
        };
        let kind = match number % 9 {
            _ if tags.is_empty() => 1,
            3 | 5 => 7,
            6 => 1984,
            7 => 6,
            8 if tags.len() == 1 => 5,
            _ => 1,
        };
        let tags = tags.iter().map(|tag| Tag::parse(tag).unwrap());
        let made = EventBuilder::new(Kind::from(kind), format!("number {number}"));
        let made = made.tags(tags).allow_self_tagging();
        let made = made.sign_with_keys(&keys).unwrap();
        if kind != 5 {
            own.push(made.clone());
            all.push(made.clone());
        }
        made
    }
}

/// Waits until every consumer has heard of everything.
async fn caught_up(platform: &Platform) {
    eventually_within(SETTLED, "all consumers have caught up", async || {
        let behind = "SELECT (SELECT count(*) FROM cn_relay.events_outbox_pending)
            + (SELECT count(*) FROM cn_relay.consumer_offsets
               WHERE state <> 'FOLLOWING' OR last_seq <> (
                   SELECT last_seq FROM cn_relay.seqlogs WHERE log = 'events_outbox'
               ))";
        (count(platform, behind).await == 0).then_some(())
    })
    .await;
}

async fn rows(platform: &Platform) -> Rows {
    let mut all = Rows::new();
    for table in TABLES {
        let sql = format!("SELECT to_jsonb(it)::text FROM cn_relay.{table} AS it ORDER BY 1");
        let found = sqlx::query_scalar(AssertSqlSafe(sql));
        all.insert(table, found.fetch_all(&platform.pool).await.unwrap());
    }
    all
}

fn same(found: &Rows, wanted: &Rows, when: &str) {
    for (table, wanted) in wanted {
        let found = &found[table];
        let odd = |these: &[String], those: &[String]| {
            let odd = these.iter().filter(|it| !those.contains(it));
            odd.take(3).cloned().collect::<Vec<_>>()
        };
        let (more, less) = (odd(found, wanted), odd(wanted, found));
        assert!(
            found == wanted,
            "{table} {when}: too much {more:?}, missing {less:?}"
        );
    }
}

#[tokio::test]
async fn consumers_that_die_anywhere_keep_the_rows_that_they_make_from_nothing() {
    let eager = [("TASUKI_COMMUNITY__TRUST__INTERVAL", "1s")];
    let (platform, _keys) = speaking("deriving", &eager).await;
    let survivor = platform.node("community").await;
    open_a_rule(&platform).await;
    let (known, stop, all) = (Known::default(), Arc::default(), Shared::default());
    known.are(&[&survivor]);
    let publishers: Vec<_> = (0..2)
        .map(|_| author(Arc::clone(&all)))
        .map(|author| spawn(publish_each(known.clone(), Arc::clone(&stop), author)))
        .collect();
    for (point, nth) in POINTS {
        let mut doomed = platform.doomed("community", point, nth).await;
        // It follows the log only if nobody else does.
        survivor.pause();
        known.are(&[&doomed]);
        doomed.is_killed().await;
        survivor.resume();
        known.are(&[&survivor]);
    }
    stop.store(true, Ordering::SeqCst);
    for publisher in publishers {
        assert!(!publisher.await.unwrap().is_empty());
    }
    caught_up(&platform).await;
    let followed = rows(&platform).await;
    for (table, rows) in &followed {
        assert!(!rows.is_empty(), "{table} is empty");
    }
    let hidden = "SELECT count(*) FROM cn_relay.events WHERE hidden_at IS NOT NULL";
    assert!(count(&platform, hidden).await > 0, "nothing was deleted");
    all_was_said(&platform).await;

    let consumers = Consumers::new(&Schema::new(tasuki_community::SCHEMA).unwrap());
    let half = "SELECT last_seq / 2 FROM cn_relay.seqlogs WHERE log = 'events_outbox'";
    let half = count(&platform, half).await;
    for consumer in CONSUMERS {
        let mut tx = platform.pool.begin().await.unwrap();
        let asked = consumers.replay(&mut tx, consumer, half, "ann", "a test");
        asked.await.unwrap();
        tx.commit().await.unwrap();
    }
    caught_up(&platform).await;
    same(
        &rows(&platform).await,
        &followed,
        "after a replay from the middle",
    );

    for table in TABLES {
        let empty = format!("DELETE FROM cn_relay.{table}");
        let emptied = sqlx::query(AssertSqlSafe(empty));
        emptied.execute(&platform.pool).await.unwrap();
    }
    for consumer in CONSUMERS {
        let mut tx = platform.pool.begin().await.unwrap();
        let asked = consumers.rebuild(&mut tx, consumer, "ann", "a test");
        asked.await.unwrap();
        tx.commit().await.unwrap();
    }
    caught_up(&platform).await;
    same(&rows(&platform).await, &followed, "made from nothing");
    survivor.stop().await;
}

/// What the node believes to have said of somebody is what anybody can see, and nothing else is.
async fn all_was_said(platform: &Platform) {
    let said = "SELECT count(*) FROM cn_relay.kept_events WHERE kind BETWEEN 30382 AND 30385";
    assert!(count(platform, said).await > 0, "nothing was said");
    let odd = "SELECT count(*)
        FROM (SELECT event_id FROM cn_relay.kept_events WHERE kind BETWEEN 30382 AND 30385) AS seen
        FULL JOIN (
            SELECT event_id FROM cn_relay.trust_assertions WHERE event_id IS NOT NULL
        ) AS believed USING (event_id)
        WHERE seen.event_id IS NULL OR believed.event_id IS NULL";
    eventually_within(SETTLED, "what was said is what is believed", async || {
        (count(platform, odd).await == 0).then_some(())
    })
    .await;
}
