//! Waiting: for a condition with a deadline, never for a time.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// How often a condition is looked at.
const PERIOD: Duration = Duration::from_millis(10);
/// Generous: a busy machine with two cores must not fail a test.
const LIMIT: Duration = Duration::from_secs(20);

/// Waits until `condition` gives a value. `what` completes "waited in vain until …".
///
/// # Panics
/// When it does not within 20 seconds.
pub async fn eventually<T>(what: &str, condition: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(LIMIT, what, condition).await
}

/// As [`eventually`], with its own limit.
///
/// # Panics
/// When the limit passes.
#[expect(clippy::panic, reason = "a failed wait is a failed test")]
pub async fn eventually_within<T>(
    limit: Duration,
    what: &str,
    mut condition: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        if Instant::now() >= deadline {
            panic!("waited {limit:?} in vain until {what}");
        }
        sleep(PERIOD).await;
    }
}
