//! A standby takes the place of its primary.

use tasuki_stack::{Postgres, Replication};
use tokio::time::timeout;

use crate::support::{DEADLINE, ask, folder, run, sql, throwaway};

#[tokio::test]
async fn a_promoted_standby_has_every_commit_that_was_acknowledged_synchronously() {
    let folder = folder();
    let primary = Postgres::start(&throwaway(&folder)).await.unwrap();
    let mut connection = sql(&primary.url("postgres")).await;
    run(
        &mut connection,
        "CREATE TABLE kept (number int PRIMARY KEY)",
    )
    .await;
    let dir = folder.path().join("standby");
    let standby = primary
        .standby(dir, Replication::Synchronous)
        .await
        .unwrap();
    assert_eq!(ask(&mut connection, "SHOW synchronous_commit").await, "on");

    // The writer runs into the kill and says how far it got.
    let url = primary.url("postgres");
    let writer = async move {
        let mut connection = sql(&url).await;
        for number in 1.. {
            let insert = sqlx::query("INSERT INTO kept VALUES ($1)").bind(number);
            if insert.execute(&mut connection).await.is_err() {
                return number - 1;
            }
        }
        0
    };
    let killer = async {
        let enough = "SELECT (count(*) >= 100)::text FROM kept";
        while ask(&mut connection, enough).await != "true" {}
        primary.kill().await.unwrap();
    };
    let (acknowledged, ()) = timeout(DEADLINE, async { tokio::join!(writer, killer) })
        .await
        .unwrap();

    let promoted = standby.promote().await.unwrap();

    let mut connection = sql(&promoted.url("postgres")).await;
    let count = format!("SELECT count(*)::text FROM kept WHERE number <= {acknowledged}");
    assert_eq!(ask(&mut connection, &count).await, acknowledged.to_string());
    run(&mut connection, "INSERT INTO kept VALUES (-1)").await;
}

#[tokio::test]
async fn an_asynchronous_standby_follows_and_refuses_writes() {
    let folder = folder();
    let primary = Postgres::start(&throwaway(&folder).durable())
        .await
        .unwrap();
    let dir = folder.path().join("standby");
    let standby = primary
        .standby(dir, Replication::Asynchronous)
        .await
        .unwrap();
    run(
        &mut sql(&primary.url("postgres")).await,
        "CREATE TABLE followed ()",
    )
    .await;

    let mut connection = sql(&standby.server().url("postgres")).await;
    let found = "SELECT count(*)::text FROM pg_tables WHERE tablename = 'followed'";
    let arrives = async { while ask(&mut connection, found).await != "1" {} };
    timeout(DEADLINE, arrives).await.unwrap();
    let write = sqlx::query("CREATE TABLE refused ()")
        .execute(&mut connection)
        .await;
    assert!(write.unwrap_err().to_string().contains("read-only"));

    // A commit does not wait for it.
    standby.server().kill().await.unwrap();
    let mut connection = sql(&primary.url("postgres")).await;
    timeout(DEADLINE, run(&mut connection, "CREATE TABLE alone ()"))
        .await
        .unwrap();
}
