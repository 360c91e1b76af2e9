//! The loop of one worker.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::health::Record;
use super::pace::{Pace, Pause};
use super::{Outcome, Tick, Wake, Worker};

/// Ticks until `soft` is cancelled; the running tick is then finished, unless `hard` is
/// cancelled too, which drops it at its next await.
pub(super) async fn run<W: Worker>(
    worker: &W,
    wake: &Wake,
    record: &Record,
    soft: &CancellationToken,
    hard: &CancellationToken,
) {
    let mut pace = Pace::new(worker.poll_interval());
    while !soft.is_cancelled() {
        record.tick_begins();
        let outcome = tokio::select! {
            () = hard.cancelled() => break,
            outcome = contained(worker) => outcome,
        };
        record.tick_ended(&outcome);
        log(worker.name(), &outcome);
        match pace.after(&outcome) {
            Pause::None => tokio::task::yield_now().await,
            Pause::UntilWoken(pause) => tokio::select! {
                () = soft.cancelled() => {} // Nothing is cut: the tick has finished.
                () = wake.woken() => {}     // `notify_one` keeps a permit, so no wake is lost.
                () = sleep(pause) => {}
            },
            Pause::Full(pause) => tokio::select! {
                () = soft.cancelled() => {}
                () = sleep(pause) => {}
            },
        }
    }
    tokio::select! {
        () = hard.cancelled() => {}
        ended = AssertUnwindSafe(worker.finish()).catch_unwind() => {
            if let Err(panic) = ended {
                tracing::error!(worker = worker.name(), panic = %panic_message(&*panic), "finish panicked");
            }
        }
    }
}

/// One tick, whose panic is an outcome and not the end of the worker.
async fn contained<W: Worker>(worker: &W) -> Outcome {
    // Whatever a panicking tick left behind is in the database, where its next tick (or
    // another process) would find it after a crash just the same.
    let tick = AssertUnwindSafe(worker.tick()).catch_unwind();
    let span = tracing::info_span!("tick", worker = worker.name());
    let limit = worker.tick_limit();
    match timeout(limit, tick.instrument(span)).await {
        Ok(Ok(Ok(tick))) => Outcome::Ok(tick),
        Ok(Ok(Err(error))) => Outcome::Failed(error),
        Ok(Err(panic)) => Outcome::Panicked(panic_message(&*panic)),
        Err(_elapsed) => Outcome::Failed(format!("cut after {limit:?}, its limit").into()),
    }
}

/// What a panic said.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

fn log(worker: &str, outcome: &Outcome) {
    match outcome {
        Outcome::Ok(Tick::Worked | Tick::Idle) => {}
        Outcome::Failed(error) => tracing::warn!(
            worker,
            error = &**error as &(dyn std::error::Error + 'static),
            "tick failed, will retry",
        ),
        Outcome::Panicked(message) => {
            tracing::error!(worker, panic = %message, "tick panicked, worker restarts");
        }
    }
}
