//! What operators see: numbers that can be trusted, at a cost that does not grow with history.

use std::time::Duration;

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use sqlx::{AssertSqlSafe, Executor, PgConnection, SqlSafeStr};
use tasuki::Clock;
use tasuki::admin::{Admin, Gauges, Place};
use tasuki::dlq::{Filter, Letters, Page};
use tasuki::worker::Worker;
use tasuki_testkit::TestDb;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::graveyard::{EVENTS, JOBS, claim, database, dead_job, event, job, kill, run, schema};

fn admin() -> Admin {
    Admin::new(&schema())
}

fn letters() -> Letters {
    Letters::new(&schema(), &[])
}

async fn connect(db: &TestDb) -> PgConnection {
    db.pool.acquire().await.unwrap().detach()
}

/// As the relay settles: live rows become published ones.
async fn publish_all(db: &mut PgConnection) {
    run(
        db,
        "WITH gone AS (DELETE FROM app.outbox_events RETURNING *)
         INSERT INTO app.outbox_published (
             event_id, seq, event_type, aggregate_key, payload, occurred_at, attempt_count,
             created_at, stream, stream_created_at, stream_seq
         )
         SELECT
             event_id, seq, event_type, aggregate_key, payload, occurred_at, attempt_count,
             created_at, 'app-events', '2026-01-01', seq
         FROM gone",
    )
    .await;
}

fn between(age: Option<Duration>, least: u64, most: u64) -> bool {
    age.is_some_and(|age| (least..most).contains(&age.as_secs()))
}

#[tokio::test]
async fn every_statement_prepares() {
    let db = database().await;
    let mut db = connect(&db).await;
    let (admin, letters) = (admin(), letters());
    for sql in admin.statements().chain(letters.statements()) {
        let statement = AssertSqlSafe(sql.to_owned()).into_sql_str();
        let prepared = db.prepare(statement).await;
        assert!(prepared.is_ok(), "{sql}\n{:?}", prepared.err());
    }
}

#[tokio::test]
async fn an_outbox_that_is_empty_can_be_told_from_one_that_was_never_used() {
    let db = database().await;
    let mut db = connect(&db).await;
    let unused = admin().outbox(&mut db).await.unwrap();
    assert_eq!((unused.pending.rows, unused.enqueued), (0, 0));
    assert_eq!(
        (unused.enqueued_last_at, unused.published_last_at),
        (None, None)
    );

    event(&mut db, None).await;
    event(&mut db, Some("order:7")).await;
    publish_all(&mut db).await;
    let empty = admin().outbox(&mut db).await.unwrap();
    assert_eq!((empty.pending.rows, empty.oldest_undelivered), (0, None));
    assert_eq!(empty.enqueued, 2);
    assert!(empty.enqueued_last_at.is_some() && empty.published_last_at >= empty.enqueued_last_at);
}

#[tokio::test]
async fn the_oldest_undelivered_event_counts_whatever_it_waits_for() {
    let db = database().await;
    let mut db = connect(&db).await;
    let aged = |id: Uuid, more: &str, minutes: u32| {
        format!(
            "UPDATE app.outbox_events SET created_at = now() - INTERVAL '{minutes} minutes' {more}
             WHERE event_id = '{id}'"
        )
    };
    let dead = event(&mut db, None).await;
    kill(&mut db, &EVENTS, "too large").await;
    run(&mut db, &aged(dead, "", 60)).await;
    assert_eq!(
        admin().outbox(&mut db).await.unwrap().oldest_undelivered,
        None
    );

    let ordered = event(&mut db, Some("order:7")).await;
    run(&mut db, &aged(ordered, "", 1)).await;
    let oldest = admin().outbox(&mut db).await.unwrap().oldest_undelivered;
    assert!(between(oldest, 60, 90), "{oldest:?}");

    let backing_off = event(&mut db, None).await;
    run(
        &mut db,
        &aged(
            backing_off,
            ", next_retry_at = now() + INTERVAL '1 hour'",
            2,
        ),
    )
    .await;
    let oldest = admin().outbox(&mut db).await.unwrap().oldest_undelivered;
    assert!(between(oldest, 120, 150), "{oldest:?}");

    let claimed = event(&mut db, None).await;
    claim(&mut db, &EVENTS).await;
    run(&mut db, &aged(claimed, "", 3)).await;
    let stats = admin().outbox(&mut db).await.unwrap();
    assert!(between(stats.oldest_undelivered, 180, 210), "{stats:?}");
    assert_eq!((stats.pending.rows, stats.due), (1, 0));
    assert_eq!((stats.in_flight, stats.expired, stats.failed), (2, 0, 1));

    run(
        &mut db,
        "UPDATE app.outbox_events SET lease_until = now() WHERE status = 'IN_FLIGHT'",
    )
    .await;
    assert_eq!(admin().outbox(&mut db).await.unwrap().expired, 2);
}

#[tokio::test]
async fn a_backlog_too_long_to_count_is_estimated_and_its_oldest_event_is_still_found() {
    let db = database().await;
    let mut db = connect(&db).await;
    let stubborn = event(&mut db, None).await;
    // In the order of due times it is the very last.
    run(
        &mut db,
        &format!(
            "UPDATE app.outbox_events SET created_at = now() - INTERVAL '10 minutes',
             next_retry_at = now() + INTERVAL '1 minute' WHERE event_id = '{stubborn}'"
        ),
    )
    .await;
    let ids: Vec<Uuid> = (0..12_000).map(|_| crate::graveyard::id()).collect();
    sqlx::query(
        "INSERT INTO app.outbox_events (event_id, event_type, aggregate_key, payload)
         SELECT unnest($1::uuid []), 'OrderPlaced', 'order:7', ''",
    )
    .bind(ids)
    .execute(&mut db)
    .await
    .unwrap();
    run(
        &mut db,
        "INSERT INTO app.jobs (job_id, queue, kind, payload)
         SELECT gen_random_uuid(), 'mail', 'Welcome', '{}' FROM generate_series(1, 4000)",
    )
    .await;
    run(&mut db, "ANALYZE app.outbox_events, app.jobs").await;

    let stats = admin().outbox(&mut db).await.unwrap();
    assert!(between(stats.oldest_undelivered, 600, 660), "{stats:?}");
    assert!(stats.pending.estimated);
    assert!((11_000..13_000).contains(&stats.pending.rows), "{stats:?}");
    let queues = admin().queues(&mut db).await.unwrap();
    assert!(queues[0].waiting.estimated);
    assert!(
        (3_600..4_400).contains(&queues[0].waiting.rows),
        "{queues:?}"
    );
}

#[tokio::test]
async fn a_queue_says_what_waits_runs_and_is_dead_and_who_holds_what() {
    let db = database().await;
    let mut db = connect(&db).await;
    dead_job(&mut db, "Welcome", "no").await;
    job(&mut db, "mail", "Welcome").await;
    job(&mut db, "mail", "Welcome").await;
    assert_eq!(claim(&mut db, &JOBS).await.len(), 2);
    let oldest = job(&mut db, "mail", "Welcome").await;
    let urgent = job(&mut db, "mail", "Welcome").await;
    let later = job(&mut db, "mail", "Welcome").await;
    job(&mut db, "push", "Hello").await;
    for (id, change) in [
        (oldest, "next_retry_at = now() - INTERVAL '90 seconds'"),
        (
            urgent,
            "priority = 0, next_retry_at = now() - INTERVAL '10 seconds'",
        ),
        (later, "next_retry_at = now() + INTERVAL '1 hour'"),
    ] {
        run(
            &mut db,
            &format!("UPDATE app.jobs SET {change} WHERE job_id = '{id}'"),
        )
        .await;
    }

    let queues = admin().queues(&mut db).await.unwrap();
    let [mail, push] = queues.as_slice() else {
        panic!("{queues:?}")
    };
    assert_eq!((mail.queue.as_str(), push.queue.as_str()), ("mail", "push"));
    assert_eq!(
        (mail.waiting.rows, mail.waiting.estimated, mail.due),
        (3, false, 2)
    );
    assert_eq!((mail.running, mail.expired, mail.dead), (2, 0, 1));
    assert!(between(mail.oldest_due, 90, 120), "{mail:?}");
    assert_eq!((push.waiting.rows, push.running, push.dead), (1, 0, 0));

    let holders = admin().leases(&mut db).await.unwrap();
    assert_eq!(holders.len(), 1);
    assert_eq!((holders[0].source.as_str(), holders[0].rows), ("jobs", 2));
    assert!(holders[0].owner.starts_with("test/"));
    run(
        &mut db,
        "UPDATE app.jobs SET lease_until = NULL WHERE status = 'PROCESSING'",
    )
    .await;
    assert_eq!(admin().leases(&mut db).await.unwrap()[0].expired, 2);
    assert_eq!(admin().queues(&mut db).await.unwrap()[0].expired, 2);
}

#[tokio::test]
async fn an_event_is_found_wherever_it_is() {
    let db = database().await;
    let mut db = connect(&db).await;
    let (admin, letters) = (admin(), letters());
    assert_eq!(admin.event(&mut db, Uuid::nil()).await.unwrap(), None);

    let id = event(&mut db, Some("order:7")).await;
    let waiting = admin.event(&mut db, id).await.unwrap().unwrap();
    assert!(matches!(waiting.place, Place::Waiting { .. }));
    assert_eq!(waiting.kind.as_deref(), Some("OrderPlaced"));
    assert_eq!(waiting.ordering_key.as_deref(), Some("order:7"));

    claim(&mut db, &EVENTS).await;
    let claimed = admin.event(&mut db, id).await.unwrap().unwrap().place;
    assert!(
        matches!(&claimed, Place::Claimed { by: Some(by), since: Some(_), until: Some(_) } if by.starts_with("test/")),
        "{claimed:?}"
    );

    publish_all(&mut db).await;
    let published = admin.event(&mut db, id).await.unwrap().unwrap().place;
    assert!(
        matches!(&published, Place::Published { stream, stream_seq: 1, .. } if stream == "app-events"),
        "{published:?}"
    );

    let id = event(&mut db, None).await;
    kill(&mut db, &EVENTS, "too large").await;
    let dead = admin.event(&mut db, id).await.unwrap().unwrap();
    assert_eq!(
        (dead.attempts, dead.last_error.as_deref()),
        (Some(1), Some("too large"))
    );
    let Place::Dead {
        letter: Some(letter),
    } = dead.place
    else {
        panic!("{dead:?}")
    };
    let acted = letters
        .discard(&mut db, &Filter::id(letter), "ann", "test data")
        .await;
    assert_eq!(acted.unwrap().letters, 1);
    let discarded = admin.event(&mut db, id).await.unwrap().unwrap();
    assert_eq!(discarded.kind.as_deref(), Some("OrderPlaced"));
    assert!(
        matches!(&discarded.place, Place::Discarded { by, reason: Some(reason), .. } if by == "ann" && reason == "test data"),
        "{discarded:?}"
    );
}

#[tokio::test]
async fn a_job_is_found_wherever_it_is() {
    let db = database().await;
    let mut db = connect(&db).await;
    let admin = admin();
    let id = job(&mut db, "mail", "Welcome").await;
    let waiting = admin.job(&mut db, id).await.unwrap().unwrap();
    assert_eq!(waiting.queue.as_deref(), Some("mail"));
    assert!(matches!(waiting.place, Place::Waiting { .. }));

    claim(&mut db, &JOBS).await;
    let claimed = admin.job(&mut db, id).await.unwrap().unwrap().place;
    assert!(matches!(claimed, Place::Claimed { .. }));

    run(
        &mut db,
        "WITH gone AS (DELETE FROM app.jobs RETURNING *)
         INSERT INTO app.jobs_done (job_id, queue, kind, payload, attempt_count, created_at)
         SELECT job_id, queue, kind, payload, attempt_count, created_at FROM gone",
    )
    .await;
    let finished = admin.job(&mut db, id).await.unwrap().unwrap().place;
    assert!(matches!(finished, Place::Finished { .. }));

    let id = dead_job(&mut db, "Welcome", "no").await;
    let dead = admin.job(&mut db, id).await.unwrap().unwrap().place;
    assert!(matches!(dead, Place::Dead { letter: Some(_) }));
    let acted = letters()
        .discard(&mut db, &Filter::open(), "ann", "no")
        .await
        .unwrap();
    assert_eq!(acted.letters, 1);
    let gone = admin.job(&mut db, id).await.unwrap().unwrap().place;
    assert!(matches!(gone, Place::Discarded { .. }));
}

/// A hundred thousand rows of everything, history in two partitions and the default one.
async fn fill(db: &mut PgConnection) {
    for sql in [
        "SET synchronous_commit = off",
        "CREATE TABLE app.outbox_published_p1 PARTITION OF app.outbox_published
            FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')",
        "CREATE TABLE app.outbox_published_p2 PARTITION OF app.outbox_published
            FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')",
        "CREATE TABLE app.outbox_published_p3 PARTITION OF app.outbox_published
            FOR VALUES FROM ('2026-01-03') TO ('2026-01-04')",
        "INSERT INTO app.outbox_published (
            event_id, seq, event_type, aggregate_key, payload, occurred_at, attempt_count,
            created_at, published_at, stream, stream_created_at, stream_seq)
         SELECT gen_random_uuid(), n, 'OrderPlaced', 'order:7', '\\x00', at, 0, at, at, 's', now(), n
         FROM generate_series(1, 100000) AS n,
         LATERAL (SELECT '2026-01-01'::timestamptz + n * INTERVAL '1.6 seconds' AS at) AS times",
        "INSERT INTO app.jobs_done (job_id, queue, kind, payload, attempt_count, created_at)
         SELECT gen_random_uuid(), 'mail', 'Welcome', '{}', 0, now() FROM generate_series(1, 100000)",
        "INSERT INTO app.outbox_events (
            event_id, event_type, aggregate_key, ordering_key, payload, status, next_retry_at)
         SELECT gen_random_uuid(), 'OrderPlaced', 'order:7', CASE WHEN n % 2 = 0 THEN 'k' || n END,
         '\\x00', CASE WHEN n % 3 = 0 THEN 'FAILED' ELSE 'PENDING' END,
         CASE WHEN n % 3 = 0 THEN 'infinity' ELSE now() END FROM generate_series(1, 100000) AS n",
        "INSERT INTO app.jobs (job_id, queue, kind, payload, status, next_retry_at)
         SELECT gen_random_uuid(), 'queue' || n % 3, 'Welcome', '{}',
         CASE WHEN n % 3 = 0 THEN 'FAILED' ELSE 'PENDING' END,
         CASE WHEN n % 3 = 0 THEN 'infinity' ELSE now() END FROM generate_series(1, 100000) AS n",
        "INSERT INTO app.dead_letters (
            letter_id, source, source_id, queue, kind, payload, error, attempt_count, redriven_at)
         SELECT gen_random_uuid(), 'jobs', gen_random_uuid(), 'mail', 'Welcome', '\\x00', 'no', 1,
         CASE WHEN n % 2 = 0 THEN now() END FROM generate_series(1, 40000) AS n",
        "VACUUM ANALYZE app.outbox_published, app.jobs_done, app.outbox_events, app.jobs, app.dead_letters",
    ] {
        run(db, sql).await;
    }
}

/// How often every table was scanned from end to end, as PostgreSQL itself has counted.
async fn scans(db: &mut PgConnection) -> Vec<(String, i64)> {
    run(db, "SELECT pg_stat_force_next_flush()").await;
    sqlx::query_as(
        "SELECT relname::text, seq_scan FROM pg_stat_all_tables
         WHERE schemaname = 'app' ORDER BY relname",
    )
    .fetch_all(db)
    .await
    .unwrap()
}

#[tokio::test]
async fn what_runs_every_few_seconds_never_scans_a_table() {
    let db = database().await;
    let mut db = connect(&db).await;
    fill(&mut db).await;
    let before = scans(&mut db).await;

    // More often than PostgreSQL needs before it plans for any value.
    for _ in 0..8 {
        admin().outbox(&mut db).await.unwrap();
        admin().queues(&mut db).await.unwrap();
        letters().open(&mut db).await.unwrap();
    }
    let page = || Page::first(50);
    let open = Filter::open();
    let listed = letters().list(&mut db, &open, &page()).await.unwrap();
    let next = page().after(listed.next.unwrap());
    letters().list(&mut db, &open, &next).await.unwrap();
    let by_id = Filter::id(listed.letters[0].id);
    letters().list(&mut db, &by_id, &page()).await.unwrap();
    assert_eq!(scans(&mut db).await, before);

    // The measure itself: a scan is noticed. And what was found at the end of the newest
    // partition is what a scan finds.
    let newest: OffsetDateTime =
        sqlx::query_scalar("SELECT max(published_at) FROM app.outbox_published")
            .fetch_one(&mut db)
            .await
            .unwrap();
    assert_ne!(scans(&mut db).await, before);
    let stats = admin().outbox(&mut db).await.unwrap();
    assert_eq!(stats.published_last_at, Some(newest));
}

#[tokio::test]
async fn the_partitions_are_listed_with_their_bounds() {
    let db = database().await;
    let mut db = connect(&db).await;
    run(
        &mut db,
        "CREATE TABLE app.jobs_done_p1 PARTITION OF app.jobs_done
         FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')",
    )
    .await;
    let partitions = admin().partitions(&mut db).await.unwrap();
    let of_jobs: Vec<_> = partitions
        .iter()
        .filter(|p| p.table == "jobs_done")
        .collect();
    assert_eq!(of_jobs.len(), 2);
    assert_eq!(
        (of_jobs[0].name.as_str(), of_jobs[0].bounds.as_str()),
        ("jobs_done_default", "DEFAULT")
    );
    assert!(of_jobs[1].bounds.contains("2026-01-01"));
    assert!(partitions.iter().any(|p| p.table == "processed_events"));
}

fn gauges(db: &TestDb, clock: Clock) -> Gauges {
    Gauges::new("test.gauges", db.pool.clone(), &schema(), &letters(), clock)
}

/// The value of a series, as a scrape shows it.
fn scraped(handle: &PrometheusHandle, series: &str) -> Option<f64> {
    let text = handle.render();
    let line = text.lines().find(|line| line.starts_with(series));
    line.and_then(|line| line.rsplit_once(' '))
        .map(|(_, value)| value.parse().unwrap())
}

#[tokio::test]
async fn sagas_are_counted_by_state_and_the_one_that_is_due_longest_is_told() {
    let db = database().await;
    let mut db = connect(&db).await;
    let none = admin().sagas(&mut db).await.unwrap();
    assert_eq!(none, Default::default());
    sqlx::query(
        "INSERT INTO app.sagas (saga_id, definition, version, state, story, status, next_retry_at,
             lease_until)
         SELECT gen_random_uuid(), 'order', 1, state, '{}', status, now() + due, now() + lease
         FROM (VALUES
             ('STARTED', 'PENDING', interval '-90 s', interval '0'),
             ('STARTED', 'PROCESSING', interval '-300 s', interval '60 s'),
             ('COMPENSATING', 'PENDING', interval '60 s', interval '0'),
             ('NEEDS_ATTENTION', 'PENDING', interval '1000 years', interval '0')
         ) AS saga (state, status, due, lease)",
    )
    .execute(&mut db)
    .await
    .unwrap();
    let some = admin().sagas(&mut db).await.unwrap();
    assert_eq!(
        (some.started, some.compensating, some.needs_attention),
        (2, 1, 1)
    );
    assert!(between(some.oldest_due, 90, 120), "{some:?}");
}

#[tokio::test]
async fn gauges_say_what_is_and_a_queue_that_is_empty_falls_to_zero() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let seen = |series: &str| scraped(&recorder.handle(), series);
    let db = database().await;
    let mut one = connect(&db).await;
    let gauges = gauges(&db, Clock::system()).every(Duration::ZERO);
    dead_job(&mut one, "Welcome", "no").await;
    job(&mut one, "mail", "Welcome").await;
    event(&mut one, None).await;
    run(
        &mut one,
        "UPDATE app.outbox_events SET created_at = now() - INTERVAL '2 minutes'",
    )
    .await;
    gauges.tick().await.unwrap();

    assert!(seen("tasuki_outbox_oldest_age_seconds{schema=\"app\"}").unwrap() >= 120.0);
    assert_eq!(seen("tasuki_outbox_pending_rows"), Some(1.0));
    assert_eq!(seen("tasuki_outbox_failed_rows"), Some(0.0));
    let waiting = "tasuki_queue_waiting_rows{schema=\"app\",queue=\"mail\"}";
    assert_eq!(seen(waiting), Some(1.0));
    assert_eq!(
        seen("tasuki_dead_letters_open_rows{schema=\"app\",source=\"jobs\"}"),
        Some(1.0)
    );
    // A source where nothing has died yet is there, with a zero.
    let events = "tasuki_dead_letters_open_rows{schema=\"app\",source=\"outbox_events\"}";
    assert_eq!(seen(events), Some(0.0));

    run(&mut one, "DELETE FROM app.jobs").await;
    publish_all(&mut one).await;
    tasuki_testkit::eventually("the gauges are read again", async || {
        gauges.tick().await.unwrap();
        (seen(waiting) == Some(0.0)).then_some(())
    })
    .await;
    assert_eq!(seen("tasuki_outbox_oldest_age_seconds"), Some(0.0));
}

#[tokio::test]
async fn a_failed_read_leaves_no_value_that_looks_healthy() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _here = metrics::set_default_local_recorder(&recorder);
    let seen = |series: &str| scraped(&recorder.handle(), series);
    let db = database().await;
    let mut one = connect(&db).await;
    job(&mut one, "mail", "Welcome").await;
    let clock = Clock::held_at(OffsetDateTime::from_unix_timestamp(1000).unwrap());
    let gauges = gauges(&db, clock.clone());
    gauges.tick().await.unwrap();
    assert_eq!(seen("tasuki_gauges_read_timestamp_seconds"), Some(1000.0));

    clock.advance(Duration::from_secs(60));
    run(&mut one, "ALTER TABLE app.jobs RENAME TO away").await;
    tasuki_testkit::eventually("a read fails", async || gauges.tick().await.err()).await;
    for series in [
        "tasuki_outbox_oldest_age_seconds",
        "tasuki_outbox_pending_rows",
        "tasuki_queue_waiting_rows",
        "tasuki_dead_letters_open_rows",
    ] {
        assert!(seen(series).unwrap().is_nan(), "{series}");
    }
    assert_eq!(seen("tasuki_gauges_read_timestamp_seconds"), Some(1000.0));

    run(&mut one, "ALTER TABLE app.away RENAME TO jobs").await;
    tasuki_testkit::eventually("a read succeeds", async || {
        gauges.tick().await.ok()?;
        (seen("tasuki_queue_waiting_rows") == Some(1.0)).then_some(())
    })
    .await;
    assert_eq!(seen("tasuki_gauges_read_timestamp_seconds"), Some(1060.0));
}
