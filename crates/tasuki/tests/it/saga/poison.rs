//! Sagas that can't go on for a reason of their own: they end or are parked, and harm no other.

use super::*;

/// Writes a row that the database refuses only as the transaction commits, for odd numbers.
struct Promise(World);

impl Step for Promise {
    const NAME: &'static str = "promise";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;

    fn retry(&self) -> Policy {
        self.0.policy()
    }
}

impl Local for Promise {
    async fn act(&self, tx: &mut Tx, n: &u32, at: &At) -> Result<(), Fail<sqlx::Error>> {
        self.0.next(at);
        sqlx::query("INSERT INTO app.promises VALUES ($1)")
            .bind(n.cast_signed() % 2)
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_step_that_is_refused_at_its_commit_has_failed_and_harms_no_other() {
    let bench = Bench::new().await;
    for table in [
        "CREATE TABLE app.kept (n int PRIMARY KEY)",
        "INSERT INTO app.kept VALUES (0)",
        "CREATE TABLE app.promises (
            n int REFERENCES app.kept DEFERRABLE INITIALLY DEFERRED
        )",
    ] {
        sqlx::query(table).execute(bench.pool()).await.unwrap();
    }
    let definition = tasuki::saga::define::<u32>("promise", 1)
        .pivot_local(Promise(bench.world.clone()), |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let process = bench.process(&Registry::new().with(&definition));
    let numbers: Vec<u32> = (0..20).collect();
    let runs = numbers.iter().map(|n| process.engine.run(&definition, n));
    let ended = futures_util::future::join_all(runs).await;
    for (n, ended) in numbers.iter().zip(ended) {
        let ended = ended.unwrap();
        if n.is_multiple_of(2) {
            assert_eq!(ended.state, State::Completed);
            continue;
        }
        assert_eq!(ended.state, State::Compensated);
        let step = bench.view(ended.id).await.step("promise").unwrap().clone();
        assert_eq!(step.failed_attempts, 3, "as often as its policy says");
        assert!(step.error.unwrap().contains("foreign key"));
    }
    assert_eq!(bench.scalar("SELECT count(*) FROM app.promises").await, 10);
    process.stop().await;
}

#[tokio::test]
async fn an_input_that_panics_as_it_is_made_can_not_be_made() {
    let bench = Bench::new().await;
    let world = &bench.world;
    let panics = |n: u32| -> u32 { panic!("no input for {n}") };
    let before = tasuki::saga::define::<u32>("before", 1)
        .local(l::<0>(world), |saga| Ok(*saga.input()))
        .local(l::<1>(world), move |saga| Ok(panics(*saga.input())))
        .build()
        .unwrap();
    let (ended, _) = bench.run(&before).await;
    assert_eq!(ended.state, State::Compensated);
    let reason = ended.reason.unwrap();
    assert!(reason.contains("panicked: no input for 7"), "{reason}");
    assert_eq!(bench.effects().await, words("a:act a:undo"));

    let behind = tasuki::saga::define::<u32>("behind", 1)
        .pivot_local(l::<0>(world), |saga| Ok(*saga.input()))
        .local(F::<1>(world.clone()), move |saga| Ok(panics(*saga.input())))
        .build()
        .unwrap();
    let (ended, _) = bench.run(&behind).await;
    assert_eq!(ended.state, State::NeedsAttention);
}

/// Loses the connection that it works on.
struct Cuts;

impl Step for Cuts {
    const NAME: &'static str = "cuts";
    type Input = u32;
    type Output = ();
    type Failure = Fail<sqlx::Error>;
}

impl Local for Cuts {
    async fn act(&self, tx: &mut Tx, _: &u32, _: &At) -> Result<(), Fail<sqlx::Error>> {
        sqlx::query("SELECT pg_terminate_backend(pg_backend_pid())")
            .execute(tx.get().await?)
            .await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_saga_that_loses_its_connection_at_every_try_is_parked_and_harms_no_other() {
    let bench = Bench::new().await;
    let cuts = tasuki::saga::define::<u32>("cuts", 1)
        .pivot_local(Cuts, |saga| Ok(*saga.input()))
        .build()
        .unwrap();
    let others = three_local(&bench.world);
    let mut connection = bench.pool().acquire().await.unwrap();
    let start = async |definition: &Definition<u32>, connection: &mut sqlx::PgConnection| {
        bench.sagas.start(connection, definition, &7).await.unwrap()
    };
    let mut whole = Vec::new();
    for _ in 0..10 {
        whole.push(start(&others, &mut connection).await);
    }
    let cut = start(&cuts, &mut connection).await;
    for _ in 0..10 {
        whole.push(start(&others, &mut connection).await);
    }
    let registry = Registry::new().with(&cuts).with(&others);
    let process = bench.process(&registry);
    for id in whole {
        let ended = process.engine.wait(id).await.unwrap();
        assert_eq!(ended.state, State::Completed);
    }
    let again = "UPDATE app.sagas SET next_retry_at = now()
        WHERE status = 'PENDING' AND next_retry_at < 'infinity'";
    let parked = eventually("it is parked", async || {
        // Its pauses grow, and this test does not wait for them.
        sqlx::query(again).execute(bench.pool()).await.unwrap();
        let view = bench.view(cut).await;
        (view.state == State::NeedsAttention).then_some(view)
    })
    .await;
    let (_, reason) = parked.stuck.unwrap();
    assert!(reason.contains("given back 11 times"), "{reason}");
    assert_eq!(bench.scalar("SELECT count(*) FROM app.effects").await, 60);
    process.stop().await;
}
