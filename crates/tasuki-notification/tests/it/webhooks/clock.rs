//! Processes whose clocks are wrong: the database's decides.

use std::time::Duration;

use tasuki::Clock;

use super::{Receiver, lenient, lenient_at, register};
use crate::support::granted;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A notice whose time, and whose version, are those of the database.
const TOLD_IN_TIME: &str = "SELECT count(*) FROM notification.notifications
    WHERE channel = 'in-app'
        AND type IN ('WebhookEndpointFailing', 'WebhookEndpointDisabled')
        AND abs(extract(epoch FROM occurred_at - now())) < 3600
        AND abs(version - extract(epoch FROM now())) < 3600";
const TOLD: &str = "SELECT count(*) FROM notification.notifications
    WHERE type IN ('WebhookEndpointFailing', 'WebhookEndpointDisabled')";

#[tokio::test]
async fn a_receiver_that_asks_for_time_gets_it_for_nothing_also_where_the_ids_are_of_another_time()
{
    let world = lenient().await;
    let later = (429, Some(("retry-after", "1".to_owned())));
    let (receiver, address) = Receiver::start(&[later]).await;
    register(&world, address).await;
    // Taken in by a process whose clock was years behind.
    world
        .execute(
            "INSERT INTO notification.notifications_live (
                 notification_id, event_id, user_id, type, channel, endpoint_id, aggregate_key,
                 version, occurred_at, payload_json
             )
             SELECT '01850000-0000-7000-8000-000000000001', gen_random_uuid(), user_id,
                 'EntitlementGranted', 'webhook', endpoint_id, 'a', 1, now(), '{}'
             FROM notification.webhook_endpoints",
        )
        .await;
    receiver.got_at_least(2).await;
    let spent = "SELECT count(*) FROM notification.notifications_sent WHERE attempt_count = 1";
    world.counts(1, spent).await;
}

#[tokio::test]
async fn what_an_owner_is_told_has_the_databases_time_though_the_process_is_days_ahead() {
    let clock = Clock::held_at(Clock::system().now() + 3 * DAY);
    let world = lenient_at(clock, |config| config).await;
    let (_receiver, address) = Receiver::start(&[(500, None), (410, None)]).await;
    register(&world, address).await;
    world
        .execute(
            "UPDATE notification.webhook_endpoints
             SET failures = 100, failing_since = now() - interval '61 hours'",
        )
        .await;
    world.tell(&granted("u", "s", 1)).await;
    world.counts(1, TOLD).await;
    world
        .execute("UPDATE notification.webhook_endpoints SET held_until = clock_timestamp()")
        .await;
    world.counts(2, TOLD).await;
    assert_eq!(world.count(TOLD_IN_TIME).await, 2);
}
