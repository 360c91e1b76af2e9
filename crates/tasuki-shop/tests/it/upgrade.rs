//! The release before this one: what it has left is taken over, and its processes run on beside ours.

use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, PgPool};
use tasuki::Schema;
use tasuki::migrate::Plan;
use tasuki_testkit::TestDb;

/// Takes orders as the release before does.
async fn orders(pool: &PgPool, state: &str, many: i64) {
    let sql = format!(
        "INSERT INTO shop.orders (
            order_id, user_id, flow, state, amount, currency, payment_method, payment_id,
            reservation_id, updated_at
         )
         SELECT
            gen_random_uuid(), 'ada', 'choreographed', '{state}', 1, 'EUR', 'card',
            gen_random_uuid(), gen_random_uuid(), now() - interval '1 day'
         FROM generate_series(1, {many})"
    );
    execute(pool, sql).await;
}

async fn execute(pool: &PgPool, sql: impl Into<String>) {
    let sql = AssertSqlSafe(sql.into());
    sqlx::raw_sql(sql).execute(pool).await.unwrap();
}

async fn count(pool: &PgPool, which: &str) -> i64 {
    let sql = format!("SELECT count(*) FROM shop.orders WHERE {which}");
    let count = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool);
    count.await.unwrap()
}

/// What the first `steps` migrations make.
fn plan(steps: usize) -> Plan {
    let all = sqlx::migrate!();
    let some = all.iter().take(steps).cloned().collect();
    let mut some = Migrator::with_migrations(some);
    some.dangerous_set_table_name(all.table_name);
    some.create_schema("shop");
    Plan::fixed(&Schema::new("shop").unwrap(), some)
}

/// How the release before ends an order.
const END: &str = "UPDATE shop.orders
    SET state = 'COMPLETED', version = version + 1, updated_at = clock_timestamp()
    WHERE state NOT IN ('COMPLETED', 'COMPENSATED')";

#[tokio::test]
async fn every_end_of_an_order_has_a_time_whichever_release_has_ended_it() {
    let db = TestDb::new(&[plan(1)]).await;
    // More than are dated at a time.
    for (state, many) in [("COMPLETED", 7000), ("COMPENSATED", 5000), ("STARTED", 3)] {
        orders(&db.pool, state, many).await;
    }
    let mut connection = db.pool.acquire().await.unwrap().detach();
    plan(usize::MAX).run(&mut connection).await.unwrap();
    assert_eq!(count(&db.pool, "ended_at = updated_at").await, 12_000);
    assert_eq!(count(&db.pool, "ended_at IS NULL").await, 3);

    // Beside this release.
    orders(&db.pool, "STARTED", 2).await;
    execute(&db.pool, END).await;
    assert_eq!(count(&db.pool, "ended_at IS NULL").await, 0);
    assert_eq!(count(&db.pool, "ended_at = updated_at").await, 12_005);
    let parked = "UPDATE shop.orders SET state = 'NEEDS_ATTENTION'
                  WHERE order_id = (SELECT order_id FROM shop.orders LIMIT 1)";
    execute(&db.pool, parked).await;
    let parked = "state = 'NEEDS_ATTENTION' AND ended_at IS NULL";
    assert_eq!(count(&db.pool, parked).await, 1);
}

#[tokio::test]
async fn the_release_before_takes_and_ends_orders_and_moves_goods_at_every_step_of_the_upgrade() {
    let db = TestDb::new(&[plan(1)]).await;
    orders(&db.pool, "STARTED", 1).await;
    let all = sqlx::migrate!();
    let last = all.iter().count();
    for steps in 2..=last {
        let mut connection = db.pool.acquire().await.unwrap().detach();
        plan(steps).run(&mut connection).await.unwrap();
        // It takes and ends orders, and moves goods, at every step.
        orders(&db.pool, "STARTED", 1).await;
        execute(&db.pool, END).await;
        let sku = format!("sku-{steps}");
        execute(
            &db.pool,
            format!(
                "WITH moved AS (
                    INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind)
                    VALUES ('{sku}', 2, 'RECEIPT')
                 )
                 INSERT INTO shop.stock AS held (stock_keeping_unit, on_hand)
                 VALUES ('{sku}', 2)
                 ON CONFLICT (stock_keeping_unit) DO UPDATE
                 SET on_hand = held.on_hand + excluded.on_hand"
            ),
        )
        .await;
    }
    assert_eq!(count(&db.pool, "ended_at IS NULL").await, 0);
}
