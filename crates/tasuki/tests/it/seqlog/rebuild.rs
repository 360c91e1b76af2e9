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
    async fn fill(&self, snapshot: &mut Snapshot) -> sqlx::Result<()> {
        let rows: Vec<(String, i64)> = sqlx::query_as("SELECT word, n FROM app.words")
            .fetch_all(snapshot.connection())
            .await?;
        let target = "CREATE TABLE app.fresh (word text PRIMARY KEY, n bigint NOT NULL)";
        for sql in ["DROP TABLE IF EXISTS app.fresh", target] {
            sqlx::query(sql).execute(&self.pool).await?;
        }
        for (word, n) in rows {
            sqlx::query("INSERT INTO app.fresh VALUES ($1, $2)")
                .bind(word)
                .bind(n)
                .execute(&self.pool)
                .await?;
        }
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
        self.fill(snapshot).await?;
        match self.world.answer("rebuild") {
            Some(Answer::Hold) => {
                self.world.inner.holding.notify_one();
                self.world.inner.go.notified().await;
            }
            Some(Answer::Fail) => return Err(Failure::failed("no room")),
            _ => {}
        }
        Ok(())
    }

    async fn switch(&self, tx: &mut PgConnection) -> Result<(), Failure> {
        for sql in [
            "DROP TABLE app.copy",
            "ALTER TABLE app.fresh RENAME TO copy",
        ] {
            sqlx::query(sql).execute(&mut *tx).await?;
        }
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
        .fill(&mut snapshot)
        .await
        .unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    let begin = consumers.begin_at(&mut db, bench.log.name(), "words-v2", snapshot.seq());
    begin.await.unwrap();
    drop(snapshot);
    drain(&sequencer).await.unwrap();
    let fresh = bench.copier("words-v2", "fresh", &world);
    tokio::join!(async { drain(&old).await.unwrap() }, async {
        drain(&fresh).await.unwrap()
    });
    assert_eq!(bench.copy_differs("copy").await, 0);
    assert_eq!(bench.copy_differs("fresh").await, 0);

    let mut tx = bench.pool().begin().await.unwrap();
    let from = consumers
        .replace(&mut tx, "words-v2", CONSUMER)
        .await
        .unwrap();
    bench.copies("copy", &world).switch(&mut tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(from, 5);
    bench.changes("d").await;
    drain(&sequencer).await.unwrap();
    // The one that was filled beside it has ended, and does not begin again.
    let _tick = fresh.tick().await;
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
    bench.changes("a b c a b a d").await;
    drain(&bench.sequencer()).await.unwrap();
    for offset in 0..=7 {
        let follower = bench.copier(CONSUMER, "copy", &world).batch(2);
        drain(&follower).await.unwrap();
        assert_eq!(bench.copy_differs("copy").await, 0, "{offset}");
        follower.release().await;
        bench.replay(offset).await;
    }
}
