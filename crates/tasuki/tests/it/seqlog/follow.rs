//! Rows reach the handler in order, each once, and one that can't be handled holds up nobody.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};
use tasuki::dlq::{Filter, Letters};
use tasuki::seqlog::Begin;
use tasuki_testkit::eventually;

use super::*;

/// Ticks until there is nothing to do any more, also after pauses.
async fn settles(bench: &Bench, follower: &impl Worker) {
    eventually("the consumer is at the end", async || {
        follower.tick().await.unwrap();
        (bench.consumer().await.backlog() == 0).then_some(())
    })
    .await;
}

async fn letters(bench: &Bench) -> Vec<(String, String, String, i64)> {
    sqlx::query_as(
        "SELECT source, queue, error, attempt_count::bigint FROM app.dead_letters
         WHERE redriven_at IS NULL AND discarded_at IS NULL",
    )
    .fetch_all(bench.pool())
    .await
    .unwrap()
}

async fn redrive_all(bench: &Bench, expected: u64) {
    let mut db = bench.pool().begin().await.unwrap();
    let letters = Letters::new(&schema(), &[]);
    let acted = letters.redrive(&mut db, &Filter::open(), "ann", None).await;
    assert_eq!(acted.unwrap().letters, expected);
    db.commit().await.unwrap();
}

async fn redrive(bench: &Bench) {
    redrive_all(bench, 1).await;
}

#[tokio::test]
async fn rows_are_handled_in_order_and_their_effects_commit_with_the_offset() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world).batch(2);
    bench.write("a b c d e").await;
    drain(&follower).await.unwrap();
    assert_eq!(world.calls(), ["a b", "c d", "e"]);
    assert_eq!(bench.seen().await, "1:a 2:b 3:c 4:d 5:e");
    let consumer = bench.consumer().await;
    assert_eq!((consumer.last_seq, consumer.backlog()), (5, 0));
    // One that comes later knows where it was.
    follower.release().await;
    bench.write("f").await;
    let next = bench.follower(&World::default());
    drain(&next).await.unwrap();
    assert_eq!(bench.seen().await, "1:a 2:b 3:c 4:d 5:e 6:f");
}

#[tokio::test]
async fn the_size_of_a_batch_may_change_while_it_follows() {
    let bench = Bench::new().await;
    let world = World::default();
    let rows = Arc::new(AtomicU32::new(2));
    let follower = bench.follower(&world).batch_of(&rows);
    bench.write("a b c d e f g h").await;
    for (calls, next) in [(1, 5), (2, 0), (3, 0)] {
        while world.calls().len() < calls {
            follower.tick().await.unwrap();
        }
        rows.store(next, Ordering::Relaxed);
    }
    assert_eq!(world.calls(), ["a b", "c d e f g", "h"]);
}

#[tokio::test]
async fn a_consumer_may_begin_with_what_comes_next() {
    let bench = Bench::new().await;
    bench.write("a b").await;
    let world = World::default();
    let follower = bench.follower(&world).begin(Begin::Next);
    drain(&follower).await.unwrap();
    bench.write("c").await;
    drain(&follower).await.unwrap();
    assert_eq!(bench.seen().await, "3:c");
}

/// Effects elsewhere: it asks for no transaction.
struct Elsewhere {
    done: Arc<Mutex<Vec<i64>>>,
    fails: Arc<Mutex<u32>>,
}

impl Handler for Elsewhere {
    type Row = Read;

    async fn handle(&self, rows: &[Numbered<Read>], _: &mut Tx) -> Result<(), Failure> {
        self.done
            .lock()
            .unwrap()
            .extend(rows.iter().map(|row| row.seq));
        let mut fails = self.fails.lock().unwrap();
        if *fails > 0 {
            *fails -= 1;
            return Err(Failure::away("the answer got lost"));
        }
        Ok(())
    }
}

#[tokio::test]
async fn where_effects_are_elsewhere_the_offset_moves_only_after_they_succeeded() {
    let bench = Bench::new().await;
    let handler = Elsewhere {
        done: Arc::default(),
        fails: Arc::new(Mutex::new(1)),
    };
    let done = Arc::clone(&handler.done);
    let follower = Follower::new(&bench.log, CONSUMER, bench.pool(), handler);
    bench.write("a b").await;
    assert!(follower.tick().await.is_err());
    assert_eq!(bench.consumer().await.last_seq, 0);
    drain(&follower).await.unwrap();
    assert_eq!(bench.consumer().await.last_seq, 2);
    assert_eq!(*done.lock().unwrap(), [1, 2, 1, 2]);
}

async fn is_set_aside(answer: Answer, attempts: i64, error: &str) {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("bad", answer);
    let follower = bench.follower(&world);
    bench.write("a b bad c d").await;
    settles(&bench, &follower).await;
    assert_eq!(bench.seen().await, "1:a 2:b 4:c 5:d");
    let [(source, queue, told, tried)] = &letters(&bench).await[..] else {
        panic!("one letter");
    };
    assert_eq!(
        (source.as_str(), queue.as_str()),
        ("seqlog_set_aside", CONSUMER)
    );
    assert!(told.contains(error), "{told}");
    assert_eq!(*tried, attempts);
    assert_eq!(bench.consumer().await.set_aside, 1);
    assert_eq!(bench.consumer().await.trouble, None);

    // What comes behind it is handled together again.
    bench.write("e f").await;
    drain(&follower).await.unwrap();
    assert_eq!(world.calls().last().unwrap(), "e f");
}

#[tokio::test]
async fn a_row_that_fails_is_set_aside_after_its_attempts_and_the_others_go_on() {
    is_set_aside(Answer::Fail, 2, "it does not fit").await;
}

#[tokio::test]
async fn a_row_whose_handler_panics_is_set_aside_after_its_attempts() {
    is_set_aside(Answer::Panic, 2, "what a word").await;
}

#[tokio::test]
async fn a_row_that_will_never_succeed_is_set_aside_at_once() {
    is_set_aside(Answer::Poison, 1, "it never fits").await;
}

#[tokio::test]
async fn a_handler_that_hides_a_failed_statement_has_not_succeeded() {
    is_set_aside(Answer::Hide, 2, "current transaction is aborted").await;
}

#[tokio::test]
async fn a_row_that_takes_too_long_is_cut_and_set_aside() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("slow", Answer::Hang);
    let follower = bench.follower(&world).limit(Duration::from_millis(100));
    bench.write("a slow b").await;
    settles(&bench, &follower).await;
    assert_eq!(bench.seen().await, "1:a 3:b");
    assert_eq!(letters(&bench).await.len(), 1);
}

#[tokio::test]
async fn a_row_that_was_set_aside_is_redriven_from_what_was_kept() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("bad", Answer::Poison);
    let follower = bench.follower(&world).lease(Duration::from_secs(3));
    bench.write("a bad b").await;
    settles(&bench, &follower).await;
    // Retention has been there meanwhile.
    bench.run("DELETE FROM app.seqlog_entries").await;

    redrive(&bench).await;
    eventually("it is dead again", async || {
        follower.tick().await.unwrap();
        (letters(&bench).await.len() == 1).then_some(())
    })
    .await;
    world.is_well_with("bad");
    redrive(&bench).await;
    eventually("it is handled", async || {
        follower.tick().await.unwrap();
        (bench.consumer().await.set_aside == 0).then_some(())
    })
    .await;
    assert_eq!(bench.seen().await, "1:a 3:b 2:bad");
    assert_eq!(bench.consumer().await.last_seq, 3);
}

#[tokio::test]
async fn a_redriven_row_that_every_process_dies_of_is_set_aside_again() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("deadly", Answer::Poison);
    let follower = bench.follower(&world);
    bench.write("a deadly b").await;
    settles(&bench, &follower).await;
    follower.release().await;
    redrive(&bench).await;
    bench.write("c").await;
    let mut processes = 0;
    loop {
        let world = World::default();
        world.tell("deadly", Answer::Hang);
        let follower = bench.follower(&world);
        let dead_again = eventually("it is dead again", async || {
            follower.tick().await.unwrap();
            (letters(&bench).await.len() == 1).then_some(())
        });
        let died = tokio::select! {
            () = world.inner.holding.notified() => true,
            () = dead_again => false,
        };
        if !died {
            break;
        }
        processes += 1;
        assert!(processes < 10, "it is tried for ever");
        bench.leases_end().await;
    }
    assert_eq!(processes, 2);
    assert_eq!(letters(&bench).await[0].3, 2);
    assert_eq!(bench.seen().await, "1:a 3:b 4:c");
}

#[tokio::test]
async fn what_is_put_back_and_what_comes_are_handled_in_turn() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("bad", Answer::Poison);
    let follower = bench.follower(&world);
    bench.write("bad bad bad bad").await;
    settles(&bench, &follower).await;
    follower.release().await;
    world.is_well_with("bad");
    redrive_all(&bench, 4).await;
    bench.write("x y").await;
    let follower = bench.follower(&world);
    let before = world.calls().len();
    follower.tick().await.unwrap();
    follower.tick().await.unwrap();
    bench.write("z").await;
    drain(&follower).await.unwrap();
    assert_eq!(
        world.calls()[before..],
        ["x y", "bad", "z", "bad", "bad", "bad"]
    );
    assert_eq!(bench.consumer().await.set_aside, 0);
}

#[tokio::test]
async fn a_row_that_was_set_aside_and_comes_again_by_a_replay_is_not_dead_any_more() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("bad", Answer::Poison);
    let follower = bench.follower(&world);
    bench.write("a bad b").await;
    settles(&bench, &follower).await;
    assert_eq!(bench.dead().await, ["words-v1:2"]);
    world.is_well_with("bad");
    bench.replay(1).await;
    follower.release().await;
    settles(&bench, &bench.follower(&world)).await;
    assert_eq!(bench.seen().await, "1:a 3:b 2:bad 3:b");
    assert_eq!(bench.dead().await, [""; 0]);
    assert!(letters(&bench).await.is_empty());
    assert_eq!(bench.consumer().await.set_aside, 0);
    let actors = "SELECT count(*) FROM app.dead_letter_audit WHERE actor = 'words-v1'";
    assert_eq!(bench.number(actors).await, 1);
}

/// Reads rows by the places of their columns.
struct Places(Arc<Mutex<Vec<(i64, String)>>>);

impl Handler for Places {
    type Row = (i64, String);

    async fn handle(&self, rows: &[Numbered<(i64, String)>], _: &mut Tx) -> Result<(), Failure> {
        let rows = rows.iter().map(|row| row.row.clone());
        self.0.lock().unwrap().extend(rows);
        Ok(())
    }
}

#[tokio::test]
async fn a_row_that_is_put_back_has_its_columns_where_the_log_has_them() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("a", Answer::Poison);
    let follower = bench.follower(&world);
    bench.write("a").await;
    settles(&bench, &follower).await;
    follower.release().await;
    redrive(&bench).await;
    let read = Arc::default();
    let handler = Places(Arc::clone(&read));
    drain(&Follower::new(&bench.log, CONSUMER, bench.pool(), handler))
        .await
        .unwrap();
    assert_eq!(*read.lock().unwrap(), [(1, "word".to_owned())]);
}

#[tokio::test]
async fn what_is_away_costs_no_attempt_and_sets_nothing_aside() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("b", Answer::Away);
    let follower = bench.follower(&world);
    bench.write("a b c").await;
    for _ in 0..5 {
        assert!(follower.tick().await.is_err());
    }
    // Also when it is handled alone.
    world.tell("a", Answer::Fail);
    follower.tick().await.unwrap();
    world.is_well_with("a");
    for _ in 0..6 {
        let _away = follower.tick().await;
    }
    assert_eq!(bench.seen().await, "1:a");
    let trouble = bench.consumer().await.trouble.unwrap();
    assert_eq!((trouble.seq, trouble.attempts), (Some(2), 0));
    world.is_well_with("b");
    settles(&bench, &follower).await;
    assert_eq!(bench.seen().await, "1:a 2:b 3:c");
    assert!(letters(&bench).await.is_empty());
}

/// Expects another kind of row.
#[derive(Debug)]
struct Picky;

impl FromRow<'_, PgRow> for Picky {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let payload: Vec<u8> = row.try_get("payload")?;
        if payload == b"odd" {
            return Err(sqlx::Error::Decode("an odd one".into()));
        }
        Ok(Self)
    }
}

struct Counts;

impl Handler for Counts {
    type Row = Picky;

    async fn handle(&self, rows: &[Numbered<Picky>], tx: &mut Tx) -> Result<(), Failure> {
        for row in rows {
            see(tx.get().await?, row.seq, "fine").await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_row_that_can_not_be_read_is_set_aside() {
    let bench = Bench::new().await;
    let follower = Follower::new(&bench.log, CONSUMER, bench.pool(), Counts);
    bench.write("a odd b").await;
    settles(&bench, &follower).await;
    assert_eq!(bench.seen().await, "1:fine 3:fine");
    let letters = letters(&bench).await;
    assert!(letters[0].2.contains("an odd one"), "{letters:?}");
}

#[tokio::test]
async fn a_row_that_every_process_dies_of_is_found_and_set_aside() {
    let bench = Bench::new().await;
    let mut processes = 0;
    bench.write("a deadly b").await;
    loop {
        // Each is another process, and dies without a word while it has the row in hand.
        let world = World::default();
        world.tell("deadly", Answer::Hang);
        let follower = bench.follower(&world);
        let died = tokio::select! {
            () = world.inner.holding.notified() => true,
            () = settles(&bench, &follower) => false,
        };
        if !died {
            break;
        }
        processes += 1;
        bench.leases_end().await;
    }
    // Twice in a batch, as often as a row is tried alone.
    assert_eq!(processes, 4);
    assert_eq!(bench.seen().await, "1:a 3:b");
    assert_eq!(letters(&bench).await[0].3, 2);
}

#[tokio::test]
async fn a_row_that_is_replayed_and_fails_again_is_one_letter() {
    let bench = Bench::new().await;
    let world = World::default();
    world.tell("bad", Answer::Poison);
    let follower = bench.follower(&world);
    bench.write("a bad b").await;
    settles(&bench, &follower).await;
    bench.replay(0).await;
    follower.release().await;
    let follower = bench.follower(&world);
    settles(&bench, &follower).await;
    assert_eq!(letters(&bench).await.len(), 1);
    assert_eq!(bench.consumer().await.set_aside, 1);
    assert_eq!(bench.seen().await, "1:a 3:b 1:a 3:b");
}

#[tokio::test]
async fn a_name_that_belongs_to_a_consumer_of_another_log_is_refused() {
    let bench = Bench::new().await;
    let mut db = bench.pool().acquire().await.unwrap();
    let consumers = Consumers::new(&schema());
    let made = consumers.begin_at(&mut db, "orders_log", CONSUMER, 0).await;
    made.unwrap();
    let world = World::default();
    let refused = bench.follower(&world).tick().await.unwrap_err();
    assert!(refused.to_string().contains("orders_log"), "{refused}");
    assert_eq!(bench.consumer().await.owner, None);
}
