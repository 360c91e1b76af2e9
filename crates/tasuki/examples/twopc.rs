//! Goods move from one database to another: in both or in neither, whoever dies meanwhile.
//!
//! `cargo run -p tasuki --example twopc -- postgres://localhost/app postgres://localhost/other`
//!
//! Both servers need `max_prepared_transactions` above 0.

use std::time::Duration;

use sqlx::{PgConnection, PgPool};
use tasuki::twopc::{Coordinator, Database, Decision, Listed};
use tasuki::worker::{Error, Supervisor, Worker};
use tasuki::{Clock, Schema};

async fn stock(pool: &PgPool, units: i64) -> sqlx::Result<()> {
    for sql in [
        "CREATE SCHEMA IF NOT EXISTS twopc_example",
        "DROP TABLE IF EXISTS twopc_example.stock",
        "CREATE TABLE twopc_example.stock (units bigint NOT NULL CHECK (units >= 0))",
    ] {
        sqlx::query(sql).execute(pool).await?;
    }
    sqlx::query("INSERT INTO twopc_example.stock VALUES ($1)")
        .bind(units)
        .execute(pool)
        .await?;
    Ok(())
}

async fn add(connection: &mut PgConnection, units: i64) -> sqlx::Result<()> {
    sqlx::query("UPDATE twopc_example.stock SET units = units + $1")
        .bind(units)
        .execute(connection)
        .await?;
    Ok(())
}

async fn units(pool: &PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT units FROM twopc_example.stock")
        .fetch_one(pool)
        .await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("give a database URL")?;
    let other = arguments.next().ok_or("give the URL of another database")?;
    let (pool, far) = (PgPool::connect(&url).await?, PgPool::connect(&other).await?);
    let schema = Schema::new("twopc_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    stock(&pool, 10).await?;
    stock(&far, 0).await?;

    // The log is in our own database. What we do there commits with the decision itself; only the
    // other one has to prepare.
    let depot = Database::new("depot", far.clone())?;
    let coordinator = Coordinator::new(&schema, pool.clone())
        .timeout(Duration::from_secs(2))
        .database(&depot)?;
    coordinator.check().await?;

    // In every process: whoever is alive ends what others left behind.
    let supervisor = Supervisor::new(Clock::system());
    supervisor.start(coordinator.recovery());
    supervisor.start(coordinator.sweep());

    let mut tx = coordinator.begin("restock").await?;
    add(tx.here().await?, -4).await?;
    add(tx.on(&depot).await?, 4).await?;
    let committed = tx.commit().await?;
    println!("committed: {}", committed.id);

    // More than there is: the depot has done its part, and is rolled back with us.
    let mut tx = coordinator.begin("restock").await?;
    add(tx.on(&depot).await?, 400).await?;
    if let Err(error) = add(tx.here().await?, -400).await {
        println!("refused:   {error}");
        tx.abort().await;
    }

    let mut db = pool.acquire().await?;
    let ledger = coordinator.ledger();
    for record in ledger.list(&mut db, Listed::Finished, None, 10).await? {
        let decision = record.decision.map(Decision::as_str);
        println!("log:       {} {decision:?}", record.name);
    }
    coordinator.sweep().tick().await?; // Nothing is prepared and forgotten.
    println!("here {}, depot {}", units(&pool).await?, units(&far).await?);
    let _stopped = supervisor.stop(Duration::from_secs(5)).await;
    Ok(())
}
