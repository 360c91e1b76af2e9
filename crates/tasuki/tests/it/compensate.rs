//! Operations in memory, undone in reverse. Time is paused where it matters: waits take none.

use std::error::Error as _;
use std::future::{Ready, pending, ready};
use std::panic::AssertUnwindSafe;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::FutureExt;
use tasuki::compensate::{Compensations, UndoError};
use tasuki::retry::{Backoff, Policy};

use crate::counted::Counts;
use crate::dropped;
use crate::heard::Heard;

const MODULE: &str = "tasuki::compensate";
const COUNTER: &str = "tasuki_compensations_total";

#[derive(Debug, thiserror::Error)]
#[error("{0} is broken")]
struct Broken(&'static str);

fn ok<T>(value: T) -> Ready<Result<T, Broken>> {
    ready(Ok(value))
}

fn broken<T>(what: &'static str) -> Ready<Result<T, Broken>> {
    ready(Err(Broken(what)))
}

/// What was undone, in order.
#[derive(Default)]
struct Undone(Mutex<Vec<u32>>);

impl Undone {
    fn add(&self, value: u32) -> Ready<Result<(), Broken>> {
        self.0.lock().unwrap().push(value);
        ok(())
    }

    fn all(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_failure_undoes_what_completed_in_reverse_with_the_values_it_made() {
    let undone = Undone::default();
    let mut work = Compensations::new("test");
    let first = work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
    let second = ok(first + 1);
    let second = work.run("second", second, |it| undone.add(it)).await;
    assert_eq!(second.unwrap(), 2);
    work.run_without_undo("look", ok(())).await.unwrap();
    let failed = work
        .run("third", broken::<u32>("card"), |it| undone.add(it))
        .await
        .unwrap_err();

    assert_eq!(undone.all(), [2, 1]);
    assert_eq!((failed.operation, failed.error.0), ("third", "card"));
    assert_eq!(failed.compensated, ["second", "first"]);
    assert!(failed.uncompensated.is_empty());
    assert_eq!(failed.to_string(), "third failed");
    assert_eq!(failed.source().unwrap().to_string(), "card is broken");
}

#[tokio::test]
async fn what_is_finished_is_undone_by_nobody() {
    let heard = Heard::listen();
    let undone = Undone::default();
    let mut work = Compensations::new("test");
    work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
    work.finish();

    assert!(undone.all().is_empty());
    let lines = heard.lines(MODULE);
    assert!(!lines.iter().any(|it| it.starts_with("ERROR")), "{lines:?}");
}

#[tokio::test]
async fn a_compensation_that_fails_keeps_no_other_from_running_and_is_reported() {
    let (heard, counts) = (Heard::listen(), Counts::default());
    let _here = metrics::set_default_local_recorder(&counts);
    let undone = Undone::default();
    let mut work = Compensations::new("test");
    work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
    work.run("second", ok(2), |_| broken::<()>("refund"))
        .await
        .unwrap();
    work.run("third", ok(3), |it| undone.add(it)).await.unwrap();
    let failed = work.fail("check", Broken("rule")).await;

    assert_eq!(undone.all(), [3, 1]);
    assert_eq!(failed.compensated, ["third", "first"]);
    let [left] = &failed.uncompensated[..] else {
        panic!("{failed:?}");
    };
    assert_eq!(left.operation, "second");
    assert_eq!(left.error.last.to_string(), "refund is broken");
    assert_eq!(
        failed.to_string(),
        "check failed, and could not be compensated: second"
    );
    assert_eq!(counts.get(COUNTER, "compensated"), 2);
    assert_eq!(counts.get(COUNTER, "failed"), 1);

    let lines = heard.lines(MODULE);
    let has = |words: &[&str]| {
        let all = |line: &&String| words.iter().all(|word| line.contains(word));
        lines.iter().filter(all).count()
    };
    assert_eq!(has(&["INFO", "operation completed"]), 3, "{lines:?}");
    assert_eq!(has(&["WARN", "check", "rule is broken"]), 1, "{lines:?}");
    assert_eq!(has(&["INFO", "operation compensated"]), 2, "{lines:?}");
    assert_eq!(has(&["ERROR", "critical=true", "second"]), 1, "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_compensation_is_tried_as_often_as_it_may_be() {
    let undone = Undone::default();
    let policy = Policy::new(3, Backoff::list([Duration::from_secs(1)]));
    let mut work = Compensations::new("test").retrying(policy);
    let undo = |it: u32| match (undone.add(it), it) {
        (_, 1) => broken("network"),
        (undone, _) => undone,
    };
    work.run("first", ok(1), undo).await.unwrap();
    work.run("second", ok(2), undo).await.unwrap();
    let failed = work.fail("check", Broken("rule")).await;

    assert_eq!(undone.all(), [2, 1, 1, 1]);
    assert_eq!(failed.compensated, ["second"]);
    assert_eq!(failed.uncompensated[0].error.attempts, 3);
}

#[tokio::test(start_paused = true)]
async fn a_compensation_that_hangs_or_panics_is_contained() {
    let undone = Undone::default();
    let policy = Policy::new(3, Backoff::list([Duration::from_secs(1)]));
    let limit = Duration::from_secs(5);
    let mut work = Compensations::new("test")
        .retrying(policy)
        .undo_within(limit);
    work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
    let hangs = |_: u32| pending::<Result<(), Broken>>();
    work.run("hangs", ok(2), hangs).await.unwrap();
    let panics = |_: u32| async {
        if true {
            panic!("a bug");
        }
        Ok::<(), Broken>(())
    };
    work.run("panics", ok(3), panics).await.unwrap();
    let panics_at_once = |_: u32| -> Ready<Result<(), Broken>> { panic!("at once") };
    work.run("panics at once", ok(4), panics_at_once)
        .await
        .unwrap();
    let failed = work.fail("check", Broken("rule")).await;

    assert_eq!(undone.all(), [1]);
    let left = &failed.uncompensated;
    let names: Vec<&str> = left.iter().map(|left| left.operation).collect();
    assert_eq!(names, ["panics at once", "panics", "hangs"]);
    assert!(matches!(&left[0].error.last, UndoError::Panicked(why) if why == "at once"));
    assert!(matches!(&left[1].error.last, UndoError::Panicked(why) if why == "a bug"));
    assert!(matches!(left[2].error.last, UndoError::TimedOut(it) if it == limit));
    // A bug is not tried again; silence is.
    assert_eq!((left[1].error.attempts, left[2].error.attempts), (1, 3));
}

#[tokio::test]
async fn an_operation_that_panics_is_undone_for_and_its_panic_goes_on() {
    let undone = Undone::default();
    let mut work = Compensations::new("test");
    work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
    let panics = async {
        if true {
            panic!("a bug");
        }
        Ok::<u32, Broken>(2)
    };
    let run = work.run("second", panics, |it| undone.add(it));
    let panicked = AssertUnwindSafe(run).catch_unwind().await;

    assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&"a bug"));
    assert_eq!(undone.all(), [1]);
}

#[tokio::test]
async fn what_is_dropped_half_way_says_what_it_left() {
    let (heard, counts) = (Heard::listen(), Counts::default());
    let _here = metrics::set_default_local_recorder(&counts);
    let undone = Undone::default();
    let flow = async {
        let mut work = Compensations::new("test");
        work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
        work.run("second", ok(2), |it| undone.add(it))
            .await
            .unwrap();
        let never = pending::<Result<u32, Broken>>();
        work.run("third", never, |it| undone.add(it)).await.unwrap();
    };
    assert!(dropped::after(1, flow).await.is_none());

    let lines = heard.lines(MODULE);
    let told = lines.iter().filter(|line| line.starts_with("ERROR"));
    let [told] = &told.collect::<Vec<_>>()[..] else {
        panic!("{lines:?}");
    };
    for word in ["critical=true", "first, second", "unknown=\"third\""] {
        assert!(told.contains(word), "{told}");
    }
    assert_eq!(counts.get(COUNTER, "abandoned"), 2);
    assert!(undone.all().is_empty());
}

#[tokio::test]
async fn what_is_dropped_while_it_compensates_names_the_one_it_was_at() {
    let heard = Heard::listen();
    let undone = Undone::default();
    let flow = async {
        let mut work = Compensations::new("test");
        work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
        let hangs = |_: u32| pending::<Result<(), Broken>>();
        work.run("second", ok(2), hangs).await.unwrap();
        work.run("third", ok(3), |it| undone.add(it)).await.unwrap();
        work.fail("check", Broken("rule")).await;
    };
    assert!(dropped::after(1, flow).await.is_none());

    assert_eq!(undone.all(), [3]);
    let lines = heard.lines(MODULE);
    assert!(
        lines
            .iter()
            .any(|it| it.starts_with("ERROR") && it.contains("first, second")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn it_can_be_awaited_on_any_thread() {
    fn is_send<F: Future + Send>(future: F) -> F {
        future
    }
    let undone = Undone::default();
    is_send(async {
        let mut work = Compensations::new("test");
        work.run("first", ok(1), |it| undone.add(it)).await.unwrap();
        work.finish();
    })
    .await;
}
