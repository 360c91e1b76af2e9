//! Simulation without a database, and the check of every crash point.

use tasuki::saga::check::{Broken, Check};
use tasuki::saga::define;

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

/// A participant that recognises keys: each action and each compensation counts once.
#[derive(Clone, Default)]
struct Bank {
    done: Arc<Mutex<HashMap<String, u32>>>,
    forgets: bool,
}

/// Pays for the order of that number.
struct Pay(Bank);

impl Step for Pay {
    const NAME: &'static str = "pay";
    type Input = u32;
    type Output = ();
    type Failure = Fail<Trouble>;

    fn retry(&self) -> Policy {
        World::default().policy()
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
    async fn undo(&self, _: &u32, _: Option<&()>, at: &At) -> Result<(), Again> {
        self.0.done.lock().unwrap().remove(&at.action_key());
        Ok(())
    }
}

/// Writes a row per order.
struct Ship;

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

async fn checked(bank: Bank, calls_out: bool) -> Result<usize, Broken> {
    let bench = Bench::new().await;
    sqlx::query("CREATE TABLE app.shipped (n int)")
        .execute(bench.pool())
        .await
        .unwrap();
    let told = calls_out.then(|| bank.clone());
    let confirm = Confirm(bench.world.clone(), told);
    let definition = define::<u32>("checked", 1)
        .local(Ship, |saga| Ok(*saga.input()))
        .remote(Pay(bank.clone()), |saga| Ok(*saga.input()))
        .pivot_local(confirm, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let left = async |order: &u32| {
        let shipped = format!("SELECT count(*) FROM app.shipped WHERE n = {order}");
        let paid = bank
            .done
            .lock()
            .unwrap()
            .values()
            .filter(|n| *n == order)
            .count();
        (bench.scalar(&shipped).await, paid)
    };
    let check = Check::new(bench.pool(), &bench.sagas);
    check.every_step(&definition, |n| n, left).await
}

#[tokio::test]
async fn a_saga_that_recognises_its_keys_survives_every_way_to_break_it() {
    let ways = checked(Bank::default(), false).await.unwrap();
    assert_eq!(ways, 15);
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
async fn a_local_step_that_calls_out_is_found_out() {
    let broken = checked(Bank::default(), true).await.unwrap_err();
    assert!(matches!(broken, Broken::Left { .. }), "{broken}");
    let broken = broken.to_string();
    assert!(
        broken.contains("confirm is done as the process dies"),
        "{broken}"
    );
}
