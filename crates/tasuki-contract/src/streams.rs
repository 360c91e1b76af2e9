//! The streams between services: who publishes, on which subject. Producer and consumers make
//! them with the same settings, whoever comes first.

use std::time::Duration;

use tasuki::bus::StreamSpec;

/// How long the broker refuses to store an id again, unless configured otherwise.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// A service's events: the stream `stream` on `subject`, kept for seven days.
#[must_use]
pub fn events(
    stream: &str,
    subject: &str,
    duplicate_window: Duration,
    replicas: usize,
) -> StreamSpec {
    StreamSpec::new(stream, [subject])
        .duplicate_window(duplicate_window)
        .replicas(replicas)
}
