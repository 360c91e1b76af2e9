//! Partitions that come and go, rows that expire, and nobody who is held up by it.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tasuki::Schema;
use tasuki::upkeep::{Error, Expiring, Partitioned, Upkeep};
use tasuki::worker::{Tick, Worker, drain};
use tasuki_testkit::{TestDb, eventually};
use time::OffsetDateTime;
use tokio::time::Instant;
use uuid::Uuid;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);
const PARTITIONED: [&str; 7] = [
    "outbox_published",
    "jobs_done",
    "processed_events",
    "stories",
    "barriers",
    "sagas_done",
    "seqlog_entries",
];

fn schema() -> Schema {
    Schema::new("app").unwrap()
}

async fn database() -> TestDb {
    let db = TestDb::new(&[tasuki::migrate::library(&schema())]).await;
    // A vacuum that comes by postpones a step, as anybody does who holds the table; which tick
    // does what would be up to it.
    for table in PARTITIONED {
        let sql = format!("ALTER TABLE app.{table}_default SET (autovacuum_enabled = FALSE)");
        run(&db.pool, &sql).await;
    }
    db
}

fn upkeep(db: &TestDb) -> Upkeep {
    Upkeep::new(db.pool.clone(), &schema())
}

async fn run(db: impl sqlx::PgExecutor<'_>, sql: &str) -> u64 {
    let done = sqlx::query(AssertSqlSafe(sql)).execute(db).await;
    done.unwrap().rows_affected()
}

async fn texts(pool: &PgPool, sql: &str) -> Vec<String> {
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_all(pool)
        .await
        .unwrap()
}

async fn count(pool: &PgPool, from: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(format!("SELECT count(*) FROM {from}")))
        .fetch_one(pool)
        .await
        .unwrap()
}

async fn now(pool: &PgPool) -> OffsetDateTime {
    sqlx::query_scalar("SELECT now()")
        .fetch_one(pool)
        .await
        .unwrap()
}

/// The partitions of a table but the default one, oldest first.
async fn partitions(pool: &PgPool, table: &str) -> Vec<String> {
    texts(
        pool,
        &format!(
            "SELECT relname::text FROM pg_inherits JOIN pg_class ON oid = inhrelid
             WHERE inhparent = 'app.{table}'::regclass AND relname NOT LIKE '%\\_default'
             ORDER BY 1"
        ),
    )
    .await
}

/// Published events, one per SQL time.
async fn publish(db: impl sqlx::PgExecutor<'_>, times: &str) -> u64 {
    run(
        db,
        &format!(
            "INSERT INTO app.outbox_published
                 (event_id, seq, event_type, aggregate_key, payload, occurred_at, attempt_count,
                  created_at, published_at, stream, stream_created_at, stream_seq)
             SELECT gen_random_uuid(), 1, 't', 'a:1', '', now(), 1, now(), t, 's', now(), 1
             FROM ({times}) AS times (t)"
        ),
    )
    .await
}

/// Makes a partition of published events that begins `hours` whole hours ago.
async fn old_hour(pool: &PgPool, hours: i32) {
    run(
        pool,
        &format!(
            "DO $$ BEGIN EXECUTE format(
                 'CREATE TABLE app.outbox_published_old{hours} PARTITION OF app.outbox_published
                  FOR VALUES FROM (%L) TO (%L)',
                 date_trunc('hour', now()) - interval '{hours} h',
                 date_trunc('hour', now()) - interval '{} h'); END $$",
            hours - 1
        ),
    )
    .await;
}

/// An id made at `time` by a process of its own.
fn id_at(time: OffsetDateTime) -> Uuid {
    let millis = u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap();
    let random = fastrand::u128(..).to_ne_bytes();
    uuid::Builder::from_unix_timestamp_millis(millis, random.first_chunk().unwrap()).into_uuid()
}

async fn process(pool: &PgPool, id: Uuid, at: OffsetDateTime) {
    sqlx::query(
        "INSERT INTO app.processed_events (event_id, consumer, processed_at) VALUES ($1, 'c', $2)",
    )
    .bind(id)
    .bind(at)
    .execute(pool)
    .await
    .unwrap();
}

async fn home_of(pool: &PgPool, id: Uuid) -> Option<String> {
    sqlx::query_scalar(
        "SELECT tableoid::regclass::text FROM app.processed_events WHERE event_id = $1",
    )
    .bind(id)
    .fetch_optional(pool)
    .await
    .unwrap()
}

/// Makes the partition of ids that begins `days` whole days ago.
async fn old_day(pool: &PgPool, days: i64) {
    let midnight = now(pool).await.replace_time(time::Time::MIDNIGHT);
    let bound = |days: i64| {
        let millis = (midnight - time::Duration::days(days)).unix_timestamp() * 1000;
        Uuid::from_u128(u128::try_from(millis).unwrap() << 80)
    };
    run(
        pool,
        &format!(
            "CREATE TABLE app.processed_events_old{days} PARTITION OF app.processed_events
             FOR VALUES FROM ('{}') TO ('{}')",
            bound(days),
            bound(days - 1)
        ),
    )
    .await;
}

#[tokio::test]
async fn rows_land_in_partitions_that_were_made_ahead() {
    let db = database().await;
    let hour = texts(&db.pool, "SELECT to_char(now(), 'YYYYMMDDHH24')").await;
    drain(&upkeep(&db)).await.unwrap();

    publish(
        &db.pool,
        "SELECT now() + h * interval '1 h' FROM generate_series(0, 23) AS h",
    )
    .await;
    assert_eq!(count(&db.pool, "app.outbox_published_default").await, 0);
    let homes = texts(
        &db.pool,
        "SELECT DISTINCT tableoid::regclass::text FROM app.outbox_published",
    )
    .await;
    assert_eq!(homes.len(), 24);

    let first = partitions(&db.pool, "outbox_published").await.remove(0);
    assert_eq!(first, format!("outbox_published_p{}00", hour[0]));

    run(
        &db.pool,
        "INSERT INTO app.jobs_done
             (job_id, queue, kind, payload, attempt_count, created_at, finished_at)
         SELECT gen_random_uuid(), 'q', 'k', '{}', 1, now(), now() + d * interval '1 day'
         FROM generate_series(0, 2) AS d",
    )
    .await;
    assert_eq!(count(&db.pool, "app.jobs_done_default").await, 0);

    let now = now(&db.pool).await;
    for fast in [Duration::ZERO, HOUR, 2 * DAY] {
        process(&db.pool, id_at(now + fast), now).await;
    }
    assert_eq!(count(&db.pool, "app.processed_events_default").await, 0);
}

#[tokio::test]
async fn a_partition_has_all_that_its_table_has() {
    let db = database().await;
    drain(&upkeep(&db)).await.unwrap();
    // That of a table is valid when all its partitions have it, also those from before.
    let indexes = |table: &str| {
        format!(
            "SELECT count(*)::text FROM pg_index JOIN pg_class ON oid = indexrelid
             WHERE indrelid = 'app.{table}'::regclass AND (indisvalid OR relkind = 'I')"
        )
    };
    for table in PARTITIONED {
        let partition = partitions(&db.pool, table).await.remove(0);
        let (of_table, of_partition) = (indexes(table), indexes(&partition));
        assert_eq!(
            texts(&db.pool, &of_table).await,
            texts(&db.pool, &of_partition).await
        );
    }
    // What was made by LIKE is part of the table's index and not a second one beside it.
    let attached = "pg_inherits JOIN pg_class ON oid = inhparent WHERE relkind = 'I'";
    assert!(count(&db.pool, attached).await > 0);
}

#[tokio::test]
async fn a_second_run_finds_nothing_to_do() {
    let db = database().await;
    let upkeep = upkeep(&db);
    drain(&upkeep).await.unwrap();
    let before = partitions(&db.pool, "outbox_published").await;
    assert_eq!(upkeep.tick().await.unwrap(), Tick::Idle);
    assert_eq!(partitions(&db.pool, "outbox_published").await, before);
}

#[tokio::test]
async fn old_partitions_vanish_and_young_ones_stay() {
    let db = database().await;
    for hours in [40, 26, 22] {
        old_hour(&db.pool, hours).await;
        let middle =
            format!("SELECT date_trunc('hour', now()) - interval '{hours} h' + interval '30 min'");
        publish(&db.pool, &middle).await;
    }
    drain(&upkeep(&db)).await.unwrap();

    let left = partitions(&db.pool, "outbox_published").await;
    let old: Vec<_> = left.iter().filter(|name| name.contains("_old")).collect();
    assert_eq!(old, ["outbox_published_old22"]);
}

#[tokio::test]
async fn a_reader_that_holds_the_table_postpones_the_drop_and_nobody_waits_for_it() {
    let db = database().await;
    let upkeep = upkeep(&db);
    drain(&upkeep).await.unwrap();
    old_hour(&db.pool, 30).await;

    let mut reader = db.pool.begin().await.unwrap();
    run(&mut *reader, "SELECT count(*) FROM app.outbox_published").await;
    let write = async {
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let began = Instant::now();
            publish(&db.pool, "SELECT now()").await;
            longest = longest.max(began.elapsed());
        }
        longest
    };
    let (ticked, longest) = tokio::join!(upkeep.tick(), write);
    assert_eq!(ticked.unwrap(), Tick::Idle, "it does not hammer");
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    let left = partitions(&db.pool, "outbox_published").await;
    assert!(left.contains(&"outbox_published_old30".to_owned()));

    reader.commit().await.unwrap();
    upkeep.tick().await.unwrap();
    let left = partitions(&db.pool, "outbox_published").await;
    assert!(!left.contains(&"outbox_published_old30".to_owned()));
}

#[tokio::test]
async fn writers_lose_nothing_while_partitions_are_made_under_them() {
    let db = database().await;
    let upkeep = upkeep(&db);
    let stop = tokio_util::sync::CancellationToken::new();
    let write = async || {
        let mut written = 0;
        while !stop.is_cancelled() {
            // A writer that was routed to DEFAULT when its range was attached would fail here.
            written += publish(&db.pool, "SELECT now()").await;
            process(&db.pool, id_at(now(&db.pool).await), now(&db.pool).await).await;
        }
        written
    };
    let keep = async {
        drain(&upkeep).await.unwrap();
        stop.cancel();
    };
    let ((), one, two, three) = tokio::join!(keep, write(), write(), write());

    let written = i64::try_from(one + two + three).unwrap();
    assert_eq!(count(&db.pool, "app.outbox_published").await, written);
    assert_eq!(count(&db.pool, "app.processed_events").await, written);
    // A step that lost the race for a lock is made up for at the next tick.
    drain(&upkeep).await.unwrap();
    assert_eq!(count(&db.pool, "app.outbox_published_default").await, 0);
    assert_eq!(count(&db.pool, "app.processed_events_default").await, 0);
}

#[tokio::test]
async fn rows_in_default_move_into_the_partition_that_is_made_for_them() {
    let db = database().await;
    publish(&db.pool, "SELECT now() FROM generate_series(1, 50)").await;
    let now = now(&db.pool).await;
    let (here, fast) = (id_at(now), id_at(now + 2 * DAY));
    process(&db.pool, here, now).await;
    process(&db.pool, fast, now).await;

    drain(&upkeep(&db)).await.unwrap();

    assert_eq!(count(&db.pool, "app.outbox_published_default").await, 0);
    assert_eq!(count(&db.pool, "app.outbox_published").await, 50);
    for id in [here, fast] {
        let home = home_of(&db.pool, id).await.unwrap();
        assert!(home.starts_with("app.processed_events_p"), "{home}");
    }
}

#[tokio::test]
async fn too_many_rows_in_default_stay_there_and_the_next_partitions_are_made() {
    let db = database().await;
    publish(&db.pool, "SELECT now() FROM generate_series(1, 10001)").await;
    drain(&upkeep(&db)).await.unwrap();

    assert_eq!(
        count(&db.pool, "app.outbox_published_default").await,
        10_001
    );
    publish(&db.pool, "SELECT now() + interval '1 h'").await;
    assert_eq!(
        count(&db.pool, "app.outbox_published_default").await,
        10_001
    );

    run(
        &db.pool,
        "UPDATE app.outbox_published_default SET published_at = now() - interval '25 h'",
    )
    .await;
    drain(&upkeep(&db)).await.unwrap();
    assert_eq!(count(&db.pool, "app.outbox_published").await, 1);
}

#[tokio::test]
async fn a_large_default_partition_keeps_the_present_and_fills_no_further() {
    let db = database().await;
    run(
        &db.pool,
        "ALTER TABLE app.outbox_published_default ALTER COLUMN event_type SET STORAGE PLAIN",
    )
    .await;
    publish(&db.pool, "SELECT now() FROM generate_series(1, 8500)").await;
    run(
        &db.pool,
        "UPDATE app.outbox_published_default SET event_type = repeat('x', 4100)",
    )
    .await;

    drain(&upkeep(&db)).await.unwrap();
    // What is still to be written has a partition; what is written now has not.
    let in_default = async || count(&db.pool, "app.outbox_published_default").await;
    assert_eq!(partitions(&db.pool, "outbox_published").await.len(), 1);
    let next = r"SELECT substring(pg_get_expr(relpartbound, oid) FROM $$FROM \('([^']+)'$$)::timestamptz
         FROM pg_class WHERE relispartition AND relkind = 'r' AND relname LIKE 'outbox\_published\_p%'";
    assert_eq!(publish(&db.pool, next).await, 1);
    assert_eq!(in_default().await, 8500);
    let same = "SELECT min(published_at) FROM app.outbox_published_default";
    publish(&db.pool, same).await;
    assert_eq!(in_default().await, 8501);

    run(&db.pool, "TRUNCATE app.outbox_published_default").await;
    drain(&upkeep(&db)).await.unwrap();
    publish(&db.pool, "SELECT now()").await;
    assert_eq!(in_default().await, 0);
}

#[tokio::test]
async fn a_partition_of_old_ids_stays_while_one_of_them_was_seen_of_late() {
    let db = database().await;
    let now = now(&db.pool).await;
    old_day(&db.pool, 40).await;
    old_day(&db.pool, 41).await;
    let noon = now.replace_time(time::macros::time!(12:00));
    let (late, in_time) = (id_at(noon - 40 * DAY), id_at(noon - 41 * DAY));
    process(&db.pool, late, now - DAY).await;
    process(&db.pool, in_time, now - 40 * DAY).await;
    let upkeep = upkeep(&db);

    drain(&upkeep).await.unwrap();
    let left = partitions(&db.pool, "processed_events").await;
    let old: Vec<_> = left.iter().filter(|name| name.contains("_old")).collect();
    assert_eq!(old.len(), 1, "{left:?}");
    assert!(home_of(&db.pool, late).await.is_some());
    assert!(home_of(&db.pool, in_time).await.is_none());

    run(
        &db.pool,
        "UPDATE app.processed_events SET processed_at = now() - interval '31 days'",
    )
    .await;
    drain(&self::upkeep(&db)).await.unwrap(); // Another process: this one rests until then.
    assert!(home_of(&db.pool, late).await.is_none());
}

#[tokio::test]
async fn young_rows_of_an_old_partition_are_found_by_an_index() {
    let db = database().await;
    let now = now(&db.pool).await;
    drain(&upkeep(&db)).await.unwrap();
    for (table, column) in [
        ("processed_events", "processed_at"),
        ("barriers", "changed_at"),
    ] {
        for partition in partitions(&db.pool, table).await {
            let index = format!(
                "SELECT indexdef FROM pg_indexes WHERE schemaname = 'app'
                     AND tablename = '{partition}' AND indexdef LIKE '%USING brin ({column})%'"
            );
            assert_eq!(texts(&db.pool, &index).await.len(), 1, "{partition}");
        }
    }

    old_day(&db.pool, 40).await;
    let noon = now.replace_time(time::macros::time!(12:00)) - 40 * DAY;
    for _ in 0..100 {
        process(&db.pool, id_at(noon), noon).await;
    }
    let late = id_at(noon);
    process(&db.pool, late, now).await;
    drain(&upkeep(&db)).await.unwrap();
    assert!(home_of(&db.pool, late).await.is_some());
    eventually("the index was asked", async || {
        let asked = "SELECT sum(idx_scan)::bigint FROM pg_stat_user_indexes
             WHERE relname = 'processed_events_old40' AND indexrelname LIKE '%processed_at%'";
        let asked: Option<i64> = sqlx::query_scalar(asked).fetch_one(&db.pool).await.unwrap();
        asked.filter(|asked| *asked > 0)
    })
    .await;
}

#[tokio::test]
async fn a_partition_that_takes_too_long_is_told_of_and_keeps_no_other() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let shown = |line: &str| recorder.handle().render().contains(line);
    let db = database().await;
    old_day(&db.pool, 41).await;
    old_day(&db.pool, 40).await;
    // Longer than a statement may take, which is shorter than a lock is waited for.
    let mut holder = db.pool.begin().await.unwrap();
    let sql = "LOCK TABLE app.processed_events_old41 IN ROW EXCLUSIVE MODE";
    run(&mut *holder, sql).await;
    let upkeep = Upkeep::bare(db.pool.clone(), &schema())
        .partitioned(Partitioned::by_uuid_v7(
            "processed_events",
            "event_id",
            "processed_at",
        ))
        .unwrap()
        .statement_limit(Duration::from_millis(150));
    let old = async || {
        let left = partitions(&db.pool, "processed_events").await;
        let old = left.into_iter().filter(|name| name.contains("_old"));
        old.collect::<Vec<_>>()
    };

    eventually("the younger one is dropped", async || {
        upkeep.tick().await.unwrap();
        (old().await == ["processed_events_old41"]).then_some(())
    })
    .await;
    assert!(shown(
        "tasuki_upkeep_too_slow_total{table=\"processed_events\"}"
    ));
    let overdue = "tasuki_upkeep_overdue_seconds{table=\"processed_events\"} ";
    eventually("it is seen for how long it has been due", async || {
        upkeep.tick().await.unwrap();
        let text = recorder.handle().render();
        let seconds = text.lines().find_map(|line| line.strip_prefix(overdue));
        let seconds: f64 = seconds?.parse().unwrap();
        (seconds > 9.0 * 24.0 * 3600.0).then_some(())
    })
    .await;

    holder.rollback().await.unwrap();
    eventually("it is dropped", async || {
        upkeep.tick().await.unwrap();
        old().await.is_empty().then_some(())
    })
    .await;
    eventually("nothing is due", async || {
        upkeep.tick().await.unwrap();
        shown(&format!("{overdue}0\n")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ids_of_another_make_are_in_default_and_go_by_the_time_they_were_seen() {
    let db = database().await;
    drain(&upkeep(&db)).await.unwrap();
    let now = now(&db.pool).await;
    let (young, old) = (Uuid::from_u128(u128::MAX - 1), Uuid::from_u128(7));
    process(&db.pool, young, now - 29 * DAY).await;
    process(&db.pool, old, now - 31 * DAY).await;
    let slow = id_at(now - 2 * DAY);
    process(&db.pool, slow, now).await;

    drain(&upkeep(&db)).await.unwrap();
    let default = Some("app.processed_events_default".to_owned());
    assert_eq!(home_of(&db.pool, young).await, default);
    assert_eq!(home_of(&db.pool, slow).await, default);
    assert_eq!(home_of(&db.pool, old).await, None);
}

#[tokio::test]
async fn of_two_processes_one_works_and_the_other_is_idle() {
    let db = database().await;
    let mut other = db.pool.begin().await.unwrap();
    run(
        &mut *other,
        "SELECT pg_advisory_xact_lock(hashtextextended('tasuki upkeep app', 0))",
    )
    .await;
    let idle = upkeep(&db);
    assert_eq!(idle.tick().await.unwrap(), Tick::Idle);
    assert!(partitions(&db.pool, "outbox_published").await.is_empty());
    other.commit().await.unwrap();

    let (one, two) = (upkeep(&db), upkeep(&db));
    let (first, second) = tokio::join!(drain(&one), drain(&two));
    first.unwrap();
    second.unwrap();
    drain(&one).await.unwrap();
    assert!(partitions(&db.pool, "outbox_published").await.len() >= 25);
}

#[tokio::test]
async fn expired_rows_go_in_batches_and_one_in_use_is_left_for_later() {
    let db = database().await;
    run(
        &db.pool,
        "INSERT INTO app.idempotency_keys
             (caller, idem_key, request_hash, status, response_code, response_body, expires_at)
         SELECT 'c', n::text, '', 'completed', 200, '', now() + n * interval '1 s'
         FROM generate_series(-2500, 3600, 100) AS n",
    )
    .await;
    run(
        &db.pool,
        "INSERT INTO app.job_uniques (kind, unique_id, job_id, unique_until)
         SELECT 'k', n::text, gen_random_uuid(), now() - interval '1 s'
         FROM generate_series(1, 12345) AS n",
    )
    .await;
    let mut user = db.pool.begin().await.unwrap();
    run(
        &mut *user,
        "SELECT FROM app.idempotency_keys WHERE idem_key = '-2500' FOR UPDATE",
    )
    .await;

    let worked = drain(&upkeep(&db)).await.unwrap();
    assert!(worked >= 1, "a tick is bounded");
    assert_eq!(count(&db.pool, "app.job_uniques").await, 0);
    let expired = "app.idempotency_keys WHERE expires_at < now()";
    assert_eq!(count(&db.pool, expired).await, 1);
    assert!(count(&db.pool, "app.idempotency_keys").await > 30);

    user.commit().await.unwrap();
    drain(&upkeep(&db)).await.unwrap();
    assert_eq!(count(&db.pool, expired).await, 0);
}

#[tokio::test]
async fn dead_letters_go_a_month_after_they_were_closed_and_open_ones_never() {
    let db = database().await;
    run(
        &db.pool,
        "INSERT INTO app.dead_letters
             (letter_id, source, source_id, queue, kind, payload, error, attempt_count,
              failed_at, redriven_at, discarded_at)
         SELECT gen_random_uuid(), 'jobs', gen_random_uuid(), 'q', kind, '', 'e', 10,
                now() - failed * interval '1 day', now() - redriven * interval '1 day',
                now() - discarded * interval '1 day'
         FROM (VALUES ('open', 400, NULL, NULL), ('redriven', 40, 31, NULL),
                      ('discarded', 40, NULL, 31), ('just closed', 40, 1, NULL),
                      ('again', 50, 40, 1), ('young', 5, 4, NULL))
              AS letters (kind, failed, redriven, discarded)",
    )
    .await;
    drain(&upkeep(&db)).await.unwrap();
    let left = texts(&db.pool, "SELECT kind FROM app.dead_letters ORDER BY kind").await;
    assert_eq!(left, ["again", "just closed", "open", "young"]);
}

#[tokio::test]
async fn a_cleanup_drops_what_is_whole_deletes_the_edge_and_leaves_live_events_alone() {
    let db = database().await;
    for hours in [5, 4, 3, 2] {
        old_hour(&db.pool, hours).await;
    }
    publish(
        &db.pool,
        "SELECT now() - m * interval '1 min' FROM generate_series(0, 400) AS m",
    )
    .await;
    run(
        &db.pool,
        "INSERT INTO app.outbox_events (event_id, event_type, aggregate_key, payload, status,
                                        created_at, next_retry_at)
         SELECT gen_random_uuid(), 't', 'a:1', '', status, now() - interval '1 year', 'infinity'
         FROM unnest(ARRAY['PENDING', 'IN_FLIGHT', 'FAILED']) AS status",
    )
    .await;

    let upkeep = upkeep(&db);
    let week = upkeep.cleanup("outbox_published", 7 * DAY).await.unwrap();
    assert_eq!(
        (week.partitions, week.rows),
        (0, 0),
        "all is younger than a day"
    );

    let cleaned = upkeep.cleanup("outbox_published", 3 * HOUR).await.unwrap();
    let kept = count(&db.pool, "app.outbox_published").await;
    assert_eq!(kept, 180, "{cleaned:?}");
    // Three, if the hour has changed since they were made.
    assert!(matches!(cleaned.partitions, 2 | 3), "{cleaned:?}");
    assert!(cleaned.rows > 0 && !cleaned.postponed, "{cleaned:?}");
    let too_old = "app.outbox_published WHERE published_at < now() - interval '3 h 1 min'";
    assert_eq!(count(&db.pool, too_old).await, 0);
    assert_eq!(count(&db.pool, "app.outbox_events").await, 3);
}

#[tokio::test]
async fn a_cleanup_never_keeps_rows_for_longer_than_the_table_does() {
    let db = database().await;
    publish(&db.pool, "SELECT now() - interval '25 h'").await;
    let cleaned = upkeep(&db).cleanup("outbox_published", 7 * DAY).await;
    assert_eq!(cleaned.unwrap().rows, 1);
}

#[tokio::test]
async fn a_cleanup_says_what_it_had_to_leave() {
    let db = database().await;
    old_hour(&db.pool, 30).await;
    let mut reader = db.pool.begin().await.unwrap();
    run(&mut *reader, "SELECT count(*) FROM app.outbox_published").await;
    let cleaned = upkeep(&db).cleanup("outbox_published", DAY).await.unwrap();
    assert!(cleaned.postponed && cleaned.partitions == 0);
    drop(reader);

    let unknown = upkeep(&db).cleanup("outbox_events", DAY).await;
    assert!(matches!(unknown, Err(Error::Unknown(_))));
}

#[tokio::test]
async fn a_service_adds_its_own_tables_and_a_wrong_one_does_not_stop_the_others() {
    let db = database().await;
    run(
        &db.pool,
        "CREATE TABLE app.audit (
             audit_id uuid NOT NULL DEFAULT gen_random_uuid(),
             at timestamptz NOT NULL,
             twice text GENERATED ALWAYS AS ('x' || 'y') STORED,
             note text CHECK (note <> '')
         ) PARTITION BY RANGE (at)",
    )
    .await;
    run(
        &db.pool,
        "CREATE TABLE app.audit_default PARTITION OF app.audit DEFAULT",
    )
    .await;
    run(&db.pool, "CREATE TABLE app.codes (until timestamptz)").await;
    run(
        &db.pool,
        "INSERT INTO app.codes SELECT now() - interval '1 h'",
    )
    .await;
    run(
        &db.pool,
        "INSERT INTO app.audit (at, note) SELECT now(), 'n'",
    )
    .await;

    let audit = Partitioned::by_time("audit", "at")
        .width(7 * DAY)
        .keep(365 * DAY);
    let codes = Expiring::new("codes", "until");
    let upkeep = Upkeep::bare(db.pool.clone(), &schema())
        .partitioned(Partitioned::by_time("codes", "until"))
        .unwrap()
        .partitioned(audit)
        .unwrap()
        .expiring(codes)
        .unwrap();
    let error = upkeep.tick().await.unwrap_err();
    assert_eq!(error.to_string(), "there is no partitioned table app.codes");

    assert!(partitions(&db.pool, "audit").await.len() >= 4);
    assert_eq!(count(&db.pool, "app.audit_default").await, 0);
    assert_eq!(count(&db.pool, "app.audit WHERE twice = 'xy'").await, 1);
    assert_eq!(count(&db.pool, "app.codes").await, 0);
}

#[tokio::test]
async fn a_partition_in_the_way_is_filled_around() {
    let db = database().await;
    run(
        &db.pool,
        "DO $$ BEGIN EXECUTE format(
             'CREATE TABLE app.odd PARTITION OF app.jobs_done FOR VALUES FROM (%L) TO (MAXVALUE)',
             date_trunc('day', now()) + interval '36 h'); END $$",
    )
    .await;
    drain(&upkeep(&db)).await.unwrap();
    let made = partitions(&db.pool, "jobs_done").await;
    assert_eq!(made.iter().filter(|name| name.contains("_p")).count(), 2);
}

#[tokio::test]
async fn nothing_of_a_tick_that_was_cut_stays_behind() {
    let db = database().await;
    let upkeep = upkeep(&db);
    for millis in [1, 3, 10, 30] {
        let cut = tokio::time::timeout(Duration::from_millis(millis), upkeep.tick()).await;
        drop(cut);
    }
    // The server may still be at work for a tick that nobody waits for any more.
    eventually("the partitions are made", async || {
        drain(&upkeep).await.unwrap();
        let made = partitions(&db.pool, "outbox_published").await.len();
        (made >= 25).then_some(())
    })
    .await;
    let mut fresh = PgConnection::connect(&db.url()).await.unwrap();
    let loose: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM pg_class
         WHERE relname ~ '_p[0-9]{12}$' AND relkind = 'r' AND NOT relispartition",
    )
    .fetch_one(&mut fresh)
    .await
    .unwrap();
    assert_eq!(loose, 0);
}

/// Somebody who plans while rows move from the default partition would look for them in neither:
/// he has read which partitions there are, and waits for the default one.
#[tokio::test]
async fn rows_that_move_into_their_partition_are_never_out_of_sight() {
    let db = database().await;
    publish(&db.pool, "SELECT now() FROM generate_series(1, 3000)").await;
    let upkeep = upkeep(&db);
    let ticking = async {
        let mut ticked = upkeep.tick().await;
        while partitions(&db.pool, "outbox_published").await.is_empty() {
            ticked = upkeep.tick().await;
        }
        ticked
    };
    let (ticked, (), (), ()) = tokio::join!(
        ticking,
        read_on(&db, 3000),
        read_on(&db, 3000),
        read_on(&db, 3000)
    );
    ticked.unwrap();
    assert_eq!(count(&db.pool, "app.outbox_published_default").await, 0);
}

/// Reads over and over until there are partitions.
async fn read_on(db: &TestDb, wanted: i64) {
    let mut connection = PgConnection::connect(&db.url()).await.unwrap();
    while partitions(&db.pool, "outbox_published").await.len() < 3 {
        for _ in 0..20 {
            let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM app.outbox_published")
                .persistent(false)
                .fetch_one(&mut connection)
                .await
                .unwrap();
            assert_eq!(seen, wanted);
        }
    }
}
