//! Reconciliation: nothing at rest, and whatever is wrong is found.

use futures_util::future::join_all;
use serde_json::Value;
use sqlx::AssertSqlSafe;
use sqlx::postgres::PgPoolOptions;
use tasuki_service::telemetry::{self, LogTarget};
use tasuki_shop::verify::Reconciler;
use tasuki_testkit::{eventually, eventually_within};
use tempfile::NamedTempFile;

use crate::support::{FLOWS, LIMIT, World, basket};

/// Everything that is looked for.
const CHECKS: [&str; 15] = [
    "charged_but_neither_granted_nor_refunded",
    "granted_but_not_paid",
    "undone_but_still_charged",
    "charged_another_amount",
    "sold_but_not_taken_from_stock",
    "sold_other_goods_than_ordered",
    "undone_but_still_reserved",
    "provider_differs_from_payments",
    "charged_for_no_payment",
    "charged_but_parked",
    "unfinished_and_nobody_moves_it",
    "stock_differs_from_its_moves",
    "reserved_differs_from_reservations",
    "transferred_unevenly",
    "prepared_and_left_behind",
];

/// How many of a kind were found.
fn count(seen: &Value, check: &str) -> i64 {
    let mut counts = seen["checks"].as_array().unwrap().iter();
    let count = counts.find(|it| it["check"] == check).unwrap();
    count["count"].as_i64().unwrap()
}

#[tokio::test]
async fn nothing_is_found_at_rest_after_orders_of_every_kind() {
    let world = World::start().await;
    let methods = [
        "card",
        "test-decline",
        "test-late",
        "test-timeout",
        "test-duplicate",
    ];
    world.sell("sword", 100, 4).await;
    let orders = (0..20_usize).map(|number| {
        let (world, method) = (&world, methods[number % methods.len()]);
        let flow = FLOWS[number % 2];
        async move {
            let user = format!("u{}", number % 7);
            let order = world.order(&basket(&user, &["sword"], method, flow)).await;
            world.ended(&order).await
        }
    });
    join_all(orders).await;
    let seen = world.mismatches().await;
    assert_eq!(
        (seen["total"].as_i64(), seen["unfinished"].as_i64()),
        (Some(0), Some(0)),
        "{seen}"
    );
    let checks = seen["checks"].as_array().unwrap().iter();
    let checks: Vec<_> = checks.map(|it| it["check"].as_str().unwrap()).collect();
    assert_eq!(checks, CHECKS);
}

/// A check, what makes it find something, and what puts that right.
type Plant = (&'static str, String, String);

/// `column` of `table`, for the rows of `order`.
fn plant(check: &'static str, order: &str, table: &str, wrong: &str, right: &str) -> Plant {
    let set = |to: &str| format!("UPDATE shop.{table} SET {to} WHERE order_id = '{order}'");
    (check, set(wrong), set(right))
}

fn in_orders(done: &str, undone: &str) -> Vec<Plant> {
    let other = "charged_another_amount";
    vec![
        plant(
            "charged_but_neither_granted_nor_refunded",
            done,
            "order_items",
            "grant_state = 'REVOKED'",
            "grant_state = 'GRANTED'",
        ),
        plant(
            "granted_but_not_paid",
            undone,
            "order_items",
            "grant_state = 'GRANTED'",
            "grant_state = NULL",
        ),
        plant(
            "undone_but_still_charged",
            undone,
            "payments",
            "state = 'PENDING'",
            "state = 'FAILED'",
        ),
        plant(other, done, "payments", "amount = 101", "amount = 100"),
        plant(
            other,
            done,
            "payments",
            "currency = 'USD'",
            "currency = 'EUR'",
        ),
        plant(
            "charged_but_parked",
            done,
            "orders",
            "state = 'NEEDS_ATTENTION', ended_at = NULL",
            "state = 'COMPLETED', ended_at = now()",
        ),
        plant(
            "unfinished_and_nobody_moves_it",
            done,
            "orders",
            "state = 'PAYMENT_PENDING', ended_at = NULL, updated_at = now() - interval '6 minutes'",
            "state = 'COMPLETED', ended_at = now()",
        ),
    ]
}

fn in_goods(done: &str, undone: &str) -> Vec<Plant> {
    let other = "sold_other_goods_than_ordered";
    let items = format!(
        "shop.reservation_items WHERE reservation_id IN (
            SELECT reservation_id FROM shop.orders WHERE order_id = '{done}'
         )"
    );
    let (table, which) = items.split_once(" WHERE ").unwrap();
    let set = |to: &str| format!("UPDATE {table} SET quantity = {to} WHERE {which}");
    vec![
        plant(
            "sold_but_not_taken_from_stock",
            done,
            "reservations",
            "state = 'RELEASED'",
            "state = 'COMMITTED'",
        ),
        (other, set("2"), set("1")),
        (
            other,
            format!("DELETE FROM {items}"),
            format!(
                "INSERT INTO shop.reservation_items
                 SELECT reservation_id, 'sword', 1 FROM shop.orders WHERE order_id = '{done}'"
            ),
        ),
        (
            "undone_but_still_reserved",
            format!(
                "INSERT INTO shop.reservations (reservation_id, order_id, state, expires_at)
                 SELECT reservation_id, order_id, 'COMMITTED', now() FROM shop.orders
                 WHERE order_id = '{undone}';
                 INSERT INTO shop.reservation_items
                 SELECT reservation_id, 'sword', 1 FROM shop.orders WHERE order_id = '{undone}'"
            ),
            format!(
                "DELETE FROM shop.reservation_items WHERE reservation_id IN (
                    SELECT reservation_id FROM shop.orders WHERE order_id = '{undone}'
                 );
                 DELETE FROM shop.reservations WHERE order_id = '{undone}'"
            ),
        ),
        (
            "stock_differs_from_its_moves",
            "UPDATE shop.stock SET on_hand = on_hand + 1".to_owned(),
            "UPDATE shop.stock SET on_hand = on_hand - 1".to_owned(),
        ),
        (
            "reserved_differs_from_reservations",
            "UPDATE shop.stock SET reserved = reserved + 1".to_owned(),
            "UPDATE shop.stock SET reserved = reserved - 1".to_owned(),
        ),
        (
            "transferred_unevenly",
            "INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind, cause, moved_at)
             VALUES ('sword', -1, 'TRANSFER', gen_random_uuid(), now() - interval '6 minutes')"
                .to_owned(),
            "DELETE FROM shop.stock_moves WHERE kind = 'TRANSFER'".to_owned(),
        ),
    ]
}

/// What the provider says.
fn in_charges() -> Vec<Plant> {
    let differs = "provider_differs_from_payments";
    // Of the order that is done.
    let set = |to: &str| {
        format!("UPDATE shop.simulated_charges SET {to} WHERE payment_method = 'test-duplicate'")
    };
    let change = |wrong: &str, right: &str| (differs, set(wrong), set(right));
    vec![
        change("refunded = amount", "refunded = 0"),
        change("outcome = 'DECLINED'", "outcome = 'APPROVED'"),
        change("outcome = 'VOIDED'", "outcome = 'APPROVED'"),
        change("currency = 'USD'", "currency = 'EUR'"),
        change(
            "idem_key = 'x' || idem_key",
            "idem_key = substr(idem_key, 2)",
        ),
        (
            "charged_for_no_payment",
            "INSERT INTO shop.simulated_charges
             VALUES ('nobody:charge', 'APPROVED', 5, 'EUR', 'card')"
                .to_owned(),
            "DELETE FROM shop.simulated_charges WHERE idem_key = 'nobody:charge'".to_owned(),
        ),
    ]
}

#[tokio::test]
async fn every_kind_of_mismatch_is_found_and_named() {
    let world = World::start().await;
    world.sell("sword", 100, 9).await;
    let done = basket("ada", &["sword"], "test-duplicate", "choreographed");
    let done = world.order(&done).await;
    world.ended(&done).await;
    let undone = basket("bob", &["sword"], "test-decline", "orchestrated");
    let undone = world.order(&undone).await;
    world.ended(&undone).await;
    world.matches().await;
    let plants = [
        in_orders(&done, &undone),
        in_goods(&done, &undone),
        in_charges(),
    ];
    let plants = plants.concat();
    for check in CHECKS {
        // This one can't be planted with one statement.
        let is_planted = plants.iter().any(|(planted, ..)| *planted == check);
        assert!(is_planted || check == "prepared_and_left_behind", "{check}");
    }
    for (check, wrong, right) in plants {
        world.execute(&*wrong).await;
        let seen = world.mismatches().await;
        assert_eq!(count(&seen, check), 1, "{wrong}: {seen}");
        let mut named = seen["found"].as_array().unwrap().iter();
        assert!(named.any(|it| it["check"] == check), "{check}: {seen}");
        let all = Reconciler::new(world.env.db.pool.clone());
        let all = all.with_overflow(Some(world.overflow.pool.clone()));
        let all = all.look().await.unwrap();
        let all = all.checks.iter().find(|it| it.check == check).unwrap();
        assert_eq!(all.count, 1, "{wrong}");
        world.execute(right).await;
        world.matches().await;
    }
}

#[tokio::test]
async fn nothing_moves_that_is_on_no_shelf() {
    let world = World::start().await;
    world.sell("sword", 100, 9).await;
    for sql in [
        "INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind) VALUES ('axe', 1, 'RECEIPT')",
        "DELETE FROM shop.stock",
    ] {
        let refused = sqlx::raw_sql(sql).execute(&world.env.db.pool).await;
        let refused = refused.unwrap_err();
        let refused = refused.as_database_error().unwrap();
        assert!(refused.is_foreign_key_violation(), "{sql}");
    }
}

#[tokio::test]
async fn what_is_wrong_in_the_other_warehouse_is_found() {
    let world = World::start().await;
    world.sell("sword", 100, 9).await;
    let body = serde_json::json!({
        "stock_keeping_unit": "sword", "quantity": 4, "from": "main", "to": "overflow",
    });
    let moved = world.post("/v1/stock/transfers", "t", &body).await;
    assert_eq!(moved.status, 200, "{}", moved.text);
    let there = async |sql: &'static str| {
        let done = sqlx::raw_sql(AssertSqlSafe(sql));
        done.execute(&world.overflow.pool).await.unwrap();
    };
    let long_ago = "UPDATE shop.stock_moves SET moved_at = moved_at - interval '6 minutes'";
    world.execute(long_ago).await;
    there(long_ago).await;
    world.matches().await;

    there("UPDATE shop.stock SET on_hand = on_hand + 1").await;
    let seen = world.mismatches().await;
    assert_eq!(count(&seen, "stock_differs_from_its_moves"), 1, "{seen}");
    assert_eq!(seen["found"][0]["subject"], "overflow: sword");
    there("UPDATE shop.stock SET on_hand = on_hand - 1").await;
    world.matches().await;

    // One of the two has forgotten.
    there("DELETE FROM shop.stock_moves; UPDATE shop.stock SET on_hand = 0").await;
    let seen = world.mismatches().await;
    assert_eq!(seen["total"], 1, "{seen}");
    assert_eq!(count(&seen, "transferred_unevenly"), 1, "{seen}");
    let transfer = moved.json()["transfer_id"].as_str().unwrap().to_owned();
    let subject = format!("{transfer} sword");
    assert_eq!(seen["found"][0]["subject"], subject.as_str());
}

#[tokio::test]
async fn a_transaction_that_stays_prepared_is_found() {
    // Nobody works here: nobody ends it.
    let world = World::taking_orders_only().await;
    let books = Reconciler::new(world.env.db.pool.clone())
        .with_overflow(Some(world.overflow.pool.clone()))
        .quiet(std::time::Duration::ZERO);
    assert_eq!(books.look().await.unwrap().total, 0);
    let gid = "tasuki:shop:0000000000000000:00000000000000000000000000000000:overflow";
    let mut connection = world.overflow.pool.acquire().await.unwrap();
    let prepare = format!("BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '{gid}'");
    sqlx::raw_sql(AssertSqlSafe(prepare))
        .execute(&mut *connection)
        .await
        .unwrap();
    let seen = books.look().await.unwrap();
    assert_eq!(seen.total, 1, "{seen:?}");
    assert_eq!(seen.found[0].check, "prepared_and_left_behind");
    assert_eq!(seen.found[0].subject, format!("overflow: {gid}"));
    sqlx::raw_sql(AssertSqlSafe(format!("ROLLBACK PREPARED '{gid}'")))
        .execute(&mut *connection)
        .await
        .unwrap();
    assert_eq!(books.look().await.unwrap().total, 0);
}

/// An order that is done, and whose goods are then said to be taken back.
async fn torn(world: &World) -> String {
    world.sell("sword", 100, 9).await;
    let order = basket("ada", &["sword"], "card", "orchestrated");
    let order = world.order(&order).await;
    world.ended(&order).await;
    let sql = "UPDATE shop.order_items SET grant_state = 'REVOKED'";
    world.execute(sql).await;
    order
}

const AN_HOUR_AGO: &str = "UPDATE shop.orders SET ended_at = ended_at - interval '1 hour'";

#[tokio::test]
async fn what_has_matched_is_not_read_again_until_somebody_asks_for_all() {
    let world = World::with(|config| {
        let key = "shop.retention.reconcile-interval";
        config.with_value(key, "24h").unwrap()
    });
    let world = world.await;
    // Compared once, and not again here.
    eventually("it is compared", async || {
        let sql = "SELECT count(*) FROM shop.reconciliation WHERE up_to IS NOT NULL";
        (world.count(sql).await == 1).then_some(())
    })
    .await;
    torn(&world).await;
    assert_eq!(world.mismatches().await["total"], 1, "what is new is read");
    world.execute(AN_HOUR_AGO).await;
    world.matches().await;
    let all = Reconciler::new(world.env.db.pool.clone()).look().await;
    assert_eq!(all.unwrap().total, 1);
}

#[tokio::test]
async fn what_does_not_match_is_kept_in_view_until_it_is_put_right() {
    let world = World::with(|config| {
        let key = "shop.retention.reconcile-interval";
        config.with_value(key, "1s").unwrap()
    });
    let world = world.await;
    let order = torn(&world).await;
    let open = format!("SELECT count(*) FROM shop.mismatches WHERE order_id = '{order}'");
    eventually("it is found", async || {
        (world.count(&open).await == 1).then_some(())
    })
    .await;
    world.execute(AN_HOUR_AGO).await;
    let compared = "SELECT count(*) FROM shop.reconciliation WHERE compared_at > (
        SELECT max(found_at) + interval '2 seconds' FROM shop.mismatches
    )";
    eventually("it is compared again", async || {
        (world.count(compared).await == 1).then_some(())
    })
    .await;
    assert_eq!(world.count(&open).await, 1, "old, and not forgotten");
    assert_eq!(world.mismatches().await["total"], 1);
    let sql = "UPDATE shop.order_items SET grant_state = 'GRANTED'";
    world.execute(sql).await;
    eventually("it is gone", async || {
        (world.count(&open).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn old_moves_are_added_up_once_and_for_all() {
    let world = World::with(|config| {
        let key = "shop.retention.reconcile-interval";
        config.with_value(key, "1s").unwrap()
    });
    let world = world.await;
    world.sell("sword", 100, 9).await;
    let older = "UPDATE shop.stock_moves SET moved_at = moved_at - interval '2 hours';
                 UPDATE shop.stock_sums SET up_to = up_to - interval '2 hours'";
    world.execute(older).await;
    let sum = "SELECT coalesce(sum(quantity), 0)::bigint FROM shop.stock_sums";
    eventually("they are added up", async || {
        (world.count(sum).await == 9).then_some(())
    })
    .await;
    world.matches().await;
    // They are not read any more, unless somebody asks for all.
    world
        .execute("UPDATE shop.stock_moves SET quantity = 8")
        .await;
    world.matches().await;
    let all = Reconciler::new(world.env.db.pool.clone()).look().await;
    assert_eq!(all.unwrap().total, 1);
    // What comes is added to that.
    world
        .execute("UPDATE shop.stock_moves SET quantity = 9")
        .await;
    world.receive("sword", 3).await;
    world.matches().await;
    world.execute(older).await;
    eventually("they are added up", async || {
        (world.count(sum).await == 12).then_some(())
    })
    .await;
    world.matches().await;
}

/// Makes the comparison begin anew, with moves of which each takes its time to be read.
async fn slow_history(world: &World, moves: i64) {
    world
        .execute(format!(
            "UPDATE shop.reconciliation SET up_to = NULL, compared_at = NULL;
             DELETE FROM shop.stock_sums;
             INSERT INTO shop.stock (stock_keeping_unit, on_hand)
             SELECT 'sku-' || n % 3, {moves} / 3 FROM generate_series(1, 3) AS n;
             INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind, moved_at)
             SELECT 'sku-' || n % 3, 1, 'RECEIPT', now() - interval '1 day'
             FROM generate_series(1, {moves}) AS n;
             {SLOW}"
        ))
        .await;
}

/// Each move takes 50 ms to be read.
const SLOW: &str = "ALTER TABLE shop.stock_moves RENAME TO moves;
    CREATE FUNCTION shop.slowly() RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_sleep(0.05); RETURN TRUE; END';
    CREATE VIEW shop.stock_moves AS SELECT * FROM shop.moves WHERE shop.slowly()";

const COMPARED: &str = "SELECT count(*) FROM shop.reconciliation WHERE up_to IS NOT NULL";

#[tokio::test]
async fn a_history_that_takes_long_to_read_is_compared_all_the_same() {
    let world = World::with(|config| {
        let often = config.with_value("shop.retention.reconcile-interval", "1s");
        let hasty = often
            .unwrap()
            .with_value("database.statement-timeout", "2s");
        hasty.unwrap()
    });
    let world = world.await;
    // To read all of it takes longer than a statement may.
    slow_history(&world, 90).await;
    // It may have been compared before, when there was none.
    let sum = "SELECT coalesce(sum(quantity), 0)::bigint FROM shop.stock_sums";
    eventually_within(LIMIT, "it is added up", async || {
        (world.count(sum).await == 90).then_some(())
    })
    .await;
    eventually_within(LIMIT, "it is compared", async || {
        (world.count(COMPARED).await == 1).then_some(())
    })
    .await;
    world.matches().await;
}

#[tokio::test]
async fn what_was_prepared_long_ago_is_added_up_when_it_is_committed() {
    let world = World::with(|config| {
        let key = "shop.retention.reconcile-interval";
        config.with_value(key, "1s").unwrap()
    });
    let world = world.await;
    for sku in ["sword", "shield"] {
        world.sell(sku, 100, 9).await;
    }
    let gid = format!("test:{}", world.env.db.name());
    let mut connection = world.env.db.pool.acquire().await.unwrap();
    let mut run = async |sql: String| {
        let done = sqlx::raw_sql(AssertSqlSafe(sql));
        done.execute(&mut *connection).await.unwrap();
    };
    run(format!(
        "BEGIN;
         UPDATE shop.stock SET on_hand = on_hand + 3 WHERE stock_keeping_unit = 'sword';
         INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind, moved_at)
         VALUES ('sword', 3, 'RECEIPT', now() - interval '90 minutes');
         PREPARE TRANSACTION '{gid}'"
    ))
    .await;
    world
        .execute("UPDATE shop.stock_moves SET moved_at = now() - interval '2 hours'")
        .await;
    let sum = "SELECT coalesce(sum(quantity), 0)::bigint FROM shop.stock_sums";
    // What nobody holds is added up beside it.
    eventually("what was settled is added up", async || {
        (world.count(sum).await >= 9).then_some(())
    })
    .await;
    world.matches().await;
    run(format!("COMMIT PREPARED '{gid}'")).await;
    world.matches().await;
    eventually("all of it is added up", async || {
        (world.count(sum).await == 21).then_some(())
    })
    .await;
    world.matches().await;
    let all = Reconciler::new(world.env.db.pool.clone()).look().await;
    assert_eq!(all.unwrap().total, 0);
}

#[tokio::test]
async fn one_warehouse_may_wait_while_the_other_is_read() {
    let world = World::taking_orders_only().await;
    let there = format!(
        "INSERT INTO shop.stock (stock_keeping_unit, on_hand) VALUES ('sword', 20);
         INSERT INTO shop.stock_moves (stock_keeping_unit, quantity, kind)
         SELECT 'sword', 1, 'RECEIPT' FROM generate_series(1, 20);
         {SLOW}"
    );
    sqlx::raw_sql(AssertSqlSafe(there))
        .execute(&world.overflow.pool)
        .await
        .unwrap();
    let impatient = (*world.env.db.pool.connect_options())
        .clone()
        .options([("idle_in_transaction_session_timeout", "200ms")]);
    let impatient = PgPoolOptions::new().connect_lazy_with(impatient);
    let books = Reconciler::new(impatient).with_overflow(Some(world.overflow.pool.clone()));
    assert_eq!(books.look().await.unwrap().total, 0);
}

#[tokio::test]
async fn what_is_wrong_here_is_told_while_the_other_warehouse_is_away() {
    let world = World::with(|config| {
        let key = "shop.retention.reconcile-interval";
        config.with_value(key, "1s").unwrap()
    });
    let world = world.await;
    let log = NamedTempFile::new().unwrap();
    let settings = world.env.common().unwrap().telemetry;
    let target = LogTarget::File(log.path().to_owned());
    let _telemetry = telemetry::init(&settings, &target, "test".to_owned()).unwrap();
    sqlx::raw_sql("ALTER TABLE shop.stock RENAME TO elsewhere")
        .execute(&world.overflow.pool)
        .await
        .unwrap();
    let order = torn(&world).await;
    eventually("it is told", async || {
        let log = std::fs::read_to_string(log.path()).unwrap();
        let mut lines = log.lines();
        let told = |line: &str| line.contains("do not match") && line.contains(&order);
        lines.any(told).then_some(())
    })
    .await;
}
