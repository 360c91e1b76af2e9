//! Three calls to other services; the third fails, and the first two are undone.
//!
//! `cargo run -p tasuki --example compensate`
//!
//! It needs no database: nothing here is durable. What must be undone even if this process dies is
//! a saga.

use std::sync::Mutex;
use std::time::Duration;

use tasuki::compensate::{Compensations, Failed};
use tasuki::retry::{Backoff, Policy};

#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("the card is declined")]
    Declined,
    #[error("the warehouse does not answer")]
    Silent,
}

/// The services that we call, and what they were asked.
#[derive(Default)]
struct World {
    calls: Mutex<Vec<String>>,
}

impl World {
    fn note(&self, call: &str) -> usize {
        let mut calls = self.calls.lock().expect("nobody panics here");
        calls.push(call.to_owned());
        calls.iter().filter(|known| *known == call).count()
    }

    async fn reserve(&self, sku: &str) -> Result<String, Trouble> {
        tokio::task::yield_now().await;
        self.note(&format!("reserve {sku}"));
        Ok(format!("hold-of-{sku}"))
    }

    /// Answers at the second attempt.
    async fn release(&self, hold: String) -> Result<(), Trouble> {
        tokio::task::yield_now().await;
        match self.note(&format!("release {hold}")) {
            1 => Err(Trouble::Silent),
            _ => Ok(()),
        }
    }

    async fn greet(&self) -> Result<(), Trouble> {
        tokio::task::yield_now().await;
        self.note("greet");
        Ok(())
    }

    async fn charge(&self, hold: &str) -> Result<u64, Trouble> {
        tokio::task::yield_now().await;
        self.note(&format!("charge for {hold}"));
        Err(Trouble::Declined)
    }
}

async fn order(world: &World) -> Result<u64, Failed<Trouble>> {
    let patience = Policy::new(3, Backoff::list([Duration::from_millis(10)]));
    let mut order = Compensations::new("order").retrying(patience);
    let sku = "sword";
    let hold = order
        .run("reserve", world.reserve(sku), |hold| world.release(hold))
        .await?;
    order.run_without_undo("greet", world.greet()).await?;
    let payment = order
        .run_without_undo("charge", world.charge(&hold))
        .await?;
    order.finish();
    Ok(payment)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = World::default();
    let failed = order(&world).await.err().ok_or("the card is declined")?;

    for call in world.calls.lock().expect("nobody panics here").iter() {
        println!("{call}");
    }
    println!("{failed}: {}", failed.error);
    println!("undone: {:?}", failed.compensated);
    assert!(failed.uncompensated.is_empty());
    Ok(())
}
