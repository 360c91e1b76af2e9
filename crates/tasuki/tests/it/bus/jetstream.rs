//! What only a real JetStream can be asked: what the server does with batches, and what our
//! publisher makes of it.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::Config;
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::Value;
use tasuki::bus::conformance::Fixture;
use tasuki::bus::{
    ConsumerSpec, Message, NatsBus, Position, PublishError, Publisher, StreamError, Streams,
    Subscriber, Subscription,
};

use super::{OnNats, id};

async fn stored(bus: &impl Publisher, batch: Vec<Message>) -> Vec<Position> {
    let results = bus.publish(batch).await.into_iter();
    results.map(Result::unwrap).collect()
}

/// Publishes through the protocol of the server, without our publisher, and gives the answer
/// to the commit.
async fn raw_batch(on: &OnNats, batch: &str, ids: &[String]) -> Value {
    let mut answer = None;
    for (index, id) in ids.iter().enumerate() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", id.as_str());
        headers.insert("Nats-Batch-Id", batch);
        headers.insert("Nats-Batch-Sequence", (index + 1).to_string().as_str());
        let subject = format!("{}.x", on.prefix());
        if index + 1 == ids.len() {
            headers.insert("Nats-Batch-Commit", "1");
            let reply = on.client.request_with_headers(subject, headers, "x".into());
            answer = Some(serde_json::from_slice(&reply.await.unwrap().payload).unwrap());
        } else {
            let sent = on.client.publish_with_headers(subject, headers, "x".into());
            sent.await.unwrap();
        }
    }
    answer.unwrap()
}

/// The headers of every message of the stream.
async fn all_headers(on: &OnNats, count: usize) -> Vec<HeaderMap> {
    let stream = on.jetstream().get_stream(&*on.spec().name).await.unwrap();
    let config = async_nats::jetstream::consumer::pull::Config::default();
    let consumer = stream.create_consumer(config).await.unwrap();
    let messages = consumer.fetch().max_messages(count).messages().await;
    let messages: Vec<_> = messages.unwrap().try_collect().await.unwrap();
    messages
        .into_iter()
        .map(|message| message.headers.clone().unwrap())
        .collect()
}

#[tokio::test]
async fn the_server_gives_a_batch_consecutive_numbers_while_others_publish() {
    let on = OnNats::new().await;
    let bus = on.bus(vec![on.spec()]);
    bus.ensure_stream(&on.spec()).await.unwrap();
    let batches: Vec<_> = (0..20).map(|_| on.messages(50)).collect();
    let singles = on.messages(200);
    let expected: Vec<Vec<_>> = batches
        .iter()
        .map(|batch| batch.iter().map(|message| Some(message.id)).collect())
        .collect();

    let batches = join_all(batches.into_iter().map(|batch| stored(&bus, batch)));
    let singles = join_all(singles.into_iter().map(|one| stored(&bus, vec![one])));
    let (batches, _) = tokio::join!(batches, singles);

    for (positions, expected) in batches.iter().zip(expected) {
        let sequences: Vec<_> = positions.iter().map(|at| at.sequence).collect();
        assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        let found = bus.ids_at(&on.spec().name, &sequences).await.unwrap();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn a_batch_goes_as_one_where_the_stream_allows_it_and_pipelined_where_not() {
    for atomic in [true, false] {
        let on = OnNats::new().await;
        let spec = if atomic {
            on.spec()
        } else {
            on.spec().without_atomic_publish()
        };
        let bus = on.bus(vec![spec]);
        stored(&bus, on.messages(10)).await;

        let headers = all_headers(&on, 10).await;
        assert_eq!(headers.len(), 10);
        // The server stores the headers of the batch with its messages.
        let in_batch = headers
            .iter()
            .filter(|headers| headers.get("Nats-Batch-Id").is_some());
        assert_eq!(in_batch.count(), if atomic { 10 } else { 0 });
    }
}

#[tokio::test]
async fn the_server_rejects_a_batch_with_a_known_id_and_forgets_its_other_ids() {
    let on = OnNats::new().await;
    on.bus(Vec::new()).ensure_stream(&on.spec()).await.unwrap();
    let names: Vec<_> = (0..4).map(|_| id().to_string()).collect();
    let first = raw_batch(&on, "first", &names[..2]).await;
    assert_eq!((&first["seq"], &first["count"]), (&2.into(), &2.into()));

    let known = raw_batch(&on, "second", &names[1..]).await;
    let twice = raw_batch(&on, "third", &[names[2].clone(), names[2].clone()]).await;
    for rejected in [known, twice] {
        let code = ErrorCode::ATOMIC_PUBLISH_CONTAINS_DUPLICATE_MESSAGE.0;
        assert_eq!(rejected["error"]["err_code"], code, "{rejected}");
    }

    // The ids of the rejected batches were not kept: as new, they are stored.
    let fresh = raw_batch(&on, "fourth", &names[2..]).await;
    assert_eq!((&fresh["seq"], &fresh["count"]), (&4.into(), &2.into()));
}

#[tokio::test]
async fn a_batch_that_is_cut_off_stores_nothing_and_keeps_none_of_its_ids() {
    let on = OnNats::new().await;
    let bus = on.bus(vec![on.spec()]);
    bus.ensure_stream(&on.spec()).await.unwrap();
    let batch = on.messages(3);
    for (index, message) in batch.iter().take(2).enumerate() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", message.id.to_string());
        headers.insert("Nats-Batch-Id", "cut");
        headers.insert("Nats-Batch-Sequence", (index + 1).to_string());
        let subject = message.subject.to_string();
        let sent = on.client.publish_with_headers(subject, headers, "x".into());
        sent.await.unwrap();
    }

    let positions = stored(&bus, batch).await;
    let sequences: Vec<_> = positions.iter().map(|at| at.sequence).collect();
    assert_eq!(sequences, [1, 2, 3]);
    assert!(positions.iter().all(|at| !at.duplicate));
}

#[tokio::test]
async fn a_batch_with_a_gap_is_rejected_by_the_server() {
    let on = OnNats::new().await;
    on.bus(Vec::new()).ensure_stream(&on.spec()).await.unwrap();
    let subject = format!("{}.x", on.prefix());
    let mut answer = Value::Null;
    for number in ["1", "3"] {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Batch-Id", "gap");
        headers.insert("Nats-Batch-Sequence", number);
        if number == "3" {
            headers.insert("Nats-Batch-Commit", "1");
        }
        let asked = on
            .client
            .request_with_headers(subject.clone(), headers, "x".into());
        let reply = asked.await.unwrap();
        answer = serde_json::from_slice(&reply.payload).unwrap_or_default();
    }
    let code = ErrorCode::ATOMIC_PUBLISH_INCOMPLETE_BATCH.0;
    assert_eq!(answer["error"]["err_code"], code, "{answer}");
    let stream = on.bus(Vec::new()).stream(&on.spec().name).await.unwrap();
    assert_eq!(stream.unwrap().messages, 0);
}

#[tokio::test]
async fn a_message_that_only_the_stream_refuses_does_not_take_the_batch_with_it() {
    let on = OnNats::new().await;
    let config = Config {
        name: on.spec().name.to_string(),
        subjects: on.spec().subjects,
        max_message_size: 2000,
        allow_atomic_publish: true,
        ..Config::default()
    };
    on.jetstream().create_stream(config).await.unwrap();
    let bus = on.bus(vec![on.spec()]);
    let mut batch: Vec<_> = on
        .messages(5)
        .into_iter()
        .map(|message| message.in_order_of("key"))
        .collect();
    batch[2].payload = vec![0; 4000].into();
    batch.push(on.message());

    let results = bus.publish(batch).await;
    assert!(
        matches!(
            results.as_slice(),
            [
                Ok(_),
                Ok(_),
                Err(PublishError::Refused(_)),
                Err(PublishError::Held),
                Err(PublishError::Held),
                Ok(_)
            ]
        ),
        "{results:?}"
    );
}

#[tokio::test]
async fn a_message_just_below_the_limit_goes_although_batch_headers_would_not_fit() {
    let on = OnNats::new().await;
    let bus = on.bus(vec![on.spec()]);
    let limit = on.client.max_payload();
    let mut batch = on.messages(2);
    // The frame of the headers and the message id.
    batch[0].payload = vec![0; limit - 63].into();
    stored(&bus, batch.clone()).await;

    batch[0].id = id();
    batch[0].payload = vec![0; limit - 62].into();
    let results = bus.publish(batch).await;
    assert!(matches!(results[0], Err(PublishError::Invalid(_))));
    assert!(matches!(&results[1], Ok(at) if at.duplicate));
}

#[tokio::test]
async fn the_order_of_a_key_is_kept_when_a_batch_is_pipelined() {
    let on = OnNats::new().await;
    let bus = on.bus(vec![on.spec().without_atomic_publish()]);
    let keys = ["a", "b", "c"];
    let batch: Vec<_> = (0..300)
        .map(|index| on.message().in_order_of(keys[index % 3]))
        .collect();
    let positions = stored(&bus, batch).await;
    for key in 0..3 {
        let of_key: Vec<_> = positions.iter().skip(key).step_by(3).collect();
        assert!(of_key.is_sorted_by_key(|at| at.sequence), "{of_key:?}");
    }
}

#[tokio::test]
async fn a_publisher_follows_a_stream_that_somebody_else_owns() {
    let on = OnNats::new().await;
    let owner = on.bus(Vec::new());
    let spec = on.spec();
    let first = owner.ensure_stream(&spec).await.unwrap();
    let bus = NatsBus::new(on.client.clone());
    let at = stored(&bus, on.messages(3)).await;
    assert_eq!(at[2].stream_created_at, first.created_at);

    on.delete_stream(&spec.name).await.unwrap();
    // It is not ours to make, and nobody makes it again: its absence is no fault of a message,
    // however often one is tried.
    for _ in 0..2 {
        let gone = bus.publish(on.messages(2)).await;
        assert!(
            matches!(gone[0], Err(PublishError::Unreachable(_))),
            "{gone:?}"
        );
    }
    let second = owner.ensure_stream(&spec).await.unwrap();
    let at = stored(&bus, on.messages(2)).await;
    assert_eq!(at[0].stream_created_at, second.created_at);
    assert_eq!(at[1].sequence, 2);
}

#[tokio::test]
async fn another_retention_policy_is_a_mismatch() {
    let on = OnNats::new().await;
    let config = Config {
        name: on.spec().name.to_string(),
        subjects: on.spec().subjects,
        max_age: on.spec().max_age,
        duplicate_window: on.spec().duplicate_window,
        allow_direct: true,
        retention: async_nats::jetstream::stream::RetentionPolicy::WorkQueue,
        ..Config::default()
    };
    on.jetstream().create_stream(config).await.unwrap();
    match on.bus(Vec::new()).ensure_stream(&on.spec()).await {
        Err(StreamError::Mismatch { differences, .. }) => {
            // That it takes no atomic batches is no reason not to use it.
            assert_eq!(differences.len(), 1, "{differences:?}");
            let told = differences[0].to_string();
            assert_eq!(told, "retention is workqueue, wanted limits");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn ids_are_found_on_a_stream_without_direct_gets_and_foreign_ids_are_skipped() {
    let on = OnNats::new().await;
    let mut spec = on.spec();
    spec.direct_get = false;
    let bus = on.bus(vec![spec.clone()]);
    let batch = on.messages(2);
    stored(&bus, batch.clone()).await;
    let subject = format!("{}.x", on.prefix());
    let foreign = on.jetstream().publish(subject, "no id".into()).await;
    foreign.unwrap().await.unwrap();

    let found = bus.ids_at(&spec.name, &[3, 2, 1, 4]).await.unwrap();
    assert_eq!(found, [None, Some(batch[1].id), Some(batch[0].id), None]);
    let all = bus.ids_between(&spec.name, 1, 9).await.unwrap();
    assert_eq!(all, [(1, batch[0].id), (2, batch[1].id)]);
    // The scan leaves nothing behind.
    let stream = on.jetstream().get_stream(&*spec.name).await.unwrap();
    assert_eq!(stream.consumer_names().count().await, 0);
}

#[tokio::test]
async fn a_message_that_is_given_up_is_told_with_its_reason() {
    let on = OnNats::new().await;
    let bus = on.bus(Vec::new());
    let spec = ConsumerSpec::new(on.spec(), "reader");
    let subject = format!(
        "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.{}.>",
        spec.stream.name
    );
    let mut advisories = on.client.subscribe(subject).await.unwrap();
    let subscription = bus.subscribe(&spec).await.unwrap();
    stored(&bus, vec![on.message()]).await;
    let delivery = subscription
        .fetch(1, Duration::from_secs(10))
        .await
        .unwrap();
    delivery[0].term("not a grant").await.unwrap();

    let advisory = advisories.next().await.unwrap();
    let advisory: Value = serde_json::from_slice(&advisory.payload).unwrap();
    assert_eq!(advisory["reason"], "not a grant");
    assert_eq!(advisory["stream_seq"], 1);
}

#[tokio::test]
async fn an_older_stream_that_lacks_atomic_publish_is_taken_as_it_is() {
    let on = OnNats::new().await;
    let bus = on.bus(Vec::new());
    bus.ensure_stream(&on.spec().without_atomic_publish())
        .await
        .unwrap();
    bus.ensure_stream(&on.spec()).await.unwrap();
    let other = on.spec().replicas(3);
    let refused = bus.ensure_stream(&other).await;
    assert!(matches!(refused, Err(StreamError::Mismatch { .. })));
    assert_eq!(stored(&bus, on.messages(5)).await[4].sequence, 5);
}
