//! A participant of a saga: an action that comes after its compensation, and one that comes twice.
//!
//! `cargo run -p tasuki --example barrier -- postgres://localhost/example`

use sqlx::{PgConnection, PgPool};
use tasuki::Schema;
use tasuki::barrier::{Barrier, Key, LockError, Locks, Passage, Phase};
use tasuki::worker::Error;
use uuid::Uuid;

/// An account from which sagas take money.
struct Account {
    pool: PgPool,
    barrier: Barrier,
    locks: Locks,
}

impl Account {
    /// Takes 30, once, and not if the saga has given up meanwhile.
    async fn charge(&self, saga: Uuid) -> Result<Passage, Error> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let key = Key::new(saga, "charge");
        let passage = self.barrier.act(&mut tx, &key, Phase::Action).await?;
        if passage.is_fresh() {
            // Until it is done with it, no other saga may touch the account.
            self.locks.take(&mut tx, "account:ada", saga).await?;
            add(&mut tx, -30).await?;
        }
        tx.commit().await?;
        Ok(passage)
    }

    /// Gives back what was taken, if it was. By the difference: others may have changed the rest.
    async fn refund(&self, saga: Uuid) -> Result<Passage, Error> {
        let mut tx = tasuki::begin(&self.pool).await?;
        let key = Key::new(saga, "charge");
        let passage = self.barrier.act(&mut tx, &key, Phase::Compensation).await?;
        if passage.is_fresh() {
            add(&mut tx, 30).await?;
            self.locks.release(&mut tx, "account:ada", saga).await?;
        }
        tx.commit().await?;
        Ok(passage)
    }
}

async fn add(tx: &mut PgConnection, amount: i64) -> Result<(), Error> {
    sqlx::query("UPDATE barrier_example.accounts SET balance = balance + $1")
        .bind(amount)
        .execute(tx)
        .await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("give a database URL")?;
    let pool = PgPool::connect(&url).await?;
    let schema = Schema::new("barrier_example")?;
    tasuki::migrate(&pool, schema.as_str()).await?;
    for sql in [
        "DROP TABLE IF EXISTS barrier_example.accounts",
        "CREATE TABLE barrier_example.accounts (balance bigint NOT NULL)",
        "INSERT INTO barrier_example.accounts VALUES (100)",
    ] {
        sqlx::query(sql).execute(&pool).await?;
    }
    let account = Account {
        pool: pool.clone(),
        barrier: Barrier::new(&schema),
        locks: Locks::new(&schema),
    };

    // The charge got stuck on its way. The saga gave up, and its refund was quicker.
    let late = Uuid::now_v7();
    println!("refund: {:?}", account.refund(late).await?);
    println!("charge: {:?}", account.charge(late).await?);

    // Everything twice.
    let saga = Uuid::now_v7();
    assert_eq!(account.charge(saga).await?, Passage::Fresh);
    assert_eq!(account.charge(saga).await?, Passage::Repeated);

    // While one saga is at it, another is told so, and by whom.
    let refused = account.charge(Uuid::now_v7()).await;
    let refused = refused.err().ok_or("the account is held")?;
    assert!(matches!(refused.downcast_ref(), Some(LockError::Held(_))));
    println!("another saga: {refused}");

    assert_eq!(account.refund(saga).await?, Passage::Fresh);
    assert_eq!(account.refund(saga).await?, Passage::Repeated);

    let balance: i64 = sqlx::query_scalar("SELECT balance FROM barrier_example.accounts")
        .fetch_one(&pool)
        .await?;
    println!("balance: {balance}");
    Ok(())
}
