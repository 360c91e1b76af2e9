//! Simulation without a database, and the check of every crash point.

use tasuki::saga::check::{Broken, Check};
use tasuki::saga::{Signal, define};

use super::*;

fn order(world: &World) -> Definition<u32> {
    define::<u32>("order", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .remote(r::<1>(world), |saga| {
            Ok(u32::try_from(saga.output::<L<0>>()?.len())?)
        })
        .pivot_local(l::<2>(world), |saga| Ok(*saga.input()))
        .remote(G::<3>(world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap()
}

#[test]
fn a_simulation_goes_by_the_script_and_by_the_rules() {
    let world = World::default();
    let order = order(&world);
    let simulate = || {
        let simulation = order.simulate(&7).unwrap();
        simulation.gives::<L<0>>(&"four".to_owned()).unwrap()
    };

    let whole = simulate().run().unwrap();
    assert_eq!(whole.state, State::Completed);
    assert_eq!(whole.calls, words("a:act b:act c:act d:act"));
    assert_eq!(whole.inputs["b"], 4);

    let declined = simulate().aborts::<R<1>>().run().unwrap();
    assert_eq!(declined.state, State::Compensated);
    assert_eq!(declined.calls, words("a:act b:act a:undo"));

    let unheard = simulate().unknown::<R<1>>().aborts::<R<1>>().run().unwrap();
    assert_eq!(unheard.calls, words("a:act b:act b:act b:undo a:undo"));

    let cancelled = simulate().cancelled_at::<L<2>>().run().unwrap();
    assert_eq!(cancelled.state, State::Compensated);
    assert_eq!(cancelled.calls, words("a:act b:act b:undo a:undo"));

    let late = simulate().is_stuck::<G<3>>().run().unwrap();
    assert_eq!(late.state, State::NeedsAttention);

    let stuck = simulate().aborts::<R<1>>().undo_is_stuck::<L<0>>();
    assert_eq!(stuck.run().unwrap().state, State::NeedsAttention);
    // No step was called.
    assert_eq!(world.log(), words(""));
}

#[test]
fn a_simulation_finds_an_input_that_can_not_be_made() {
    let world = World::default();
    let order = order(&world);
    let simulated = order.simulate(&7).unwrap().run().unwrap();
    assert_eq!(simulated.state, State::Compensated);
    let reason = simulated.reason.unwrap();
    assert!(
        reason.contains("the input of `b` can't be made"),
        "{reason}"
    );
}

/// No order has this number.
const NOBODYS: u32 = u32::MAX;

/// A participant that recognises keys: each action and each compensation counts once.
#[derive(Clone, Default)]
struct Bank {
    done: Arc<Mutex<HashMap<String, u32>>>,
    forgets: bool,
    /// It gives back, once per action, also what it never got.
    is_generous: bool,
    /// It is asked once, and not again.
    is_asked_once: bool,
}

/// Pays for the order of that number.
struct Pay(Bank);

impl Step for Pay {
    const NAME: &'static str = "pay";
    type Input = u32;
    type Output = ();
    type Failure = Fail<Trouble>;

    fn retry(&self) -> Policy {
        match self.0.is_asked_once {
            true => Policy::new(1, Backoff::list([Duration::from_millis(1)])),
            false => World::default().policy(),
        }
    }
}

impl Remote for Pay {
    async fn act(&self, order: &u32, at: &At) -> Result<(), Fail<Trouble>> {
        let mut done = self.0.done.lock().unwrap();
        let key = match self.0.forgets {
            true => format!("{}{}", at.key(), done.len()),
            false => at.key(),
        };
        done.insert(key, *order);
        Ok(())
    }
}

impl RemoteUndo for Pay {
    async fn undo(&self, order: &u32, _: Option<&()>, at: &At) -> Result<(), Again> {
        let mut done = self.0.done.lock().unwrap();
        let was_done = done.remove(&at.action_key()).is_some();
        let is_first = done.insert(at.key(), NOBODYS).is_none();
        if self.0.is_generous && is_first && !was_done {
            done.insert(format!("a gift: {}", at.key()), *order);
        }
        Ok(())
    }
}

/// Writes a row per order.
#[derive(Default)]
struct Ship {
    forgets: bool,
}

impl Step for Ship {
    const NAME: &'static str = "ship";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Ship {
    async fn act(&self, tx: &mut Tx, order: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        sqlx::query("INSERT INTO app.shipped VALUES ($1)")
            .bind(order.cast_signed())
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

impl LocalUndo for Ship {
    async fn undo(&self, tx: &mut Tx, order: &u32, (): &(), _: &At) -> Result<(), Again> {
        if self.forgets {
            return Ok(());
        }
        sqlx::query("DELETE FROM app.shipped WHERE n = $1")
            .bind(order.cast_signed())
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

/// Confirms, and tells the bank in passing, which nobody would undo.
struct Confirm(World, Option<Bank>);

impl Step for Confirm {
    const NAME: &'static str = "confirm";
    type Input = u32;
    type Output = ();
    type Failure = Fail<Trouble>;
}

impl Local for Confirm {
    async fn act(&self, _: &mut Tx, order: &u32, at: &At) -> Result<(), Fail<Trouble>> {
        self.0.next(at);
        if let Some(bank) = &self.1 {
            let mut done = bank.done.lock().unwrap();
            let key = format!("told {}", done.len());
            done.insert(key, *order);
        }
        Ok(())
    }
}

/// Somebody who says that it may be shipped.
struct Cleared;

impl Signal for Cleared {
    const NAME: &'static str = "cleared";
    type Payload = u32;
}

/// What there is of orders.
struct Books {
    bench: Bench,
    bank: Bank,
}

impl Books {
    async fn open(bank: Bank) -> Self {
        let bench = Bench::new().await;
        sqlx::query("CREATE TABLE app.shipped (n int)")
            .execute(bench.pool())
            .await
            .unwrap();
        Self { bench, bank }
    }

    fn check(&self) -> Check {
        Check::new(self.bench.pool(), &self.bench.sagas)
    }

    fn pay(&self) -> Pay {
        Pay(self.bank.clone())
    }

    async fn breaks(&self, check: &Check, definition: &Definition<u32>) -> Result<usize, Broken> {
        let left = async |order: &u32| {
            let shipped = format!("SELECT count(*) FROM app.shipped WHERE n = {order}");
            let paid = self
                .bank
                .done
                .lock()
                .unwrap()
                .values()
                .filter(|n| *n == order)
                .count();
            (self.bench.scalar(&shipped).await, paid)
        };
        check.every_step(definition, |n| n, left).await
    }
}

async fn checked(bank: Bank, calls_out: bool) -> Result<usize, Broken> {
    let told = calls_out.then(|| bank.clone());
    let books = Books::open(bank).await;
    let confirm = Confirm(books.bench.world.clone(), told);
    let definition = define::<u32>("checked", 1)
        .local(Ship::default(), |saga| Ok(*saga.input()))
        .remote(books.pay(), |saga| Ok(*saga.input()))
        .pivot_local(confirm, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    books.breaks(&books.check(), &definition).await
}

#[tokio::test]
async fn a_saga_that_recognises_its_keys_survives_every_way_to_break_it() {
    let ways = checked(Bank::default(), false).await.unwrap();
    assert_eq!(ways, 22);
}

#[tokio::test]
async fn a_saga_that_forgets_its_keys_is_found_out() {
    let bank = Bank {
        forgets: true,
        ..Bank::default()
    };
    let broken = checked(bank, false).await.unwrap_err();
    assert!(matches!(broken, Broken::Left { .. }), "{broken}");
}

#[tokio::test]
async fn a_saga_whose_step_is_tried_once_survives_every_way_to_break_it() {
    let bank = Bank {
        is_asked_once: true,
        ..Bank::default()
    };
    assert_eq!(checked(bank, false).await.unwrap(), 22);
}

#[tokio::test]
async fn a_compensation_that_gives_back_what_was_never_taken_is_found_out() {
    let bank = Bank {
        is_generous: true,
        ..Bank::default()
    };
    let broken = checked(bank, false).await.unwrap_err();
    assert!(matches!(broken, Broken::Left { .. }), "{broken}");
    let broken = broken.to_string();
    assert!(broken.contains("pay is not done, unheard"), "{broken}");
}

#[tokio::test]
async fn a_local_step_that_calls_out_is_found_out() {
    let broken = checked(Bank::default(), true).await.unwrap_err();
    assert!(matches!(broken, Broken::Left { .. }), "{broken}");
    let broken = broken.to_string();
    assert!(
        broken.contains("confirm is done as the process dies"),
        "{broken}"
    );
}

#[tokio::test]
async fn a_saga_without_a_pivot_is_broken_on_its_way_back_from_its_last_step_too() {
    let books = Books::open(Bank::default()).await;
    let definition = define::<u32>("checked", 1)
        .local(Ship::default(), |saga| Ok(*saga.input()))
        .remote(books.pay(), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let ways = books.breaks(&books.check(), &definition).await.unwrap();
    assert_eq!(ways, 18);
}

#[tokio::test]
async fn a_last_step_whose_compensation_leaves_something_is_found_out() {
    let books = Books::open(Bank::default()).await;
    let definition = define::<u32>("checked", 1)
        .remote(books.pay(), |saga| Ok(*saga.input()))
        .local(Ship { forgets: true }, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let broken = books.breaks(&books.check(), &definition).await.unwrap_err();
    assert!(matches!(broken, Broken::Left { .. }), "{broken}");
    let broken = broken.to_string();
    assert!(broken.contains("nobody wants it after ship"), "{broken}");
}

#[tokio::test]
async fn steps_side_by_side_survive_every_way_to_break_them() {
    let books = Books::open(Bank::default()).await;
    let world = &books.bench.world;
    let definition = define::<u32>("checked", 1)
        .parallel(|group| {
            group
                .remote(books.pay(), |saga| Ok(*saga.input()))
                .local(Ship::default(), |saga| Ok(*saga.input()))
                .remote(r::<1>(world), |saga| Ok(*saga.input()))
        })
        .build()
        .unwrap();
    let ways = books.breaks(&books.check(), &definition).await.unwrap();
    assert_eq!(ways, 29);
}

#[tokio::test]
async fn a_saga_that_waits_survives_every_way_to_break_it() {
    let books = Books::open(Bank::default()).await;
    let confirm = Confirm(books.bench.world.clone(), None);
    let definition = define::<u32>("checked", 1)
        .local(Ship::default(), |saga| Ok(*saga.input()))
        .wait::<Cleared>(HOUR)
        .timer("moment", Duration::from_millis(1))
        .remote(books.pay(), |saga| Ok(*saga.input()))
        .pivot_local(confirm, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let check = books.check().hears::<Cleared>(&7).unwrap();
    let ways = books.breaks(&check, &definition).await.unwrap();
    assert_eq!(ways, 29);
}
