//! One call, tried again in this process.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

use super::{Backoff, Judged, Next, Policy, Verdict};
use crate::Clock;

/// Calls by operation and outcome (`succeeded`, `exhausted`, `rejected`, `wait_too_long`).
const CALLS_TOTAL: &str = "tasuki_retry_calls_total";
/// Attempts that failed and were followed by another, by operation.
const RETRIES_TOTAL: &str = "tasuki_retry_retries_total";

/// What an error remembers. More would only grow with the patience of the caller.
const HISTORY: usize = 32;

/// Tries a call again while that can help, and waits in between.
///
/// By default 3 attempts, 100 ms doubled up to 10 s, jitter ±10 %. Dropping the future stops it
/// at once, in an attempt or between two. Nothing here is durable: a crash forgets the call.
///
/// ```
/// # use tasuki::retry::{Executor, Verdict};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let answer = Executor::new("rates.fetch")
///     .run_judged(|_: &std::io::Error| Verdict::Retry, || async { Ok(42) })
///     .await;
/// assert_eq!(answer.unwrap(), 42);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Executor {
    operation: &'static str,
    policy: Policy,
    longest_wait: Duration,
    clock: Clock,
}

/// Why no further attempt was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GaveUp {
    /// Every attempt was used.
    Exhausted,
    /// The last error said that no attempt can help.
    Rejected,
    /// The last error asked for a wait that is longer than a call may wait.
    WaitTooLong,
}

/// One failed attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// Its number; the first is 1.
    pub number: u32,
    /// When it began.
    pub began_at: OffsetDateTime,
    /// How long it took to fail.
    pub took: Duration,
    /// What it failed with, sources included.
    pub error: String,
}

/// A call that failed for good: the last error, and how it came to that.
#[derive(Debug, thiserror::Error)]
#[error("{operation} failed {attempts} time(s) in {}, {}", Seconds(*.elapsed), .gave_up.as_str())]
#[non_exhaustive]
pub struct Error<E: std::error::Error + 'static> {
    /// What was tried.
    pub operation: &'static str,
    /// How often.
    pub attempts: u32,
    /// From the first attempt's beginning to the last one's end.
    pub elapsed: Duration,
    /// Why there was no further attempt.
    pub gave_up: GaveUp,
    /// The attempts, oldest first; of a long series only the last 32.
    pub history: Vec<Attempt>,
    /// The last attempt's error.
    #[source]
    pub last: E,
}

impl GaveUp {
    fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "no attempt is left",
            Self::Rejected => "another attempt can't help",
            Self::WaitTooLong => "the wait for another attempt is too long",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Rejected => "rejected",
            Self::WaitTooLong => "wait_too_long",
        }
    }
}

impl<E: std::error::Error + 'static> Judged for Error<E> {
    /// The call had its retries. Whoever has more patience (a row with a lease) may still try
    /// it later, unless the last error said that nothing can help.
    fn verdict(&self) -> Verdict {
        match self.gave_up {
            GaveUp::Rejected => Verdict::Reject,
            GaveUp::Exhausted | GaveUp::WaitTooLong => Verdict::Retry,
        }
    }
}

impl Executor {
    /// Tries the call that logs and metrics name `operation`.
    #[must_use]
    pub fn new(operation: &'static str) -> Self {
        let cap = Duration::from_secs(10);
        let backoff = Backoff::exponential(Duration::from_millis(100), cap).jitter(0.9, 1.1);
        Self {
            operation,
            policy: Policy::new(3, backoff),
            longest_wait: cap,
            clock: Clock::system(),
        }
    }

    /// Tries as often as `policy` says.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Gives up rather than wait longer than this because an error asked for it (10 s): coming
    /// back before the time that the other side named would only be refused again.
    #[must_use]
    pub const fn longest_wait(mut self, limit: Duration) -> Self {
        self.longest_wait = limit;
        self
    }

    /// Takes the times in the history from `clock`.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Runs `call` until it succeeds, its error rejects another attempt, or none is left.
    ///
    /// # Errors
    /// The last error, with the history of all.
    pub async fn run<T, E, F>(&self, call: impl FnMut() -> F) -> Result<T, Error<E>>
    where
        E: Judged + std::error::Error + 'static,
        F: Future<Output = Result<T, E>>,
    {
        self.run_judged(E::verdict, call).await
    }

    /// As [`run`](Self::run), for errors that don't know their verdict.
    ///
    /// A [`Verdict::Snooze`] counts as an attempt here: a call that its caller waits for has no
    /// queue to go back to.
    ///
    /// # Errors
    /// The last error, with the history of all.
    pub async fn run_judged<T, E, F>(
        &self,
        judge: impl Fn(&E) -> Verdict,
        mut call: impl FnMut() -> F,
    ) -> Result<T, Error<E>>
    where
        E: std::error::Error + 'static,
        F: Future<Output = Result<T, E>>,
    {
        let mut course = Course::begin(self);
        loop {
            let began = Instant::now();
            let error = match call().await {
                Ok(value) => {
                    self.count("succeeded");
                    return Ok(value);
                }
                Err(error) => error,
            };
            course.record(began, &error);
            match self.pause(course.attempts, judge(&error)) {
                Ok(pause) => {
                    self.tell(course.attempts, pause, &error);
                    sleep(pause).await;
                }
                Err(gave_up) => {
                    self.count(gave_up.label());
                    return Err(course.end(gave_up, error));
                }
            }
        }
    }

    /// How long to wait after attempt number `attempt`, or why not to.
    fn pause(&self, attempt: u32, verdict: Verdict) -> Result<Duration, GaveUp> {
        let asked = match verdict {
            Verdict::Reject => return Err(GaveUp::Rejected),
            Verdict::RetryAfter(pause) | Verdict::Snooze(pause) => Some(pause),
            Verdict::Retry => None,
        };
        match self.policy.next(attempt, Verdict::Retry) {
            Next::Dead => Err(GaveUp::Exhausted),
            Next::Retry(ours) | Next::Snooze(ours) => match asked {
                Some(pause) if pause > self.longest_wait => Err(GaveUp::WaitTooLong),
                asked => Ok(asked.unwrap_or(ours)),
            },
        }
    }

    fn tell<E: std::error::Error + 'static>(&self, attempt: u32, pause: Duration, error: &E) {
        metrics::counter!(RETRIES_TOTAL, "operation" => self.operation).increment(1);
        tracing::warn!(
            operation = self.operation,
            attempt,
            attempts.max = self.policy.max_attempts,
            retry_in_ms = pause.as_millis(),
            error = error as &(dyn std::error::Error + 'static),
            "attempt failed, will retry",
        );
    }

    fn count(&self, outcome: &'static str) {
        metrics::counter!(CALLS_TOTAL, "operation" => self.operation, "outcome" => outcome)
            .increment(1);
    }
}

/// What has happened to one call so far.
struct Course {
    operation: &'static str,
    began_at: OffsetDateTime,
    began: Instant,
    attempts: u32,
    history: VecDeque<Attempt>,
}

impl Course {
    fn begin(executor: &Executor) -> Self {
        Self {
            operation: executor.operation,
            began_at: executor.clock.now(),
            began: Instant::now(),
            attempts: 0,
            history: VecDeque::new(),
        }
    }

    fn record(&mut self, began: Instant, error: &(dyn std::error::Error + 'static)) {
        self.attempts = self.attempts.saturating_add(1);
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Attempt {
            number: self.attempts,
            began_at: self.began_at + (began - self.began),
            took: began.elapsed(),
            error: with_sources(error),
        });
    }

    fn end<E: std::error::Error + 'static>(self, gave_up: GaveUp, last: E) -> Error<E> {
        Error {
            operation: self.operation,
            attempts: self.attempts,
            elapsed: self.began.elapsed(),
            gave_up,
            history: self.history.into(),
            last,
        }
    }
}

/// An error and what is behind it, as one line.
fn with_sources(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let levels: Vec<String> = chain.map(ToString::to_string).collect();
    levels.join(": ")
}

/// A duration as a person reads it.
struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} s", self.0.as_secs_f64())
    }
}
