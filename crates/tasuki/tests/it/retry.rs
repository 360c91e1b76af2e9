//! One call, tried again in this process. Time is paused: the waits are exact and take none.

use std::cell::{Cell, RefCell};
use std::error::Error as _;
use std::time::Duration;

use tasuki::Clock;
use tasuki::retry::{Backoff, Executor, GaveUp, Judged, Policy, Verdict};
use time::OffsetDateTime;
use tokio::time::{Instant, timeout};

#[derive(Debug, thiserror::Error)]
#[error("no answer")]
struct Cause;

#[derive(Debug, thiserror::Error)]
#[error("call {0} failed")]
struct Failure(u32, Verdict, #[source] Cause);

impl Judged for Failure {
    fn verdict(&self) -> Verdict {
        self.1
    }
}

/// A call that fails with each of these verdicts, one per attempt, and then succeeds.
struct Scripted {
    verdicts: Vec<Verdict>,
    calls: Cell<u32>,
    times: RefCell<Vec<Duration>>,
    began: Instant,
}

impl Scripted {
    fn new(verdicts: impl Into<Vec<Verdict>>) -> Self {
        Self {
            verdicts: verdicts.into(),
            calls: Cell::new(0),
            times: RefCell::default(),
            began: Instant::now(),
        }
    }

    fn call(&self) -> Result<u32, Failure> {
        let number = self.calls.get();
        self.calls.set(number + 1);
        self.times.borrow_mut().push(self.began.elapsed());
        let verdict = self.verdicts.get(usize::try_from(number).unwrap());
        verdict.map_or(Ok(number), |verdict| Err(Failure(number, *verdict, Cause)))
    }
}

fn near(found: Duration, wanted: Duration) -> bool {
    // Tokio's timer counts whole milliseconds.
    found >= wanted.mul_f64(0.9) && found <= wanted.mul_f64(1.1) + Duration::from_millis(1)
}

#[tokio::test(start_paused = true)]
async fn a_call_that_recovers_succeeds_after_the_waits_of_the_rule() {
    let script = Scripted::new([Verdict::Retry, Verdict::Retry]);
    let answer = Executor::new("test").run(async || script.call()).await;

    assert_eq!(answer.unwrap(), 2);
    let times = script.times.borrow();
    assert!(near(times[1], Duration::from_millis(100)), "{times:?}");
    let second = times[2] - times[1];
    assert!(near(second, Duration::from_millis(200)), "{times:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_error_carries_the_history() {
    let start = OffsetDateTime::UNIX_EPOCH;
    let script = Scripted::new([Verdict::Retry; 9]);
    let error = Executor::new("rates.fetch")
        .clock(Clock::held_at(start))
        .run(async || script.call())
        .await
        .unwrap_err();

    assert_eq!((error.attempts, error.gave_up), (3, GaveUp::Exhausted));
    assert_eq!(script.calls.get(), 3);
    let told: Vec<_> = error
        .history
        .iter()
        .map(|a| (a.number, &*a.error))
        .collect();
    assert_eq!(
        told,
        [
            (1, "call 0 failed: no answer"),
            (2, "call 1 failed: no answer"),
            (3, "call 2 failed: no answer"),
        ]
    );
    let times = script.times.borrow();
    for (attempt, time) in error.history.iter().zip(&*times) {
        assert_eq!(attempt.began_at, start + *time);
    }
    assert_eq!(error.source().unwrap().to_string(), "call 2 failed");
    let text = error.to_string();
    assert!(
        text.starts_with("rates.fetch failed 3 time(s) in 0."),
        "{text}"
    );
    assert_eq!(error.verdict(), Verdict::Retry);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_help_is_not_tried_again() {
    let script = Scripted::new([Verdict::Reject]);
    let error = Executor::new("test").run(async || script.call()).await;
    let error = error.unwrap_err();

    assert_eq!((error.attempts, error.gave_up), (1, GaveUp::Rejected));
    assert_eq!(script.began.elapsed(), Duration::ZERO);
    assert_eq!(error.verdict(), Verdict::Reject);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_other_side_asks_for_is_kept_unless_it_is_too_long() {
    let wait = Duration::from_secs(7);
    let script = Scripted::new([Verdict::RetryAfter(wait), Verdict::Snooze(wait)]);
    Executor::new("test")
        .run(async || script.call())
        .await
        .unwrap();
    assert_eq!(*script.times.borrow(), [Duration::ZERO, wait, 2 * wait]);

    let script = Scripted::new([Verdict::RetryAfter(Duration::from_secs(3600))]);
    let error = Executor::new("test").run(async || script.call()).await;
    assert_eq!(error.unwrap_err().gave_up, GaveUp::WaitTooLong);
    assert_eq!(script.began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_endless_snooze_ends_with_the_attempts() {
    let script = Scripted::new([Verdict::Snooze(Duration::from_secs(1)); 50]);
    let error = Executor::new("test").run(async || script.call()).await;
    assert_eq!(error.unwrap_err().gave_up, GaveUp::Exhausted);
    assert_eq!(script.calls.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_predicate_judges_errors_that_do_not_know_their_verdict() {
    let calls = Cell::new(0);
    let judge = |error: &std::io::Error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Verdict::Retry,
        _ => Verdict::Reject,
    };
    let error = Executor::new("test")
        .run_judged(judge, async || {
            calls.set(calls.get() + 1);
            let kind = match calls.get() {
                1 => std::io::ErrorKind::ConnectionRefused,
                _ => std::io::ErrorKind::InvalidData,
            };
            Err::<(), _>(kind.into())
        })
        .await
        .unwrap_err();
    assert_eq!((error.attempts, error.gave_up), (2, GaveUp::Rejected));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_call_is_not_tried_again() {
    let script = Scripted::new([Verdict::Retry; 9]);
    let executor = Executor::new("test");
    let cut = timeout(
        Duration::from_millis(50),
        executor.run(async || script.call()),
    )
    .await;
    assert!(cut.is_err());
    // sleep: time is paused; a retry that survived the drop would come in this hour.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert_eq!(script.calls.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_long_series_remembers_its_end() {
    let script = Scripted::new([Verdict::Retry; 1000]);
    let patient = Policy::new(500, Backoff::list([Duration::from_millis(1)]));
    let error = Executor::new("test")
        .policy(patient)
        .run(async || script.call())
        .await
        .unwrap_err();
    assert_eq!((error.attempts, error.history.len()), (500, 32));
    assert_eq!(error.history.last().unwrap().number, 500);
}

#[tokio::test]
async fn a_call_may_move_between_threads() {
    fn sent<T: Send>(value: T) -> T {
        value
    }
    let text = String::from("answer");
    let executor = Executor::new("test");
    let call = sent(executor.run_judged(
        |_: &std::io::Error| Verdict::Retry,
        || async {
            tokio::task::yield_now().await;
            Ok(text.len())
        },
    ));
    assert_eq!(call.await.unwrap(), 6);
}
