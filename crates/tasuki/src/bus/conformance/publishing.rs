//! What holds when messages are published.

use super::{Fixture, ids, message, messages, sequences, spec, stored};
use crate::bus::{PublishError, Publisher, Streams};
use crate::worker::Error;

/// The messages of a batch get consecutive numbers in their order, and their positions name
/// the stream as it is.
pub async fn a_batch_is_stored_in_order_under_consecutive_numbers<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let stream = bus.ensure_stream(&spec(fixture, "a")).await?;
    let first = stored(&bus, messages(fixture, "a.x", 1)).await?;
    let batch = messages(fixture, "a.x", 1500);
    let expected = ids(&batch);
    let many = stored(&bus, batch).await?;

    assert_eq!(sequences(&first), [1]);
    assert_eq!(sequences(&many), (2..=1501).collect::<Vec<_>>());
    for position in first.iter().chain(&many) {
        assert_eq!(position.stream, stream.name);
        assert_eq!(position.stream_created_at, stream.created_at);
        assert!(!position.duplicate);
    }
    let found = bus.ids_between(&stream.name, 2, 1501).await?;
    let found: Vec<_> = found.into_iter().map(|(_, id)| id).collect();
    assert_eq!(found, expected);
    Ok(())
}

/// Inside the dedupe window an id is stored once, and whoever publishes it again, alone or in
/// a batch, is told its first position.
pub async fn a_repeated_id_is_a_duplicate_at_its_first_position<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let batch = messages(fixture, "a.x", 3);
    let first = stored(&bus, batch.clone()).await?;
    let mut mixed = messages(fixture, "a.x", 2);
    mixed.extend(batch.clone());
    mixed.extend(messages(fixture, "a.x", 1));
    let all = ids(&mixed);
    let again = stored(&bus, mixed).await?;

    let duplicates: Vec<_> = again.iter().map(|position| position.duplicate).collect();
    assert_eq!(duplicates, [false, false, true, true, true, false]);
    let known = again.iter().filter(|position| position.duplicate);
    let known: Vec<_> = known.map(|position| position.sequence).collect();
    assert_eq!(known, sequences(&first));
    // Every one of them is really there: also those that shared a batch with a duplicate.
    let name = format!("{}-a", fixture.prefix());
    let found = bus.ids_at(&name, &sequences(&again)).await?;
    assert_eq!(found, all.into_iter().map(Some).collect::<Vec<_>>());
    let state = bus.stream(&name).await?;
    assert_eq!(state.map(|state| state.messages), Some(6));
    Ok(())
}

/// An id that stands twice in one batch is stored once.
pub async fn an_id_that_stands_twice_in_a_batch_is_stored_once<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let one = message(fixture, "a.x").in_order_of("key");
    let other = message(fixture, "a.x");
    let positions = stored(&bus, vec![one.clone(), other, one]).await?;

    let [first, _, again] = positions.as_slice() else {
        return Err("three positions".into());
    };
    assert_eq!(first.sequence, again.sequence);
    assert!(!first.duplicate && again.duplicate);
    let state = bus.stream(&first.stream).await?;
    assert_eq!(state.map(|state| state.messages), Some(2));
    Ok(())
}

/// Nothing in, nothing out.
pub async fn an_empty_batch_is_nothing<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    assert!(bus.publish(Vec::new()).await.is_empty());
    Ok(())
}

/// A publisher makes its own streams: at the first message, and after a loss.
pub async fn a_missing_stream_is_made_by_the_publisher_that_owns_it<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let name = format!("{}-a", fixture.prefix());
    assert!(bus.stream(&name).await?.is_none());
    let before = stored(&bus, messages(fixture, "a.x", 2)).await?;

    fixture.delete_stream(&name).await?;
    // The first attempt may still go to the stream that is gone; that costs nobody anything.
    let lost = bus.publish(messages(fixture, "a.x", 2)).await;
    for result in &lost {
        assert!(
            matches!(result, Ok(_) | Err(PublishError::Unreachable(_))),
            "{result:?}"
        );
    }
    let after = stored(&bus, messages(fixture, "a.x", 2)).await?;
    for (before, after) in before.iter().zip(&after) {
        assert!(before.stream_created_at < after.stream_created_at);
    }
    Ok(())
}

/// A subject without a stream is not the message's fault: the stream may be gone for a while.
pub async fn a_subject_that_no_stream_takes_is_unreachable<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let batch = vec![message(fixture, "nowhere"), message(fixture, "a.x")];
    let results = bus.publish(batch).await;
    assert!(
        matches!(
            results.as_slice(),
            [Err(PublishError::Unreachable(_)), Ok(position)] if position.sequence == 1
        ),
        "{results:?}"
    );
    Ok(())
}

/// After a failure, what follows in the same key is not tried; everything else is.
pub async fn a_refused_message_holds_back_its_key_and_nobody_else<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let good = |key: &'static str| message(fixture, "a.x").in_order_of(key);
    let bad = |key: &'static str| message(fixture, "a.x y").in_order_of(key);
    let batch = vec![
        good("one"),
        good("two"),
        bad("one"),
        good("one"),
        good("two"),
        message(fixture, "a.x"),
        bad("one"),
    ];
    let results = bus.publish(batch).await;
    assert!(
        matches!(
            results.as_slice(),
            [
                Ok(_),
                Ok(_),
                Err(PublishError::Invalid(_)),
                Err(PublishError::Held),
                Ok(_),
                Ok(_),
                Err(PublishError::Held),
            ]
        ),
        "{results:?}"
    );
    Ok(())
}

/// A key may have messages for several streams; a failure in one holds it back in all.
pub async fn a_key_is_held_back_over_several_streams<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a"), spec(fixture, "b")]);
    let batch = vec![
        message(fixture, "a.x").in_order_of("key"),
        message(fixture, "b.x").in_order_of("key"),
        message(fixture, "nowhere").in_order_of("key"),
        message(fixture, "a.x").in_order_of("key"),
        message(fixture, "b.x").in_order_of("other"),
    ];
    let results = bus.publish(batch).await;
    assert!(
        matches!(
            results.as_slice(),
            [
                Ok(_),
                Ok(_),
                Err(PublishError::Unreachable(_)),
                Err(PublishError::Held),
                Ok(_)
            ]
        ),
        "{results:?}"
    );
    Ok(())
}

/// One message that the broker does not take leaves the rest of the batch alone.
pub async fn a_message_that_is_too_large_is_refused_and_the_others_go<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let mut batch = messages(fixture, "a.x", 3);
    if let Some(middle) = batch.get_mut(1) {
        middle.payload = vec![0; 2 * 1024 * 1024].into();
    }
    let results = bus.publish(batch).await;
    assert!(
        matches!(
            results.as_slice(),
            [Ok(_), Err(PublishError::Invalid(_)), Ok(_)]
        ),
        "{results:?}"
    );
    Ok(())
}
