//! Numbers: one after the other, for what has committed, whoever gives them.

use futures_util::future::join_all;
use sqlx::{Connection, Row};
use tasuki::seqlog::{Error, Table};
use tasuki_testkit::eventually;

use super::*;

#[tokio::test]
async fn rows_have_numbers_without_gaps_in_the_order_of_their_appending() {
    let bench = Bench::new().await;
    bench.append("a b c").await;
    bench.append("d").await;
    let mut tx = bench.pool().begin().await.unwrap();
    bench.append_in(&mut tx, "e").await;
    bench.append_in(&mut tx, "f g").await;
    tx.commit().await.unwrap();
    assert_eq!(bench.entries().await, "");

    drain(&bench.sequencer().batch(2)).await.unwrap();
    assert_eq!(bench.entries().await, "1:a 2:b 3:c 4:d 5:e 6:f 7:g");
    assert_eq!(bench.unnumbered().await, 0);
}

#[tokio::test]
async fn rows_that_come_while_a_sequencer_gathers_are_numbered_by_one_commit() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer().gathering(Duration::from_secs(3));
    // Where it does not know how much is waiting, it gathers nothing.
    bench.append("first").await;
    assert_eq!(sequencer.tick().await.unwrap(), Tick::Worked);
    let meanwhile = async {
        for word in ["a", "b", "c"] {
            bench.append(word).await;
        }
    };
    let (tick, ()) = tokio::join!(sequencer.tick(), meanwhile);
    assert_eq!(tick.unwrap(), Tick::Worked);
    assert_eq!(bench.entries().await, "1:first 2:a 3:b 4:c");
    let commits = "SELECT count(DISTINCT xmin::text) FROM app.seqlog_entries WHERE seq > 1";
    assert_eq!(bench.number(commits).await, 1);
}

#[tokio::test]
async fn who_appended_first_and_commits_last_comes_last_and_nobody_misses_it() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer();
    let mut late = bench.pool().begin().await.unwrap();
    bench.append_in(&mut late, "late").await;
    bench.append("early").await;
    drain(&sequencer).await.unwrap();
    let world = World::default();
    let follower = bench.follower(&world);
    drain(&follower).await.unwrap();
    assert_eq!(bench.seen().await, "1:early");

    late.commit().await.unwrap();
    drain(&sequencer).await.unwrap();
    drain(&follower).await.unwrap();
    assert_eq!(bench.seen().await, "1:early 2:late");
}

#[tokio::test]
async fn an_open_transaction_holds_up_nobody_and_has_the_next_numbers_when_it_commits() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer();
    let mut open = bench.pool().begin().await.unwrap();
    for round in 0..30 {
        // It goes on appending, while others come and go.
        bench
            .append_in(&mut open, &vec!["open"; 100].join(" "))
            .await;
        bench.append(&vec!["w"; 100].join(" ")).await;
        sequencer.tick().await.unwrap();
        let head = bench.number("SELECT last_seq FROM app.seqlogs").await;
        assert_eq!(head, (round + 1) * 100, "with the first look");
    }
    open.commit().await.unwrap();
    drain(&sequencer).await.unwrap();
    let entries = bench.entries().await;
    let words: Vec<_> = entries.split([' ', ':']).skip(1).step_by(2).collect();
    let expected = [["w"; 3000], ["open"; 3000]].concat();
    assert_eq!(words, expected);
    assert_eq!(bench.unnumbered().await, 0);
}

/// How many blocks the server touches when it is asked for what has come since `seen`.
async fn blocks_of_a_look(bench: &Bench, seen: (i64, &[i64])) -> u64 {
    let mut statements = bench.log.statements();
    let look = statements.find(|sql| sql.contains("LATERAL") && sql.contains("LIMIT $1"));
    let mut db = bench.pool().acquire().await.unwrap();
    let prepare = format!(
        "PREPARE look (bigint, bigint, bigint []) AS {}",
        look.unwrap()
    );
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *db)
        .await
        .unwrap();
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS) EXECUTE look (50000, {}, ARRAY{:?}::bigint [])",
        seen.0, seen.1
    );
    let plan = sqlx::raw_sql(AssertSqlSafe(explain))
        .fetch_all(&mut *db)
        .await
        .unwrap();
    let lines: Vec<String> = plan.iter().map(|line| line.get(0)).collect();
    sqlx::raw_sql("DEALLOCATE look")
        .execute(&mut *db)
        .await
        .unwrap();
    let buffers = lines.iter().find(|line| line.contains("Buffers: shared"));
    let counts = buffers.unwrap().split_whitespace().filter_map(|word| {
        let (what, count) = word.split_once('=')?;
        ["hit", "read"]
            .contains(&what)
            .then(|| count.parse::<u64>().unwrap())
    });
    let blocks = counts.sum();
    assert!(blocks > 0, "{lines:?}");
    blocks
}

#[tokio::test]
async fn a_look_walks_neither_over_an_open_writers_rows_nor_over_dead_ones_also_after_a_takeover() {
    let bench = Bench::new().await;
    let fill = |rows: u32| {
        format!(
            "INSERT INTO app.seqlog_pending (kind, payload)
             SELECT 'word', 'x' FROM generate_series(1, {rows})"
        )
    };
    // Vacuum is held up: what is numbered stays where it was.
    let mut old = bench.pool().begin().await.unwrap();
    sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_snapshot()")
        .execute(&mut *old)
        .await
        .unwrap();
    let sequencer = bench.sequencer();
    bench.run(&fill(20_000)).await;
    drain(&sequencer).await.unwrap();
    let mut bulk = bench.pool().begin().await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(fill(100_000)))
        .execute(&mut *bulk)
        .await
        .unwrap();
    let open: i64 = sqlx::query_scalar("SELECT pg_current_xact_id()::text::bigint")
        .fetch_one(&mut *bulk)
        .await
        .unwrap();
    let head = "SELECT last_seq FROM app.seqlogs";
    for nth in 1..=2 {
        bench.append("w").await;
        sequencer.tick().await.unwrap();
        assert_eq!(bench.number(head).await, 20_000 + nth);
    }
    // What whoever takes over begins with: the one is open in it.
    let seen: (i64, Vec<i64>) = sqlx::query_as("SELECT seen_xmax, seen_open FROM app.seqlogs")
        .fetch_one(bench.pool())
        .await
        .unwrap();
    assert!(seen.1.contains(&open), "{seen:?} {open}");
    let blocks = blocks_of_a_look(&bench, (seen.0, &seen.1)).await;
    assert!(blocks < 200, "{blocks}");
    // And for a look that has not seen it yet.
    let blocks = blocks_of_a_look(&bench, (open, &[])).await;
    assert!(blocks < 200, "{blocks}");
    let next = bench.sequencer();
    bench.leases_end().await;
    bench.append("w").await;
    next.tick().await.unwrap();
    assert_eq!(bench.number(head).await, 20_003);
    bulk.rollback().await.unwrap();
    old.rollback().await.unwrap();
}

#[tokio::test]
async fn a_prepared_transaction_that_appended_holds_up_nobody_and_comes_when_it_is_committed() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer();
    let gid = format!("seqlog-{:016x}", fastrand::u64(..));
    let mut db = bench.pool().acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *db).await.unwrap();
    bench.append_in(&mut db, "late").await;
    let prepare = format!("PREPARE TRANSACTION '{gid}'");
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *db)
        .await
        .unwrap();
    bench.append("a b").await;
    sequencer.tick().await.unwrap();
    let others = bench.entries().await;
    bench.run(&format!("COMMIT PREPARED '{gid}'")).await;
    drain(&sequencer).await.unwrap();
    assert_eq!(others, "1:a 2:b");
    assert_eq!(bench.entries().await, "1:a 2:b 3:late");
}

#[tokio::test]
async fn what_is_rolled_back_leaves_no_gap() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer();
    bench.append("a").await;
    let mut gone = bench.pool().begin().await.unwrap();
    bench.append_in(&mut gone, "gone").await;
    let mut tx = bench.pool().begin().await.unwrap();
    bench.append_in(&mut tx, "b").await;
    let mut inner = tx.begin().await.unwrap();
    bench.append_in(&mut inner, "undone").await;
    inner.rollback().await.unwrap();
    bench.append_in(&mut tx, "c").await;
    tx.commit().await.unwrap();
    drain(&sequencer).await.unwrap();
    gone.rollback().await.unwrap();
    bench.append("d").await;
    drain(&sequencer).await.unwrap();
    assert_eq!(bench.entries().await, "1:a 2:b 3:c 4:d");
}

#[tokio::test]
async fn what_is_appended_after_a_commit_comes_after_it_though_its_transaction_is_older() {
    let bench = Bench::new().await;
    let mut older = bench.pool().begin().await.unwrap();
    // It has its number as a transaction, as one has that waited for the lock of the other.
    sqlx::query("SELECT pg_current_xact_id()")
        .execute(&mut *older)
        .await
        .unwrap();
    bench.append("cause").await;
    bench.append_in(&mut older, "effect").await;
    older.commit().await.unwrap();
    drain(&bench.sequencer()).await.unwrap();
    assert_eq!(bench.entries().await, "1:cause 2:effect");
}

#[tokio::test]
async fn writers_and_two_sequencers_that_take_over_from_each_other_all_the_time_leave_no_gap() {
    let bench = Bench::new().await;
    let rounds = 40;
    let writers = join_all((0..4).map(async |writer| {
        for round in 0..rounds {
            let mut tx = bench.pool().begin().await.unwrap();
            bench
                .append_in(&mut tx, &format!("{writer}.{round}.a"))
                .await;
            bench
                .append_in(&mut tx, &format!("{writer}.{round}.b"))
                .await;
            if round % 5 == 4 {
                tx.rollback().await.unwrap();
            } else {
                tx.commit().await.unwrap();
            }
        }
    }));
    let expected = 4 * (rounds - rounds / 5) * 2;
    // A lease that is over at once: whoever asks takes over.
    let sequencers = join_all((0..2).map(async |_| {
        let sequencer = bench.sequencer().lease(Duration::ZERO).batch(3);
        eventually("all are numbered", async || {
            // One may be in the way of the other.
            let _tick = sequencer.tick().await;
            let head = "SELECT coalesce(max(last_seq), 0) FROM app.seqlogs";
            (bench.number(head).await == expected).then_some(())
        })
        .await;
    }));
    tokio::join!(writers, sequencers);
    let entries = bench.entries().await;
    let words: Vec<_> = entries.split([' ', ':']).skip(1).step_by(2).collect();
    assert_eq!(i64::try_from(words.len()).unwrap(), expected);
    assert_eq!(bench.unnumbered().await, 0);
    for writer in 0..4 {
        let own = format!("{writer}.");
        let written: Vec<_> = words.iter().filter(|word| word.starts_with(&own)).collect();
        let rounds = (0..rounds).filter(|round| round % 5 != 4);
        let expected: Vec<_> = rounds
            .flat_map(|round| ["a", "b"].map(|part| format!("{writer}.{round}.{part}")))
            .collect();
        assert!(written.into_iter().eq(&expected), "in its own order");
    }
    let epochs = bench.number("SELECT epoch FROM app.seqlogs").await;
    assert!(epochs > 10, "{epochs}");
}

#[tokio::test]
async fn more_than_one_look_finds_is_numbered_in_order() {
    let bench = Bench::new().await;
    bench
        .run(
            "INSERT INTO app.seqlog_pending (kind, payload)
             SELECT 'word', convert_to(n::text, 'UTF8') FROM generate_series(1, 60000) AS n",
        )
        .await;
    drain(&bench.sequencer()).await.unwrap();
    let wrong =
        "SELECT count(*) FROM app.seqlog_entries WHERE seq::text <> convert_from(payload, 'UTF8')";
    assert_eq!(bench.number(wrong).await, 0);
    let head = "SELECT last_seq FROM app.seqlogs";
    assert_eq!(bench.number(head).await, 60000);
    assert_eq!(bench.unnumbered().await, 0);
}

#[tokio::test]
async fn a_row_that_no_snapshot_tells_of_is_found_all_the_same() {
    let bench = Bench::new().await;
    let sequencer = bench.sequencer();
    bench.append("a").await;
    drain(&sequencer).await.unwrap();
    // As after a server was promoted that counts its transactions from further back.
    bench
        .run("INSERT INTO app.seqlog_pending (append_tx, kind, payload) VALUES (3, 'word', 'b')")
        .await;
    eventually("it is numbered", async || {
        sequencer.tick().await.unwrap();
        (bench.unnumbered().await == 0).then_some(())
    })
    .await;
    assert_eq!(bench.entries().await, "1:a 2:b");
}

#[tokio::test]
async fn a_log_of_ones_own_has_its_own_columns_and_numbers() {
    let bench = Bench::new().await;
    bench
        .run(
            "CREATE TABLE app.orders_log_pending (
                 append_tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
                 append_id bigint GENERATED ALWAYS AS IDENTITY,
                 appended_at timestamptz NOT NULL DEFAULT now(),
                 order_id integer NOT NULL,
                 change text NOT NULL,
                 changed_at timestamptz NOT NULL DEFAULT now(),
                 PRIMARY KEY (append_tx, append_id)
             );
             CREATE TABLE app.orders_log (
                 seq bigint NOT NULL,
                 order_id integer NOT NULL,
                 change text NOT NULL,
                 changed_at timestamptz NOT NULL
             ) PARTITION BY RANGE (changed_at);
             CREATE INDEX orders_log_seq_idx ON app.orders_log (seq);
             CREATE TABLE app.orders_log_default PARTITION OF app.orders_log DEFAULT;",
        )
        .await;
    let table = Table {
        name: "orders_log",
        pending: "orders_log_pending",
        columns: &["order_id", "change", "changed_at"],
        at: "changed_at",
        channel: "app_orders",
    };
    let log = Log::of(&schema(), table);
    bench.write("an entry of the other log").await;
    bench
        .run("INSERT INTO app.orders_log_pending (order_id, change) VALUES (7, 'placed'), (8, 'placed')")
        .await;
    drain(&log.sequencer("test.orders", bench.pool()))
        .await
        .unwrap();
    let mut db = bench.pool().acquire().await.unwrap();
    for sql in log.statements() {
        let statement = AssertSqlSafe(sql.to_owned()).into_sql_str();
        db.prepare(statement).await.unwrap();
    }
    let rows = log.read::<(i64, i32, String)>(&mut db, 0, 10).await;
    let orders: Vec<_> = rows.unwrap().into_iter().map(|row| row.row).collect();
    let placed = || "placed".to_owned();
    assert_eq!(orders, [(1, 7, placed()), (2, 8, placed())]);
    let refused = log.append(&mut db, &[Entry::new("word", "a")]).await;
    assert!(matches!(refused, Err(Error::NotOwn("orders_log"))));
    // Nor does one become the library's own by its name.
    let alike = Table {
        name: "seqlog_entries",
        ..table
    };
    let alike = Log::of(&schema(), alike);
    let refused = alike.append(&mut db, &[Entry::new("word", "a")]).await;
    assert!(matches!(refused, Err(Error::NotOwn("seqlog_entries"))));
}

#[tokio::test]
async fn a_nul_is_refused_before_it_dooms_the_transaction() {
    let bench = Bench::new().await;
    let mut tx = bench.pool().begin().await.unwrap();
    let refused = bench.log.append(&mut tx, &[Entry::new("a\0b", "")]).await;
    assert!(matches!(refused, Err(Error::Invalid)));
    bench.append_in(&mut tx, "a").await;
    tx.commit().await.unwrap();
    assert_eq!(bench.unnumbered().await, 1);
}
