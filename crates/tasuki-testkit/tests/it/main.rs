//! The test kit itself: isolation, clean-up, and what a failed test leaves behind.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail the test")]

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::PgPool;
use tasuki::Schema;
use tasuki::migrate::{Plan, Step};
use tasuki_testkit::{Servers, TestDb, eventually_within};

fn plan() -> Plan {
    let step = Step {
        version: 1,
        description: "things",
        sql: "CREATE TABLE {schema}.things (id int PRIMARY KEY);",
    };
    Plan::rendered("kit", &Schema::new("kit").unwrap(), &[step])
}

async fn exists(name: &str) -> bool {
    let server = PgPool::connect(&Servers::get().await.database)
        .await
        .unwrap();
    sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)")
        .bind(name)
        .fetch_one(&server)
        .await
        .unwrap()
}

#[tokio::test]
async fn tests_that_start_at_once_get_a_migrated_database_each() {
    let plans = [plan()];
    let databases = futures_util::future::join_all((0..4).map(|_| TestDb::new(&plans))).await;
    for (id, database) in (0..).zip(&databases) {
        sqlx::query("INSERT INTO kit.things VALUES ($1)")
            .bind(id)
            .execute(&database.pool)
            .await
            .unwrap();
    }
    for database in &databases {
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM kit.things")
            .fetch_one(&database.pool)
            .await
            .unwrap();
        assert_eq!(rows, 1);
    }
}

#[tokio::test]
async fn a_database_goes_with_its_test_even_while_it_is_in_use() {
    let database = TestDb::new(&[plan()]).await;
    let name = database.name().to_owned();
    let _in_use = database.pool.acquire().await.unwrap();
    assert!(exists(&name).await);
    drop(database);
    assert!(!exists(&name).await);
}

#[tokio::test]
async fn a_failed_test_keeps_its_database() {
    let mut name = String::new();
    let failed = AssertUnwindSafe(async {
        let database = TestDb::new(&[plan()]).await;
        database.name().clone_into(&mut name);
        assert_eq!(1 + 1, 3, "on purpose");
    });
    assert!(failed.catch_unwind().await.is_err());
    assert!(exists(&name).await);
}

#[tokio::test]
async fn a_wait_in_vain_says_what_was_waited_for() {
    let waiting = eventually_within(Duration::from_millis(20), "pigs fly", async || None::<()>);
    let panic = AssertUnwindSafe(waiting).catch_unwind().await.unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("until pigs fly"), "{message}");
}
