//! A store made anew is the same, row by row, as one that followed from the start.

use tasuki::seqlog::{Snapshot, State};
use tasuki_testkit::eventually;

use super::*;

/// Keeps `app.copy` the same as the source, `app.words`: what an entry names is read there.
struct Copies {
    pool: PgPool,
    target: &'static str,
    /// Called in the middle of a rebuild.
    world: World,
}

impl Copies {
    async fn fill(&self, snapshot: &mut Snapshot, target: &str) -> Result<(), Failure> {
        let rows: Vec<(String, i64)> = sqlx::query_as("SELECT word, n FROM app.words")
            .fetch_all(snapshot.connection())
            .await?;
        self.asked("begin").await?;
        let sql = format!(
            "DROP TABLE IF EXISTS app.{target};
             CREATE TABLE app.{target} (word text PRIMARY KEY, n bigint NOT NULL)"
        );
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await?;
        for (word, n) in rows {
            sqlx::query(AssertSqlSafe(format!(
                "INSERT INTO app.{target} VALUES ($1, $2)"
            )))
            .bind(word)
            .bind(n)
            .execute(&self.pool)
            .await?;
        }
        Ok(())
    }

    /// Does at this point what it was told.
    async fn asked(&self, point: &str) -> Result<(), Failure> {
        let inner = &self.world.inner;
        match self.world.answer(point) {
            Some(Answer::Hold) => {
                inner.holding.notify_one();
                inner.go.notified().await;
                Ok(())
            }
            Some(Answer::Fail) => Err(Failure::failed("no room")),
            _ => Ok(()),
        }
    }

    async fn takes_its_place(&self, tx: &mut PgConnection, fresh: &str) -> sqlx::Result<()> {
        let sql = format!("DROP TABLE app.copy; ALTER TABLE app.{fresh} RENAME TO copy");
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(tx).await?;
        Ok(())
    }
}

impl Handler for Copies {
    type Row = Read;

    async fn handle(&self, rows: &[Numbered<Read>], tx: &mut Tx) -> Result<(), Failure> {
        for row in rows {
            let sql = format!(
                "INSERT INTO app.{} SELECT word, n FROM app.words WHERE word = $1
                 ON CONFLICT (word) DO UPDATE SET n = excluded.n",
                self.target
            );
            sqlx::query(AssertSqlSafe(sql))
                .bind(word(row))
                .execute(tx.get().await?)
                .await?;
        }
        Ok(())
    }

    async fn rebuild(&self, snapshot: &mut Snapshot) -> Result<(), Failure> {
        let calls = &self.world.inner.calls;
        calls.lock().unwrap().push("rebuild".to_owned());
        let fresh = format!("fresh_{}", snapshot.attempt());
        self.fill(snapshot, &fresh).await?;
        self.asked("rebuild").await
    }

    async fn switch_to(&self, tx: &mut PgConnection, attempt: i64) -> Result<(), Failure> {
        self.takes_its_place(tx, &format!("fresh_{attempt}"))
            .await?;
        Ok(())
    }
}

impl Bench {
    async fn with_source() -> Self {
        let bench = Self::new().await;
        bench
            .run(
                "CREATE TABLE app.words (word text PRIMARY KEY, n bigint NOT NULL);
                 CREATE TABLE app.copy (word text PRIMARY KEY, n bigint NOT NULL)",
            )
            .await;
        bench
    }

    /// Changes the source, and says so in the log.
    async fn change(&self, tx: &mut PgConnection, word: &str) {
        sqlx::query(
            "INSERT INTO app.words VALUES ($1, 1) ON CONFLICT (word) DO UPDATE SET n = words.n + 1",
        )
        .bind(word)
        .execute(&mut *tx)
        .await
        .unwrap();
        self.append_in(tx, word).await;
    }

    async fn changes(&self, words: &str) {
        for word in words.split(' ') {
            let mut tx = self.pool().begin().await.unwrap();
            self.change(&mut tx, word).await;
            tx.commit().await.unwrap();
        }
    }

    fn copies(&self, target: &'static str, world: &World) -> Copies {
        Copies {
            pool: self.pool().clone(),
            target,
            world: world.clone(),
        }
    }

    fn copier(&self, name: &str, target: &'static str, world: &World) -> Follower<Copies> {
        let handler = self.copies(target, world);
        Follower::new(&self.log, name, self.pool(), handler).lease(HOUR)
    }

    async fn rebuild(&self) {
        let mut tx = self.pool().begin().await.unwrap();
        let consumers = Consumers::new(&schema());
        let asked = consumers
            .rebuild(&mut tx, CONSUMER, "ann", "it is gone")
            .await;
        asked.unwrap();
        tx.commit().await.unwrap();
    }

    async fn copy_differs(&self, copy: &str) -> i64 {
        self.number(&format!(
            "SELECT count(*) FROM app.words FULL JOIN app.{copy} USING (word)
             WHERE words.n IS DISTINCT FROM {copy}.n"
        ))
        .await
    }
}

#[tokio::test]
async fn a_rebuild_misses_neither_what_had_no_number_nor_what_was_not_committed() {
    let bench = Bench::with_source().await;
    let world = World::default();
    let sequencer = bench.sequencer();
    bench.changes("a b c a").await;
    drain(&sequencer).await.unwrap();
    let follower = bench.copier(CONSUMER, "copy", &world);
    drain(&follower).await.unwrap();
    // Of the store nothing is left, and part of the log is gone, too.
    bench.run("TRUNCATE app.copy").await;
    bench
        .run("DELETE FROM app.seqlog_entries WHERE seq < 3")
        .await;
    bench.changes("b d").await; // Committed, and without a number.
    let mut open = bench.pool().begin().await.unwrap();
    bench.change(&mut open, "e").await;

    bench.rebuild().await;
    follower.release().await;
    let follower = bench.copier(CONSUMER, "copy", &world);
    world.tell("rebuild", Answer::Hold);
    let meanwhile = async {
        world.inner.holding.notified().await;
        drain(&sequencer).await.unwrap();
        bench.changes("f a").await;
        open.commit().await.unwrap();
        world.inner.go.notify_one();
    };
    let (rebuilt, ()) = tokio::join!(follower.tick(), meanwhile);
    assert_eq!(rebuilt.unwrap(), Tick::Worked);
    let consumer = bench.consumer().await;
    assert_eq!((consumer.state, consumer.last_seq), (State::Following, 4));
    assert!(consumer.rebuilt_at.is_some());
    drain(&sequencer).await.unwrap();
    drain(&follower).await.unwrap();
    assert_eq!(bench.copy_differs("copy").await, 0);
    assert_eq!(bench.number("SELECT count(*) FROM app.copy").await, 6);
}

#[tokio::test]
async fn a_rebuild_that_fails_changes_nothing_and_is_tried_again() {
    let bench = Bench::with_source().await;
    let world = World::default();
    bench.changes("a b").await;
    drain(&bench.sequencer()).await.unwrap();
    let follower = bench.copier(CONSUMER, "copy", &world);
    drain(&follower).await.unwrap();
    bench.rebuild().await;
    follower.release().await;
    let follower = bench.copier(CONSUMER, "copy", &world);
    world.tell("rebuild", Answer::Fail);
    assert!(follower.tick().await.is_err());
    let consumer = bench.consumer().await;
    assert_eq!((consumer.state, consumer.last_seq), (State::Rebuilding, 2));
    assert_eq!(consumer.trouble.unwrap().error.as_deref(), Some("no room"));
    assert_eq!(bench.copy_differs("copy").await, 0);
    world.is_well_with("rebuild");
    drain(&follower).await.unwrap();
    assert_eq!(bench.consumer().await.state, State::Following);
    assert_eq!(bench.copy_differs("copy").await, 0);
}

#[tokio::test]
async fn a_rebuild_reaches_a_running_consumer_and_one_without_a_way_to_it_says_so() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world).lease(Duration::from_secs(3));
    bench.write("a").await;
    drain(&follower).await.unwrap();
    bench.rebuild().await;
    let error = eventually("it says so", async || follower.tick().await.err()).await;
    assert!(
        error.to_string().contains("no way to be rebuilt"),
        "{error}"
    );
    assert_eq!(bench.consumer().await.state, State::Rebuilding);
    bench.replay(0).await;
    eventually("it follows again", async || {
        let _tick = follower.tick().await;
        (bench.seen().await == "1:a 1:a").then_some(())
    })
    .await;
}

/// Another instance of the one that is filled, which the server knows as `second`.
async fn never_active(bench: &Bench, world: &World) -> Follower<Copies> {
    let options = bench.pool().connect_options().as_ref().clone();
    let pool = PgPool::connect_with(options.application_name("second")).await;
    let handler = bench.copies("fresh", world);
    Follower::new(&bench.log, "words-v2", &pool.unwrap(), handler)
}

async fn asks_again(bench: &Bench, second: &impl Worker) {
    eventually("it has asked since the switch", async || {
        second.tick().await.unwrap();
        let asked = "SELECT count(*) FROM pg_stat_activity
            WHERE application_name = 'second'
                AND query_start > (SELECT rebuilt_at FROM app.consumer_offsets)";
        (bench.number(asked).await >= 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_store_that_is_filled_and_followed_beside_the_old_one_takes_its_place() {
    let bench = Bench::with_source().await;
    let world = World::default();
    let sequencer = bench.sequencer();
    let consumers = Consumers::new(&schema());
    bench.changes("a b a").await;
    drain(&sequencer).await.unwrap();
    let old = bench.copier(CONSUMER, "copy", &world);
    drain(&old).await.unwrap();

    let mut snapshot = bench.log.snapshot(bench.pool()).await.unwrap();
    assert_eq!(snapshot.seq(), 3);
    bench.changes("c a").await; // The snapshot does not see it.
    bench
        .copies("fresh", &world)
        .fill(&mut snapshot, "fresh")
        .await
        .unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    let begin = consumers.begin_at(&mut db, bench.log.name(), "words-v2", snapshot.seq());
    begin.await.unwrap();
    drop(snapshot);
    // What the old one has set aside is in the snapshot; what the fresh one will have is not.
    bench.set_aside_by_hand(CONSUMER, 2).await;
    drain(&sequencer).await.unwrap();
    let fresh = bench.copier("words-v2", "fresh", &world);
    tokio::join!(async { drain(&old).await.unwrap() }, async {
        drain(&fresh).await.unwrap()
    });
    assert_eq!(bench.copy_differs("copy").await, 0);
    assert_eq!(bench.copy_differs("fresh").await, 0);
    bench.set_aside_by_hand("words-v2", 4).await;
    // Never active until now, and asks again after it is gone.
    let second = never_active(&bench, &world).await;
    assert_eq!(second.tick().await.unwrap(), Tick::Idle);

    let mut tx = bench.pool().begin().await.unwrap();
    let from = consumers
        .replace(&mut tx, "words-v2", CONSUMER)
        .await
        .unwrap();
    let copies = bench.copies("copy", &world);
    copies.takes_its_place(&mut tx, "fresh").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(from, 5);
    assert_eq!(bench.dead().await, ["words-v1:4"]);
    bench.changes("d").await;
    drain(&sequencer).await.unwrap();
    // The one that was filled beside it has ended, and does not begin again.
    for _ in 0..2 {
        let _tick = fresh.tick().await;
    }
    asks_again(&bench, &second).await;
    let names = consumers.list(&mut db).await.unwrap();
    let names: Vec<_> = names
        .iter()
        .map(|consumer| consumer.name.as_str())
        .collect();
    assert_eq!(names, [CONSUMER]);
    drain(&bench.copier(CONSUMER, "copy", &world))
        .await
        .unwrap();
    assert_eq!(bench.copy_differs("copy").await, 0);
}

#[tokio::test]
async fn from_whichever_offset_it_is_replayed_a_store_ends_the_same() {
    let bench = Bench::with_source().await;
    let world = World::default();
    let words = ["a", "b", "c", "a", "b", "a", "d"];
    bench.changes(&words.join(" ")).await;
    drain(&bench.sequencer()).await.unwrap();
    let follows = async || {
        let follower = bench.copier(CONSUMER, "copy", &world).batch(2);
        drain(&follower).await.unwrap();
        follower.release().await;
    };
    follows().await;
    for offset in 0..words.len() {
        assert_eq!(bench.copy_differs("copy").await, 0, "{offset}");
        // What the rows behind the offset said is lost, or wrong.
        for (place, word) in words.iter().enumerate().skip(offset) {
            let damage = if place % 2 == 0 {
                format!("DELETE FROM app.copy WHERE word = '{word}'")
            } else {
                format!("UPDATE app.copy SET n = -1 WHERE word = '{word}'")
            };
            bench.run(&damage).await;
        }
        assert_ne!(bench.copy_differs("copy").await, 0, "{offset}");
        bench.replay(i64::try_from(offset).unwrap()).await;
        follows().await;
    }
    assert_eq!(bench.copy_differs("copy").await, 0);
}

#[tokio::test]
async fn an_attempt_that_slept_through_its_replacement_takes_nothing_from_the_store_of_the_next() {
    let bench = Bench::with_source().await;
    let (here, there) = (World::default(), World::default());
    let sequencer = bench.sequencer();
    bench.changes("a b").await;
    drain(&sequencer).await.unwrap();
    drain(&bench.copier(CONSUMER, "copy", &here)).await.unwrap();
    bench.leases_end().await;
    bench.rebuild().await;
    let first = bench.copier(CONSUMER, "copy", &here);
    let second = bench.copier(CONSUMER, "copy", &there);
    here.tell("begin", Answer::Hold);
    there.tell("rebuild", Answer::Hold);
    let first_rebuilds = async {
        first.tick().await.unwrap();
        // Only now the one that has filled its store switches.
        there.inner.go.notify_one();
    };
    let second_rebuilds = async {
        here.inner.holding.notified().await;
        bench.changes("c a").await; // The snapshot of the first one does not show it.
        drain(&sequencer).await.unwrap();
        bench.leases_end().await;
        let wakes = async {
            there.inner.holding.notified().await;
            here.inner.go.notify_one();
        };
        let (rebuilt, ()) = tokio::join!(second.tick(), wakes);
        assert_eq!(rebuilt.unwrap(), Tick::Worked);
    };
    tokio::join!(first_rebuilds, second_rebuilds);
    let consumer = bench.consumer().await;
    assert_eq!((consumer.state, consumer.last_seq), (State::Following, 4));
    assert_eq!(bench.copy_differs("copy").await, 0);
    assert_eq!((here.calls(), there.calls()), (rebuilds(1), rebuilds(1)));
}

fn rebuilds(times: usize) -> Vec<String> {
    vec!["rebuild".to_owned(); times]
}

#[tokio::test]
async fn a_switch_that_somebody_is_in_the_way_of_is_tried_again_alone() {
    let bench = Bench::with_source().await;
    let world = World::default();
    bench.changes("a b").await;
    drain(&bench.sequencer()).await.unwrap();
    drain(&bench.copier(CONSUMER, "copy", &world))
        .await
        .unwrap();
    bench.leases_end().await;
    bench.rebuild().await;
    let follower = bench.copier(CONSUMER, "copy", &world);
    let mut reader = bench.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM app.copy")
        .fetch_all(&mut *reader)
        .await
        .unwrap();
    let reads = async {
        super::super::dropped::until_waiting_for_locks(bench.pool(), 1).await;
        // Who comes behind the switch waits no longer than the switch does.
        assert_eq!(bench.copy_differs("copy").await, 0);
        eventually("the switch has given way", async || {
            let waiting = "SELECT count(*) FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            (bench.number(waiting).await == 0).then_some(())
        })
        .await;
        reader.rollback().await.unwrap();
    };
    let (rebuilt, ()) = tokio::join!(follower.tick(), reads);
    assert_eq!(rebuilt.unwrap(), Tick::Worked);
    assert_eq!(bench.consumer().await.state, State::Following);
    assert_eq!(bench.copy_differs("copy").await, 0);
    assert_eq!(world.calls(), rebuilds(1));
}

#[tokio::test]
async fn a_rebuild_that_is_asked_for_during_a_rebuild_is_made_as_well() {
    let bench = Bench::with_source().await;
    let world = World::default();
    bench.changes("a b").await;
    drain(&bench.sequencer()).await.unwrap();
    drain(&bench.copier(CONSUMER, "copy", &world))
        .await
        .unwrap();
    bench.leases_end().await;
    bench.rebuild().await;
    let follower = bench.copier(CONSUMER, "copy", &world);
    world.tell("rebuild", Answer::Hold);
    let asks = async {
        world.inner.holding.notified().await;
        // In the source, and in no row of the log.
        bench.run("UPDATE app.words SET n = 17").await;
        bench.rebuild().await;
        world.inner.go.notify_one();
    };
    let (given_up, ()) = tokio::join!(follower.tick(), asks);
    given_up.unwrap();
    assert_eq!(bench.consumer().await.state, State::Rebuilding);
    drain(&follower).await.unwrap();
    assert_eq!(bench.consumer().await.state, State::Following);
    assert_eq!(world.calls(), rebuilds(2));
    assert_eq!(bench.copy_differs("copy").await, 0);
}

#[tokio::test]
async fn what_was_set_aside_and_is_in_a_store_made_anew_is_not_dead_any_more() {
    let bench = Bench::with_source().await;
    let world = World::default();
    bench.changes("a b").await;
    drain(&bench.sequencer()).await.unwrap();
    drain(&bench.copier(CONSUMER, "copy", &world))
        .await
        .unwrap();
    bench.leases_end().await;
    bench.set_aside_by_hand(CONSUMER, 1).await;
    bench.set_aside_by_hand(CONSUMER, 3).await; // Not there yet.
    bench.rebuild().await;
    drain(&bench.copier(CONSUMER, "copy", &world))
        .await
        .unwrap();
    assert_eq!(bench.consumer().await.last_seq, 2);
    assert_eq!(bench.dead().await, ["words-v1:3"]);
    assert_eq!(bench.consumer().await.set_aside, 1);
}
