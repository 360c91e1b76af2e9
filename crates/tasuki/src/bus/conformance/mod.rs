//! What every bus must do: one suite that each implementation passes, yours too (feature
//! `testing`).
//!
//! Implement [`Fixture`] and let [`bus_conformance!`](crate::bus_conformance) make one test
//! per promise. Each needs a broker that can be reached; its streams carry the fixture's
//! [prefix](Fixture::prefix), so that tests can share one.

mod delivering;
mod publishing;
mod reading;

use std::future::Future;

use bytes::Bytes;
use uuid::Uuid;

pub use self::delivering::*;
pub use self::publishing::*;
pub use self::reading::*;
use super::{Message, Position, PublishError, Publisher, StreamSpec, Streams, Subscriber};
use crate::Clock;
use crate::worker::Error;

/// A bus under test, and what its traits don't offer: breaking things.
pub trait Fixture: Send + Sync {
    /// The bus.
    type Bus: Publisher + Streams + Subscriber;

    /// What no other test has: the beginning of every stream and subject of this one. Letters,
    /// digits and `_`.
    fn prefix(&self) -> &str;

    /// A bus that creates the streams of `own` when it publishes to them and they are missing.
    /// Every call gives one on the same broker.
    fn bus(&self, own: Vec<StreamSpec>) -> Self::Bus;

    /// Deletes a stream, behind the back of the bus.
    fn delete_stream(&self, stream: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// Deletes one message, behind the back of the bus.
    fn delete_message(
        &self,
        stream: &str,
        sequence: u64,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Makes one `#[tokio::test]` per promise of a bus. The argument is an expression that makes
/// a [`Fixture`]; it may await.
///
/// ```ignore
/// mod my_bus {
///     tasuki::bus_conformance!(super::MyFixture::start().await);
/// }
/// ```
#[macro_export]
macro_rules! bus_conformance {
    ($fixture:expr) => {
        $crate::bus_conformance! { @cases $fixture;
            a_batch_is_stored_in_order_under_consecutive_numbers
            a_repeated_id_is_a_duplicate_at_its_first_position
            an_id_that_stands_twice_in_a_batch_is_stored_once
            an_empty_batch_is_nothing
            a_missing_stream_is_made_by_the_publisher_that_owns_it
            a_subject_that_no_stream_takes_is_unreachable
            a_refused_message_holds_back_its_key_and_nobody_else
            a_key_is_held_back_over_several_streams
            a_message_that_is_too_large_is_refused_and_the_others_go
            an_existing_stream_is_never_changed
            a_stream_that_does_not_exist_is_told_apart
            ids_are_found_where_they_were_stored
            a_message_is_found_whole_where_it_was_stored
            a_range_of_ids_ends_with_the_stream_and_skips_what_was_deleted
            a_stream_that_was_made_again_has_another_creation_time
            a_delivery_carries_everything
            a_fetch_waits_for_the_first_message_and_no_longer
            an_acknowledged_message_does_not_come_again
            a_message_comes_again_after_the_delay_that_was_asked_for
            a_message_that_was_given_up_does_not_come_again
            a_message_that_was_delivered_often_enough_does_not_come_again
            everything_below_the_first_open_message_is_settled
            an_unsettled_message_comes_again_unless_it_is_in_progress
            a_durable_goes_on_where_it_was_until_it_is_restarted
            two_subscriptions_of_a_durable_share_its_messages
            a_filter_selects_subjects
            an_existing_durable_is_never_changed
            a_comparison_makes_nothing_and_names_what_differs
            a_durable_reads_a_stream_that_was_made_again_from_its_beginning
            a_durable_opens_no_more_deliveries_than_it_may
        }
    };
    (@cases $fixture:expr; $($case:ident)+) => {
        $(
            #[tokio::test]
            async fn $case() {
                let fixture = $fixture;
                let held = $crate::bus::conformance::$case(&fixture).await;
                assert!(held.is_ok(), "{held:?}");
            }
        )+
    };
}

/// A stream of this test on `<prefix>.<name>.>`.
fn spec(fixture: &impl Fixture, name: &str) -> StreamSpec {
    let prefix = fixture.prefix();
    StreamSpec::new(format!("{prefix}-{name}"), [format!("{prefix}.{name}.>")])
}

/// A new message to `<prefix>.<name>.<rest>`.
fn message(fixture: &impl Fixture, rest: &str) -> Message {
    let id = crate::uuid_v7(&Clock::system());
    let subject = format!("{}.{rest}", fixture.prefix());
    Message::new(id, subject, Bytes::from(id.to_string()))
}

fn messages(fixture: &impl Fixture, rest: &str, count: usize) -> Vec<Message> {
    std::iter::repeat_with(|| message(fixture, rest))
        .take(count)
        .collect()
}

fn ids(messages: &[Message]) -> Vec<Uuid> {
    messages.iter().map(|message| message.id).collect()
}

/// The positions of a batch that was stored as a whole.
async fn stored(bus: &impl Publisher, batch: Vec<Message>) -> Result<Vec<Position>, Error> {
    let results = bus.publish(batch).await.into_iter();
    Ok(results.collect::<Result<_, PublishError>>()?)
}

fn sequences(positions: &[Position]) -> Vec<u64> {
    positions.iter().map(|position| position.sequence).collect()
}
