//! What holds when streams are made and asked.

use std::time::Duration;

use super::{Fixture, ids, message, messages, sequences, spec, stored};
use crate::bus::{StreamError, StreamSpec, Streams};
use crate::worker::Error;

/// Settings that differ are named, with what was wanted and what was found; the stream stays
/// as it is.
pub async fn an_existing_stream_is_never_changed<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let wanted = spec(fixture, "a");
    let first = bus.ensure_stream(&wanted).await?;
    assert_eq!(bus.ensure_stream(&wanted).await?, first);

    let mut other = wanted.clone().max_age(Duration::from_secs(3600));
    other.subjects.push(format!("{}.more", fixture.prefix()));
    match bus.ensure_stream(&other).await {
        Err(StreamError::Mismatch { name, differences }) => {
            assert_eq!(*name, *wanted.name);
            let fields: Vec<_> = differences
                .iter()
                .map(|difference| difference.field)
                .collect();
            assert_eq!(fields, ["subjects", "max_age"]);
            let age = differences.last().map(ToString::to_string);
            assert_eq!(age.as_deref(), Some("max_age is 604800s, wanted 3600s"));
        }
        unexpected => return Err(format!("{unexpected:?}").into()),
    }
    assert_eq!(bus.ensure_stream(&wanted).await?, first);
    Ok(())
}

/// A stream that is missing is `None` or [`StreamError::NotFound`], and a name that can't be
/// one is refused.
pub async fn a_stream_that_does_not_exist_is_told_apart<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let name = format!("{}-none", fixture.prefix());
    assert_eq!(bus.stream(&name).await?, None);
    let at = bus.ids_at(&name, &[1]).await;
    assert!(matches!(at, Err(StreamError::NotFound { .. })), "{at:?}");
    let between = bus.ids_between(&name, 1, 2).await;
    assert!(
        matches!(between, Err(StreamError::NotFound { .. })),
        "{between:?}"
    );
    let bad = bus.ensure_stream(&StreamSpec::new("a.b", ["a"])).await;
    assert!(matches!(bad, Err(StreamError::Refused(_))), "{bad:?}");
    Ok(())
}

/// A message can be read again by its number.
pub async fn a_message_is_found_whole_where_it_was_stored<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let spec = spec(fixture, "a");
    let bus = fixture.bus(vec![spec.clone()]);
    let sent = message(fixture, "a.x").with_header("event_type", "made");
    let places = stored(&bus, vec![sent.clone()]).await?;
    let sequence = sequences(&places).first().copied().unwrap_or_default();
    let found = bus.message_at(&spec.name, sequence).await?;
    let found = found.ok_or("no message")?;
    assert_eq!((found.id, &found.subject), (Some(sent.id), &sent.subject));
    assert_eq!(found.payload, sent.payload);
    assert_eq!(found.header("Event_Type"), Some("made"));
    assert_eq!(bus.message_at(&spec.name, sequence + 1).await?, None);
    Ok(())
}

/// The id at each number, `None` where nothing is.
pub async fn ids_are_found_where_they_were_stored<F: Fixture>(fixture: &F) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let batch = messages(fixture, "a.x", 200);
    let expected = ids(&batch);
    let positions = stored(&bus, batch).await?;
    let name = format!("{}-a", fixture.prefix());
    let all: Vec<_> = expected.iter().copied().map(Some).collect();
    assert_eq!(bus.ids_at(&name, &sequences(&positions)).await?, all);

    fixture.delete_message(&name, 100).await?;
    let some = bus.ids_at(&name, &[201, 100, 1, 0]).await?;
    assert_eq!(some, [None, None, expected.first().copied(), None]);
    assert_eq!(bus.ids_at(&name, &[]).await?, []);
    Ok(())
}

/// A range that reaches beyond the stream, whose end was deleted, or that has holes, ends all
/// the same.
pub async fn a_range_of_ids_ends_with_the_stream_and_skips_what_was_deleted<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(vec![spec(fixture, "a")]);
    let name = format!("{}-a", fixture.prefix());
    bus.ensure_stream(&spec(fixture, "a")).await?;
    assert_eq!(bus.ids_between(&name, 1, u64::MAX).await?, []);

    let batch = messages(fixture, "a.x", 2500);
    let mut expected: Vec<_> = (1..).zip(ids(&batch)).collect();
    stored(&bus, batch).await?;
    assert_eq!(bus.ids_between(&name, 0, u64::MAX).await?, expected);

    for sequence in [1, 1000, 1001, 2499, 2500] {
        fixture.delete_message(&name, sequence).await?;
        expected.retain(|(at, _)| *at != sequence);
    }
    assert_eq!(bus.ids_between(&name, 1, 2500).await?, expected);
    assert_eq!(bus.ids_between(&name, 2499, 9999).await?, []);
    expected.retain(|(at, _)| (900..=1100).contains(at));
    assert_eq!(bus.ids_between(&name, 900, 1100).await?, expected);
    assert_eq!(bus.ids_between(&name, 1000, 1001).await?, []);
    assert_eq!(bus.ids_between(&name, 9, 8).await?, []);
    Ok(())
}

/// Name and numbers come back, the time of creation does not.
pub async fn a_stream_that_was_made_again_has_another_creation_time<F: Fixture>(
    fixture: &F,
) -> Result<(), Error> {
    let bus = fixture.bus(Vec::new());
    let spec = spec(fixture, "a");
    bus.ensure_stream(&spec).await?;
    stored(&bus, messages(fixture, "a.x", 3)).await?;
    let before = bus.stream(&spec.name).await?.ok_or("no stream")?;
    assert_eq!(
        (before.first_sequence, before.last_sequence, before.messages),
        (1, 3, 3)
    );

    fixture.delete_stream(&spec.name).await?;
    assert_eq!(bus.stream(&spec.name).await?, None);
    let after = bus.ensure_stream(&spec).await?;
    assert_eq!((after.last_sequence, after.messages), (0, 0));
    assert!(after.created_at > before.created_at);
    // As PostgreSQL would give it back.
    assert_eq!(after.created_at.nanosecond() % 1000, 0);
    Ok(())
}
