//! What retention removes is known, and who needed it says so.

use tasuki::seqlog::{ConsumerError, State, Table};
use tasuki::upkeep::Upkeep;
use tasuki::worker::Worker;

use super::*;

impl Bench {
    /// Rows up to `seq` are old, in a partition of their own.
    async fn grow_old(&self, seq: i64) {
        self.run(&format!(
            "DO $$ BEGIN EXECUTE format(
                 'CREATE TABLE app.seqlog_entries_old PARTITION OF app.seqlog_entries
                  FOR VALUES FROM (%L) TO (%L)',
                 date_trunc('day', now() - INTERVAL '50 days'),
                 date_trunc('day', now() - INTERVAL '40 days')); END $$;
             UPDATE app.seqlog_entries SET numbered_at = now() - INTERVAL '45 days' WHERE seq <= {seq};"
        ))
        .await;
    }

    async fn clean(&self) {
        drain(&Upkeep::new(self.pool().clone(), &schema()))
            .await
            .unwrap();
    }

    async fn bounds(&self) -> (i64, i64) {
        let mut db = self.pool().acquire().await.unwrap();
        let head = self.log.head(&mut db).await.unwrap();
        (head.floor_seq, head.last_seq)
    }
}

#[tokio::test]
async fn the_last_number_that_retention_removed_is_known_also_when_nothing_is_left() {
    let bench = Bench::new().await;
    bench.write("a b c d e").await;
    bench.clean().await;
    assert_eq!(bench.bounds().await, (0, 5));
    bench.grow_old(3).await;
    bench.clean().await;
    assert_eq!(bench.bounds().await, (3, 5));
    let left = "SELECT count(*) FROM app.seqlog_entries";
    assert_eq!(bench.number(left).await, 2);

    bench.grow_old(5).await;
    bench.clean().await;
    assert_eq!(bench.bounds().await, (5, 5));
    assert_eq!(bench.number(left).await, 0);
    bench.write("f").await;
    assert_eq!(bench.bounds().await, (5, 6));
}

#[tokio::test]
async fn rows_that_go_one_by_one_are_known_as_well() {
    let bench = Bench::new().await;
    bench.write("a b c").await;
    // No partition is theirs: they are in the default one.
    bench
        .run(
            "UPDATE app.seqlog_entries SET numbered_at = now() - INTERVAL '31 days' WHERE seq <= 2",
        )
        .await;
    bench.clean().await;
    assert_eq!(bench.bounds().await, (2, 3));
    assert_eq!(
        bench
            .number("SELECT count(*) FROM app.seqlog_entries")
            .await,
        1
    );
}

#[tokio::test]
async fn a_row_is_as_old_as_its_number_however_long_its_writer_took() {
    let bench = Bench::new().await;
    bench
        .run(
            "CREATE TABLE app.orders_log_pending (
                 append_tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
                 append_id bigint GENERATED ALWAYS AS IDENTITY,
                 appended_at timestamptz NOT NULL DEFAULT now(),
                 order_id integer NOT NULL,
                 changed_at timestamptz NOT NULL DEFAULT now(),
                 PRIMARY KEY (append_tx, append_id)
             );
             CREATE TABLE app.orders_log (
                 seq bigint NOT NULL, order_id integer NOT NULL, changed_at timestamptz NOT NULL
             ) PARTITION BY RANGE (changed_at);
             CREATE INDEX orders_log_seq_idx ON app.orders_log (seq);
             CREATE TABLE app.orders_log_default PARTITION OF app.orders_log DEFAULT;
             CREATE INDEX orders_log_default_changed_at_idx ON app.orders_log_default (changed_at);
             INSERT INTO app.orders_log_pending (order_id, changed_at) VALUES
                 (1, now()), (2, now() - INTERVAL '40 days'), (3, now())",
        )
        .await;
    let table = Table {
        name: "orders_log",
        pending: "orders_log_pending",
        columns: &["order_id", "changed_at"],
        at: "changed_at",
        channel: "app_orders",
    };
    let log = Log::of(&schema(), table);
    drain(&log.sequencer("test.orders", bench.pool()))
        .await
        .unwrap();
    let upkeep = Upkeep::new(bench.pool().clone(), &schema());
    drain(&upkeep.partitioned(log.retention()).unwrap())
        .await
        .unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    let head = log.head(&mut db).await.unwrap();
    assert_eq!((head.floor_seq, head.last_seq), (0, 3));
    let rows = log.read::<(i64, i32)>(&mut db, 0, 10).await.unwrap();
    let rows: Vec<_> = rows.into_iter().map(|row| row.row).collect();
    assert_eq!(rows, [(1, 1), (2, 2), (3, 3)]);
}

#[tokio::test]
async fn a_row_that_is_gone_when_it_is_to_be_set_aside_is_not_skipped() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world);
    bench.write("bad b").await;
    world.tell("bad", Answer::Poison);
    follower.tick().await.unwrap();
    world.tell("bad", Answer::Doom);
    let goes = async {
        world.inner.holding.notified().await;
        bench
            .run("DELETE FROM app.seqlog_entries WHERE seq = 1")
            .await;
        world.inner.go.notify_one();
    };
    let (handled, ()) = tokio::join!(follower.tick(), goes);
    handled.unwrap();
    assert_eq!(bench.consumer().await.last_seq, 0);
    is_too_far_behind(&bench, &follower).await;
    assert_eq!(bench.consumer().await.set_aside, 0);
    assert_eq!(bench.seen().await, "");
}

#[tokio::test]
async fn a_consumer_that_is_ahead_of_its_log_says_so() {
    let bench = Bench::new().await;
    let world = World::default();
    bench.write("a b c").await;
    let follower = bench.follower(&world);
    drain(&follower).await.unwrap();
    follower.release().await;
    // As after the log was restored from an older copy.
    bench
        .run("UPDATE app.seqlogs SET last_seq = 1; DELETE FROM app.seqlog_entries WHERE seq > 1")
        .await;
    let error = bench.follower(&world).tick().await.unwrap_err();
    assert!(error.to_string().contains("its log ends at 1"), "{error}");
}

async fn is_too_far_behind(bench: &Bench, follower: &impl Worker) {
    let error = follower.tick().await.unwrap_err();
    assert!(error.to_string().contains("too far behind"), "{error}");
    let consumer = bench.consumer().await;
    assert_eq!(consumer.state, State::TooFarBehind);
    assert!(consumer.trouble.unwrap().error.is_some());
    // It goes on saying so.
    assert!(follower.tick().await.is_err());
}

#[tokio::test]
async fn a_consumer_that_fell_behind_retention_stops_says_so_and_skips_nothing() {
    let bench = Bench::new().await;
    let world = World::default();
    let follower = bench.follower(&world);
    bench.write("a").await;
    drain(&follower).await.unwrap();
    follower.release().await;
    bench.write("b c d").await;
    bench.grow_old(3).await;
    bench.clean().await;
    let follower = bench.follower(&world);
    is_too_far_behind(&bench, &follower).await;
    assert_eq!(bench.seen().await, "1:a");

    // A person may move it to where rows are, and no further back.
    let mut tx = bench.pool().begin().await.unwrap();
    let consumers = Consumers::new(&schema());
    let refused = consumers
        .replay(&mut tx, CONSUMER, 2, "ann", "why not")
        .await;
    let range = |error| match error {
        ConsumerError::OutOfRange { floor, head } => (floor, head),
        other => panic!("{other}"),
    };
    assert_eq!(range(refused.unwrap_err()), (3, 4));
    tx.rollback().await.unwrap();
    bench.replay(3).await;
    drain(&follower).await.unwrap();
    assert_eq!(bench.seen().await, "1:a 4:d");
    assert_eq!(bench.consumer().await.state, State::Following);
}

#[tokio::test]
async fn a_new_consumer_of_a_log_whose_beginning_is_gone_asks_for_a_rebuild() {
    let bench = Bench::new().await;
    bench.write("a b").await;
    bench.grow_old(2).await;
    bench.clean().await;
    let world = World::default();
    is_too_far_behind(&bench, &bench.follower(&world)).await;
    assert_eq!(world.calls(), [""; 0]);
}

#[tokio::test]
async fn a_row_that_is_missing_in_the_middle_is_never_skipped() {
    let bench = Bench::new().await;
    let world = World::default();
    bench.write("a b c d").await;
    bench
        .run("DELETE FROM app.seqlog_entries WHERE seq = 3")
        .await;
    let follower = bench.follower(&world);
    follower.tick().await.unwrap();
    assert_eq!(bench.seen().await, "1:a 2:b");
    is_too_far_behind(&bench, &follower).await;
    assert_eq!(bench.seen().await, "1:a 2:b");
}
