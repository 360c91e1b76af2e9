//! When something was last published: true whatever the table went through.

use tasuki::admin::Admin;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::graveyard::{database, run, schema};

#[tokio::test]
async fn the_last_published_event_is_found_wherever_on_disk_it_is() {
    let db = database().await;
    let mut db = db.pool.acquire().await.unwrap().detach();
    let publish = |from: u32, to: u32| {
        format!(
            "INSERT INTO app.outbox_published (
                 event_id, seq, event_type, aggregate_key, payload, occurred_at, attempt_count,
                 created_at, published_at, stream, stream_created_at, stream_seq
             )
             SELECT
                 gen_random_uuid(), n, 'OrderPlaced', 'order:7', convert_to(repeat('x', 1500), 'UTF8'),
                 now(), 0, '2026-01-01Z'::timestamptz + n * INTERVAL '1 second',
                 '2026-02-01Z'::timestamptz + n * INTERVAL '1 second',
                 CASE WHEN n % 2 = 0 THEN 'a' ELSE 'b' END, '2026-01-01', n
             FROM generate_series({from}, {to}) AS n"
        )
    };
    run(&mut db, &publish(1, 1000)).await;
    run(
        &mut db,
        "DELETE FROM app.outbox_published WHERE stream_seq < 300",
    )
    .await;
    run(&mut db, "VACUUM app.outbox_published").await;
    run(&mut db, &publish(1001, 1100)).await;
    let page: i64 = sqlx::query_scalar(
        "SELECT (ctid::text::point)[0]::bigint FROM app.outbox_published WHERE stream_seq = 1100",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    assert!(page < 100, "new rows fill the room of old ones: {page}");

    let stats = Admin::new(&schema()).outbox(&mut db).await.unwrap();

    let at = |text: &str| Some(OffsetDateTime::parse(text, &Rfc3339).unwrap());
    assert_eq!(stats.published_last_at, at("2026-02-01T00:18:20Z"));
    assert_eq!(stats.enqueued_last_at, at("2026-01-01T00:18:20Z"));
}
