//! What the broker gave up or lost: recorded, shown, and sent again by a person.

use std::collections::HashSet;

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::PullConsumer;
use futures_util::StreamExt;
use tasuki_contract::events::Message as _;
use tasuki_notification::{Aside, Redriven, SetAside};
use tasuki_service::config::Config;
use tasuki_stack::Nats;
use tasuki_testkit::{breakable, eventually};
use time::macros::datetime;
use uuid::Uuid;

use crate::away::{advise, advisories, given_up_of};
use crate::intake::REFUSE_BAD;
use crate::support::{World, granted};

const OPEN: &str = "SELECT count(*) FROM notification.notification_nats_dlq
    WHERE redriven_at IS NULL AND discarded_at IS NULL";
const SENT: &str = "SELECT count(*) FROM notification.notifications WHERE status = 'SENT'";

async fn aside(world: &World) -> Aside {
    let common = world.env.common().unwrap();
    let own = tasuki_notification::config(&world.env.config).unwrap();
    // With pools of its own: those of a service that has stopped are closed.
    let tables = tasuki_notification::tables(&common, &own).unwrap();
    tasuki_notification::aside(&common, &own, &tables, &world.env.clock)
        .await
        .unwrap()
}

/// The only open entry.
async fn entry(aside: &Aside) -> SetAside {
    let mut entries = aside.list(true, 10).await.unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

/// Redrives the only open entry, which fails, and says why.
async fn why_not(aside: &Aside) -> String {
    let tried = aside.redrive(&entry(aside).await, "ann").await.unwrap();
    let why = entry(aside).await.last_error;
    assert_eq!(tried, Redriven::Failed(why.clone().unwrap_or_default()));
    why.unwrap_or_default()
}

/// Stops the first process.
pub(crate) async fn stop(world: &World) {
    world.host.phases.stop();
    eventually("it has stopped", async || {
        world.host.stopped.is_finished().then_some(())
    })
    .await;
}

/// The next message, as a process gets it that has no time to do anything about it.
pub(crate) async fn deliver(world: &World) -> Message {
    let stream = world.jetstream.get_stream(world.stream()).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer(&world.durable()).await.unwrap();
    let mut batch = consumer.fetch().max_messages(1).messages().await.unwrap();
    batch.next().await.unwrap().unwrap()
}

/// The broker loses a delivery: the message is settled, and neither processed nor reported.
async fn settle_unprocessed(world: &World) {
    deliver(world).await.double_ack().await.unwrap();
}

/// Every delivery is the last one, and ends soon.
fn delivering_once(config: Config) -> Config {
    config
        .with_value("notification.nats.max-deliver", 1)
        .unwrap()
        .with_value("notification.nats.ack-wait", "1s")
        .unwrap()
}

/// Waits until everything up to `sequence` was compared.
async fn swept(world: &World, sequence: u64) {
    let sequence = i64::try_from(sequence).unwrap();
    eventually("the sweep has come so far", async || {
        let swept: Option<i64> = sqlx::query_scalar("SELECT swept_seq FROM notification.sweeps")
            .fetch_optional(&world.env.db.pool)
            .await
            .unwrap();
        (swept >= Some(sequence)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_message_that_fails_to_the_last_is_recorded_and_a_redrive_tells_it_once() {
    let world = World::with(|config| {
        config
            .with_value("notification.nats.max-deliver", 2)
            .unwrap()
    })
    .await;
    world.execute(REFUSE_BAD).await;
    world.tell(&granted("bad", "s", 1)).await;
    // Until the broker has said so: a sweep that is quicker calls it missed.
    let told = "SELECT count(*) FROM notification.notification_nats_dlq
        WHERE kind = 'MAX_DELIVERIES'";
    world.counts(1, told).await;
    let aside = aside(&world).await;
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    assert_eq!(
        (entry.kind.as_str(), entry.deliveries),
        ("MAX_DELIVERIES", Some(2))
    );
    assert_eq!(entry.consumer, world.durable());

    let refused = aside.redrive(&entry, "ann").await;
    assert!(
        refused.is_err(),
        "the database still refuses it, and nothing has changed"
    );
    assert_eq!(world.count(OPEN).await, 1);

    world
        .execute("ALTER TABLE notification.notifications_live DROP CONSTRAINT nobody_bad")
        .await;
    assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    world.counts(1, SENT).await;
    assert_eq!(
        aside.redrive(&entry, "bob").await.unwrap(),
        Redriven::NotOpen
    );
    assert_eq!(
        world
            .count("SELECT count(*) FROM notification.notifications")
            .await,
        1
    );
    assert!(aside.list(true, 10).await.unwrap().is_empty());
    let closed = aside.list(false, 10).await.unwrap();
    assert!(closed[0].redriven_at.is_some());
}

#[tokio::test]
async fn poison_stays_open_after_a_redrive_until_somebody_discards_it() {
    let world = World::start().await;
    world
        .publish(&Uuid::now_v7().to_string(), b"\xff".to_vec())
        .await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    let still = aside.redrive(&entry, "ann").await.unwrap();
    assert!(matches!(still, Redriven::Failed(_)), "{still:?}");
    let entry = aside.list(true, 10).await.unwrap().remove(0);
    assert!(entry.last_error.is_some());
    assert!(aside.discard(&entry, "ann", "noise").await.unwrap());
    assert!(!aside.discard(&entry, "bob", "no more").await.unwrap());
    assert_eq!(world.count(OPEN).await, 0);
    let discarded = aside.list(false, 10).await.unwrap().remove(0);
    assert_eq!(discarded.closed_by.as_deref(), Some("ann"));
    assert_eq!(discarded.discard_reason.as_deref(), Some("noise"));
    assert_eq!(
        discarded.last_error, entry.last_error,
        "why it failed is kept"
    );
    let payload = aside.payload(&discarded).await.unwrap();
    assert_eq!(payload.as_deref(), Some(b"\xff".as_slice()));
}

#[tokio::test]
async fn a_message_that_was_settled_and_never_processed_is_found_and_can_be_sent_again() {
    let world = World::start().await;
    world.tell(&granted("u", "first", 1)).await;
    world.settled().await;
    stop(&world).await;
    let sequence = world.tell(&granted("u", "lost", 1)).await;
    settle_unprocessed(&world).await;

    let _again = world.another().await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = entry(&aside).await;
    assert_eq!(
        (entry.kind.as_str(), entry.stream_seq.unsigned_abs()),
        ("MISSED", sequence)
    );
    assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    world.counts(2, SENT).await;
}

#[tokio::test]
async fn a_message_that_was_given_up_last_and_not_reported_is_found() {
    let world = World::with(delivering_once).await;
    world.tell(&granted("u", "first", 1)).await;
    world.settled().await;
    let given_up = advisories(&world, "given-up").await;
    stop(&world).await;
    // What the broker says is lost, and nothing comes after this message that moves the floor.
    let given_up = &given_up.cached_info().config.name;
    world.jetstream.delete_stream(given_up).await.unwrap();
    world.tell(&granted("u", "lost", 1)).await;
    drop(deliver(&world).await);
    world.settled().await;

    let _again = world.another().await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = entry(&aside).await;
    assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    world.counts(2, SENT).await;
}

#[tokio::test]
async fn a_broker_that_is_killed_during_the_last_delivery_loses_no_message() {
    let nats = Nats::start(&breakable("nats-last")).await.unwrap();
    let url = nats.url();
    let world = World::with(|config| delivering_once(config.with_value("nats.url", url).unwrap()));
    let world = world.await;
    world.tell(&granted("u", "first", 1)).await;
    world.settled().await;
    stop(&world).await;
    world.tell(&granted("u", "lost", 1)).await;
    drop(deliver(&world).await);
    nats.kill().await.unwrap();
    // sleep: it has to be away for longer than the delivery may take.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    nats.start().await.unwrap();

    let _again = world.another().await;
    // Reported or found, as it happens; or delivered again by a broker that was killed before it
    // wrote down that it had.
    let set_aside = eventually("it is set aside or delivered", async || {
        let (open, sent) = (world.count(OPEN).await, world.count(SENT).await);
        (open == 1 || sent == 2).then_some(open == 1)
    });
    if set_aside.await {
        let aside = aside(&world).await;
        let entry = entry(&aside).await;
        assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    }
    world.counts(2, SENT).await;
    assert_eq!(world.count(OPEN).await, 0);
}

#[tokio::test]
async fn a_missed_message_whose_id_is_none_is_found_by_the_event_in_it() {
    let world = World::start().await;
    let known = granted("u", "known", 1);
    world.tell(&known).await;
    world.counts(1, SENT).await;
    // The same event under other ids, as a sender may repeat it: processed, whatever they say.
    for id in ["copy", &Uuid::now_v7().to_string()] {
        world.publish(id, known.encode_to_vec()).await;
    }
    world.settled().await;
    swept(&world, 3).await;
    assert_eq!(world.count(OPEN).await, 0, "a copy is not missed");

    stop(&world).await;
    let lost = granted("u", "lost", 1);
    let sequence = world.publish("not-a-uuid", lost.encode_to_vec()).await;
    settle_unprocessed(&world).await;
    let _again = world.another().await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = entry(&aside).await;
    assert_eq!(
        (entry.stream_seq.unsigned_abs(), entry.message_id),
        (sequence, None)
    );
    assert_eq!(aside.redrive(&entry, "ann").await.unwrap(), Redriven::Done);
    world.counts(2, SENT).await;
}

#[tokio::test]
async fn a_stream_that_lost_what_was_swept_is_swept_from_its_beginning() {
    let world = World::start().await;
    let sequence = world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    world.settled().await;
    swept(&world, sequence).await;
    // As it is after a roll-back: another message stands where one was compared, and nobody has
    // processed it.
    world
        .execute("DELETE FROM notification.processed_events")
        .await;
    assert_eq!(world.count(OPEN).await, 0, "it was compared before");
    world
        .execute("UPDATE notification.sweeps SET known_id = gen_random_uuid()")
        .await;
    world.counts(1, OPEN).await;
    assert_eq!(entry(&aside(&world).await).await.kind, "MISSED");
}

#[tokio::test]
async fn a_sweep_that_is_under_way_does_not_undo_that_another_began_again() {
    let world = World::start().await;
    let first = granted("u", "a", 1);
    let sequence = world.tell(&first).await;
    world.counts(1, SENT).await;
    world.settled().await;
    swept(&world, sequence).await;
    // Here it waits after it has read how far the stream is swept.
    let mut other = world.env.db.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE notification.notification_nats_dlq IN ACCESS EXCLUSIVE MODE")
        .execute(&mut *other)
        .await
        .unwrap();
    world.tell(&granted("u", "b", 1)).await;
    world.blocked(1, "stream_seq = ANY").await;
    sqlx::query("UPDATE notification.sweeps SET swept_seq = 0, known_seq = NULL, known_id = NULL")
        .execute(&mut *other)
        .await
        .unwrap();
    sqlx::query("DELETE FROM notification.processed_events WHERE event_id = $1::uuid")
        .bind(&first.event_id)
        .execute(&mut *other)
        .await
        .unwrap();
    other.commit().await.unwrap();
    world.counts(1, OPEN).await;
    let entry = entry(&aside(&world).await).await;
    assert_eq!(entry.stream_seq.unsigned_abs(), sequence);
}

#[tokio::test]
async fn an_entry_is_not_mistaken_for_the_message_that_has_its_number_now() {
    let world = World::start().await;
    let id = Uuid::now_v7();
    let sequence = world.publish(&id.to_string(), b"\xff".to_vec()).await;
    world.counts(1, OPEN).await;
    swept(&world, sequence).await;
    // As it is after a roll-back: the entry is another message's.
    world
        .execute("UPDATE notification.notification_nats_dlq SET message_id = gen_random_uuid()")
        .await;
    let aside = aside(&world).await;
    let why = why_not(&aside).await;
    assert!(why.contains("another message"), "{why}");

    // The sweep finds that the one which is there now is recorded nowhere.
    world
        .execute("UPDATE notification.sweeps SET known_id = gen_random_uuid()")
        .await;
    let missed = "SELECT count(*) FROM notification.notification_nats_dlq WHERE kind = 'MISSED'";
    world.counts(1, missed).await;
    assert_eq!(entry(&aside).await.message_id, Some(id));
}

#[tokio::test]
async fn an_advisory_from_before_the_stream_is_not_held_against_the_message_at_its_number() {
    let world = World::start().await;
    let sequence = world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    advise(&world, sequence, Some("2020-01-01T00:00:00Z")).await;
    world.counts(1, OPEN).await;
    let aside = aside(&world).await;
    let entry = entry(&aside).await;
    assert_eq!(entry.message_id, None);
    assert_eq!(
        entry.stream_created_at,
        datetime!(2020-01-01 0:00 UTC),
        "not that of the stream as it is now"
    );
    let why = why_not(&aside).await;
    assert!(why.contains("made again"), "{why}");
}

#[tokio::test]
async fn an_advisory_that_comes_while_nobody_runs_is_recorded_by_the_next_who_does() {
    let world = World::start().await;
    let sequence = world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    advisories(&world, "refused").await;
    stop(&world).await;
    advise(&world, sequence, None).await;
    assert_eq!(world.count(OPEN).await, 0);
    let _again = world.another().await;
    world.counts(1, OPEN).await;
    let entry = entry(&aside(&world).await).await;
    assert_eq!(entry.reason.as_deref(), Some("by hand"));
}

#[tokio::test]
async fn an_entry_whose_stream_was_made_again_stays_open_says_why_and_keeps_its_name() {
    let world = World::start().await;
    let noise = || world.publish("noise", b"\xff".to_vec());
    let before = noise().await;
    world.counts(1, OPEN).await;
    world.jetstream.delete_stream(world.stream()).await.unwrap();
    let aside = aside(&world).await;
    let why = why_not(&aside).await;
    assert!(why.contains("made again"), "{why}");

    let after = noise().await;
    assert_eq!(before, after, "the number is used again");
    world.counts(2, OPEN).await;
    let entries = aside.list(true, 10).await.unwrap();
    let names: HashSet<String> = entries.iter().map(SetAside::id).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[tokio::test]
async fn entries_are_listed_page_by_page_to_the_last() {
    let world = World::start().await;
    world
        .execute(
            "INSERT INTO notification.notification_nats_dlq
                 (stream, stream_created_at, stream_seq, consumer, kind, redriven_at)
             SELECT 's' || number % 3, now() - number % 2 * interval '1 day', number, 'c', 'MISSED',
                 CASE WHEN number > 25 THEN now() END
             FROM generate_series(1, 30) AS number",
        )
        .await;
    let aside = aside(&world).await;
    let mut names = Vec::new();
    let mut last = None;
    loop {
        let page = aside.page(true, last.as_ref(), 10).await.unwrap();
        names.extend(page.iter().map(SetAside::id));
        match page.into_iter().next_back() {
            Some(entry) => last = Some(entry),
            None => break,
        }
    }
    assert_eq!(names.len(), 25, "the open ones");
    assert_eq!(names.iter().collect::<HashSet<_>>().len(), 25);
}

#[tokio::test]
async fn what_left_the_stream_before_it_was_read_is_noticed_and_nothing_is_invented() {
    let world = World::start().await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    world.settled().await;
    swept(&world, 1).await;
    stop(&world).await;
    for number in 0..3 {
        world.tell(&granted("u", &format!("s{number}"), 1)).await;
    }
    // As the age limit does it.
    let stream = world.jetstream.get_stream(world.stream()).await.unwrap();
    stream.purge().await.unwrap();
    let _again = world.another().await;
    let noticed = "SELECT count(*) FROM notification.sweeps WHERE settled_seq = 4";
    world.counts(1, noticed).await;
    assert_eq!(world.count(OPEN).await, 0, "nothing is invented");
    world.tell(&granted("u", "later", 1)).await;
    world.counts(2, SENT).await;
}

#[tokio::test]
async fn a_message_that_was_taken_in_is_not_recorded_though_its_last_delivery_was_not_settled() {
    let world = World::with(delivering_once).await;
    // All is committed, and then it can't be written down how far was read.
    world
        .execute(
            "CREATE FUNCTION notification.no_places() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 RAISE EXCEPTION 'no';
             END $$;
             CREATE TRIGGER no_places BEFORE INSERT ON notification.consumer_places
                 FOR EACH ROW EXECUTE FUNCTION notification.no_places()",
        )
        .await;
    let sequence = world.tell(&granted("u", "s", 1)).await;
    world.counts(1, SENT).await;
    let given_up = advisories(&world, "given-up").await;
    let consumer = "notification-advisory-consumer";
    eventually("the broker has said so, and was heard", async || {
        let told = given_up_of(&given_up, sequence).await;
        let info = given_up.consumer_info(consumer).await.ok()?;
        (told && (info.num_pending, info.num_ack_pending) == (0, 0)).then_some(())
    })
    .await;
    let all = "SELECT count(*) FROM notification.notification_nats_dlq";
    assert_eq!(world.count(all).await, 0);
}
