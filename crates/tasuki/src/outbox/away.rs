//! A stream that does not answer: when it is worth another try.

use std::time::Duration;

use tokio::time::Instant;

/// What is known of a stream that does not answer.
#[derive(Debug)]
pub(super) struct Away {
    pause: Duration,
    until: Instant,
}

impl Away {
    /// The first pause after the broker could not be reached.
    pub(super) const FIRST: Duration = Duration::from_millis(250);
    /// The longest: how much later than the broker the relay is back at the latest.
    const LONGEST: Duration = Duration::from_secs(3);

    /// It did not answer, as it did not `before`.
    pub(super) fn again(before: Option<&Self>) -> Self {
        // Relays that lost it together must not come back together.
        let jitter = 0.75 + fastrand::f64() / 2.0;
        let pause = before.map_or(Self::FIRST, |away| (away.pause * 2).min(Self::LONGEST));
        Self {
            pause,
            until: Instant::now() + pause.mul_f64(jitter),
        }
    }

    /// How much longer it is not worth a try.
    pub(super) fn pause(&self) -> Option<Duration> {
        self.until.checked_duration_since(Instant::now())
    }
}
