//! A call is tried again while that can help, and no longer.
//!
//! `cargo run -p tasuki --example retry`
//!
//! It needs no database: nothing here is durable. What must survive a crash is a job, or an
//! event in the outbox.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tasuki::retry::{Backoff, Executor, GaveUp, Judged, Policy, Verdict};

/// What the rate service may answer.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the rate service is busy")]
    Busy,
    #[error("the rate service asks for patience")]
    SlowDown(Duration),
    #[error("there is no such currency")]
    Unknown,
}

/// Every error says whether trying again can help; there is no default to fall into.
impl Judged for Trouble {
    fn verdict(&self) -> Verdict {
        match self {
            Self::Busy => Verdict::Retry,
            Self::SlowDown(pause) => Verdict::RetryAfter(*pause),
            Self::Unknown => Verdict::Reject,
        }
    }
}

/// Fails twice, in different ways, before it answers.
#[derive(Default)]
struct Rates {
    calls: AtomicU32,
}

impl Rates {
    async fn rate(&self, currency: &str) -> Result<f64, Trouble> {
        tokio::task::yield_now().await;
        match (currency, self.calls.fetch_add(1, Ordering::Relaxed)) {
            ("EUR", 0) => Err(Trouble::Busy),
            ("EUR", 1) => Err(Trouble::SlowDown(Duration::from_millis(20))),
            ("EUR", _) => Ok(1.17),
            _ => Err(Trouble::Unknown),
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // 3 attempts, 100 ms doubled up to 10 s and jitter of 10 % if nothing else is said.
    let backoff = Backoff::exponential(Duration::from_millis(10), Duration::from_secs(1));
    let executor = Executor::new("rates.fetch").policy(Policy::new(4, backoff.jitter(0.9, 1.1)));

    let rates = Rates::default();
    let rate = executor.run(|| rates.rate("EUR")).await?;
    let calls = rates.calls.load(Ordering::Relaxed);
    println!("EUR: {rate} after {calls} calls");
    assert_eq!(calls, 3);

    // What can't help is not tried again.
    let rates = Rates::default();
    let failed = executor.run(|| rates.rate("XYZ")).await;
    let error = failed.err().ok_or("XYZ has no rate")?;
    println!("XYZ: {error}");
    for attempt in &error.history {
        println!("     attempt {}: {}", attempt.number, attempt.error);
    }
    assert_eq!(error.gave_up, GaveUp::Rejected);
    assert_eq!(error.attempts, 1);
    Ok(())
}
