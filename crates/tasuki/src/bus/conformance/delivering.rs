//! What holds when messages are delivered.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{Fixture, ids, message, messages, sequences, spec, stored};
use crate::bus::{ConsumerSpec, Delivery, StreamError, Streams, Subscriber, Subscription};
use crate::worker::Error;

/// Long enough for a busy machine.
const SOON: Duration = Duration::from_secs(10);
/// Long enough to believe that nothing comes.
const SILENCE: Duration = Duration::from_millis(300);

fn consumer(fixture: &impl Fixture) -> ConsumerSpec {
    ConsumerSpec::new(spec(fixture, "a"), "reader")
}

/// Exactly `count` deliveries, however many fetches that takes.
async fn take(from: &impl Subscription, count: usize) -> Result<Vec<Delivery>, Error> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let fetched = from.fetch(count - taken.len(), SOON).await?;
        if fetched.is_empty() {
            return Err(format!("{} deliveries instead of {count}", taken.len()).into());
        }
        taken.extend(fetched);
    }
    Ok(taken)
}

async fn one(from: &impl Subscription) -> Result<Delivery, Error> {
    take(from, 1).await?.pop().ok_or_else(|| "none".into())
}

async fn nothing_comes(from: &impl Subscription) -> Result<(), Error> {
    let fetched = from.fetch(10, SILENCE).await?;
    assert!(fetched.is_empty(), "{fetched:?}");
    Ok(())
}

/// Id, subject, headers, payload, position and the number of deliveries arrive.
pub async fn a_delivery_carries_everything<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let subscription = bus.subscribe(&consumer(fixture)).await?;
    let sent = message(fixture, "a.x")
        .with_header("event_type", "order placed")
        .with_header(
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        );
    let positions = stored(&bus, vec![sent.clone()]).await?;

    let got = one(&subscription).await?;
    assert_eq!(got.id, Some(sent.id));
    assert_eq!(got.subject, sent.subject);
    assert_eq!(got.payload, sent.payload);
    assert_eq!(got.header("Event_Type"), Some("order placed"));
    assert_eq!(
        got.traceparent(),
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    );
    assert_eq!(got.header("absent"), None);
    assert_eq!(Some(&got.position), positions.first());
    assert_eq!(got.deliveries, 1);
    assert!(got.published_at >= got.position.stream_created_at);
    got.ack().await?;
    Ok(())
}

/// What is there comes at once; else the first to come ends the wait.
pub async fn a_fetch_waits_for_the_first_message_and_no_longer<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let subscription = bus.subscribe(&consumer(fixture)).await?;
    let started = Instant::now();
    assert!(subscription.fetch(10, SILENCE).await?.is_empty());
    assert!(started.elapsed() >= SILENCE);
    assert!(subscription.fetch(10, Duration::ZERO).await?.is_empty());

    let waiting = subscription.fetch(10, Duration::from_secs(60));
    let publishing = stored(&bus, messages(fixture, "a.x", 3));
    let both = timeout(SOON, async { tokio::join!(waiting, publishing) });
    let (fetched, published) = both.await?;
    published?;
    let mut got = fetched?.len();
    assert!(got >= 1);
    while got < 3 {
        got += take(&subscription, 1).await?.len();
    }
    stored(&bus, messages(fixture, "a.x", 20)).await?;
    let at_once = timeout(SOON, subscription.fetch(10, Duration::from_secs(60))).await?;
    assert_eq!(at_once?.len(), 10);
    assert_eq!(subscription.progress().await?.pending, 10);
    Ok(())
}

/// Acknowledged is done; saying it twice harms nobody, and does not take long.
pub async fn an_acknowledged_message_does_not_come_again<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture).ack_wait(Duration::from_millis(500));
    let subscription = bus.subscribe(&spec).await?;
    stored(&bus, messages(fixture, "a.x", 2)).await?;
    for delivery in take(&subscription, 2).await? {
        delivery.ack().await?;
        timeout(Duration::from_secs(3), delivery.ack()).await??;
    }
    let fetched = subscription.fetch(10, Duration::from_secs(1)).await?;
    assert!(fetched.is_empty(), "{fetched:?}");
    Ok(())
}

/// A retry comes after its delay, and says that it is one.
pub async fn a_message_comes_again_after_the_delay_that_was_asked_for<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let subscription = bus.subscribe(&consumer(fixture)).await?;
    stored(&bus, messages(fixture, "a.x", 1)).await?;
    let delay = Duration::from_secs(1);
    let first = one(&subscription).await?;
    let asked = Instant::now();
    first.nak(delay).await?;
    nothing_comes(&subscription).await?;

    let again = one(&subscription).await?;
    assert!(
        asked.elapsed() >= delay.mul_f64(0.9),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!((again.id, again.deliveries), (first.id, 2));
    again.nak(Duration::ZERO).await?;
    let third = one(&subscription).await?;
    assert_eq!(third.deliveries, 3);
    third.ack().await?;
    nothing_comes(&subscription).await
}

/// Given up is given up.
pub async fn a_message_that_was_given_up_does_not_come_again<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture).ack_wait(Duration::from_millis(500));
    let subscription = bus.subscribe(&spec).await?;
    stored(&bus, messages(fixture, "a.x", 1)).await?;
    one(&subscription).await?.term("not a grant").await?;
    let fetched = subscription.fetch(10, Duration::from_secs(1)).await?;
    assert!(fetched.is_empty(), "{fetched:?}");
    Ok(())
}

/// A limit of deliveries gives a message up, which settles it, and everything else goes on.
pub async fn a_message_that_was_delivered_often_enough_does_not_come_again<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture).ack_wait(Duration::from_millis(500));
    let subscription = bus.subscribe(&spec.max_deliver(2)).await?;
    stored(&bus, messages(fixture, "a.x", 1)).await?;
    for delivery in 1..=2 {
        let delivered = one(&subscription).await?;
        assert_eq!(delivered.deliveries, delivery);
        delivered.nak(Duration::ZERO).await?;
    }
    let fetched = subscription.fetch(10, Duration::from_secs(1)).await?;
    assert!(fetched.is_empty(), "{fetched:?}");
    assert_eq!(subscription.progress().await?.settled, 1);
    stored(&bus, messages(fixture, "a.x", 1)).await?;
    one(&subscription).await?.ack().await?;
    Ok(())
}

/// What is settled is known: acknowledged and given up alike, up to the first open one.
pub async fn everything_below_the_first_open_message_is_settled<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let subscription = bus.subscribe(&consumer(fixture)).await?;
    assert_eq!(subscription.progress().await?.settled, 0);
    stored(&bus, messages(fixture, "a.x", 4)).await?;
    let all = take(&subscription, 4).await?;
    let [first, second, third, fourth] = &*all else {
        return Err("four were published".into());
    };
    second.ack().await?;
    assert_eq!(subscription.progress().await?.settled, 0);
    first.term("no").await?;
    assert_eq!(subscription.progress().await?.settled, 2);
    fourth.ack().await?;
    third.ack().await?;
    assert_eq!(subscription.progress().await?.settled, 4);
    Ok(())
}

/// Without a word the message comes again after `ack_wait`; "in progress" is a word.
pub async fn an_unsettled_message_comes_again_unless_it_is_in_progress<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture).ack_wait(Duration::from_secs(1));
    let subscription = bus.subscribe(&spec).await?;
    stored(&bus, messages(fixture, "a.x", 1)).await?;
    let first = one(&subscription).await?;
    for _ in 0..6 {
        first.in_progress().await?;
        nothing_comes(&subscription).await?;
    }
    let again = one(&subscription).await?;
    assert_eq!((again.id, again.deliveries), (first.id, 2));
    // Either delivery may be settled.
    first.ack().await?;
    Ok(())
}

/// A durable remembers; a restart forgets.
pub async fn a_durable_goes_on_where_it_was_until_it_is_restarted<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture);
    let subscription = bus.subscribe(&spec).await?;
    let batch = messages(fixture, "a.x", 3);
    let expected: Vec<_> = ids(&batch).into_iter().map(Some).collect();
    stored(&bus, batch).await?;
    for delivery in take(&subscription, 2).await? {
        delivery.ack().await?;
    }
    drop(subscription);

    let again = bus.subscribe(&spec).await?;
    let third = one(&again).await?;
    assert_eq!(Some(&third.id), expected.last());
    third.ack().await?;
    nothing_comes(&again).await?;

    let anew = bus.restart(&spec).await?;
    let all = take(&anew, 3).await?;
    let found: Vec<_> = all.iter().map(|delivery| delivery.id).collect();
    assert_eq!(found, expected);
    assert!(all.iter().all(|delivery| delivery.deliveries == 1));
    Ok(())
}

/// Two readers of a durable get every message once between them.
pub async fn two_subscriptions_of_a_durable_share_its_messages<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture);
    let (one, two) = tokio::join!(bus.subscribe(&spec), bus.subscribe(&spec));
    let (one, two) = (one?, two?);
    let batch = messages(fixture, "a.x", 100);
    let mut expected: Vec<_> = ids(&batch).into_iter().map(Some).collect();
    stored(&bus, batch).await?;
    let mut found = Vec::new();
    while found.len() < 100 {
        for subscription in [&one, &two] {
            let fetched = subscription.fetch(30, SILENCE).await?;
            found.extend(fetched.iter().map(|delivery| delivery.id));
        }
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    Ok(())
}

/// Only what the filters cover is delivered.
pub async fn a_filter_selects_subjects<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let prefix = fixture.prefix();
    for (durable, filters) in [
        ("one", vec![format!("{prefix}.a.y")]),
        (
            "two",
            vec![format!("{prefix}.a.y"), format!("{prefix}.a.z.*")],
        ),
    ] {
        let spec = ConsumerSpec::new(spec(fixture, "a"), durable).filters(filters.clone());
        let subscription = bus.subscribe(&spec).await?;
        let sent = ["a.x", "a.y", "a.z.1", "a.x"].map(|rest| message(fixture, rest));
        let positions = stored(&bus, sent.to_vec()).await?;
        let from = sequences(&positions).first().copied().unwrap_or_default();
        let mut found = Vec::new();
        while let Some(delivery) = subscription.fetch(1, SILENCE).await?.pop() {
            delivery.ack().await?;
            found.push(delivery.position.sequence);
        }
        found.retain(|sequence| *sequence >= from);
        let count = u64::try_from(filters.len())?;
        assert_eq!(found, (from + 1..=from + count).collect::<Vec<_>>());
        bus.subscribe(&spec).await?;
    }
    Ok(())
}

/// Settings that differ are named; the durable stays as it is.
pub async fn an_existing_durable_is_never_changed<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture);
    bus.subscribe(&spec).await?;
    let other = spec.clone().ack_wait(Duration::from_secs(7));
    match bus.subscribe(&other).await.map(drop) {
        Err(StreamError::Mismatch { differences, .. }) => {
            let told: Vec<_> = differences.iter().map(ToString::to_string).collect();
            assert_eq!(told, ["ack_wait is 30s, wanted 7s"]);
        }
        unexpected => return Err(format!("{unexpected:?}").into()),
    }
    bus.subscribe(&spec).await?;
    Ok(())
}

/// What is missing stays missing, and what differs is named.
pub async fn a_comparison_makes_nothing_and_names_what_differs<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture);
    assert!(!bus.compare(&spec).await?);
    assert_eq!(bus.compare_stream(&spec.stream).await?, None);
    let made = bus.ensure_stream(&spec.stream).await?;
    assert_eq!(bus.compare_stream(&spec.stream).await?, Some(made));
    assert!(!bus.compare(&spec).await?);
    assert!(!bus.compare(&spec).await?, "the first one made nothing");
    bus.subscribe(&spec).await?;
    assert!(bus.compare(&spec).await?);

    let hour = Duration::from_secs(3600);
    let other_stream = ConsumerSpec::new(spec.stream.clone().max_age(hour), "reader");
    for other in [spec.ack_wait(hour), other_stream] {
        let compared = bus.compare(&other).await;
        let differs = matches!(compared, Err(StreamError::Mismatch { .. }));
        assert!(differs, "{compared:?}");
    }
    Ok(())
}

/// The durable goes with its stream; a new one starts at the first message, whatever numbers
/// had been read before.
pub async fn a_durable_reads_a_stream_that_was_made_again_from_its_beginning<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture);
    let subscription = bus.subscribe(&spec).await?;
    stored(&bus, messages(fixture, "a.x", 5)).await?;
    for delivery in take(&subscription, 5).await? {
        delivery.ack().await?;
    }
    fixture.delete_stream(&spec.stream.name).await?;
    let gone = subscription.fetch(10, SILENCE).await.map(drop);
    assert!(
        matches!(gone, Err(StreamError::NotFound { .. })),
        "{gone:?}"
    );

    let anew = bus.subscribe(&spec).await?;
    assert!(anew.opened_on().created_at > subscription.opened_on().created_at);
    let batch = messages(fixture, "a.x", 2);
    let expected: Vec<_> = ids(&batch).into_iter().map(Some).collect();
    stored(&bus, batch).await?;
    let found = take(&anew, 2).await?;
    let found: Vec<_> = found.iter().map(|delivery| delivery.id).collect();
    assert_eq!(found, expected);
    Ok(())
}

/// No more deliveries are open at once than the durable allows.
pub async fn a_durable_opens_no_more_deliveries_than_it_may<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = consumer(fixture).max_ack_pending(3);
    let subscription = bus.subscribe(&spec).await?;
    stored(&bus, messages(fixture, "a.x", 5)).await?;
    let open = take(&subscription, 3).await?;
    nothing_comes(&subscription).await?;
    for delivery in open {
        delivery.ack().await?;
    }
    assert_eq!(take(&subscription, 2).await?.len(), 2);
    Ok(())
}
