//! A log without gaps, and consumers that miss nothing.

#![expect(clippy::panic, reason = "helpers of tests, and handlers that panic")]

mod cut;
mod fencing;
mod follow;
mod people;
mod rebuild;
mod retention;
mod sequence;
mod waking;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor, PgConnection, PgPool, SqlSafeStr};
use tasuki::Schema;
use tasuki::migrate::library;
use tasuki::retry::Backoff;
use tasuki::seqlog::{
    Consumer, Consumers, Entry, Failure, Follower, Handler, Log, Numbered, Read, Sequencer, Tx,
};
use tasuki::worker::{Tick, Worker, drain};
use tasuki_testkit::TestDb;
use tokio::sync::Notify;

const HOUR: Duration = Duration::from_secs(3600);
const CONSUMER: &str = "words-v1";

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

/// A database with a log, and a table of what a consumer has seen: nothing in it is unique, so what is
/// handled twice is there twice.
struct Bench {
    db: TestDb,
    log: Log,
}

impl Bench {
    async fn new() -> Self {
        let db = TestDb::new(&[library(&schema())]).await;
        let bench = Self {
            db,
            log: Log::new(&schema()),
        };
        bench
            .run("CREATE TABLE app.seen (at bigserial, seq bigint NOT NULL, word text NOT NULL)")
            .await;
        bench
    }

    fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    async fn run(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(self.pool()).await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::query_scalar(sql)
            .fetch_one(self.pool())
            .await
            .unwrap()
    }

    /// Appends and commits.
    async fn append(&self, words: &str) {
        let mut tx = self.pool().begin().await.unwrap();
        self.append_in(&mut tx, words).await;
        tx.commit().await.unwrap();
    }

    async fn append_in(&self, tx: &mut PgConnection, words: &str) {
        let words = words.split_whitespace();
        let entries: Vec<_> = words.map(|word| Entry::new("word", word)).collect();
        self.log.append(tx, &entries).await.unwrap();
    }

    /// One that keeps its lease until somebody ends it.
    fn sequencer(&self) -> Sequencer {
        self.log
            .sequencer("test.sequencer", self.pool())
            .lease(HOUR)
    }

    /// Appends, commits and numbers.
    async fn write(&self, words: &str) {
        self.append(words).await;
        let sequencer = self.sequencer();
        drain(&sequencer).await.unwrap();
        sequencer.release().await;
    }

    /// The log in order, as `1:a 2:b`; there is no gap in it.
    async fn entries(&self) -> String {
        let mut db = self.pool().acquire().await.unwrap();
        let rows = self.log.read::<Read>(&mut db, 0, 1_000_000).await.unwrap();
        let expected: Vec<i64> = (1..).take(rows.len()).collect();
        let numbers: Vec<i64> = rows.iter().map(|row| row.seq).collect();
        assert_eq!(numbers, expected);
        let told = rows.iter().map(|row| format!("{}:{}", row.seq, word(row)));
        told.collect::<Vec<_>>().join(" ")
    }

    async fn unnumbered(&self) -> i64 {
        self.number("SELECT count(*) FROM app.seqlog_pending").await
    }

    /// What the consumer has seen, in the order in which it has.
    async fn seen(&self) -> String {
        let sql = "SELECT string_agg(seq || ':' || word, ' ' ORDER BY at) FROM app.seen";
        let seen: Option<String> = sqlx::query_scalar(sql)
            .fetch_one(self.pool())
            .await
            .unwrap();
        seen.unwrap_or_default()
    }

    fn follower(&self, world: &World) -> Follower<Words> {
        let handler = Words(world.clone());
        Follower::new(&self.log, CONSUMER, self.pool(), handler)
            .lease(HOUR)
            .attempts(2, Backoff::list([]))
    }

    async fn consumer(&self) -> Consumer {
        self.consumer_called(CONSUMER).await
    }

    async fn consumer_called(&self, name: &str) -> Consumer {
        let mut db = self.pool().acquire().await.unwrap();
        let story = Consumers::new(&schema()).show(&mut db, name).await;
        story.unwrap().unwrap().consumer
    }

    async fn replay(&self, to: i64) {
        let mut tx = self.pool().begin().await.unwrap();
        let consumers = Consumers::new(&schema());
        let replayed = consumers.replay(&mut tx, CONSUMER, to, "ann", "to see it again");
        replayed.await.unwrap();
        tx.commit().await.unwrap();
    }

    /// Somebody has set this row aside.
    async fn set_aside_by_hand(&self, consumer: &str, seq: i64) {
        self.run(&format!(
            "WITH kept AS (
                 INSERT INTO app.seqlog_set_aside
                     (set_aside_id, consumer, log, seq, entry, attempt_count, last_error)
                 VALUES (gen_random_uuid(), '{consumer}', 'seqlog_entries', {seq}, '{{}}', 1, 'no')
                 RETURNING *
             )
             INSERT INTO app.dead_letters
                 (letter_id, source, source_id, queue, kind, payload, error, attempt_count)
             SELECT gen_random_uuid(), 'seqlog_set_aside', set_aside_id, consumer, log, '', 'no', 1
             FROM kept"
        ))
        .await;
    }

    /// The rows that are set aside and dead, as `words-v1:2`, by what their letters say.
    async fn dead(&self) -> Vec<String> {
        sqlx::query_scalar(
            "SELECT l.queue || ':' || a.seq
             FROM app.dead_letters AS l
             JOIN app.seqlog_set_aside AS a
                 ON a.set_aside_id = l.source_id AND a.consumer = l.queue
             WHERE l.redriven_at IS NULL AND l.discarded_at IS NULL
             ORDER BY l.queue, a.seq",
        )
        .fetch_all(self.pool())
        .await
        .unwrap()
    }

    /// The leases of consumers and sequencers end.
    async fn leases_end(&self) {
        self.run("UPDATE app.consumer_offsets SET lease_until = now()")
            .await;
        self.run("UPDATE app.seqlogs SET lease_until = now()").await;
    }
}

fn word(row: &Numbered<Read>) -> &str {
    std::str::from_utf8(&row.row.payload).unwrap()
}

/// What a handler is told to do with words, and where tests meet it.
#[derive(Clone, Debug, Default)]
struct World {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    answers: Mutex<HashMap<String, Answer>>,
    calls: Mutex<Vec<String>>,
    /// Rung by a handler that holds.
    holding: Notify,
    /// Lets it go on.
    go: Notify,
}

#[derive(Clone, Copy, Debug)]
enum Answer {
    Fail,
    Poison,
    Away,
    Panic,
    /// Waits for the test, once.
    Hold,
    /// Waits for the test, and then never fits.
    Doom,
    /// Never comes back.
    Hang,
    /// Fails a statement, and says that all is well.
    Hide,
}

impl World {
    fn tell(&self, word: &str, answer: Answer) {
        let mut answers = self.inner.answers.lock().unwrap();
        answers.insert(word.to_owned(), answer);
    }

    fn is_well_with(&self, word: &str) {
        self.inner.answers.lock().unwrap().remove(word);
    }

    /// Every call of the handler, its words joined.
    fn calls(&self) -> Vec<String> {
        self.inner.calls.lock().unwrap().clone()
    }

    fn answer(&self, word: &str) -> Option<Answer> {
        let mut answers = self.inner.answers.lock().unwrap();
        match answers.get(word).copied() {
            Some(Answer::Hold) => answers.remove(word),
            answer => answer,
        }
    }
}

/// Writes what it sees, or does what it was told.
#[derive(Debug)]
struct Words(World);

impl Handler for Words {
    type Row = Read;

    async fn handle(&self, rows: &[Numbered<Read>], tx: &mut Tx) -> Result<(), Failure> {
        let inner = &self.0.inner;
        let words: Vec<_> = rows.iter().map(word).collect();
        inner.calls.lock().unwrap().push(words.join(" "));
        for row in rows {
            let answer = self.0.answer(word(row));
            see(tx.get().await?, row.seq, word(row)).await?;
            match answer {
                None => {}
                Some(Answer::Fail) => return Err(Failure::failed("it does not fit")),
                Some(Answer::Poison) => return Err(Failure::poison("it never fits")),
                Some(Answer::Away) => return Err(Failure::away("nobody there")),
                Some(Answer::Panic) => panic!("what a word"),
                Some(Answer::Hide) => {
                    let failed = sqlx::query("SELECT 1 / 0").execute(tx.get().await?).await;
                    assert!(failed.is_err());
                }
                Some(Answer::Hang) => {
                    inner.holding.notify_one();
                    std::future::pending::<()>().await;
                }
                Some(Answer::Hold) => {
                    inner.holding.notify_one();
                    inner.go.notified().await;
                }
                Some(Answer::Doom) => {
                    inner.holding.notify_one();
                    inner.go.notified().await;
                    return Err(Failure::poison("it never fits"));
                }
            }
        }
        Ok(())
    }
}

async fn see(connection: &mut PgConnection, seq: i64, word: &str) -> sqlx::Result<()> {
    sqlx::query("INSERT INTO app.seen (seq, word) VALUES ($1, $2)")
        .bind(seq)
        .bind(word)
        .execute(connection)
        .await?;
    Ok(())
}

#[tokio::test]
async fn every_statement_of_a_log_prepares() {
    let bench = Bench::new().await;
    let consumers = Consumers::new(&schema());
    let mut db = bench.pool().acquire().await.unwrap();
    for sql in bench.log.statements().chain(consumers.statements()) {
        let statement = AssertSqlSafe(sql.to_owned()).into_sql_str();
        let prepared = db.prepare(statement).await;
        assert!(prepared.is_ok(), "{sql}\n{:?}", prepared.err());
    }
}
